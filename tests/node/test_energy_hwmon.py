from __future__ import annotations

from pathlib import Path

from fedmon.common.settings.values import EnergySettings
from fedmon.node.collectors.base import Lane
from fedmon.node.collectors.energy import EnergyMeter, energy_collectors
from fedmon.node.collectors.energy.counters import LONGEST_GAP_S
from fedmon.node.collectors.energy.sources import JOULES, WATTS, hwmon_collector
from tests.support.energy_tree import EnergyTree, at
from tests.support.machine_tree import write_tree

NODE = 'node_energy_joules_total{method="hwmon"}'
BOTH_KINDS: dict[str, int | str] = {
    "power1_input": 2_000_000, "power1_label": "System", "energy1_input": 1, "energy1_label": "System",
}  # fmt: skip


def watts(chip: str, sensor: str) -> str:
    return f'{WATTS}{{chip="{chip}",sensor="{sensor}"}}'


def meter_of_the_system(tree: EnergyTree, microwatts: int) -> Path:
    """Write the files that its driver keeps in the folder of the device on older kernels, and return that folder."""
    files = {"name": "power_meter\n", "power1_average": f"{microwatts}\n"}
    return write_tree(tree.sys / "class/hwmon/hwmon0/device", files)


def test_every_sensor_of_every_chip_is_reported_in_watts_and_joules(tmp_path: Path) -> None:
    tree = EnergyTree(tmp_path)
    meter_of_the_system(tree, 215_500_000)
    tree.chip(1, "amdgpu", power1_input=40_000_000, power1_average=9, power1_label="PPT")
    tree.chip(2, "amd_energy", energy1_input=7_000_000, energy1_label="Esocket0", energy12_input=1)
    megawatts = tree.chip(4, "rack_meter", energy1_input=0)
    tree.chip(3, "coretemp", temp1_input=40_000)
    tree.chip(5, "ibmpowernv", **BOTH_KINDS)
    collector = hwmon_collector(tree.sys, max_watts=1000.0)

    first = collector.collect(at(0))
    (tree.sys / "class/hwmon/hwmon2/energy1_input").write_text("9500000\n")
    (megawatts / "energy1_input").write_text("20000000000000\n")
    second = collector.collect(at(10))

    assert first.values == {
        watts("power_meter", "power1"): 215.5,
        watts("amdgpu", "PPT"): 40.0,
        watts("ibmpowernv", "System"): 2.0,
        f'{JOULES}{{chip="ibmpowernv",sensor="System"}}': 0.0,
        f'{JOULES}{{chip="amd_energy",sensor="Esocket0"}}': 0.0,
        f'{JOULES}{{chip="amd_energy",sensor="energy12"}}': 0.0,
        f'{JOULES}{{chip="rack_meter",sensor="energy1"}}': 0.0,
    }
    assert second.values[f'{JOULES}{{chip="amd_energy",sensor="Esocket0"}}'] == 2.5
    assert second.values[f'{JOULES}{{chip="rack_meter",sensor="energy1"}}'] == 2e7
    assert collector.lane is Lane.MEDIUM


def test_power_becomes_energy_by_trapezoids_where_there_are_no_counters(tmp_path: Path) -> None:
    tree = EnergyTree(tmp_path)
    chip = meter_of_the_system(tree, 100_000_000)
    tree.chip(1, "nvme", power1_input=5_000_000)
    tree.chip(2, "ina3221", power1_input=5_000_000)
    meter = EnergyMeter(tree.roots, EnergySettings())
    _, _, node, _ = energy_collectors(meter)

    first = node.collect(at(0))
    (chip / "power1_average").write_text("200000000")
    second = node.collect(at(10, t=-86_400.0))  # the wall clock steps back a day: only monotonic time counts
    (chip / "power1_average").write_text("garbage")
    missed = node.collect(at(20))
    (chip / "power1_average").write_text("300000000")
    again = node.collect(at(30))
    last = node.collect(at(40))
    far = node.collect(at(41 + LONGEST_GAP_S))

    assert (first.values, second.values) == ({NODE: 0.0}, {NODE: 1500.0})
    assert (missed.values, again.values) == ({NODE: None}, {NODE: None})
    assert missed.reasons[NODE].startswith("failed: ")
    assert "could not be read before" in again.reasons[NODE]
    assert last.values == {NODE: 4500.0}
    assert far.values == {NODE: None}
    assert "are 601 s apart" in far.reasons[NODE]
    assert (node.lane, meter.lane) == (Lane.MEDIUM, Lane.MEDIUM)


def test_several_sensors_are_not_added_up_unless_the_owner_names_them(tmp_path: Path) -> None:
    tree = EnergyTree(tmp_path)
    tree.chip(0, "ina3221", power1_input=1_000_000, power2_input=2_000_000, power3_input=3_000_000)
    tree.chip(1, "ibmpowernv", **BOTH_KINDS)
    _, _, unnamed, _ = energy_collectors(EnergyMeter(tree.roots, EnergySettings()))
    named = EnergySettings(node_power_sensors=("ina3221/power1", "ibmpowernv/System"))
    _, _, chosen, _ = energy_collectors(EnergyMeter(tree.roots, named))
    _, _, wrong, _ = energy_collectors(EnergyMeter(tree.roots, EnergySettings(node_power_sensors=("ina3221/power9",))))

    chosen.collect(at(0))

    assert unnamed.collect(at(0)).values == {}
    assert "several power sensors (ina3221/power1, " in (unnamed.probe()["node_energy_joules_total"] or "")
    assert chosen.collect(at(10)).values == {NODE: 30.0}
    said = wrong.probe()["node_energy_joules_total"] or ""
    assert "sensor ina3221/power9 of [energy] node_power_sensors not found; this machine has: ina3221/power1, " in said
