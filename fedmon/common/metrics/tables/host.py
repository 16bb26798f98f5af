"""What a node measures of its machine as a whole: CPU, memory, load, file systems, disks, network."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric, Unit, rows

_STAT = "/proc/stat, first line"
_CORES = "/proc/stat, the lines of single CPUs"
_ACTIVITY = "/proc/stat"
_VMSTAT = "/proc/vmstat"
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
        _CORES,
        Unit.RATIO,
        {"host_cpu_core_busy_ratio": "Busy share of one CPU since the previous sample; with `per_core` only."},
        labels=("cpu",),
    ),
    *rows(
        _CORES,
        Unit.SECONDS,
        {"host_cpu_core_seconds_total": "Time that one CPU spent in a mode; with `per_core` only, and up to 64 CPUs."},
        labels=("cpu", "mode"),
    ),
    *rows(
        _MEMINFO,
        Unit.BYTES,
        {
            "host_memory_total_bytes": "Memory that the system has.",
            "host_memory_available_bytes": "Memory that programs can still get without swapping.",
            "host_memory_used_bytes": "Memory in use: what is not available to programs without swapping.",
            "host_memory_free_bytes": "Memory that nothing uses, not even as a cache.",
            "host_memory_buffers_bytes": "Memory that holds raw disk blocks.",
            "host_memory_cached_bytes": "Memory that holds file contents, shared memory included.",
            "host_memory_dirty_bytes": "Cached file contents that wait to be written.",
            "host_memory_shared_bytes": "Memory of tmpfs and shared between processes; part of the cached one.",
            "host_memory_slab_bytes": "Memory that the kernel uses for its own objects.",
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
            "host_threads": "Threads that there are.",
            "host_threads_runnable": "Threads that run or wait for a CPU at this instant.",
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
    *rows(
        _ACTIVITY,
        Unit.COUNT,
        {
            "host_context_switches_total": "Switches of a CPU from one thread to another.",
            "host_interrupts_total": "Interrupts that were served.",
            "host_processes_started_total": "Processes and threads that were started.",
            "host_processes_running": "Threads that run or wait for a CPU at this instant.",
            "host_processes_blocked": "Threads that wait for a disk at this instant.",
        },
    ),
    *rows(
        _VMSTAT,
        Unit.COUNT,
        {
            "host_page_faults_total": "Page faults, with and without reading a disk.",
            "host_page_faults_major_total": "Page faults that had to read a disk.",
            "host_oom_kills_total": "Processes that the kernel killed because memory ran out.",
        },
    ),
    *rows(
        _VMSTAT,
        Unit.BYTES,
        {
            "host_swap_in_bytes_total": "Memory read back from swap space.",
            "host_swap_out_bytes_total": "Memory written to swap space.",
        },
    ),
    *rows("/proc/uptime", Unit.SECONDS, {"host_uptime_seconds": "Time since the system started."}),
]
