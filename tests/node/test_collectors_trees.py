"""Collectors of the host over trees of files that stand in for other machines."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.agent import agent_collector
from fedmon.node.collectors.base import Collector, CollectorUnavailableError
from fedmon.node.collectors.cpu import MAX_BY_MODE, MAX_CORES, CpuCollector, FrequencyCollector, PerCoreCollector
from fedmon.node.collectors.kernel import MAX_DEVICES, NumaCollector, PressureCollector, proc_collectors
from fedmon.node.collectors.sensors import TemperatureCollector
from fedmon.node.measure.sampler import StreamReader
from tests.support.machine_tree import cpu_files, proc_files, sensor_files, write_tree

NOW = Instant(t=1_700_000_000.0, mono=1000.0)
HERTZ = os.sysconf("SC_CLK_TCK")

NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:    3193      29    0    0    0     0          0         0     3193      29    0    0    0     0       0       0
"""


def of_proc(name: str, root: Path) -> Collector:
    return next(collector for collector in proc_collectors(root, root) if collector.name == name)


def values(collector: Collector) -> dict[str, float | None]:
    return dict(collector.collect(NOW).values)


def devices(collector: Collector) -> list[str]:
    return list(dict.fromkeys(key.split('"')[1] for key in values(collector)))


def diskstats(*names: str) -> str:
    return "".join(f"   8       0 {name} 10 1 20 3 40 5 60 7 0 9000 11 0 0 0 0 0 0\n" for name in names)


def test_cpu_seconds_are_ticks_and_guests_are_counted_once(tmp_path: Path) -> None:
    line = f"cpu  {HERTZ} {2 * HERTZ} 3 4 5 6 7 8 900 1000\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    cpu = CpuCollector(proc=write_tree(tmp_path / "p", {"stat": line}), sys=tmp_path)

    values = cpu.collect(NOW).values

    assert values['host_cpu_seconds_total{mode="user"}'] == 1.0
    assert values['host_cpu_seconds_total{mode="nice"}'] == 2.0
    assert values['host_cpu_seconds_total{mode="steal"}'] == 8 / HERTZ
    assert len([key for key in values if key.startswith("host_cpu_seconds_total")]) == 8


def test_the_busy_share_needs_two_samples_and_leaves_idle_and_iowait_out(tmp_path: Path) -> None:
    proc = write_tree(tmp_path / "p", {"stat": "cpu  100 0 100 700 100 0 0 0 0 0\n"})
    cpu = CpuCollector(proc=proc, sys=tmp_path)

    first = cpu.collect(NOW)
    write_tree(proc, {"stat": "cpu  115 0 110 760 115 0 0 0 0 0\n"})
    second = cpu.collect(NOW)

    assert first.values["host_cpu_busy_ratio"] is None
    assert first.reasons["host_cpu_busy_ratio"] == "first sample"
    assert second.values["host_cpu_busy_ratio"] == 0.25
    assert "host_cpu_busy_ratio" not in second.reasons


@pytest.mark.parametrize(("online", "count"), [("0-3,8,10-11", 7), (",".join(map(str, range(0, 512, 2))), 256)])
def test_every_online_cpu_is_counted_also_where_each_second_one_is_off(tmp_path: Path, online: str, count: int) -> None:
    proc = write_tree(tmp_path / "p", {"stat": "cpu  100 0 100 700 100 0 0 0\n"})
    cpu = CpuCollector(proc=proc, sys=write_tree(tmp_path / "s", {"devices/system/cpu/online": f"{online}\n"}))

    assert values(cpu)["host_cpu_count"] == count


def test_counters_that_stand_still_or_go_back_give_no_busy_share(tmp_path: Path) -> None:
    proc = write_tree(tmp_path, {"stat": "cpu  100 0 100 700 100 0 0 0\n"})
    cpu = CpuCollector(proc=proc, sys=tmp_path)
    cpu.collect(NOW)

    still = cpu.collect(NOW)
    write_tree(proc, {"stat": "cpu  90 0 100 700 100 0 0 0\n"})
    back = cpu.collect(NOW)

    for reading in (still, back):
        assert reading.values["host_cpu_busy_ratio"] is None
        assert reading.reasons["host_cpu_busy_ratio"] == "failed: the CPU counters did not advance"


PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
READ: dict[str, dict[str, float]] = {
    "memory": {
        "host_memory_total_bytes": 65_536_000 * 1024,
        "host_memory_available_bytes": 40_000_000 * 1024,
        "host_memory_free_bytes": 10_000_000 * 1024,
        "host_memory_buffers_bytes": 200_000 * 1024,
        "host_memory_cached_bytes": 25_000_000 * 1024,
        "host_memory_dirty_bytes": 1234 * 1024,
        "host_memory_shared_bytes": 300_000 * 1024,
        "host_memory_slab_bytes": 900_000 * 1024,
        "host_memory_used_bytes": 25_536_000 * 1024,
        "host_swap_total_bytes": 8_000_000 * 1024,
        "host_swap_used_bytes": 1_000_000 * 1024,
    },
    "load": {
        "host_load1": 1.25,
        "host_load5": 2.5,
        "host_load15": 3.75,
        "host_threads": 1200,
        "host_threads_runnable": 3,
    },
    "uptime": {"host_uptime_seconds": 93784.25},
    "disk": {
        f'host_disk_{name}_total{{device="{device}"}}': value
        for device, step in (("sda", 0), ("nvme0n1", 1))
        for name, value in {
            "reads": 5000 + step,
            "read_bytes": (60_000 + step) * 512,
            "writes": 8000 + step,
            "written_bytes": (100_000 + step) * 512,
            "busy_seconds": (12_000 + step) / 1000,
        }.items()
    },
    "activity": {
        "host_context_switches_total": 800_000,
        "host_interrupts_total": 9000,
        "host_processes_started_total": 7000,
        "host_processes_running": 3,
        "host_processes_blocked": 1,
    },
    "paging": {
        "host_swap_in_bytes_total": 11 * PAGE_BYTES,
        "host_swap_out_bytes_total": 22 * PAGE_BYTES,
        "host_page_faults_total": 123_456,
        "host_page_faults_major_total": 789,
        "host_oom_kills_total": 2,
    },
}


@pytest.mark.parametrize("name", READ)
def test_what_proc_counts_is_given_in_base_units(tmp_path: Path, name: str) -> None:
    collector = of_proc(name, write_tree(tmp_path, proc_files()))

    assert values(collector) == READ[name]
    assert set(collector.probe().values()) == {None}


def test_a_line_that_the_kernel_lacks_is_absent_and_never_zero(tmp_path: Path) -> None:
    memory = of_proc("memory", write_tree(tmp_path, {"meminfo": "MemTotal: 1000 kB\nMemFree: 100 kB\n"}))

    values, report = memory.collect(NOW).values, memory.probe()

    assert values == {"host_memory_total_bytes": 1024000, "host_memory_free_bytes": 102400}
    assert (
        report["host_memory_available_bytes"] == f"unsupported: {tmp_path / 'meminfo'} of this kernel does not have it"
    )
    assert report["host_swap_used_bytes"] == f"unsupported: {tmp_path / 'meminfo'} of this kernel does not have it"
    assert report["host_memory_total_bytes"] is None


DISKS = (
    *("loop0", "loop7p1", "ram0", "zram0", "sr0", "fd0", "sda", "sda1", "vda", "vda15", "nvme0n1", "nvme0n1p1"),
    *("mmcblk0", "mmcblk0p2", "dm-0", "md0", "md127", "md127p1", "xvda1", "nbd0", "bcache0", "drbd1", "zd16", "zd16p1"),
)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        # xvda1 is a disk here: its parent xvda is not listed; dm-0 and arrays are on the other ones
        (DISKS, ["sda", "vda", "nvme0n1", "mmcblk0", "xvda1", "nbd0"]),
        (("loop0", "dm-0"), ["dm-0"]),
    ],
    ids=["whole disks", "a volume whose disks are hidden"],
)
def test_only_whole_disks_are_reported_and_what_lies_on_them_without_them(
    tmp_path: Path, listed: tuple[str, ...], expected: list[str]
) -> None:
    assert devices(of_proc("disk", write_tree(tmp_path, {"diskstats": diskstats(*listed)}))) == expected


CARD, ETHERNET, TUNNEL = {"device/uevent": ""}, {"type": "1\n"}, {"type": "65534\n"}
BRIDGE, VETH = ETHERNET | {"bridge/stp_state": ""}, ETHERNET | {"master/type": "1\n"}
ON_HYPER_V = CARD | {"master/device/uevent": ""}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (
            {
                "br-lan": CARD,
                "wg0": CARD,
                "bond0": {"lower_wg0/type": ""},
                "docker0": BRIDGE,
                "veth12ab": VETH,
                "ppp0": {},
            },
            ["br-lan", "wg0"],
        ),
        ({"ib0": CARD, "ib0.8001": {"type": "32\n"}, "team0": ETHERNET}, ["ib0", "ib0.8001"]),
        ({"eth0": CARD, "enP1s2": ON_HYPER_V}, ["eth0"]),
        ({"eth0": ETHERNET, "sit0": {"type": "776\n"}, "wg0": TUNNEL, "docker0": BRIDGE, "vethab": VETH}, ["eth0"]),
        ({"wg0": TUNNEL, "sit0": {"type": "776\n"}}, ["wg0", "sit0"]),
        ({"ib0": CARD, "ib1": CARD, "storage": {"type": "32\n", "lower_ib0/type": ""}}, ["ib0", "ib1"]),
        ({"eth0": ETHERNET, "veth12": ETHERNET, "cali34": ETHERNET, "gretap0": ETHERNET}, ["eth0"]),
        ({"eth0": VETH, "eth1": VETH, "bond0": ETHERNET | {"lower_eth0/type": ""}}, ["eth0", "eth1"]),
        ({"en0": {}, "ib0.8001": {}, "utun3": {}, "bridge0": {}, "en0.12": {}}, ["en0", "ib0.8001"]),
    ],
    ids=[
        "named like others",
        "partitions",
        "a virtual function",
        "a container",
        "a tunnel alone",
        "a bond of InfiniBand",
        "a container with containers",
        "a bond in a container",
        "no sysfs",
    ],
)
def test_traffic_that_leaves_the_host_is_counted_once(
    tmp_path: Path, listed: dict[str, dict[str, str]], expected: list[str]
) -> None:
    lines = "".join(f"{name}:1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n" for name in listed)
    files = {f"class/net/{name}/{file}": text for name, files in listed.items() for file, text in files.items()}
    network = of_proc("network", write_tree(tmp_path, {"net/dev": NET_DEV + lines, **files}))

    assert devices(network) == expected
    assert {key: value for key, value in values(network).items() if f'"{expected[0]}"' in key} == {
        f'host_network_{way}_{what}_total{{interface="{expected[0]}"}}': number
        for way, first in (("receive", 1), ("transmit", 9))
        for number, what in enumerate(("bytes", "packets", "errors", "dropped"), first)
    }


def test_a_disk_may_come_and_go(tmp_path: Path) -> None:
    disk = of_proc("disk", write_tree(tmp_path, {"diskstats": diskstats("sda", "sdb")}))
    both = disk.collect(NOW)
    write_tree(tmp_path, {"diskstats": diskstats("sda")})
    one = disk.collect(NOW)
    write_tree(tmp_path, {"diskstats": ""})
    none = disk.collect(NOW)

    assert [len(reading.values) for reading in (both, one, none)] == [10, 5, 0]
    assert both.reasons == one.reasons == none.reasons == {}
    assert set(disk.probe().values()) == {"not found: no disk is listed"}


def test_the_number_of_instances_is_bounded(tmp_path: Path) -> None:
    names = [f"dm-{number}" for number in range(500)]
    interfaces = "".join(f"  en{number}: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n" for number in range(500))
    proc = write_tree(tmp_path, {"diskstats": diskstats(*names), "net/dev": NET_DEV + interfaces})

    assert len(of_proc("disk", proc).collect(NOW).values) == MAX_DEVICES * 5
    assert len(of_proc("network", proc).collect(NOW).values) == MAX_DEVICES * 8


def test_the_agent_reports_its_own_memory_and_counts(tmp_path: Path) -> None:
    proc = write_tree(tmp_path, {"self/statm": "9000 2500 300 1 0 400 0\n"})
    agent = agent_collector(lambda: {"agent_ticks_missed_total": 3, "agent_collect_seconds": None}, proc=proc)

    reading = agent.collect(NOW)

    assert reading.values["agent_memory_rss_bytes"] == 2500 * os.sysconf("SC_PAGE_SIZE")
    assert reading.values["agent_ticks_missed_total"] == 3
    assert reading.reasons == {"agent_collect_seconds": "first sample"}
    assert set(agent.probe()) == set(reading.values)


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


def test_on_a_machine_with_many_cpus_only_their_busy_shares_fit(tmp_path: Path) -> None:
    lines = "".join(f"cpu{cpu} 1 2 3 4 5 6 7 8 0 0\n" for cpu in range(MAX_CORES + 10))
    collector = PerCoreCollector(proc=write_tree(tmp_path, {"stat": f"cpu  1 2 3 4 5 6 7 8 0 0\n{lines}"}))

    found, report = values(collector), collector.probe()

    assert len(found) == MAX_CORES
    assert report["host_cpu_core_busy_ratio"] is None
    assert report["host_cpu_core_seconds_total"] == (
        f"unsupported: modes of each CPU are given up to {MAX_BY_MODE} CPUs; more would not fit"
    )


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


def test_chips_of_one_name_are_told_apart_by_their_device(tmp_path: Path) -> None:
    for number in (0, 1):
        chip = f"class/hwmon/hwmon{number}"
        write_tree(tmp_path, {f"{chip}/name": "nvme\n", f"{chip}/temp1_input": f"3{number}000\n"})
    (tmp_path / "devices/nvme1").mkdir(parents=True)
    (tmp_path / "class/hwmon/hwmon1/device").symlink_to(tmp_path / "devices/nvme1")

    assert values(TemperatureCollector(sys=tmp_path)) == {
        'host_temperature_celsius{chip="nvme-hwmon0",sensor="temp1"}': 30.0,
        'host_temperature_celsius{chip="nvme-nvme1",sensor="temp1"}': 31.0,
    }


SENSORS: dict[str, tuple[dict[str, str], dict[str, float | None]]] = {
    "labels that are given twice": (
        {
            "temp1_label": "SYSTIN\n", "temp1_input": "1000\n",
            "temp2_label": "SYSTIN\n", "temp2_input": "2000\n",
        },
        {"SYSTIN temp1": 1.0, "SYSTIN temp2": 2.0},
    ),
    "files of an old driver, in the folder of the device": (
        {"device/temp1_label": "Core 0\n", "device/temp1_input": "1000\n"},
        {"Core 0": 1.0},
    ),
}  # fmt: skip
SENSORS |= {
    f"{impossible} that cannot be": ({"temp1_input": impossible}, {"temp1": None})
    for impossible in ("-273150", "-128000", "255000", "5000000")
}


@pytest.mark.parametrize("name", SENSORS)
def test_temperatures_of_one_chip(tmp_path: Path, name: str) -> None:
    files, expected = SENSORS[name]
    chip = {f"class/hwmon/hwmon0/{file}": text for file, text in {"name": "x\n", **files}.items()}

    reading = TemperatureCollector(sys=write_tree(tmp_path, chip)).collect(NOW)

    assert reading.values == {
        f'host_temperature_celsius{{chip="x",sensor="{sensor}"}}': value for sensor, value in expected.items()
    }
    assert len(reading.reasons) == list(expected.values()).count(None)
    assert all(reason.startswith("failed: ") for reason in reading.reasons.values())


def test_a_chip_that_is_pulled_out_is_none_with_the_reason_and_the_others_go_on(tmp_path: Path) -> None:
    collector = TemperatureCollector(sys=write_tree(tmp_path, sensor_files()))
    before = values(collector)
    shutil.rmtree(tmp_path / "class/hwmon/hwmon2")

    after = collector.collect(NOW)

    gone = 'host_temperature_celsius{chip="nvme",sensor="Composite"}'
    assert after.values == before | {gone: None}
    assert after.reasons[gone].startswith("not found: ")


def test_another_chip_under_the_same_link_is_not_taken_for_one_that_was_pulled_out(tmp_path: Path) -> None:
    chips = tmp_path / "class/hwmon"
    write_tree(tmp_path, {f"devices/{name}/hwmon0/{file}": text for name in ("old", "new")
                          for file, text in (("name", name), ("temp1_input", "1000\n"))})  # fmt: skip
    chips.mkdir(parents=True)
    (chips / "hwmon0").symlink_to(tmp_path / "devices/old/hwmon0")
    collector = TemperatureCollector(sys=tmp_path)
    before = values(collector)

    (chips / "hwmon0").unlink()
    (chips / "hwmon0").symlink_to(tmp_path / "devices/new/hwmon0")
    shutil.rmtree(tmp_path / "devices/old")

    assert before == {'host_temperature_celsius{chip="old",sensor="temp1"}': 1.0}
    assert values(collector) == dict.fromkeys(before)


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
    proc = write_tree(tmp_path, {"cpuinfo": proc_files()["cpuinfo"].replace("2400.000", "1200.5", 1)})
    found = values(FrequencyCollector(proc=proc, sys=tmp_path, per_core=True))

    assert found["host_cpu_frequency_max_hertz"] == 2_400_000_000
    assert found['host_cpu_core_frequency_hertz{cpu="0"}'] == 1_200_500_000


@pytest.mark.parametrize(("per_core", "series"), [(False, 3), (True, 5)])
def test_a_frequency_that_no_cpu_tells_is_missing_with_a_reason(tmp_path: Path, *, per_core: bool, series: int) -> None:
    files = {f"devices/system/cpu/cpu{number}/cpufreq/scaling_cur_freq": "<unknown>\n" for number in (0, 1)}

    reading = FrequencyCollector(proc=tmp_path, sys=write_tree(tmp_path, files), per_core=per_core).collect(NOW)

    assert reading.values == dict.fromkeys(reading.reasons)
    assert len(reading.values) == series


def test_pressure_is_in_seconds_and_shares(tmp_path: Path) -> None:
    collector = PressureCollector(proc=write_tree(tmp_path, proc_files()))

    found = values(collector)

    assert len(found) == 12
    assert found['host_pressure_seconds_total{resource="io",stalled="some"}'] == 7.0
    assert found['host_pressure_ratio{resource="io",stalled="some"}'] == 0.015
    assert found['host_pressure_seconds_total{resource="memory",stalled="full"}'] == 0.003
    assert found['host_pressure_ratio{resource="cpu",stalled="full"}'] == 0.0025


def test_an_older_kernel_has_no_full_pressure_of_the_cpu(tmp_path: Path) -> None:
    some = "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"

    assert len(values(PressureCollector(proc=write_tree(tmp_path, proc_files() | {"pressure/cpu": some})))) == 10


def test_memory_and_pages_of_each_numa_node(tmp_path: Path) -> None:
    found = values(NumaCollector(sys=write_tree(tmp_path, cpu_files())))

    assert len(found) == 2 * 10
    assert found['host_numa_memory_total_bytes{node="0"}'] == 32_768_000 * 1024
    assert found['host_numa_memory_cached_bytes{node="1"}'] == 12_000_000 * 1024
    assert found['host_numa_hits_total{node="1"}'] == 1001
    assert found['host_numa_other_total{node="0"}'] == 120


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        (lambda root: TemperatureCollector(sys=root), "not found: {}/class/hwmon"),
        (
            lambda root: FrequencyCollector(proc=root, sys=root),
            "unsupported: neither cpufreq nor {}/cpuinfo has a frequency",
        ),
        (lambda root: PressureCollector(proc=root), "not found: {}/pressure/cpu"),
        (lambda root: NumaCollector(sys=root), "not found: {}/devices/system/node"),
    ],
    ids=["sensors", "frequency", "pressure", "NUMA"],
)
def test_a_machine_that_lacks_a_source_says_so(
    tmp_path: Path, lacking: Callable[[Path], Collector], reason: str
) -> None:
    collector = lacking(write_tree(tmp_path, {"cpuinfo": "processor\t: 0\nBogoMIPS\t: 50.00\n"}))

    assert values(collector) == {}
    assert set(collector.probe().values()) == {reason.format(tmp_path)}


def test_a_file_that_cannot_be_parsed_costs_its_collector_alone_and_has_a_reason(tmp_path: Path) -> None:
    proc = write_tree(tmp_path, {**proc_files(), "meminfo": "MemTotal: what\n", "loadavg": ""})

    for name in ("memory", "load"):
        assert {(reason or "").partition(":")[0] for reason in of_proc(name, proc).probe().values()} == {"failed"}
        with pytest.raises(CollectorUnavailableError, match="failed: "):
            of_proc(name, proc).collect(NOW)
    assert values(of_proc("uptime", proc)) == {"host_uptime_seconds": 93784.25}


def test_a_file_that_is_not_there_gives_nothing_until_it_comes_and_the_report_follows(tmp_path: Path) -> None:
    reader = StreamReader([of_proc("load", tmp_path / "p")])
    reader.probe()
    none, report = reader.read(NOW).values, reader.capabilities()
    write_tree(tmp_path / "p", {"loadavg": "0.50 1.25 10.00 3/512 4242\n"})

    assert none == {}
    assert set(report.values()) == {f"not found: {tmp_path / 'p/loadavg'}"}
    assert reader.read(NOW).values["host_load1"] == 0.5
    assert set(reader.capabilities().values()) == {None}
