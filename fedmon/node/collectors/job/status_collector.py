"""What a job's processes say of themselves at greater length: shared memory, peak, files, context switches."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Lane, Reading, Why
from fedmon.node.collectors.job.files import read_file
from fedmon.node.collectors.job.process import Process
from fedmon.node.collectors.job.watched import Watched

SHARED = "job_memory_shared_bytes"
DESCRIPTORS = "job_file_descriptors"
VOLUNTARY = series("job_context_switches_total", kind="voluntary")
INVOLUNTARY = series("job_context_switches_total", kind="involuntary")
MAX_THREADS = 2000
"""Threads of one job beyond this number are left out of the context switches; each costs some microseconds."""

_STATUS_BYTES = 8192


class StatusCollector:
    """Reads ``status`` of each process, and of each thread of it, and how many files it has open.

    The kernel keeps context switches by thread and shows those of living threads only: what a thread did is kept here
    as of its last reading, until those of a whole command are told at its end.
    """

    name = "job-status"
    lane = Lane.MEDIUM

    def __init__(self, watched: Watched, *, proc: Path = Path("/proc")) -> None:
        self._watched = watched
        self._counts_by_stat = descriptors_by_stat(proc)
        self._switches: dict[tuple[int, int, bytes], tuple[int, int]] = {}
        self._ended = (0, 0)
        watched.totals.append(self._totals)

    def collect(self, _now: Instant) -> Reading:
        """Read every process; one that cannot be read is left out, and the reason says of how many."""
        if self._watched.is_over:
            return Reading({})
        living = self._watched.tree.living
        threads: dict[tuple[int, int, bytes], tuple[int, int]] = {}
        shared = descriptors = left_out = 0
        unread: Counter[str] = Counter()
        unlisted: Counter[str] = Counter()
        for process in living:
            try:
                text = read_file(process.folder + b"/status", _STATUS_BYTES)
                shared += (_number(text, b"\nRssFile:") + _number(text, b"\nRssShmem:")) * 1024
                self._watched.tree.note_peak(_number(text, b"\nVmHWM:") * 1024)
                left_out += self._read_threads(process, text, threads)
            except (OSError, ValueError) as error:
                unread[_why(error)] += 1
            try:
                descriptors += self._descriptors(process)
            except OSError as error:
                unlisted[_why(error)] += 1
        self._keep(threads)
        values: dict[str, float | None] = {SHARED: shared, DESCRIPTORS: descriptors}
        values.update(self._totals())
        reasons: dict[str, str] = {}
        _tell(values, reasons, (SHARED, VOLUNTARY, INVOLUNTARY), "status", unread, len(living))
        _tell(values, reasons, (DESCRIPTORS,), "fd", unlisted, len(living))
        if left_out:
            text_ = f"{Why.UNSUPPORTED.value}: {left_out} threads are left out, only {MAX_THREADS} are read"
            reasons.update(dict.fromkeys((VOLUNTARY, INVOLUNTARY), text_))
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say what can be read of the processes that there are now."""
        reading = self.collect(Instant(t=0, mono=0))
        return {key: reading.reasons.get(key) if value is None else None for key, value in reading.values.items()}

    def _read_threads(
        self, process: Process, text: bytes, threads: dict[tuple[int, int, bytes], tuple[int, int]]
    ) -> int:
        """Note the switches of each thread of a process; return how many threads were left out."""
        first = b"%d" % process.pid
        threads[process.pid, process.start, first] = _switches(text)
        if process.gauges[0] <= 1:
            return 0
        names = [name for name in os.listdir(process.folder + b"/task") if name != first]  # noqa: PTH208 - see births
        room = max(0, MAX_THREADS - len(threads))
        for name in names[:room]:
            try:
                status = read_file(b"%s/task/%s/status" % (process.folder, name), _STATUS_BYTES)
            except OSError:
                continue  # a thread that has just ended
            threads[process.pid, process.start, name] = _switches(status)
        return max(0, len(names) - room)

    def _keep(self, threads: dict[tuple[int, int, bytes], tuple[int, int]]) -> None:
        for key, (voluntary, involuntary) in self._switches.items():
            # A number of a thread that was given again begins anew.
            if key not in threads or threads[key][0] < voluntary:
                self._ended = (self._ended[0] + voluntary, self._ended[1] + involuntary)
        self._switches = threads

    def _totals(self) -> dict[str, float]:
        living = self._switches.values()
        # What the kernel counted for a command that has ended is complete, but for orphans that others waited for.
        told = self._watched.switches or (0, 0)
        return {
            name: max(self._ended[at] + sum(each[at] for each in living), told[at])
            for at, name in enumerate((VOLUNTARY, INVOLUNTARY))
        }

    def _descriptors(self, process: Process) -> int:
        folder = process.folder + b"/fd"
        return os.stat(folder).st_size if self._counts_by_stat else len(os.listdir(folder))  # noqa: PTH116, PTH208


def descriptors_by_stat(proc: Path) -> bool:
    """Tell whether the size of the folder ``fd`` is the number of open files, as since Linux 6.2."""
    try:
        folder = os.open(proc / "self" / "fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.fstat(folder).st_size == len(os.listdir(folder)) > 0  # noqa: PTH208 - it is a descriptor
    except OSError:
        return False
    finally:
        os.close(folder)


def _tell(
    values: dict[str, float | None],
    reasons: dict[str, str],
    keys: tuple[str, ...],
    file: str,
    unread: Counter[str],
    living: int,
) -> None:
    """Say of how many processes a file could not be read; there is no value when it was none of them."""
    count = unread.total()
    if not count:
        return
    reason = f"{max(unread, key=unread.__getitem__)}: {file} of {count} of {living} processes cannot be read"
    for key in keys:
        reasons[key] = reason
        if count == living and not key.startswith("job_context_switches_total"):
            values[key] = None


def _number(text: bytes, field: bytes) -> int:
    """Return the number of a line; 0 where this kernel has no such line, or the process no memory of its own."""
    start = text.find(field)
    return int(text[start + len(field) :].split(None, 1)[0]) if start >= 0 else 0


def _switches(text: bytes) -> tuple[int, int]:
    return _number(text, b"\nvoluntary_ctxt_switches:"), _number(text, b"\nnonvoluntary_ctxt_switches:")


def _why(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return Why.NO_PERMISSION.value
    return Why.NOT_FOUND.value if isinstance(error, (FileNotFoundError, ProcessLookupError)) else Why.FAILED.value
