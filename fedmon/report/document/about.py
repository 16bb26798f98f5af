"""What a report is about, in names and values: the first thing on its first page."""

from __future__ import annotations

from fedmon.report.document.model import Facts, shown
from fedmon.report.findings.case import Case
from fedmon.report.findings.run import exit_text
from fedmon.report.wording import counted, duration, listed, moment

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
