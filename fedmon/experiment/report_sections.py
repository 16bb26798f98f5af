"""The report of a run as sections of tables and lines, for the terminal and for a page alike."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from typing import Any

import msgspec

from fedmon.experiment.explaining import span
from fedmon.experiment.run_files import Recorded, Series
from fedmon.experiment.run_report import RunReport
from fedmon.experiment.standing import Standing, heading
from fedmon.experiment.states import ResourceState

_LONGEST, _FEW = 160, 4
RESOURCES = "Resources, with when they came to their states"
REPORTED, MEASURED = "What plans reported", "What conditions asked for"
_SHOWN_STATES = ("READY", "STARTED", "STOPPED", "FAILED", "RELEASED")


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows under headers; the columns numbered in ``numeric`` are set to the right."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Facts, lines, what was found, and then a table, under a heading."""

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    lines: tuple[str, ...] = ()
    findings: tuple[Any, ...] = ()
    table: Table | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it."""
        return not (self.facts or self.lines or self.findings or (self.table is not None and self.table.rows))


def sections_of(report: RunReport) -> list[Section]:
    """Return the sections of a report, what matters most first; those that would be empty are left out."""
    found = [
        _run(report),
        _failures(report),
        _series(REPORTED, report.reported, report),
        _series(MEASURED, report.measured, report),
        *(_recording(each, report) for each in report.recordings),
        _resources(report),
        _values(report),
        _traces(report),
    ]
    return [each for each in found if not each.is_empty]


def when(t: float) -> str:
    """Return a moment in UTC, to the second."""
    return datetime.datetime.fromtimestamp(t, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def size(size_bytes: int) -> str:
    """Return the size of a file for people, in powers of 1000."""
    value, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def used(table: Table) -> Table:
    """Return a table without the columns that are empty."""
    kept = [at for at, _ in enumerate(table.headers) if any(row[at] for row in table.rows)]
    return Table(
        headers=tuple(table.headers[at] for at in kept),
        rows=tuple(tuple(row[at] for at in kept) for row in table.rows),
        numeric=frozenset(place for place, at in enumerate(kept) if at in table.numeric),
    )


def _run(report: RunReport) -> Section:
    shown = report.overview
    reached = Counter(each.reached for each in shown.resources)
    counts = ", ".join(f"{reached[state.name]} {state.name}" for state in ResourceState if reached[state.name])
    released = sum(each.state == ResourceState.RELEASED.name for each in shown.resources)
    is_released = bool(released) and released == len(shown.resources)
    facts = [
        ("began", when(shown.began) if shown.began else ""),
        ("took" if is_released else "so far", span(shown.until - shown.began) if shown.began else ""),
        ("resources", str(len(shown.resources))),
        ("came to", counts + (", then released" if is_released else "")),
        ("level", f"{shown.level}: {shown.level_reason}" if shown.level_reason else ""),
        ("blocker", shown.blocker),
        ("files", shown.run_dir),
    ]
    return Section(title="Run", lines=(heading(shown),), facts=tuple((name, value) for name, value in facts if value))


def _resources(report: RunReport) -> Section:
    shown = report.overview
    rows = []
    for each in shown.resources:
        moments = [f"+{span(t - shown.began)}" if (t := each.times.get(name)) else "" for name in _SHOWN_STATES]
        rows.append((_name(each), each.rtype, each.reached, *moments))
    headers = ("resource", "type", "reached", *(name.lower() for name in _SHOWN_STATES))
    table = Table(headers=headers, rows=tuple(rows), numeric=frozenset(range(3, 8)))
    return Section(title=RESOURCES, table=table)


def _failures(report: RunReport) -> Section:
    return Section(
        title="What failed, and why",
        lines=tuple(
            f"{_name(each)} ({each.rtype}){'' if each.critical else ', which is not critical'}: "
            f"{each.reason or 'no reason was told'}"
            for each in report.overview.resources
            if each.failed
        ),
    )


def _values(report: RunReport) -> Section:
    names = {each.guid: _name(each) for each in report.overview.resources}
    rows = tuple(
        (names[guid], name, _short(value)) for guid, found in report.values.items() for name, value in found.items()
    )
    return Section(
        title="What resources say of themselves", table=Table(headers=("resource", "what", "value"), rows=rows)
    )


def _series(title: str, series: tuple[Series, ...], report: RunReport) -> Section:
    names = {each.guid: _name(each) for each in report.overview.resources}
    rows: tuple[tuple[str, ...], ...] = tuple(
        (
            names.get(one.guid, str(one.guid)),
            one.node,
            one.name,
            str(one.count),
            *(f"{value:.6g}" for value in (one.first, one.last, one.low, one.high)),
        )
        for one in series
    )
    headers: tuple[str, ...] = ("resource", "node", "name", "values", "first", "last", "lowest", "highest")
    if all(one.count == 1 for one in series):  # of one number the first is the last, the lowest and the highest
        rows = tuple((*row[:3], row[4]) for row in rows)
        headers = ("resource", "node", "name", "value")
        return Section(title=title, table=Table(headers=headers, rows=rows, numeric=frozenset({3})))
    return Section(title=title, table=Table(headers=headers, rows=rows, numeric=frozenset(range(3, 8))))


def _recording(one: Recorded, report: RunReport) -> Section:
    names = {each.guid: _name(each) for each in report.overview.resources}
    nodes = ", ".join(one.nodes) if 0 < len(one.nodes) <= _FEW else f"{len(one.nodes) or ''} nodes".lstrip()
    title = f"What {names.get(one.guid, one.guid)} recorded of {nodes}"
    lines = (f"{one.path} tells nothing: {one.problem}",) if one.problem else ()
    return Section(title=title, lines=lines, findings=one.findings)


def _traces(report: RunReport) -> Section:
    names = {each.guid: _name(each) for each in report.overview.resources}
    rows = tuple((names[each.guid], each.path, size(each.size_bytes)) for each in report.traces)
    total = sum(each.size_bytes for each in report.traces)
    lines = (f"{len(rows)} files, {size(total)}",) if rows else ()
    headers = ("resource", "file", "size")
    return Section(title="Traces", lines=lines, table=Table(headers=headers, rows=rows, numeric=frozenset({2})))


def _name(each: Standing) -> str:
    return f"{each.guid} {each.name}" if each.name else str(each.guid)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
