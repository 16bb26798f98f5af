"""Figures of performance counters: events as counted, and what follows from them."""

from __future__ import annotations

from fedmon.report.plots.figure import Figure, Group, Join, Quantity

FIGURES: tuple[Figure, ...] = (
    Figure(
        name="instructions_per_cycle",
        group=Group.PERF,
        title="Instructions per cycle",
        lines={"perf_instructions_per_cycle": "instructions per cycle"},
        noun="instructions/cycle",
    ),
    Figure(
        name="flops",
        group=Group.PERF,
        title="Floating point operations",
        lines={"perf_flops_per_second": ""},
        keep=("precision",),
        over=Join.TOTAL,
        noun="FLOP/s",
    ),
    Figure(
        name="vectorization",
        group=Group.PERF,
        title="Vectorised floating point instructions",
        lines={"perf_vectorization_ratio": ""},
        keep=("precision",),
    ),
    Figure(
        name="memory_bandwidth",
        group=Group.PERF,
        title="Memory bandwidth",
        lines={"perf_memory_bandwidth_bytes_per_second": "read and written"},
    ),
    Figure(
        name="cache_bandwidth",
        group=Group.PERF,
        title="Bandwidth between caches",
        lines={
            "perf_l2_bandwidth_bytes_per_second": "levels 1 and 2",
            "perf_l3_bandwidth_bytes_per_second": "levels 2 and 3",
        },
    ),
    Figure(
        name="misses",
        group=Group.PERF,
        title="Share of branches and cache requests that missed",
        lines={
            "perf_branch_miss_ratio": "branches",
            "perf_cache_miss_ratio": "last cache level",
            "perf_l2_miss_ratio": "level 2",
            "perf_l3_miss_ratio": "level 3",
        },
    ),
    Figure(
        name="cache_per_instruction",
        group=Group.PERF,
        title="Cache requests and misses per instruction",
        lines={
            "perf_l2_requests_per_instruction": "level 2 requests",
            "perf_l2_misses_per_instruction": "level 2 misses",
            "perf_l3_requests_per_instruction": "level 3 requests",
            "perf_l3_misses_per_instruction": "level 3 misses",
        },
        noun="per instruction",
    ),
    Figure(
        name="perf_cpus",
        group=Group.PERF,
        title="CPUs that perf saw busy",
        lines={"perf_cpus_utilized": "busy", "perf_task_clock_seconds_total": "by the task clock"},
        quantity=Quantity.CPUS,
        over=Join.TOTAL,
    ),
    Figure(
        name="perf_events",
        group=Group.PERF,
        title="Events counted",
        lines={"perf_events_total": ""},
        keep=("event",),
        each="group",
        over=Join.TOTAL,
        noun="events/s",
    ),
    Figure(
        name="perf_coverage",
        group=Group.PERF,
        title="Time in which counters were free",
        lines={"perf_running_ratio": ""},
        keep=("group",),
    ),
    Figure(
        name="perf_starts",
        group=Group.PERF,
        title="Starts of perf",
        lines={"perf_starts_total": "starts"},
        over=Join.TOTAL,
        noun="starts/s",
        quiet=True,
    ),
)
