"""Use of the CPUs, and the limits that kept a job from them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from fedmon.common.text import duration, joined, percent, plural
from fedmon.report.amounts import significant
from fedmon.report.findings import thresholds as limits
from fedmon.report.findings.case import Case, Finding, Node, Severity, directive, most_at_once, past, unix, unknown
from fedmon.report.findings.stalls import pressure_share

_USER, _SYSTEM = "job_cpu_user_seconds_total", "job_cpu_system_seconds_total"
BUSY = "host_cpu_busy_ratio"
_MOST_BUSY, _THREADS, _QUOTA = "job_cpus_busy", "job_threads", "job_cpu_throttled_seconds_total"
_COARSE_S = 5.0
"""Samples further apart than this average out phases in which a program is parallel."""
_ROUNDING = 0.1
"""One busy thread can read as this much more than one CPU: times of processes are whole ticks."""
_NAME, _TITLE = "cpu-efficiency", "CPU efficiency"


class CpuUse(NamedTuple):
    """CPU seconds that a job used on one node until a time, with the elapsed seconds and the number of CPUs.

    The CPUs are those of the machine if the job's share is unknown.
    """

    used_s: float
    elapsed_s: float
    until_t: float
    cpus: float
    is_of_machine: bool

    @property
    def busy(self) -> float:
        """How many CPUs were busy on average."""
        return self.used_s / self.elapsed_s

    @property
    def ratio(self) -> float:
        """The share of the CPUs that was busy."""
        return self.busy / self.cpus


def cpu_use(node: Node) -> CpuUse | None:
    """Return the job's use of the CPUs of a node; None if unknown."""
    user, system = node.one(_USER), node.one(_SYSTEM)
    cpus, is_of_machine = node.cpus
    if user is None or system is None or not cpus:
        return None
    if user.grown_s > 0:
        used_s = (user.increase or 0.0) + (system.increase or 0.0)
        return CpuUse(used_s, user.grown_s, user.last_t, cpus, is_of_machine)
    started = unix(node.document.get("started"))
    if started is None or user.last_t <= started:
        return None
    return CpuUse(user.last + system.last, user.last_t - started, user.last_t, cpus, is_of_machine)


def cpu_efficiency(case: Case) -> Finding | None:
    """Report the CPU use of a job; of nodes without a job, their load."""
    if case.job is None:
        return _machines(case)
    uses = {node.name: use for node in case.nodes if (use := cpu_use(node)) is not None}
    if not uses:
        is_one = any(node.one(_USER) is not None for node in case.nodes)
        reason = "one sample of the job is too few for CPU time over elapsed time" if is_one else ""
        return unknown(case.nodes, _NAME, _TITLE, _USER, _SYSTEM, reason=reason)
    used_s = sum(use.used_s for use in uses.values())
    shared = _shared(case, uses)
    held = [(_together_s([use for _, use in ranks]), max(use.cpus for _, use in ranks)) for ranks in shared]
    ratio, elapsed_s = used_s / sum(time_s * cpus for time_s, cpus in held), max(time_s for time_s, _ in held)
    cpus = sum(cpus for _, cpus in held)
    busy = ratio * cpus
    where = f"on {plural(len(uses), 'node')}" if len(uses) > 1 else f"on {next(iter(uses))}"
    is_of_machine = any(use.is_of_machine for use in uses.values())
    whose = f"of the machine{'s' if len(held) > 1 else ''}" if is_of_machine else "that it was given"
    text = (
        f"The job used {duration(used_s)} of CPU time in {duration(elapsed_s)} {where}: {percent(ratio)} of the"
        f" {f'{significant(cpus)} CPUs' if cpus != 1 else 'one CPU'} {whose}."
    )
    if cpus != 1:
        idle = f" and {significant(cpus - busy)} idle" if busy < cpus else ""
        text += f" On average {significant(busy)} of them were busy{idle}."
    peaks = [_peaks(ranks) for ranks in shared]
    most_busy = min(sum(most_at_once(each)[0] for each in peaks), cpus if is_of_machine else math.inf)
    if most_busy > busy + _ROUNDING and cpus != 1:
        text += f" At most {significant(most_busy)} were busy at once."
    severity, advice = _graded(ratio, cpus, shared, is_of_machine=is_of_machine)
    starved = {node.name: share for node in case.nodes if (share := _starved(node, ratio)) is not None}
    if starved and ratio < limits.CPU_HIGH:
        most = max(starved, key=lambda name: starved[name])
        text += f" It was starved on {most}: for {percent(starved[most])} of the time it wanted a CPU and had none."
        severity, advice = Severity.WARNING, "It wanted more CPUs than it got: fewer would make it slower."
    return Finding(
        name=_NAME,
        severity=severity,
        title=_TITLE,
        text=text,
        advice=advice,
        figures={
            "ratio": ratio,
            "cpu_seconds": used_s,
            "elapsed_seconds": elapsed_s,
            "cpus": cpus,
            "cpus_busy": busy,
            "most_cpus_busy": most_busy if any(peaks) else None,
        },
        nodes=tuple(uses),
    )


_Ranks = Sequence[tuple[Node, CpuUse]]
"""Nodes that share the same CPUs, with their uses."""


def _shared(case: Case, uses: Mapping[str, CpuUse]) -> Collection[_Ranks]:
    found: dict[object, list[tuple[Node, CpuUse]]] = defaultdict(list)
    for node in case.nodes:
        if (use := uses.get(node.name)) is not None:
            found[(node.host.machine or node.name) if use.is_of_machine else node.share].append((node, use))
    return found.values()


def _together_s(uses: Sequence[CpuUse]) -> float:
    """Return for how long any of them used the CPUs that they share."""
    seconds, until_t = 0.0, -math.inf
    for use in sorted(uses, key=lambda use: use.until_t - use.elapsed_s):
        seconds += min(use.elapsed_s, max(0.0, use.until_t - until_t))
        until_t = max(until_t, use.until_t)
    return seconds


def _starved(node: Node, ratio: float) -> float | None:
    """Return the share of the time in which the job's threads waited for a CPU; None if they never did."""
    full, some = (pressure_share(node, "cpu", kind, of_job=True) or 0.0 for kind in ("full", "some"))
    if full >= limits.PRESSURE_HIGH:
        return max(full, some)
    # Threads of a program that is parallel in phases also wait for each other: CPUs must have been left over.
    return some if some >= limits.CPU_PRESSURE_HIGH and ratio <= limits.CPU_LOW else None


def _graded(ratio: float, cpus: float, shared: Collection[_Ranks], *, is_of_machine: bool) -> tuple[Severity, str]:
    if ratio > 1.05:
        return Severity.NOTE, "More CPUs were busy than the job was given: check how many it asked for."
    if ratio >= limits.CPU_HIGH:
        return Severity.GOOD, "It could use more CPUs, if the program scales."
    if ratio > limits.CPU_LOW or cpus <= len(shared):
        return (Severity.GOOD, "") if ratio > limits.CPU_LOW else (Severity.NOTE, "It mostly waited.")
    needed = sum(map(_needed_together, shared))
    if needed >= cpus:
        text = "In some phases it used all of them: fewer would make it slower. Find the cause of the waits in between."
        return Severity.NOTE, text
    uses = [rank for ranks in shared for rank in ranks]
    hidden_s = max(_hidden_s(node, use) for node, use in uses)
    if hidden_s:
        text = f"Measure more often before asking for fewer: {duration(hidden_s)} between samples hide short phases."
        return Severity.NOTE, text
    advice = (
        "About one CPU was busy: the program seems to run with one thread. Ask for one CPU, or let it use several."
        if needed == 1 and uses[0][1].busy > 0.7
        else f"Ask for {plural(needed, 'CPU')}, or find the cause of its waits, such as storage."
    )
    if len(uses) == 1:
        advice += directive(uses[0][0], cpus=needed)
    if is_of_machine:
        return Severity.NOTE, advice
    return (Severity.WARNING if ratio > limits.CPU_VERY_LOW else Severity.PROBLEM), advice


def _needed_together(ranks: _Ranks) -> int:
    """Return the number of CPUs that nodes with the same CPUs need: a busy part of one each is no whole one each."""
    needed = int(most_at_once((node, _needed(node, use)) for node, use in ranks)[0])
    peaks = _peaks(ranks)
    return min(needed, max(1, math.ceil(most_at_once(peaks)[0] - _ROUNDING))) if len(peaks) == len(ranks) else needed


def _peaks(ranks: _Ranks) -> list[tuple[Node, float]]:
    return [(node, peak.high) for node, _ in ranks if (peak := node.one(_MOST_BUSY)) is not None]


def _needed(node: Node, use: CpuUse) -> int:
    """Return the number of CPUs with which the job would take hardly longer, by the distribution of busy CPUs."""
    busy = node.one(_MOST_BUSY)
    needed = max(1, math.ceil(use.busy - _ROUNDING))
    if busy is None or not busy.levels:
        return max(needed, 0 if busy is None else math.ceil(min(busy.high - _ROUNDING, use.cpus)))
    most = max(needed, math.ceil(use.cpus))
    while needed < most:  # bisect takes no range of more than 64 bits
        middle = (needed + most) // 2
        if _longer(busy.levels, middle) > limits.LONGER:
            needed = middle + 1
        else:
            most = middle
    return needed


def _longer(levels: Sequence[tuple[float, float]], cpus: int) -> float:
    """Return the relative extra time of the job with this number of CPUs, if it used them fully."""
    return sum(share * max(0.0, (busy - _ROUNDING) / cpus - 1) for busy, share in levels)


def _hidden_s(node: Node, use: CpuUse) -> float:
    """Return the time between samples if more threads could have run then than CPUs were seen busy; else 0."""
    threads, interval_s = node.one(_THREADS), (None if node.job is None else node.job.interval_s) or 0.0
    may_hide = threads is not None and threads.high > _needed(node, use)
    return interval_s if may_hide and interval_s > _COARSE_S else 0.0


def _machines(case: Case) -> Finding | None:
    busy = {node.name: total.mean for node in case.nodes if (total := node.one(BUSY)) is not None}
    if not busy:
        return unknown(case.nodes, "cpu-use", "CPU use", BUSY)
    mean = sum(busy.values()) / len(busy)
    full = past(busy, limits.CPU_HIGH)
    whose = f"{len(busy)} nodes" if len(busy) > 1 else next(iter(busy))
    text = f"The CPUs of {whose} were busy for {percent(mean)} of the time"
    most, least = max(busy, key=lambda name: busy[name]), min(busy, key=lambda name: busy[name])
    if percent(busy[most]) != percent(busy[least]):
        text += f": most on {most} ({percent(busy[most])}), least on {least} ({percent(busy[least])})"
    text += "."
    if full:
        text += f" Full all the time: {joined([*full])}."
    return Finding(
        name="cpu-use",
        severity=Severity.WARNING if full else Severity.NOTE,
        title="CPU use",
        text=text,
        advice="More work on these nodes will make all of it slower." if full else "",
        figures={"ratio": mean, "most_ratio": max(busy.values()), "least_ratio": min(busy.values())},
        nodes=tuple(full or busy),
    )


def cpu_quota(case: Case) -> Finding | None:
    """Report for how long the quota of its cgroup kept a job from CPUs."""
    if case.job is None:
        return None
    shares: dict[str, tuple[float, float]] = {}
    for node in case.nodes:
        held, use = node.one(_QUOTA), cpu_use(node)
        if held is not None and held.increase is not None and use is not None:
            wanted_s = held.increase + use.used_s
            shares[node.name] = (held.increase / wanted_s if wanted_s > 0 else 0.0, held.increase)
    if not shares:
        return unknown(case.nodes, "cpu-throttling", "CPU quota", _QUOTA)
    most = max(shares, key=lambda name: shares[name])
    share, held_s = shares[most]
    if share < limits.THROTTLED:
        severity, text = Severity.GOOD, f"A quota withheld almost no CPU time ({percent(share)})."
    else:
        severity = Severity.PROBLEM if share >= limits.THROTTLED_MUCH else Severity.WARNING
        text = (
            f"The CPU quota of its cgroup withheld {duration(held_s)} of CPU time from the job on {most}:"
            f" {percent(share)} of its demand."
        )
    return Finding(
        name="cpu-throttling",
        severity=severity,
        title="CPU quota",
        text=text,
        advice="Ask for more CPUs, or start fewer threads." if severity is not Severity.GOOD else "",
        figures={"ratio": share, "throttled_seconds": held_s},
        nodes=(most,),
    )


def imbalance(case: Case) -> Finding | None:
    """Report how unequally the CPUs of a job's nodes were used."""
    if case.job is None or len(case.nodes) < 2:
        return None
    busy = {node.name: use.busy for node in case.nodes if (use := cpu_use(node)) is not None}
    if len(busy) < 2:
        lacking = [node for node in case.nodes if node.name not in busy]
        reason = f"no CPU time of the job on {joined([node.name for node in lacking])}: {lacking[0].why_not(_USER)}"
        return unknown(lacking, "imbalance", "Balance of the nodes", reason=reason)
    most, least = max(busy, key=lambda name: busy[name]), min(busy, key=lambda name: busy[name])
    ratio = 1 - sum(busy.values()) / len(busy) / busy[most] if busy[most] > limits.NEGLIGIBLE_CPUS else None
    is_unequal = ratio is not None and ratio >= limits.IMBALANCE
    text = f"The {len(busy)} nodes of the job were loaded alike."
    if ratio and not is_unequal:
        text = f"{text[:-1]}: the mean of their busy CPUs is {percent(ratio)} below the busiest."
    elif is_unequal:
        text = (
            f"The {len(busy)} nodes of the job were loaded unequally: {significant(busy[most])} CPUs busy on "
            f"{most}, {significant(busy[least])} on {least}."
        )
    return Finding(
        name="imbalance",
        severity=Severity.WARNING if is_unequal else Severity.GOOD,
        title="Balance of the nodes",
        text=text,
        advice="Divide the work more evenly, or ask for fewer nodes: the others wait for the busiest."
        if is_unequal
        else "",
        figures={"cpu_ratio": ratio},
        nodes=tuple(busy),
    )
