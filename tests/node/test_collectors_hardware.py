"""What a machine is made of, over trees of files and on this machine."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import split_series
from fedmon.common.metrics.table import METRICS
from fedmon.node.collectors.base import THIS_MACHINE, Roots
from fedmon.node.collectors.hardware import HardwareCollector, hardware
from tests.support.machine_tree import machine_tree, write_tree

EPYC = (
    "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\nphysical id\t: 0\ncore id\t: 0\nflags\t: fpu "
    "cx16 cx8 mmx fxsr sse sse2 pni ssse3 sse4_1 sse4_2 sse4a popcnt lm lahf_lm abm avx avx2 bmi1 bmi2 f16c fma movbe "
    "xsave xsavec xsaveopt aes pclmulqdq fsgsbase rdseed rdrand adx clflushopt clzero prefetchw clwb hypervisor"
)
GRAVITON = (
    "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp "
    "cpuid asimdrdm lrcpc dcpop asimddp ssbs\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n"
)


def cpuinfo_of(tmp_path: Path, text: str) -> Mapping[str, Any]:
    proc = write_tree(tmp_path / "proc", {"cpuinfo": f"{text}\n\n"})
    return hardware(Roots(proc=proc, sys=tmp_path / "sys", cgroup=tmp_path))


def test_a_whole_machine_is_described(tmp_path: Path) -> None:
    found = hardware(machine_tree(tmp_path))

    assert (found["sockets"], found["cores"], found["threads"]) == (2, 4, 4)
    assert (found["vendor"], found["model"]) == ("GenuineIntel", "Intel(R) Xeon(R) Gold 6148")
    assert (found["architecture"], found["microarchitecture"]) == ("x86_64", "skylake_avx512")
    assert (found["memory_bytes"], found["swap_bytes"]) == (65_536_000 * 1024, 8_000_000 * 1024)
    assert found["numa"] == [0, 1]
    assert found["disks"] == [
        {"device": "nvme0n1", "size_bytes": 2_000_409_264 * 512},
        {"device": "sda", "size_bytes": 1_953_525_168 * 512},
    ]
    assert found["network"] == [
        {"interface": "eth0", "speed_bytes_per_second": 1_250_000_000},
        {"interface": "ib0", "speed_bytes_per_second": None},
    ]
    assert found["infiniband"] == [{"device": f"mlx5_{number}", "rates": ["100 Gb/sec (4X EDR)"]} for number in (0, 1)]
    assert (found["kernel"], found["virtualisation"]) == ("5.14.0-362.el9.x86_64", "none")
    assert found["simulated"]
    assert set(found["reasons"]) == {"os", "boot_id", "network.ib0.speed_bytes_per_second"}


def test_what_nothing_tells_is_none_with_a_reason_and_never_made_up(tmp_path: Path) -> None:
    found = hardware(Roots(proc=tmp_path, sys=tmp_path, cgroup=tmp_path))

    unknown = {name for name, value in found.items() if value is None}
    assert found["infiniband"] == []
    assert unknown == set(found["reasons"])
    assert unknown == set(found) - {"simulated", "infiniband", "reasons", "notes"}


def test_on_a_virtual_machine_the_guess_of_the_microarchitecture_is_marked(tmp_path: Path) -> None:
    virtual = cpuinfo_of(tmp_path / "virtual", EPYC)
    iron = cpuinfo_of(tmp_path / "iron", EPYC.replace(" hypervisor", ""))

    assert virtual["vendor"] == "AuthenticAMD"
    assert virtual["microarchitecture"] == iron["microarchitecture"]
    assert str(virtual["microarchitecture"]).startswith(("zen", "x86_64_v3"))
    assert "virtual machine" in virtual["notes"]["microarchitecture"]
    assert "virtual machine" not in iron["notes"]["microarchitecture"]
    assert (virtual["virtualisation"], iron["virtualisation"]) == ("virtual machine", "none")


def test_a_processor_of_arm_is_known_by_its_part(tmp_path: Path) -> None:
    found = cpuinfo_of(tmp_path, GRAVITON)

    assert found["architecture"] == "aarch64"
    assert found["microarchitecture"] == "neoverse_n1"
    assert found["vendor"] == "0x41"


def test_a_cpu_that_is_off_is_a_thread_without_a_core(tmp_path: Path) -> None:
    roots = machine_tree(tmp_path)
    shutil.rmtree(roots.sys / "devices/system/cpu/cpu3/topology")

    assert [hardware(roots)[field] for field in ("sockets", "cores", "threads")] == [2, 3, 4]


def test_this_machine_is_described_as_python_knows_it() -> None:
    found = hardware(THIS_MACHINE)

    assert not found["simulated"]
    assert found["threads"] == os.cpu_count()
    assert found["kernel"] == platform.release()
    assert found["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert found["architecture"] == platform.machine()
    assert found["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_description_travels_as_the_labels_of_one_series(tmp_path: Path) -> None:
    collector = HardwareCollector(machine_tree(tmp_path))

    first, again = (collector.collect(Instant(t=0.0, mono=mono)).values for mono in (0.0, 60.0))

    (key,) = first
    name, labels = split_series(key)
    assert first == again == {key: 1}
    assert tuple(labels) == METRICS[name].labels
    assert labels["simulated"] == "true"
    assert labels["sockets"] == "2"
    assert labels["microarchitecture"] == "skylake_avx512"
