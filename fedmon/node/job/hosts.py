"""The hosts of one job: each takes part under a name of its own, lives, and ends, and exactly one of them merges."""

from __future__ import annotations

import enum
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from fedmon.common.errors import StorageError
from fedmon.common.ids import JOB_PREFIX
from fedmon.node.collectors.base import THIS_MACHINE, CollectorUnavailableError, Roots
from fedmon.node.collectors.files import read_text
from fedmon.node.job.exclusive import Held, Lock
from fedmon.node.job.layout import MAX_NAME, JobFolder, file_name
from fedmon.node.job.roll import Claim, Entry, Registration, Roll, Seen

logger = logging.getLogger(__name__)

BEAT_S = 3.0
SILENT_BEATS = 4
"""A host that misses so many beats is taken for dead."""
_LOOKS_A_BEAT = 6
_TICK_S = 0.01
_MOST_NAMES = 1000
_MOST_TRIES = 100


class Membership:
    """One run of the tool on one host, among those of the other hosts of its job. A context manager.

    No two clocks are compared: whether another host lives, the kernel says through its lock where both are on one
    machine or the file system knows locks, else a change of its beat within this host's own monotonic time. Who
    merges is decided by who makes a file first; a host that was taken for dead and ends after all has it merged again.
    ``host`` is the name under which this host takes part (its own, or followed by a number where another run uses
    that), ``node_id`` and ``boot`` are those of its samples; all are known once `begin` returned. ``expected`` is how
    many hosts the job has, where that is known. A thread beats from `begin` to `close`.
    """

    def __init__(
        self,
        folder: JobFolder,
        *,
        host: str,
        expected: int | None = None,
        beat_s: float = BEAT_S,
        wall: Callable[[], float] = time.time,
        roots: Roots = THIS_MACHINE,
    ) -> None:
        self._folder, self._hostname, self._expected = folder, host, expected
        self._beat_s, self._patience_s, self._wall, self._roots = beat_s, beat_s * SILENT_BEATS, wall, roots
        self._roll = Roll(folder.hosts)
        self._lock: Lock | None = None
        self._entry = Entry("", 0)
        self._lives = Lives(self._roll, self._machine(), patience_s=self._patience_s)
        self._began = time.monotonic()
        self._beats, self._beating_failed = 0, False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="fedmon-job-beat")
        self._merge = 0
        self.host, self.node_id, self.boot = "", "", 0
        self.clock_offset_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def recording(self) -> Path:
        """Where this host records; no other run writes there."""
        return self._folder.recording(self.host)

    def begin(self, document: Mapping[str, Any]) -> None:
        """Take part, under a name that nobody else has; ``document`` is for the other hosts. Raises StorageError."""
        self._folder.make()
        self._began = time.monotonic()
        self._register(document)
        self._lives.note(self._roll.see(), besides=self._entry)
        self.clock_offset_s = self._clock_offset()
        self._thread.start()

    def beat(self) -> None:
        """Show that this host lives; the membership's own thread does so all the time."""
        self._beats += 1
        try:
            self._roll.beat(self._entry, str(self._beats).encode())
        except OSError as error:
            level = logging.DEBUG if self._beating_failed else logging.WARNING
            logger.log(level, "the other hosts cannot see that this one lives: %s", error)
            self._beating_failed = True

    def end(self, document: Mapping[str, Any], *, given_up: threading.Event | None = None) -> bool:
        """Say that this host ended; True when it is the one that merges.

        Returns at once while another host is known to live; else it waits until each of the others moved or was
        silent for four beats, and for hosts that are expected, as long after `begin`. ``given_up`` ends the waiting,
        with False. What merges calls `done` afterwards. Raises StorageError.
        """
        self._roll.end(self._entry, document)
        return self._decide(given_up or threading.Event())

    def done(self) -> bool:
        """Say that everything is merged; True when a host ended meanwhile, so that it is to be done again.

        Raises StorageError.
        """
        self._roll.merged(self._merge)
        # Who found us merging left without merging: its end is there to be seen now.
        return self._decide(threading.Event())

    def others(self) -> list[tuple[Registration, float]]:
        """Return what the other hosts said when they began, and when by the file server's clock, in Unix seconds.

        Those that began before an earlier run of this host was over are not among them. Raises StorageError.
        """
        since = self._roll.last_sign(self._entry._replace(generation=self._entry.generation - 1))
        found = []
        for entry in self._roll.see().newest.values():
            registration, began = self._roll.registration(entry), self._roll.began(entry)
            if entry != self._entry and registration is not None and began > since:
                found.append((registration, began))
        return found

    def close(self) -> None:
        """Stop beating and let the name go; safe to call twice."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._lock is not None:
            self._lock.release()

    # --- taking part -------------------------------------------------------------------------------------------------

    def _register(self, document: Mapping[str, Any]) -> None:
        machine = self._machine()
        for number in range(1, _MOST_NAMES):
            host = file_name(self._hostname if number == 1 else f"{self._hostname}-{number}")
            node_id = _node_id(self._folder.key, host)
            lock = Lock(self._roll.lock_file(node_id))
            held = lock.take()
            if held is not Held.YES:
                entry, boot = self._next(node_id, machine, held)
                registration = Registration(
                    host=host,
                    hostname=self._hostname,
                    boot=boot,
                    machine=machine,
                    pid=os.getpid(),
                    expected=self._expected,
                    document=dict(document),
                )
                if entry is not None and self._roll.begin(entry, registration):
                    self._lock, self._entry = lock, entry
                    self.host, self.node_id, self.boot = host, node_id, boot
                    return
            lock.release()
        raise StorageError(
            f"{_MOST_NAMES} runs of this job say that they are {self._hostname!r}: see {self._roll.folder}"
        )

    def _next(self, node_id: str, machine: str, held: Held) -> tuple[Entry | None, int]:
        """Return the next run under an id, None while an earlier one may live, and its boot."""
        seen = self._roll.see()
        before = seen.newest.get(node_id)
        now = int(self._wall())
        if before is None:
            return Entry(node_id, 1), now
        earlier = self._roll.registration(before)
        # A lock that is free tells that its holder is dead where both are on one machine.
        is_over = before in seen.ended or (
            held is Held.NO and earlier is not None and bool(machine) and earlier.machine == machine
        )
        boot = max(now, (earlier.boot if earlier is not None else 0) + 1)
        return (Entry(node_id, before.generation + 1) if is_over else None), boot

    def _machine(self) -> str:
        try:
            return read_text(self._roots.proc / "sys" / "kernel" / "random" / "boot_id")
        except CollectorUnavailableError:
            return ""

    def _clock_offset(self) -> float | None:
        """Return this host's wall clock less that of the file server, in seconds, or 0 where they may be the same.

        None where that cannot be told.
        """
        before = self._wall()
        try:
            found = self._roll.beat(self._entry, b"0", sync=True)
        except OSError as error:
            logger.info("the clocks of the hosts cannot be compared: %s", error)
            return None
        # A slow disk is no reason to doubt a clock, nor that files have the time of the kernel's last tick.
        nearest = min(max(found.st_mtime, before - _TICK_S), self._wall())
        return round(nearest - found.st_mtime, 3)

    def _beat_on(self) -> None:
        while not self._ended.wait(self._beat_s):
            self.beat()

    # --- who merges --------------------------------------------------------------------------------------------------

    def _decide(self, given_up: threading.Event) -> bool:
        for _ in range(_MOST_TRIES):
            seen, choice = self._look()
            while choice is Choice.WAIT and not given_up.wait(self._beat_s / _LOOKS_A_BEAT):
                seen, choice = self._look()
            if choice is Choice.WAIT:
                logger.warning("what other hosts do is not known: 'fedmon job merge %s' merges", self._folder.path)
            if choice is not Choice.OURS:
                return False
            claim = Claim(by=self._entry, ended=[(entry.node_id, entry.generation) for entry in sorted(seen.ended)])
            if self._roll.claim(seen.number + 1, claim):
                self._merge = seen.number + 1
                self._tell(seen)
                return True
        return False

    def _look(self) -> tuple[Seen, Choice]:
        seen = self._roll.see()
        asked = {*seen.running, *([seen.claim.entry] if seen.claim is not None and not seen.merged else [])}
        found = {entry: self._lives.of(entry, seen) for entry in asked - {self._entry}}
        is_patient = self._expected is not None and time.monotonic() - self._began < self._patience_s
        absent = max(0, (self._expected or 0) - self._lives.taking_part(seen)) if is_patient else 0
        return seen, choose(seen, self._entry, found, absent=absent)

    def _tell(self, seen: Seen) -> None:
        for entry in seen.running:
            logger.warning("host %s did not end and is silent: what it recorded is merged without its end", entry)
        there = len(seen.newest)
        if self._expected is not None and there < self._expected:
            logger.warning("%d of %d hosts of the job took part", there, self._expected)


def _node_id(key: str, host: str) -> str:
    """Return the id under which one host's samples of one job are known, also at a broker."""
    text = re.sub(r"[^A-Za-z0-9_-]", "-", f"{JOB_PREFIX}{key}-{host}")
    return text if len(text) <= MAX_NAME else re.sub(r"[^A-Za-z0-9_-]", "-", file_name(text + host))


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


class Life(enum.Enum):
    """What is known of another host's process."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Choice(enum.Enum):
    """Whether to merge."""

    OURS = "merge"
    THEIRS = "leave it to another, or it is done"
    WAIT = "look again"


def choose(seen: Seen, ours: Entry, lives: Mapping[Entry, Life], *, absent: int) -> Choice:
    """Decide for a host that said that it ended; ``absent`` hosts may still come.

    Whoever lives and did not end will see our end at its own. Whoever merges now looks for ends once more when it is
    done. So it is enough that one host goes on: the last, or the first to make the next claim among those that cannot
    know who is the last.
    """
    others = [lives[entry] for entry in seen.running if entry != ours]
    if Life.ALIVE in others:
        return Choice.THEIRS
    if seen.claim is not None and not seen.merged and seen.claim.entry != ours:
        match lives[seen.claim.entry]:
            case Life.ALIVE:
                return Choice.THEIRS
            case Life.UNKNOWN:
                return Choice.WAIT
            case Life.DEAD:
                pass
    if seen.covered:
        return Choice.THEIRS
    return Choice.WAIT if absent or Life.UNKNOWN in others else Choice.OURS
