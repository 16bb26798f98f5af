"""Metrics of the machine: the host itself, sensors, InfiniBand and RDMA ports."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric, Unit, metrics

_STAT = "/proc/stat, first line"
_CORES = "/proc/stat, the lines of single CPUs"
_HWMON = "/sys/class/hwmon/*"
_CPUFREQ = "cpufreq/scaling_cur_freq of each CPU, else /proc/cpuinfo"
_PORT = "/sys/class/infiniband/*/ports/*"
_LABELS = ("device", "port")

ROWS: list[Metric] = [
    *metrics(
        _STAT,
        {
            "host_cpu_busy_ratio": "Busy share of all CPUs since the previous sample, 0 to 1; idle and iowait are"
            " not busy."
        },
    ),
    *metrics(
        _STAT,
        {
            "host_cpu_seconds_total": "Time that all CPUs spent in a mode: user (guests included), nice, system,"
            " idle, iowait, irq, softirq, steal."
        },
        labels=("mode",),
    ),
    *metrics("/sys/devices/system/cpu/online", {"host_cpu_count": "Logical CPUs that are online."}),
    *metrics(
        _CORES,
        {"host_cpu_core_busy_ratio": "Busy share of one CPU since the previous sample; with `per_core` only."},
        labels=("cpu",),
    ),
    *metrics(
        _CORES,
        {"host_cpu_core_seconds_total": "Time that one CPU spent in a mode; with `per_core` only, and up to 64 CPUs."},
        labels=("cpu", "mode"),
    ),
    *metrics(
        "/proc/meminfo",
        {
            "host_memory_total_bytes": "Memory that the system has.",
            "host_memory_available_bytes": "Memory that programs can still get without swapping.",
            "host_memory_used_bytes": "Memory in use: not available to programs without swapping.",
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
    *metrics(
        "/proc/loadavg",
        {
            "host_load1": "Processes running or waiting for CPU or disk, averaged over 1 minute.",
            "host_load5": "Processes running or waiting for CPU or disk, averaged over 5 minutes.",
            "host_load15": "Processes running or waiting for CPU or disk, averaged over 15 minutes.",
            "host_threads": "Threads that there are.",
            "host_threads_runnable": "Threads that run or wait for a CPU at this instant.",
        },
    ),
    *metrics(
        "statvfs of each mount in /proc/self/mounts",
        {
            "host_filesystem_size_bytes": "Size of a local file system.",
            "host_filesystem_free_bytes": "Space that nothing uses, the part reserved for root included.",
            "host_filesystem_available_bytes": "Space that a user who is not root can still fill.",
        },
        labels=("mountpoint",),
    ),
    *metrics(
        "/proc/diskstats",
        {
            "host_disk_read_bytes_total": "Bytes read from a disk.",
            "host_disk_written_bytes_total": "Bytes written to a disk.",
            "host_disk_reads_total": "Reads that a disk completed.",
            "host_disk_writes_total": "Writes that a disk completed.",
            "host_disk_busy_seconds_total": "Time during which a disk had at least one request open.",
        },
        labels=("device",),
    ),
    *metrics(
        "/proc/net/dev",
        {
            "host_network_receive_bytes_total": "Bytes that an interface received.",
            "host_network_transmit_bytes_total": "Bytes that an interface sent.",
            "host_network_receive_packets_total": "Packets that an interface received.",
            "host_network_transmit_packets_total": "Packets that an interface sent.",
            "host_network_receive_errors_total": "Packets received with an error.",
            "host_network_transmit_errors_total": "Packets that could not be sent because of an error.",
            "host_network_receive_dropped_total": "Packets received and dropped.",
            "host_network_transmit_dropped_total": "Packets dropped before they were sent.",
        },
        labels=("interface",),
    ),
    *metrics(
        "/proc/stat",
        {
            "host_context_switches_total": "Switches of a CPU from one thread to another.",
            "host_interrupts_total": "Interrupts that were served.",
            "host_processes_started_total": "Processes and threads that were started.",
            "host_processes_running": "Threads that run or wait for a CPU at this instant.",
            "host_processes_blocked": "Threads that wait for a disk at this instant.",
        },
    ),
    *metrics(
        "/proc/vmstat",
        {
            "host_page_faults_total": "Page faults, with and without reading a disk.",
            "host_page_faults_major_total": "Page faults that had to read a disk.",
            "host_oom_kills_total": "Processes that the kernel killed because memory ran out.",
            "host_swap_in_bytes_total": "Memory read back from swap space.",
            "host_swap_out_bytes_total": "Memory written to swap space.",
        },
    ),
    *metrics("/proc/uptime", {"host_uptime_seconds": "Time since the system started."}),
    *metrics(
        "/proc/pressure/cpu, memory, io",
        {
            "host_pressure_seconds_total": "Time in which some, or all, threads with work waited for a"
            " resource. Linux keeps `full` of the CPU at 0 for a whole machine.",
            "host_pressure_ratio": "Share of the last 10 s in which some, or all, threads with work stood still.",
        },
        labels=("resource", "stalled"),
    ),
    *metrics(
        f"{_HWMON}/temp*_input; /sys/class/thermal where no chip has one",
        {
            "host_temperature_celsius": "Temperature of a sensor, by the names that its driver gives. Chips of one"
            " name have that of their device behind it."
        },
        labels=("chip", "sensor"),
    ),
    *metrics(
        f"{_HWMON}/fan*_input", {"host_fan_rotation_hertz": "Turns of a fan in a second."}, labels=("chip", "sensor")
    ),
    *metrics(
        _CPUFREQ,
        {
            "host_cpu_frequency_hertz": "Clock frequency, the mean of all CPUs. Virtual machines often tell the nominal"
            " one.",
            "host_cpu_frequency_min_hertz": "Clock frequency of the slowest CPU now.",
            "host_cpu_frequency_max_hertz": "Clock frequency of the fastest CPU now.",
        },
    ),
    *metrics(
        _CPUFREQ,
        {"host_cpu_core_frequency_hertz": "Clock frequency of one CPU; with `per_core` only."},
        labels=("cpu",),
    ),
    *metrics(
        "/sys/devices/system/node/node*/meminfo",
        {
            "host_numa_memory_total_bytes": "Memory of a NUMA node.",
            "host_numa_memory_free_bytes": "Memory of a NUMA node that nothing uses.",
            "host_numa_memory_used_bytes": "Memory of a NUMA node that is not free, caches included.",
            "host_numa_memory_cached_bytes": "Memory of a NUMA node that holds file contents.",
        },
        labels=("node",),
    ),
    *metrics(
        "/sys/devices/system/node/node*/numastat",
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
    *metrics(
        "/proc/cpuinfo, /sys/devices/system/cpu",
        {
            "host_hardware_info": "Always 1; the labels describe the hardware, empty if unknown. All of"
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
    *metrics(
        f"{_PORT}/counters_ext/*_64, else counters",
        {
            "infiniband_receive_bytes_total": "Bytes that a port received: the kernel's count of four octets, times"
            " four.",
            "infiniband_transmit_bytes_total": "Bytes that a port sent: the kernel's count of four octets, times four.",
            "infiniband_receive_packets_total": "Packets that a port received.",
            "infiniband_transmit_packets_total": "Packets that a port sent.",
            "infiniband_unicast_receive_packets_total": "Packets for one receiver that a port received.",
            "infiniband_unicast_transmit_packets_total": "Packets for one receiver that a port sent.",
            "infiniband_multicast_receive_packets_total": "Packets for several receivers that a port received.",
            "infiniband_multicast_transmit_packets_total": "Packets for several receivers that a port sent.",
        },
        labels=_LABELS,
    ),
    *metrics(
        f"{_PORT}/counters",
        {
            "infiniband_symbol_errors_total": "Minor errors of the link.",
            "infiniband_link_recoveries_total": "Times that the link recovered from an error by itself.",
            "infiniband_link_downed_total": "Times that the link went down because recovery failed.",
            "infiniband_link_integrity_errors_total": "Times that too many minor errors followed each other.",
            "infiniband_buffer_overruns_total": "Times that the buffer overflowed for long.",
            "infiniband_receive_errors_total": "Packets received with an error.",
            "infiniband_receive_remote_errors_total": "Packets that a forwarding switch marked as bad.",
            "infiniband_receive_switch_errors_total": "Packets that a switch could not pass on.",
            "infiniband_receive_constraint_errors_total": "Packets received and refused by the port's rules.",
            "infiniband_transmit_constraint_errors_total": "Packets not sent because of the port's rules.",
            "infiniband_transmit_discards_total": "Packets not sent because the port was down or congested.",
            "infiniband_transmit_waits_total": "Ticks during which there were data to send and no credits.",
            "infiniband_management_dropped_total": "Management packets dropped because buffers were full.",
        },
        labels=_LABELS,
    ),
    *metrics(
        f"{_PORT}/rate",
        {"infiniband_rate_bytes_per_second": "Rate of the link, both lanes and width counted."},
        labels=_LABELS,
    ),
    *metrics(
        f"{_PORT}/state",
        {"infiniband_port_state": "State of a port: 1 down, 2 initializing, 3 armed, 4 active, 5 active but deferred."},
        labels=_LABELS,
        unit=Unit.NONE,
    ),
    *metrics(
        f"{_PORT}/link_layer, state, rate",
        {"infiniband_port_info": "Always 1; the labels describe the port."},
        labels=(*_LABELS, "link_layer", "state", "rate"),
    ),
]
