"""The processes of a job: births on this machine, descent from the job's roots, and orphans."""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fedmon.node.collectors.base import CollectorUnavailableError, why
from fedmon.node.collectors.files import KernelFile, read_file
from fedmon.node.collectors.job.fork_events import ForkEvents
from fedmon.node.collectors.job.process import Birth, Process, descended, read_birth

_ENVIRONMENT_BYTES = 262_144
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
                found.append(read_birth(pid, self._proc))
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


class Kinship:
    """Knows a job's children, and its orphans: processes whose parents ended before anybody looked.

    Of the job is a process

    - whose parent is of the job, or
    - whom a process of the job forked, or one that such a process forked (see ForkEvents), or
    - whose session was begun by a process of the job: a session is entered by being born into it alone, or
    - whose process group is led by a process of the job, unless its parent is the parent of the job's roots, as that of
      the other programs of a shell's pipeline is, or
    - whose environment holds the job's ``marker``, such as ``FEDMON_JOB_ID=7``; only looked for where a root has it.

    An orphan with none of these signs cannot be told from anybody's process.
    """

    def __init__(self, roots: Iterable[Process], *, marker: bytes) -> None:
        roots = list(roots)
        self._outside = {root.parent for root in roots}
        self._marker = marker
        self._is_marked = any(has_marker(root.folder, marker) for root in roots)
        self._sessions: set[int] = set()
        self._groups: set[int] = set()

    def owns(self, birth: Birth, folder: bytes, members: Container[int]) -> bool:
        """Tell whether a new process is of the job."""
        # Who leads a session or group began it, and may have the number of one that is no more.
        in_session = birth.session in self._sessions and birth.session != birth.pid
        in_group = birth.group in self._groups and birth.group != birth.pid
        return (
            birth.parent in members
            or any(ancestor in members for ancestor in birth.ancestors)
            or in_session
            or (in_group and birth.parent not in self._outside)
            or (self._is_marked and has_marker(folder, self._marker))
        )

    def learn(self, members: Mapping[int, Process]) -> None:
        """Note which sessions and groups are the job's, for as long as one of its processes is in them."""
        living = members.values()
        sessions, groups = {each.session for each in living}, {each.group for each in living}
        self._sessions = {number for number in sessions if number in members or number in self._sessions}
        self._groups = {number for number in groups if number in members or number in self._groups}


def has_marker(folder: bytes, marker: bytes) -> bool:
    """Tell whether a process was started with a variable in its environment."""
    try:
        return marker in read_file(folder + b"/environ", _ENVIRONMENT_BYTES).split(b"\0")
    except OSError:
        return False


class Members(Protocol):
    """Finds the processes of one job."""

    def joined(self, members: Mapping[int, Process], mono: float) -> Sequence[Birth]:
        """Return those that are not members yet, at the first call all, parents before their children."""
        ...

    def settled(self, members: Mapping[int, Process]) -> None:
        """Take note of who is a member, after a tick at which somebody came, changed or left."""
        ...


class Excluded:
    """Processes that are of no job though they lie in its cgroup or below its roots, with all that they start.

    ``alone`` maps those to their start of whom only they themselves are not counted, as launchers of its programs;
    ``is_launcher`` tells whether a process that comes later is one of these at this moment.
    """

    def __init__(
        self,
        pids: Collection[int] = (),
        *,
        alone: Mapping[int, int] | None = None,
        is_launcher: Callable[[int], bool] | None = None,
    ) -> None:
        self._starts: dict[int, int | None] = dict.fromkeys(pids)
        self.alone = dict(alone or {})
        self._is_launcher = is_launcher
        self._late: dict[int, Birth] = {}

    @property
    def processes(self) -> dict[int, int | None]:
        """Return who is known to be excluded, with their starts as far as they are known."""
        return {**self._starts, **self.alone}

    @property
    def may_hold(self) -> bool:
        """Whether somebody is excluded, or may come to be."""
        return bool(self._starts or self.alone) or self._is_launcher is not None

    def without(self, births: Sequence[Birth], members: Container[int]) -> Sequence[Birth]:
        """Leave out who is excluded, of births with parents before their children."""
        if not (self._starts or self.alone):
            return births
        return [birth for birth in births if not self._holds(birth, members)]

    def programs(self, births: Sequence[Birth]) -> Sequence[Birth]:
        """Leave out launchers that came meanwhile, of processes that are the job's.

        Who was left out so comes back when it is one no longer: a daemon forks itself to become a program.
        """
        is_launcher = self._is_launcher
        if is_launcher is None:
            return births
        found = []
        for birth in births:
            if is_launcher(birth.pid):
                self.alone[birth.pid], self._late[birth.pid] = birth.start, birth
            else:
                found.append(birth)
        for pid in [pid for pid in self._late if not is_launcher(pid)]:
            birth = self._late.pop(pid)
            if self.alone.get(pid) == birth.start:
                del self.alone[pid]
            if all(each.pid != pid for each in found):
                found.append(birth)
        return found

    def _holds(self, birth: Birth, members: Container[int]) -> bool:
        if self.alone.get(birth.pid) == birth.start:
            return True
        is_known = birth.pid in self._starts and self._starts[birth.pid] in (None, birth.start)
        is_child = birth.parent in self._starts and birth.parent not in members
        if is_known or is_child:
            self._starts[birth.pid] = birth.start
        return is_known or is_child


class Descendants:
    """The roots, all that descend from them, and their orphans as far as they can be known (see Kinship)."""

    def __init__(
        self,
        roots: Sequence[Birth],
        births: Births,
        *,
        proc: Path,
        marker: bytes,
        excluded: Excluded | None = None,
    ) -> None:
        self._roots, self._births, self._marker = {(each.pid, each.start) for each in roots}, births, marker
        self._proc = os.fsencode(proc)
        self._excluded = excluded if excluded is not None else Excluded()
        self._position: int | None = None
        self._kinship: Kinship | None = None

    def joined(self, members: Mapping[int, Process], mono: float) -> Sequence[Birth]:
        """Look at the processes that are new on this machine; at all of them where it is not known which are new."""
        births, self._position = self._births.since(self._position, mono)
        if self._kinship is None:
            # Orphans can be told once the roots were read: the next look is at all processes again.
            self._position = None
            return self._excluded.programs(self._excluded.without(parents_first(self._descendants()), members))
        if births is None:
            births = self._births.everything()
        births = self._excluded.without(births, members) if births else ()
        return self._excluded.programs(self._kin(births, members, self._kinship) if births else ())

    def settled(self, members: Mapping[int, Process]) -> None:
        """Learn what marks the job's processes."""
        if self._kinship is None:
            roots = [each for each in members.values() if (each.pid, each.start) in self._roots]
            self._kinship = Kinship(roots, marker=self._marker)
        self._kinship.learn(members)

    def _descendants(self) -> list[Birth]:
        everything = self._births.everything()
        roots = [birth for birth in everything if (birth.pid, birth.start) in self._roots]
        return [*roots, *descended([root.pid for root in roots], everything)]

    def _kin(self, births: Iterable[Birth], members: Mapping[int, Process], kinship: Kinship) -> list[Birth]:
        known: dict[int, int] = self._excluded.alone | {pid: process.start for pid, process in members.items()}
        found: list[Birth] = []
        left = list(births)
        while left:
            strangers = []
            for birth in left:
                folder = b"%s/%d" % (self._proc, birth.pid)
                if birth.is_kernel_thread or known.get(birth.pid) == birth.start:
                    continue
                if not kinship.owns(birth, folder, known):
                    strangers.append(birth)
                elif not is_thread(folder, birth.pid):
                    known[birth.pid] = birth.start
                    found.append(birth)
            if not found or len(strangers) == len(left):
                break
            left = strangers  # a child may have been listed before its parent
        return found


def parents_first(births: Iterable[Birth]) -> list[Birth]:
    """Order processes by their distance from those whose parents are not among them."""
    parents = {birth.pid: birth.parent for birth in births}

    def depth(pid: int) -> int:
        steps = 0
        while (parent := parents.get(pid)) is not None and steps < len(parents):
            pid, steps = parent, steps + 1
        return steps

    return sorted(births, key=lambda birth: depth(birth.pid))
