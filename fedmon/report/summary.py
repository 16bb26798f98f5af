"""The report as text for a terminal: what it is about, what happened, and how that was found."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fedmon.common.metrics.table import MISSING
from fedmon.report.document import about
from fedmon.report.document.nodes import node_table
from fedmon.report.document.style import WORDS
from fedmon.report.findings import Case, Finding, Severity

_BAR = 24
_BARS = {"cpu-efficiency": "CPU", "cpu-use": "CPU", "memory-peak": "Memory", "memory-use": "Memory", "gpu-use": "GPU",
         "time-limit": "Time limit"}  # fmt: skip


def summary(case: Case, findings: Sequence[Finding], *, width: int = 80) -> str:
    """Return what a report says, in lines of at most ``width`` letters."""
    lines = [about.title(case)[:width], "=" * min(width, len(about.title(case)))]
    facts = about.about(case).rows
    name_width = max((len(name) for name, _ in facts), default=0) + 2
    for name, value in facts:
        if name != "Job":
            lines += _hanging(value, width, first=f"{name:<{name_width}}")
    lines += _bars(findings, width)
    if len(case.nodes) > 1:
        lines += ["", *_table(case, width)]
    words = max(map(len, WORDS.values())) + 2
    for severity in Severity:
        chosen = [one for one in findings if one.severity is severity]
        if chosen:
            lines.append("")
        for one in chosen:
            lines += _hanging(f"{one.title}. {one.text}", width, first=f"{WORDS[severity]:<{words}}")
            if one.advice:
                lines += _hanging(f"-> {one.advice}", width, first=" " * words)
    return "\n".join(lines)


def _bars(findings: Sequence[Finding], width: int) -> list[str]:
    """Return a bar for each share of something that the job had, as far as it is known."""
    lines: list[str] = []
    for one in findings:
        ratio = one.figures.get("ratio")
        if one.name in _BARS and ratio is not None and width >= 40:
            filled = round(_BAR * min(1.0, max(0.0, ratio)))
            lines.append(f"{_BARS[one.name]:<12}[{'#' * filled}{'.' * (_BAR - filled)}] {ratio * 100:5.1f} %")
    return ["", *sorted(lines)] if lines else []


def _table(case: Case, width: int) -> list[str]:
    """Return the nodes, with as many columns as fit."""
    table = node_table(case)
    columns = [[header, *(row[at] for row in table.rows)] for at, header in enumerate(table.headers)]
    widths = [max(map(len, column)) for column in columns]
    kept = 1
    while kept < len(columns) and sum(widths[: kept + 1]) + 2 * kept <= width:
        kept += 1
    widths[0] = min(widths[0], width - sum(widths[1:kept]) - 2 * (kept - 1)) if kept > 1 else min(widths[0], width)
    lines = []
    for at in range(len(table.rows) + 1):
        cells = [column[at] for column in columns[:kept]]
        texts = [cells[0][: widths[0]].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(cells[1:], widths[1:kept],
                                                                                          strict=True))]  # fmt: skip
        lines.append("  ".join(texts).rstrip())
    return lines


def _hanging(text: str, width: int, *, first: str) -> list[str]:
    return textwrap.wrap(
        text or MISSING, width, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False
    )
