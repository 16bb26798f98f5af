"""The processes of a job: births on this machine, descent from the job's roots, and orphans."""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from fedmon.node.collectors.base import CollectorUnavailableError, why
from fedmon.node.collectors.files import KernelFile, read_file
from fedmon.node.collectors.job.process import Birth, Process, all_pids, births_of, descended

_ProcessT = TypeVar("_ProcessT", Birth, Process)
_ENVIRONMENT_BYTES = 262_144
LIST_EVERY_S = 10.0
MAX_PROBES = 64
"""Most new numbers that are tried one by one; for more, a list of all processes is cheaper."""
_YOUNGEST = 16
"""Number of the newest ids that may belong to processes that cannot be seen yet."""
_MAX_KEPT = 20_000


class Births:
    """Finds new processes for all jobs of a node; each job reads on from its own position. Safe from any thread.

    The kernel gives numbers in turn, and the last field of ``loadavg`` is the newest one: while it stands still there
    is no new process anywhere, and the processes born since the last look lie between two values of it. Every 10 s all
    numbers are listed, because a process may ask for a certain number. If ``proc`` shows other numbers than ours
    (another name space, a tree of files), every look is a whole scan.
    Source: Linux fs/proc/loadavg.c and kernel/pid.c, idr_alloc_cyclic.
    """

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._proc = os.fsencode(proc)
        self._loadavg = KernelFile(proc / "loadavg", size_bytes=128)
        self._is_ours = _shows_us(proc)
        self._last: int | None = None
        self._known: set[int] = set()
        self._listed_at = float("-inf")
        self._again: list[int] = []
        self._kept: deque[Birth] = deque(maxlen=_MAX_KEPT)
        self._position = 0
        self._lock = threading.Lock()

    def everything(self) -> list[Birth]:
        """Return all processes. Raises CollectorUnavailableError if they cannot be listed."""
        return births_of(self._listing(), self._proc)

    def since(self, position: int | None, mono: float) -> tuple[Sequence[Birth] | None, int]:
        """Return the births since a position, parents before children, and the next position.

        ``mono`` is the monotonic time of now. None instead of births means that the position is too old or unknown:
        look at everything. Raises CollectorUnavailableError if processes cannot be listed.
        """
        with self._lock:
            found = self._look(mono)
            self._kept.extend(found)
            self._position += len(found)
            missing = None if position is None else self._position - position
            if missing is None or missing > len(self._kept):
                return None, self._position
            return list(itertools.islice(self._kept, len(self._kept) - missing, None)), self._position

    def rest(self) -> None:
        """Close everything; the next look begins again."""
        with self._lock:
            self._loadavg.close()
            self._last = None

    def _look(self, mono: float) -> list[Birth]:
        if not self._is_ours:
            return self.everything()
        try:
            last = int(self._loadavg.head().split()[4])
        except CollectorUnavailableError:  # as in a /proc of processes alone
            return self.everything()
        before, self._last = self._last, last
        again, self._again = self._again, []
        if before is None:  # the first look of each job is a scan
            self._known, self._listed_at = set(self._listing()), mono
            return []
        is_listing_due = mono - self._listed_at >= LIST_EVERY_S
        if last == before and not again and not is_listing_due:
            return []
        if 0 <= last - before <= MAX_PROBES and not is_listing_due:
            born = range(before + 1, last + 1)
            found = births_of([*again, *born], self._proc)
            visible = {birth.pid for birth in found}
            self._again = [pid for pid in born if pid not in visible and last - pid < _YOUNGEST]
            return found
        there = self._listing()
        new = [pid for pid in there if pid not in self._known or _is_between(pid, before, last)]
        self._known, self._listed_at = set(there), mono
        self._again = [pid for pid in range(max(1, last - _YOUNGEST + 1), last + 1) if pid not in self._known]
        # In the order in which the numbers were given, which goes on from the smallest after the largest.
        has_wrapped = last < before
        return births_of(sorted(new, key=lambda pid: (has_wrapped and pid <= last, pid)), self._proc)

    def _listing(self) -> list[int]:
        try:
            return all_pids(self._proc)
        except OSError as error:
            raise why(error) from None


def _is_between(pid: int, before: int, last: int) -> bool:
    """Tell whether a number was given after ``before`` and up to ``last``; numbers begin again after the largest."""
    return before < pid <= last if before <= last else pid > before or pid <= last


def is_thread(folder: bytes, pid: int) -> bool:
    """Tell whether a number belongs to a thread that is not the first of its process; a gone process counts as one."""
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


def has_marker(folder: bytes, marker: bytes) -> bool:
    """Tell whether a process was started with this variable in its environment."""
    try:
        return marker in read_file(folder + b"/environ", _ENVIRONMENT_BYTES).split(b"\0")
    except OSError:
        return False


class Members(Protocol):
    """Finds the processes of one job."""

    def joined(self, members: Mapping[int, Process], mono: float) -> Sequence[Birth]:
        """Return the new members, at the first call all, parents before their children."""

    def settled(self, members: Mapping[int, Process]) -> None:
        """Note the members, after a tick at which one came, changed or left."""


class Excluded:
    """Processes in the job's cgroup or below its roots that are not the job's, with their descendants.

    ``overhead`` maps daemons and launchers of the job's programs to their start: only they themselves are left out.
    ``is_overhead_now`` tells whether a process that comes later is one of them at this moment.
    """

    def __init__(
        self,
        pids: Collection[int] = (),
        *,
        overhead: Mapping[int, int] | None = None,
        is_overhead_now: Callable[[int], bool] | None = None,
    ) -> None:
        self._starts: dict[int, int | None] = dict.fromkeys(pids)
        self.overhead = dict(overhead or {})
        self._is_overhead_now = is_overhead_now
        self._late: dict[int, Birth] = {}

    @property
    def processes(self) -> dict[int, int | None]:
        """The known excluded processes, with their starts if known."""
        return {**self._starts, **self.overhead}

    def without(self, births: Sequence[Birth], members: Container[int]) -> Sequence[Birth]:
        """Leave out excluded processes, of births with parents before their children."""
        return [birth for birth in births if not self._holds(birth, members)]

    def programs(self, births: Sequence[Birth]) -> Sequence[Birth]:
        """Leave out overhead that came meanwhile, of processes that are the job's.

        One comes back when it is overhead no longer: a daemon forks itself to become a program.
        """
        is_overhead_now = self._is_overhead_now
        if is_overhead_now is None:
            return births
        found = []
        for birth in births:
            if is_overhead_now(birth.pid):
                self.overhead[birth.pid], self._late[birth.pid] = birth.start, birth
            else:
                found.append(birth)
        for pid in [pid for pid in self._late if not is_overhead_now(pid)]:
            birth = self._late.pop(pid)
            if self.overhead.get(pid) == birth.start:
                del self.overhead[pid]
            if all(each.pid != pid for each in found):
                found.append(birth)
        return found

    def ended(self, pid: int) -> None:
        """Forget a process that has ended."""
        self._starts.pop(pid, None)

    def _holds(self, birth: Birth, members: Container[int]) -> bool:
        if self.overhead.get(birth.pid) == birth.start:
            return True
        is_known = birth.pid in self._starts and self._starts[birth.pid] in (None, birth.start)
        is_child = birth.parent in self._starts and birth.parent not in members
        if is_known or is_child:
            self._starts[birth.pid] = birth.start
        return is_known or is_child


class Descendants:
    """The roots of a job, their descendants, and their orphans: processes whose parents ended unseen.

    A process belongs to the job if

    - its parent does, or
    - a process of the job began its session: a session is entered by birth alone, or
    - a process of the job leads its process group, and its parent is not the parent of the roots, as that of the other
      programs in a shell's pipeline is, or
    - its environment holds the job's ``marker``, such as ``FEDMON_JOB_ID=7``; only if that of a root does.

    An orphan without any of these signs, or one that began before ``since`` clock ticks after the boot, is like any
    other process.
    """

    def __init__(
        self,
        roots: Sequence[Birth],
        births: Births,
        *,
        proc: Path,
        marker: bytes,
        excluded: Excluded,
        since: int,
    ) -> None:
        self._roots, self._births, self._marker = {(each.pid, each.start) for each in roots}, births, marker
        self._proc, self._excluded, self._since = os.fsencode(proc), excluded, since
        self._position: int | None = None
        self._has_settled = self._is_marked = False
        self._outside: set[int] = set()
        self._sessions: set[int] = set()
        self._groups: set[int] = set()

    def joined(self, members: Mapping[int, Process], mono: float) -> Sequence[Birth]:
        """Look at the new processes of this machine; at all of them if the new ones are not known."""
        births, self._position = self._births.since(self._position, mono)
        if not self._has_settled:
            # Orphans are known only once the roots were read: the next look is at all processes again.
            self._position = None
            return self._excluded.programs(self._excluded.without(parents_first(self._descendants()), members))
        if births is None:
            births = self._births.everything()
        births = self._excluded.without(births, members) if births else ()
        return self._excluded.programs(self._own(births, members) if births else ())

    def settled(self, members: Mapping[int, Process]) -> None:
        """Note the sessions and groups of the job, for as long as one of its processes is in them."""
        living = members.values()
        if not self._has_settled:
            roots = [each for each in living if (each.pid, each.start) in self._roots]
            self._outside = {root.parent for root in roots}
            self._is_marked = any(has_marker(root.folder, self._marker) for root in roots)
            self._has_settled = True
        sessions, groups = {each.session for each in living}, {each.group for each in living}
        self._sessions = {number for number in sessions if number in members or number in self._sessions}
        self._groups = {number for number in groups if number in members or number in self._groups}

    def _descendants(self) -> list[Birth]:
        everything = self._births.everything()
        roots = [birth for birth in everything if (birth.pid, birth.start) in self._roots]
        return [*roots, *descended([root.pid for root in roots], everything)]

    def _own(self, births: Iterable[Birth], members: Mapping[int, Process]) -> list[Birth]:
        known: dict[int, int] = self._excluded.overhead | {pid: process.start for pid, process in members.items()}
        found: list[Birth] = []
        left = list(births)
        while left:
            strangers = []
            for birth in left:
                folder = b"%s/%d" % (self._proc, birth.pid)
                if birth.is_kernel_thread or birth.start < self._since or known.get(birth.pid) == birth.start:
                    continue
                if not self._is_own(birth, folder, known):
                    strangers.append(birth)
                elif not is_thread(folder, birth.pid):
                    known[birth.pid] = birth.start
                    found.append(birth)
            if not found or len(strangers) == len(left):
                break
            left = strangers  # a child may have been listed before its parent
        return found

    def _is_own(self, birth: Birth, folder: bytes, members: Container[int]) -> bool:
        # The leader of a session or group began it, and may have a reused number.
        in_session = birth.session in self._sessions and birth.session != birth.pid
        in_group = birth.group in self._groups and birth.group != birth.pid
        return (
            birth.parent in members
            or in_session
            or (in_group and birth.parent not in self._outside)
            or (self._is_marked and has_marker(folder, self._marker))
        )


def parents_first(processes: Collection[_ProcessT]) -> list[_ProcessT]:
    """Order processes by their distance from those whose parents are not among them."""
    parents = {each.pid: each.parent for each in processes}

    def depth(pid: int) -> int:
        steps = 0
        while (parent := parents.get(pid)) is not None and steps < len(parents):
            pid, steps = parent, steps + 1
        return steps

    return sorted(processes, key=lambda each: depth(each.pid))
