"""Load of the GPUs, and causes that held their clocks down."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedmon.common.text import joined, percent, plural, size
from fedmon.report.findings import thresholds as limits
from fedmon.report.findings.case import Case, Finding, Node, Severity, past, unknown

USE = "gpu_utilization_ratio"
_OF_JOB = ("job_gpu_processes", "job_gpu_memory_bytes", "job_gpu_sm_ratio")
_TITLE = "GPU use"
_THROTTLED = "gpu_throttle_active"
_HEAT = {"software_thermal", "hardware_thermal"}


class GpuUse(NamedTuple):
    """One GPU of one node: mean use, share of the time below 5 %, and memory at its peak, of how much."""

    name: str
    gpu: str
    mean: float
    idle_share: float
    memory: tuple[float, float] | None
    is_used_by_job: bool


def gpu_uses(node: Node) -> list[GpuUse]:
    """Return the use of each GPU of a node that reports it."""
    of_job = {labels.get("gpu") for metric in _OF_JOB for labels, total in node.all(metric) if total.high > 0}
    uses = []
    for labels, total in node.all(USE):
        gpu = labels.get("gpu", "?")
        used, capacity = node.one("gpu_memory_used_bytes", gpu=gpu), node.one("gpu_memory_total_bytes", gpu=gpu)
        uses.append(
            GpuUse(
                name=f"GPU {gpu} of {node.name}",
                gpu=gpu,
                mean=total.mean,
                idle_share=sum(share for value, share in total.levels if value < limits.GPU_BUSY),
                memory=(used.high, capacity.last) if used is not None and capacity is not None else None,
                is_used_by_job=gpu in of_job,
            )
        )
    return uses


def gpus_given(node: Node) -> list[str] | None:
    """Return the GPUs that the job was given on a node, as the labels name them; None if unknown."""
    given = node.document.get("gpus")
    if not isinstance(given, list):
        return None
    by_uuid: dict[Any, str] = {labels.get("uuid"): labels.get("gpu", "") for labels, _ in node.all("gpu_info")}
    return [by_uuid.get(one, str(one)) for one in given]


def gpus(case: Case) -> Finding | None:
    """Say which GPUs stood idle, and how busy the others were."""
    uses = [use for node in case.nodes for use in (gpu_uses(node) if case.job is None else _of_job(node))]
    if uses:
        return _judged(case, uses)
    others = [use for node in case.nodes if gpus_given(node) is None for use in gpu_uses(node)]
    return _untouched(others) if others else _none(case)


def gpu_errors(case: Case) -> Finding | None:
    """Say when the memory of a GPU had errors that could not be corrected."""
    found: dict[str, float] = {}
    for node in case.nodes:
        for labels, total in node.all("gpu_ecc_errors_total"):
            if labels.get("type") == "uncorrected" and labels.get("counter") == "volatile" and total.increase:
                found[f"GPU {labels.get('gpu', '?')} of {node.name}"] = total.increase
    if not found:
        return None
    return Finding(
        name="gpu-errors",
        severity=Severity.PROBLEM,
        title="Errors in GPU memory",
        text=f"Memory errors that could not be corrected: {joined([f'{n} {int(v)}' for n, v in found.items()])}.",
        advice="Results of this run may be wrong; tell the operator which GPU it was.",
        figures={"errors": sum(found.values())},
        nodes=tuple(found),
    )


def _judged(case: Case, uses: list[GpuUse]) -> Finding:
    idle = [use for use in uses if use.idle_share >= limits.GPU_IDLE]
    often = [use for use in uses if limits.GPU_OFTEN_IDLE <= use.idle_share < limits.GPU_IDLE]
    low = [use for use in uses if use.mean <= limits.GPU_LOW and use not in idle and use not in often]
    mean = sum(use.mean for use in uses) / len(uses)
    whose = "of the job " if case.job is not None else ""
    were = "was" if len(uses) == 1 else "were"
    parts = [f"{plural(len(uses), 'GPU')} {whose}{were} busy for {percent(mean)} of the time on average."]
    if idle:
        parts.append(f"Idle: {_told(idle)}.")
    if often:
        parts.append(f"Often idle: {_told(often)}.")
    if low:
        parts.append(f"Little used: {joined([f'{use.name} ({percent(use.mean)} on average)' for use in low])}.")
    if peaks := [
        (peak / total, peak, total, use.name) for use in uses for peak, total in [use.memory or (0, 0)] if total
    ]:
        _, peak, total, name = max(peaks, key=lambda one: one[0])
        parts.append(f"Peak of device memory: {size(peak)} of {size(total)} on {name}.")
    severity, advice = Severity.GOOD, ""
    if idle:
        severity = Severity.PROBLEM if case.job is not None else Severity.WARNING
        advice = "Ask for fewer GPUs, or check that the program was built for them and finds them."
    elif often or low:
        severity = Severity.WARNING
        advice = "Let input be prepared ahead and by several processes, or make batches larger."
    return Finding(
        name="gpu-use",
        severity=severity,
        title=_TITLE,
        text=" ".join(parts),
        advice=advice,
        figures={
            "gpus": float(len(uses)),
            "gpus_idle": float(len(idle)),
            "ratio": mean,
            "idle_share": max(use.idle_share for use in uses),
        },
        nodes=tuple(use.name for use in (idle or often or low)),
    )


def _untouched(uses: list[GpuUse]) -> Finding:
    return Finding(
        name="gpu-use",
        severity=Severity.NOTE,
        title=_TITLE,
        text=f"No process of the job used any of the {plural(len(uses), 'GPU')} of its nodes; which of them were"
        " assigned to it is unknown.",
        advice="If the job asked for GPUs, check that the program finds them.",
        figures={"gpus": float(len(uses)), "gpus_idle": None},
    )


def _none(case: Case) -> Finding | None:
    if case.nodes and all(node.host.hardware.get("gpus") == [] for node in case.nodes):
        return None
    given = [node for node in case.nodes if node.document.get("gpus")]
    return unknown(given or case.nodes, "gpu-use", _TITLE, USE)


def _told(uses: list[GpuUse]) -> str:
    return joined([f"{use.name} (below 5 % for {percent(use.idle_share)} of the time)" for use in uses])


def gpu_clock(case: Case) -> Finding | None:
    """Say for how long heat held the clocks of GPUs down."""
    shares: dict[str, float] = {}
    for node in case.nodes:
        for labels, total in node.all(_THROTTLED):
            if labels.get("reason") in _HEAT:
                name = f"GPU {labels.get('gpu', '?')} of {node.name}"
                shares[name] = max(shares.get(name, 0.0), total.mean)
    held = past(shares, limits.THROTTLED)
    if not held:
        return None
    most = max(held.values())
    return Finding(
        name="gpu-thermal",
        severity=Severity.PROBLEM if most >= limits.THROTTLED_MUCH else Severity.WARNING,
        title="GPU slowed by heat",
        text="Heat held clocks down:"
        f" {joined([f'{name} for {percent(share)} of the time' for name, share in held.items()])}.",
        advice="Tell the operator: cooling does not keep up.",
        figures={"ratio": most},
        nodes=tuple(held),
    )


def _of_job(node: Node) -> list[GpuUse]:
    given = gpus_given(node)
    return [use for use in gpu_uses(node) if use.is_used_by_job or (given is not None and use.gpu in given)]
