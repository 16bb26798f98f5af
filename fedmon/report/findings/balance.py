"""Whether the nodes and GPUs of a job did the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedmon.common.text import percent, size
from fedmon.report.amounts import number
from fedmon.report.findings import thresholds as limits
from fedmon.report.findings.case import Case, Finding, Node, Severity, unknown
from fedmon.report.findings.cpu import cpu_use
from fedmon.report.findings.gpu import GpuUse, gpu_uses, gpus_given
from fedmon.report.findings.memory import memory_use
from fedmon.report.findings.traffic import network_bytes

_NAME, _TITLE = "imbalance", "Balance of the nodes"


def imbalance(case: Case) -> list[Finding]:
    """Say how unequally the nodes of a job were loaded."""
    if case.job is None or len(case.nodes) < 2:
        return []
    cpus = {node.name: cpu.busy for node in case.nodes if (cpu := cpu_use(node)) is not None}
    if len(cpus) < 2:
        why = next((node.why_not("job_cpu_user_seconds_total") for node in case.nodes), "")
        return [unknown(_NAME, _TITLE, f"fewer than two nodes tell the CPU time of the job: {why}")]
    memory = {node.name: use.peak for node in case.nodes if (use := memory_use(node)) is not None}
    network = {node.name: sum(both) for node in case.nodes if (both := network_bytes(node)) is not None}
    compared: dict[str, tuple[dict[str, float], float, Callable[[float], str]]] = {
        "CPU": (cpus, limits.NEGLIGIBLE_CPUS.value, lambda value: f"{number(value)} CPUs busy"),
        "memory": (memory, limits.NEGLIGIBLE_BYTES.value, lambda value: f"{size(value)} at the peak"),
        "network": (network, limits.NEGLIGIBLE_BYTES.value, lambda value: f"{size(value)} sent and received"),
    }
    figures: dict[str, float | None] = {}
    told: list[str] = []
    for what, (values, negligible, say) in compared.items():
        ratio = unequal(values, negligible)
        figures[f"{what.lower()}_ratio"] = ratio
        if ratio is not None and ratio >= limits.IMBALANCE.value:
            most, least = max(values, key=lambda name: values[name]), min(values, key=lambda name: values[name])
            told.append(f"{what}: {most} {say(values[most])}, {least} {say(values[least])}")
    cpu_ratio = figures["cpu_ratio"]
    is_cpu = cpu_ratio is not None and cpu_ratio >= limits.IMBALANCE.value
    return [
        Finding(
            name=_NAME,
            severity=Severity.WARNING if is_cpu else Severity.NOTE if told else Severity.GOOD,
            title=_TITLE,
            text=f"The {len(case.nodes)} nodes of the job were loaded unequally. {'. '.join(told)}."
            if told
            else f"The {len(case.nodes)} nodes of the job were loaded alike"
            + (f": the mean of their busy CPUs lies {percent(cpu_ratio)} below the busiest." if cpu_ratio else "."),
            how="how far the mean of the nodes lies below the largest, for busy CPUs, peak memory, and network traffic",
            advice="Divide the work more evenly, or ask for fewer nodes: the others wait for the busiest."
            if is_cpu
            else "",
            figures=figures,
            nodes=tuple(node.name for node in case.nodes),
        )
    ]


def gpu_imbalance(case: Case) -> list[Finding]:
    """Say when the GPUs of a job were used unequally."""
    if case.job is None:
        return []
    uses = {use.name: use.mean for node in case.nodes for use in _of_job(node)}
    ratio = unequal(uses, limits.GPU_LOW.value)
    if ratio is None or ratio < limits.IMBALANCE.value:
        return []
    most, least = max(uses, key=lambda name: uses[name]), min(uses, key=lambda name: uses[name])
    return [
        Finding(
            name="gpu-imbalance",
            severity=Severity.WARNING,
            title="Balance of the GPUs",
            text=f"The {len(uses)} GPUs of the job were used unequally: {most} was busy for {percent(uses[most])} of"
            f" the time, {least} for {percent(uses[least])}.",
            how="how far the mean of the GPUs lies below the busiest",
            advice="Check that every process has a GPU of its own, and a like share of the work.",
            figures={"ratio": ratio},
            nodes=(most, least),
        )
    ]


def unequal(values: Mapping[str, float], negligible: float) -> float | None:
    """Return how far the mean lies below the largest, 0 to 1; None where that says nothing."""
    if len(values) < 2 or max(values.values()) <= negligible:
        return None
    return 1 - sum(values.values()) / len(values) / max(values.values())


def _of_job(node: Node) -> list[GpuUse]:
    given = gpus_given(node)
    return [use for use in gpu_uses(node) if use.is_used_by_job or (given is not None and use.gpu in given)]
