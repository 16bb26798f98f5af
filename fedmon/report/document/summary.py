"""The facts of a report: names and values, the table of nodes, and the summary for a terminal."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence

from fedmon.common.metrics.table import MISSING
from fedmon.common.text import duration, joined, moment, percent, plural, short_ids, shorten, size, table
from fedmon.report.amounts import significant
from fedmon.report.document.model import Bars, Facts, TextTable, shown
from fedmon.report.findings.case import WORDS, Case, Finding, Node, Severity, summed
from fedmon.report.findings.completeness import gap_share, main_stream
from fedmon.report.findings.cpu import BUSY, cpu_use
from fedmon.report.findings.energy import NODE_JOULES, job_joules
from fedmon.report.findings.gpu import gpu_uses
from fedmon.report.findings.memory import machine_peak, memory_use
from fedmon.report.findings.run import exit_text
from fedmon.report.findings.stalls import mode_share
from fedmon.report.selection import LABELS

_MOST_ROWS = 200
_NETWORK = ("host_network_receive_bytes_total", "host_network_transmit_bytes_total")
STORAGE_OF_JOB = ("job_storage_read_bytes_total", "job_storage_written_bytes_total")
_STORAGE_OF_HOST = ("host_disk_read_bytes_total", "host_disk_written_bytes_total")


def node_table(case: Case) -> TextTable:
    """Return one row for each node, with the columns of which some node knows something."""
    cells = [_cells(case, node) for node in case.nodes]
    kept = [header for header in _HEADERS if any(header in each for each in cells)]
    shared = [f" (see {node.counted_by})" if node.counted_by else "" for node in case.nodes]
    rows = [(shown(node.name + where, 120), *(each.get(header, MISSING) for header in kept))
            for node, where, each in zip(case.nodes, shared, cells, strict=True)]  # fmt: skip
    found = TextTable(headers=("Node", *kept), rows=tuple(rows), numeric=frozenset(range(1, len(kept) + 1)))
    return found.cut(_MOST_ROWS, "node")


_HEADERS = ("CPUs busy", "CPU efficiency", "Peak memory", "GPUs busy", "I/O wait", "Network in / out",
            "Storage read / written", "Disks read / written", "Energy", "Samples", "Gaps")  # fmt: skip


def _cells(case: Case, node: Node) -> dict[str, str]:
    """Return the figures of a node that are known, by header."""
    of_job = case.job is not None
    cells = _job_cells(node) if of_job else _machine_cells(node)
    storage = ("Storage read / written", STORAGE_OF_JOB) if of_job else ("Disks read / written", _STORAGE_OF_HOST)
    for header, metrics in (("Network in / out", _NETWORK), storage):
        if (both := moved(node, metrics)) is not None:
            cells[header] = " / ".join(map(size, both))
    if gpus := gpu_uses(node):
        cells["GPUs busy"] = f"{percent(sum(one.mean for one in gpus) / len(gpus))} of {len(gpus)}"
    if (wait := mode_share(node, "iowait")) is not None:
        cells["I/O wait"] = percent(wait)
    machine = node.one(NODE_JOULES)
    joules = job_joules(node) if of_job else None if machine is None else machine.increase
    if joules is not None:
        cells["Energy"] = f"{significant(joules / 3600)} Wh"
    stream = main_stream(case, node)
    if stream is not None or not node.counted_by:
        cells["Samples"] = str(stream.samples if stream is not None else 0)
    if stream is not None and (stream.hole_count or stream.missing):
        cells["Gaps"] = f"{duration(stream.hole_seconds)} ({percent(gap_share(stream))})"
    return cells


def moved(node: Node, metrics: tuple[str, str]) -> tuple[float, float] | None:
    """Return the growth of two counters of bytes; None if unknown."""
    into, out = (summed(total for _, total in node.all(metric)) for metric in metrics)
    return None if into is None or out is None else (into, out)


def _job_cells(node: Node) -> dict[str, str]:
    use, memory = cpu_use(node), memory_use(node)
    cells: dict[str, str] = {}
    if use is not None:
        cells["CPUs busy"] = f"{significant(use.busy)} of {significant(use.cpus)}"
        cells["CPU efficiency"] = percent(use.ratio)
    if memory is not None:
        cells["Peak memory"] = size(memory.peak) + (f" of {size(memory.limit)}" if memory.limit else "")
    return cells


def _machine_cells(node: Node) -> dict[str, str]:
    busy, memory = node.one(BUSY), machine_peak(node)
    cells = {} if busy is None else {"CPUs busy": percent(busy.mean)}
    if memory is not None:
        cells["Peak memory"] = f"{size(memory[0])} of {size(memory[1])}"
    return cells


_BAR = 24
_BARS = {"cpu-efficiency": "CPU", "cpu-use": "CPU", "memory-peak": "Memory", "memory-use": "Memory", "gpu-use": "GPU",
         "time-limit": "Time limit"}  # fmt: skip


def title(case: Case) -> str:
    """Return the title of the report."""
    if case.job is None:
        names = [node.name for node in case.nodes]
        return shown(f"Report of {joined(names, most=2) or 'an empty recording'}", 120)
    name = case.document.get("name")
    return shown(f"Job {job_id(case)}{f' ({name})' if name else ''}", 120)


def job_id(case: Case) -> str:
    """Return the job's id as its scheduler writes it."""
    return shown(case.document.get("job_id") or case.job, 80)


def subtitle(case: Case) -> str:
    """Return where and when, in one line."""
    span = case.span
    when = f"{moment(span[0])} to {moment(span[1])}" if span is not None else "no sample"
    return f"{plural(len(case.nodes), 'node')}, {when}"


def header(case: Case, *, made_t: float) -> str:
    """Return the line on top of every page: job, user, number of nodes, date."""
    user = case.document.get("user")
    what = f"job {job_id(case)}" if case.job is not None else "fedmon report"
    parts = [what, *([f"user {shown(user, 40)}"] if user else []), plural(len(case.nodes), "node"), moment(made_t)]
    return "  ·  ".join(parts)


def about(case: Case) -> Facts:
    """Return the names and values that say which job, or which nodes, this is."""
    span, document, elapsed_s = case.span, case.document, case.elapsed_s
    rows: list[tuple[str, object]] = []
    if case.job is not None:
        array, command = document.get("array_job_id"), document.get("command")
        scheduler = document.get("scheduler"), document.get("cluster")
        rows += [
            ("Job", job_id(case)),
            ("Name", document.get("name")),
            ("User", document.get("user")),
            ("Scheduler", ", ".join(str(word) for word in scheduler if word and word != "none")),
            ("Array", f"{array}, index {document.get('array_index')}" if array else None),
            ("Step", document.get("step")),
            ("Command", shlex.join(map(str, command)) if isinstance(command, list | tuple) else command),
            ("Started", moment(case.started_t) if case.started_t is not None else None),
            ("Ended", moment(case.ended_t) if case.ended_t is not None else None),
            ("Elapsed", duration(elapsed_s) if elapsed_s is not None else None),
            ("Exit", exit_text(case.end["exit_code"]) if case.end["exit_code"] is not None else None),
        ]
    else:
        rows += [
            ("From", moment(span[0]) if span is not None else None),
            ("To", moment(span[1]) if span is not None else None),
            ("Lasted", duration(elapsed_s) if elapsed_s is not None else None),
            ("Jobs", f"{_counted([*short_ids(case.jobs).values()])} (--job ID reports on one)" if case.jobs else None),
        ]
    rows.append(("Nodes", _counted([node.name for node in case.nodes])))
    labels = case.labels
    rows += [(f"Label {name}", labels[name]) for name in (*LABELS, *labels) if labels.get(name)]
    return Facts(rows=tuple((name, shown(value)) for name, value in dict(rows).items() if value not in (None, "")))


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)}: {joined(list(names), most=4)}" if len(names) > 1 else joined(list(names))


def summary(case: Case, findings: Sequence[Finding], *, width: int = 80) -> str:
    """Return the report as text, in lines of at most ``width`` letters."""
    heading = shorten(title(case), width)
    lines = [heading, "=" * len(heading)]
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
    """Return a bar for each known share of the job's resources: used of requested."""
    rows = [
        (_BARS[one.name], ratio, f"{ratio * 100:.1f} %{_used(one)}")
        for one in findings
        if one.name in _BARS and (ratio := one.figures.get("ratio")) is not None
    ]
    return Bars(rows=tuple(sorted(rows)))


def _used(finding: Finding) -> str:
    """Return a part and its whole as text, if both are known."""
    for used, asked, say in (
        ("cpus_busy", "cpus", significant),
        ("peak_bytes", "limit_bytes", size),
        ("elapsed_seconds", "limit_seconds", duration),
    ):
        amounts = finding.figures.get(used), finding.figures.get(asked)
        if amounts[0] is not None and amounts[1] is not None:
            return f", {say(amounts[0])} of {say(amounts[1])}"
    return ""


def _bars(findings: Sequence[Finding], width: int) -> list[str]:
    lines = []
    for name, ratio, text in bars(findings).rows if width >= 40 else ():
        filled = round(_BAR * min(1.0, max(0.0, ratio)))
        share, comma, amounts = text.partition(",")
        lines.append(f"{name:<12}[{'#' * filled}{'.' * (_BAR - filled)}] {share:>7}{comma}{amounts}")
    return ["", *lines] if lines else []


def _table(case: Case, width: int) -> list[str]:
    """Return the nodes, with as many columns as fit."""
    nodes = node_table(case)
    widths = [max(map(len, column)) + 2 for column in zip(nodes.headers, *nodes.rows, strict=True)]
    widths[0] = min(widths[0], width // 2)  # a longer name is cut
    kept = max([1, *(at for at in range(len(widths) + 1) if sum(widths[:at]) - 2 <= width)])
    lines = table(nodes.headers[:kept], [row[:kept] for row in nodes.rows], width=width).splitlines()
    return [*lines, f"{nodes.title}."] if nodes.title else lines


def _hanging(text: str, width: int, *, first: str) -> list[str]:
    return textwrap.wrap(
        text or MISSING, width, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False
    )
