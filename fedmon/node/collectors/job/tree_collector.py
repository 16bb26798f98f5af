"""What a job's processes use, and how many there are."""

from __future__ import annotations

from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.cpu import OnlineCpus
from fedmon.node.collectors.job import process
from fedmon.node.collectors.job.watched import Watched

USER_SECONDS = "job_cpu_user_seconds_total"
SYSTEM_SECONDS = "job_cpu_system_seconds_total"
CPUS_BUSY = "job_cpus_busy"
BUSY = "job_cpu_busy_ratio"
PEAK = "job_memory_peak_bytes"
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


class TreeCollector:
    """Reads all processes of a job at each tick; its last reading, when none is left, holds the complete totals.

    ``peak`` says whether the peak of memory is told here, which it is unless the job's cgroup keeps it. After the last
    reading there are no values.
    """

    name = "job-processes"
    lane = Lane.FAST

    def __init__(self, watched: Watched, *, sys: Path = Path("/sys"), peak: bool = True) -> None:
        self._watched, self._peak = watched, peak
        self._online = OnlineCpus(sys)
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
            cpus = self._online.count()
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
        is_nothing_known = unread >= len(self._watched.tree.living) and not any(counts[process.READ_CHARS :])
        for key, index in _IO.items():
            values[key] = None if unread and is_nothing_known else counts[index]
            if unread:
                reasons[key] = text

    def _partial(self, reason: str, unread: int) -> str:
        return f"{reason}: io of {unread} of {len(self._watched.tree.living)} processes cannot be read"
