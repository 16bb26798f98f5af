"""The collectors of a job's processes, which share one reading a tick."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why, why
from fedmon.node.collectors.cpu import OnlineCpus
from fedmon.node.collectors.files import PROBE, TICKS_PER_S, Reasons, Values, miss, read_file
from fedmon.node.collectors.job import process
from fedmon.node.collectors.job.cgroup_collector import ONLY_CGROUP, PEAK, SWAP
from fedmon.node.collectors.job.cgroup_cpu import CgroupCpu
from fedmon.node.collectors.job.process import SYSTEM, USER, Process, number_of
from fedmon.node.collectors.job.tree import ProcessTree

USER_SECONDS = "job_cpu_user_seconds_total"
SYSTEM_SECONDS = "job_cpu_system_seconds_total"
CPUS_BUSY = "job_cpus_busy"
BUSY = "job_cpu_busy_ratio"
_STATE = ("job_processes", "job_zombies", "job_threads", "job_memory_rss_bytes", "job_memory_vms_bytes")
_FAULTS = {
    series("job_page_faults_total", kind="minor"): process.MINOR,
    series("job_page_faults_total", kind="major"): process.MAJOR,
}
_IO = {
    "job_io_read_bytes_total": process.READ_CHARS,
    "job_io_written_bytes_total": process.WRITTEN_CHARS,
    "job_io_reads_total": process.READS,
    "job_io_writes_total": process.WRITES,
    "job_storage_read_bytes_total": process.STORAGE_READ,
    "job_storage_written_bytes_total": process.STORAGE_WRITTEN,
}
SHARED = "job_memory_shared_bytes"
DESCRIPTORS = "job_file_descriptors"
VOLUNTARY = series("job_context_switches_total", kind="voluntary")
INVOLUNTARY = series("job_context_switches_total", kind="involuntary")
_STATUS_BYTES = 8192
USS = "job_memory_uss_bytes"
PSS = "job_memory_pss_bytes"
MAX_READING_S = 0.2
"""The kernel walks through every page for this; processes that are not read by then are left out and counted."""

_SMAPS_BYTES = 4096
METHOD = "job_method_info"
_CHEAP_S, _EARLY_S = 0.002, 0.05
_Thread = tuple[int, int, bytes]
"""A process, its start, and the number of the thread."""


class JobReading:
    """One reading of a job at each tick, shared by its collectors and the meter of energy.

    ``cpu_s`` is user and system time in seconds, from the job's cgroup or else its processes; it never goes down.
    ``is_last`` is true once a sample found no process alive, and ``is_over`` once that was handed on. While
    ``awaits_end`` no sample is the last one: ``switches``, the voluntary and involuntary context switches of the job's
    command, come with its end.
    """

    def __init__(self, tree: ProcessTree, *, cpu: CgroupCpu | None, mono: float) -> None:
        """Read once, at the monotonic time ``mono``. Raises CollectorUnavailableError."""
        self.tree = tree
        self._cpu = cpu
        self._read_at = float("-inf")
        self.cpu_s = (0.0, 0.0)
        self.noted_cpu_s = 0.0
        """The CPU seconds of the ended job as its owner counted them, for its share of the energy."""
        self.cpu_problem = ""
        """The reason if the CPU time could not be read this time."""
        self.is_last = self.is_over = False
        self.awaits_end = False
        self.switches: tuple[int, int] | None = None
        self.totals: Callable[[], Mapping[str, float | None]] = dict
        """Counters of a slower lane, for the last reading, at which it is not due."""
        self._read(mono)

    def read(self, now: Instant) -> None:
        """Read everything for the tick ``now``, once. Raises CollectorUnavailableError."""
        if now.mono != self._read_at and not self.is_over:
            self._read(now.mono)
            self._read_at = now.mono

    def cpu_until(self, now: Instant) -> float:
        """Return all CPU seconds at the tick ``now``; those of the last reading if it cannot be read."""
        with contextlib.suppress(CollectorUnavailableError):
            self.read(now)
        return max(sum(self.cpu_s), self.noted_cpu_s)

    def close(self) -> None:
        """Close every file."""
        self.tree.close()
        if self._cpu is not None:
            self._cpu.close()

    def _read(self, mono: float) -> None:
        self.tree.refresh(mono)
        self.cpu_problem = ""
        if self._cpu is None:
            self.cpu_s = self.tree.counts[USER] / TICKS_PER_S, self.tree.counts[SYSTEM] / TICKS_PER_S
            return
        try:
            self.cpu_s = self._cpu.read()
        except CollectorUnavailableError as error:
            if not self.tree.has_ended:  # a cgroup that vanished with its last process keeps its last reading
                self.cpu_problem = error.reason


class TreeCollector:
    """Reads all processes of a job at each tick; the last reading, when none is left, holds the complete totals.

    ``peak`` reports the peak of memory, too, for a job whose cgroup does not keep it. After the last reading there are
    no values.
    """

    name = "job-processes"
    lane = Lane.FAST

    def __init__(self, watched: JobReading, *, sys: Path = Path("/sys"), peak: bool = True) -> None:
        self._watched, self._peak = watched, peak
        self._online = OnlineCpus(sys)
        self._earlier: tuple[float, float] | None = None

    def collect(self, now: Instant) -> Reading:
        """Read and add up; the busy shares are None at the first tick."""
        watched = self._watched
        watched.read(now)
        if watched.is_over:
            return Reading({})
        tree = watched.tree
        watched.is_last = tree.has_ended and not watched.awaits_end
        state = (len(tree.living), tree.zombies, tree.threads, tree.resident_bytes, tree.virtual_bytes)
        values: Values = dict(zip(_STATE, state, strict=True))
        reasons: Reasons = {}
        self._cpu(now, values, reasons)
        if self._peak:
            values[PEAK] = tree.peak_resident_bytes
        for key, index in _FAULTS.items():
            values[key] = tree.counts[index]
        self._io(values, reasons)
        if watched.is_last or watched.switches is not None:
            values.update(watched.totals())
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Report the readable values of the job's processes."""
        metrics = (USER_SECONDS, SYSTEM_SECONDS, CPUS_BUSY, BUSY, *_STATE, *_FAULTS)
        report: dict[str, str | None] = dict.fromkeys(metrics)
        if self._peak:
            report[PEAK] = None
        values: Values = {}
        reasons: Reasons = {}
        self._io(values, reasons)
        return report | _report(Reading(values, reasons))

    def close(self) -> None:
        """Close every file."""
        self._online.file.close()
        self._watched.close()

    def _cpu(self, now: Instant, values: Values, reasons: Reasons) -> None:
        if self._watched.cpu_problem:
            miss(values, reasons, (USER_SECONDS, SYSTEM_SECONDS, CPUS_BUSY, BUSY), self._watched.cpu_problem)
            return
        user_s, system_s = self._watched.cpu_s
        values[USER_SECONDS], values[SYSTEM_SECONDS] = round(user_s, 6), round(system_s, 6)
        earlier, self._earlier = self._earlier, (now.mono, user_s + system_s)
        if earlier is None or now.mono <= earlier[0]:
            miss(values, reasons, (CPUS_BUSY, BUSY), Why.FIRST_SAMPLE.value)
            return
        busy = (user_s + system_s - earlier[1]) / (now.mono - earlier[0])
        try:
            cpus = self._online.count()
        except CollectorUnavailableError as error:
            values[CPUS_BUSY], values[BUSY], reasons[BUSY] = round(busy, 4), None, error.reason
            return
        # Time is counted in ticks of 10 ms, and that of a found orphan comes all at once.
        values[CPUS_BUSY] = round(min(busy, cpus), 4)
        values[BUSY] = round(min(busy / cpus, 1.0), 6)

    def _io(self, values: Values, reasons: Reasons) -> None:
        living, counts = self._watched.tree.living, self._watched.tree.counts
        values.update({key: counts[index] for key, index in _IO.items()})
        unread = _Unread("io", len(living), [each.unread_io for each in living if each.unread_io])
        # Those that ended may have been read.
        unread.tell(values, reasons, () if any(counts[process.READ_CHARS :]) else tuple(_IO), partly=tuple(_IO))


class StatusCollector:
    """Reads ``status`` of each process and of each of its threads, and the number of its open files.

    The kernel counts context switches by thread, of living threads only. Those of a thread that ended are kept here as
    of its last reading; those of a whole command come exactly at its end.
    """

    name = "job-status"
    lane = Lane.MEDIUM

    def __init__(self, watched: JobReading) -> None:
        self._watched = watched
        self._switches: dict[_Thread, tuple[int, int]] = {}
        self._ended = (0, 0)
        watched.totals = self._totals

    def collect(self, _now: Instant) -> Reading:
        """Read every process; unreadable ones are left out, and the reason says how many."""
        if self._watched.is_over:
            return Reading({})
        living = self._watched.tree.living
        threads: dict[_Thread, tuple[int, int]] = {}
        shared = descriptors = 0
        unread, unlisted = _Unread("status", len(living)), _Unread("fd", len(living))
        for each in living:
            with unread:
                text = read_file(each.folder + b"/status", _STATUS_BYTES)
                shared += (number_of(text, b"\nRssFile:") + number_of(text, b"\nRssShmem:")) * 1024
                self._watched.tree.note_peak(number_of(text, b"\nVmHWM:") * 1024)
                _read_threads(each, text, threads)
            with unlisted:
                descriptors += len(os.listdir(each.folder + b"/fd"))  # noqa: PTH208 - only their number is wanted
        self._keep(threads)
        values: Values = {SHARED: shared, DESCRIPTORS: descriptors, **self._totals()}
        reasons: Reasons = {}
        unread.tell(values, reasons, (SHARED,), partly=(VOLUNTARY, INVOLUNTARY))
        unlisted.tell(values, reasons, (DESCRIPTORS,))
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Report the readable values of the present processes."""
        return _report(self.collect(PROBE))

    def _keep(self, threads: dict[_Thread, tuple[int, int]]) -> None:
        for key, (voluntary, involuntary) in self._switches.items():
            # A reused number of a thread begins anew.
            if key not in threads or threads[key][0] < voluntary:
                self._ended = (self._ended[0] + voluntary, self._ended[1] + involuntary)
        self._switches = threads

    def _totals(self) -> dict[str, float | None]:
        living = self._switches.values()
        # The kernel's count for an ended command is complete, but for orphans that other processes waited for.
        told = self._watched.switches or (0, 0)
        return {
            name: max(self._ended[at] + sum(each[at] for each in living), told[at])
            for at, name in enumerate((VOLUNTARY, INVOLUNTARY))
        }


class SmapsCollector:
    """Reads ``smaps_rollup`` of each process: every 10 s, and when the job's resident memory moved by a tenth.

    The kernel walks through every page for it: a reading that takes 2 ms comes every minute, and all together may take
    1 % of a core. ``swap`` is false if the job's cgroup counts it. Source: Linux Documentation/filesystems/proc.rst,
    section 3.
    """

    name = "job-smaps"
    lane = Lane.FAST

    def __init__(self, watched: JobReading, *, swap: bool = True) -> None:
        self._watched, self._swap = watched, swap
        self._due = self._not_before = float("-inf")
        self._resident = 0

    def collect(self, now: Instant) -> Reading:
        """Read every process if it is time; unreadable ones are left out, and the reason says how many."""
        resident, before = self._watched.tree.resident_bytes, self._resident
        has_moved = now.mono >= self._not_before and abs(resident - before) * 10 > max(resident, before)
        if self._watched.is_over or self._watched.is_last or not (has_moved or now.mono >= self._due):
            return Reading({})
        began = time.monotonic()
        reading = self._read(began)
        took_s = time.monotonic() - began
        self._resident, self._not_before = resident, now.mono + took_s * 100
        self._due = now.mono + (Lane.MEDIUM if took_s < _CHEAP_S else Lane.SLOW).value - _EARLY_S
        return reading

    def ending(self) -> None:
        """Read once more, also if it is not time."""
        self._due = float("-inf")

    def probe(self) -> dict[str, str | None]:
        """Report the readable values of the present processes."""
        return _report(self._read(time.monotonic()))

    def _read(self, began: float) -> Reading:
        living = self._watched.tree.living
        sums = {b"Pss:": 0, b"Private_Clean:": 0, b"Private_Dirty:": 0, b"Private_Hugetlb:": 0, b"SwapPss:": 0}
        unread = _Unread("smaps_rollup", len(living))
        for each in living:
            with unread:
                if time.monotonic() > began + MAX_READING_S:
                    raise TimeoutError
                words = read_file(each.folder + b"/smaps_rollup", _SMAPS_BYTES).split()
                for index, word in enumerate(words):
                    if word in sums:
                        sums[word] += int(words[index + 1])
        private = sums[b"Private_Clean:"] + sums[b"Private_Dirty:"] + sums[b"Private_Hugetlb:"]
        values: Values = {USS: private * 1024, PSS: sums[b"Pss:"] * 1024}
        if self._swap:
            values[SWAP] = sums[b"SwapPss:"] * 1024
        reasons: Reasons = {}
        unread.tell(values, reasons, tuple(values))
        return Reading(values, reasons)


class _Unread:
    """Counts the processes whose file of one kind cannot be read; a context for reading the file of one process."""

    def __init__(self, file: str, living: int, reasons: Sequence[str] = ()) -> None:
        self._file, self._living, self._why = file, living, Counter(reasons)

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if isinstance(error, OSError):
            is_late = isinstance(error, TimeoutError)
            self._why[f"failed: no time left after {MAX_READING_S:g} s" if is_late else why(error).why.value] += 1
        return isinstance(error, OSError)

    def tell(self, values: Values, reasons: Reasons, keys: tuple[str, ...], *, partly: tuple[str, ...] = ()) -> None:
        """Note the reason with the number of unread processes; the values of ``keys`` are None if none was read."""
        count = self._why.total()
        if count:
            most = max(self._why, key=self._why.__getitem__)
            reason = f"{most}: {self._file} of {count} of {self._living} processes cannot be read"
            reasons.update(dict.fromkeys((*keys, *partly), reason))
            if count == self._living:
                values.update(dict.fromkeys(keys))


def _report(reading: Reading) -> dict[str, str | None]:
    return {key: reading.reasons.get(key) if value is None else None for key, value in reading.values.items()}


def _read_threads(process: Process, text: bytes, threads: dict[_Thread, tuple[int, int]]) -> None:
    """Note the switches of each thread of a process."""
    first = b"%d" % process.pid
    threads[process.pid, process.start, first] = _switches(text)
    names = os.listdir(process.folder + b"/task") if process.gauges[0] > 1 else []  # noqa: PTH208 - many names
    for name in names:
        with contextlib.suppress(OSError):  # a thread that has just ended
            status = read_file(b"%s/task/%s/status" % (process.folder, name), _STATUS_BYTES)
            threads[process.pid, process.start, name] = _switches(status)


def _switches(text: bytes) -> tuple[int, int]:
    return number_of(text, b"\nvoluntary_ctxt_switches:"), number_of(text, b"\nnonvoluntary_ctxt_switches:")


class MethodCollector:
    """Reports whether CPU time, members, peak and swap come from the processes or from the job's cgroup."""

    name = "job-method"
    lane = Lane.SLOW

    def __init__(self, watched: JobReading, methods: Mapping[str, str], *, has_cgroup: bool) -> None:
        self._watched = watched
        without = f"{Why.UNSUPPORTED.value}: the job has no separate cgroup"
        self._missing = {} if has_cgroup else dict.fromkeys(ONLY_CGROUP, without)
        self._values = {series(METHOD, of=of, method=method): 1.0 for of, method in methods.items()}

    def collect(self, _now: Instant) -> Reading:
        """Report the methods."""
        return Reading({} if self._watched.is_over else self._values)

    def probe(self) -> dict[str, str | None]:
        """Report the methods, and the metrics that need a cgroup."""
        return {**dict.fromkeys(self._values), **self._missing}
