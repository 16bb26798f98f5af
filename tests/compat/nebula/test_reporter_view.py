"""What NEBULA's reporter logged, from our metrics: its tags, and no value that nobody measured."""

from __future__ import annotations

from typing import Any

import pytest

from fedmon.common.metrics.table import metric_of
from fedmon.compat.nebula.reporter import FINISHED, SLOWLY_READ
from fedmon.compat.nebula.view import _KINDS
from tests.compat.nebula.reporters import HOST, Logger, Neighbours, one_by_one

SENT = 'host_network_transmit_bytes_total{interface="eth0"}'


def gpu(number: int, **missing: None) -> dict[str, float | None]:
    values = {
        "gpu_utilization_ratio": 0.5, "gpu_temperature_celsius": 60, "gpu_memory_used_bytes": 1024**3,
        "gpu_memory_total_bytes": 4 * 1024**3, "gpu_power_watts": 75.5, "gpu_fan_speed_ratio": 0.3,
    } | missing  # fmt: skip
    clocks = {f'gpu_clock_hertz{{gpu="{number}",clock="{clock}"}}': 1.2e9 for clock in ("sm", "memory")}
    return {f'{name}{{gpu="{number}"}}': value for name, value in values.items()} | clocks


def test_each_value_is_in_the_unit_of_its_tag() -> None:
    logger = Logger()
    later = HOST | {SENT: 5_000_000_000 + 3 * 1024**2}

    one_by_one([HOST, later], logger, cm=Neighbours("a:1", "b:2"))

    assert logger.logged[1] == {
        "W-CPU/CPU global (%)": 25.0,
        "W-CPU/CPU process (%)": 150.0,
        "W-CPU/CPU temperature (°)": 41.0,
        "Z-RAM/RAM global (%)": 25.0,
        "Z-RAM/RAM global (MB)": 2048.0,
        "Z-RAM/RAM process (%)": 12.5,
        "Z-RAM/RAM process (MB)": 1024.0,
        "Y-Disk/Disk (%)": 50.0,
        "X-Network/Network (MB sent)": 3.0,
        "X-Network/Network (MB received)": 0.0,
        "X-Network/Network (packets sent)": 0,
        "X-Network/Network (packets received)": 0,
        "X-Network/Connections": 2,
    }


def test_the_network_begins_at_0_and_the_old_names_hold_bytes_as_they_say() -> None:
    logger = Logger()

    one_by_one([HOST, HOST | {SENT: 5_000_000_999}], logger, cm=Neighbours("a:1"), generation="old")

    assert len(logger.logged[1]) == 13
    assert logger.of("X-Network/Network (bytes sent)") == [0, 999]
    assert logger.of("X-Network/Network (bytes received)") == [0, 0]
    assert logger.of("X-Network/Network (packets sent)") == [0, 0]


def test_a_gpu_gives_exactly_its_7_tags_in_a_report_of_its_own() -> None:
    logger = Logger()

    one_by_one([HOST | gpu(1) | gpu(0) | dict.fromkeys(gpu(2))], logger)

    assert logger.logged[1] == {
        "W-GPU/GPU0 (%)": 50.0, "W-GPU/GPU0 temperature (°)": 60, "W-GPU/GPU0 memory (%)": 25.0,
        "W-GPU/GPU0 power": 75.5, "W-GPU/GPU0 clocks": 1200.0, "W-GPU/GPU0 memory clocks": 1200.0,
        "W-GPU/GPU0 fan speed": 30.0,
    }  # fmt: skip
    assert [len(each) for each in logger.logged[1:]] == [7, 7]


@pytest.mark.parametrize(
    ("chips", "expected"),
    [
        ({}, None),
        ({("coretemp-0", "Core 0"): 50.0, ("coretemp-0", "Package id 0"): 47.0}, 47.0),
        ({("k10temp", "Tctl"): 65.0, ("nvme", "Composite"): 80.0}, 65.0),
        ({("cpu_thermal", "temp1"): 39.5}, 39.5),
        ({("nvme", "Composite"): 80.0}, None),
        ({("coretemp-0", "Package id 0"): None}, None),
        ({("coretemp-0", "Core 0"): 50.0, ("coretemp-0", "Core 1"): 55.0}, 55.0),
    ],
)
def test_weakness_10_an_unknown_temperature_is_absent_and_every_make_of_processor_is_known(
    chips: dict[Any, float | None], expected: float | None
) -> None:
    values = {f'host_temperature_celsius{{chip="{c}",sensor="{s}"}}': value for (c, s), value in chips.items()}
    logger = Logger()
    others = {key: value for key, value in HOST.items() if not key.startswith("host_temperature")}

    one_by_one([others | values], logger)

    assert logger.logged[0].get("W-CPU/CPU temperature (°)") == expected


def test_every_metric_that_the_tags_are_computed_from_is_in_the_table() -> None:
    named = {*HOST, *gpu(0), FINISHED, *SLOWLY_READ, *(f'{name}{{interface="a"}}' for name in _KINDS)}

    assert {name for name in named if metric_of(name) is None} == set()


def test_what_is_not_known_is_left_out_and_never_0() -> None:
    logger = Logger()

    one_by_one([dict.fromkeys(HOST), {}], logger)

    assert logger.logged == [{}, {}]


def test_weakness_07_traffic_never_falls_when_counters_restart_interfaces_go_or_a_reading_is_missed() -> None:
    logger, missed = Logger(), HOST | {SENT: None}
    restarted = HOST | {SENT: 1_000.0}
    gone = {key: value for key, value in HOST.items() if "eth0" not in key}
    other = gone | {SENT.replace("eth0", "wlan0"): 9e12}

    grown = [base | {SENT: begin + 2 * 1024**2} for base, begin in ((restarted, 1_000), (HOST, 5_000_000_000))]
    one_by_one([HOST, restarted, grown[0], gone, other, missed, HOST, missed, grown[1]], logger)

    sent = logger.of("X-Network/Network (MB sent)")
    assert sent == [0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 4.0]


def test_weakness_19_what_is_logged_says_when_where_and_in_what_unit() -> None:
    logger = Logger()

    ours = one_by_one([HOST, HOST | gpu(0)], logger)

    assert ours.counter == 2
    assert [(each.t, each.mono, each.node_id, each.seq) for each in logger.logged] == [
        (1.7e9, 100.0, "n", 0), (1.7e9 + 1, 101.0, "n", 1), (1.7e9 + 1, 101.0, "n", 2),
    ]  # fmt: skip
    assert all(unit for each in logger.logged for unit in each.units.values())
    assert logger.logged[0].units["Z-RAM/RAM process (MB)"] == "MiB"
    assert logger.logged[2].units["W-GPU/GPU0 power"] == "W"
