"""A tree of files laid out like /proc and /sys of a machine with two sockets, sensors, NUMA and InfiniBand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedmon.node.collectors.base import Roots

FLAGS = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall "
    "nx lm pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand xsaveopt lahf_lm "
    "abm 3dnowprefetch fsgsbase bmi1 avx2 bmi2 rdseed adx clflushopt xsavec xgetbv1 clwb avx512f avx512bw avx512cd "
    "avx512dq avx512vl"
)
CPUS = 4
SOCKETS = 2


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below a folder; returns the folder."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def proc_files() -> dict[str, str]:
    """Return the files of /proc."""
    cores = "".join(f"cpu{cpu} 1000{cpu} 20 3000 400000 500 60 70 8 0 0\n" for cpu in range(CPUS))
    cpuinfo = "".join(
        f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel name\t: Intel(R) Xeon(R) Gold 6148\n"
        f"cpu MHz\t\t: 2400.000\nphysical id\t: {cpu // 2}\ncore id\t\t: {cpu % 2}\nflags\t\t: {FLAGS}\n\n"
        for cpu in range(CPUS)
    )
    pressure = (
        "some avg10=1.50 avg60=0.50 avg300=0.10 total=7000000\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=3000\n"
    )
    interfaces = "".join(
        f"{name:>6}: {1000 + step} 101 2 3 0 0 0 9 {2000 + step} 202 4 5 0 0 0 0\n"
        for step, name in enumerate(("lo", "eth0", "ib0"))
    )
    return {
        "stat": f"cpu  40006 80 12000 1600000 2000 240 280 32 0 0\n{cores}intr 9000 1 2 3\nctxt 800000\n"
        "btime 1700000000\nprocesses 7000\nprocs_running 3\nprocs_blocked 1\nsoftirq 60 1 2 3\n",
        "meminfo": "MemTotal:       65536000 kB\nMemFree:        10000000 kB\nMemAvailable:   40000000 kB\n"
        "Buffers:          200000 kB\nCached:         25000000 kB\nSwapCached:            7 kB\n"
        "SwapTotal:       8000000 kB\nSwapFree:        7000000 kB\nDirty:              1234 kB\n"
        "Shmem:            300000 kB\nShmemHugePages:        7 kB\nSlab:             900000 kB\n"
        "HugePages_Total:       0\nDirectMap4k:      123456 kB\n",
        "loadavg": "1.25 2.50 3.75 3/1200 34567\n",
        "uptime": "93784.25 180000.00\n",
        "vmstat": "nr_free_pages 2500000\npgfault 123456\npgmajfault 789\npswpin 11\npswpout 22\noom_kill 2\n"
        "nr_unstable 0\n",
        "diskstats": "   8       0 sda 5000 10 60000 70 8000 90 100000 110 0 12000 13000 0 0 0 0 0 0\n"
        "   8       1 sda1 4000 10 50000 60 7000 80 90000 100 0 11000 12000 0 0 0 0 0 0\n"
        " 259       0 nvme0n1 5001 10 60001 70 8001 90 100001 110 0 12001 13001 0 0 0 0 0 0\n",
        "net/dev": "Inter-|   Receive                            |  Transmit\n"
        " face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls "
        "carrier compressed\n"
        + interfaces,
        "self/mounts": "/dev/sda1 / ext4 rw 0 0\n",
        "cpuinfo": cpuinfo,
        "pressure/cpu": pressure,
        "pressure/memory": pressure,
        "pressure/io": pressure,
        "sys/kernel/osrelease": "5.14.0-362.el9.x86_64\n",
    }  # fmt: skip


def cpu_files() -> dict[str, str]:
    """Return the files of /sys about CPUs and NUMA nodes."""
    files = {"devices/system/cpu/online": "0-3\n"}
    for cpu in range(CPUS):
        folder, socket = f"devices/system/cpu/cpu{cpu}", cpu // 2
        files[f"{folder}/cpufreq/scaling_cur_freq"] = "2400000\n"
        files[f"{folder}/topology/physical_package_id"] = f"{socket}\n"
        files[f"{folder}/topology/core_id"] = f"{cpu % 2}\n"
    for node in range(SOCKETS):
        folder = f"devices/system/node/node{node}"
        files[f"{folder}/meminfo"] = (
            f"Node {node} MemTotal:       32768000 kB\nNode {node} MemFree:         5000000 kB\n"
            f"Node {node} MemUsed:        27768000 kB\nNode {node} FilePages:      12000000 kB\n"
        )
        files[f"{folder}/numastat"] = (
            f"numa_hit {1000 + node}\nnuma_miss 20\nnuma_foreign 30\ninterleave_hit 40\nlocal_node 900\n"
            "other_node 120\n"
        )
    return files


def sensor_files() -> dict[str, str]:
    """Return two chips of one name, a disk's, and one with a fan and a broken sensor."""
    files: dict[str, str] = {}
    for socket in range(SOCKETS):
        chip = f"class/hwmon/hwmon{socket}"
        files |= {
            f"{chip}/name": "coretemp\n",
            f"{chip}/temp1_label": f"Package id {socket}\n", f"{chip}/temp1_input": "55000\n",
            f"{chip}/temp2_label": "Core 0\n", f"{chip}/temp2_input": "51500\n",
        }  # fmt: skip
    files |= {
        "class/hwmon/hwmon2/name": "nvme\n", "class/hwmon/hwmon2/temp1_label": "Composite\n",
        "class/hwmon/hwmon2/temp1_input": "38850\n",
        "class/hwmon/hwmon10/name": "nct6775\n", "class/hwmon/hwmon10/temp1_input": "-5000\n",
        "class/hwmon/hwmon10/temp2_input": "127000\n", "class/hwmon/hwmon10/temp2_fault": "1\n",
        "class/hwmon/hwmon10/fan1_input": "1200\n",
    }  # fmt: skip
    return files


def port_files(device: str = "mlx5_0", port: int = 1, *, state: str = "4: ACTIVE") -> dict[str, str]:
    """Return one InfiniBand port of a present kernel, whose counters have 64 bits."""
    folder = f"class/infiniband/{device}/ports/{port}"
    counters = {
        "port_rcv_data": 2**40, "port_xmit_data": 250, "port_rcv_packets": 70, "port_xmit_packets": 80,
        "unicast_rcv_packets": 60, "unicast_xmit_packets": 75, "multicast_rcv_packets": 10, "multicast_xmit_packets": 5,
        "symbol_error": 1, "link_downed": 2, "port_rcv_errors": 3, "port_xmit_discards": 4, "port_xmit_wait": 5,
    }  # fmt: skip
    files = {f"{folder}/counters/{name}": f"{value}\n" for name, value in counters.items()}
    return files | {
        f"{folder}/state": f"{state}\n",
        f"{folder}/rate": "100 Gb/sec (4X EDR)\n",
        f"{folder}/link_layer": "InfiniBand\n",
    }


def device_files() -> dict[str, str]:
    """Return disks and interfaces."""
    return {
        "block/sda/size": "1953525168\n", "block/nvme0n1/size": "2000409264\n", "block/loop0/size": "0\n",
        "class/net/eth0/speed": "10000\n", "class/net/lo/speed": "0\n", "class/net/ib0/speed": "-1\n",
    }  # fmt: skip


def machine_tree(root: Path) -> Roots:
    """Write the whole machine below a folder, and return its roots."""
    sys = cpu_files() | sensor_files() | port_files() | port_files("mlx5_1") | device_files()
    return Roots(
        proc=write_tree(root / "proc", proc_files()),
        sys=write_tree(root / "sys", sys),
        cgroup=write_tree(root / "cgroup", {"cgroup.controllers": ""}),
    )
