"""`fedmon experiment report`: everything that is known of a run, as text, for programs, or as a page."""

from __future__ import annotations

import datetime
import json
import shutil
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fedmon.common.errors import FedmonError
from fedmon.common.files import replacing
from fedmon.common.log import escape_control
from fedmon.experiment.attributes import MASK, Flags
from fedmon.experiment.cli.options import EPILOG, JsonOption, RunArgument
from fedmon.experiment.drawing import COLOURS, draw, picture_of
from fedmon.experiment.errors import UnknownTypeError
from fedmon.experiment.events import AnyEvent, Measured
from fedmon.experiment.explaining import span
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.journal import Follower
from fedmon.experiment.run_files import (
    Recorded,
    Series,
    TraceFile,
    recordings_in,
    reported_in,
    traces_in,
)
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.standing import Overview, Standing, as_reached, followed, heading
from fedmon.experiment.states import ResourceState
from fedmon.researcher.cli.shell import emit


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a run. ``values`` are attributes that resources set by themselves, such as outcomes.

    ``measured`` is what conditions asked for, ``reported`` what plans reported.
    """

    overview: Overview
    values: dict[int, dict[str, Any]]
    measured: tuple[Series, ...]
    reported: tuple[Series, ...]
    recordings: tuple[Recorded, ...]
    traces: tuple[TraceFile, ...]


def report_on(run_dir: str | Path) -> tuple[RunReport, State]:
    """Return the report of a run, also of one that goes on, and its state. Raises NotFoundError and StorageError."""
    values: dict[tuple[int, str], list[tuple[float, float]]] = {}

    def take(event: AnyEvent) -> None:
        if isinstance(event, Measured) and event.value is not None:
            values.setdefault((event.guid, event.name), []).append((event.t, event.value))

    with Follower(run_dir, on_event=take) as follower:
        shown = followed(follower, follower.names(), time.time())
        state, folder = follower.state, follower.folder
    traces = traces_in(folder, state.resources)
    began = {each.guid: t for each in shown.resources if (t := each.times.get(ResourceState.STARTED.name)) is not None}
    return RunReport(
        overview=shown,
        values={guid: found for guid, one in sorted(state.resources.items()) if (found := dict(_own_values(one)))},
        measured=tuple(Series.of(guid, "", name, numbers) for (guid, name), numbers in sorted(values.items())),
        reported=tuple(reported_in(folder, traces)),
        recordings=tuple(recordings_in(folder, traces, began)),
        traces=tuple(traces),
    ), state


def _own_values(resource: Resource) -> Iterator[tuple[str, Any]]:
    """Return what a resource set by itself; of a type that is not known here, nothing."""
    try:
        attributes = ResourceFactory.get_resource_type(resource.rtype).get_attributes()
    except UnknownTypeError:
        return
    for each in attributes:
        value = each.from_note(resource.attributes.get(each.name))
        if each.has_flag(Flags.NoWrite) and not each.is_masked and value not in (None, "", MASK):
            yield each.name, value


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


_WIDEST = 160
MAX_CURVES = 20
MAX_BARS = 200
"""With more resources than this a timeline is too high to be looked at."""


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EPILOG)(report)


def report(
    run_dir: RunArgument,
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a page there, such as run.html.")] = None,
    json: JsonOption = False,
) -> None:
    """Report on a run: states and times, failures and reasons, what was measured and reported, energy, and traces."""
    found, state = report_on(run_dir)
    sections = sections_of(found)
    written = [str(output)] if output is not None else []
    if output is not None:
        _write_page(output, found, sections, state)
    emit(document_of(found, written), text=_text(sections, written), as_json=json)


def document_of(found: RunReport, written: list[str]) -> dict[str, Any]:
    """Return a report for programs."""
    document: dict[str, Any] = msgspec.to_builtins(found, str_keys=True, enc_hook=str)
    for one in (*document["measured"], *document["reported"]):
        del one["points"]  # they are for drawings: the journal and the traces have all of them
    return {"well": found.overview.is_well, **document.pop("overview"), **document, "written": written}


def _text(sections: list[Section], written: list[str]) -> str:
    width = min(_WIDEST, shutil.get_terminal_size((100, 24)).columns)
    parts = []
    for section in sections:
        lines = [section.title, "-" * min(width, len(section.title))]
        lines += _wrapped(section.lines, width)
        lines += _facts(section.facts, width)
        found = section.findings
        lines += _wrapped((f"{each.title}: {each.text} {each.advice}".rstrip() for each in found), width)
        if section.table is not None:
            lines += _rows(section.table, width)
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, *(f"written: {path}" for path in written)])


def _wrapped(texts: Iterable[str], width: int) -> Iterator[str]:
    for text in texts:
        yield from textwrap.wrap(
            escape_control(text), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )


def _facts(facts: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    longest = max((len(name) for name, _ in facts), default=0) + 2
    for name, value in facts:
        yield from textwrap.wrap(
            f"{name:{longest}}{escape_control(value)}",
            width,
            subsequent_indent=" " * longest,
            break_long_words=False,
            break_on_hyphens=False,
        )


def _rows(table: Table, width: int) -> list[str]:
    """Return a table as lines, without the columns that are empty; the last one is cut where it is too wide."""
    kept = used(table)
    rows = [tuple(map(escape_control, row)) for row in (kept.headers, *kept.rows)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(kept.headers))]
    lines = []
    for row in rows:
        cells = [
            text.rjust(widths[place]) if place in kept.numeric else text.ljust(widths[place])
            for place, text in enumerate(row)
        ]
        line = "  ".join(cells).rstrip()
        lines.append(line if len(line) <= width else f"{line[: width - 1]}…")
    return lines


def _write_page(path: Path, found: RunReport, sections: list[Section], state: State) -> None:
    from fedmon.report.extra import report_extra

    with report_extra("a page"):
        from fedmon.report.document import model
        from fedmon.report.document.html import html
        from fedmon.report.plots.library import own_process

    shown = found.overview
    with own_process(path.parent):
        curves = {REPORTED: _curves(found, found.reported), MEASURED: _curves(found, found.measured)}
        parts = [_section(section, curves.get(section.title, [])) for section in sections]
        # A graph is long where one waits for the other all the way: it comes with the resources, below what matters.
        titles = [section.title for section in sections]
        for title, picture, at in (
            ("Graph", _picture(found, state), titles.index(RESOURCES) + 1 if RESOURCES in titles else len(titles)),
            ("Timeline", _timeline(found), 1 + any(each.failed for each in shown.resources)),
        ):
            if picture is not None:
                parts.insert(at, model.Section(title=title, parts=(picture,)))
        document = model.Document(
            title=f"Experiment {shown.exp_id}",
            subtitle=f"run {shown.run_id}: {shown.status}",
            header=f"experiment {shown.exp_id}, run {shown.run_id}; made {when(time.time())}",
            sections=tuple(parts),
        )
        with replacing(path) as new, new.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(html(document))


def _section(section: Section, pictures: list[Any]) -> Any:
    from fedmon.report.document import model

    parts: list[Any] = [model.Paragraph(text=line) for line in section.lines]
    parts += [model.Facts(rows=section.facts)] if section.facts else []
    parts += [model.Findings(findings=section.findings)] if section.findings else []
    if section.table is not None and section.table.rows:
        kept = used(section.table)
        parts.append(model.Table(headers=kept.headers, rows=kept.rows, numeric=kept.numeric))
    return model.Section(title=section.title, parts=(*pictures, *parts))


def _curves(found: RunReport, series: Sequence[Series]) -> list[Any]:
    """Return a drawing for each name of which there are several numbers: a line for each node, or for each resource."""
    from fedmon.report.curves import Curve, drawn

    names = {each.guid: f"{each.guid} {each.name or each.rtype}" for each in found.overview.resources}
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for one in series:
        line = lines.setdefault(one.name, {}).setdefault(one.node or names.get(one.guid, str(one.guid)), [])
        line += [(t - found.overview.began, value) for t, value in one.points]
    pictures = []
    for name, of_name in list(lines.items())[:MAX_CURVES]:
        if any(len(points) > 1 for points in of_name.values()):
            png = drawn(name, [Curve(label=label, points=tuple(sorted(of_name[label]))) for label in sorted(of_name)])
            pictures.append(_drawing(f"{name} while it ran", png))
    return pictures


def _timeline(found: RunReport) -> Any:
    """Return when each resource came to which state, as bars; null where there is nothing, or too much."""
    from fedmon.report.timeline import Bar, Timeline, drawn

    shown = found.overview
    if not shown.began or not 0 < len(shown.resources) <= MAX_BARS:
        return None
    rows = []
    for each in shown.resources:
        moments = sorted((t, ResourceState[name]) for name, t in each.times.items())
        ends = [t for t, _ in moments[1:]] + [shown.until]
        bars = tuple(
            Bar(start_s=t - shown.began, end_s=end - shown.began, state=state.name, colour=COLOURS[state])
            for (t, state), end in zip(moments, ends, strict=True)
            if state not in (ResourceState.NEW, ResourceState.RELEASED) and end > t
        )
        rows.append((f"{each.guid} {each.name or each.rtype}", bars))
    png = drawn(Timeline(rows=tuple(rows), length_s=shown.until - shown.began))
    return _drawing("When each resource came to which state", png)


def _picture(found: RunReport, state: State) -> Any:
    """Return the drawing of a run; null for one that is too large to be drawn."""
    names = {each.guid: each.name for each in found.overview.resources if each.name}
    try:
        png = draw(picture_of(as_reached(state), names=names), "png")
    except FedmonError:
        return None
    return _drawing("The resources and their conditions", png)


def _drawing(title: str, png: bytes) -> Any:
    from fedmon.report.document import model

    return model.Picture(title=title, png=lambda: png)
