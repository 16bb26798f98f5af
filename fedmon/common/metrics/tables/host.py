"""What a node measures of its machine as a whole: CPU, memory, load, file systems, disks, network."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric, Unit, rows

_STAT = "/proc/stat, first line"
_MEMINFO = "/proc/meminfo"
_LOADAVG = "/proc/loadavg"
_DISKSTATS = "/proc/diskstats"
_NETDEV = "/proc/net/dev"
_STATVFS = "statvfs of each mount in /proc/self/mounts"

ROWS: list[Metric] = [
    *rows(
        _STAT,
        Unit.RATIO,
        {
            "host_cpu_busy_ratio": "Busy share of all CPUs since the previous sample, 0 to 1; idle and iowait are"
            " not busy."
        },
    ),
    *rows(
        _STAT,
        Unit.SECONDS,
        {
            "host_cpu_seconds_total": "Time that all CPUs spent in a mode: user (guests included), nice, system,"
            " idle, iowait, irq, softirq, steal."
        },
        labels=("mode",),
    ),
    *rows("/sys/devices/system/cpu/online", Unit.COUNT, {"host_cpu_count": "Logical CPUs that are online."}),
    *rows(
        _MEMINFO,
        Unit.BYTES,
        {
            "host_memory_total_bytes": "Memory that the system has.",
            "host_memory_available_bytes": "Memory that programs can still get without swapping.",
            "host_memory_free_bytes": "Memory that nothing uses, not even as a cache.",
            "host_memory_buffers_bytes": "Memory that holds raw disk blocks.",
            "host_memory_cached_bytes": "Memory that holds file contents, shared memory included.",
            "host_swap_total_bytes": "Swap space that the system has; 0 where swap is off.",
            "host_swap_used_bytes": "Swap space in use.",
        },
    ),
    *rows(
        _LOADAVG,
        Unit.COUNT,
        {
            "host_load1": "Processes running or waiting for CPU or disk, averaged over 1 minute.",
            "host_load5": "Processes running or waiting for CPU or disk, averaged over 5 minutes.",
            "host_load15": "Processes running or waiting for CPU or disk, averaged over 15 minutes.",
        },
    ),
    *rows(
        _STATVFS,
        Unit.BYTES,
        {
            "host_filesystem_size_bytes": "Size of a local file system.",
            "host_filesystem_free_bytes": "Space that nothing uses, the part reserved for root included.",
            "host_filesystem_available_bytes": "Space that a user who is not root can still fill.",
        },
        labels=("mountpoint",),
    ),
    *rows(
        _DISKSTATS,
        Unit.BYTES,
        {
            "host_disk_read_bytes_total": "Bytes read from a disk.",
            "host_disk_written_bytes_total": "Bytes written to a disk.",
        },
        labels=("device",),
    ),
    *rows(
        _DISKSTATS,
        Unit.COUNT,
        {
            "host_disk_reads_total": "Reads that a disk completed.",
            "host_disk_writes_total": "Writes that a disk completed.",
        },
        labels=("device",),
    ),
    *rows(
        _DISKSTATS,
        Unit.SECONDS,
        {"host_disk_busy_seconds_total": "Time during which a disk had at least one request open."},
        labels=("device",),
    ),
    *rows(
        _NETDEV,
        Unit.BYTES,
        {
            "host_network_receive_bytes_total": "Bytes that an interface received.",
            "host_network_transmit_bytes_total": "Bytes that an interface sent.",
        },
        labels=("interface",),
    ),
    *rows(
        _NETDEV,
        Unit.COUNT,
        {
            "host_network_receive_packets_total": "Packets that an interface received.",
            "host_network_transmit_packets_total": "Packets that an interface sent.",
            "host_network_receive_errors_total": "Packets received with an error.",
            "host_network_transmit_errors_total": "Packets that could not be sent because of an error.",
            "host_network_receive_dropped_total": "Packets received and dropped.",
            "host_network_transmit_dropped_total": "Packets dropped before they were sent.",
        },
        labels=("interface",),
    ),
    *rows("/proc/uptime", Unit.SECONDS, {"host_uptime_seconds": "Time since the system started."}),
]
