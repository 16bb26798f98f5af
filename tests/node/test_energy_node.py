from __future__ import annotations

from pathlib import Path

from fedmon.common.metrics.table import METRICS, metric_of
from fedmon.common.settings.values import EnergySettings
from fedmon.node.collectors.base import Lane
from fedmon.node.collectors.energy import EnergyMeter, energy_collectors
from fedmon.node.collectors.energy.sources import JOULES as HWMON_JOULES
from fedmon.node.collectors.energy.sources import RAPL, WATTS
from tests.support.energy_tree import RANGE_UJ, EnergyTree, at

FRANCE = EnergySettings(region="fr")


def series(metric: str, method: str) -> str:
    return f'{metric}{{method="{method}"}}'


JOULES = series("node_energy_joules_total", "components")


def two_sockets(tree: EnergyTree) -> EnergyTree:
    for socket in (0, 1):
        tree.zone(f"intel-rapl:{socket}", f"package-{socket}", 0)
        tree.zone(f"intel-rapl:{socket}:0", "core", 0)
        tree.zone(f"intel-rapl:{socket}:1", "dram", 0)
        tree.zone(f"intel-rapl-mmio:{socket}", f"package-{socket}", 0)
    return tree


def draw(tree: EnergyTree, joules: int) -> None:
    """Let every counter of two sockets show so many joules."""
    for folder in tree.powercap.iterdir():
        (folder / "energy_uj").write_text(str(joules * 1_000_000))


def test_packages_dram_and_gpus_are_added_up_and_nothing_twice(tmp_path: Path) -> None:
    tree, gpus = two_sockets(EnergyTree(tmp_path)), {"0": 1000.0, "1": 50.0}
    meter = EnergyMeter(tree.roots, EnergySettings(), gpu_energy=lambda: gpus)
    _, _, node, _ = energy_collectors(meter)
    node.collect(at(0))

    draw(tree, 10)
    gpus.update({"0": 1003.0, "1": 54.0})

    assert node.collect(at(1)).values == {JOULES: 47.0}
    assert (meter.method, meter.lane, node.lane) == ("components", Lane.FAST, Lane.FAST)
    assert node.probe() == {"node_energy_joules_total": None}


def test_the_counter_of_the_platform_goes_before_all_others(tmp_path: Path) -> None:
    tree = two_sockets(EnergyTree(tmp_path))
    tree.zone("intel-rapl:2", "psys", 0)
    tree.chip(0, "power_meter", power1_average=1)
    _, _, node, _ = energy_collectors(EnergyMeter(tree.roots, EnergySettings(), gpu_energy=lambda: {"0": 1.0}))
    node.collect(at(0))

    draw(tree, 25)

    assert node.collect(at(1)).values == {series("node_energy_joules_total", "psys"): 25.0}


def test_a_zone_that_is_missed_or_gone_makes_the_sum_a_gap_until_it_is_back(tmp_path: Path) -> None:
    tree = two_sockets(EnergyTree(tmp_path))
    _, _, node, emissions = energy_collectors(EnergyMeter(tree.roots, FRANCE))
    node.collect(at(0))
    draw(tree, 10)

    tree.shows("intel-rapl:1", "")
    missed, emitted = node.collect(at(1)), emissions.collect(at(1))
    tree.shows("intel-rapl:1", 10_000_000)
    counted = node.collect(at(2))
    (tree.powercap / "intel-rapl:1").rename(tmp_path / "unplugged")
    gone = [node.collect(at(3)), node.collect(at(4))]
    (tmp_path / "unplugged").rename(tree.powercap / "intel-rapl:1")
    back, after = node.collect(at(5)), node.collect(at(6))

    assert [reading.values for reading in (missed, *gone, back)] == [{JOULES: None}] * 4
    assert missed.reasons[JOULES].startswith("failed: ")
    assert len(emitted.reasons) == 2
    assert set(emitted.reasons) == {key for key, value in emitted.values.items() if value is None}
    assert {reading.reasons[JOULES][:10] for reading in gone} == {"not found:"}
    assert "could not be read before" in back.reasons[JOULES]
    assert counted.values == after.values == {JOULES: 40.0}


def test_a_gpu_that_falls_off_is_missed_once_and_continues_where_it_comes_back(tmp_path: Path) -> None:
    tree, gpus = two_sockets(EnergyTree(tmp_path)), {"0": 100.0}
    _, _, node, _ = energy_collectors(EnergyMeter(tree.roots, EnergySettings(), gpu_energy=lambda: gpus))
    node.collect(at(0))

    gpus.clear()
    fallen, without = node.collect(at(1)), node.collect(at(2))
    gpus["0"] = 107.0
    back = node.collect(at(3))
    gpus["0"] = 5.0
    reset = node.collect(at(4))
    gpus["0"] = 6.0
    after = node.collect(at(5))

    assert fallen.values == {JOULES: None}
    assert "GPU 0 no longer gives energy" in fallen.reasons[JOULES]
    assert (without.values, back.values) == ({JOULES: 0.0}, {JOULES: 7.0})
    assert reset.values == {JOULES: None}
    assert after.values == {JOULES: 8.0}


def test_a_gap_lasts_as_long_as_nvml_does_not_answer_and_is_counted_afterwards(tmp_path: Path) -> None:
    tree, known = two_sockets(EnergyTree(tmp_path)), {"0": 100.0}
    told: dict[str, float] | None = None
    _, _, node, _ = energy_collectors(EnergyMeter(tree.roots, EnergySettings(), gpu_energy=lambda: told))

    starting = node.collect(at(0))
    told = known
    node.collect(at(1))
    told = None
    hanging = [node.collect(at(2)), node.collect(at(3))]
    told = {"0": 107.0}
    back = node.collect(at(4))

    assert starting.values == {JOULES: 0.0}
    assert hanging == [({JOULES: None}, {JOULES: "failed: NVML does not answer"})] * 2
    assert back.values == {JOULES: 7.0}


def test_gpus_alone_are_named_as_what_they_are(tmp_path: Path) -> None:
    tree, gpus = EnergyTree(tmp_path), dict[str, float]()
    meter = EnergyMeter(tree.roots, EnergySettings(), gpu_energy=lambda: gpus)
    _, _, node, _ = energy_collectors(meter)
    assert node.collect(at(-1)).values == {}  # NVML answers later

    gpus["0"] = 100.0
    node.collect(at(0))
    gpus["0"] = 140.0

    assert meter.method == "gpus"
    assert node.collect(at(1)).values == {series("node_energy_joules_total", "gpus"): 40.0}


def test_a_machine_that_counts_nothing_reports_nothing_and_says_why(tmp_path: Path) -> None:
    meter = EnergyMeter(EnergyTree(tmp_path).roots, FRANCE, gpu_energy=dict)
    found = energy_collectors(meter)

    assert [collector.collect(at(0)) for collector in found] == [({}, {})] * 4
    assert [collector.probe() for collector in found[:2]] == [
        {RAPL: "not found: the kernel offers no energy counter in class/powercap; virtual machines have none"},
        dict.fromkeys((WATTS, HWMON_JOULES), "not found: no chip in class/hwmon measures it"),
    ]
    assert found[2].probe() == {"node_energy_joules_total": meter.no_method}
    assert meter.no_method.startswith("not found: the kernel offers no energy counter")
    assert set(found[3].probe().values()) == {meter.no_method}


def test_each_series_is_in_the_table(tmp_path: Path) -> None:
    tree = two_sockets(EnergyTree(tmp_path))
    tree.chip(0, "one", power1_input=1, energy1_input=1)
    found = energy_collectors(EnergyMeter(tree.roots, FRANCE))

    keys = {key for collector in found for key in (*collector.collect(at(0)).values, *collector.probe())}

    assert len(keys) > 14
    assert [key for key in keys if metric_of(key) is None] == []


def test_kilowatt_hours_and_grams_follow_from_joules_factor_and_pue(tmp_path: Path) -> None:
    tree = EnergyTree(tmp_path)
    tree.zone("intel-rapl:0", "package-0", RANGE_UJ - 1_800_000_000)
    owner = EnergySettings(gco2e_per_kwh=250.0, factor_source="our supplier", factor_date="2024", pue=1.5)
    meter = EnergyMeter(tree.roots, owner)
    _, _, _, emissions = energy_collectors(meter)
    emissions.collect(at(0))

    tree.shows("intel-rapl:0", 1_800_000_000)
    reading = emissions.collect(at(10))

    assert reading.values == {
        series("node_energy_kilowatt_hours_total", "components"): 0.001,
        series("node_emissions_grams_total", "components"): 0.375,
        'node_emissions_factor_info{region="own",name="set by the owner",gco2e_per_kwh="250.0",date="2024",'
        'source="our supplier",table="settings",pue="1.5"}': 1,
    }
    assert emissions.probe()["node_emissions_factor_info"] is None
    assert tuple(meter.factor) == METRICS["node_emissions_factor_info"].labels


def test_without_a_region_nothing_is_emitted_and_the_reason_says_how_to_set_one(tmp_path: Path) -> None:
    tree = two_sockets(EnergyTree(tmp_path))
    meter = EnergyMeter(tree.roots, EnergySettings())
    _, _, _, emissions = energy_collectors(meter)

    assert list(emissions.collect(at(0)).values) == [series("node_energy_kilowatt_hours_total", "components")]
    assert emissions.probe()["node_energy_kilowatt_hours_total"] is None
    assert 'set [energy] region = "FR"' in (emissions.probe()["node_emissions_grams_total"] or "")
    assert meter.factor == {}


def test_all_collectors_of_a_tick_see_one_reading(tmp_path: Path) -> None:
    tree = two_sockets(EnergyTree(tmp_path))
    rapl, _, node, _ = energy_collectors(EnergyMeter(tree.roots, EnergySettings()))
    rapl.collect(at(0)), node.collect(at(0))
    draw(tree, 10)
    rapl.collect(at(1))

    draw(tree, 500)

    assert node.collect(at(1)).values == {JOULES: 40.0}
