"""Findings: pure functions from totals to texts."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from fedmon.report.findings import completeness, cpu, energy, gpu, memory, run, stalls
from fedmon.report.findings.case import Case, Finding, Node, Severity
from fedmon.report.findings.thresholds import FEW_SAMPLES

__all__ = ["Case", "Finding", "Node", "Severity", "find"]

_FINDERS: tuple[Callable[[Case], Finding | None], ...] = (
    completeness.samples,
    completeness.absent_nodes,
    completeness.one_machine,
    run.ending,
    memory.oom_kills,
    cpu.cpu_efficiency,
    memory.memory,
    gpu.gpus,
    gpu.gpu_errors,
    stalls.io_wait,
    *(functools.partial(stalls.pressure, resource=resource) for resource in stalls.WAITS),
    cpu.cpu_quota,
    gpu.gpu_clock,
    cpu.imbalance,
    stalls.steal,
    energy.energy,
    energy.emissions,
    run.time_limit,
    completeness.gaps,
    run.finder,
)


_ALWAYS = frozenset(
    {"samples", "absent-nodes", "ending", "oom-kills", "gpu-errors", "memory-peak", "finder", "time-limit", "gaps"}
)
"""Findings that do not rest on shares of time or means, so that a few samples are enough for them."""


def find(case: Case) -> list[Finding]:
    """Return all findings, most severe first."""
    found = [finding for finder in _FINDERS if (finding := finder(case)) is not None]
    if not any(node.streams for node in case.nodes):
        # Without a sample each of the others would only say that there is none.
        found = [one for one in found if one.severity is not Severity.UNKNOWN or one.name == "ending"]
    if 0 < max((stream.samples for _, stream in completeness.main_streams(case)), default=0) < FEW_SAMPLES:
        found = [_softened(one) for one in found]
    return sorted(found, key=lambda one: [*Severity].index(one.severity))


def _softened(one: Finding) -> Finding:
    """Turn advice from few samples into a note without advice."""
    if one.name in _ALWAYS or not one.advice:
        return one
    text = f"{one.text} Too few samples to rely on it."
    return msgspec.structs.replace(one, severity=Severity.NOTE, text=text, advice="")
