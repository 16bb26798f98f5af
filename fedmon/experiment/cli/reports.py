"""`fedmon experiment report`: states, failures, metrics, energy and traces of a run, as text, JSON or a page."""

from __future__ import annotations

import contextlib
import json
import shutil
import stat
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fedmon.common.errors import FedmonError
from fedmon.common.files import replacing
from fedmon.common.log import escape_control
from fedmon.common.text import duration, moment, shorten, size, table
from fedmon.experiment.attributes import MASK, Flags
from fedmon.experiment.check.diagram import COLOURS, content_of, picture_of
from fedmon.experiment.check.status import Overview, as_reached, followed, heading
from fedmon.experiment.cli.documents import JsonOption, RunArgument
from fedmon.experiment.errors import UnknownTypeError
from fedmon.experiment.events import AnyEvent, Measured
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.journal import DOCUMENT, NAME, Follower
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import ResourceState
from fedmon.report.document.model import Document, Facts, Findings, Paragraph, Part, Picture, Section, Table
from fedmon.researcher.cli.shell import emit

REPORTED, MEASURED, RESOURCES = "Values that plans reported", "Values that conditions used", "Resources"
MAX_CURVES = 20
MAX_BARS = 200
"""A timeline of more resources is too high to be useful."""
_WIDEST, _LONGEST = 160, 160
_SHOWN_STATES = ("READY", "STARTED", "STOPPED", "FAILED", "RELEASED")


MAX_POINTS = 500
MAX_FILES = 2000
"""So many files of a run are listed."""
_RECORDINGS = (".sqlite", ".fmr")
_NO_TRACES = frozenset({NAME, DOCUMENT})
_OF_SQLITE = ("-wal", "-shm", "-journal")


class TraceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a resource wrote, or, with ``collected``, that was collected of one; ``path`` is within the run."""

    guid: int
    path: str
    size_bytes: int
    collected: bool = False


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of one name that came one after the other: of a resource, and of a node where one reported them.

    ``points`` are some of them, evenly, for a drawing: when each came, in Unix seconds, and the number.
    """

    guid: int
    node: str
    name: str
    count: int
    first: float
    last: float
    low: float
    high: float
    points: tuple[tuple[float, float], ...] = ()


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording tells, energy among it; ``problem`` says why it tells nothing."""

    guid: int
    path: str
    nodes: tuple[str, ...] = ()
    findings: tuple[Any, ...] = ()
    problem: str = ""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a run. ``values`` are attributes that resources set, such as outcomes.

    ``measured`` has the values that conditions used, ``reported`` those that plans reported.
    """

    overview: Overview
    values: dict[int, dict[str, Any]]
    measured: tuple[Series, ...]
    reported: tuple[Series, ...]
    recordings: tuple[Recorded, ...]
    traces: tuple[TraceFile, ...]


_Numbers = dict[tuple[int, str, str], list[tuple[float, float]]]
"""By resource, node and name: when each number came, and the number."""


def traces_in(folder: Path, guids: Iterable[int]) -> list[TraceFile]:
    """Return what the resources of a run wrote, and what was collected of them, at most `MAX_FILES`."""
    known, found = set(guids), []
    for path in sorted(folder.rglob("*")):
        within = path.relative_to(folder)
        if path.name.startswith(".") or path.name.endswith(_OF_SQLITE) or str(within) in _NO_TRACES:
            continue
        is_collected = len(within.parts) == 1 or within.parts[0] not in map(str, known)
        owner = path.name.partition(".")[0] if is_collected else within.parts[0]
        with contextlib.suppress(OSError):
            about = path.lstat()
            if owner.isdigit() and int(owner) in known and stat.S_ISREG(about.st_mode):
                found.append(
                    TraceFile(guid=int(owner), path=str(within), size_bytes=about.st_size, collected=is_collected)
                )
        if len(found) == MAX_FILES:
            break
    return sorted(found, key=lambda each: (each.guid, each.collected, each.path))


def series_of(numbers: _Numbers) -> tuple[Series, ...]:
    """Sum up numbers, of which there is one at least for each name."""
    found = []
    for (guid, node, name), points in sorted(numbers.items()):
        kept = [value for _, value in points]
        some = tuple(points[:: -(-len(points) // MAX_POINTS)])
        series = Series(
            guid=guid, node=node, name=name, count=len(kept), first=kept[0], last=kept[-1], low=min(kept),
            high=max(kept), points=some,
        )  # fmt: skip
        found.append(series)
    return tuple(found)


def reported_in(folder: Path, traces: Iterable[TraceFile]) -> tuple[Series, ...]:
    """Return what plans reported, by job, node and name. Lines that are none of ours are passed over."""
    found: _Numbers = {}
    for trace in traces:
        if not trace.collected and Path(trace.path).name == "scalars":
            with contextlib.suppress(OSError), (folder / trace.path).open("rb") as file:
                for line in file:
                    with contextlib.suppress(msgspec.DecodeError, RecursionError):
                        one = msgspec.json.decode(line, type=_Scalars)
                        for name, value in one.values.items():
                            if isinstance(value, int | float):
                                found.setdefault((trace.guid, one.node, name), []).append((one.t, float(value)))
    return series_of(found)


class _Scalars(msgspec.Struct):
    """A line of the numbers that a plan reported."""

    values: dict[str, Any]
    node: str = ""
    t: float = 0.0


def recordings_in(folder: Path, traces: Iterable[TraceFile], began: Mapping[int, float]) -> list[Recorded]:
    """Return what the recordings of a run tell from when their resources ``began``, in Unix seconds, by guid."""
    return [
        _recorded(folder, trace, began.get(trace.guid))
        for trace in traces
        if not trace.collected and Path(trace.path).suffix in _RECORDINGS and trace.size_bytes
    ]


def _recorded(folder: Path, trace: TraceFile, began: float | None) -> Recorded:
    from fedmon.report.extra import report_extra

    try:
        with report_extra("what a recording tells"):
            from fedmon.report.findings import find
            from fedmon.report.source import Source
            from fedmon.report.subject import choose

            with Source([folder / trace.path]) as source:
                last = dict.fromkeys((host.node_id for host in source.hosts), 0.0)
                for stream in source.streams:
                    last[stream.node_id] = max(last.get(stream.node_id, 0.0), stream.last_t)
                # A recording begins with the last sample before, taken at another pace: no part of what was watched.
                # Where the clock of a node is far off, all of its samples are.
                is_within = began is not None and all(last[host.node_id] > began for host in source.hosts)
                case = choose(source, since_t=began if is_within else None).read()
    except FedmonError as error:
        return Recorded(guid=trace.guid, path=trace.path, problem=str(error))
    nodes = tuple(node.name for node in case.nodes)
    return Recorded(guid=trace.guid, path=trace.path, nodes=nodes, findings=tuple(find(case)))


def report(
    run_dir: RunArgument,
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a page, such as run.html.")] = None,
    json: JsonOption = False,
) -> None:
    """Report on a run: states and times, failures, metrics, energy and traces."""
    found, state = report_on(run_dir)
    sections = sections_of(found)
    if output is not None:
        _write_page(output, found, sections, state)
    written = [str(output)] if output is not None else []
    text = "\n\n".join([*map(_text, sections), *(f"written: {path}" for path in written)])
    document: dict[str, Any] = msgspec.to_builtins(found, str_keys=True, enc_hook=str)
    for one in (*document["measured"], *document["reported"]):
        del one["points"]  # they are for drawings
    document = {"well": found.overview.is_well, **document.pop("overview"), **document, "written": written}
    emit(document, text=text, as_json=json)


def report_on(run_dir: str | Path) -> tuple[RunReport, State]:
    """Return the report of a run, which may still be running, and its state. Raises NotFoundError and StorageError."""
    numbers: _Numbers = {}

    def take(event: AnyEvent) -> None:
        if isinstance(event, Measured) and event.value is not None:
            numbers.setdefault((event.guid, "", event.name), []).append((event.t, event.value))

    with Follower(run_dir, on_event=take) as follower:
        shown = followed(follower, time.time())
        state, folder = follower.state, follower.folder
    traces = traces_in(folder, state.resources)
    began = {each.guid: t for each in shown.resources if (t := each.times.get(ResourceState.STARTED.name)) is not None}
    return RunReport(
        overview=shown,
        values={guid: found for guid, one in sorted(state.resources.items()) if (found := _own_values(one))},
        measured=series_of(numbers),
        reported=reported_in(folder, traces),
        recordings=tuple(recordings_in(folder, traces, began)),
        traces=tuple(traces),
    ), state


def _own_values(resource: Resource) -> dict[str, Any]:
    """Return the attributes that a resource set itself; none if its type is unknown here."""
    try:
        attributes = ResourceFactory.get_resource_type(resource.rtype).get_attributes()
    except UnknownTypeError:
        return {}
    own = [one for one in attributes if one.has_flag(Flags.NoWrite) and not one.is_masked]
    values = {one.name: one.from_note(resource.attributes.get(one.name)) for one in own}
    return {name: value for name, value in values.items() if value not in (None, "", MASK)}


def sections_of(found: RunReport) -> list[Section]:
    """Return the sections of a report, most important first; empty ones are left out."""
    names = {each.guid: f"{each.guid} {each.name}".rstrip() for each in found.overview.resources}
    failures = [
        Paragraph(
            text=f"{names[each.guid]} ({each.rtype}){'' if each.critical else ', not critical'}: "
            f"{each.reason or 'no reason was given'}"
        )
        for each in found.overview.resources
        if each.failed
    ]
    values = [
        (names[guid], name, shorten(value if isinstance(value, str) else json.dumps(value, default=str), _LONGEST))
        for guid, of_one in found.values.items()
        for name, value in of_one.items()
    ]
    traces = [(names[each.guid], each.path, size(each.size_bytes)) for each in found.traces]
    total = Paragraph(text=f"{len(traces)} files, {size(sum(each.size_bytes for each in found.traces))}")
    recordings = []
    for one in found.recordings:
        nodes = ", ".join(one.nodes) if 0 < len(one.nodes) <= 4 else f"{len(one.nodes) or ''} nodes".lstrip()
        problem = [Paragraph(text=f"{one.path} cannot be evaluated: {one.problem}")] if one.problem else []
        findings = [Findings(findings=one.findings)] if one.findings else []
        title = f"Recording of {nodes} by {names.get(one.guid, one.guid)}"
        recordings.append(Section(title=title, parts=(*problem, *findings)))
    sections = [
        Section(title="Run", parts=_run(found.overview)),
        Section(title="Failures", parts=tuple(failures)),
        Section(title=REPORTED, parts=_series(found.reported, names)),
        Section(title=MEASURED, parts=_series(found.measured, names)),
        *recordings,
        Section(title=RESOURCES, parts=_resources(found.overview, names)),
        Section(title="Attributes set by resources", parts=_rows(("resource", "attribute", "value"), values)),
        Section(title="Traces", parts=(total, *_rows(("resource", "file", "size"), traces, {2})) if traces else ()),
    ]
    return [each for each in sections if each.parts]


def _rows(
    headers: tuple[str, ...], rows: Sequence[tuple[str, ...]], numeric: set[int] | None = None
) -> tuple[Table, ...]:
    """Return a table without its empty columns; none without rows."""
    kept = [at for at, _ in enumerate(headers) if any(row[at] for row in rows)]
    if not kept:
        return ()
    shown = tuple(tuple(row[at] for at in kept) for row in rows)
    right = frozenset(place for place, at in enumerate(kept) if at in (numeric or ()))
    return (Table(headers=tuple(headers[at] for at in kept), rows=shown, numeric=right),)


def _run(shown: Overview) -> tuple[Part, ...]:
    reached = Counter(each.reached for each in shown.resources)
    counts = ", ".join(f"{reached[state.name]} {state.name}" for state in ResourceState if reached[state.name])
    released = sum(each.state == ResourceState.RELEASED.name for each in shown.resources)
    is_released = bool(released) and released == len(shown.resources)
    facts = [
        ("began", moment(shown.began) if shown.began else ""),
        ("took" if is_released else "so far", duration(shown.until - shown.began) if shown.began else ""),
        ("resources", str(len(shown.resources))),
        ("reached", counts + (", then released" if is_released else "")),
        ("level", "" if shown.failed or not shown.level_reason else f"{shown.level}: {shown.level_reason}"),
        ("blocker", shown.blocker),
        ("files", shown.run_dir),
    ]
    return Paragraph(text=heading(shown)), Facts(rows=tuple((name, value) for name, value in facts if value))


def _resources(shown: Overview, names: dict[int, str]) -> tuple[Table, ...]:
    rows = []
    for each in shown.resources:
        moments = [f"+{duration(t - shown.began)}" if (t := each.times.get(name)) else "" for name in _SHOWN_STATES]
        rows.append((names[each.guid], each.rtype, each.reached, *moments))
    headers = ("resource", "type", "reached", *(name.lower() for name in _SHOWN_STATES))
    return _rows(headers, rows, set(range(3, 8)))


def _series(series: tuple[Series, ...], names: dict[int, str]) -> tuple[Table, ...]:
    who = [(names.get(one.guid, str(one.guid)), one.node, one.name) for one in series]
    if all(one.count == 1 for one in series):
        rows = [(*name, f"{one.last:.6g}") for name, one in zip(who, series, strict=True)]
        return _rows(("resource", "node", "name", "value"), rows, {3})
    more = [(str(one.count), *(f"{value:.6g}" for value in (one.first, one.last, one.low, one.high))) for one in series]
    headers = ("resource", "node", "name", "values", "first", "last", "lowest", "highest")
    return _rows(headers, [(*name, *numbers) for name, numbers in zip(who, more, strict=True)], set(range(3, 8)))


def _text(section: Section) -> str:
    width = min(_WIDEST, shutil.get_terminal_size((100, 24)).columns)
    lines = [section.title, "-" * min(width, len(section.title))]
    for part in section.parts:
        match part:
            case Paragraph(text=text):
                lines += _wrapped(text, width)
            case Findings(findings=findings):
                for each in findings:
                    lines += _wrapped(f"{each.title}: {each.text} {each.advice}".rstrip(), width)
            case Facts(rows=rows):
                for name, value in rows:
                    lines += _wrapped(f"{name:<11}{value}", width)
            case Table():
                lines.append(table(part.headers, part.rows, width=width))
    return "\n".join(lines)


def _wrapped(text: str, width: int) -> list[str]:
    text = escape_control(text)
    return textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _write_page(path: Path, found: RunReport, sections: list[Section], state: State) -> None:
    from fedmon.report.extra import report_extra

    with report_extra("a page"):
        from fedmon.report.document.html import html
        from fedmon.report.plots.library import own_process

    shown = found.overview
    with own_process(path.parent):
        curves = {REPORTED: _curves(found, found.reported), MEASURED: _curves(found, found.measured)}
        parts = [Section(title=one.title, parts=(*curves.get(one.title, ()), *one.parts)) for one in sections]
        titles = [one.title for one in sections]
        # A graph is long if each resource waits for the one before: it comes below what matters more.
        at = titles.index(RESOURCES) + 1 if RESOURCES in titles else len(titles)
        parts[at:at] = _pictures("Graph", "The resources and their conditions", _graph(found, state))
        at = 1 + any(each.failed for each in shown.resources)
        parts[at:at] = _pictures("Timeline", "The states of each resource over time", _timeline(found))
        document = Document(
            title=f"Experiment {shown.exp_id}",
            subtitle=f"run {shown.run_id}: {shown.status}",
            header=f"experiment {shown.exp_id}, run {shown.run_id}; made {moment(time.time())}",
            sections=tuple(parts),
        )
        with replacing(path) as new, new.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(html(document))


def _pictures(title: str, meaning: str, png: bytes | None) -> list[Section]:
    return [] if png is None else [Section(title=title, parts=(Picture(title=meaning, png=lambda: png),))]


def _curves(found: RunReport, series: Sequence[Series]) -> list[Picture]:
    """Return a drawing for each name with several values: a line for each node, or for each resource."""
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
            pictures.append(Picture(title=f"{name} over time", png=partial(bytes, png)))
    return pictures


def _timeline(found: RunReport) -> bytes | None:
    """Return the states of resources as bars over time; None if there are none, or too many."""
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
    return drawn(Timeline(rows=tuple(rows), length_s=shown.until - shown.began))


def _graph(found: RunReport, state: State) -> bytes | None:
    """Return the drawing of a run; None if it is too large."""
    names = {each.guid: each.name for each in found.overview.resources if each.name}
    try:
        return content_of(picture_of(as_reached(state), names=names), "png")
    except FedmonError:
        return None
