"""Hardware and software events that perf counts, and what follows from them."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric, Unit, rows

_PERF = "perf stat"
_TABLES = "perf stat, with the table of the micro-architecture"
_PER_UNIT = "perf stat, generic hardware events"

ROWS: list[Metric] = [
    *rows(
        _PERF,
        Unit.COUNT,
        {
            "perf_events_total": "Events of one name, counted in one group of events; hardware events in user mode"
            " only, scaled up where a counter was not free all the time."
        },
        labels=("group", "event"),
    ),
    *rows(
        _PERF,
        Unit.SECONDS,
        {
            "perf_task_clock_seconds_total": "Time that the processes of a job ran on a CPU while perf counted.",
            "perf_counted_seconds_total": "Time that perf has counted, by its own clock; counts of perf are divided by"
            " differences of this.",
        },
    ),
    *rows(_PERF, Unit.COUNT, {"perf_starts_total": "How often perf was started, also to attach to new processes."}),
    *rows(
        _PERF,
        Unit.RATIO,
        {"perf_running_ratio": "Share of the time in which counters were free for a group; the rest was scaled up."},
        labels=("group",),
    ),
    *rows(_PERF, Unit.COUNT, {"perf_cpus_utilized": "CPUs that a job kept busy: its task clock by the time."}),
    *rows(
        _PER_UNIT,
        Unit.COUNT,
        {"perf_instructions_per_cycle": "Instructions retired in each cycle of a core, in user mode."},
    ),
    *rows(
        _PER_UNIT,
        Unit.RATIO,
        {
            "perf_branch_miss_ratio": "Share of the branches that were predicted wrongly.",
            "perf_cache_miss_ratio": "Share of the requests to the last level of cache that it could not answer.",
        },
    ),
    *rows(
        _TABLES,
        Unit.BYTES_PER_SECOND,
        {
            "perf_l2_bandwidth_bytes_per_second": "Lines that moved between first and second level of cache, as bytes.",
            "perf_l3_bandwidth_bytes_per_second": "Lines that moved between second and third level of cache, as bytes.",
            "perf_memory_bandwidth_bytes_per_second": "Lines that the memory controllers of the machine read and wrote,"
            " as bytes.",
        },
    ),
    *rows(
        _TABLES,
        Unit.COUNT,
        {
            "perf_l2_requests_per_instruction": "Requests to the second level of cache for each instruction.",
            "perf_l2_misses_per_instruction": "Requests that missed the second level of cache for each instruction.",
            "perf_l3_requests_per_instruction": "Requests to the third level of cache for each instruction.",
            "perf_l3_misses_per_instruction": "Requests that missed the third level of cache for each instruction.",
        },
    ),
    *rows(
        _TABLES,
        Unit.RATIO,
        {
            "perf_l2_miss_ratio": "Share of the requests to the second level of cache that missed it.",
            "perf_l3_miss_ratio": "Share of the requests to the third level of cache that missed it.",
        },
    ),
    *rows(
        _TABLES,
        Unit.PER_SECOND,
        {
            "perf_flops_per_second": "Floating point operations in single or double precision; any where a processor"
            " counts both together.",
        },
        labels=("precision",),
    ),
    *rows(
        _TABLES,
        Unit.RATIO,
        {"perf_vectorization_ratio": "Share of the floating point instructions that work on several numbers at once."},
        labels=("precision",),
    ),
]
