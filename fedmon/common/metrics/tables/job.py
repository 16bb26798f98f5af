"""Metrics of a job, perf events, values of programs, and the cost of watching."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric, Unit, metrics

_PERF = "perf stat"
_TABLES = "perf stat, with the table of the micro-architecture"
_STAT = "/proc/PID/stat of its processes"
_STATUS = "/proc/PID/status and /proc/PID/task/TID/status"
_SMAPS = "/proc/PID/smaps_rollup"

ROWS: list[Metric] = [
    *metrics(
        _PERF,
        {
            "perf_events_total": "Events of one name, counted in one group of events; hardware events in user mode"
            " only, scaled up where a counter was not free all the time."
        },
        labels=("group", "event"),
    ),
    *metrics(
        _PERF,
        {
            "perf_task_clock_seconds_total": "Time that the processes of a job ran on a CPU while perf counted.",
            "perf_counted_seconds_total": "Time that perf has counted, by its own clock; counts of perf are divided by"
            " differences of this.",
            "perf_starts_total": "How often perf was started, also to attach to new processes.",
        },
    ),
    *metrics(
        _PERF,
        {"perf_running_ratio": "Share of the time in which counters were free for a group; the rest was scaled up."},
        labels=("group",),
    ),
    *metrics(_PERF, {"perf_cpus_utilized": "CPUs that a job kept busy: its task clock by the time."}),
    *metrics(
        "perf stat, generic hardware events",
        {
            "perf_instructions_per_cycle": "Instructions retired in each cycle of a core, in user mode.",
            "perf_branch_miss_ratio": "Share of the branches that were predicted wrongly.",
            "perf_cache_miss_ratio": "Share of the requests to the last level of cache that it could not answer.",
        },
    ),
    *metrics(
        _TABLES,
        {
            "perf_l2_bandwidth_bytes_per_second": "Lines that moved between first and second level of cache, as bytes.",
            "perf_l3_bandwidth_bytes_per_second": "Lines that moved between second and third level of cache, as bytes.",
            "perf_memory_bandwidth_bytes_per_second": "Lines that the memory controllers of the machine read and wrote,"
            " as bytes.",
            "perf_l2_requests_per_instruction": "Requests to the second level of cache for each instruction.",
            "perf_l2_misses_per_instruction": "Requests that missed the second level of cache for each instruction.",
            "perf_l3_requests_per_instruction": "Requests to the third level of cache for each instruction.",
            "perf_l3_misses_per_instruction": "Requests that missed the third level of cache for each instruction.",
            "perf_l2_miss_ratio": "Share of the requests to the second level of cache that missed it.",
            "perf_l3_miss_ratio": "Share of the requests to the third level of cache that missed it.",
        },
    ),
    *metrics(
        _TABLES,
        {
            "perf_flops_per_second": "Floating point operations in single or double precision; any where a processor"
            " counts both together.",
            "perf_vectorization_ratio": "Share of the floating point instructions that work on several numbers at"
            " once.",
        },
        labels=("precision",),
    ),
    *metrics(
        "the job's watch",
        {
            "job_method_info": "Always 1; `method` says where `of` (cpu, members, peak, swap) comes from: `tree` (its"
            " processes), `cgroup-v2` or `cgroup-v1`; and how orphans are known: by the cgroup, or by `signs` (session,"
            " group, environment)."
        },
        labels=("of", "method"),
    ),
    *metrics(
        "cgroup: cpu.stat (v2), cpuacct.usage, split as cpuacct.stat does (v1); else " + _STAT,
        {
            "job_cpu_user_seconds_total": "CPU time in user mode of all processes that the job ever had, since their"
            " start. Those that ended stay counted; without a cgroup, usage after the last reading counts only"
            " if a parent in the job waited for it.",
            "job_cpu_system_seconds_total": "CPU time in the kernel of all processes that the job ever had.",
            "job_cpus_busy": "CPUs that the job kept busy since the previous sample; 1 is one CPU.",
            "job_cpu_busy_ratio": "Share of all CPUs of the machine that the job kept busy, 0 to 1.",
        },
    ),
    *metrics(
        _STAT,
        {
            "job_processes": "Processes that live; zombies do not.",
            "job_zombies": "Processes that ended and were not waited for.",
            "job_threads": "Threads of its processes.",
            "job_memory_rss_bytes": "Resident memory, summed over its processes: shared pages count once for each.",
            "job_memory_vms_bytes": "Address space, summed over its processes.",
        },
    ),
    *metrics(
        "cgroup: memory.peak (v2), memory.max_usage_in_bytes (v1); else " + _STAT + " and VmHWM",
        {
            "job_memory_peak_bytes": "Most memory that the job had at once. Of a cgroup: all that is charged, file"
            " cache included. Else the largest sum of resident memory in a sample, or of one process if that is more."
        },
    ),
    *metrics(
        _STATUS,
        {"job_memory_shared_bytes": "Resident memory that files or other processes back, summed over its processes."},
    ),
    *metrics(
        _SMAPS,
        {
            "job_memory_uss_bytes": "Memory that its processes do not share: their end would free it.",
            "job_memory_pss_bytes": "Resident memory with each shared page divided among its processes: memory of the"
            " job, with nothing counted twice.",
        },
    ),
    *metrics(
        "cgroup: memory.swap.current (v2), memory.stat (v1); else " + _SMAPS,
        {"job_memory_swap_bytes": "Memory that was swapped out; a page shared by processes counts its part for each."},
    ),
    *metrics(
        "/proc/PID/io",
        {
            "job_io_read_bytes_total": "Bytes that its processes read by calls (rchar), from a cache, pipe or disk"
            " alike.",
            "job_io_written_bytes_total": "Bytes that its processes wrote by calls (wchar).",
            "job_storage_read_bytes_total": "Bytes that were fetched from storage for its processes (read_bytes).",
            "job_storage_written_bytes_total": "Bytes that its processes caused to be sent to storage (write_bytes).",
            "job_io_reads_total": "Calls by which its processes read (syscr).",
            "job_io_writes_total": "Calls by which its processes wrote (syscw).",
        },
    ),
    *metrics(
        _STAT, {"job_page_faults_total": "Page faults: minor, or major where storage had to be read."}, labels=("kind",)
    ),
    *metrics("/proc/PID/fd", {"job_file_descriptors": "Files, pipes and sockets that its processes hold open."}),
    *metrics(
        _STATUS,
        {
            "job_context_switches_total": "Times that its threads gave up a CPU (voluntary) or lost it (involuntary);"
            " of a thread that ended, up to its last reading; complete at the end of a command that fedmon job runs."
        },
        labels=("kind",),
    ),
    *metrics(
        "cgroup: memory.current (v2), memory.usage_in_bytes (v1)",
        {"job_memory_charged_bytes": "Memory that is charged to the job's cgroup, file cache included."},
    ),
    *metrics(
        "cgroup: memory.max (v2), memory.limit_in_bytes (v1)",
        {"job_memory_limit_bytes": "Memory that the job's cgroup may have; absent where there is no limit."},
    ),
    *metrics(
        "cgroup: memory.stat",
        {
            "job_memory_anon_bytes": "Memory of the job's cgroup that no file backs.",
            "job_memory_cache_bytes": "Memory of the job's cgroup that holds file contents.",
        },
    ),
    *metrics(
        "cgroup: memory.events (v2), memory.oom_control and memory.failcnt (v1)",
        {
            "job_memory_oom_kills_total": "Processes of the job's cgroup that were killed when memory ran out.",
            "job_memory_limit_hits_total": "Times that the job's cgroup wanted more memory than its limit.",
        },
    ),
    *metrics(
        "cgroup: cpu.stat",
        {
            "job_cpu_throttled_seconds_total": "Time during which the limit of the job's cgroup kept it from CPUs.",
            "job_cpu_throttled_periods_total": "Periods in which the limit of the job's cgroup kept it from CPUs.",
        },
    ),
    *metrics(
        "cgroup: io.stat (v2), blkio.throttle.io_service_bytes_recursive and io_serviced_recursive (v1)",
        {
            "job_disk_read_bytes_total": "Bytes that the job's cgroup read from a device.",
            "job_disk_written_bytes_total": "Bytes that the job's cgroup wrote to a device.",
            "job_disk_reads_total": "Reads from a device by the job's cgroup.",
            "job_disk_writes_total": "Writes to a device by the job's cgroup.",
        },
        labels=("device",),
    ),
    *metrics("cgroup: pids.current", {"job_tasks": "Processes and threads of the job's cgroup."}),
    *metrics(
        "cgroup: pids.max",
        {"job_tasks_limit": "Processes and threads that the job's cgroup may have; absent where there is no limit."},
    ),
    *metrics(
        "cgroup: cpu.pressure, memory.pressure, io.pressure (v2)",
        {
            "job_pressure_seconds_total": "Time during which some, or all (full), tasks of the job's cgroup waited for"
            " cpu, memory or io."
        },
        labels=("resource", "kind"),
    ),
    *metrics(
        "the program that reports it",
        {
            "user_value": "A value that a program reports of itself, such as an accuracy or a loss; null if it was"
            " not finite. `job` is there when the program named one, `group` in runs of a training.",
            "user_step": "The program's own count, such as the epoch or iteration, at which the value of this name was"
            " reported; absent when it gave none.",
        },
        labels=("name", "job", "group"),
        unit=Unit.NONE,
    ),
    *metrics(
        "the node, at the end of a run",
        {
            "user_run_seconds": "Wall time of a run that is a round of a training.",
            "user_run_joules": "Energy of the run's processes; absent if it was not measured.",
            "user_run_bytes": "Bytes of the run's inputs and result.",
            "user_run_rows": "Rows of the dataset that the run read.",
        },
        labels=("job", "group"),
    ),
    *metrics(
        "UserValues",
        {
            "user_values_dropped_total": "Values that came faster than they are taken; reported with the values that"
            " follow, once there were any."
        },
    ),
    *metrics(
        "Reporter.report_scenario_finished",
        {"user_scenario_finished": "1 at the moment when a participant reported that its scenario is finished."},
        labels=("scenario",),
        unit=Unit.NONE,
    ),
    *metrics(
        "CLOCK_PROCESS_CPUTIME_ID",
        {"agent_cpu_seconds_total": "CPU time of this node's own process, user and system, without its children."},
    ),
    *metrics("/proc/self/statm", {"agent_memory_rss_bytes": "Resident memory of this node's own process."}),
    *metrics(
        "the sampler",
        {
            "agent_collect_seconds": "Time that all collectors together took for the previous sample.",
            "agent_collect_cpu_seconds_total": "CPU time of the sampling thread: collecting, batching, handing over.",
            "agent_interval_seconds": "Current sampling interval; longer than requested while sampling costs too much.",
        },
    ),
    *metrics(
        "the sampler",
        {"agent_collector_seconds": "Time that one collector took for its last reading."},
        labels=("stream", "collector"),
    ),
    *metrics(
        "the sampler",
        {"agent_ticks_missed_total": "Ticks of the sampling grid that were left out because sampling came too late."},
    ),
    *metrics(
        "the publisher",
        {
            "agent_samples_published_total": "Samples handed to the connection with the broker.",
            "agent_samples_dropped_total": "Samples that were not sent at once because there was no"
            " connection; the recording keeps them.",
        },
    ),
    *metrics(
        "the recorder",
        {
            "agent_samples_recorded_total": "Samples stored in this node's recording since its start.",
            "agent_recording_samples_dropped_total": "Samples that were not stored, because the disk was full or failed"
            " for too long.",
            "agent_recording_samples_expired_total": "Samples dropped from the recording, the oldest first, by its"
            " bounds of size and age, or given up as damaged, since it was begun.",
            "agent_recording_samples_buffered": "Samples that wait to be stored.",
            "agent_recording_size_bytes": "Size of the recording on disk.",
        },
    ),
]
