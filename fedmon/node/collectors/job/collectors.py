"""Collectors of one job while it is watched, and what they share: its processes, CPU time, and whether it is over."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.cpu import cpus_in
from fedmon.node.collectors.job.cgroup import UNIFIED, JobCgroup
from fedmon.node.collectors.job.cgroup_cpu import CgroupCpu
from fedmon.node.collectors.job.cgroup_files import ONLY_CGROUP, CgroupFile, Understand, cgroup_files
from fedmon.node.collectors.job.process import (
    MAJOR,
    MINOR,
    READ_CHARS,
    READS,
    STORAGE_READ,
    STORAGE_WRITTEN,
    SYSTEM,
    USER,
    WRITES,
    WRITTEN_CHARS,
    Process,
)
from fedmon.node.collectors.job.tree import ProcessTree
from fedmon.node.collectors.procfile import ProcFile
from fedmon.node.collectors.sysfs import read_file

_TICKS = os.sysconf("SC_CLK_TCK")
_FRESH_S = 0.05
"""Who asks again so soon asks within the same tick."""
USER_SECONDS = "job_cpu_user_seconds_total"
SYSTEM_SECONDS = "job_cpu_system_seconds_total"
CPUS_BUSY = "job_cpus_busy"
BUSY = "job_cpu_busy_ratio"
PEAK = "job_memory_peak_bytes"
_STATE = ("job_processes", "job_zombies", "job_threads", "job_memory_rss_bytes", "job_memory_vms_bytes")
_FAULTS = {
    series("job_page_faults_total", kind="minor"): MINOR,
    series("job_page_faults_total", kind="major"): MAJOR,
}
_IO = {
    "job_io_read_bytes_total": READ_CHARS,
    "job_io_written_bytes_total": WRITTEN_CHARS,
    "job_io_reads_total": READS,
    "job_io_writes_total": WRITES,
    "job_storage_read_bytes_total": STORAGE_READ,
    "job_storage_written_bytes_total": STORAGE_WRITTEN,
}
SHARED = "job_memory_shared_bytes"
DESCRIPTORS = "job_file_descriptors"
VOLUNTARY = series("job_context_switches_total", kind="voluntary")
INVOLUNTARY = series("job_context_switches_total", kind="involuntary")
MAX_THREADS = 2000
"""Threads of one job beyond this number are left out of the context switches; each costs some microseconds."""

_STATUS_BYTES = 8192
USS = "job_memory_uss_bytes"
PSS = "job_memory_pss_bytes"
SWAP = "job_memory_swap_bytes"
MAX_READING_S = 0.2
"""The kernel walks through every page for this; processes that are not read by then are left out, and counted."""

_FILE_BYTES = 4096


class Watched:
    """What the collectors of a job share, so that it is read once a tick.

    ``cpu_s`` is user and system time in seconds: from the cgroup where there is one to read, else of the processes; it
    never goes down. ``is_last`` is true while the reading that found no process alive is taken, and ``is_over`` after
    it. While ``awaits_end`` no reading is the last one: ``switches``, the voluntary and involuntary context switches of
    the job's command, come with its end.
    """

    def __init__(self, tree: ProcessTree, *, cpu: CgroupCpu | None) -> None:
        self.tree = tree
        self._cpu = cpu
        self._read_early_at: float | None = None
        self.cpu_s = (0.0, 0.0)
        self.cpu_problem = ""
        """Why the CPU time could not be read this once."""
        self.is_last = self.is_over = False
        self.awaits_end = False
        self.switches: tuple[int, int] | None = None
        self.totals: list[Callable[[], Mapping[str, float]]] = []
        """Counters of slower lanes, for the last reading: there they would not be due."""

    @property
    def cpu_method(self) -> str:
        """Return where the CPU time comes from."""
        return "tree" if self._cpu is None else self._cpu.method

    def read(self, now: Instant) -> None:
        """Read everything for the tick ``now``, unless that happened in this tick already."""
        if self.is_last:
            self.is_last, self.is_over = False, True
        if self.is_over:
            return
        early, self._read_early_at = self._read_early_at, None
        if early is None or early < now.mono:
            self._read(now.mono)
        self.is_last = self.tree.has_ended and not self.awaits_end

    def read_early(self) -> float:
        """Return the CPU seconds of now, for another stream of the same tick; from the sampler's thread."""
        now = time.monotonic()
        is_fresh = self._read_early_at is not None and now - self._read_early_at < _FRESH_S
        if not (is_fresh or self.is_last or self.is_over):
            self._read_early_at = now
            self._read(now)
        return sum(self.cpu_s)

    def close(self) -> None:
        """Close every file."""
        self.tree.close()
        if self._cpu is not None:
            self._cpu.close()

    def _read(self, mono: float) -> None:
        self.tree.refresh(mono)
        self.cpu_problem = ""
        if self._cpu is None:
            user_s, system_s = self.tree.counts[USER] / _TICKS, self.tree.counts[SYSTEM] / _TICKS
        else:
            try:
                user_s, system_s = self._cpu.read()
            except CollectorUnavailableError as error:
                if not self.tree.has_ended:  # of a cgroup that went with its last process the last reading holds
                    self.cpu_problem = error.reason
                return
        if user_s < self.cpu_s[0] or system_s < self.cpu_s[1]:
            went = f"from {sum(self.cpu_s):.2f} to {user_s + system_s:.2f} s"
            self.cpu_problem = f"{Why.FAILED.value}: the CPU time of the job's cgroup went back, {went}"
            return
        self.cpu_s = (user_s, system_s)


class TreeCollector:
    """Reads all processes of a job at each tick; its last reading, when none is left, holds the complete totals.

    ``peak`` says whether the peak of memory is told here, which it is unless the job's cgroup keeps it. After the last
    reading there are no values.
    """

    name = "job-processes"
    lane = Lane.FAST

    def __init__(self, watched: Watched, *, sys: Path = Path("/sys"), peak: bool = True) -> None:
        self._watched, self._peak = watched, peak
        self._online = ProcFile(sys / "devices" / "system" / "cpu" / "online", size_bytes=512)
        self._online_text, self._count = b"", 0
        self._earlier: tuple[float, float] | None = None

    def collect(self, now: Instant) -> Reading:
        """Read, and add up; the busy shares are None at the first tick."""
        watched = self._watched
        watched.read(now)
        if watched.is_over:
            return Reading({})
        tree = watched.tree
        state = (len(tree.living), tree.zombies, tree.threads, tree.resident_bytes, tree.virtual_bytes)
        values: dict[str, float | None] = dict(zip(_STATE, state, strict=True))
        reasons: dict[str, str] = {}
        unreadable = tree.unreadable()
        if unreadable:
            reason = f"{Why.FAILED.value}: stat of {unreadable} of {len(tree.living)} processes cannot be understood"
            reasons.update(dict.fromkeys(_STATE[2:], reason))
        self._cpu(now, values, reasons)
        if self._peak:
            values[PEAK] = tree.peak_resident_bytes
        for key, index in _FAULTS.items():
            values[key] = tree.counts[index]
        self._io(values, reasons)
        if watched.is_last or watched.switches is not None:
            for totals in watched.totals:
                values.update(totals())
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say what can be read of the job's processes."""
        metrics = (USER_SECONDS, SYSTEM_SECONDS, CPUS_BUSY, BUSY, *_STATE, *_FAULTS)
        report: dict[str, str | None] = dict.fromkeys(metrics)
        if self._peak:
            report[PEAK] = None
        reason, unread = self._watched.tree.unread()
        unreadable = unread == len(self._watched.tree.living) and unread > 0
        return {**report, **dict.fromkeys(_IO, self._partial(reason, unread) if unreadable else None)}

    def close(self) -> None:
        """Close every file."""
        self._online.close()
        self._watched.close()

    def _cpu(self, now: Instant, values: dict[str, float | None], reasons: dict[str, str]) -> None:
        user_s, system_s = self._watched.cpu_s
        problem = self._watched.cpu_problem
        if problem:
            missing = (USER_SECONDS, SYSTEM_SECONDS, CPUS_BUSY, BUSY)
            values.update(dict.fromkeys(missing))
            reasons.update(dict.fromkeys(missing, problem))
            return
        values[USER_SECONDS], values[SYSTEM_SECONDS] = round(user_s, 6), round(system_s, 6)
        earlier, self._earlier = self._earlier, (now.mono, user_s + system_s)
        if earlier is None or now.mono <= earlier[0]:
            first = Why.FIRST_SAMPLE.value if earlier is None else f"{Why.FAILED.value}: no time has passed"
            values[CPUS_BUSY] = values[BUSY] = None
            reasons[CPUS_BUSY] = reasons[BUSY] = first
            return
        busy = (user_s + system_s - earlier[1]) / (now.mono - earlier[0])
        try:
            cpus = self._cpus()
        except CollectorUnavailableError as error:
            values[CPUS_BUSY], values[BUSY], reasons[BUSY] = round(busy, 4), None, error.reason
            return
        # Time is counted in ticks of 10 ms, and that of a found orphan comes all at once.
        values[CPUS_BUSY] = round(min(busy, cpus), 4)
        values[BUSY] = round(min(busy / cpus, 1.0), 6)

    def _io(self, values: dict[str, float | None], reasons: dict[str, str]) -> None:
        counts = self._watched.tree.counts
        reason, unread = self._watched.tree.unread()
        text = self._partial(reason, unread) if unread else ""
        is_nothing_known = unread >= len(self._watched.tree.living) and not any(counts[READ_CHARS:])
        for key, index in _IO.items():
            values[key] = None if unread and is_nothing_known else counts[index]
            if unread:
                reasons[key] = text

    def _partial(self, reason: str, unread: int) -> str:
        return f"{reason}: io of {unread} of {len(self._watched.tree.living)} processes cannot be read"

    def _cpus(self) -> int:
        text = self._online.head()
        if text != self._online_text:
            self._online_text, self._count = text, len(cpus_in(text, where=self._online.path))
        return self._count


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


class SmapsCollector:
    """Reads ``smaps_rollup`` of each process. ``swap`` is false where the job's cgroup tells of it.

    Source: Linux Documentation/filesystems/proc.rst, section 3.
    """

    name = "job-smaps"
    lane = Lane.SLOW

    def __init__(self, watched: Watched, *, swap: bool = True) -> None:
        self._watched, self._swap = watched, swap

    def collect(self, _now: Instant) -> Reading:
        """Read every process; one that cannot be read is left out, and the reason says of how many."""
        if self._watched.is_over:
            return Reading({})
        living = self._watched.tree.living
        until = time.monotonic() + MAX_READING_S
        sums = {b"Pss:": 0, b"Private_Clean:": 0, b"Private_Dirty:": 0, b"Private_Hugetlb:": 0, b"SwapPss:": 0}
        unread: Counter[str] = Counter()
        for process in living:
            if time.monotonic() > until:
                unread[f"{Why.FAILED.value}: no time left after {MAX_READING_S:g} s"] += 1
                continue
            try:
                words = read_file(process.folder + b"/smaps_rollup", _FILE_BYTES).split()
                for index, word in enumerate(words):
                    if word in sums:
                        sums[word] += int(words[index + 1])
            except PermissionError:
                unread[Why.NO_PERMISSION.value] += 1
            except (OSError, ValueError, IndexError) as error:
                unread[(Why.NOT_FOUND if isinstance(error, FileNotFoundError) else Why.FAILED).value] += 1
        private = sums[b"Private_Clean:"] + sums[b"Private_Dirty:"] + sums[b"Private_Hugetlb:"]
        values: dict[str, float | None] = {USS: private * 1024, PSS: sums[b"Pss:"] * 1024}
        if self._swap:
            values[SWAP] = sums[b"SwapPss:"] * 1024
        if not unread:
            return Reading(values)
        count = unread.total()
        reason = (
            f"{max(unread, key=unread.__getitem__)}: smaps_rollup of {count} of {len(living)} processes cannot be read"
        )
        return Reading(values if count < len(living) else dict.fromkeys(values), dict.fromkeys(values, reason))

    def probe(self) -> dict[str, str | None]:
        """Say what can be read of the processes that there are now."""
        reading = self.collect(Instant(t=0, mono=0))
        return {key: reading.reasons.get(key) if value is None else None for key, value in reading.values.items()}


class CgroupSources:
    """The files of a cgroup that can be read; which version gives each metric, and why none does."""

    def __init__(self, cgroup: JobCgroup, *, sys: Path) -> None:
        self.files: list[CgroupFile] = []
        self.methods: dict[str, str] = {}
        held: dict[str, Path] = {}
        reasons: dict[str, str] = {}
        for file in cgroup_files(cgroup, sys=sys):
            folder = file.path.parent
            wanted = [metric for metric in file.metrics if held.get(metric, folder) == folder]
            reason = _unusable(file)
            if wanted and reason is None:
                self.files.append(file)
                held.update(dict.fromkeys(wanted, folder))
            elif reason is not None:
                reasons.update({metric: reason for metric in wanted if metric not in reasons})
        unheld = f"{Why.UNSUPPORTED.value}: no controller of cgroup {cgroup.path} counts it"
        self.missing = {metric: reasons.get(metric, unheld) for metric in ONLY_CGROUP if metric not in held}
        unified = cgroup.folders.get(UNIFIED)
        self.methods = {metric: "cgroup-v2" if folder == unified else "cgroup-v1" for metric, folder in held.items()}


class CgroupCollector:
    """Reads the files of one lane of a job's cgroup; that of the fast lane also says what cannot be read at all."""

    def __init__(self, watched: Watched, sources: CgroupSources, *, lane: Lane) -> None:
        self.lane = lane
        self.name = "job-cgroup" if lane is Lane.FAST else "job-cgroup-detail"
        self._watched = watched
        self._missing = sources.missing if lane is Lane.FAST else {}
        self._metrics = [metric for file in sources.files if file.lane is lane for metric in file.metrics]
        self._sources: Sequence[tuple[ProcFile, Understand]] = [
            (ProcFile(file.path), file.understand) for file in sources.files if file.lane is lane
        ]
        self._gave: dict[ProcFile, tuple[str, ...]] = {}

    def collect(self, _now: Instant) -> Reading:
        """Read every file; what one of them gave before is None with a reason when it cannot be read."""
        if self._watched.is_over:
            return Reading({})
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for file, understand in self._sources:
            try:
                found = understand(file.read())
            except CollectorUnavailableError as error:
                reason = error.reason
            except (ValueError, IndexError) as error:
                reason = f"{Why.FAILED.value}: {file.path}: {error}"[:200]
            else:
                self._gave[file] = tuple(found)
                values.update(found)
                continue
            gave = self._gave.get(file, ())
            values.update(dict.fromkeys(gave))
            reasons.update(dict.fromkeys(gave, reason))
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say what this cgroup counts."""
        return {**dict.fromkeys(self._metrics), **self._missing}

    def close(self) -> None:
        """Close the files."""
        for file, _ in self._sources:
            file.close()


def _unusable(file: CgroupFile) -> str | None:
    source = ProcFile(file.path)
    try:
        text = source.read()
        file.understand(text)
    except CollectorUnavailableError as error:
        return error.reason
    except (ValueError, IndexError) as error:
        return f"{Why.FAILED.value}: {file.path}: {error}"[:200]
    finally:
        source.close()
    if file.mark not in text:
        return f"{Why.UNSUPPORTED.value}: {file.path} does not tell"
    return None
