"""Which processes are new on this machine, found without looking at the old ones again."""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedmon.node.collectors.base import CollectorUnavailableError, why
from fedmon.node.collectors.files import KernelFile
from fedmon.node.collectors.job.files import read_file
from fedmon.node.collectors.job.fork_events import ForkEvents
from fedmon.node.collectors.job.process import Birth, birth_of

LIST_EVERY_S = 10.0
MAX_PROBES = 64
"""Up to this many new numbers are tried one by one; for more of them, listing all processes is cheaper."""

_MAX_KEPT = 20_000
_YOUNGEST = 16
"""So many of the numbers given last may belong to processes that are being made and cannot be seen yet."""


class Births:
    """Finds new processes for all jobs of a node; each job reads on from its own position. Safe from any thread.

    The kernel gives numbers in turn, and the last field of ``loadavg`` is the one given last: while it stands still
    there is no new process anywhere, which costs one read to know, and what was born since the last look lies between
    two values of it. Every 10 s all numbers are listed, for what this does not see (a process that asked for a number
    of its own). Where ``proc`` shows other numbers than ours (another name space, a tree of files) every look is a
    whole scan. Source: Linux fs/proc/loadavg.c and kernel/pid.c, idr_alloc_cyclic.
    """

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._proc = os.fsencode(proc)
        self._loadavg = KernelFile(proc / "loadavg", size_bytes=128)
        self._events = ForkEvents()
        self._is_ours = _shows_us(proc)
        self._last: int | None = None
        self._known: set[int] = set()
        self._listed_at = float("-inf")
        self._again: list[int] = []
        self._kept: deque[Birth] = deque(maxlen=_MAX_KEPT)
        self._position = 0
        self._lock = threading.Lock()

    def everything(self) -> list[Birth]:
        """Return all processes that there are. Raises CollectorUnavailableError when they cannot be listed."""
        return self._read(self._listing())

    def since(self, position: int | None, mono: float) -> tuple[Sequence[Birth] | None, int]:
        """Return what was born since a position, parents before children, and the position to go on from.

        ``mono`` is the monotonic time of now. None instead of births means: look at everything, for the position is
        too old or not known. Raises CollectorUnavailableError when processes cannot be listed.
        """
        with self._lock:
            if self._last is None and self._is_ours:
                self._events.open()
            found = self._look(mono)
            if found and self._events.is_open:
                self._events.look()
                found = [birth._replace(ancestors=self._ancestors(birth.pid)) for birth in found]
            self._kept.extend(found)
            self._position += len(found)
            missing = None if position is None else self._position - position
            if missing is None or missing > len(self._kept):
                return None, self._position
            return list(itertools.islice(self._kept, len(self._kept) - missing, None)), self._position

    @property
    def hears_forks(self) -> bool:
        """Tell whether the kernel says who forked whom."""
        return self._events.is_open

    def rest(self) -> None:
        """Close everything while nobody looks; the next look begins anew."""
        with self._lock:
            self._loadavg.close()
            self._events.close()
            self._last = None

    def _look(self, mono: float) -> list[Birth]:
        if not self._is_ours:
            return self.everything()
        try:
            last = int(self._loadavg.head().split()[4])
        except (CollectorUnavailableError, ValueError, IndexError):
            return self.everything()
        before, self._last = self._last, last
        again, self._again = self._again, []
        if before is None:  # who joins now scans for itself
            self._known, self._listed_at = set(self._listing()), mono
            return []
        is_listing_due = mono - self._listed_at >= LIST_EVERY_S
        if last == before and not again and not is_listing_due:
            return []
        gap = last - before
        if 0 <= gap <= MAX_PROBES and not is_listing_due:
            return [*self._read(again), *self._read(range(before + 1, last + 1), youngest=last)]
        there = self._listing()
        new = [pid for pid in there if pid not in self._known or _is_between(pid, before, last)]
        self._known, self._listed_at = set(there), mono
        self._again = [pid for pid in range(max(1, last - _YOUNGEST + 1), last + 1) if pid not in self._known]
        # In the order in which the numbers were given, which goes on from the smallest after the largest.
        return self._read(sorted(new, key=lambda pid: (pid <= last, pid) if gap < 0 else (False, pid)))

    def _ancestors(self, pid: int) -> tuple[int, ...]:
        found: list[int] = []
        while (parent := self._events.parents.get(pid)) is not None and parent not in found:
            found.append(parent)
            pid = parent
        return tuple(found)

    def _listing(self) -> list[int]:
        try:
            names = os.listdir(self._proc)  # noqa: PTH208 - names are all that is wanted, and there are thousands
        except OSError as error:
            raise why(error) from None
        return [int(name) for name in names if name.isdigit()]

    def _read(self, pids: Iterable[int], *, youngest: int = 0) -> list[Birth]:
        found = []
        for pid in pids:
            try:
                found.append(birth_of(pid, read_file(b"%s/%d/stat" % (self._proc, pid), 1024)))
            except (OSError, ValueError, IndexError):
                if youngest and youngest - pid < _YOUNGEST:
                    self._again.append(pid)
        return found


def _is_between(pid: int, before: int, last: int) -> bool:
    """Tell whether a number was given after ``before`` and up to ``last``, where numbers begin again at the end."""
    return before < pid <= last if before <= last else pid > before or pid <= last


def is_thread(folder: bytes, pid: int) -> bool:
    """Tell whether a number belongs to a thread that is not the first of its process; gone counts as one."""
    try:
        text = read_file(folder + b"/status", 4096)
    except OSError:
        return True
    return b"\nTgid:\t%d\n" % pid not in text


def _shows_us(proc: Path) -> bool:
    try:
        return (proc / "self").readlink().name == str(os.getpid())
    except OSError:
        return False
