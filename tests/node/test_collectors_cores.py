"""Single CPUs, and what the kernel counts of its own work, over trees of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.activity import activity_collectors
from fedmon.node.collectors.base import Collector, CollectorUnavailableError
from fedmon.node.collectors.percore import MAX_BY_MODE, MAX_CORES, PerCoreCollector
from tests.support.machine_tree import proc_files, write_tree

NOW = Instant(t=1_700_000_000.0, mono=1000.0)
HERTZ = os.sysconf("SC_CLK_TCK")


def values(collector: Collector) -> dict[str, float | None]:
    return dict(collector.collect(NOW).values)


def test_each_cpu_has_its_modes_and_busy_share(tmp_path: Path) -> None:
    first = "cpu  0 0 0 0\ncpu0 100 0 100 700 100 0 0 0 0 0\ncpu5 0 0 0 100 0 0 0 0 0 0\nintr 1\n"
    second = "cpu  0 0 0 0\ncpu0 115 0 110 760 115 0 0 0 0 0\ncpu5 100 0 0 100 0 0 0 0 0 0\nintr 1\n"
    collector = PerCoreCollector(proc=write_tree(tmp_path, {"stat": first}))

    before = collector.collect(NOW)
    write_tree(tmp_path, {"stat": second})
    after = collector.collect(NOW)

    assert before.reasons == {f'host_cpu_core_busy_ratio{{cpu="{cpu}"}}': "first sample" for cpu in (0, 5)}
    assert after.values['host_cpu_core_busy_ratio{cpu="0"}'] == 0.25
    assert after.values['host_cpu_core_busy_ratio{cpu="5"}'] == 1.0
    assert after.values['host_cpu_core_seconds_total{cpu="5",mode="user"}'] == 100 / HERTZ
    assert len(after.values) == 2 * 9
    assert collector.probe() == {"host_cpu_core_busy_ratio": None, "host_cpu_core_seconds_total": None}


def test_a_cpu_that_is_switched_off_is_told_once(tmp_path: Path) -> None:
    lines = "cpu  0 0 0 0\ncpu0 1 2 3 4\ncpu1 1 2 3 4\n"
    collector = PerCoreCollector(proc=write_tree(tmp_path, {"stat": lines}))
    collector.collect(NOW)
    write_tree(tmp_path, {"stat": lines.replace("cpu1 1 2 3 4\n", "")})

    leaving, after = collector.collect(NOW), collector.collect(NOW)

    assert leaving.reasons['host_cpu_core_busy_ratio{cpu="1"}'].startswith("not found: cpu1 is no longer listed in ")
    assert not any('cpu="1"' in key for key in after.values)


def test_on_a_machine_with_many_cpus_only_their_busy_shares_fit(tmp_path: Path) -> None:
    lines = "".join(f"cpu{cpu} 1 2 3 4 5 6 7 8 0 0\n" for cpu in range(MAX_CORES + 10))
    collector = PerCoreCollector(proc=write_tree(tmp_path, {"stat": f"cpu  1 2 3 4 5 6 7 8 0 0\n{lines}"}))

    found, report = values(collector), collector.probe()

    assert len(found) == MAX_CORES
    assert report["host_cpu_core_busy_ratio"] is None
    assert report["host_cpu_core_seconds_total"] == (
        f"unsupported: modes of each CPU are given up to {MAX_BY_MODE} CPUs, for want of room"
    )


def test_context_switches_faults_and_kills_are_counted_and_swapping_is_in_bytes(tmp_path: Path) -> None:
    activity, paging = activity_collectors(proc=write_tree(tmp_path, proc_files()))
    page = os.sysconf("SC_PAGE_SIZE")

    assert values(activity) == {
        "host_context_switches_total": 800_000,
        "host_interrupts_total": 9000,
        "host_processes_started_total": 7000,
        "host_processes_running": 3,
        "host_processes_blocked": 1,
    }
    assert values(paging) == {
        "host_swap_in_bytes_total": 11 * page,
        "host_swap_out_bytes_total": 22 * page,
        "host_page_faults_total": 123_456,
        "host_page_faults_major_total": 789,
        "host_oom_kills_total": 2,
    }


def test_a_kernel_that_does_not_count_kills_says_so(tmp_path: Path) -> None:
    proc = write_tree(tmp_path, {"vmstat": "pgfault 5\npgmajfault 6\n"})
    _, paging = activity_collectors(proc=proc)

    assert values(paging) == {"host_page_faults_total": 5, "host_page_faults_major_total": 6}
    assert paging.probe()["host_oom_kills_total"] == f"unsupported: {tmp_path / 'vmstat'} of this kernel does not tell"
    with pytest.raises(CollectorUnavailableError, match="not found: "):
        activity_collectors(proc=tmp_path / "none")[1].collect(NOW)
