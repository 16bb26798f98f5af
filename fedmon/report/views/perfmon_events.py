"""The columns of perfmon's group ``perf_metrics``: what each event counted in an interval, and what follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from fedmon.common.metrics.series import metric_name, series, split_series
from fedmon.report.views.quantity import Growth, Sum
from fedmon.report.views.survey import Place
from fedmon.report.views.view_table import Column

COUNTED_SECONDS = "perf_counted_seconds_total"
EVENTS = "perf_events_total"

GROUPS: Mapping[str, str] = {
    "cycles": "hardware_events",
    "cache": "hardware_events",
    "branches": "hardware_events",
    "software": "software_events",
    "l2": "L2",
    "l2_requests": "L2",
    "l2cache": "L2cache",
    "l2_misses": "L2cache",
    "l2_ratio": "L2cache",
    "l3": "L3",
    "l3cache": "L3cache",
    "flops_sp": "FLOPS_SP",
    "flops_dp": "FLOPS_DP",
    "flops_any": "FLOPS_any",
}
"""perfmon's group of each of our groups of events."""


def _flops(precision: str) -> str:
    return series("perf_flops_per_second", precision=precision)


def _vectors(precision: str) -> str:
    return series("perf_vectorization_ratio", precision=precision)


DERIVED: tuple[tuple[str, str, str, str, float], ...] = (
    ("hardware_events", "derv_ipc", "derv_ipc", "perf_instructions_per_cycle", 1.0),
    ("hardware_events", "derv_branch_miss_ratio", "derv_branch_miss_ratio", "perf_branch_miss_ratio", 1.0),
    ("hardware_events", "derv_cache_miss_ratio", "derv_cache_miss_ratio", "perf_cache_miss_ratio", 1.0),
    ("software_events", "derv_cpus_utilized", "derv_cpus_utilized", "perf_cpus_utilized", 1.0),
    ("L2", "derv_l2_bandwidth", "derv_l2_bandwidth [MB/s]", "perf_l2_bandwidth_bytes_per_second", 1e-6),
    ("L2cache", "derv_l2_request_rate", "derv_l2_request_rate", "perf_l2_requests_per_instruction", 1.0),
    ("L2cache", "derv_l2_miss_rate", "derv_l2_miss_rate", "perf_l2_misses_per_instruction", 1.0),
    ("L2cache", "derv_l2_miss_ratio", "derv_l2_miss_ratio", "perf_l2_miss_ratio", 1.0),
    ("L3", "derv_l3_bandwidth", "derv_l3_bandwidth [MB/s]", "perf_l3_bandwidth_bytes_per_second", 1e-6),
    ("L3cache", "derv_l3_request_rate", "derv_l3_request_rate", "perf_l3_requests_per_instruction", 1.0),
    ("L3cache", "derv_l3_miss_rate", "derv_l3_miss_rate", "perf_l3_misses_per_instruction", 1.0),
    ("L3cache", "derv_l3_miss_ratio", "derv_l3_miss_ratio", "perf_l3_miss_ratio", 1.0),
    ("FLOPS_SP", "derv_flops_sp", "derv_flops_sp [MFLOP/s]", _flops("single"), 1e-6),
    ("FLOPS_SP", "derv_vectorization_sp", "derv_vectorization_sp", _vectors("single"), 1.0),
    ("FLOPS_DP", "derv_flops_dp", "derv_flops_dp [MFLOP/s]", _flops("double"), 1e-6),
    ("FLOPS_DP", "derv_vectorization_dp", "derv_vectorization_dp", _vectors("double"), 1.0),
    ("FLOPS_any", "derv_flops_any", "derv_flops_any [MFLOP/s]", _flops("any"), 1e-6),
)
"""Group, key, header, our series and factor of what is derived."""


def perf_columns(place: Place, shared: Collection[str]) -> Sequence[Column]:
    """Return the events of a place's job, or of the machine where there is no job, by group, and what is derived.

    ``shared`` are the events that several groups count, whose headers name the group.
    """
    is_of_job = place.job is not None
    columns = [
        Column(
            path=(group, event),
            header=f"{event} ({group})" if event in shared else event,
            quantity=Growth(series=(name,), clock=COUNTED_SECONDS, is_of_job=is_of_job),
        )
        for (group, event), name in _events(place).items()
    ]
    columns += [
        Column(
            path=(group, key),
            header=header,
            quantity=Sum(series=(name,), times=times, is_of_job=is_of_job),
            is_whole=False,
        )
        for group, key, header, name, times in DERIVED
    ]
    order = list(dict.fromkeys([*GROUPS.values(), *(column.path[0] for column in columns)]))
    return sorted(columns, key=lambda column: order.index(column.path[0]))


def shared_events(places: Iterable[Place]) -> set[str]:
    """Name the events that more than one group counts on some of these places."""
    found = {(group, event) for place in places for group, event in _events(place)}
    counts = Counter(event for _, event in found)
    return {event for event, count in counts.items() if count > 1}


def _events(place: Place) -> dict[tuple[str, str], str]:
    """Return the series of each event by perfmon's group; a group that perfmon did not have keeps our name."""
    found: dict[tuple[str, str], str] = {}
    for name in place.of_host if place.job is None else place.of_job:
        if metric_name(name) == EVENTS:
            labels = split_series(name)[1]
            group = labels.get("group", "")
            # Where two of our groups are one of perfmon's, an event of both is told once.
            found.setdefault((GROUPS.get(group, group), labels.get("event", "")), name)
    return found
