"""Stalls: work that waited for disks, a resource, a quota, heat, or the host of a virtual machine."""

from __future__ import annotations

from collections.abc import Mapping

from fedmon.common.text import joined, percent
from fedmon.report.findings import thresholds as limits
from fedmon.report.findings.case import Case, Finding, Node, Severity, past, unknown

_SECONDS = "host_cpu_seconds_total"
_SHARED = " of the machine, which other jobs may share,"
WAITS = {
    "memory": ("full", limits.PRESSURE_HIGH, "memory", "Memory is short: ask for more, or run less at once."),
    "io": ("full", limits.PRESSURE_HIGH, "storage",
           "Storage is the bottleneck: larger pieces, fewer files, or a faster file system."),
    "cpu": ("some", limits.CPU_PRESSURE_HIGH, "a CPU",
            "More threads want to run than there are CPUs: start fewer, or ask for more CPUs."),
}  # fmt: skip
"""By resource: the kind of pressure, the share of the time from which on it is told, the words for it, and advice."""


def mode_share(node: Node, mode: str) -> float | None:
    """Return the share of the CPU time of a machine in one mode; None if unknown."""
    grown = {labels.get("mode"): total.increase or 0.0 for labels, total in node.all(_SECONDS) if total.grown_s > 0}
    whole = sum(grown.values())
    return grown[mode] / whole if mode in grown and whole > 0 else None


def io_wait(case: Case) -> Finding | None:
    """Report the CPU time lost to waiting for disks, as a note unless the job is known to have waited there."""
    shares = {node.name: share for node in case.nodes if (share := mode_share(node, "iowait")) is not None}
    if not shares:
        return unknown(case.nodes, "io-wait", "I/O wait", _SECONDS)
    most = max(shares, key=lambda name: shares[name])
    share = shares[most]
    severity, whose, advice = Severity.GOOD, "", ""
    waiting = past(_pressures(case, "io", "full", of_job=True), limits.PRESSURE_HIGH)
    if share >= limits.IO_WAIT_HIGH and case.job is not None and most not in waiting:
        severity, whose = Severity.NOTE, _SHARED
    elif share >= limits.IO_WAIT_HIGH:
        severity = Severity.PROBLEM if share >= limits.IO_WAIT_VERY_HIGH else Severity.WARNING
        advice = "Read and write less often and in larger pieces, or use faster storage such as a local disk."
    which = f" on {most}" if len(shares) == 1 else f" on {most}, the most of {len(shares)} nodes"
    return Finding(
        name="io-wait",
        severity=severity,
        title="I/O wait",
        text=f"CPUs{whose} waited for disks for {percent(share)} of the time{which}.",
        advice=advice,
        figures={"ratio": share},
        nodes=(most,),
    )


def pressure_share(node: Node, resource: str, kind: str, *, of_job: bool) -> float | None:
    """Return the share of the time in which some or all work waited for a resource; None if unknown."""
    total = (
        node.one("job_pressure_seconds_total", resource=resource, kind=kind)
        if of_job
        else node.one("host_pressure_seconds_total", resource=resource, stalled=kind)
    )
    return None if total is None else total.per_second


def _pressures(case: Case, resource: str, kind: str, *, of_job: bool) -> dict[str, float]:
    found = {node.name: pressure_share(node, resource, kind, of_job=of_job) for node in case.nodes}
    return {name: share for name, share in found.items() if share is not None}


def pressure(case: Case, resource: str) -> Finding | None:
    """Report work that waited for a resource, one of `WAITS`."""
    kind, limit, words, advice = WAITS[resource]
    of_job, of_machine = (_pressures(case, resource, kind, of_job=of_job) for of_job in (True, False))
    shares = past(of_job or of_machine, limit)
    if not shares:
        return None
    is_shared = case.job is not None and not of_job
    whose = " of the job" if of_job else _SHARED if is_shared else ""
    who = ("some thread" if kind == "some" else "all work") + whose
    return Finding(
        name=f"pressure-{resource}",
        severity=Severity.NOTE if is_shared else Severity.WARNING,
        title=f"Waiting for {words}",
        text=f"{who.capitalize()} waited for {words}: {_times(shares)}.",
        advice="" if is_shared else advice,
        figures={"ratio": max(shares.values())},
        nodes=tuple(shares),
    )


def steal(case: Case) -> Finding | None:
    """Report CPU time that the host of a virtual machine gave to others."""
    shares = {node.name: share for node in case.nodes if (share := mode_share(node, "steal")) is not None}
    stolen = past(shares, limits.STOLEN)
    if not stolen:
        return None
    return Finding(
        name="steal",
        severity=Severity.WARNING,
        title="CPU time given to others",
        text=f"The host of virtual machines gave their CPU time to others: {_times(stolen)}.",
        advice="Timings of this run cannot be compared; ask the operator for machines that are not shared.",
        figures={"ratio": max(stolen.values())},
        nodes=tuple(stolen),
    )


def _times(shares: Mapping[str, float]) -> str:
    return joined([f"{name} {percent(share)} of the time" for name, share in shares.items()])
