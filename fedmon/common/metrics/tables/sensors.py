"""Temperatures, frequencies, pressure, NUMA, and what the machine is made of."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric, Unit, rows

_PRESSURE = "/proc/pressure/cpu, memory, io"
_HWMON = "/sys/class/hwmon/*"
_CPUFREQ = "cpufreq/scaling_cur_freq of each CPU, else /proc/cpuinfo"
_NODE_MEMINFO = "/sys/devices/system/node/node*/meminfo"
_NODE_NUMASTAT = "/sys/devices/system/node/node*/numastat"

ROWS: list[Metric] = [
    *rows(
        _PRESSURE,
        Unit.SECONDS,
        {
            "host_pressure_seconds_total": "Time that some, or all, threads with work stood still for want of a"
            " resource. Linux keeps `full` of the CPU at 0 for a whole machine."
        },
        labels=("resource", "stalled"),
    ),
    *rows(
        _PRESSURE,
        Unit.RATIO,
        {"host_pressure_ratio": "Share of the last 10 s in which some, or all, threads with work stood still."},
        labels=("resource", "stalled"),
    ),
    *rows(
        f"{_HWMON}/temp*_input; /sys/class/thermal where no chip has one",
        Unit.CELSIUS,
        {
            "host_temperature_celsius": "Temperature of a sensor, by the names that its driver gives. Chips of one"
            " name have that of their device behind it."
        },
        labels=("chip", "sensor"),
    ),
    *rows(
        f"{_HWMON}/fan*_input",
        Unit.HERTZ,
        {"host_fan_rotation_hertz": "Turns of a fan in a second."},
        labels=("chip", "sensor"),
    ),
    *rows(
        _CPUFREQ,
        Unit.HERTZ,
        {
            "host_cpu_frequency_hertz": "Clock frequency, the mean of all CPUs. Virtual machines often tell the nominal"
            " one.",
            "host_cpu_frequency_min_hertz": "Clock frequency of the slowest CPU now.",
            "host_cpu_frequency_max_hertz": "Clock frequency of the fastest CPU now.",
        },
    ),
    *rows(
        _CPUFREQ,
        Unit.HERTZ,
        {"host_cpu_core_frequency_hertz": "Clock frequency of one CPU; with `per_core` only."},
        labels=("cpu",),
    ),
    *rows(
        _NODE_MEMINFO,
        Unit.BYTES,
        {
            "host_numa_memory_total_bytes": "Memory of a NUMA node.",
            "host_numa_memory_free_bytes": "Memory of a NUMA node that nothing uses.",
            "host_numa_memory_used_bytes": "Memory of a NUMA node that is not free, caches included.",
            "host_numa_memory_cached_bytes": "Memory of a NUMA node that holds file contents.",
        },
        labels=("node",),
    ),
    *rows(
        _NODE_NUMASTAT,
        Unit.COUNT,
        {
            "host_numa_hits_total": "Pages that were wanted from this node and taken from it.",
            "host_numa_misses_total": "Pages that were taken from this node and wanted from another.",
            "host_numa_foreign_total": "Pages that were wanted from this node and taken from another.",
            "host_numa_interleave_hits_total": "Pages that interleaving wanted from this node and took from it.",
            "host_numa_local_total": "Pages of this node taken by a process that ran on it.",
            "host_numa_other_total": "Pages of this node taken by a process that ran on another.",
        },
        labels=("node",),
    ),
    *rows(
        "/proc/cpuinfo, /sys/devices/system/cpu, /sys/class/dmi",
        Unit.NONE,
        {
            "host_hardware_info": "Always 1; what the machine is made of is in the labels, empty where unknown. All of"
            " it: `fedmon node probe`."
        },
        labels=(
            "simulated",
            "vendor",
            "model",
            "microarchitecture",
            "sockets",
            "cores",
            "threads",
            "kernel",
            "virtualisation",
        ),
    ),
]
