"""Temperatures, fans, frequencies, pressure and NUMA, over trees of files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Collector
from fedmon.node.collectors.frequency import FrequencyCollector
from fedmon.node.collectors.numa import NumaCollector
from fedmon.node.collectors.pressure import PressureCollector
from fedmon.node.collectors.temperature import MAX_SENSORS, TemperatureCollector
from tests.support.machine_tree import cpu_files, proc_files, sensor_files, write_tree

NOW = Instant(t=1_700_000_000.0, mono=1000.0)
HERTZ = os.sysconf("SC_CLK_TCK")


def values(collector: Collector) -> dict[str, float | None]:
    return dict(collector.collect(NOW).values)


def test_every_sensor_of_every_chip_is_read_under_the_names_of_its_driver(tmp_path: Path) -> None:
    collector = TemperatureCollector(sys=write_tree(tmp_path, sensor_files()))

    reading = collector.collect(NOW)

    assert reading.values == {
        'host_temperature_celsius{chip="coretemp-hwmon0",sensor="Package id 0"}': 55.0,
        'host_temperature_celsius{chip="coretemp-hwmon0",sensor="Core 0"}': 51.5,
        'host_temperature_celsius{chip="coretemp-hwmon1",sensor="Package id 1"}': 55.0,
        'host_temperature_celsius{chip="coretemp-hwmon1",sensor="Core 0"}': 51.5,
        'host_temperature_celsius{chip="nvme",sensor="Composite"}': 38.85,
        'host_temperature_celsius{chip="nct6775",sensor="temp1"}': -5.0,
        'host_temperature_celsius{chip="nct6775",sensor="temp2"}': None,
        'host_fan_rotation_hertz{chip="nct6775",sensor="fan1"}': 20.0,
    }
    broken = 'host_temperature_celsius{chip="nct6775",sensor="temp2"}'
    where = tmp_path / "class/hwmon/hwmon10/temp2_fault"
    assert reading.reasons == {broken: f"failed: {where} says that the sensor is broken"}
    assert collector.probe() == {
        "host_temperature_celsius": None,
        broken: reading.reasons[broken],
        "host_fan_rotation_hertz": None,
    }


def test_chips_of_one_name_are_told_apart_by_their_device_and_keep_what_they_were_called(tmp_path: Path) -> None:
    chips = write_tree(tmp_path, {"class/hwmon/hwmon0/name": "nvme\n", "class/hwmon/hwmon0/temp1_input": "30000\n"})
    collector = TemperatureCollector(sys=chips)
    alone = values(collector)
    write_tree(tmp_path, {"class/hwmon/hwmon1/name": "nvme\n", "class/hwmon/hwmon1/temp1_input": "31000\n"})
    (tmp_path / "devices/nvme1").mkdir(parents=True)
    (tmp_path / "class/hwmon/hwmon1/device").symlink_to(tmp_path / "devices/nvme1")

    both = values(collector)

    assert alone == {'host_temperature_celsius{chip="nvme",sensor="temp1"}': 30.0}
    assert both == alone | {'host_temperature_celsius{chip="nvme-nvme1",sensor="temp1"}': 31.0}


def test_sensors_of_an_old_driver_lie_in_the_folder_of_its_device(tmp_path: Path) -> None:
    files = {"class/hwmon/hwmon0/name": "k10temp\n", "class/hwmon/hwmon0/device/temp1_input": "42125\n"}

    found = values(TemperatureCollector(sys=write_tree(tmp_path, files)))

    assert found == {'host_temperature_celsius{chip="k10temp",sensor="temp1"}': 42.125}


def test_labels_that_a_chip_gives_twice_are_told_apart(tmp_path: Path) -> None:
    chip = "class/hwmon/hwmon0"
    files = {f"{chip}/name": "x\n"}
    for number in (1, 2):
        files |= {f"{chip}/temp{number}_label": "SYSTIN\n", f"{chip}/temp{number}_input": f"{number}000\n"}

    found = values(TemperatureCollector(sys=write_tree(tmp_path, files)))

    assert found == {
        'host_temperature_celsius{chip="x",sensor="SYSTIN temp1"}': 1.0,
        'host_temperature_celsius{chip="x",sensor="SYSTIN temp2"}': 2.0,
    }


def test_a_chip_that_is_pulled_out_is_told_once_and_the_others_go_on(tmp_path: Path) -> None:
    collector = TemperatureCollector(sys=write_tree(tmp_path, sensor_files()))
    before = values(collector)
    shutil.rmtree(tmp_path / "class/hwmon/hwmon2")

    leaving, after = collector.collect(NOW), values(collector)

    gone = 'host_temperature_celsius{chip="nvme",sensor="Composite"}'
    assert leaving.values == before | {gone: None}
    assert leaving.reasons[gone] == f"not found: {tmp_path / 'class/hwmon/hwmon2/temp1_input'}"
    assert after == {key: value for key, value in before.items() if key != gone}


def test_thermal_zones_stand_in_only_where_no_chip_has_a_temperature(tmp_path: Path) -> None:
    zones = {
        "class/thermal/thermal_zone0/type": "cpu-thermal\n", "class/thermal/thermal_zone0/temp": "48312\n",
        "class/thermal/thermal_zone1/type": "gpu-thermal\n", "class/thermal/thermal_zone1/temp": "N/A\n",
        "class/thermal/cooling_device0/type": "Fan\n",
    }  # fmt: skip
    alone = TemperatureCollector(sys=write_tree(tmp_path / "a", zones))
    beside = TemperatureCollector(sys=write_tree(tmp_path / "b", zones | sensor_files()))

    found, chips = alone.collect(NOW), values(beside)

    assert found.values == {
        'host_temperature_celsius{chip="cpu-thermal",sensor="thermal_zone0"}': 48.312,
        'host_temperature_celsius{chip="gpu-thermal",sensor="thermal_zone1"}': None,
    }
    assert all(reason.startswith("failed: ") for reason in found.reasons.values())
    assert not any("thermal_zone" in key for key in chips)


@pytest.mark.parametrize("impossible", ["-300000", "5000000", "nan", "", "1e5", "99999999999999999999999999"])
def test_a_temperature_that_cannot_be_is_none(tmp_path: Path, impossible: str) -> None:
    files = {"class/hwmon/hwmon0/name": "x", "class/hwmon/hwmon0/temp1_input": impossible}

    reading = TemperatureCollector(sys=write_tree(tmp_path, files)).collect(NOW)

    assert list(reading.values.values()) == [None]
    assert next(iter(reading.reasons.values())).startswith("failed: ")


def test_a_machine_without_sensors_says_so(tmp_path: Path) -> None:
    collector = TemperatureCollector(sys=tmp_path)

    assert values(collector) == {}
    assert collector.probe() == dict.fromkeys(
        ("host_temperature_celsius", "host_fan_rotation_hertz"), f"not found: {tmp_path / 'class/hwmon'}"
    )


def test_the_number_of_sensors_is_bounded(tmp_path: Path) -> None:
    files = {f"class/hwmon/hwmon0/temp{number}_input": "1000\n" for number in range(1, MAX_SENSORS + 50)}

    assert len(values(TemperatureCollector(sys=write_tree(tmp_path, files)))) == MAX_SENSORS


def test_the_frequency_is_that_of_cpufreq_in_hertz(tmp_path: Path) -> None:
    sys = write_tree(tmp_path, cpu_files() | {"devices/system/cpu/cpu3/cpufreq/scaling_cur_freq": "1200000\n"})

    found = values(FrequencyCollector(proc=tmp_path, sys=sys, per_core=True))

    assert found == {
        "host_cpu_frequency_hertz": 2_100_000_000,
        "host_cpu_frequency_min_hertz": 1_200_000_000,
        "host_cpu_frequency_max_hertz": 2_400_000_000,
        'host_cpu_core_frequency_hertz{cpu="0"}': 2_400_000_000,
        'host_cpu_core_frequency_hertz{cpu="1"}': 2_400_000_000,
        'host_cpu_core_frequency_hertz{cpu="2"}': 2_400_000_000,
        'host_cpu_core_frequency_hertz{cpu="3"}': 1_200_000_000,
    }


def test_without_cpufreq_the_frequency_is_that_of_cpuinfo(tmp_path: Path) -> None:
    proc = write_tree(tmp_path, {"cpuinfo": proc_files()["cpuinfo"].replace("2400.000", "2445,5", 1)})
    collector = FrequencyCollector(proc=proc, sys=tmp_path, per_core=True)

    reading, report = collector.collect(NOW), collector.probe()

    assert reading.values["host_cpu_frequency_hertz"] == 2_400_000_000
    assert reading.values['host_cpu_core_frequency_hertz{cpu="0"}'] is None
    assert reading.reasons == {
        'host_cpu_core_frequency_hertz{cpu="0"}': f"failed: {tmp_path / 'cpuinfo'}: '2445,5' cannot be understood"
    }
    assert report["host_cpu_frequency_hertz"] is None


def test_a_machine_that_tells_no_frequency_says_so(tmp_path: Path) -> None:
    proc = write_tree(tmp_path, {"cpuinfo": "processor\t: 0\nBogoMIPS\t: 50.00\n"})
    collector = FrequencyCollector(proc=proc, sys=tmp_path)

    assert values(collector) == {}
    assert set(collector.probe().values()) == {
        f"unsupported: neither cpufreq nor {tmp_path / 'cpuinfo'} tells a frequency"
    }


def test_pressure_is_in_seconds_and_shares(tmp_path: Path) -> None:
    collector = PressureCollector(proc=write_tree(tmp_path, proc_files()))

    found = values(collector)

    assert len(found) == 12
    assert found['host_pressure_seconds_total{resource="io",stalled="some"}'] == 7.0
    assert found['host_pressure_ratio{resource="io",stalled="some"}'] == 0.015
    assert found['host_pressure_seconds_total{resource="memory",stalled="full"}'] == 0.003
    assert found['host_pressure_ratio{resource="cpu",stalled="full"}'] == 0.0025


def test_an_older_kernel_has_no_full_pressure_of_the_cpu_and_one_without_accounting_has_none(tmp_path: Path) -> None:
    some = "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"
    older = PressureCollector(proc=write_tree(tmp_path / "older", proc_files() | {"pressure/cpu": some}))
    without = PressureCollector(proc=tmp_path / "without")

    assert len(values(older)) == 10
    assert values(without) == {}
    assert set(without.probe().values()) == {f"not found: {tmp_path / 'without/pressure/cpu'}"}


def test_memory_and_pages_of_each_numa_node(tmp_path: Path) -> None:
    found = values(NumaCollector(sys=write_tree(tmp_path, cpu_files())))

    assert len(found) == 2 * 10
    assert found['host_numa_memory_total_bytes{node="0"}'] == 32_768_000 * 1024
    assert found['host_numa_memory_cached_bytes{node="1"}'] == 12_000_000 * 1024
    assert found['host_numa_hits_total{node="1"}'] == 1001
    assert found['host_numa_other_total{node="0"}'] == 120


def test_a_kernel_without_numa_says_so_and_a_node_that_goes_is_told_once(tmp_path: Path) -> None:
    none = NumaCollector(sys=tmp_path / "none")
    two = NumaCollector(sys=write_tree(tmp_path / "two", cpu_files()))
    before = values(two)
    shutil.rmtree(tmp_path / "two/devices/system/node/node1")

    leaving, after = two.collect(NOW), values(two)

    assert values(none) == {}
    assert {reason.partition(":")[0] for reason in none.probe().values() if reason} == {"unsupported"}
    assert len(leaving.reasons) == 10
    assert leaving.values.keys() == before.keys()
    assert len(after) == 10
