"""The tags under which NEBULA's reporter logs a machine, their units, and how they follow from our metrics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from fedmon.common.metrics.series import metric_name, series, split_series

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


class TagFormula(NamedTuple):
    """How a tag follows from the series ``names``; ``compute`` takes their values, or arrays of these.

    The reporter rounds it to ``digits`` decimals; None leaves it as it is read.
    """

    tag: str
    names: tuple[str, ...]
    compute: Callable[..., Any]
    digits: int | None = None


_WHOLE, _FREE, _RSS = "host_memory_total_bytes", "host_memory_available_bytes", "job_memory_rss_bytes"
_DISK = tuple(series(f"host_filesystem_{what}_bytes", mountpoint="/") for what in ("size", "free", "available"))
MACHINE = (
    TagFormula(CPU_GLOBAL, ("host_cpu_busy_ratio",), lambda busy: busy * 100, 1),
    TagFormula(RAM_GLOBAL_PERCENT, (_WHOLE, _FREE), lambda whole, free: 100 * (whole - free) / whole, 1),
    TagFormula(RAM_GLOBAL_MB, (_WHOLE, _FREE), lambda whole, free: (whole - free) / MIB, 3),
    TagFormula(RAM_PROCESS_PERCENT, (_WHOLE, _RSS), lambda whole, rss: 100 * rss / whole, 3),
    TagFormula(RAM_PROCESS_MB, (_RSS,), lambda rss: rss / MIB, 3),
    # Of the space that users can fill, as df does.
    TagFormula(DISK, _DISK, lambda size, free, room: 100 * (size - free) / (size - free + room), 1),
)


def gpu_formulas(gpu: str) -> tuple[TagFormula, ...]:
    """Return the formulas of the tags of one GPU."""
    tag, of = f"W-GPU/GPU{gpu}", functools.partial(series, gpu=gpu)
    memory = of("gpu_memory_used_bytes"), of("gpu_memory_total_bytes")
    return (
        TagFormula(f"{tag} (%)", (of("gpu_utilization_ratio"),), lambda ratio: ratio * 100, 1),
        TagFormula(f"{tag} temperature (°)", (of("gpu_temperature_celsius"),), lambda celsius: celsius),
        TagFormula(f"{tag} memory (%)", memory, lambda used, whole: 100 * used / whole, 3),
        TagFormula(f"{tag} power", (of("gpu_power_watts"),), lambda watts: watts),
        TagFormula(f"{tag} clocks", (of("gpu_clock_hertz", clock="sm"),), lambda hertz: hertz * 1e-6, 3),
        TagFormula(f"{tag} memory clocks", (of("gpu_clock_hertz", clock="memory"),), lambda hertz: hertz * 1e-6, 3),
        TagFormula(f"{tag} fan speed", (of("gpu_fan_speed_ratio"),), lambda ratio: ratio * 100, 1),
    )


def processor_sensors(names: Iterable[str]) -> tuple[str, ...]:
    """Return the series whose highest value is the temperature of the processor; none where none is known as such."""
    by_chip: dict[str, dict[str, str]] = {}
    for name in names:
        if metric_name(name) == "host_temperature_celsius":
            labels = split_series(name)[1]
            by_chip.setdefault(labels.get("chip", ""), {})[labels.get("sensor", "")] = name
    for known in PROCESSORS:
        for chip, sensors in by_chip.items():
            if chip.startswith(known):
                whole = [name for sensor, name in sensors.items() if sensor.startswith(WHOLE)]
                return tuple(whole or sensors.values())
    return ()


def unit_of(tag: str) -> str:
    """Map a tag to its unit; empty text where it has none."""
    units: Iterable[tuple[str, str]] = (
        ("(%)", "%"), ("(°)", "°C"), ("(MB)", "MiB"), ("(MB sent)", "MiB"), ("(MB received)", "MiB"),
        ("(bytes sent)", "B"), ("(bytes received)", "B"), (" power", "W"), (" clocks", "MHz"), (" fan speed", "%"),
        ("(packets sent)", "packets"), ("(packets received)", "packets"), ("X-Network/Connections", "connections"),
    )  # fmt: skip
    return next((unit for ending, unit in units if tag.endswith(ending) and "-" in tag), "")
