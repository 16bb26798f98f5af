"""Whether the recording is whole: nodes, samples, gaps."""

from __future__ import annotations

from collections import Counter

from fedmon.common.text import duration, joined, moment, percent, plural
from fedmon.report.findings import thresholds as limits
from fedmon.report.findings.case import Case, Finding, Node, Severity
from fedmon.report.totals import StreamTotal

_EACH_SAMPLE = ("job_cpu_user_seconds_total", "job_memory_rss_bytes", "host_cpu_busy_ratio",
                "host_memory_available_bytes")  # fmt: skip
"""Metrics that are read with each sample; many others are read less often on purpose."""


def main_stream(case: Case, node: Node) -> StreamTotal | None:
    """Return the stream that the report is about on a node: the job's, else the machine's, else any other.

    None of a node whose machine is counted by another.
    """
    if case.job is not None:
        return node.job
    return node.machine or (None if node.counted_by else next(iter(node.streams.values()), None))


def main_streams(case: Case) -> list[tuple[Node, StreamTotal]]:
    """Return the nodes that have such a stream, with it."""
    return [(node, stream) for node in case.nodes if (stream := main_stream(case, node)) is not None]


def samples(case: Case) -> Finding | None:
    """Report too few samples."""
    totals = {node.name: stream.samples for node, stream in main_streams(case)}
    nodes = f" of {plural(len(totals), 'node')}" if len(totals) > 1 and case.job is not None else ""
    amount = sum(totals.values())
    what = "the job" if case.job is not None else "these nodes"
    if amount == 0:
        # Of a run that ended well before its first sample there is nothing to worry about.
        is_well = case.is_part or (case.job is not None and case.end["exit_code"] == 0)
        state, advice = (
            ("is selected", "Select other times or nodes.")
            if case.is_part
            else ("can be read", "The recording is damaged: use a copy of it.")
            if any(any(node.lost.values()) for node in case.nodes)
            else ("was recorded", "Check the tool's log, and that its interval is shorter than the job.")
            if case.job is not None
            else ("was recorded", "Check that nodes were online while it was recorded.")
        )
        return Finding(
            name="samples",
            severity=Severity.NOTE if is_well else Severity.PROBLEM,
            title="No samples",
            text=f"No sample of {what} {state}, so there are no findings.",
            advice=advice,
            figures={"samples": 0.0},
        )
    most = max(totals.values())
    if most >= limits.FEW_SAMPLES:
        return None
    rates = " One sample shows values at one moment; rates, shares of time and means need two." if most == 1 else ""
    return Finding(
        name="samples",
        severity=Severity.NOTE,
        title="Few samples",
        text=f"There {'is' if amount == 1 else 'are'} only {plural(amount, 'sample')}{nodes} of {what}.{rates}",
        figures={"samples": float(amount)},
        nodes=tuple(totals),
    )


def gaps(case: Case) -> Finding | None:
    """Report missing samples between the first and the last, and why."""
    told: dict[str, str] = {}
    reasons: Counter[str] = Counter()
    streams = main_streams(case)
    longest = [(hole, node.name) for node, stream in streams for hole in stream.holes[:1]]
    worst = max((gap_share(stream) for _, stream in streams), default=0.0)
    missing = sum(stream.missing for _, stream in streams)
    for node, stream in streams:
        for lost in (lost for (name, _), each in node.lost.items() if name == stream.stream for lost in each):
            reasons[lost.reason] += lost.last_seq - lost.first_seq + 1
        if stream.hole_count or stream.missing:
            told[node.name] = f"{node.name} {duration(stream.hole_seconds)} ({percent(gap_share(stream))})"
    because = joined([f"{amount} {reason}" for reason, amount in reasons.most_common()])
    if not told and not reasons:
        return _whole(case) if streams else None
    if not told:
        text = f"Samples are gone for good: {because}."
        severity = Severity.NOTE
    else:
        text = f"Samples are missing: {joined(list(told.values()))}."
        if longest:
            hole, name = max(longest)
            text += f" The longest gap is {duration(hole.seconds)} on {name}, from {moment(hole.after_t)}."
        text += f" Known to be lost: {because}." if because else ""
        severity = Severity.PROBLEM if worst >= limits.GAP_LARGE else Severity.WARNING
        severity = severity if worst >= limits.GAP else Severity.NOTE
    return Finding(
        name="gaps",
        severity=severity,
        title="Gaps",
        text=text,
        advice="Figures of these nodes cover the rest of the time." if told else "",
        figures={"ratio": worst, "missing_samples": float(missing), "lost_samples": float(reasons.total())},
        nodes=tuple(told),
    )


def gap_share(stream: StreamTotal) -> float:
    """Return the share of the time between first and last sample without samples."""
    whole = stream.seconds + stream.hole_seconds
    return stream.hole_seconds / whole if whole > 0 else 0.0


def _whole(case: Case) -> Finding:
    streams = [stream for _, stream in main_streams(case)]
    # The first sample of a boot has no share of the time before it, and the last may come when the job is gone.
    missed = {name: one.samples - one.series[name].values for one in streams for name in _EACH_SAMPLE
              if name in one.series and one.samples - one.boots - 1 > one.series[name].values}  # fmt: skip
    samples = plural(sum(one.samples for one in streams), "sample")
    between = " between the first and the last of each" if len(streams) > 1 else ""
    text = f"No sample is missing{between}: {samples} of {plural(len(streams), 'node')}."
    if missed:
        text = f"No sample is missing, but readings in them: {joined([f'{n} of {m}' for m, n in missed.items()])}."
    return Finding(
        name="gaps",
        severity=Severity.NOTE if missed else Severity.GOOD,
        title="Gaps",
        text=text,
        figures={"ratio": 0.0, "missing_samples": 0.0, "lost_samples": 0.0,
                 "missing_readings": float(sum(missed.values()))},
    )  # fmt: skip


def absent_nodes(case: Case) -> Finding | None:
    """Say which nodes of a job recorded nothing."""
    if case.job is None or case.is_part:
        return None
    measured = {node.host.machine for node in case.nodes if node.job is not None} - {""}
    silent = [node.name for node in case.nodes if not node.job and node.document and node.host.machine not in measured]
    told = case.document.get("nodes")
    named = [str(name) for name in told] if isinstance(told, list | tuple) else []
    known = {name.partition(".")[0] for node in case.nodes for name in (node.name, node.host.node_id)}
    known |= {str(node.document["host"]).partition(".")[0] for node in case.nodes if node.document.get("host")}
    missing = [*(name for name in named if name.partition(".")[0] not in known), *silent]
    if not missing or not case.nodes:
        return None
    return Finding(
        name="absent-nodes",
        severity=Severity.PROBLEM,
        title="Nodes without a recording",
        text=f"Of {plural(len(named) or len(case.nodes), 'node')} of the job, {len(missing)} recorded nothing:"
        f" {joined(missing)}. The rest of this report leaves them out.",
        advice="Start the tool on every node, once each; look at the logs of these hosts.",
        figures={"nodes": float(len(missing))},
        nodes=tuple(missing),
    )


def one_machine(case: Case) -> Finding | None:
    """Name the nodes that share a machine."""
    found: dict[str, list[str]] = {}
    for node in case.nodes:
        if node.counted_by:
            found.setdefault(node.counted_by, []).append(node.name)
    if not found:
        return None
    told = [f"{joined(names)} on that of {first}" for first, names in found.items()]
    return Finding(
        name="one-machine",
        severity=Severity.NOTE,
        title="Nodes on one machine",
        text=f"Some nodes run on the machine of another, which is counted once: {'; '.join(told)}.",
        figures={"nodes": float(sum(map(len, found.values())))},
        nodes=tuple(name for names in found.values() for name in names),
    )
