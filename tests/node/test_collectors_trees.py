"""Collectors over trees of files that stand in for other machines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.agent import AgentCollector
from fedmon.node.collectors.cpu import CpuCollector
from fedmon.node.collectors.disk import MAX_DISKS, DiskCollector
from fedmon.node.collectors.load import LoadCollector, UptimeCollector
from fedmon.node.collectors.memory import MemoryCollector
from fedmon.node.collectors.network import MAX_INTERFACES, NetworkCollector

NOW = Instant(t=1_700_000_000.0, mono=1000.0)
HERTZ = os.sysconf("SC_CLK_TCK")

NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:    3193      29    0    0    0     0          0         0     3193      29    0    0    0     0       0       0
"""


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def diskstats(*names: str) -> str:
    return "".join(f"   8       0 {name} 10 1 20 3 40 5 60 7 0 9000 11 0 0 0 0 0 0\n" for name in names)


def test_cpu_seconds_are_ticks_and_guests_are_counted_once(tmp_path: Path) -> None:
    line = f"cpu  {HERTZ} {2 * HERTZ} 3 4 5 6 7 8 900 1000\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    cpu = CpuCollector(proc=tree(tmp_path / "p", {"stat": line}), sys=tmp_path)

    values = cpu.collect(NOW).values

    assert values['host_cpu_seconds_total{mode="user"}'] == 1.0
    assert values['host_cpu_seconds_total{mode="nice"}'] == 2.0
    assert values['host_cpu_seconds_total{mode="steal"}'] == 8 / HERTZ
    assert len([key for key in values if key.startswith("host_cpu_seconds_total")]) == 8


def test_the_busy_share_needs_two_samples_and_leaves_idle_and_iowait_out(tmp_path: Path) -> None:
    proc = tree(tmp_path / "p", {"stat": "cpu  100 0 100 700 100 0 0 0 0 0\n"})
    cpu = CpuCollector(proc=proc, sys=tree(tmp_path / "s", {"devices/system/cpu/online": "0-3,8,10-11\n"}))

    first = cpu.collect(NOW)
    tree(proc, {"stat": "cpu  115 0 110 760 115 0 0 0 0 0\n"})
    second = cpu.collect(NOW)

    assert first.values["host_cpu_busy_ratio"] is None
    assert first.reasons == {"host_cpu_busy_ratio": "first sample"}
    assert second.values["host_cpu_busy_ratio"] == 0.25
    assert second.reasons == {}
    assert second.values["host_cpu_count"] == 7


def test_counters_that_stand_still_or_go_back_give_no_busy_share(tmp_path: Path) -> None:
    proc = tree(tmp_path, {"stat": "cpu  100 0 100 700 100 0 0 0\n"})
    cpu = CpuCollector(proc=proc, sys=tmp_path)
    cpu.collect(NOW)

    still = cpu.collect(NOW)
    tree(proc, {"stat": "cpu  90 0 100 700 100 0 0 0\n"})
    back = cpu.collect(NOW)

    for reading in (still, back):
        assert reading.values["host_cpu_busy_ratio"] is None
        assert reading.reasons["host_cpu_busy_ratio"] == "failed: the CPU counters did not advance"


def test_busy_time_that_goes_back_while_idle_time_goes_on_is_no_share_of_zero(tmp_path: Path) -> None:
    proc = tree(tmp_path, {"stat": "cpu  100 0 100 700 100 0 0 0\n"})
    cpu = CpuCollector(proc=proc, sys=tmp_path)
    cpu.collect(NOW)
    tree(proc, {"stat": "cpu  10 0 100 9000 100 0 0 0\n"})

    reading = cpu.collect(NOW)

    assert reading.values["host_cpu_busy_ratio"] is None
    assert reading.reasons["host_cpu_busy_ratio"] == "failed: the CPU's busy time went back"


def test_an_old_kernel_with_fewer_modes_still_gives_those_it_has(tmp_path: Path) -> None:
    cpu = CpuCollector(proc=tree(tmp_path, {"stat": "cpu  1 2 3 4\n"}), sys=tmp_path)

    values = cpu.collect(NOW).values

    assert [key for key in values if "mode" in key] == [
        f'host_cpu_seconds_total{{mode="{mode}"}}' for mode in ("user", "nice", "system", "idle")
    ]


@pytest.mark.parametrize("online", ["", "none", "0-", "0-x"])
def test_an_unreadable_list_of_cpus_costs_only_the_count(tmp_path: Path, online: str) -> None:
    sys = tree(tmp_path / "s", {"devices/system/cpu/online": online})
    cpu = CpuCollector(proc=tree(tmp_path / "p", {"stat": "cpu  1 2 3 4 5 6 7 8\n"}), sys=sys)

    reading = cpu.collect(NOW)

    assert reading.values["host_cpu_count"] is None
    assert reading.reasons["host_cpu_count"].startswith("failed: ")
    assert reading.values['host_cpu_seconds_total{mode="user"}'] == 1 / HERTZ
    assert cpu.probe()["host_cpu_count"] == reading.reasons["host_cpu_count"]


def test_memory_is_in_bytes_and_swap_in_use_is_computed(tmp_path: Path) -> None:
    meminfo = """\
MemTotal:        1000 kB
MemFree:          100 kB
MemAvailable:     600 kB
Buffers:           20 kB
Cached:           300 kB
SwapCached:         9 kB
SwapTotal:         50 kB
SwapFree:          30 kB
Dirty:              7 kB
Shmem:              8 kB
ShmemHugePages:   999 kB
Slab:              90 kB
"""
    memory = MemoryCollector(proc=tree(tmp_path, {"meminfo": meminfo}))

    assert memory.collect(NOW).values == {
        "host_memory_total_bytes": 1000 * 1024,
        "host_memory_available_bytes": 600 * 1024,
        "host_memory_free_bytes": 100 * 1024,
        "host_memory_buffers_bytes": 20 * 1024,
        "host_memory_cached_bytes": 300 * 1024,
        "host_memory_dirty_bytes": 7 * 1024,
        "host_memory_shared_bytes": 8 * 1024,
        "host_memory_slab_bytes": 90 * 1024,
        "host_memory_used_bytes": 400 * 1024,
        "host_swap_total_bytes": 50 * 1024,
        "host_swap_used_bytes": 20 * 1024,
    }
    assert set(memory.probe().values()) == {None}


def test_a_line_that_the_kernel_lacks_is_absent_and_never_zero(tmp_path: Path) -> None:
    memory = MemoryCollector(proc=tree(tmp_path, {"meminfo": "MemTotal: 1000 kB\nMemFree: 100 kB\n"}))

    values, report = memory.collect(NOW).values, memory.probe()

    assert values == {"host_memory_total_bytes": 1024000, "host_memory_free_bytes": 102400}
    assert report["host_memory_available_bytes"] == "unsupported: this kernel's meminfo does not tell"
    assert report["host_swap_used_bytes"] == "unsupported: this kernel's meminfo does not tell"
    assert report["host_memory_total_bytes"] is None


def test_load_and_uptime(tmp_path: Path) -> None:
    proc = tree(tmp_path, {"loadavg": "0.50 1.25 10.00 3/512 4242\n", "uptime": "93784.25 180000.00\n"})

    assert LoadCollector(proc=proc).collect(NOW).values == {
        "host_load1": 0.5,
        "host_load5": 1.25,
        "host_load15": 10.0,
        "host_threads": 512,
        "host_threads_runnable": 3,
    }
    assert UptimeCollector(proc=proc).collect(NOW).values == {"host_uptime_seconds": 93784.25}


def test_disk_counters_are_bytes_and_seconds(tmp_path: Path) -> None:
    disk = DiskCollector(proc=tree(tmp_path, {"diskstats": diskstats("sda")}))

    assert disk.collect(NOW).values == {
        'host_disk_reads_total{device="sda"}': 10,
        'host_disk_read_bytes_total{device="sda"}': 20 * 512,
        'host_disk_writes_total{device="sda"}': 40,
        'host_disk_written_bytes_total{device="sda"}': 60 * 512,
        'host_disk_busy_seconds_total{device="sda"}': 9.0,
    }


def test_only_whole_disks_are_reported(tmp_path: Path) -> None:
    names = (
        *("loop0", "loop7p1", "ram0", "zram0", "sr0", "fd0", "sda", "sda1", "vda", "vda15", "nvme0n1", "nvme0n1p1"),
        *("mmcblk0", "mmcblk0p2", "dm-0", "md0", "md127", "md127p1", "xvda1", "nbd0"),
    )
    disk = DiskCollector(proc=tree(tmp_path, {"diskstats": diskstats(*names)}))

    reported = [key.partition('"')[2].rstrip('"}') for key in disk.collect(NOW).values if "reads" in key]

    # xvda1 is a disk here: its parent xvda is not listed
    assert reported == ["sda", "vda", "nvme0n1", "mmcblk0", "dm-0", "md0", "md127", "xvda1", "nbd0"]


def test_a_disk_may_come_and_go(tmp_path: Path) -> None:
    disk = DiskCollector(proc=tree(tmp_path, {"diskstats": diskstats("sda", "sdb")}))
    both = disk.collect(NOW).values
    tree(tmp_path, {"diskstats": diskstats("sda")})
    leaving = disk.collect(NOW)
    one = disk.collect(NOW).values
    tree(tmp_path, {"diskstats": ""})
    disk.collect(NOW)
    none = disk.collect(NOW).values

    assert (len(both), len(one), len(none)) == (10, 5, 0)
    assert (
        {key for key, value in leaving.values.items() if value is None} == set(leaving.reasons) == set(both) - set(one)
    )
    assert set(leaving.reasons.values()) == {f"not found: sdb is no longer listed in {tmp_path / 'diskstats'}"}
    assert set(disk.probe().values()) == {"not found: no disk is listed"}


def test_the_number_of_instances_is_bounded(tmp_path: Path) -> None:
    names = [f"dm-{number}" for number in range(500)]
    interfaces = "".join(f"  en{number}: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n" for number in range(500))
    proc = tree(tmp_path, {"diskstats": diskstats(*names), "net/dev": NET_DEV + interfaces})

    assert len(DiskCollector(proc=proc).collect(NOW).values) == MAX_DISKS * 5
    assert len(NetworkCollector(proc=proc).collect(NOW).values) == MAX_INTERFACES * 8


def test_network_counters_are_those_of_interfaces_that_leave_the_host(tmp_path: Path) -> None:
    inside = ("veth12ab", "docker0", "br-0123456789ab", "virbr0", "cali9", "ifb0", "dummy0")
    lines = "".join(f"{name}: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n" for name in (*inside, "eth0", "br0", "wlan0"))
    network = NetworkCollector(proc=tree(tmp_path, {"net/dev": NET_DEV + lines}))

    values = network.collect(NOW).values

    assert len(values) == 3 * 8
    assert {key: value for key, value in values.items() if "eth0" in key} == {
        'host_network_receive_bytes_total{interface="eth0"}': 1,
        'host_network_receive_packets_total{interface="eth0"}': 2,
        'host_network_receive_errors_total{interface="eth0"}': 3,
        'host_network_receive_dropped_total{interface="eth0"}': 4,
        'host_network_transmit_bytes_total{interface="eth0"}': 9,
        'host_network_transmit_packets_total{interface="eth0"}': 10,
        'host_network_transmit_errors_total{interface="eth0"}': 11,
        'host_network_transmit_dropped_total{interface="eth0"}': 12,
    }


def test_numbers_glued_to_the_colon_are_read(tmp_path: Path) -> None:
    line = "enp3s0:1234567890123 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"
    network = NetworkCollector(proc=tree(tmp_path, {"net/dev": NET_DEV + line}))

    assert network.collect(NOW).values['host_network_receive_bytes_total{interface="enp3s0"}'] == 1234567890123


def test_the_agent_reports_its_own_memory_and_counts(tmp_path: Path) -> None:
    proc = tree(tmp_path, {"self/statm": "9000 2500 300 1 0 400 0\n"})
    agent = AgentCollector(proc=proc, counts=lambda: {"agent_ticks_missed_total": 3, "agent_collect_seconds": None})

    reading = agent.collect(NOW)

    assert reading.values["agent_memory_rss_bytes"] == 2500 * os.sysconf("SC_PAGE_SIZE")
    assert reading.values["agent_ticks_missed_total"] == 3
    assert reading.reasons == {"agent_collect_seconds": "first sample"}
    assert set(agent.probe()) == set(reading.values)
