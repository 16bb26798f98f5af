from __future__ import annotations

from collections.abc import Callable

import pytest

from fedmon.researcher.cli.readings import WatchState
from fedmon.researcher.cli.screen import CHOSEN, GROUPS, Screen, compose, text_screen
from tests.researcher.cli.watch_samples import labelled, live, said

GIB = float(2**30)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def host(seq: int, *, busy: float) -> dict[str, float | None]:
    return {
        "host_cpu_busy_ratio": busy,
        "host_cpu_count": 64.0,
        "host_load1": 12.5,
        "host_memory_total_bytes": 256 * GIB,
        "host_memory_available_bytes": 200 * GIB,
        'host_disk_read_bytes_total{device="nvme0n1"}': seq * 1.5e9,
        'host_disk_written_bytes_total{device="nvme0n1"}': seq * 2.5e9,
        'host_network_receive_bytes_total{interface="eth0"}': seq * 1.1e9,
        'host_network_transmit_bytes_total{interface="eth0"}': seq * 1.2e9,
        "agent_interval_seconds": 1.0,
    }


def watched(nodes: int, *, busy: Callable[[int], float] = lambda _: 0.1, clock: Clock | None = None) -> WatchState:
    state = WatchState(clock or Clock())
    for number in range(nodes):
        name = f"hospital-{number:02d}-of-the-north"
        for seq in range(2):
            state.take(labelled(live(name, seq), host(seq, busy=busy(number))))
    return state


def composed(state: WatchState, *, width: int = 80, height: int | None = 24, **more: object) -> Screen:
    arguments = {"capabilities": {}, "refusals": {}} | more
    return compose(state, list(GROUPS.values()), width=width, height=height, **arguments)  # type: ignore[arg-type]


def drawn(screen: Screen, width: int) -> list[str]:
    return text_screen(screen, width=width).splitlines()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize(("nodes", "height"), [(1, 24), (3, 24), (50, 24), (50, 60), (200, 40)])
def test_a_screen_fits_whatever_its_size_and_nothing_is_cut_off(width: int, nodes: int, height: int) -> None:
    lines = drawn(composed(watched(nodes), width=width, height=height), width)

    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    assert sum("hospital-" in line for line in lines) >= min(nodes, height - 10)


def test_fifty_nodes_on_a_small_screen_show_the_worst_and_count_the_rest() -> None:
    state = watched(50, busy=lambda number: 0.99 if number == 37 else 0.85 if number == 11 else 0.2)

    screen = composed(state)

    (table,) = screen.tables
    assert [row.cells[0].text for row in table.rows[:2]] == ["hospital-37-of-the-north", "hospital-11-of-the-north"]
    assert len(table.rows) + table.more == 50
    assert f"... {table.more} more" in "\n".join(drawn(screen, 80))


def test_rows_can_stand_by_name() -> None:
    state = watched(5, busy=lambda number: number / 5)

    (table,) = composed(state, worst_first=False).tables

    assert [row.cells[0].text for row in table.rows] == state.nodes


def test_units_are_those_of_the_values() -> None:
    text = "\n".join(drawn(composed(watched(1), width=200), 200))

    for piece in ("10 %", "56.0 GiB", "22 %", "12.50", "1.4 GiB/s", "2.3 GiB/s", "1.0 GiB/s", "1.1 GiB/s"):
        assert piece in text


def test_a_total_is_unknown_with_the_reason_when_one_of_its_series_is() -> None:
    sda, sdb = (f'host_disk_read_bytes_total{{device="{name}"}}' for name in ("sda", "sdb"))
    state = WatchState(Clock())
    shown = []
    for seq, value in enumerate((0.0, 2.0**30, None)):
        reasons = {} if value is not None else {sdb: "failed: the disk did not answer"}
        state.take(labelled(live("north", seq, reasons=reasons), {sda: seq * 2.0**30, sdb: value}))
        table = GROUPS["host"].table(state)
        shown.append(table.rows[0].cells[table.headers.index("read")].text)

    assert shown == ["-", "2.0 GiB/s", "-"]
    assert [(one.metric, one.reason) for one in state.absent({})] == [
        ("host_disk_read_bytes_total", "failed: the disk did not answer")
    ]


def test_a_gap_is_counted_until_it_is_filled() -> None:
    state = watched(2)
    name = state.nodes[0]
    state.take(live(name, 5))
    gap = composed(state, lost=1, missing=3).totals
    for seq in (2, 3, 4):
        state.take(live(name, seq, late=True))
    filled = composed(state).totals

    assert gap == "2 nodes, 5 samples, 1 lost, 3 missing"
    assert filled == "2 nodes, 8 samples (3 backfilled), 0 lost"


def test_what_is_not_measured_is_named_once_with_its_reason_and_its_nodes() -> None:
    state = watched(3)
    first, second, third = state.nodes
    no_gpu = "not found: libnvidia-ml.so.1"
    capabilities = {
        first: said(first, gpu_power_watts=no_gpu, gpu_temperature_celsius=no_gpu, gpu_processes=no_gpu),
        second: said(second, gpu_power_watts=no_gpu, gpu_temperature_celsius=no_gpu, gpu_processes=no_gpu),
        third: said(third, gpu_power_watts=None, rapl_energy_joules_total="no permission: /sys/class/powercap"),
    }

    refusals = {"east": "does not obey r"}

    screen = composed(state, width=120, capabilities=capabilities, refusals=refusals)
    low = composed(state, width=120, height=10, capabilities=capabilities, refusals=refusals)

    assert low.absent == (*screen.absent[:2], "... 1 more; fedmon watch --absent shows all")
    assert screen.absent == (
        "east: does not obey r",
        f"gpu_* (3 metrics) on {first}, {second}: {no_gpu}",
        f"rapl_energy_joules_total on {third}: no permission: /sys/class/powercap",
    )


def test_a_reading_that_was_missed_is_named_until_it_comes_again() -> None:
    state = watched(1)
    (name,) = state.nodes
    state.take(live(name, 2, host_load1=None, reasons={"host_load1": "failed: cannot be parsed"}))
    missed = composed(state).absent
    state.take(live(name, 3, host_load1=1.0))

    assert missed == ("host_load1: failed: cannot be parsed",)
    assert composed(state).absent == ()


def test_a_silent_node_says_so_and_is_the_worst() -> None:
    clock = Clock()
    state = watched(3, clock=clock, busy=lambda number: 0.9 - number / 10)
    clock.now = 40.0
    for name in state.nodes[:2]:
        state.take(live(name, 2))

    (table,) = composed(state).tables

    assert table.rows[0].cells[0].text == f"{state.nodes[2]} (silent 40.0 s)"
    assert [line[:2] for line in drawn(composed(state), 80) if "hospital-" in line] == ["✕ ", "◐ ", "◐ "]


def test_every_gpu_has_a_row() -> None:
    state = WatchState(Clock())
    values: dict[str, float | None] = {}
    for gpu, celsius in (("10", 85.0), ("2", 40.0), ("0", 40.0)):
        values |= {
            f'gpu_utilization_ratio{{gpu="{gpu}"}}': 0.5,
            f'gpu_memory_used_bytes{{gpu="{gpu}"}}': 70 * GIB,
            f'gpu_memory_total_bytes{{gpu="{gpu}"}}': 80 * GIB,
            f'gpu_power_watts{{gpu="{gpu}"}}': 312.5,
            f'gpu_temperature_celsius{{gpu="{gpu}"}}': celsius,
        }
    state.take(labelled(live("north", 0), values))

    (table,) = [table for table in composed(state, width=120).tables if table.title == "GPUS"]

    assert [row.cells[1].text for row in table.rows] == ["10", "0", "2"]
    assert [cell.text for cell in table.rows[0].cells] == [
        "north", "10", "━━━───  50 %", " " * 9 + "▄", "70.0 GiB", "312 W", "85 °C",
    ]  # fmt: skip


def test_jobs_have_a_group_of_their_own_and_hosts_tell_their_power() -> None:
    state = WatchState(Clock())
    for seq in range(2):
        state.take(labelled(live("north", seq), {'node_energy_joules_total{method="components"}': 250.0 * seq}))
        job: dict[str, float | None] = {
            "job_cpus_busy": 3.25,
            "job_memory_rss_bytes": 2 * GIB,
            "job_energy_joules_total": 100.0 * seq,
        }
        state.take(labelled(live("north", seq, stream="job-42"), job))

    tables = {table.title: table for table in composed(state, width=120).tables}

    assert [cell.text for cell in tables["JOBS"].rows[0].cells] == [
        "north", "42", "3.25", " " * 9 + "▇", "2.0 GiB", "100 W",
    ]  # fmt: skip
    assert tables["HOSTS"].headers == ("node", "power")
    assert [cell.text for cell in tables["HOSTS"].rows[0].cells] == ["north", "250 W"]


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        ("loss", {"": []}),
        ("a" * 256, {',job="site-in-the-north"': ["site-in-the-north"]}),
        ("loss", {',job="1"': ["1"], ',job="2"': ["2"]}),
    ],
)
def test_values_that_programs_report_are_shown_by_name_and_job(name: str, jobs: dict[str, list[str]]) -> None:
    state = WatchState(Clock())
    told: dict[str, float | None] = {
        f'user_{what}{{name="{name}"{job}}}': value for job in jobs for what, value in (("value", 0.25), ("step", 7.0))
    }
    state.take(labelled(live("north", 0, stream="user"), told))

    screen = composed(state, width=80)

    assert [[cell.text for cell in row.cells] for row in screen.tables[0].rows] == [
        ["north", name, *job, "0.25", "7", " " * 9 + "▇"] for job in jobs.values()
    ]
    assert max(map(len, text_screen(screen, width=80).splitlines())) <= 80


def test_a_job_is_shown_until_it_was_silent_for_three_intervals_of_its_node() -> None:
    state = WatchState(Clock())
    shown = []
    for node, pace_s in (("quick", 1.0), ("slow", 60.0)):
        state.take(live(node, 0, stream=f"job-{node}", mono=0.0, job_memory_rss_bytes=1.0))
        for mono in (0.0, 60.0, 240.0):
            state.take(live(node, int(mono / pace_s), mono=mono, agent_interval_seconds=pace_s))
            shown += [(mono, stream) for _, stream, _ in state.streams("job-")]

    assert shown == [(0.0, "job-quick"), (0.0, "job-slow"), (60.0, "job-slow")]


def test_a_sparkline_shows_the_last_minute_and_is_blank_where_nothing_was_measured() -> None:
    state = WatchState(Clock())
    for seq in (*range(30), *range(36, 72)):
        state.take(live("north", seq, host_cpu_busy_ratio=0.05 if seq < 60 else 1.0))
    table = GROUPS["host"].table(state)

    (row,) = table.rows

    assert row.cells[table.headers.index("last minute")].text == "▁▁▁ ▁▁▁▁▇▇"


def test_rows_have_a_sign_that_needs_no_colour_and_ids_of_runs_are_short() -> None:
    state = watched(2, busy=lambda number: 0.99 if number else 0.1)
    job = "0190b5f0-7a3c-7cc0-8000-0123456789ab"
    state.take(live(state.nodes[0], 0, stream=f"job-{job}", job_cpus_busy=1.0))
    screen = composed(state)

    plain, coloured = text_screen(screen, width=80), text_screen(screen, width=80, colours=True, keys="q quit")

    lines = plain.splitlines()
    assert [line[:2] for line in lines if "hospital-" in line] == ["◐ ", "● ", "● "]
    assert "0190b5f0-7a3c " in plain
    assert job not in plain
    assert "\x1b" not in plain
    assert "\x1b[1;31m◐ hospital" not in coloured  # the cell that is bad has the colour
    assert "\x1b[1;31m━━━━━━  99 %\x1b[0m" in coloured
    assert coloured.splitlines()[-1].endswith("q quit\x1b[0m")


def test_refusals_and_a_chosen_group_without_values_are_shown_where_absences_are_not() -> None:
    state = watched(1)
    (name,) = state.nodes
    capabilities = {name: said(name, gpu_power_watts="not found: libnvidia-ml.so.1")}

    screen = composed(state, capabilities=capabilities, refusals={"east": "does not obey r"}, absences=False)

    assert screen.absent == ("east: does not obey r",)
    state = WatchState(Clock())
    state.take(live(name))
    for group, said_of in ((GROUPS["gpu"], "gpu"), (CHOSEN, "these metrics")):
        chosen = compose(state, [group], capabilities={}, refusals={}, width=80, height=None, absences=False)
        assert (chosen.tables, chosen.absent) == ((), (f"{said_of}: no node reports any",))


def test_metrics_chosen_by_name_are_rows_with_their_value_and_growth() -> None:
    state, sda = WatchState(Clock()), 'host_disk_read_bytes_total{device="sda"}'
    for seq in range(2):
        state.take(labelled(live("north", seq), {"host_load5": 1.5, sda: seq * 2.0**30}))
        state.take(live("north", seq, stream="job-7", job_cpus_busy=2.0))

    wide, narrow = (
        drawn(compose(state, [CHOSEN], capabilities={}, refusals={}, width=width, height=24), width)
        for width in (80, 50)
    )

    assert [line.split() for line in wide[3:6]] == [
        ["●", "north", sda, "1.0", "GiB", "1.0", "GiB/s"],
        ["●", "north", "host_load5", "1.50", "-"],
        ["●", "north", "job_cpus_busy", "of", "job-7", "2", "-"],
    ]
    assert max(map(len, narrow)) <= 50
    assert narrow[3].endswith("1.0 GiB  1.0 GiB/s")
