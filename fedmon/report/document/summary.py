"""What a report is about, in names and values: the first thing on its first page."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fedmon.common.metrics.table import MISSING
from fedmon.report.amounts import counted, duration, listed, moment
from fedmon.report.document.model import WORDS, Bars, Facts, shown
from fedmon.report.document.nodes import node_table
from fedmon.report.findings.case import Case
from fedmon.report.findings.finding import Finding, Severity
from fedmon.report.findings.run import exit_text

_BAR = 24
_BARS = {"cpu-efficiency": "CPU", "cpu-use": "CPU", "memory-peak": "Memory", "memory-use": "Memory", "gpu-use": "GPU",
         "time-limit": "Time limit"}  # fmt: skip

_LABELS = ("system", "partition", "env", "name")


def title(case: Case) -> str:
    """Return what the report is called."""
    if case.job is None:
        names = [node.name for node in case.nodes]
        return shown(f"Report of {listed(names, 2) or 'an empty recording'}", 120)
    name = case.document.get("name")
    return shown(f"Job {job_id(case)}{f' ({name})' if name else ''}", 120)


def job_id(case: Case) -> str:
    """Return the job's id as its scheduler writes it."""
    return shown(case.document.get("job_id") or case.job, 80)


def subtitle(case: Case) -> str:
    """Return where and when, in one line."""
    span = case.span
    when = f"{moment(span[0])} to {moment(span[1])}" if span is not None else "no sample"
    return f"{counted(len(case.nodes), 'node')}, {when}"


def header(case: Case, *, made_t: float) -> str:
    """Return the line on top of every page: job, user, number of nodes, date."""
    user = case.document.get("user")
    what = f"job {job_id(case)}" if case.job is not None else "fedmon report"
    parts = [what, *([f"user {shown(user, 40)}"] if user else []), counted(len(case.nodes), "node"), moment(made_t)]
    return "  ·  ".join(parts)


def about(case: Case) -> Facts:
    """Return the names and values that say which job, or which nodes, this is."""
    span, document, elapsed_s = case.span, case.document, case.elapsed_s
    rows: list[tuple[str, object]] = []
    if case.job is not None:
        array = document.get("array_job_id")
        rows += [
            ("Job", job_id(case)),
            ("Name", document.get("name")),
            ("User", document.get("user")),
            ("Scheduler", _joined(document.get("scheduler"), document.get("cluster"))),
            ("Array", f"{array}, index {document.get('array_index')}" if array else None),
            ("Step", document.get("step")),
            ("Command", _command(document.get("command"))),
            ("Launcher", document.get("launcher")),
            ("Started", moment(case.started_t) if case.started_t is not None else None),
            ("Ended", moment(case.ended_t) if case.ended_t is not None else None),
            ("Elapsed", duration(elapsed_s) if elapsed_s is not None else None),
            ("Exit", exit_text(document["exit_code"]) if isinstance(document.get("exit_code"), int) else None),
        ]
    else:
        rows += [
            ("From", moment(span[0]) if span is not None else None),
            ("To", moment(span[1]) if span is not None else None),
            ("Lasted", duration(elapsed_s) if elapsed_s is not None else None),
            ("Jobs", listed(list(case.jobs), 6)),
        ]
    names = [node.name for node in case.nodes]
    rows.append(("Nodes", f"{len(names)}: {listed(names, 8)}" if len(names) > 1 else listed(names)))
    labels = case.labels
    rows += [(f"Label {name}", labels[name]) for name in (*_LABELS, *labels) if labels.get(name)]
    return Facts(rows=tuple((name, shown(value)) for name, value in dict(rows).items() if value not in (None, "")))


def _joined(*words: object) -> str:
    return ", ".join(str(word) for word in words if word and word != "none")


def _command(command: object) -> object:
    return " ".join(map(str, command)) if isinstance(command, list | tuple) else command


def summary(case: Case, findings: Sequence[Finding], *, width: int = 80) -> str:
    """Return what a report says, in lines of at most ``width`` letters."""
    lines = [title(case)[:width], "=" * min(width, len(title(case)))]
    facts = about(case).rows
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


def bars(findings: Sequence[Finding]) -> Bars:
    """Return a bar for each share of something that the job had, as far as it is known."""
    rows = [
        (_BARS[one.name], ratio, f"{ratio * 100:.1f} %")
        for one in findings
        if one.name in _BARS and (ratio := one.figures.get("ratio")) is not None
    ]
    return Bars(rows=tuple(sorted(rows)))


def _bars(findings: Sequence[Finding], width: int) -> list[str]:
    lines = []
    for name, ratio, text in bars(findings).rows if width >= 40 else ():
        filled = round(_BAR * min(1.0, max(0.0, ratio)))
        lines.append(f"{name:<12}[{'#' * filled}{'.' * (_BAR - filled)}] {text:>7}")
    return ["", *lines] if lines else []


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
