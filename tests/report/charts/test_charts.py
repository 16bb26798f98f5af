"""The numbers behind charts are what was measured: by time, in the right unit, with gaps where nothing is known."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from fedmon import report
from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.common.metrics.sample import Batch
from fedmon.common.metrics.series import series
from fedmon.common.store.recording import Recording
from fedmon.report import charts
from fedmon.report.charts import Chart, Charts
from fedmon.report.charts.catalogue import Quantity, scale_of
from fedmon.report.charts.draw import KINDS, SIZE_IN, drawn, figure
from fedmon.report.source import Source
from fedmon.report.subject import choose
from tests.report.tables import HOSTILE, T0, counted_by_perf, made, recording, samples

MIB = 1024.0**2
CPU = "host_cpu_busy_ratio"
READ, WRITTEN = (series(f"host_disk_{what}_bytes_total", device="sda") for what in ("read", "written"))


def named(charts: Charts) -> dict[str, Chart]:
    return {chart.name: chart for chart in (*charts.first, *charts.rest)}


def chart(path: Path, name: str, *batches: Batch, **choice: Any) -> Chart:
    return named(made(path, *batches, **choice))[name]


def points(chart: Chart, label: str) -> dict[float, float]:
    """The values of one line by seconds since T0, or by step, as far as there are any."""
    (line,) = (line for line in chart.lines if line.label == label)
    x = chart.x - (0.0 if chart.is_over_steps else T0)
    known = np.flatnonzero(np.isfinite(line.values))
    return {round(float(x[at]), 3): round(float(line.values[at]), 6) for at in known}


def test_a_gauge_is_its_values_and_a_counter_its_growth_in_a_unit_that_people_read(tmp_path: Path) -> None:
    read = [0, 2 * MIB, 4 * MIB, 9 * MIB]
    found = named(made(tmp_path / "a", samples({CPU: [0.1, 0.2, 0.6, 0.6], READ: read, WRITTEN: [0] * 4})))

    cpu, disk = found["cpu_load_per_node"], found["disk_traffic_per_node"]
    assert points(cpu, "busy") == {0: 0.1, 1: 0.2, 2: 0.6, 3: 0.6}
    assert (cpu.scale.unit, cpu.scale.factor) == ("%", 100.0)
    assert list(points(disk, "read")) == [1, 2, 3]
    assert disk.scale.unit == "MiB/s"
    assert [line.label for line in disk.lines] == ["read"], "a line of zeros only fills the legend"


@pytest.mark.parametrize(
    ("quantity", "value", "unit", "shown"),
    [
        (Quantity.BYTES, 3 * 1024**3, "GiB", 3),
        (Quantity.BYTE_RATE, 1_572_864, "MiB/s", 1.5),
        (Quantity.SHARE, 0.345, "%", 34.5),
        (Quantity.WATTS, 12_500.0, "kW", 12.5),
        (Quantity.WATTS, 0.02, "mW", 20),
        (Quantity.HERTZ, 2.4e9, "GHz", 2.4),
        (Quantity.SECONDS, 0.0015, "ms", 1.5),
        (Quantity.SECONDS, 7200.0, "h", 2),
        (Quantity.GRAM_RATE, 0.01, "g/h", 36),
    ],
)
def test_values_are_in_units_that_people_read(quantity: Quantity, value: float, unit: str, shown: float) -> None:
    scale = scale_of(quantity, value)

    assert scale.unit == unit
    assert value * scale.factor == pytest.approx(shown)


def test_a_metric_chosen_with_labels_shows_only_the_series_that_have_them(tmp_path: Path) -> None:
    reported = {
        f'{metric}{{name="{name}"}}': [1.0, 2.0, 4.0]
        for metric in ("user_value", "user_step")
        for name in ("loss", "acc")
    }
    disks = {
        f'host_disk_{way}_bytes_total{{device="{disk}"}}': [0.0, MIB, 4 * MIB]
        for way in ("read", "written") for disk in ("sda", "sdb")
    }  # fmt: skip
    batches = samples({**disks, CPU: [0.1, 0.2, 0.3]}), samples(reported, stream="user")

    of_disk = named(made(tmp_path / "a", *batches, metrics=['host_disk_read_bytes_total{device="sda"}']))
    of_loss = named(made(tmp_path / "b", *batches, metrics=['user_value{name="loss"}', CPU]))

    assert list(of_disk) == ["disk_traffic_per_node"]
    assert [line.label for line in of_disk["disk_traffic_per_node"].lines] == ["read"]
    assert points(of_disk["disk_traffic_per_node"], "read") == {1: MIB, 2: 3 * MIB}
    assert [one.title for one in of_loss.values()] == ["Reported: loss, by step", "CPU load", "Reported: loss"]
    assert named(made(tmp_path / "c", *batches, metrics=['host_disk_*{device="sdz"}'])) == {}


def test_parts_of_a_whole_are_stacked(tmp_path: Path) -> None:
    modes = {series("host_cpu_seconds_total", mode=mode): [0.0, share, 3 * share]
             for mode, share in (("user", 0.5), ("system", 0.25), ("idle", 3.0), ("nice", 0.0))}  # fmt: skip

    found = chart(tmp_path / "a", "cpu_time_per_node", samples(modes | {"host_cpu_count": [4.0] * 3}))

    assert found.is_stack
    assert [line.label for line in found.lines] == ["user", "system"]
    assert points(found, "user") == {1: 0.5, 2: 1.0}
    assert found.limits == (("CPUs", 4.0),)

    read = {f"job_memory_{kind}_bytes": [at, None, 0.0] for kind, at in (("anon", 5.0), ("cache", 2.0))}
    seldom = made(tmp_path / "b", samples(read | {"job_threads": [1.0] * 3}, stream="job-1"))
    dots = [np.asarray(line.get_ydata()).tolist() for line in figure(seldom.first[0], seldom).axes[0].lines]
    assert dots == [[5, 0], [7, 0]], "a stack of single readings shows them"


def test_the_x_axis_is_time_and_no_category_defect_39(tmp_path: Path) -> None:
    found = chart(tmp_path / "a", "cpu_load_per_node", samples({CPU: [0.1, 0.2]}), samples({CPU: [0.3]}, seq=10))

    told = points(found, "busy")
    assert (told[0], told[1], told[10]) == (0.1, 0.2, 0.3)
    assert found.x[0] == T0
    early = made(tmp_path / "b", samples({CPU: [0.1, 0.2, 0.3, 0.9]}, t=[T0, T0 + 1, T0 + 2, T0 + 2.6]))
    assert early.first[0].x[-1] == early.span[1] == T0 + 3, "the last value is not cut off"


def test_titles_name_what_is_joined_and_do_not_grow_defect_40(tmp_path: Path) -> None:
    batches = [samples({"host_threads": [10, 30]}, node=node) for node in ("n1", "n2")]

    titles = [named(made(tmp_path / str(at), *batches))["threads_all_nodes"].title for at in range(2)]

    assert titles == ["Threads, total of 2 nodes"] * 2


def test_absent_and_constant_metrics_leave_no_empty_chart_defect_41(tmp_path: Path) -> None:
    batch = samples({CPU: [0.1, 0.2], "job_cpus_busy": [None, None], "host_threads": [7, 7], "host_load1": [0, 0]})

    found = made(tmp_path / "b", batch)
    written = charts.write_charts(found, found.first, tmp_path / "plots")

    assert [one.name for one in written] == ["cpu_load_per_node.png"]
    assert sorted(one.name for one in (tmp_path / "plots").iterdir()) == ["cpu_load_per_node.png"]
    assert sorted(found.constant) == ["Load: threads that run or wait", "Threads"]
    assert len(named(made(tmp_path / "c", batch, zeros=True))) == 3


def test_an_average_is_that_of_the_nodes_and_its_band_reaches_from_the_lowest_to_the_highest(tmp_path: Path) -> None:
    batches = [samples({CPU: [level] * 5 + [level / 2]}, node=f"n{at}") for at, level in enumerate((0.1, 0.2, 0.6))]

    found = chart(tmp_path / "a", "cpu_load_all_nodes", *batches)

    (line,) = found.lines
    assert line.low is not None
    assert line.high is not None
    assert (line.values[0], line.low[0], line.high[0]) == (pytest.approx(0.3), pytest.approx(0.1), pytest.approx(0.6))
    assert found.title == "CPU load, average of 3 nodes"
    (dense,) = chart(tmp_path / "b", "cpu_load_per_node", samples({CPU: [0.1, 0.5] * 1000})).lines
    assert [np.unique(band).tolist() for band in (dense.low, dense.high) if band is not None] == [[0.1], [0.5]]


def test_a_total_is_not_known_while_a_node_is_silent_and_is_hatched_while_it_is_away(tmp_path: Path) -> None:
    whole = samples({READ: [number * MIB for number in range(50)]}, node="n1")
    parts = [samples({READ: [float(first + number) * MIB for number in range(8)]}, node="n2", seq=first)
             for first in (10, 32)]  # fmt: skip

    found = made(tmp_path / "a", whole, *parts, zeros=True)

    both = dict.fromkeys((*range(11, 18), *range(32, 40)), 2 * MIB)
    one = dict.fromkeys((*range(1, 11), *range(40, 50)), MIB)
    assert points(named(found)["disk_traffic_all_nodes"], "read") == one | both
    why = "n2: no samples for"
    assert found.gaps == (
        (T0, T0 + 10, f"{why} 10.0 s"), (T0 + 17, T0 + 32, f"{why} 14.0 s"), (T0 + 39, T0 + 49, f"{why} 10.0 s"),
    )  # fmt: skip


def test_a_total_that_is_never_known_has_no_chart(tmp_path: Path) -> None:
    read = {"n1": (1000, 1004, 1008, 1040), "n2": (1020,)}
    batches = [samples({"host_threads": [float(at) if at in each else None for at in range(2000)]}, node=node)
               for node, each in read.items()]  # fmt: skip
    received = {f'host_network_receive_bytes_total{{interface="{name}"}}':
                [float(at) if first <= at < first + 4 else None for at in range(2000)]
                for name, first in (("eth0", 1000), ("eth1", 1010))}  # fmt: skip
    batches.append(samples(received, node="n3"))
    batches.append(samples({name: [at * at * MIB for at in range(2000)] for name in received}, node="n4"))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = made(tmp_path / "a", *batches)

    assert set(named(found)) == {"threads_per_node", "network_traffic_per_node", "network_traffic_all_nodes"}
    assert found.constant == ()
    assert [[line.label for line in one.lines] for one in found.first if one.figure == "network_traffic"] == [
        ["received"]
    ]


def reported(
    node: str, run: str, at: int, value: float, step: float, *, name: str = "loss", group: str = "", **costs: float
) -> Batch:
    """What one run says of one round: its loss or another value, and what it took."""
    labels = {"job": run} | ({"group": group} if group else {})
    columns: dict[str, list[float | None]] = {
        series(f"user_run_{what}", **labels): [cost] for what, cost in costs.items()
    }
    columns[series("user_value", name=name, **labels)] = [value]
    columns[series("user_step", name=name, **labels)] = [step]
    return samples(columns, node=node, stream="user-alice", seq=at)


def training(losses: list[float | None], steps: list[float | None]) -> dict[str, list[float | None]]:
    return {series("user_value", name="loss"): losses, series("user_step", name="loss"): steps}


WATTS = {"package-0": 10.0, "package-1": 20.0, "package-0-core": 5.0, "package-1-core": 6.0, "package-0-dram": 2.0}
ZONES = {series("rapl_energy_joules_total", zone=zone): [0, watts, 3 * watts] for zone, watts in WATTS.items()}
CORES = {series("host_cpu_core_busy_ratio", cpu=str(cpu)): [cpu / 64, cpu / 32] for cpu in range(64)}
STARTS = {"perf_starts_total": [0, 1, 2, 5]}
AGAIN = [samples({series("user_run_seconds", job="failed", group="cells"): [90.0]}, stream="user", seq=25),
         *(reported("n1", run, at, loss, step, group="cells", seconds=seconds)
           for run, at, loss, step, seconds in (("one", 0, 4.0, 1, 2.0), ("one", 10, 4.0, 1, 5.0),
                                                ("again", 20, 2.0, 1, 7.0), ("two", 30, 1.0, 2, 3.0)))]  # fmt: skip
AT_ONCE = [reported("n1", run, at, loss, step, seconds=seconds)
           for run, at, loss, step, seconds in (("one", 0, 4.0, 0, 9), ("two", 5, 8.0, 0, 7), ("one", 10, 3.0, 1, 9),
                                                ("two", 15, 6.0, 1, 7), ("more", 30, 5.0, 2, 5))]  # fmt: skip
TWICE = samples(training([2.0, 1.5, 1.2, 1.0, 3.0, 2.5], [0.0, 1.0, 2.0, 3.0, 1.0, 2.0]), stream="user")
RESUMED = [reported("n1", run, at, loss, step) for at, (run, loss, step) in enumerate(
           (("one", 4.0, 0), ("one", 3.0, 1), ("one", 2.0, 2), ("two", 3.0, 1), ("two", 1.0, 3)))]  # fmt: skip
DRAWN: dict[str, tuple[list[Batch], str, dict[str, dict[float, float]]]] = {
    "the total of a plug-in is its growth per second": (
        [samples({"cells_total": [1_000_000, 1_000_100, 1_000_300, 1_000_300]}, step_s=2.0)],
        "other_cells_total_per_node", {"cells_total": {2: 50, 4: 100, 6: 0}}),
    "RAPL zones are added up by what they measure": (
        [samples(ZONES)], "rapl_power_per_node",
        {"package": {1: 30, 2: 60}, "core": {1: 11, 2: 22}, "dram": {1: 2, 2: 4}}),
    "of many lines the largest are shown and the others as one": (
        [samples(CORES)], "cpu_cores_per_node",
        {**{f"CPU {cpu}": {0: cpu / 64, 1: cpu / 32} for cpu in range(58, 64)},
         "57 others, average": {0: 29 / 64, 1: 29 / 32}}),
    "a host without a metric shifts nothing": (
        [samples({"host_load1": [5, 6], CPU: [0.1, 0.2]}), samples({CPU: [0.3, 0.4]}, node="n2")],
        "cpu_load_per_node", {"n1": {0: 0.1, 1: 0.2}, "n2": {0: 0.3, 1: 0.4}}),
    "a sample right after another is no peak of a counter and hides no restart": (
        [samples({READ: read}, seq=seq, t=[T0 + at for at in t])
         for seq, t, read in ((0, (0, 10, 20, 30, 30.01), [0, 100, 200, 300, 400]),
                              (5, (40, 40.01, 50), [500, 100, 200]), (8, (50.01,), [900]))],
        "disk_traffic_per_node", {"read": {10: 10, 20: 10, 30: 10, 40: 20, 50: 10.01}}),
    "between the samples of a short job nothing is invented": (
        [samples({"host_threads": [4, 2, 3, 3, 1]}, t=[T0, T0 + 10, T0 + 20, T0 + 30, T0 + 31])],
        "threads_per_node", {"Threads": {0: 4, 10: 2, 20: 3, 30: 3}}),
    "between seldom readings no begin and no end of a job is invented": (
        [samples({"job_threads": [4.0] * 10, "job_memory_anon_bytes": [15, *[None] * 2, 90, *[None] * 2, 96,
                                                                       *[None] * 2, 0]}, stream="job-1")],
        "job_memory_kinds_per_node", {"anonymous": {0: 15, 3: 90, 4: 92, 5: 94, 6: 96, 9: 0}}),
    "a machine is there before and after what is read seldom of it": (
        [samples({"host_threads": [4, None, None, 7, None, None, 4], CPU: [0.5] * 7})],
        "threads_per_node", {"Threads": {0: 4, 1: 5, 2: 6, 3: 7, 4: 6, 5: 5, 6: 4}}),
    "a short phase of frequent samples is drawn with each of them": (
        [samples({"host_threads": [*[1.0] * 20, *[2.0, 3.0] * 5]},
                 t=[T0 + at for at in (*range(0, 191, 10), *range(191, 201))])], "threads_per_node",
        {"Threads": {**dict.fromkeys(range(191), 1), **{191 + at: 2 + at % 2 for at in range(10)}}}),
    "all nodes are joined by time and not by row, defect 39": (
        [samples({"host_threads": [10, 11, 10, 10]}), samples({"host_threads": [100] * 4}, node="n2", seq=20)],
        "threads_all_nodes", {"Threads": {0: 10, 1: 11, 2: 10, 3: 10, 20: 100, 21: 100, 22: 100, 23: 100}}),
    "nodes that show the same are one line with both names": (
        [samples({CPU: [0.1, 0.5]}, node=node) for node in ("a", "b")], "cpu_load_per_node",
        {"a and b (same values)": {0: 0.1, 1: 0.5}}),
    "what a job and its machine both have is not added up": (
        [samples(STARTS), samples(STARTS, stream="job-7")], "perf_starts_rate_per_node",
        {"machine and job (same values)": {1: 1, 2: 1, 3: 3}}),
    "two runs at once are two lines, and one that goes on joins its line": (
        AT_ONCE, "reported_loss_by_step", {"n1": {0: 4, 1: 3}, "n1 (2)": {0: 8, 1: 6, 2: 5}}),
    "the cost of runs at once": (
        AT_ONCE, "reported_user_run_seconds_by_step", {"n1": {1: 9}, "n1 (2)": {1: 7, 2: 5}}),
    "a training is a line a node over its steps and their mean, though each round is a job": (
        [reported(node, f"round-{at}-{node}", 30 * at, 6.0 / (at + scale), at)
         for at in range(3) for node, scale in (("a", 1), ("b", 2))], "reported_loss_by_step",
        {"a": {0: 6, 1: 3, 2: 2}, "b": {0: 3, 1: 2, 2: 1.5}, "mean": {0: 4.5, 1: 2.5, 2: 1.75}}),
    "a repeated round costs the sum of its runs, each with its last word": (
        AGAIN, "training_cells_seconds_per_round", {"n1": {1: 12, 2: 3}}),
    "jobs at different times are a sum also in the line of the others": (
        [samples({"job_cpu_user_seconds_total": [0, job, 3 * job]}, stream=f"job-{job}", seq=4 * job)
         for job in range(1, 10)] + [samples({"host_threads": [1.0]}, seq=400)], "job_cpu_per_node",
        {**{f"user mode job {job}": {4 * job + 1: job, 4 * job + 2: 2 * job} for job in range(4, 10)},
         "3 others": {5: 1, 6: 2, 9: 2, 10: 4, 13: 3, 14: 6}}),
    "between two trainings nothing is invented": (
        [samples({CPU: [0.5] * 104}), samples({series("user_value", name="loss"): [4.0, 3.0, 2.0, 1.0] * 2},
                                              t=[T0 + at for at in (0, 1, 2, 4, 100, 101, 102, 103)], stream="user")],
        "reported_loss_per_node", {"Reported": {0: 4, 1: 3, 2: 2, 3: 1.5, 4: 1, 100: 4, 101: 3, 102: 2, 103: 1}}),
    "values that programs report are drawn also where nothing else was recorded": (
        [samples({series("user_value", name="loss"): [4.0, 1.0, 2.0, 3.0]}, stream="user", step_s=10.0)],
        "reported_loss_per_node", {"Reported": {0: 4, 10: 1, 20: 2, 30: 3}}),
    "a second training of a program is a line of its own": (
        [TWICE], "reported_loss_by_step", {"n1": {0: 2, 1: 1.5, 2: 1.2, 3: 1}, "n1 (2)": {1: 3, 2: 2.5}}),
    "a mean is of one job, or of the newest ones of its nodes": (
        [reported(node, job, at + begin, loss - at, at) for at in (0, 1) for node, job, begin, loss in (
         ("a", "7", 0, 9.0), ("a", "8", 10, 5.0), ("b", "8", 10, 3.0), ("c", "9", 10, 7.0))],
        "reported_loss_by_step", {"a": {0: 9, 1: 8}, "a (2)": {0: 5, 1: 4}, "b (2)": {0: 3, 1: 2},
                                  "c (2)": {0: 7, 1: 6}, "mean (2)": {0: 5, 1: 4}}),
    "jobs that begin at the same step are lines of their own": (
        [reported("n1", job, at, loss, step) for at, (job, loss, step) in enumerate(
         (("7", 9.0, 10), ("8", 5.0, 10), ("8", 4.0, 20)))],
        "reported_loss_by_step", {"n1": {10: 9}, "n1 (2)": {10: 5, 20: 4}}),
    "a job that continued from a checkpoint of another joins its line": (
        RESUMED, "reported_loss_by_step", {"n1": {0: 4, 1: 3, 2: 2, 3: 1}}),
    "a program that continued from a checkpoint has one line, also if its clock was set back": (
        [samples(training([5.0, 4.0, 3.0, 2.0], [0.0, 1.0, 2.0, 3.0]), stream="user", mono=[0, 1, 2, 3],
                 t=[T0 + at for at in (50, 51, 50.5, 51.5)]),
         samples(training([3.5, 1.0], [2.0, 4.0]), stream="user", boot=2)],
        "reported_loss_by_step", {"n1": {0: 5, 1: 4, 2: 3.25, 3: 2, 4: 1}}),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_each_line_is_what_was_measured(name: str, tmp_path: Path) -> None:
    batches, of, expected = DRAWN[name]
    found = chart(tmp_path / "a", of, *batches)

    assert {line.label: points(found, line.label) for line in found.lines} == {
        label: pytest.approx(line) for label, line in expected.items()
    }


def test_what_perf_counted_is_by_its_own_clock_and_of_a_job_apart_from_its_machine(tmp_path: Path) -> None:
    found = chart(tmp_path / "a", "perf_events_software_per_node", *counted_by_perf(), zeros=True)

    told = {line.label: set(points(found, line.label).values()) for line in found.lines}
    assert told == {"machine": {5000}, "job": {100}}


@pytest.mark.parametrize(
    ("limit", "jobs", "limits"),
    [
        (3 * MIB, (1,), (("limit", 3 * MIB),)),
        (2.0**62, (1,), ()),
        (3 * MIB, (1, 2), (("limit job 1", 3 * MIB), ("limit job 2", 3 * MIB))),
    ],
    ids=["near", "far away", "two jobs"],
)
def test_a_limit_is_drawn_with_the_memory_of_the_job_that_it_limits(
    limit: float, jobs: tuple[int, ...], limits: tuple[tuple[str, float], ...], tmp_path: Path
) -> None:
    memory = {"job_memory_rss_bytes": [MIB, 2 * MIB], "job_memory_limit_bytes": [limit] * 2}
    batches = [samples(memory, stream=f"job-{at}") for at in jobs]

    assert chart(tmp_path / "a", "job_memory_per_node", *batches).limits == limits


def test_each_file_system_has_its_chart_and_limit(tmp_path: Path) -> None:
    spaces = {"/": (50.0, 40.0, 100.0), "/home": (9.0, 1.0, 10.0)}
    columns = {series(f"host_filesystem_{what}_bytes", mountpoint=mount): [last if what == "size" else first, last]
               for mount, (*space, size) in spaces.items()
               for what, (first, last) in (("free", space), ("available", space), ("size", (size, size)))}  # fmt: skip

    found = made(tmp_path / "a", samples(columns))

    told = {one.title: one.limits for one in found.first}
    assert told == {"File system space: /": (("size", 100.0),), "File system space: /home": (("size", 10.0),)}


def test_runs_of_a_group_are_one_training_with_a_mean_by_rows_and_the_cost_of_each_round(tmp_path: Path) -> None:
    batches = [
        reported(node, f"round-{at}-{node}", 10 * at, accuracy, at, name="accuracy", group="cells", rows=rows,
                 seconds=2.0 + at, bytes=1000.0)
        for node, rows in (("a", 300.0), ("b", 100.0))
        for at, accuracy in ((1, 0.5), (2, 0.7 if node == "a" else 0.9))
    ]  # fmt: skip

    found = made(tmp_path / "a", *batches)

    accuracy, seconds, size = found.first[:3]
    assert [one.title for one in found.first[:3]] == [
        "Training cells: accuracy", "Training cells: seconds per round", "Training cells: bytes per round",
    ]  # fmt: skip
    assert [line.label for line in accuracy.lines] == ["a", "b", "mean, by rows"]
    assert points(accuracy, "mean, by rows") == {1: 0.5, 2: 0.75}
    assert points(seconds, "b") == {1: 3, 2: 4}
    assert points(size, "a") == {1: 1000, 2: 1000}
    assert accuracy.x.tolist() == seconds.x.tolist()
    assert not any(one.title.startswith("Reported") for one in found.first)

    curves = report.learning_curves(tmp_path / "a")
    table, pictures = curves.to_frame(), curves._repr_html_()
    assert table[table["node"] == "b"][["round", "accuracy", "seconds", "rows"]].values.tolist() == [
        [1, 0.5, 3, 100], [2, 0.9, 4, 100],
    ]  # fmt: skip
    assert pictures.count("<img") == 3


def test_no_two_lines_of_a_training_of_many_nodes_have_one_colour(tmp_path: Path) -> None:
    found = made(tmp_path / "a", *(reported(f"n{at}", f"{at}-{step}", 10 * step, at, step, group="cells")
                                   for at in range(1, 9) for step in (1, 2)))  # fmt: skip

    labels = [line.label for line in found.first[0].lines]
    assert labels == ["n4", "n5", "n6", "n7", "n8", "3 others, average", "mean"]


def test_rounds_without_a_node_have_neither_its_value_in_the_mean_nor_a_cost_of_it(tmp_path: Path) -> None:
    batches = [reported(node, f"{node}-{at}", 10 * at, value, at, group="cells", seconds=5.0 + at, rows=rows)
               for node, rows, values in (("a", 100.0, {1: 4.0, 2: 3.0, 3: 2.0}), ("b", 300.0, {1: 8.0, 3: 6.0}))
               for at, value in values.items()]  # fmt: skip

    found = made(tmp_path / "a", *batches)

    loss, seconds = found.first[:2]
    assert points(loss, "b") == {1: 8, 2: 7, 3: 6}
    assert points(loss, "mean, by rows") == {1: 7, 2: 3, 3: 5}
    assert points(seconds, "b") == {1: 6, 3: 8}
    assert figure(seconds, found).axes[0].lines[1].get_marker() == "o"


@pytest.mark.parametrize(("group", "title"), [("", "Reported: loss"), ("cells", "Training cells: loss")])
def test_a_training_of_one_round_is_shown_first(group: str, title: str, tmp_path: Path) -> None:
    batches = [reported("n1", "one", 10 * at, loss, 1, group=group) for at, loss in enumerate((4.0, 3.0, 2.0))]

    found = made(tmp_path / "a", samples({CPU: [0.1] * 20 + [0.9] * 20}), *batches)

    assert found.first[0].title == title
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert drawn(found.first[0], found, "png").startswith(b"\x89PNG")


def test_a_frame_tells_runs_without_a_group_apart(tmp_path: Path) -> None:
    batches = [
        reported("n1", job, t, t, step) for t, (job, step) in enumerate((job, step) for job in "ab" for step in (1, 2))
    ]

    table = report.learning_curves(recording(tmp_path / "a", *batches)).to_frame()

    assert table[["round", "number", "loss"]].values.tolist() == [[1, 0, 0], [1, 1, 2], [2, 0, 1], [2, 1, 3]]


def test_values_named_like_a_column_of_the_frame_overwrite_none(tmp_path: Path) -> None:
    taken = ("group", "round", "node", "number", "rows", "seconds", "joules", "bytes")
    labels = {"job": "one", "group": "cells"}
    costs = {series(f"user_run_{name}", **labels): [100.0] for name in taken[4:]}
    values = {series(f"user_{kind}", name=name, **labels): [2.0] for name in taken for kind in ("value", "step")}

    path = recording(tmp_path / "a", samples({**costs, **values}, stream="user"))
    (row,) = report.learning_curves(path).to_frame().to_dict("records")

    assert {name: row[name] for name in taken} == {
        "group": "cells", "round": 2, "node": "n1", "number": 0, **dict.fromkeys(taken[4:], 100),
    }  # fmt: skip
    assert {row[f"value_{name}"] for name in taken} == {2}


def test_a_single_report_beside_a_long_training_is_shown_at_the_step_before_it(tmp_path: Path) -> None:
    steps = range(2000)
    batches = (
        samples(training([*steps], [*steps]), stream="user"),
        samples(training([7.0], [501.5]), node="b", stream="user"),
    )

    assert points(chart(tmp_path / "a", "reported_loss_by_step", *batches), "b") == {501.0: 7.0}


def test_a_long_training_of_two_nodes_has_unbroken_lines_and_the_mean_of_both(tmp_path: Path) -> None:
    batches = [samples(training([scale / (1 + at / 500) for at in range(2000)], [float(at) for at in range(2000)]),
                       node=node, stream="user", late_s=late_s)
               for node, scale, late_s in (("a", 1, 0.0), ("b", 2, 1.4))]  # fmt: skip

    found = chart(tmp_path / "a", "reported_loss_by_step", *batches)

    told = {label: points(found, label) for label in ("a", "b", "mean")}
    shared = told["a"].keys() & told["b"].keys()
    assert len(shared) > len(found.x) - 8
    assert all(told["mean"][at] == pytest.approx(1.5 / (1 + at / 500), rel=1e-3) for at in shared)
    assert len(found.x) <= 480


def test_what_is_missing_is_hatched_with_the_reason_of_its_own_stream_and_boot(tmp_path: Path) -> None:
    parts = [samples({CPU: [0.5, 0.6]}, seq=seq, stream=name) for seq in (0, 20) for name in ("host", "job-1")]
    parts += [samples({CPU: [0.5, 0.6]}, seq=seq, stream="job-1", node="n2") for seq in (0, 10, 22)]
    path = recording(tmp_path / "a", *parts)
    reasons = {("job-1", 1): "dropped", ("job-1", 2): "of another boot", ("host", 1): "of another stream"}
    with Recording(path) as store:
        store.set_all_lost([(("n1", *key), 2, 19, reason) for key, reason in reasons.items()])
    with Source([path]) as source:
        subject = choose(source)
        found = charts.charts_of(charts.read_bins(subject), subject)
        drawn_figure = figure(found.first[0], found)

    assert found.gaps == (
        (T0 + 1, T0 + 20, "n1: no samples for 18.0 s: dropped"), (T0 + 20, T0 + 22, "n2: no samples for 10.0 s"),
    )  # fmt: skip
    assert [patch.get_hatch() for patch in drawn_figure.axes[0].patches] == ["////"] * 2, "a time is hatched once"


@pytest.mark.parametrize(
    "values",
    [
        [0.5],
        [0.0, 0.0, 0.0],
        [0.25] * 50,
        [-1.0, -2.0],
        [0.1] * 20 + [1e300] + [0.1] * 20,
        [-1e300, 1e300],
        [0.5, 1.7e308, -1.7e308, 0.6],
        [5e-324, 1e-300],
        [None, 0.5, None, 0.5, None, None, 0.6, None],
    ],
    ids=["one", "zeros", "constant", "negative", "outlier", "huge", "too-large", "tiny", "holes"],
)
def test_odd_values_are_drawn_without_a_warning(values: list[float | None], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = made(tmp_path / "a", samples({CPU: values, "host_load1": values, "user_thing": values}), zeros=True)
        for each in named(found).values():
            assert drawn(each, found, "png").startswith(b"\x89PNG")

    assert set(named(found)) == {"cpu_load_per_node", "load_per_node", "other_user_thing_per_node"}
    assert found.span[1] - found.span[0] >= 1.0, "no axis has marks of microseconds"


@pytest.mark.parametrize("kind", KINDS)
def test_labels_in_any_script_are_drawn_without_a_warning(kind: str, tmp_path: Path) -> None:
    traffic = {series("host_network_receive_bytes_total", interface=text): [0.0, 1e6 * at, 5e6 * at]
               for at, text in enumerate(HOSTILE, 1)}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = made(tmp_path / "a", samples({series("user_value", name="\u4f5c\u696d"): [1.0, 2.0, 3.0]} | traffic))
        for each in named(found).values():
            assert len(drawn(each, found, kind)) > 1000


@pytest.mark.parametrize("size_in", [SIZE_IN, (3.5, 1.75)])
@pytest.mark.parametrize("name", ["east", "loss-of-the-model-on-rows-held-out-there", "a-host-of-a-large-cluster" * 8])
def test_titles_and_legends_fit_in_the_drawing(name: str, size_in: tuple[float, float], tmp_path: Path) -> None:
    traffic = {series("host_network_receive_bytes_total", interface=f"{name}-{at}"): [0.0, 1e6 * at, 5e6 * at]
               for at in range(1, 7)}  # fmt: skip
    found = made(tmp_path / "a", samples({series("user_value", name=name): [1.0, 2.0, 3.0]} | traffic))

    for one in named(found).values():
        picture = figure(one, found, size_in=size_in)
        picture.draw_without_rendering()
        for part in (*picture.texts, *picture.legends):
            assert part.get_window_extent().x1 <= picture.bbox.x1, "the right end is cut off"
        assert len(one.title) > 55 or one.title in picture.texts[0].get_text()


def test_a_recording_without_main_charts_shows_its_others_first(tmp_path: Path) -> None:
    found = made(tmp_path / "a", samples({"host_threads": [1.0, 2.0, 3.0], CPU: [0.5, 0.5, 0.5]}))

    assert [one.name for one in found.first] == ["threads_per_node"]


def test_of_reported_values_those_of_most_nodes_are_shown_first(tmp_path: Path) -> None:
    layers = [reported("a", "one", at, 2.0 - at, at, name=layer) for at in (0, 1) for layer in "abcdefg"]
    losses = [reported(node, "one", 9 + at, 2.0 - at, at) for at in (0, 1) for node in "ab"]

    found = made(tmp_path / "a", *layers, *losses)

    assert [one.title for one in found.first[:2]] == ["Reported: loss, by step", "Reported: a, by step"]


def test_marks_of_an_axis_are_even_minutes_and_whole_rounds_unless_steps_are_parts_of_rounds(tmp_path: Path) -> None:
    minutes = samples({CPU: [0.1, 0.2, 0.3] * 20}, step_s=10.0)
    rounds = samples(training([0.925, 0.92, 0.917, 0.915], [0.0, 1.0, 2.0, 3.0]), stream="user")

    found = made(tmp_path / "a", minutes, rounds)

    axes = {one.figure: figure(one, found).axes[0] for one in found.first}
    marks = [label.get_text() for label in axes["cpu_load"].get_xticklabels()]
    assert marks == ["04:40", "04:42", "04:44", "04:46", "04:48"]
    assert all(mark == round(mark) for mark in axes["training"].get_xticks())
    values = [label.get_text() for label in axes["training"].get_yticklabels()]
    assert values == [f"{mark:g}" for mark in axes["training"].get_yticks()]
    parts = made(tmp_path / "b", samples(training([3.0, 2.0, 1.0], [0.25, 0.5, 1.0]), stream="user"))
    assert len(figure(parts.first[0], parts).axes[0].get_xticks()) > 3


def test_the_memory_of_a_job_on_several_nodes_is_shown_first(tmp_path: Path) -> None:
    kinds = {"job_memory_charged_bytes": 2.0, "job_memory_rss_bytes": 1.0}
    batches = [samples({name: [scale * MIB, 2 * scale * at * MIB] for name, scale in kinds.items()}, node=node,
                       stream="job-1") for at, node in ((1, "a"), (2, "b"))]  # fmt: skip

    found = made(tmp_path / "a", *batches)

    assert [one.name for one in found.first if one.name.startswith("job_memory")] == ["job_memory_charged_per_node"]


def test_no_two_charts_have_one_name(tmp_path: Path) -> None:
    columns = {series("rapl_energy_joules_total", zone=zone): [0.0, 5.0 * at, 20.0 * at]
               for at, zone in enumerate(("a b", "a_b", "a:b"), 1)}  # fmt: skip

    found = made(tmp_path / "a", *(samples(columns, node=node) for node in ("a", "b")))

    names = [one.name for one in (*found.first, *found.rest)]
    assert len(names) == len(set(names)) == 4


def test_hostile_names_are_drawn_as_they_are_and_lead_to_harmless_files(tmp_path: Path) -> None:
    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for first in range(0, len(HOSTILE), 7):
            disks = {series("host_disk_busy_seconds_total", device=f"{name}{at}"): [0.0, 0.5, 0.6 + at / 100]
                     for at, name in enumerate(HOSTILE[first : first + 7])}  # fmt: skip
            found = made(tmp_path / f"{first}", samples(disks))
            (busy,) = found.first
            assert b"<script>" not in drawn(busy, found, "svg")
            legend = figure(busy, found).legends[0].get_texts()
            assert not any(text.get_parse_math() for text in legend)
            texts += [text.get_text() for text in legend]
    assert {f"{name}{HOSTILE.index(name) % 7}" for name in ("$x$", "a_b^c")} <= set(texts)
    assert not any("\n" in text for text in texts)

    values = {series("user_value", name=name or "x"): [1.0, 2.0] for name in (*HOSTILE, "a/b", "a b", "../evil")}
    found = made(tmp_path / "values", samples(values, stream="user"))
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert all(set(name) <= allowed for name in named(found))
    assert len(named(found)) == len(found.first) + len(found.rest) == len(values)


def test_plots_are_files_named_after_the_chart_and_who_is_in_it(tmp_path: Path) -> None:
    path = recording(
        tmp_path / "a",
        *(samples({CPU: [0.1, at], "host_load1": [1, 2]}, node=node) for node, at in (("a", 1), ("b", 2))),
    )

    written = report.plot(path, tmp_path / "plots", metrics=["host_cpu_*"])
    part = report.plot(path, tmp_path / "part", nodes=["b"], metrics=["host_cpu_*"], kind="svg")
    with pytest.raises(InvalidInputError, match="gif"):
        report.plot(path, tmp_path / "none", kind="gif")
    with pytest.raises(InvalidInputError, match="give a list of names"):
        report.plot(path, tmp_path / "none", metrics="host_load1")
    with pytest.raises(NotFoundError, match="nothing to plot"):
        report.plot(path, tmp_path / "none", metrics=["host_lod1"])

    assert sorted(one.name for one in written) == ["cpu_load_all_nodes.png", "cpu_load_per_node.png"]
    assert part == [tmp_path / "part/cpu_load_per_node.svg"]
    assert not (tmp_path / "none").exists()


def test_settings_of_the_reader_change_no_drawing_and_are_kept(tmp_path: Path) -> None:
    found = made(tmp_path / "all.fmr", samples({CPU: [0.1, 0.2]}))
    expected = drawn(found.first[0], found, "png")

    with mpl.rc_context({"text.usetex": True, "font.size": 30, "axes.facecolor": "black", "svg.fonttype": "path"}):
        assert expected == drawn(found.first[0], found, "png")
        assert (mpl.rcParams["text.usetex"], mpl.rcParams["font.size"]) == (True, 30)
