"""The tags under which NEBULA's reporter logs a machine, and their units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MIB = 1024**2
CPU_GLOBAL = "W-CPU/CPU global (%)"
CPU_PROCESS = "W-CPU/CPU process (%)"
CPU_TEMPERATURE = "W-CPU/CPU temperature (°)"
RAM_GLOBAL_PERCENT, RAM_GLOBAL_MB = "Z-RAM/RAM global (%)", "Z-RAM/RAM global (MB)"
RAM_PROCESS_PERCENT, RAM_PROCESS_MB = "Z-RAM/RAM process (%)", "Z-RAM/RAM process (MB)"
DISK = "Y-Disk/Disk (%)"
PACKETS_SENT, PACKETS_RECEIVED = "X-Network/Network (packets sent)", "X-Network/Network (packets received)"
CONNECTIONS = "X-Network/Connections"
VOLUMES: Mapping[str, tuple[str, str, int]] = {
    "old": ("X-Network/Network (bytes sent)", "X-Network/Network (bytes received)", 1),
    "1.0.0": ("X-Network/Network (MB sent)", "X-Network/Network (MB received)", MIB),
}
"""Tags of the volume sent and received, with their unit: the old ones say bytes and hold bytes."""

PROCESSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "x86_pkg_temp", "acpitz")
"""Chips that sit on a processor, the most reliable first: Intel, AMD, ARM boards, then firmware values."""
WHOLE = ("Package id 0", "Tdie", "Tctl")
"""Sensors that stand for the whole processor. Source: Linux Documentation/hwmon/coretemp.rst and k10temp.rst."""


def gpu_tag(number: int | str) -> str:
    """Return the prefix of the tags of one GPU."""
    return f"W-GPU/GPU{number}"


def unit_of(tag: str) -> str:
    """Map a tag to its unit; empty text where it has none."""
    units: Iterable[tuple[str, str]] = (
        ("(%)", "%"), ("(°)", "°C"), ("(MB)", "MiB"), ("(MB sent)", "MiB"), ("(MB received)", "MiB"),
        ("(bytes sent)", "B"), ("(bytes received)", "B"), (" power", "W"), (" clocks", "MHz"), (" fan speed", "%"),
        ("(packets sent)", "packets"), ("(packets received)", "packets"), ("X-Network/Connections", "connections"),
    )  # fmt: skip
    return next((unit for ending, unit in units if tag.endswith(ending) and "-" in tag), "")
