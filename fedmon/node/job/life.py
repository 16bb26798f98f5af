"""Whether other hosts live: by their locks, else by their beats within this host's own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from fedmon.node.job.election import Life
from fedmon.node.job.exclusive import Held, Lock
from fedmon.node.job.roll import Entry, Roll, Seen


class _Beat(NamedTuple):
    """The last beat of a host, since when it is the last, and whether this host waits for the next one."""

    content: bytes
    since: float
    watched: bool = False


class Lives:
    """What one host knows of the others; ``patience_s`` without a change of its beat, and a host is dead.

    Belongs to one thread.
    """

    def __init__(
        self, roll: Roll, machine: str, *, patience_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._roll, self._machine, self._patience_s, self._monotonic = roll, machine, patience_s, monotonic
        self._beats: dict[Entry, _Beat] = {}
        self._earlier: set[Entry] = set()
        self._before: set[Entry] = set()

    def note(self, seen: Seen, *, besides: Entry) -> None:
        """Note who is there when this host begins: who ended or is not heard of again is of an earlier run."""
        now = self._monotonic()
        self._earlier = set(seen.ended)
        self._before = set(seen.running) - {besides}
        self._beats = {entry: _Beat(self._roll.last_beat(entry), now) for entry in self._before}

    def taking_part(self, seen: Seen) -> int:
        """Return how many hosts take part in this run, as far as is known."""
        silent = {entry for entry in self._before if self._life(entry, seen) is Life.DEAD and entry not in seen.ended}
        return sum(1 for entry in seen.newest.values() if entry not in self._earlier and entry not in silent)

    def of(self, entry: Entry, seen: Seen) -> Life:
        """Tell whether a host lives."""
        return self._life(entry, seen)

    def _life(self, entry: Entry, seen: Seen) -> Life:
        if seen.newest.get(entry.node_id, entry) != entry:
            return Life.DEAD
        held = Lock(self._roll.lock_file(entry.node_id)).look()
        if held is Held.YES:
            return Life.ALIVE
        if held is Held.NO and self._is_here(entry):
            return Life.DEAD
        return self._by_beats(entry)

    def _is_here(self, entry: Entry) -> bool:
        registration = self._roll.registration(entry)
        return registration is not None and bool(self._machine) and registration.machine == self._machine

    def _by_beats(self, entry: Entry) -> Life:
        now, content = self._monotonic(), self._roll.last_beat(entry)
        known = self._beats.get(entry)
        if known is None or known.content != content:
            self._beats[entry] = _Beat(content, now, watched=True)
            # A change since `note` says that it lived at some time since, not that it lives now.
            return Life.ALIVE if known is not None and known.watched else Life.UNKNOWN
        if now - known.since >= self._patience_s:
            return Life.DEAD
        self._beats[entry] = known._replace(watched=True)
        return Life.UNKNOWN
