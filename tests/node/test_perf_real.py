"""The real perf counts real processes: software events, in a tree, in a cgroup, and what is left when we die."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fedmon.common.metrics.sample import Instant
from fedmon.common.settings.values import PerfSettings
from fedmon.node.collectors.base import Reading
from fedmon.node.collectors.job.cgroup import UNIFIED
from fedmon.node.perf.collector import PerfCollector, PerfJobCollector
from fedmon.node.perf.source import PerfSource
from tests.node.jobs_real import Program, cgroups
from tests.node.test_perf_replay import reading_with
from tests.support.requirements import require
from tests.support.waiting import has_ended, wait_until

TASK_CLOCK = "perf_task_clock_seconds_total"
COUNTED = "perf_counted_seconds_total"
_SECONDS = itertools.count(10**9)
BURN = [sys.executable, "-SEIc", "while True: pass"]


@pytest.fixture
def source() -> PerfSource:
    require(shutil.which("perf"), "perf is not installed (apt-get install linux-perf)")
    require(may_count_everything(), "perf may count only parts here; see docs/howtos/perf.md for the rights it needs")
    return PerfSource(PerfSettings(enabled=True, groups=("cycles",), interval_s=0.1))


def may_count_everything() -> bool:
    paranoid = Path("/proc/sys/kernel/perf_event_paranoid")
    return os.geteuid() == 0 or (paranoid.exists() and int(paranoid.read_text()) < 0)


def next_second() -> Instant:
    """Return an instant that a collector takes for one second later, so that it need not hold back."""
    return Instant(t=0.0, mono=float(next(_SECONDS)))


def value(reading: Reading, name: str) -> float:
    return reading.values.get(name) or 0.0


@contextmanager
def burning(*, where: Path | None = None) -> Iterator[int]:
    """A process that computes, in a cgroup when one is given."""
    process = subprocess.Popen(BURN)
    if where is not None:
        (where / "cgroup.procs").write_text(str(process.pid))
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_the_machine_is_counted_and_what_it_lacks_has_a_reason(source: PerfSource) -> None:
    with closing(PerfCollector(source)) as collector:
        reading = reading_with(collector, lambda reading: value(reading, COUNTED) > 0, next_second)
        report = collector.probe()
    if any(str(reason).startswith("no permission") for reason in report.values()):
        require(None, "perf may not count the whole machine (CAP_PERFMON)")

    assert value(reading, 'perf_events_total{group="software",event="context-switches"}') > 0
    assert TASK_CLOCK not in reading.values
    assert report["perf_events_total"] is None
    ratio = report["perf_instructions_per_cycle"]
    assert ratio is None or ratio.startswith("unsupported: ")


def test_the_processes_of_a_job_are_counted_with_the_children_they_fork(source: PerfSource) -> None:
    with Program() as program:
        pids = [program.pid]
        with closing(PerfJobCollector(source, job="tree", pids=lambda: list(pids))) as collector:
            reading_with(collector, lambda _reading: collector._session.attached_at is not None, next_second)
            pids.append(int(program.tell("worker 0.4")))
            reading = reading_with(collector, lambda reading: value(reading, TASK_CLOCK) > 0.3, next_second)

    assert value(reading, "perf_starts_total") == 1
    assert 0 < value(reading, "perf_cpus_utilized") < 1.5


def test_a_process_that_was_there_before_is_attached_to_when_it_turns_up(source: PerfSource) -> None:
    with burning() as first, burning() as second:
        pids = [first]
        with closing(PerfJobCollector(source, job="late", pids=lambda: list(pids))) as collector:
            before = reading_with(collector, lambda reading: value(reading, TASK_CLOCK) > 0, next_second)
            pids.append(second)
            after = reading_with(
                collector,
                lambda reading: value(reading, "perf_starts_total") == 2 and value(reading, "perf_cpus_utilized") > 0,
                next_second,
            )
            again = reading_with(collector, lambda reading: value(reading, TASK_CLOCK) > 0, next_second)

    assert value(before, "perf_starts_total") == 1
    assert value(after, TASK_CLOCK) > value(before, TASK_CLOCK)
    assert value(again, "perf_starts_total") == 2


def test_a_job_is_counted_by_its_cgroup_where_perf_sees_it(source: PerfSource) -> None:
    with (
        cgroups(UNIFIED) as (folder,),
        burning(where=folder) as pid,
        burning(),
        closing(PerfJobCollector(source, job="group", pids=lambda: [pid], cgroup=folder.name)) as collector,
    ):
        reading = reading_with(collector, lambda reading: value(reading, TASK_CLOCK) > 0.1, next_second)

    # The process beside the cgroup would make it two.
    assert 0 < value(reading, "perf_cpus_utilized") < 1.5


def test_no_perf_survives_a_node_that_is_killed(source: PerfSource, tmp_path: Path) -> None:
    node = textwrap.dedent("""
        import sys, threading
        from fedmon.common.metrics.sample import Instant
        from fedmon.common.settings.values import PerfSettings
        from fedmon.node.perf.collector import PerfJobCollector
        from fedmon.node.perf.source import PerfSource
        pid = int(sys.argv[1])
        source = PerfSource(PerfSettings(enabled=True, groups=(), interval_s=0.2))
        collector = PerfJobCollector(source, job="1", pids=lambda: [pid])
        tick = threading.Event()
        while collector._session.attached_at is None:
            collector.collect(Instant(t=0.0, mono=0.0))
            tick.wait(0.02)
        print(collector._session.pid, flush=True)
        tick.wait()
    """)
    with burning() as pid:
        process = subprocess.Popen(
            [sys.executable, "-c", node, str(pid)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        assert process.stdout is not None
        perf = int(process.stdout.readline())
        assert "perf" in Path(f"/proc/{perf}/comm").read_text()
        process.kill()
        process.wait()
        process.stdout.close()

        wait_until(lambda: has_ended(perf), what="the end of perf")
