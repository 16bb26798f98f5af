"""What a job takes while it runs: all of its processes together, as far as the kernel tells."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedmon.common.wire.runs import JobState
from fedmon.node.collectors.job.family import Relative, descendants, peak_resident_bytes, proportional_bytes
from fedmon.node.runs.order import Limits
from fedmon.node.runs.sandbox.cgroup import JobGroup
from fedmon.node.runs.verdict import Verdict, cpu_reason, disk_reason, memory_reason, processes_reason

EVERY_S = 0.25
_BUSY_SHARE = 0.05
"""Measuring takes no more of a CPU than this."""
_MAX_FILES = 1_000_000


class Excess(NamedTuple):
    """A limit that was exceeded, and whether the plan is asked to end before it is killed."""

    verdict: Verdict
    is_gentle: bool


class Meter:
    """Measures the descendants of this process, the keeper, against the limits of its job.

    What the job's cgroup counts or holds is left to it. ``helpers`` is how many of the processes are the sandbox's own;
    ``files`` is the folder that holds what the job writes, null where the sandbox bounds it itself.
    """

    def __init__(self, limits: Limits, group: JobGroup, *, helpers: int, files: Path | None) -> None:
        self._limits, self._group, self._helpers, self._files = limits, group, helpers, files
        self._own_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._peak: int | None = None
        self._cpu_s = 0.0
        self.relatives: Sequence[Relative] = ()
        """The processes of the last reading."""
        self.pause_s = EVERY_S
        """How long to wait until the next reading."""

    def read(self) -> Excess | None:
        """Read everything, and return which limit is exceeded, if one is."""
        begun = time.monotonic()
        self.relatives = descendants(os.getpid())
        excess = self._excess()
        self.pause_s = max(EVERY_S, (time.monotonic() - begun) / _BUSY_SHARE)
        return excess

    def note_peaks(self) -> None:
        """Learn how much memory each process had at most so far: short jobs end before the next reading."""
        if self._group.holds_memory:
            return
        self.relatives = descendants(os.getpid())
        peaks = [peak_resident_bytes(each.pid) for each in self.relatives]
        if any(peaks):
            self._see(max(each or 0 for each in peaks))

    def cpu_s(self) -> float:
        """Return the CPU time of all processes of the job; never less than before."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._cpu_s = max(self._cpu_s, used.ru_utime + used.ru_stime, self._group.cpu_s() or 0.0)
        return self._cpu_s

    def peak_memory_bytes(self) -> int | None:
        """Return the most memory that was seen; None where the job was too short for anybody to look."""
        counted = self._group.peak_memory_bytes() if self._group.holds_memory else None
        if counted:
            return counted
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        # The kernel counts what the child had of its parent's memory before it became another program.
        if largest > self._own_peak:
            self._see(largest)
        return self._peak

    def _excess(self) -> Excess | None:
        limits = self._limits
        living = [each for each in self.relatives if not each.is_zombie]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        processes_s = used.ru_utime + used.ru_stime + sum(each.cpu_s for each in self.relatives)
        self._cpu_s = max(self._cpu_s, processes_s, self._group.cpu_s() or 0.0)
        threads = sum(each.threads for each in living) - self._helpers
        if threads > limits.processes:
            return Excess(Verdict(JobState.PROCESS_LIMIT, processes_reason(threads, limits)), is_gentle=False)
        memory = 0 if self._group.holds_memory else sum(each.resident_bytes for each in living)
        if memory > limits.memory_bytes:
            memory = sum(_share(each) for each in living)  # what forked processes share was counted for each
        self._see(memory)
        if memory > limits.memory_bytes:
            return Excess(Verdict(JobState.MEMORY_LIMIT, memory_reason(memory, limits)), is_gentle=False)
        if self._cpu_s > limits.cpu_s:
            return Excess(Verdict(JobState.CPU_LIMIT, cpu_reason(self._cpu_s, limits)), is_gentle=True)
        if self._files is not None:
            size = size_of(self._files)
            if size > limits.tmp_bytes:
                return Excess(Verdict(JobState.DISK_LIMIT, disk_reason(size, limits)), is_gentle=False)
        return None

    def _see(self, size_bytes: int) -> None:
        self._peak = max(self._peak or 0, size_bytes)


def size_of(folder: Path) -> int:
    """Return how much of the disk the files below a folder take, in bytes; a file with two names counts once."""
    size, seen = 0, set[tuple[int, int]]()
    queue = [folder]
    while queue and len(seen) < _MAX_FILES:
        with contextlib.suppress(OSError), os.scandir(queue.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    if (about.st_dev, about.st_ino) not in seen:
                        seen.add((about.st_dev, about.st_ino))
                        size += about.st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        queue.append(Path(entry.path))
    return size


def _share(each: Relative) -> int:
    proportional = proportional_bytes(each.pid)
    return each.resident_bytes if proportional is None else proportional
