"""How much of the CPUs was used."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedmon.report.findings import thresholds as limits
from fedmon.report.findings.case import Case, Node, unix
from fedmon.report.findings.finding import Finding, Severity, unknown
from fedmon.report.findings.waiting import pressure_shares
from fedmon.report.wording import counted, duration, listed, number, percent

_USER, _SYSTEM = "job_cpu_user_seconds_total", "job_cpu_system_seconds_total"
BUSY = "host_cpu_busy_ratio"
_NAME, _TITLE = "cpu-efficiency", "CPU efficiency"


class CpuUse(NamedTuple):
    """CPU seconds that a job used on one node within so many seconds, on so many CPUs."""

    used_s: float
    elapsed_s: float
    cpus: float
    of_whom: str

    @property
    def busy(self) -> float:
        """How many CPUs were busy on average."""
        return self.used_s / self.elapsed_s

    @property
    def ratio(self) -> float:
        """The share of the CPUs that was busy."""
        return self.busy / self.cpus


def cpu_use(node: Node) -> CpuUse | None:
    """Return what the job used of the CPUs of a node; None where it is not known."""
    user, system = node.one(_USER), node.one(_SYSTEM)
    cpus, of_whom = node.cpus
    if user is None or system is None or not cpus:
        return None
    if user.grown_s > 0:
        used_s = (user.increase or 0.0) + (system.increase or 0.0)
        return CpuUse(used_s, user.grown_s, cpus, of_whom)
    started = unix(node.document.get("started"))
    if started is None or user.last_t <= started:
        return None
    return CpuUse(user.last + system.last, user.last_t - started, cpus, of_whom)


def cpu_efficiency(case: Case) -> list[Finding]:
    """Say how much of its CPUs a job used; of nodes without a job, how busy they were."""
    if case.job is None:
        return _machines(case)
    uses = {node.name: use for node in case.nodes if (use := cpu_use(node)) is not None}
    if not uses:
        return [unknown(_NAME, _TITLE, _why_not(case))]
    used_s = sum(use.used_s for use in uses.values())
    capacity_s = sum(use.elapsed_s * use.cpus for use in uses.values())
    cpus, busy = sum(use.cpus for use in uses.values()), sum(use.busy for use in uses.values())
    ratio, elapsed_s = used_s / capacity_s, max(use.elapsed_s for use in uses.values())
    where = f"on {counted(len(uses), 'node')}" if len(uses) > 1 else f"on {next(iter(uses))}"
    is_of_machine = any(use.of_whom != "given to the job" for use in uses.values())
    whose = "of the machine" if is_of_machine else "that it was given"
    text = (
        f"The job used {duration(used_s)} of CPU time in {duration(elapsed_s)} {where}: {percent(ratio)} of the"
        f" {f'{number(cpus)} CPUs' if cpus != 1 else 'one CPU'} {whose}."
    )
    if cpus != 1:
        idle = f" and {number(cpus - busy)} idle" if busy < cpus else ""
        text += f" On average {number(busy)} of them were busy{idle}."
    severity, advice = _graded(ratio, busy, cpus, is_of_machine=is_of_machine)
    if advice and ratio < limits.CPU_HIGH.value and any(map(_lacked_cpus, case.nodes)):
        advice = "It wanted more CPUs than it got, as others used them: fewer would make it slower."
    return [
        Finding(
            name=_NAME,
            severity=severity,
            title=_TITLE,
            text=text,
            how="CPU seconds of all processes that the job ever had, user and system, divided by elapsed time x CPUs"
            + (
                "; how many CPUs the job was given is not known, so all of the machine's count" if is_of_machine else ""
            ),
            advice=advice,
            figures={
                "ratio": ratio,
                "cpu_seconds": used_s,
                "elapsed_seconds": elapsed_s,
                "cpus": cpus,
                "cpus_busy": busy,
            },
            nodes=tuple(uses),
        )
    ]


def _lacked_cpus(node: Node) -> bool:
    """Tell whether threads of the job often had to wait for a CPU."""
    return pressure_shares(node, of_job=True).get(("cpu", "some"), 0.0) >= limits.CPU_PRESSURE_HIGH.value


def _graded(ratio: float, busy: float, cpus: float, *, is_of_machine: bool) -> tuple[Severity, str]:
    if ratio > 1.05:
        return Severity.NOTE, "More CPUs were busy than the job was given: check how many it asked for."
    if ratio >= limits.CPU_HIGH.value:
        return Severity.GOOD, "It could use more CPUs, if the program scales."
    if ratio > limits.CPU_LOW.value or cpus <= 1:
        return (Severity.GOOD, "") if ratio > limits.CPU_LOW.value else (Severity.NOTE, "It mostly waited.")
    advice = (
        "About one CPU was busy: the program seems to run with one thread. Ask for one CPU, or let it use several."
        if 0.7 < busy < 1.3
        else f"Ask for {counted(max(1, math.ceil(busy)), 'CPU')}, or find out what it waits for, such as storage."
    )
    if is_of_machine:
        return Severity.NOTE, advice
    return (Severity.WARNING if ratio > limits.CPU_VERY_LOW.value else Severity.PROBLEM), advice


def _machines(case: Case) -> list[Finding]:
    busy = {node.name: total.mean for node in case.nodes if (total := node.one(BUSY)) is not None}
    if not busy:
        return [unknown("cpu-use", "CPU use", next((node.why_not(BUSY) for node in case.nodes), "no node"))]
    mean = sum(busy.values()) / len(busy)
    full = sorted((name for name in busy if busy[name] >= limits.CPU_HIGH.value), key=lambda name: -busy[name])
    if len(busy) == 1:
        text = f"The CPUs of {next(iter(busy))} were busy for {percent(mean)} of the time."
    else:
        most, least = max(busy, key=lambda name: busy[name]), min(busy, key=lambda name: busy[name])
        text = (
            f"The CPUs of {len(busy)} nodes were busy for {percent(mean)} of the time: most on {most}"
            f" ({percent(busy[most])}), least on {least} ({percent(busy[least])})."
        )
    if full:
        text += f" Full all the time: {listed(full)}."
    return [
        Finding(
            name="cpu-use",
            severity=Severity.WARNING if full else Severity.NOTE,
            title="CPU use",
            text=text,
            how="mean of the busy share of all CPUs over time; idle and waiting for disks are not busy",
            advice="More work on these nodes will make all of it slower." if full else "",
            figures={"ratio": mean, "most_ratio": max(busy.values()), "least_ratio": min(busy.values())},
            nodes=tuple(full or busy),
        )
    ]


def _why_not(case: Case) -> str:
    if any(node.one(_USER) is not None for node in case.nodes):
        return "one sample of the job is too few for CPU time over elapsed time"
    return next((node.why_not(_USER, _SYSTEM) for node in case.nodes), "no node recorded the job")
