"""Collectors on the machine that runs the tests, with psutil as the witness."""

from __future__ import annotations

import functools
import gc
import operator
import os
import sys
from pathlib import Path

import psutil
import pytest

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import metric_name, split_series
from fedmon.common.metrics.table import METRICS, Unit
from fedmon.node.collectors.base import Collector, Reading, Roots
from fedmon.node.collectors.files import KernelFile
from fedmon.node.collectors.host import host_collectors
from fedmon.node.collectors.portable import PortableCollector, portable_collectors
from fedmon.node.measure.sampler import StreamReader
from tests.support.waiting import wait_until

LINUX = sys.platform == "linux"
NOW = Instant(t=1_700_000_000.0, mono=1000.0)
WAYS = [
    pytest.param(host_collectors, id="proc", marks=pytest.mark.skipif(not LINUX, reason="needs /proc")),
    pytest.param(portable_collectors, id="psutil"),
]


def read(collectors: list[Collector]) -> dict[str, float | None]:
    return {key: value for collector in collectors for key, value in collector.collect(NOW).values.items()}


@pytest.mark.parametrize("make", WAYS)
def test_every_value_of_this_machine_is_possible_and_in_the_table(make) -> None:  # type: ignore[no-untyped-def]
    collectors = make()
    read(collectors)

    values = read(collectors)

    assert values
    for key, value in values.items():
        name, labels = split_series(key)
        metric = METRICS[name]
        assert tuple(labels) == metric.labels, key
        if value is not None:
            assert value >= 0, key
            assert metric.unit is not Unit.RATIO or value <= 1, key
    absent = [key for key, value in values.items() if value is None and key != "host_cpu_busy_ratio"]
    assert absent == []


@pytest.mark.parametrize("make", WAYS)
def test_what_is_measured_is_what_the_probe_says(make) -> None:  # type: ignore[no-untyped-def]
    for collector in make():
        measured = {metric_name(key) for key in collector.collect(NOW).values}
        promised = {metric_name(key) for key, reason in collector.probe().items() if reason is None}

        assert measured == promised, collector.name


def test_a_function_that_psutil_lacks_on_a_system_costs_its_own_metrics() -> None:
    lacking = PortableCollector(
        "load", ["host_load1"], functools.partial(operator.attrgetter("no_such_function"), psutil)
    )

    assert lacking.collect(NOW) == Reading({})
    assert str(lacking.probe()["host_load1"]).startswith("unsupported: psutil: ")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (psutil.AccessDenied(), "no permission: "),
        (PermissionError(13, "Permission denied"), "no permission: "),
        (FileNotFoundError(2, "No such file or directory"), "not found: "),
        (psutil.ZombieProcess(1), "unsupported: psutil: "),
    ],
)
def test_an_error_of_psutil_is_a_reason(error: Exception, reason: str) -> None:
    def fail() -> dict[str, float | None]:
        raise error

    assert str(PortableCollector("load", ["host_load1"], fail).probe()["host_load1"]).startswith(reason)


@pytest.mark.skipif(not LINUX, reason="needs /proc")
def test_reading_proc_by_hand_agrees_with_psutil() -> None:
    wait_until(lambda: differing() == [], what="a moment at which both agree")


def differing() -> list[tuple[str, float, float, float]]:
    """Return what is read differently now; what other programs do meanwhile can be one cause."""
    psutil_before, ours, psutil_after = (
        read(portable_collectors()),
        read(host_collectors()),
        read(portable_collectors()),
    )
    assert set(psutil_before) <= set(ours)
    found, compared = [], 0
    for key, first in psutil_before.items():
        second, value = psutil_after.get(key), ours[key]
        if first is not None and second is not None:
            assert value is not None, key
            low, high = sorted((first, second))
            slack = 0.02 * high + 2  # psutil adds slab to the caches
            if "cached" not in key and not low - slack <= value <= high + slack:
                found.append((key, low, value, high))
            compared += 1
    assert compared > 20
    return found


def test_the_agent_s_own_cost_is_that_of_this_process() -> None:
    values = read(host_collectors())

    rss = values["agent_memory_rss_bytes"]
    assert rss is not None
    assert abs(rss - psutil.Process().memory_info().rss) < 8 * 2**20
    assert 0 < (values["agent_cpu_seconds_total"] or 0) < sum(os.times()[:2]) + 1


def test_a_tree_that_stands_in_is_never_filled_up_with_this_machine(tmp_path: Path) -> None:
    collectors = host_collectors(roots=Roots(proc=tmp_path, sys=tmp_path))

    kinds = {type(collector).__module__ for collector in collectors}
    measured = {
        metric
        for collector in collectors
        for metric, reason in collector.probe().items()
        if reason is None and not metric.startswith("agent_")
    }

    assert "fedmon.node.collectors.portable" not in kinds
    assert measured == {"host_hardware_info"}


@pytest.mark.skipif(not LINUX, reason="needs /proc")
def test_psutil_is_not_loaded_where_proc_is(tmp_path: Path) -> None:
    code = "import sys, fedmon.node.collectors.host as c; c.host_collectors(); sys.exit('psutil' in sys.modules)"

    assert psutil.Popen([sys.executable, "-c", code]).wait(60) == 0


def test_a_node_loads_where_the_system_has_no_memory_that_can_be_sealed() -> None:
    code = "import fcntl; [delattr(fcntl, name) for name in dir(fcntl) if 'SEAL' in name]; import fedmon.node.daemon"

    assert psutil.Popen([sys.executable, "-c", code]).wait(60) == 0


@pytest.mark.skipif(not LINUX, reason="needs /proc")
def test_a_file_of_proc_that_comes_in_pages_is_read_whole() -> None:
    path = Path("/proc/self/smaps")  # many pages long

    text = KernelFile(path).read()

    assert text.count(b"VmFlags:") == text.count(b"KernelPageSize:")
    assert text.rstrip().splitlines()[-1].startswith(b"VmFlags:")
    assert len(text) > 8192


def test_collectors_keep_their_files_open_until_they_are_closed() -> None:
    gc.collect()  # collectors of earlier tests close their files late
    reader = StreamReader(host_collectors(per_core=True))
    counts = [psutil.Process().num_fds()]
    for number in range(50):
        reader.read(Instant(t=NOW.t, mono=NOW.mono + 10 * number))
        counts.append(psutil.Process().num_fds())
    reader.close()
    counts.append(psutil.Process().num_fds())

    assert counts[0] == counts[-1] < counts[1] == counts[-2]
