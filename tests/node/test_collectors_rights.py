"""What a node reads that does not run as root: a test drops its rights, so that the kernel itself refuses."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.metrics.series import metric_name
from fedmon.common.settings.values import EnergySettings
from fedmon.node.collectors.base import THIS_MACHINE, Roots
from fedmon.node.collectors.energy import EnergyMeter, energy_collectors
from fedmon.node.collectors.hardware import hardware
from fedmon.node.collectors.host import host_collectors
from fedmon.node.measure.sampler import StreamReader
from tests.support.energy_tree import EnergyTree, at
from tests.support.machine_tree import machine_tree
from tests.support.requirements import require
from tests.support.rights import as_nobody

CLOSED = {
    "proc/meminfo": "host_memory_total_bytes",
    "proc/diskstats": "host_disk_reads_total",
    "proc/pressure/io": 'host_pressure_ratio{resource="io",stalled="some"}',
    "proc/vmstat": "host_oom_kills_total",
    "sys/devices/system/cpu/online": "host_cpu_count",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": 'host_cpu_core_frequency_hertz{cpu="1"}',
    "sys/devices/system/node/node1/numastat": 'host_numa_hits_total{node="1"}',
    "sys/class/hwmon/hwmon2/temp1_input": 'host_temperature_celsius{chip="nvme",sensor="Composite"}',
    "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": (
        'infiniband_receive_bytes_total{device="mlx5_0",port="1"}'
    ),
}
FOLDERS = {
    "sys/class/infiniband": "infiniband_receive_bytes_total",
    "sys/class/hwmon": "host_temperature_celsius",
    "sys/devices/system/node": "host_numa_hits_total",
}


@pytest.fixture
def machine() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        Path(name).chmod(0o755)
        EnergyTree(Path(name)).zone("intel-rapl:0", "package-0", 5_000_000)
        machine_tree(Path(name))
        yield Path(name)


def read(roots: Roots) -> dict[str, Any]:
    host = [one for one in host_collectors(roots=roots, per_core=True) if one.name != "agent"]
    energy = energy_collectors(EnergyMeter(roots, EnergySettings())) if roots.simulated else ()
    reader = StreamReader([*host, *energy])
    reader.probe()
    sample = reader.read(at(1000))
    reader.close()
    found = {"values": sample.values, "reasons": sample.reasons, "report": reader.capabilities()}
    return found | {"hardware": hardware.__wrapped__(roots)}  # which remembers nothing


def read_as_nobody(roots: Roots) -> dict[str, Any]:
    read(THIS_MACHINE)  # loads modules and tables: this project may lie where nobody may look
    with as_nobody():
        return read(roots)


def test_a_file_that_is_closed_to_us_costs_only_what_it_holds(machine: Path) -> None:
    for name in CLOSED:
        (machine / name).chmod(0)
    zone = machine / "sys/class/powercap/intel-rapl:0/energy_uj"
    zone.chmod(0)

    found = read_as_nobody(Roots(proc=machine / "proc", sys=machine / "sys"))

    for name, key in CLOSED.items():
        reason = found["reasons"].get(key) or found["report"].get(key) or found["report"][metric_name(key)]
        assert found["values"].get(key) is None, key
        assert reason == f"no permission: {machine / name}"
    assert found["values"]["host_load1"] == 1.25
    assert found["values"]['host_cpu_core_frequency_hertz{cpu="0"}'] == 2_400_000_000
    assert found["values"]['host_numa_memory_total_bytes{node="1"}'] == 32_768_000 * 1024
    assert found["values"]['host_pressure_ratio{resource="memory",stalled="some"}'] is not None
    assert found["values"]['infiniband_receive_bytes_total{device="mlx5_1",port="1"}'] == 4 * 2**40
    assert found["hardware"]["reasons"]["memory_bytes"] == f"no permission: {machine / 'proc/meminfo'}"
    assert found["hardware"]["sockets"] == 2
    joules = 'rapl_energy_joules_total{zone="package-0"}'
    assert found["values"][joules] is None
    assert found["reasons"][joules].startswith(f"no permission: {zone}: only root may read it")
    assert "udev" in found["reasons"][joules]
    assert found["report"][metric_name(joules)] == found["reasons"][joules]
    assert found["report"]["node_energy_joules_total"].startswith("no permission: ")
    assert not any(key.startswith("node_energy_joules_total") for key in found["values"])


def test_a_folder_that_is_closed_to_us_is_named(machine: Path) -> None:
    for name in FOLDERS:
        (machine / name).chmod(0)

    found = read_as_nobody(Roots(proc=machine / "proc", sys=machine / "sys"))

    for name, metric in FOLDERS.items():
        assert found["report"][metric] == f"no permission: {machine / name}"
        assert not any(metric_name(key) == metric and value is not None for key, value in found["values"].items())
    assert found["hardware"]["infiniband"] is None
    assert found["hardware"]["reasons"]["infiniband"] == f"no permission: {machine / 'sys/class/infiniband'}"


def test_without_any_rights_this_machine_is_measured_all_the_same() -> None:
    require(os.geteuid() == 0, "only root can drop its rights")

    found = read_as_nobody(THIS_MACHINE)

    refused = {key: reason for key, reason in found["reasons"].items() if "busy_ratio" not in key}
    assert refused == {}
    assert {"host_memory_total_bytes", "host_load1", "host_uptime_seconds", "host_cpu_count"} <= found["values"].keys()
