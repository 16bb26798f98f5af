"""The groups that every architecture has, and the choice of what is counted."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fedmon.node.collectors.base import Why
from fedmon.node.perf.event import Architecture, Counter, Derived, Event, Group, PerfScope

DEFAULT_COUNTERS = 4
"""General counters where the architecture is not known: what Intel cores with two threads have had since 2011."""

TASK_CLOCK = "task-clock"
KERNEL_EVENTS = frozenset({"context-switches", "cpu-migrations"})
"""Events that happen inside the kernel: counted for user mode only, perf prints a 0 that is none."""


def _software(*names: str) -> tuple[Event, ...]:
    return tuple(Event(name=name, config=name, counter=Counter.SOFTWARE) for name in names)


_EVERYWHERE = ("context-switches", "cpu-migrations", "page-faults", "minor-faults", "major-faults")

# System-wide, task-clock runs on idle CPUs too and says nothing.
SOFTWARE: Mapping[PerfScope, Group] = {
    PerfScope.HOST: Group(name="software", events=_software(*_EVERYWHERE), together=False),
    PerfScope.JOB: Group(
        name="software",
        events=_software(TASK_CLOCK, *_EVERYWHERE),
        derived=(Derived(metric="perf_cpus_utilized", formula="task_clock / seconds", topic="software"),),
        together=False,
    ),
}

# Perf's own words for them: the kernel knows their codes on each processor (Linux uapi/linux/perf_event.h,
# PERF_TYPE_HARDWARE). Pairs, so that the kernel can rotate them between few counters.
GENERIC: tuple[Group, ...] = (
    Group(
        name="cycles",
        events=(Event(name="cycles", config="cycles"), Event(name="instructions", config="instructions")),
        derived=(Derived(metric="perf_instructions_per_cycle", formula="instructions / cycles", topic="cycles"),),
    ),
    Group(
        name="branches",
        events=(Event(name="branches", config="branches"), Event(name="branch-misses", config="branch-misses")),
        derived=(Derived(metric="perf_branch_miss_ratio", formula="branch_misses / branches", topic="branches"),),
    ),
    Group(
        name="cache",
        events=(
            Event(name="cache-references", config="cache-references"),
            Event(name="cache-misses", config="cache-misses"),
        ),
        derived=(Derived(metric="perf_cache_miss_ratio", formula="cache_misses / cache_references", topic="cache"),),
    ),
)

OF_ARCHITECTURE: Mapping[str, tuple[str, ...]] = {
    "l2": ("perf_l2_bandwidth_bytes_per_second",),
    "l2cache": ("perf_l2_requests_per_instruction", "perf_l2_misses_per_instruction", "perf_l2_miss_ratio"),
    "l3": ("perf_l3_bandwidth_bytes_per_second",),
    "l3cache": ("perf_l3_requests_per_instruction", "perf_l3_misses_per_instruction", "perf_l3_miss_ratio"),
    "flops_sp": ('perf_flops_per_second{precision="single"}', 'perf_vectorization_ratio{precision="single"}'),
    "flops_dp": ('perf_flops_per_second{precision="double"}', 'perf_vectorization_ratio{precision="double"}'),
    "memory": ("perf_memory_bandwidth_bytes_per_second",),
}
"""Topics that need the table of an architecture, and the series that each promises."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be probed, and the series that need no probe because this machine cannot have them."""

    groups: tuple[Group, ...]
    missing: Mapping[str, str]


def choose(
    topics: tuple[str, ...],
    *,
    scope: PerfScope,
    architecture: Architecture | None,
    described: str,
    counters: int = DEFAULT_COUNTERS,
) -> Choice:
    """Choose the groups for these topics; the software events are always among them.

    ``described`` is the processor in words, for reasons.
    """
    asked = (*topics, "software")
    missing: dict[str, str] = {}
    groups = [SOFTWARE[scope]]
    candidates = [group for group in GENERIC if group.name in topics]
    if architecture is None:
        text = f"{Why.UNSUPPORTED.value}: there is no table of events for {described}"
        missing |= {name: text for topic in topics for name in OF_ARCHITECTURE.get(topic, ())}
    else:
        candidates += [group for group in architecture.groups if group.asked(topics)]
        missing |= {
            name: f"{Why.UNSUPPORTED.value}: {why}"
            for name, (topic, why) in architecture.missing.items()
            if topic in topics
        }
    for group in candidates:
        reason = _impossible(group, scope, counters)
        if reason is None:
            groups.append(group)
        else:
            missing |= {one.series: reason for one in group.asked(asked)}
    return Choice(groups=tuple(groups), missing=missing)


def _impossible(group: Group, scope: PerfScope, counters: int) -> str | None:
    if group.shared and scope is PerfScope.JOB:
        return f"{Why.UNSUPPORTED.value}: all cores share these counters, so that only the whole machine can be counted"
    if group.together and group.cost > counters:
        return (
            f"{Why.UNSUPPORTED.value}: its events take {group.cost} counters at once, and a thread here has {counters}"
        )
    return None
