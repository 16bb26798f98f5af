"""The diagram of an experiment: boxes in the colours of states, arrows for conditions; as DOT, Mermaid, SVG or PNG."""

from __future__ import annotations

import webbrowser
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fedmon.common.errors import InvalidInputError
from fedmon.common.files import write_whole
from fedmon.common.text import shorten
from fedmon.experiment.check.graph import Problem, waits_of
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import ResourceState
from fedmon.report.diagram import Box, Edge, drawn

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
_LINES = {"connection": "#888888", "deploy": "#1f5fa8", "start": "#1b7f3b", "stop": "#b3471d", "set": "#7a3fa0"}
_WRONG, _BORDER = "#d00000", "#444444"
MAX_DRAWN = 1500
"""More boxes than this are unreadable; DOT and Mermaid have no limit."""
_MAX_LABEL, _MANY = 60, 3


class PFormats(StrEnum):
    """The formats of a plot; FIGURE is PNG."""

    FIGURE = "figure"
    DOT = "dot"
    SVG = "svg"
    MERMAID = "mermaid"


SUFFIXES = {PFormats.FIGURE: "png", PFormats.DOT: "dot", PFormats.SVG: "svg", PFormats.MERMAID: "mmd"}


class Diagram(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment to be drawn; keys of boxes are guids, and below 0 for the notes of conditions between many."""

    title: str
    boxes: dict[int, Box]
    edges: tuple[Edge, ...]
    states: tuple[ResourceState, ...]


def picture_of(state: State, *, title: str = "", problems: Iterable[Problem] = ()) -> Diagram:
    """Return the diagram of an experiment; the resources and waits of errors are red."""
    paths = [problem.guids for problem in problems if problem.severity == "error"]
    wrong = {guid for path in paths for guid in path}
    wrong_pairs = {pair for path in paths for pair in zip(path[1:], path, strict=False)}
    resources = sorted(state.resources.values(), key=lambda resource: resource.guid)
    boxes = {}
    for one in resources:
        name = f"{one.guid} {one.name}".rstrip()
        boxes[one.guid] = Box(
            lines=(shorten(name, _MAX_LABEL), shorten(one.rtype, _MAX_LABEL), one.state.name),
            fill=COLOURS[one.state],
            border=_WRONG if one.guid in wrong else _BORDER,
            is_thick=one.guid in wrong,
        )
    pairs = ((one.guid, guid) for one in resources for guid in sorted(one.connections) if guid in state.resources)
    edges = [
        _edge(start, end, "connection", wrong_pairs)
        for start, end in pairs
        if start < end or start not in state.resources[end].connections
    ]
    notes: dict[int, Box] = {}
    for label, kind, starts, ends in _conditions(state, resources):
        if len(starts) * len(ends) < _MANY:
            edges += [_edge(start, end, kind, wrong_pairs, label) for start in starts for end in ends]
            continue
        key = -len(notes) - 1
        is_wrong = any((start, end) in wrong_pairs for start in starts for end in ends)
        into = _edge(key, key, kind, [(key, key)] if is_wrong else ())
        notes[key] = Box(lines=(label,), fill="", border=into.colour)
        edges += [replace(into, start=start, has_head=False) for start in starts]
        edges += [replace(into, end=end) for end in ends]
    states = tuple(sorted({one.state for one in resources}))
    return Diagram(title=title, boxes=boxes | notes, edges=tuple(edges), states=states)


def _conditions(state: State, resources: Iterable[Resource]) -> Iterator[tuple[str, str, list[int], list[int]]]:
    """Return each condition once: its label and kind, the resources that it asks for, and those that wait."""
    found: dict[tuple[int, str], tuple[str, str, list[int], list[int]]] = {}
    for resource in resources:
        for _, what, condition in waits_of(resource, state):
            quorum = "" if condition.at_least is None else f"{condition.needed} of {len(condition.group)} "
            timeout = "" if condition.timeout_s is None else f" within {condition.timeout_s:g} s"
            label = shorten(f"{what}: {quorum}{condition}{timeout}", _MAX_LABEL)
            group = [guid for guid in condition.group if guid in state.resources]
            kind = what.partition(" ")[0]
            found.setdefault((id(condition), label), (label, kind, group, []))[3].append(resource.guid)
    yield from found.values()


def _edge(start: int, end: int, kind: str, wrong: Collection[tuple[int, int]], label: str = "") -> Edge:
    is_dashed = kind == "connection"
    is_wrong = (start, end) in wrong or (is_dashed and (end, start) in wrong)
    colour = _WRONG if is_wrong else _LINES[kind]
    return Edge(
        start=start,
        end=end,
        kind="a problem" if is_wrong else kind,
        colour=colour,
        label=label,
        is_dashed=is_dashed,
        has_head=not is_dashed,
    )


def dot_of(diagram: Diagram) -> str:
    """Return a diagram in the DOT language. Source: graphviz.org, "DOT Language", on quoted strings."""
    lines = [f"digraph {_quoted(diagram.title or 'experiment')} {{", "  rankdir=TB;"]
    lines.append('  node [shape=box, style="rounded,filled", fontname="sans-serif"];')
    lines.append('  edge [fontname="sans-serif", fontsize=10];')
    for key, box in diagram.boxes.items():
        width = ", penwidth=2.5" if box.is_thick else ""
        border = f', color="{box.border}"{width}' if box.border != _BORDER else ""
        lines.append(f'  {key} [label={_quoted(chr(10).join(box.lines))}, fillcolor="{box.fill or "white"}"{border}];')
    for line in diagram.edges:
        look = [f"label={_quoted(line.label)}"] * bool(line.label) + ["dir=none"] * (not line.has_head)
        look += ["style=dashed"] * line.is_dashed + [f'color="{line.colour}", fontcolor="{line.colour}"']
        lines.append(f"  {line.start} -> {line.end} [{', '.join(look)}];")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    kept = "".join(character if character.isprintable() or character == "\n" else "?" for character in text)
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def mermaid_of(diagram: Diagram) -> str:
    """Return a diagram as a flowchart of Mermaid. Source: mermaid.js.org, "Flowcharts", on entity codes."""
    lines = ["---", f"title: {msgspec.json.encode(diagram.title).decode()}", "---"] if diagram.title else []
    lines.append("flowchart TD")
    for key, box in diagram.boxes.items():
        text = "<br>".join(map(_entities, box.lines))
        lines.append(f'  {_node(key)}["{text}"]' if box.fill else f'  {_node(key)}(["{text}"])')
        lines.append(f"  style {_node(key)} fill:{box.fill or '#ffffff'},stroke:{box.border},color:#000000")
    for number, line in enumerate(diagram.edges):
        arrow = "-.-" if line.is_dashed else "-->" if line.has_head else "---"
        label = f'|"{_entities(line.label)}"|' if line.label else ""
        lines.append(f"  {_node(line.start)} {arrow}{label} {_node(line.end)}")
        lines.append(f"  linkStyle {number} stroke:{line.colour},color:{line.colour}")
    return "\n".join([*lines, ""])


def _node(key: int) -> str:
    return f"r{key}" if key >= 0 else f"n{-key}"


def _entities(text: str) -> str:
    """Return a text with all but plain characters as entities, so that none is read as syntax."""
    return "".join(each if each.isalnum() or each in " _.,:+-/()" else f"#{ord(each)};" for each in text)


def content_of(diagram: Diagram, suffix: str) -> bytes:
    """Return a diagram as the content of a file that ends in png, svg, dot or mmd.

    Raises InvalidInputError for a drawing of too many resources, and MissingExtraError.
    """
    if suffix in ("dot", "mmd"):
        return (dot_of(diagram) if suffix == "dot" else mermaid_of(diagram)).encode()
    if len(diagram.boxes) > MAX_DRAWN:
        raise InvalidInputError(
            f"{len(diagram.boxes)} boxes are too many to draw, the limit is {MAX_DRAWN}: use dot or mermaid"
        )
    legend = {state.name: COLOURS[state] for state in diagram.states}
    return drawn(diagram.boxes, diagram.edges, title=diagram.title, legend=legend, kind=suffix)


def plot(
    diagram: Diagram,
    dirpath: str | Path,
    name: str,
    *,
    format: str = PFormats.FIGURE,  # noqa: A002 - NEPI's name
    show: bool = False,
) -> Path:
    """Draw a diagram into a folder and return the file; ``show`` opens it with the system's viewer.

    Raises InvalidInputError for another format, MissingExtraError and StorageError.
    """
    if format not in set(PFormats):
        raise InvalidInputError(f"no plots of the format {format!r}; one of: {', '.join(PFormats)}")
    suffix = SUFFIXES[PFormats(format)]
    path = Path(dirpath) / f"{name}.{suffix}"
    write_whole(path, content_of(diagram, suffix))
    if show:
        webbrowser.open(path.absolute().as_uri())
    return path
