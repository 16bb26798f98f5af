"""The cost of a report, with data that this machine really measured.

``python -m bench.report``: this machine is measured for ``--seconds``, and the data are repeated as needed,
for the stream of the machine and for a job on it. ``job-1h-4-nodes`` and ``store-24h-10-nodes`` are seconds of
``fedmon report --output``, from its start to its end; the cases ending in ``-rss`` are the peak of the resident
memory of all its processes together, looked at 20 times a second. ``-cpu`` is the same in CPU time, which a busy
machine changes less. The peer is the budget.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from bench.line import print_line
from bench.recorded_host import RecordedHost
from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from tests.support.compaction import compact

HOUR = 3600
CHUNK = 600
MEGABYTE = 1e6
LOOK_EVERY_S = 0.05
JOB = "4711"
BUDGETS = {"job-1h-4-nodes": (5.0, None), "store-24h-10-nodes": (10.0, 700.0)}
PAGE_MEGABYTES = 2.0


def job_batch(node: int, first: int, length: int) -> Batch:
    """Return samples of a job that keeps two CPUs busy and grows."""
    numbers = range(first, first + length)
    columns: dict[str, list[float | None]] = {
        "job_cpu_user_seconds_total": [1.8 * at for at in numbers],
        "job_cpu_system_seconds_total": [0.2 * at for at in numbers],
        "job_cpus_busy": [2.0 + 0.1 * (at % 7) for at in numbers],
        "job_memory_rss_bytes": [1e9 + 1e5 * at for at in numbers],
        "job_memory_peak_bytes": [1e9 + 1e5 * at for at in numbers],
        "job_processes": [4.0 for _ in numbers],
        "job_threads": [16.0 + at % 3 for at in numbers],
        "job_storage_read_bytes_total": [1e6 * at for at in numbers],
        "job_storage_written_bytes_total": [3e6 * at for at in numbers],
    }
    t = [1_750_000_000.0 + at for at in numbers]
    mono = [10_000.0 + at for at in numbers]
    return Batch(node_id=f"node-{node}", boot=1, stream=f"job-{JOB}", seq=first, t=t, mono=mono, columns=columns)


def record(path: Path, host: RecordedHost, *, nodes: int, hours: int, with_job: bool) -> Path:
    """Write a recording of `hours` hours of `nodes` nodes."""
    with Recording(path) as recording:
        for node in range(nodes):
            for first in range(0, hours * HOUR, CHUNK):
                batches = [host.batch(node, first, CHUNK)]
                recording.append([*batches, job_batch(node, first, CHUNK)] if with_job else batches)
        compact(recording)
    return path


def measure(case: str, recording: Path, folder: Path) -> None:
    """Run one report, and print its cost."""
    page = folder / f"{case}.html"
    command = [sys.executable, "-m", "fedmon", "report", str(recording), "-o", str(page)]
    begun, cpu_before = time.perf_counter(), children_cpu_s()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        peak = 0
        tick = threading.Event()
        while process.poll() is None:
            peak = max(peak, tree_rss(process.pid))
            tick.wait(LOOK_EVERY_S)
        took = time.perf_counter() - begun
    assert process.returncode == 0
    seconds, megabytes = BUDGETS[case]
    print_line("report", case, ours=took, peer=seconds, unit="s")
    print_line("report", f"{case}-rss", ours=peak / MEGABYTE, peer=megabytes, unit="MB")
    print_line("report", f"{case}-cpu", ours=children_cpu_s() - cpu_before, peer=seconds, unit="s CPU")
    print_line("report", f"{case}-html", ours=page.stat().st_size / MEGABYTE, peer=PAGE_MEGABYTES, unit="MB")


def children_cpu_s() -> float:
    """Return the CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tree_rss(pid: int) -> int:
    """Return the resident memory of a process and all its children, in bytes."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            total += process.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long this machine is measured first")
    parser.add_argument("--interval", type=float, default=0.2, help="seconds between two of its samples")
    parser.add_argument("--metrics", type=int, default=60)
    arguments = parser.parse_args()
    samples = int(arguments.seconds / arguments.interval)
    host = RecordedHost(samples=samples, interval_s=arguments.interval, most=arguments.metrics)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure("job-1h-4-nodes", record(folder / "hour.fmr", host, nodes=4, hours=1, with_job=True), folder)
        measure("store-24h-10-nodes", record(folder / "day.fmr", host, nodes=10, hours=24, with_job=False), folder)


if __name__ == "__main__":
    main()
