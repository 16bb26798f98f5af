from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.node.collectors.energy.counters import EnergyCounter, Part, SourceReader
from fedmon.node.collectors.energy.sources import RAPL, find_zones, rapl_collector
from tests.support.energy_tree import RANGE_UJ, EnergyTree, at


def rapl(tree: EnergyTree) -> SourceReader:
    return rapl_collector(tree.sys, max_watts=1000.0)


def zone(label: str) -> str:
    return f'{RAPL}{{zone="{label}"}}'


def test_every_zone_is_found_under_a_name_of_its_own_and_no_counter_twice(tmp_path: Path) -> None:
    tree = EnergyTree(tmp_path)
    (tree.powercap / "intel-rapl").mkdir(parents=True)
    (tree.powercap / "dtpm:0").mkdir()
    for socket in (0, 1, 10):
        tree.zone(f"intel-rapl:{socket}", f"package-{socket}", 0)
        tree.zone(f"intel-rapl:{socket}:0", "core", 0)
        tree.zone(f"intel-rapl:{socket}:1", "dram", 0)
        tree.zone(f"intel-rapl-mmio:{socket}", f"package-{socket}", 0)
        tree.zone(f"intel-rapl-mmio:{socket}:0", "dram", 0)
    tree.zone("intel-rapl:2", "psys", 0)
    tree.zone("intel-rapl:3", "psys-1", 0)
    tree.zone("other:0", "soc power", 0)
    tree.zone("other:1", "soc power", 0)
    tree.zone("other:1:0", "core", 0)

    zones = find_zones(tree.sys)

    assert [(found.name, found.part) for found in zones] == [
        ("package-0", Part.PACKAGE),
        ("package-0-core", Part.INSIDE),
        ("package-0-dram", Part.DRAM),
        ("package-1", Part.PACKAGE),
        ("package-1-core", Part.INSIDE),
        ("package-1-dram", Part.DRAM),
        ("psys", Part.PLATFORM),
        ("psys-1", Part.PLATFORM),
        ("package-10", Part.PACKAGE),
        ("package-10-core", Part.INSIDE),
        ("package-10-dram", Part.DRAM),
        ("soc power", Part.PACKAGE),
        ("soc power-1", Part.PACKAGE),
        ("soc power-1-core", Part.INSIDE),
    ]
    assert all("mmio" not in str(found.path) for found in zones)


def test_a_wrap_is_counted_once_and_each_zone_has_its_own_range(tmp_path: Path) -> None:
    tree = EnergyTree(tmp_path)
    tree.zone("intel-rapl:0", "package-0", RANGE_UJ - 3_000_000)
    tree.zone("intel-rapl:1", "package-1", 65_532_610_987 - 1_000_000, range_uj=65_532_610_987)
    collector = rapl(tree)
    collector.collect(at(0))

    tree.shows("intel-rapl:0", 2_000_000)
    tree.shows("intel-rapl:1", 500_000)
    values = collector.collect(at(1)).values

    assert values == {zone("package-0"): 5.0, zone("package-1"): 1.5}
    assert collector.collect(at(2)).values == values


READINGS: dict[str, tuple[int | str | None, list[tuple[int, int | str, float | str]]]] = {
    "from the first reading on": (RANGE_UJ, [(0, 7_000_000, 0.0), (1, 8_500_000, 1.5), (2, 8_500_000, 1.5)]),
    "an interval in which it may wrap twice": (
        RANGE_UJ,
        [
            (0, 0, 0.0),
            (262, 50_000_000_000, 50_000.0),
            (525, 60_000_000_000, "may have wrapped more than once in 263 s, which takes it 262 s at 1000 W"),
        ],
    ),
    "a jump that no machine can make": (
        RANGE_UJ,
        [(0, 0, 0.0), (1, 200_000_000_000, "went from 0 to 200000000000 uJ in 1.0 s; it was reset")],
    ),
    "garbage": (
        RANGE_UJ,
        [(0, 1_000_000, 0.0), (1, "", "failed: "), (2, "abc", "failed: "), (3, 4_000_000, 3.0)],
    ),
}
RESET: list[tuple[int, int | str, float | str]] = [
    (0, 100_000_000_000, 0.0),
    (1, 100_010_000_000, 10.0),
    (2, 4_000_000, "failed: the counter went from 100010000000 to 4000000 uJ"),
    (3, 6_000_000, 12.0),
]
READINGS |= {f"a reset with the range {range_uj}": (range_uj, RESET) for range_uj in (RANGE_UJ, None, "garbage", 0)}


@pytest.mark.parametrize("name", READINGS)
def test_a_counter_gives_joules_or_a_gap_with_its_reason_and_its_neighbour_goes_on(tmp_path: Path, name: str) -> None:
    range_uj, readings = READINGS[name]
    tree = EnergyTree(tmp_path)
    tree.zone("intel-rapl:0", "package-0", readings[0][1], range_uj=range_uj)
    tree.zone("intel-rapl:1", "package-1", 0, range_uj=None)
    collector = rapl(tree)

    for step, (mono, shown_uj, expected) in enumerate(readings):
        tree.shows("intel-rapl:0", shown_uj)
        tree.shows("intel-rapl:1", step * 1_000_000)
        values, reasons = collector.collect(at(mono))

        joules = None if isinstance(expected, str) else expected
        assert values == {zone("package-0"): joules, zone("package-1"): float(step)}
        assert set(reasons) == ({zone("package-0")} if joules is None else set())
        assert joules is not None or str(expected) in reasons[zone("package-0")]


def test_a_zone_that_is_gone_is_none_with_the_reason_and_continues_when_it_is_back(tmp_path: Path) -> None:
    tree = EnergyTree(tmp_path)
    tree.zone("intel-rapl:1", "package-1", 0)
    collector = rapl(tree)
    collector.collect(at(0))
    tree.shows("intel-rapl:1", 5_000_000)
    collector.collect(at(1))

    shutil.rmtree(tree.powercap / "intel-rapl:1")
    gone = collector.collect(at(2))
    tree.zone("intel-rapl:1", "package-1", 900_000_000)
    back = collector.collect(at(4))
    tree.shows("intel-rapl:1", 901_000_000)
    on = collector.collect(at(5))

    assert gone.values == back.values == {zone("package-1"): None}
    assert gone.reasons[zone("package-1")].startswith("not found: ")
    assert "could not be read before" in back.reasons[zone("package-1")]
    assert on.values == {zone("package-1"): 6.0}


def test_looking_what_can_be_measured_counts_nothing(tmp_path: Path) -> None:
    tree = EnergyTree(tmp_path)
    tree.zone("intel-rapl:0", "package-0", 5_000_000)
    tree.zone("intel-rapl:1", "package-1", "garbage")
    collector = rapl(tree)

    report = collector.probe()

    assert report[RAPL] is None
    assert (report[zone("package-1")] or "").startswith("failed: ")
    assert collector.collect(at(0)).values[zone("package-0")] == 0.0


@settings(max_examples=200)
@given(
    steps=st.lists(st.tuples(st.integers(0, 800_000_000), st.floats(1.0, 50.0)), min_size=1, max_size=30),
    start=st.integers(0, RANGE_UJ - 1),
)
def test_whatever_a_processor_draws_is_counted_exactly_across_wraps(steps: list[tuple[int, float]], start: int) -> None:
    counter = EnergyCounter(range_uj=RANGE_UJ, max_watts=1000.0)
    true_uj, mono = start, 0.0
    counter.add(start, mono)
    for drawn_uj, elapsed_s in steps:
        true_uj, mono = true_uj + drawn_uj, mono + elapsed_s
        assert counter.add(true_uj % RANGE_UJ, mono) == ""
    assert counter.total_uj == true_uj - start


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, RANGE_UJ), st.floats(-10.0, 700.0)), max_size=30))
def test_no_sequence_of_readings_makes_a_counter_fall_or_grow_by_more_than_can_be_drawn(
    readings: list[tuple[int, float]],
) -> None:
    counter = EnergyCounter(range_uj=RANGE_UJ, max_watts=1000.0, impossible_watts=10_000.0)
    mono = 0.0
    for raw_uj, elapsed_s in readings:
        before = counter.total_uj
        mono += elapsed_s
        reason = counter.add(raw_uj, mono)
        assert 0 <= counter.total_uj - before <= 10_000.0 * max(elapsed_s, 1.0) * 1e6
        assert not reason or counter.total_uj == before
