"""`fedmon experiment report`: states, failures, metrics and traces of a run, as text, JSON or a page."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.files import replacing
from fedmon.common.log import escape_control
from fedmon.common.text import moment, plural, shorten, size, table
from fedmon.experiment.attributes import MASK, Flags
from fedmon.experiment.check.diagram import COLOURS, MAX_DRAWN, content_of, picture_of
from fedmon.experiment.check.status import Overview, as_reached, followed, heading
from fedmon.experiment.cli.runs import facts_of, failures_of, table_of
from fedmon.experiment.errors import UnknownTypeError
from fedmon.experiment.events import AnyEvent, Measured
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.journal import Follower
from fedmon.experiment.natures import is_kind
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import ResourceState
from fedmon.report.diagram import Bar, timeline_png
from fedmon.report.document.model import Document, Facts, Paragraph, Part, Picture, Section, TextTable
from fedmon.report.extra import report_extra
from fedmon.researcher.cli.shell import emit

MAX_BARS = 200
"""A timeline of more resources is too high to be useful."""
_LONGEST = 160
_RECORDINGS = (".sqlite", ".fmr")
_OF_SQLITE = ("-wal", "-shm", "-journal")


class TraceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a resource wrote, or, with ``collected``, a copy of its trace; ``path`` is within the run."""

    guid: int
    path: str
    size_bytes: int
    collected: bool = False


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one name: of a resource, and of a node if one reported them."""

    guid: int
    node: str
    name: str
    count: int
    first: float
    last: float
    low: float
    high: float


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a run. ``values`` are attributes that resources set, such as outcomes.

    ``measured`` has all values that resources reported, ``reported`` those of plans. ``recordings`` are the traces that
    `fedmon report` evaluates.
    """

    overview: Overview
    values: dict[int, dict[str, Any]]
    measured: tuple[Series, ...]
    reported: tuple[Series, ...]
    recordings: tuple[TraceFile, ...]
    traces: tuple[TraceFile, ...]


def report_run(run_dir: Path, *, output: Path | None, as_json: bool) -> None:
    """Print a report on a run, or write its page."""
    numbers: dict[tuple[int, str, str], list[float]] = defaultdict(list)

    def take(event: AnyEvent) -> None:
        if isinstance(event, Measured) and event.value is not None:
            numbers[event.guid, event.source, event.name].append(event.value)

    follower = Follower(run_dir, on_event=take)
    shown = followed(follower)
    state, folder = follower.run.state, follower.folder
    jobs = {each.guid for each in shown.resources if is_kind(each.rtype, "fedmon::Job")}
    traces = traces_in(folder, state.resources)
    measured = _series_of(numbers)
    found = RunReport(
        overview=shown,
        values={guid: own for guid, one in sorted(state.resources.items()) if (own := _own_values(one))},
        measured=measured,
        reported=tuple(one for one in measured if one.guid in jobs),
        recordings=tuple(each for each in traces if not each.collected and Path(each.path).suffix in _RECORDINGS),
        traces=tuple(traces),
    )
    sections = _sections(found, state)
    if output is not None:
        _write_page(output, shown, sections)
    written = [str(output)] if output is not None else []
    told = [one for one in sections if not all(isinstance(part, Picture) for part in one.parts)]
    text = "\n\n".join([*map(_text, told), *(f"written: {path}" for path in written)])
    report: dict[str, Any] = msgspec.to_builtins(found, str_keys=True, enc_hook=str)
    emit({"well": shown.is_well, **report.pop("overview"), **report, "written": written}, text=text, as_json=as_json)


def traces_in(folder: Path, guids: Iterable[int]) -> list[TraceFile]:
    """Return the files that the resources of a run wrote, and the copies of their traces."""
    known, found = set(map(str, guids)), []
    for path in (Path(parent, name) for parent, _, names in os.walk(folder) for name in names):
        within = path.relative_to(folder).parts
        copied = len(within) == 1 or within[0] not in known
        owner = path.name.partition(".")[0] if copied else within[0]
        is_file = not path.name.startswith(".") and not path.name.endswith(_OF_SQLITE) and not path.is_symlink()
        if owner in known and is_file and path.is_file():
            with contextlib.suppress(OSError):  # the run may go on
                size_bytes = path.stat().st_size
                found.append(TraceFile(guid=int(owner), path="/".join(within), size_bytes=size_bytes, collected=copied))
    return sorted(found, key=lambda each: (each.guid, each.collected, each.path))


def _series_of(numbers: Mapping[tuple[int, str, str], list[float]]) -> tuple[Series, ...]:
    """Sum up numbers by resource, node and name; each name has at least one."""
    return tuple(
        Series(
            guid=guid, node=node, name=name, count=len(values), first=values[0], last=values[-1], low=min(values),
            high=max(values),
        )
        for (guid, node, name), values in sorted(numbers.items())
    )  # fmt: skip


def _own_values(resource: Resource) -> dict[str, Any]:
    """Return the attributes that a resource set itself; none if its type is unknown here."""
    try:
        attributes = ResourceFactory.get_resource_type(resource.rtype).get_attributes()
    except UnknownTypeError:
        return {}
    own = [one for one in attributes if one.has_flag(Flags.NoWrite) and not one.is_masked]
    values = {one.name: one.from_note(resource.attributes.get(one.name)) for one in own}
    return {name: value for name, value in values.items() if value not in (None, "", MASK)}


def _sections(found: RunReport, state: State) -> list[Section]:
    """Return the sections of a report, most important first; empty ones are left out. Pages alone draw pictures."""
    shown, graph = found.overview, picture_of(as_reached(state))
    drawn = Picture(title="The resources and their conditions", png=lambda: content_of(graph, "png"))
    bars = Picture(title="The states of each resource over time", png=lambda: _timeline(shown))
    names = {each.guid: f"{each.guid} {each.name}".rstrip() for each in shown.resources}
    values = [
        (names[guid], name, shorten(value if isinstance(value, str) else json.dumps(value, default=str), _LONGEST))
        for guid, of_one in found.values.items()
        for name, value in of_one.items()
    ]
    traces = [(names[each.guid], each.path, size(each.size_bytes)) for each in found.traces]
    recordings = [shlex.quote(f"{shown.run_dir}/{each.path}") for each in found.recordings]
    about = [f"{plural(len(traces), 'file')}, {size(sum(each.size_bytes for each in found.traces))}"] * bool(traces)
    about += [f"`fedmon report {path}` evaluates a recording" for path in recordings]
    sections: dict[str, Sequence[Part]] = {
        "Run": [Paragraph(text=heading(shown)), Facts(rows=tuple(facts_of(shown).items()))],
        "Failures": [Paragraph(text=text) for text in failures_of(shown)],
        "Timeline": [bars] if shown.began and 0 < len(shown.resources) <= MAX_BARS else [],
        "Reported values": _series(found.measured, names),
        "Resources": _rows(*table_of(shown, rows=len(shown.resources))),
        # It may be long, so it stands below what matters more.
        "Graph": [drawn] if len(graph.boxes) <= MAX_DRAWN else [],
        "Attributes set by resources": _rows(("resource", "attribute", "value"), values),
        "Traces": [*(Paragraph(text=text) for text in about), *_rows(("resource", "file", "size"), traces, numeric=2)],
    }
    return [Section(title=title, parts=tuple(parts)) for title, parts in sections.items() if parts]


def _rows(headers: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: int = 99) -> list[TextTable]:
    """Return a table without its empty columns, none without rows; columns from ``numeric`` on are numbers."""
    kept = [at for at, _ in enumerate(headers) if any(row[at] for row in rows)]
    right = frozenset(place for place, at in enumerate(kept) if at >= numeric)
    shown = tuple(tuple(row[at] for at in kept) for row in rows)
    return [TextTable(headers=tuple(headers[at] for at in kept), rows=shown, numeric=right)] if kept else []


def _series(series: Sequence[Series], names: Mapping[int, str]) -> list[TextTable]:
    is_single = all(one.count == 1 for one in series)
    headers = ["value"] if is_single else ["values", "first", "last", "lowest", "highest"]
    rows = []
    for one in series:
        numbers = [f"{value:.6g}" for value in (one.first, one.last, one.low, one.high)]
        shown = numbers[:1] if is_single else [str(one.count), *numbers]
        rows.append([names.get(one.guid, str(one.guid)), one.node, one.name, *shown])
    return _rows(["resource", "node", "name", *headers], rows, numeric=3)


def _text(section: Section) -> str:
    lines = [section.title, "-" * len(section.title)]
    for part in section.parts:
        match part:
            case TextTable():
                lines.append(table(part.headers, part.rows))
            case Paragraph():
                lines.append(escape_control(part.text))
            case Facts():
                lines += [f"{name}: {escape_control(value)}" for name, value in part.rows]
    return "\n".join(lines)


def _write_page(path: Path, shown: Overview, sections: list[Section]) -> None:
    document = Document(
        title=f"Experiment {shown.exp_id}",
        subtitle=f"run {shown.run_id}: {shown.status}",
        header=f"experiment {shown.exp_id}, run {shown.run_id}; made {moment(time.time())}",
        sections=tuple(sections),
    )
    with report_extra("a page"):
        from fedmon.report.document.page import html

        with replacing(path) as new, new.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(html(document))


def _timeline(shown: Overview) -> bytes:
    """Return the states of resources as bars over time."""
    rows = []
    for each in shown.resources:
        moments = sorted((t, ResourceState[name]) for name, t in each.times.items())
        bars = [
            Bar(start_s=t - shown.began, end_s=end - shown.began, state=state.name, colour=COLOURS[state])
            for (t, state), (end, _) in pairwise([*moments, (shown.until, ResourceState.RELEASED)])
            if state not in (ResourceState.NEW, ResourceState.RELEASED) and end > t
        ]
        rows.append((f"{each.guid} {each.name or each.rtype}", bars))
    return timeline_png(rows)
