"""Memory used, and its distance from the limit."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

from fedmon.common.text import joined, percent, plural, size
from fedmon.report.findings import thresholds as limits
from fedmon.report.findings.case import Case, Finding, Node, Severity, directive, most_at_once, unknown
from fedmon.report.source import told_number

_PEAK, _RSS = "job_memory_peak_bytes", "job_memory_rss_bytes"
_LIMIT, _TOTAL, _AVAILABLE = "job_memory_limit_bytes", "host_memory_total_bytes", "host_memory_available_bytes"
_OOM, _HITS = "job_memory_oom_kills_total", "job_memory_limit_hits_total"
_GIB = 2**30


class MemoryUse(NamedTuple):
    """Bytes at the peak on one node, the limit, and in words whose limit it is."""

    peak: float
    limit: float | None
    whose: str
    is_asked_for: bool

    @property
    def ratio(self) -> float:
        """The share of the limit at the peak; 0 if there is no limit."""
        return self.peak / self.limit if self.limit else 0.0


def memory_use(node: Node) -> MemoryUse | None:
    """Return the job's use of the memory of a node; None if unknown."""
    highest = node.one(_PEAK) or node.one(_RSS)
    if highest is None:
        return None
    return MemoryUse(highest.high, *memory_limit(node))


def memory_limit(node: Node) -> tuple[float | None, str, bool]:
    """Return the memory that the job may have on a node, whose limit that is, and whether the job asked for it."""
    total, cgroup = node.one(_TOTAL), node.one(_LIMIT)
    machine = total.last if total is not None else told_number(node.host.hardware, "memory_bytes")
    machine = machine if machine is not None and machine > 0 else None
    if cgroup is not None and (machine is None or cgroup.last < machine):
        return cgroup.last, "the limit of the job's cgroup", True
    asked = told_number(node.document, "memory_limit_bytes")
    if asked is not None and asked > 0 and (machine is None or asked < machine):
        return asked, "the job's request", True
    return machine, "all memory of the machine", False


def memory(case: Case) -> Finding | None:
    """Report the job's peak memory; of nodes without a job, how full they were."""
    if case.job is None:
        return _machines(case)
    uses = _uses(case)
    if not uses:
        return unknown(case.nodes, "memory-peak", "Peak memory", _PEAK, _RSS)
    most = max(uses, key=lambda name: (uses[name].ratio, uses[name].peak))
    use, fullest = uses[most], next(node for node in case.nodes if node.name == most)
    of = f" of {size(use.limit)} ({percent(use.ratio)}, {use.whose})" if use.limit else ""
    where = f" on {most}, the fullest of {len(uses)} nodes" if len(uses) > 1 else f" on {most}"
    text = f"At most {size(use.peak)}{of}{where}.{'' if use.limit else ' Its limit is unknown.'}{_method(fullest)}"
    if len(uses) > 1:
        text += f" All nodes together: {size(sum(each.peak for each in uses.values()))} at their peaks."
    if len({node.share for node in case.nodes}) < len(case.nodes):
        text += " Peaks of ranks that ran at once on one host are added up."
    hits = sum(total.last for node in case.nodes if (total := node.one(_HITS)) is not None)
    if hits:
        text += f" The cgroup ran into its limit {plural(int(hits), 'time')}."
    severity, advice = Severity.GOOD, ""
    told = directive(fullest, memory_bytes=_reserve(use.peak))
    if use.limit and use.ratio >= limits.MEMORY_NEAR_LIMIT:
        severity = Severity.WARNING
        advice = f"Ask for {size(_reserve(use.peak))}, or use less: it nearly ran out.{told}"
    elif use.is_asked_for and use.ratio <= limits.MEMORY_FAR_FROM_LIMIT:
        severity, advice = Severity.NOTE, f"{size(_reserve(use.peak))} would have been enough, with a reserve.{told}"
    elif not use.is_asked_for:
        severity = Severity.NOTE
    return Finding(
        name="memory-peak",
        severity=severity,
        title="Peak memory",
        text=text,
        advice=advice,
        figures={"peak_bytes": use.peak, "limit_bytes": use.limit, "ratio": use.ratio if use.limit else None},
        nodes=(most,),
    )


def _method(node: Node) -> str:
    """Return a sentence about the pages that count in the peak; empty if the method was not recorded."""
    method = next((of.get("method", "") for of, _ in node.all("job_method_info") if of.get("of") == "peak"), "")
    tree = " That is the largest sum over its processes in a sample: shared memory counts twice."
    return {"": "", "tree": tree}.get(method, " That is the peak of the job's cgroup, file cache included.")


def _uses(case: Case) -> dict[str, MemoryUse]:
    """Return the use of each node by name; of ranks that share memory the most at once, as the fullest of them."""
    shared: dict[object, list[tuple[Node, MemoryUse]]] = defaultdict(list)
    for node in case.nodes:
        if (use := memory_use(node)) is not None:
            shared[node.share].append((node, use))
    uses: dict[str, MemoryUse] = {}
    for ranks in shared.values():
        peak, t = most_at_once((node, use.peak) for node, use in ranks)
        fullest, use = max((one for one in ranks if one[0].span[0] <= t <= one[0].span[1]), key=lambda one: one[1].peak)
        uses[fullest.name] = use._replace(peak=peak)
    return uses


def machine_peak(node: Node) -> tuple[float, float] | None:
    """Return the most bytes in use on a machine, of how many; None if unknown."""
    total, available = node.one(_TOTAL), node.one(_AVAILABLE)
    if total is None or available is None or total.last <= 0:
        return None
    return total.last - available.low, total.last


def _machines(case: Case) -> Finding | None:
    peaks = {node.name: peak for node in case.nodes if (peak := machine_peak(node)) is not None}
    if not peaks:
        return unknown(case.nodes, "memory-use", "Memory", _AVAILABLE, _TOTAL)
    most = max(peaks, key=lambda name: peaks[name][0] / peaks[name][1])
    used, total_bytes = peaks[most]
    ratio = used / total_bytes
    full = [name for name in peaks if peaks[name][0] / peaks[name][1] >= limits.MEMORY_NEAR_LIMIT]
    text = f"At most {size(used)} of {size(total_bytes)} ({percent(ratio)}) were in use on {most}"
    text += f", the fullest of {len(peaks)} nodes." if len(peaks) > 1 else "."
    if len(full) > 1:
        text += f" {len(full)} nodes were fuller than {percent(limits.MEMORY_NEAR_LIMIT)}: {joined(full)}."
    return Finding(
        name="memory-use",
        severity=Severity.WARNING if full else Severity.NOTE,
        title="Memory",
        text=text,
        advice="Find out which process grows before the kernel kills one." if full else "",
        figures={"peak_bytes": used, "limit_bytes": total_bytes, "ratio": ratio},
        nodes=tuple(full or [most]),
    )


def oom_kills(case: Case) -> Finding | None:
    """Report processes that the kernel killed because memory ran out."""
    killed: dict[str, float] = {}
    for node in case.nodes:
        of_job, of_host = node.one(_OOM), node.one("host_oom_kills_total")
        amount = of_job.last if of_job is not None and of_job.last else (of_host.increase or 0) if of_host else 0
        if amount:
            killed[node.name] = amount
    if not killed:
        return None
    total = int(sum(killed.values()))
    is_jobs = any((one := node.one(_OOM)) is not None and one.last for node in case.nodes)
    whose = "of the job" if is_jobs else "of these machines"
    return Finding(
        name="oom-kills",
        severity=Severity.PROBLEM if is_jobs or case.job is None else Severity.WARNING,
        title="Out of memory",
        text=f"The kernel killed {plural(total, 'process', 'processes')} {whose} because memory ran out:"
        f" {joined([f'{name} {int(amount)}' for name, amount in killed.items()])}.",
        advice="Ask for more memory, or use less at once; results of killed processes are missing.",
        figures={"kills": float(total)},
        nodes=tuple(killed),
    )


def _reserve(peak: float) -> float:
    """Return a quarter more, in whole GiB, or in steps of 64 MiB below one."""
    wanted = 1.25 * peak
    step = _GIB if wanted >= _GIB else _GIB / 16
    return math.ceil(wanted / step) * step
