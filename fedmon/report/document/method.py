"""How a report came about: what measured, what was not measured and why, and the limits behind its words."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from typing import Any

from fedmon import __version__
from fedmon.common.metrics.metric import Metric, Unit
from fedmon.common.metrics.table import METRICS, format_value, metric_of
from fedmon.report.document.model import Facts, Paragraph, Part, Table, shown
from fedmon.report.findings.case import Case
from fedmon.report.findings.clocks import offset_s
from fedmon.report.findings.completeness import main_stream
from fedmon.report.findings.finding import Finding
from fedmon.report.findings.run import cost_text
from fedmon.report.findings.threshold import Threshold
from fedmon.report.findings.thresholds import ALL
from fedmon.report.wording import counted, duration, listed, moment, number

_MOST_ROWS = 60
_LIBRARIES = ("fpdf2", "matplotlib", "numpy")


def method(case: Case, findings: Sequence[Finding]) -> list[Part]:
    """Return the parts of the section."""
    parts: list[Part] = [Facts(rows=_collected(case))]
    if cost := cost_text(case):
        parts.append(Paragraph(text=cost))
    parts.append(_collectors(case))
    absent = _absent(case)
    if absent.rows:
        parts.append(absent)
    parts += [table for table in (_holes(case), _marks(case)) if table.rows]
    parts.append(
        Table(
            title="How each finding was computed",
            headers=("Finding", "Computed from"),
            rows=tuple((one.title, shown(one.how)) for one in findings if one.how),
        )
    )
    parts.append(
        Table(
            title="Limits at which a finding changes what it says",
            headers=("Limit", "Value", "Why there"),
            rows=tuple((one.name, limit_text(one), one.why) for one in ALL),
            numeric=frozenset({1}),
        )
    )
    return parts


def limit_text(limit: Threshold) -> str:
    """Return the value of a limit with its unit."""
    if limit.unit is Unit.COUNT:
        return number(limit.value)
    example = next(metric for metric in METRICS.values() if metric.unit is limit.unit)
    return format_value(example, limit.value)


def versions(case: Case) -> Facts:
    """Return the versions of what measured and of what wrote the report."""
    tools = {str(node.host.tool["version"]) for node in case.nodes if node.host.tool.get("version")}
    rows = [("Measured by", f"fedmon {', '.join(sorted(tools))}" if tools else "not recorded"),
            ("Written by", f"fedmon {__version__}"), ("Python", platform.python_version())]  # fmt: skip
    for library in _LIBRARIES:
        try:
            rows.append((library, importlib.metadata.version(library)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return Facts(rows=tuple((name, shown(text)) for name, text in rows))


def _collected(case: Case) -> tuple[tuple[str, str], ...]:
    streams = [stream for node in case.nodes if (stream := main_stream(case, node)) is not None]
    intervals = sorted(one.interval_s for one in streams if one.interval_s is not None)
    asked = {number(float(value)) for node in case.nodes
             if isinstance(value := node.host.tool.get("interval_s"), int | float)}  # fmt: skip
    document = case.document
    rows: list[tuple[str, str]] = [("Samples", f"{sum(one.samples for one in streams)}")]
    if intervals:
        low, high = number(intervals[0]), number(intervals[-1])
        rows.append(("Interval", f"{low} s" if low == high else f"{low} to {high} s"))
    if asked:
        rows.append(("Asked for", f"every {' or '.join(sorted(asked))} s"))
    series = {name for node in case.nodes for stream in node.streams.values() for name in stream.series}
    rows.append(("Series", str(len(series))))
    if document.get("method"):
        confidence = document.get("confidence")
        rows.append(("Job found by", f"{document['method']}{f' (confidence: {confidence})' if confidence else ''}"))
    for what, how in sorted({(labels.get("of", ""), labels.get("method", "")) for node in case.nodes
                             for labels, _ in node.all("job_method_info")}):  # fmt: skip
        rows.append((f"Job's {what}", how))
    offsets = {node.name: offset for node in case.nodes if (offset := offset_s(node)) is not None}
    if offsets:
        told = [f"{name} {offset:+.3f} s" for name, offset in offsets.items()]
        rows.append(("Clocks ahead", listed(told, 4)))
    return tuple((name, shown(text)) for name, text in rows)


def _collectors(case: Case) -> Table:
    """Return what was measured, by where it comes from."""
    by_source: dict[tuple[str, str], dict[str, None]] = {}
    for node in case.nodes:
        for stream in node.streams.values():
            for name in stream.series:
                metric = metric_of(name)
                key = (_scope(metric), metric.source if metric is not None else "a plugin")
                by_source.setdefault(key, {})[metric.name if metric is not None else shown(name, 80)] = None
    order = list(METRICS)
    known = sorted(by_source.items(), key=lambda item: _first(item[1], order))
    return Table(
        title="What was measured, and from where",
        headers=("Of", "Source", "Metrics"),
        rows=tuple((scope, shown(source, 200), _metrics(list(metrics))) for (scope, source), metrics in known),
    )


def _absent(case: Case) -> Table:
    """Return what was not measured, by reason."""
    by_reason: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for node in case.nodes:
        for metric, reason in node.host.capabilities.items():
            if reason and not node.all(metric):
                metrics, nodes = by_reason.setdefault(str(reason), ({}, {}))
                metrics[metric], nodes[node.name] = None, None
    whole = len(case.nodes)
    rows = [
        (shown(reason, 240), _metrics(list(metrics)), "all" if len(nodes) == whole else listed(list(nodes), 4))
        for reason, (metrics, nodes) in by_reason.items()
    ]
    return Table(title="What was not measured, and why", headers=("Reason", "Metrics", "Nodes"),
                 rows=tuple(rows[:_MOST_ROWS]))  # fmt: skip


def _holes(case: Case) -> Table:
    rows = [
        (hole.seconds, (shown(node.name, 60), stream.stream, moment(hole.after_t), duration(hole.seconds),
                        str(hole.missing or "-")))
        for node in case.nodes
        for stream in node.streams.values()
        for hole in stream.holes
    ]  # fmt: skip
    rows.sort(key=lambda row: -row[0])
    return Table(title="Gaps, the longest first", headers=("Node", "Stream", "From", "Length", "Samples missing"),
                 rows=tuple(row for _, row in rows[:20]), numeric=frozenset({3, 4}))  # fmt: skip


def _marks(case: Case) -> Table:
    names = {node.host.node_id: node.name for node in case.nodes}
    rows = [(moment(mark.t), shown(names.get(mark.node_id, mark.node_id), 60), shown(mark.text, 240))
            for mark in case.marks]  # fmt: skip
    title = "Events" if len(rows) <= _MOST_ROWS else f"The first {_MOST_ROWS} of {counted(len(rows), 'event')}"
    return Table(title=title, headers=("Time", "Node", "What happened"), rows=tuple(rows[:_MOST_ROWS]))


def _metrics(names: list[str]) -> str:
    return listed([shown(name, 80) for name in names], 6)


def _scope(metric: Metric | None) -> str:
    return metric.scope.value if metric is not None else "other"


def _first(metrics: dict[str, Any], order: list[str]) -> int:
    return min((order.index(name) for name in metrics if name in METRICS), default=len(order))
