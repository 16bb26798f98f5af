"""An experiment as a picture: resources in the colours of their states, conditions as edges that say what they are."""

from __future__ import annotations

import math
import webbrowser
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.files import write_whole
from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.plan_problems import Problem
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import ResourceState

if TYPE_CHECKING:
    from fedmon.report.diagram import Line


_SWEEPS = 6
_MIN_ROW = 6


def placed(keys: Sequence[int], edges: Sequence[tuple[int, int]]) -> dict[int, tuple[float, float]]:
    """Return a column and a row for each key; an edge leads from above to below, but where edges go in a circle."""
    rows = _rows(keys, edges)
    near: dict[int, list[int]] = {key: [] for key in keys}
    for start, end in edges:
        near[start].append(end)
        near[end].append(start)
    columns = {key: float(column) for row in rows for column, key in enumerate(row)}
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            row.sort(key=lambda key: _middle(key, near, columns))
            columns.update((key, column - len(row) / 2) for column, key in enumerate(row))
    return _wrapped(rows)


def _rows(keys: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Put each key one row below the lowest that leads to it; what is left of a circle goes below what is there."""
    below: dict[int, list[int]] = {key: [] for key in keys}
    above = dict.fromkeys(keys, 0)
    for start, end in set(edges):
        if start != end:
            below[start].append(end)
            above[end] += 1
    row_of: dict[int, int] = {}
    left = dict.fromkeys(keys)
    row = [key for key in keys if not above[key]]
    number = 0
    while left:
        if not row:
            row = [min(left, key=lambda key: above[key])]
        following = []
        for key in row:
            del left[key]
            row_of[key] = number
        for key in row:
            for end in below[key]:
                above[end] -= 1
                if not above[end] and end in left:
                    following.append(end)
        row, number = list(dict.fromkeys(following)), number + 1
    rows: list[list[int]] = [[] for _ in range(number)]
    for key in keys:
        rows[row_of[key]].append(key)
    return rows


def _middle(key: int, near: Mapping[int, Sequence[int]], columns: Mapping[int, float]) -> float:
    """Return the middle of where those are that a key has to do with."""
    others = near[key]
    return sum(columns[other] for other in others) / len(others) if others else columns[key]


def _wrapped(rows: Sequence[Sequence[int]]) -> dict[int, tuple[float, float]]:
    """Break rows that are much longer than the drawing is high, and put each in the middle."""
    widest = max(_MIN_ROW, math.ceil(math.sqrt(sum(map(len, rows)) * 1.5)))
    places: dict[int, tuple[float, float]] = {}
    number = 0
    for row in rows:
        lines = math.ceil(len(row) / widest)
        each = math.ceil(len(row) / lines) if lines else 1
        for start in range(0, len(row), each):
            line = row[start : start + each]
            places.update((key, (column - (len(line) - 1) / 2, float(number))) for column, key in enumerate(line))
            number += 1
    return places


COLOURS: Mapping[ResourceState, str] = {
    ResourceState.NEW: "#ffffff",
    ResourceState.DISCOVERED: "#dbeafe",
    ResourceState.RESERVED: "#e5d8f5",
    ResourceState.PROVISIONED: "#bcd7f5",
    ResourceState.READY: "#fdf0b4",
    ResourceState.STARTED: "#aee3ae",
    ResourceState.STOPPED: "#cfd8c8",
    ResourceState.FAILED: "#f6aaa3",
    ResourceState.RELEASED: "#d6d6d6",
}
ACTION_COLOURS: Mapping[str, str] = {"deploy": "#1f5fa8", "start": "#1b7f3b", "stop": "#b3471d", "set": "#7a3fa0"}
WRONG, PLAIN = "#d00000", "#888888"
MAX_DRAWN = 1500
"""With more boxes than this nobody sees anything; the graph as text has no limit."""

_MAX_LABEL = 60
_MANY = 3


class PFormats(StrEnum):
    """What a plot can be."""

    FIGURE = "figure"
    DOT = "dot"
    SVG = "svg"


_SUFFIXES = {PFormats.FIGURE: "png", PFormats.DOT: "dot", PFormats.SVG: "svg"}


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """A line between two resources: a connection; with an action a condition, from who is waited for to who waits.

    Edges of one condition have its ``number``.
    """

    start: int
    end: int
    action: str = ""
    label: str = ""
    is_wrong: bool = False
    number: int = 0

    @property
    def colour(self) -> str:
        """How it is drawn."""
        return WRONG if self.is_wrong else ACTION_COLOURS.get(self.action, PLAIN)


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn. ``wrong`` are resources that a problem is about."""

    title: str
    labels: dict[int, tuple[str, ...]]
    states: dict[int, ResourceState]
    edges: tuple[Edge, ...]
    wrong: frozenset[int] = frozenset()


def picture_of(
    state: State, *, title: str = "", names: Mapping[int, str] | None = None, problems: Iterable[Problem] = ()
) -> Picture:
    """Return what is to be drawn of an experiment."""
    names = {} if names is None else names
    errors = [problem for problem in problems if problem.severity == "error"]
    wrong_pairs = {pair for problem in errors for pair in zip(problem.guids[1:], problem.guids[:-1], strict=True)}
    resources = sorted(state.resources.values(), key=lambda resource: resource.guid)
    return Picture(
        title=title,
        labels={resource.guid: _label(resource, names) for resource in resources},
        states={resource.guid: resource.state for resource in resources},
        edges=tuple(edge for resource in resources for edge in _edges(state, resource, wrong_pairs)),
        wrong=frozenset(guid for problem in errors for guid in problem.guids if guid in state.resources),
    )


def dot_of(picture: Picture) -> str:
    """Return a picture in the language of Graphviz. Source: graphviz.org, "DOT Language", on quoted strings."""
    lines = [f"digraph {_quoted(picture.title or 'experiment')} {{", "  rankdir=TB;"]
    lines.append('  node [shape=box, style="rounded,filled", fontname="sans-serif"];')
    lines.append('  edge [fontname="sans-serif", fontsize=10];')
    for guid, label in picture.labels.items():
        state = picture.states[guid]
        border = f', color="{WRONG}", penwidth=2.5' if guid in picture.wrong else ""
        lines.append(
            f'  {guid} [label={_quoted(chr(10).join((*label, state.name)))}, fillcolor="{COLOURS[state]}"{border}];'
        )
    for edge in picture.edges:
        if edge.action:
            look = f'label={_quoted(edge.label)}, color="{edge.colour}", fontcolor="{edge.colour}"'
        else:
            look = f'dir=none, style=dashed, color="{edge.colour}"'
        lines.append(f"  {edge.start} -> {edge.end} [{look}];")
    return "\n".join([*lines, "}", ""])


def draw(picture: Picture, kind: str) -> bytes:
    """Return a picture as "png" or "svg". Raises InvalidInputError where it is too large, and MissingExtraError."""
    if len(picture.labels) > MAX_DRAWN:
        raise InvalidInputError(
            f"{len(picture.labels)} resources are too many for a picture, which shows up to {MAX_DRAWN}: take dot"
        )
    from fedmon.report.diagram import Box, Diagram, Line, drawn

    joined, lines = _joined(picture.edges)
    places = placed([*picture.labels, *joined], [(line.start, line.end) for line in lines])
    boxes = {
        guid: Box(
            x=places[guid][0],
            y=places[guid][1],
            lines=(*label, picture.states[guid].name),
            fill=COLOURS[picture.states[guid]],
            border=WRONG if guid in picture.wrong else "#444444",
        )
        for guid, label in picture.labels.items()
    }
    boxes |= {
        key: Box(x=places[key][0], y=places[key][1], lines=(edge.label,), fill="", border=edge.colour)
        for key, edge in joined.items()
    }
    diagram = Diagram(
        title=picture.title,
        boxes=boxes,
        lines=tuple(lines),
        legend={state.name: COLOURS[state] for state in sorted(set(picture.states.values()))},
        line_legend={
            "a problem" if edge.is_wrong else edge.action or "connection": Line(
                start=0, end=0, label="", colour=edge.colour, is_connection=not edge.action, has_head=bool(edge.action)
            )
            for edge in sorted(picture.edges, key=lambda edge: (edge.is_wrong, edge.action))
        },
    )
    return drawn(diagram, kind)


def plot(
    picture: Picture,
    dirpath: str | Path,
    name: str,
    *,
    format: str = PFormats.FIGURE,  # noqa: A002 - NEPI's name
    show: bool = False,
) -> Path:
    """Draw a picture into a folder and return the file; ``show`` opens it with what the system has for it.

    Raises InvalidInputError for another format, MissingExtraError and StorageError.
    """
    if format not in set(PFormats):
        raise InvalidInputError(f"no plots of the format {format!r}; one of: {', '.join(PFormats)}")
    kind = PFormats(format)
    content = dot_of(picture).encode() if kind is PFormats.DOT else draw(picture, _SUFFIXES[kind])
    path = Path(dirpath) / f"{name}.{_SUFFIXES[kind]}"
    write_whole(path, content)
    if show:
        webbrowser.open(path.absolute().as_uri())
    return path


def _joined(edges: Iterable[Edge]) -> tuple[dict[int, Edge], list[Line]]:
    """Return what is drawn for edges; those of one condition that are many meet in a box, which says what it is.

    The keys of these boxes are below zero, where no resource is.
    """
    from fedmon.report.diagram import Line

    by_condition: dict[tuple[int, str], list[Edge]] = {}
    for edge in edges:
        by_condition.setdefault((edge.number, edge.label), []).append(edge)
    joined: dict[int, Edge] = {}
    lines: list[Line] = []
    for (number, label), those in by_condition.items():
        if not number or len(those) < _MANY:
            lines += [
                Line(
                    start=edge.start,
                    end=edge.end,
                    label=label,
                    colour=edge.colour,
                    is_connection=not edge.action,
                    has_head=bool(edge.action),
                )
                for edge in those
            ]
            continue
        key = -len(joined) - 1
        joined[key] = max(those, key=lambda edge: edge.is_wrong)
        for has_head in (False, True):
            ends = {edge.end if has_head else edge.start: edge for edge in sorted(those, key=lambda one: one.is_wrong)}
            lines += [
                Line(
                    start=key if has_head else guid,
                    end=guid if has_head else key,
                    label="",
                    colour=edge.colour,
                    is_connection=False,
                    has_head=has_head,
                )
                for guid, edge in ends.items()
            ]
    return joined, lines


def _label(resource: Resource, names: Mapping[int, str]) -> tuple[str, ...]:
    name = names.get(resource.guid, "")
    first = f"{resource.guid} {name}" if name else str(resource.guid)
    return (_short(first), _short(resource.rtype))


def _edges(state: State, resource: Resource, wrong: Collection[tuple[int, int]]) -> Iterator[Edge]:
    for guid in sorted(resource.connections):
        other = state.resources.get(guid)
        if other is not None and (resource.guid < guid or resource.guid not in other.connections):
            is_wrong = (guid, resource.guid) in wrong or (resource.guid, guid) in wrong
            yield Edge(start=resource.guid, end=guid, is_wrong=is_wrong)
    conditions = [(action.name.lower(), "", condition) for action, condition in resource.conditions]
    for want in state.wants.values() if resource.sets else ():
        if want.guid == resource.guid and want.attribute is not None:
            conditions += [("set", f" {want.attribute[0]}", condition) for condition in want.conditions]
    for action, what, condition in conditions:
        for guid in condition.group:
            if guid in state.resources:
                yield Edge(
                    start=guid,
                    end=resource.guid,
                    action=action,
                    label=_short(f"{action}{what}: {_said(condition)}"),
                    number=condition.number,
                    is_wrong=(guid, resource.guid) in wrong,
                )


def _said(condition: AnyCondition) -> str:
    quorum = "" if condition.at_least is None else f"{condition.needed} of {len(condition.group)} "
    timeout = "" if condition.timeout_s is None else f" within {condition.timeout_s:g} s"
    return f"{quorum}{condition}{timeout}"


def _short(text: str) -> str:
    return text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…"


def _quoted(text: str) -> str:
    kept = "".join(character if character.isprintable() or character == "\n" else "?" for character in text)
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
