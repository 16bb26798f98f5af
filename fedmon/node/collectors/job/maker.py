"""The collectors of one job, made from its root processes or its cgroup."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from fedmon.common.errors import ConflictError, InvalidInputError, NotFoundError
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Roots
from fedmon.node.collectors.job.cgroup import JobCgroup, find_hierarchies, members_of, named, own
from fedmon.node.collectors.job.cgroup_collector import PEAK, SWAP, cgroup_collectors
from fedmon.node.collectors.job.cgroup_cpu import CgroupCpu, CgroupMembers
from fedmon.node.collectors.job.collectors import (
    JobReading,
    MethodCollector,
    SmapsCollector,
    StatusCollector,
    TreeCollector,
)
from fedmon.node.collectors.job.members import Births, Descendants, Excluded, Members, is_thread
from fedmon.node.collectors.job.process import Birth, read_birth
from fedmon.node.collectors.job.tree import ProcessTree

TREE, SIGNS = "tree", "signs"
_MEASURED = ("cpu", "members", "peak", "swap")


class Watching(NamedTuple):
    """The reading and collectors of one job; ``methods`` maps CPU time, members, peak, swap and orphans to a method."""

    watched: JobReading
    collectors: Sequence[Collector]
    methods: Mapping[str, str]
    cgroup: JobCgroup | None


class JobMaker:
    """Makes the collectors of jobs, which share the search for new processes and the number of open files."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._births = Births(proc=roots.proc)
        # Files that the processes of all jobs may keep open together, as reading by path costs twice as much. select()
        # takes numbers below 1024, and in a tree of files an open file would outlive its folder.
        most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1024) // 2
        self._descriptors = threading.Semaphore(0 if roots.simulated else most)

    def rest(self) -> None:
        """Stop the search for new processes, until the next job is made."""
        self._births.rest()

    def make(
        self,
        *,
        pids: Collection[int],
        cgroup: str | JobCgroup | None,
        marker: str,
        mono: float,
        starts: Mapping[int, int] | None = None,
        exclude: Collection[int] = (),
        overhead: Mapping[int, int] | None = None,
        is_overhead_now: Callable[[int], bool] | None = None,
    ) -> Watching:
        """Find the job's processes and its cgroup, and read them once.

        ``starts`` maps some of the processes to their start, in clock ticks since the boot: a reused number is refused;
        some of several may have ended. Processes in ``exclude`` are not the job's, nor are their descendants. Processes
        in ``overhead``, with their starts, are not the job's either, but their descendants are; the same holds for
        later ones for which ``is_overhead_now`` is true. A JobCgroup was made for this job and may be empty. Raises
        InvalidInputError, NotFoundError and ConflictError for processes and cgroups that cannot be watched.
        """
        if not self._roots.proc.is_dir():
            raise ConflictError(f"jobs are watched on Linux only: {self._roots.proc} not found")
        found = find_hierarchies(self._roots.cgroup)
        excluded = Excluded(exclude, overhead=overhead, is_overhead_now=is_overhead_now)
        try:
            if isinstance(cgroup, JobCgroup):
                return self._of_cgroup(cgroup, excluded, mono)
            if cgroup is not None:
                job_cgroup = named(found, self._roots.cgroup, cgroup)
                self._check_inside(job_cgroup, () if starts else pids)
                return self._of_cgroup(job_cgroup, excluded, mono)
            births = self._roots_of(pids, starts or {})
            marked, proc = os.fsencode(marker), self._roots.proc
            # A scheduler's list may lack older processes. Of a command the tool itself, or its shell, bears the marker.
            since = 0 if starts else min(birth.start for birth in births)
            members = Descendants(births, self._births, proc=proc, marker=marked, excluded=excluded, since=since)
            watched = JobReading(self._tree(members), cpu=None, mono=mono)
            own_cgroup = own(found, proc, [birth.pid for birth in births], watched.tree.pids)
            if own_cgroup is not None:
                watched.close()
                return self._of_cgroup(own_cgroup, excluded, mono)
            methods = {**dict.fromkeys(_MEASURED, TREE), "orphans": SIGNS}
            return Watching(watched, self._collectors(watched, methods, has_cgroup=False), methods, None)
        except CollectorUnavailableError as error:
            raise NotFoundError(f"the processes of the job cannot be read: {error.reason}") from None

    def _of_cgroup(self, cgroup: JobCgroup, excluded: Excluded, mono: float) -> Watching:
        cpu: CgroupCpu | None = None
        with contextlib.suppress(CollectorUnavailableError):  # its controllers may count other things only
            cpu = CgroupCpu(cgroup, excluded=excluded, proc=self._roots.proc)
        tree = self._tree(CgroupMembers(cgroup.members_folder, proc=self._roots.proc, excluded=excluded))
        watched = JobReading(tree, cpu=cpu, mono=mono)
        counting, versions = cgroup_collectors(cgroup, sys=self._roots.sys, is_over=lambda: watched.is_over)
        methods = {
            "cpu": cpu.method if cpu else TREE,
            "members": cgroup.members_method,
            "orphans": cgroup.members_method,
            "peak": versions.get(PEAK, TREE),
            "swap": versions.get(SWAP, TREE),
        }
        return Watching(watched, [*self._collectors(watched, methods, has_cgroup=True), *counting], methods, cgroup)

    def _collectors(self, watched: JobReading, methods: Mapping[str, str], *, has_cgroup: bool) -> list[Collector]:
        return [
            TreeCollector(watched, sys=self._roots.sys, peak=methods["peak"] == TREE),
            StatusCollector(watched),
            SmapsCollector(watched, swap=methods["swap"] == TREE),
            MethodCollector(watched, methods, has_cgroup=has_cgroup),
        ]

    def _tree(self, members: Members) -> ProcessTree:
        return ProcessTree(members, proc=self._roots.proc, descriptors=self._descriptors)

    def _roots_of(self, pids: Collection[int], starts: Mapping[int, int]) -> list[Birth]:
        births: list[Birth] = []
        gone: NotFoundError | None = None
        for pid in dict.fromkeys(pids):
            try:
                births.append(self._root(pid, starts.get(pid)))
            except NotFoundError as error:
                if pid not in starts:
                    raise
                gone = error
        if gone is not None and not births:
            raise gone
        return births

    def _root(self, pid: int, start: int | None) -> Birth:
        folder = os.fsencode(self._roots.proc / str(pid))
        try:
            birth = read_birth(pid, self._roots.proc)
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            raise NotFoundError(f"process {pid} not found on this host") from None
        except (OSError, ValueError, IndexError) as error:
            raise InvalidInputError(f"process {pid} cannot be read: {error}") from None
        if is_thread(folder, pid):
            raise InvalidInputError(f"{pid} is a thread of another process: name that process (its Tgid)")
        if start is not None and start != birth.start:
            raise NotFoundError(f"process {pid} has ended, and another one got its number")
        return birth

    def _check_inside(self, cgroup: JobCgroup, pids: Collection[int]) -> None:
        inside = members_of(cgroup.members_folder)
        if not inside:
            raise InvalidInputError(f"cgroup {cgroup.path} holds no process; watch it once the job has begun")
        outside = [pid for pid in pids if pid not in inside]
        if outside:
            raise InvalidInputError(
                f"process {outside[0]} is not in cgroup {cgroup.path}; give --pid or --cgroup, or processes inside it"
            )
