"""CPU time of a job's cgroup, and the processes in it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedmon.node.collectors.base import CollectorUnavailableError, Why
from fedmon.node.collectors.files import TICKS_PER_S, KernelFile, read_file
from fedmon.node.collectors.job.cgroup import UNIFIED, JobCgroup, members_of
from fedmon.node.collectors.job.members import Excluded, parents_first
from fedmon.node.collectors.job.process import Birth, Process, birth_of, births_of, stat_fields


class ExcludedCpu:
    """Reads the CPU time of the excluded processes of a cgroup, with that of the children that they waited for.

    The children of overhead are the job's programs, and are not excluded. ``folder`` is the cgroup that counts CPU
    time; a process outside it is not counted there. The time of a process that was excluded by number stays in the sum
    after its end, as it does in the cgroup's.
    """

    def __init__(self, folder: Path, excluded: Excluded, *, proc: Path) -> None:
        self._folder, self._excluded, self._proc = folder, excluded, os.fsencode(proc)
        self._named = frozenset(excluded.processes)
        self._is_inside: dict[int, bool] = {}
        self._used: dict[int, tuple[int, int]] = {}

    def read(self) -> tuple[int, int]:
        """Return user and system time in nanoseconds."""
        processes = self._excluded.processes
        if processes.keys() - self._is_inside.keys():
            inside = members_of(self._folder)
            self._is_inside |= {pid: pid in inside for pid in processes.keys() - self._is_inside.keys()}
        for pid, start in processes.items():
            self._look(pid, start)
        user, system = (sum(column) for column in zip((0, 0), *self._used.values(), strict=True))
        return user * _TICK_NS, system * _TICK_NS

    def _look(self, pid: int, start: int | None) -> None:
        try:
            text = read_file(b"%s/%d/stat" % (self._proc, pid), 1024)
            if start is not None and birth_of(pid, text).start != start:
                raise ProcessLookupError
            user, system, of_children_user, of_children_system = map(int, stat_fields(text)[11:15])
        except (FileNotFoundError, ProcessLookupError):
            if pid not in self._named and pid not in self._excluded.overhead:
                self._used.pop(pid, None)  # its parent's sum holds it now
                del self._is_inside[pid]
                self._excluded.ended(pid)
            return
        except OSError:  # unreadable this once
            return
        if self._is_inside[pid]:
            below = (0, 0) if pid in self._excluded.overhead else (of_children_user, of_children_system)
            self._used[pid] = (user + below[0], system + below[1])


_TICK_NS = 10**9 // TICKS_PER_S
_COUNTS_CPU = (
    ("cgroup-v2", UNIFIED, ("cpu.stat",)),
    ("cgroup-v1", "cpuacct", ("cpuacct.stat", "cpuacct.usage")),
)


class CgroupCpu:
    """Reads the exact CPU time of all processes of a cgroup, ended ones included.

    That of ``excluded`` processes is taken off, to the clock tick; the result never goes down. All is counted in whole
    nanoseconds, so that no rounding makes a number go back. Raises CollectorUnavailableError if this cgroup
    counts no CPU time.
    """

    def __init__(self, cgroup: JobCgroup, *, excluded: Excluded, proc: Path) -> None:
        self._highest = (0, 0)
        for method, hierarchy, names in _COUNTS_CPU:
            folder = cgroup.folders.get(hierarchy)
            if folder is None or not (folder / names[0]).exists():  # version 2 does not count it before Linux 4.15
                continue
            self.method, self._files = method, [KernelFile(folder / name, size_bytes=1024) for name in names]
            self._excluded_cpu = ExcludedCpu(folder, excluded, proc=proc)
            # Processes that entered the cgroup later used a part of it elsewhere.
            self._elsewhere = _above(self._excluded_cpu.read(), self._read())
            return
        raise CollectorUnavailableError(Why.NOT_FOUND, f"cgroup {cgroup.path} counts no CPU time")

    def read(self) -> tuple[float, float]:
        """Return user and system seconds. Raises CollectorUnavailableError."""
        others = _above(self._excluded_cpu.read(), self._elsewhere)
        self._highest = _above(self._read(), others, least=self._highest)
        return self._highest[0] / 1e9, self._highest[1] / 1e9

    def _read(self) -> tuple[int, int]:
        texts = [file.head() for file in self._files]
        words = texts[0].split()
        numbers = dict(zip(words[::2], words[1::2], strict=False))
        if self.method == "cgroup-v2":
            return int(numbers[b"user_usec"]) * 1000, int(numbers[b"system_usec"]) * 1000
        user, system = int(numbers[b"user"]), int(numbers[b"system"])
        # Only the sum is counted to the nanosecond; before Linux 5.17 its parts are sampled at ticks.
        total = int(texts[1])
        user = total * user // (user + system) if user + system else total
        return user, total - user

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def _above(used: tuple[int, int], others: tuple[int, int], *, least: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Return user and system time less those of others, never below ``least``.

    The kernel splits the time of a cgroup and that of a process in different ways: only the sums can be compared, and
    a deficit of one part is taken off the other.
    """
    total = max(sum(used) - sum(others), sum(least))
    user = min(max(used[0] - others[0], least[0]), total - least[1])
    return user, total - user


class CgroupMembers:
    """The processes of a cgroup and of those below it; see Members."""

    def __init__(self, folder: Path, *, proc: Path, excluded: Excluded) -> None:
        self._folder, self._proc, self._excluded = folder, os.fsencode(proc), excluded

    def joined(self, members: Mapping[int, Process], _mono: float) -> Sequence[Birth]:
        """Read the lists of processes."""
        pids = members_of(self._folder) - members.keys()
        # One may have ended between the list and its reading.
        found = parents_first(births_of(pids, self._proc))
        return self._excluded.programs(self._excluded.without(found, members))

    def settled(self, _members: Mapping[int, Process]) -> None:
        """Do nothing: the kernel keeps the list."""
