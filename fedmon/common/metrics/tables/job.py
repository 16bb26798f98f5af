"""What a node measures of one job: its processes, and its cgroup where it has one of its own."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric, Unit, rows

_STAT = "/proc/PID/stat of its processes"
_CPU = "cgroup: cpu.stat (v2), cpuacct.usage, split as cpuacct.stat does (v1); else " + _STAT
_STATUS = "/proc/PID/status and /proc/PID/task/TID/status"
_SMAPS = "/proc/PID/smaps_rollup"
_IO = "/proc/PID/io"
_MEMORY = "cgroup: memory.current (v2), memory.usage_in_bytes (v1)"
_MEMORY_STAT = "cgroup: memory.stat"
_DISK = "cgroup: io.stat (v2), blkio.throttle.io_service_bytes_recursive and io_serviced_recursive (v1)"

ROWS: list[Metric] = [
    *rows(
        "the job's watch",
        Unit.NONE,
        {
            "job_method_info": "Always 1; `method` says where `of` (cpu, members, peak, swap) comes from: `tree` (its"
            " processes), `cgroup-v2` or `cgroup-v1`; and how orphans are known: by the kernel's `fork-events`, or only"
            " by `signs` (session, group, environment)."
        },
        labels=("of", "method"),
    ),
    *rows(
        _CPU,
        Unit.SECONDS,
        {
            "job_cpu_user_seconds_total": "CPU time in user mode of all processes that the job ever had, since their"
            " start. Those that ended stay counted; without a cgroup, what one used after its last reading counts only"
            " if a parent in the job waited for it.",
            "job_cpu_system_seconds_total": "CPU time in the kernel of all processes that the job ever had.",
        },
    ),
    *rows(_CPU, Unit.COUNT, {"job_cpus_busy": "CPUs that the job kept busy since the previous sample; 1 is one CPU."}),
    *rows(_CPU, Unit.RATIO, {"job_cpu_busy_ratio": "Share of all CPUs of the machine that the job kept busy, 0 to 1."}),
    *rows(
        _STAT,
        Unit.COUNT,
        {
            "job_processes": "Processes that live; zombies do not.",
            "job_zombies": "Processes that ended and were not waited for.",
            "job_threads": "Threads of its processes.",
        },
    ),
    *rows(
        _STAT,
        Unit.BYTES,
        {
            "job_memory_rss_bytes": "Resident memory, summed over its processes: shared pages count once for each.",
            "job_memory_vms_bytes": "Address space, summed over its processes.",
        },
    ),
    *rows(
        "cgroup: memory.peak (v2), memory.max_usage_in_bytes (v1); else " + _STAT + " and VmHWM",
        Unit.BYTES,
        {
            "job_memory_peak_bytes": "Most memory that the job had at once. Of a cgroup: all that is charged, file"
            " cache included. Else the largest sum of resident memory in a sample, or of one process if that is more."
        },
    ),
    *rows(
        _STATUS,
        Unit.BYTES,
        {"job_memory_shared_bytes": "Resident memory that files or other processes back, summed over its processes."},
    ),
    *rows(
        _SMAPS,
        Unit.BYTES,
        {
            "job_memory_uss_bytes": "Memory that its processes share with nobody: what their end would free.",
            "job_memory_pss_bytes": "Resident memory with each shared page divided among those who share it: what the"
            " job has, nothing counted twice.",
        },
    ),
    *rows(
        "cgroup: memory.swap.current (v2), memory.stat (v1); else " + _SMAPS,
        Unit.BYTES,
        {"job_memory_swap_bytes": "Memory that was swapped out; a page shared by processes counts its part for each."},
    ),
    *rows(
        _IO,
        Unit.BYTES,
        {
            "job_io_read_bytes_total": "Bytes that its processes read by calls (rchar), from a cache, pipe or disk"
            " alike.",
            "job_io_written_bytes_total": "Bytes that its processes wrote by calls (wchar).",
            "job_storage_read_bytes_total": "Bytes that were fetched from storage for its processes (read_bytes).",
            "job_storage_written_bytes_total": "Bytes that its processes caused to be sent to storage (write_bytes).",
        },
    ),
    *rows(
        _IO,
        Unit.COUNT,
        {
            "job_io_reads_total": "Calls by which its processes read (syscr).",
            "job_io_writes_total": "Calls by which its processes wrote (syscw).",
        },
    ),
    *rows(
        _STAT,
        Unit.COUNT,
        {"job_page_faults_total": "Page faults: minor, or major where storage had to be read."},
        labels=("kind",),
    ),
    *rows(
        "/proc/PID/fd", Unit.COUNT, {"job_file_descriptors": "Files, pipes and sockets that its processes hold open."}
    ),
    *rows(
        _STATUS,
        Unit.COUNT,
        {
            "job_context_switches_total": "Times that its threads gave up a CPU (voluntary) or lost it (involuntary);"
            " of a thread that ended, up to its last reading; complete at the end of a command that fedmon job runs."
        },
        labels=("kind",),
    ),
    *rows(
        _MEMORY,
        Unit.BYTES,
        {"job_memory_charged_bytes": "Memory that is charged to the job's cgroup, file cache included."},
    ),
    *rows(
        "cgroup: memory.max (v2), memory.limit_in_bytes (v1)",
        Unit.BYTES,
        {"job_memory_limit_bytes": "Memory that the job's cgroup may have; absent where there is no limit."},
    ),
    *rows(
        _MEMORY_STAT,
        Unit.BYTES,
        {
            "job_memory_anon_bytes": "Memory of the job's cgroup that no file backs.",
            "job_memory_cache_bytes": "Memory of the job's cgroup that holds file contents.",
        },
    ),
    *rows(
        "cgroup: memory.events (v2), memory.oom_control and memory.failcnt (v1)",
        Unit.COUNT,
        {
            "job_memory_oom_kills_total": "Processes of the job's cgroup that were killed for want of memory.",
            "job_memory_limit_hits_total": "Times that the job's cgroup wanted more memory than its limit.",
        },
    ),
    *rows(
        "cgroup: cpu.stat",
        Unit.SECONDS,
        {"job_cpu_throttled_seconds_total": "Time during which the limit of the job's cgroup kept it from CPUs."},
    ),
    *rows(
        "cgroup: cpu.stat",
        Unit.COUNT,
        {"job_cpu_throttled_periods_total": "Periods in which the limit of the job's cgroup kept it from CPUs."},
    ),
    *rows(
        _DISK,
        Unit.BYTES,
        {
            "job_disk_read_bytes_total": "Bytes that the job's cgroup read from a device.",
            "job_disk_written_bytes_total": "Bytes that the job's cgroup wrote to a device.",
        },
        labels=("device",),
    ),
    *rows(
        _DISK,
        Unit.COUNT,
        {
            "job_disk_reads_total": "Reads from a device by the job's cgroup.",
            "job_disk_writes_total": "Writes to a device by the job's cgroup.",
        },
        labels=("device",),
    ),
    *rows("cgroup: pids.current", Unit.COUNT, {"job_tasks": "Processes and threads of the job's cgroup."}),
    *rows(
        "cgroup: pids.max",
        Unit.COUNT,
        {"job_tasks_limit": "Processes and threads that the job's cgroup may have; absent where there is no limit."},
    ),
    *rows(
        "cgroup: cpu.pressure, memory.pressure, io.pressure (v2)",
        Unit.SECONDS,
        {
            "job_pressure_seconds_total": "Time during which some, or all (full), tasks of the job's cgroup waited for"
            " cpu, memory or io."
        },
        labels=("resource", "kind"),
    ),
]
