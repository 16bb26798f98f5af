"""Whether the clocks of the hosts agree, and ran on."""

from __future__ import annotations

from fedmon.report.amounts import listed, moment, number
from fedmon.report.findings import thresholds as limits
from fedmon.report.findings.case import Case, Node
from fedmon.report.findings.finding import Finding, Severity


def clocks_apart(case: Case) -> list[Finding]:
    """Say when the clocks of hosts differ."""
    offsets = {node.name: offset for node in case.nodes if (offset := offset_s(node)) is not None}
    if not offsets:
        return []
    first, last = min(offsets, key=lambda name: offsets[name]), max(offsets, key=lambda name: offsets[name])
    apart = offsets[last] - offsets[first] if len(offsets) > 1 else abs(offsets[first])
    if apart < limits.CLOCKS_APART.value:
        return []
    text = (
        f"The clocks of {first} and {last} are {number(apart)} s apart"
        if len(offsets) > 1
        else f"The clock of {first} is {number(apart)} s off"
    )
    return [
        Finding(
            name="clocks-apart",
            severity=Severity.WARNING,
            title="Clocks apart",
            text=f"{text}: what happened at once on two hosts is shown that far apart.",
            how="offset of each host's clock from that of the shared folder or broker, as estimated at the start",
            advice="Keep clocks by NTP or chrony. Durations and rates are right all the same: they use another clock.",
            figures={"seconds": apart},
            nodes=(first, last) if len(offsets) > 1 else (first,),
        )
    ]


def clock_set(case: Case) -> list[Finding]:
    """Say when a clock was set while samples were taken."""
    found: dict[str, str] = {}
    largest = 0.0
    for node in case.nodes:
        steps = [step for stream in node.streams.values() for step in stream.clock_steps
                 if abs(step.by_s) >= limits.CLOCK_SET.value]  # fmt: skip
        if steps:
            step = max(steps, key=lambda one: abs(one.by_s))
            way = "forward" if step.by_s > 0 else "back"
            found[node.name] = f"{node.name} by {number(abs(step.by_s))} s {way} before {moment(step.t)}"
            largest = max(largest, abs(step.by_s))
    if not found:
        return []
    return [
        Finding(
            name="clock-set",
            severity=Severity.WARNING,
            title="Clock set",
            text=f"The clock was set while samples were taken: {listed(list(found.values()))}.",
            how="wall clock against monotonic clock from one sample to the next",
            advice="Times before and after do not fit together; durations and rates are right all the same.",
            figures={"seconds": largest},
            nodes=tuple(found),
        )
    ]


def offset_s(node: Node) -> float | None:
    """Return by how many seconds the clock of a host is ahead, as it was estimated; None where nobody did."""
    offset = node.host.tool.get("clock_offset_s")
    return float(offset) if isinstance(offset, int | float) and not isinstance(offset, bool) else None
