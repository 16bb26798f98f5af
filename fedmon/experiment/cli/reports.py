"""`fedmon experiment report`: everything that is known of a run, as text, for programs, or as a page."""

from __future__ import annotations

import shutil
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fedmon.common.errors import FedmonError
from fedmon.common.files import replacing
from fedmon.common.log import escape_control
from fedmon.experiment.cli.options import EPILOG, JsonOption, RunArgument
from fedmon.experiment.drawing import COLOURS, draw, picture_of
from fedmon.experiment.report_sections import (
    MEASURED,
    REPORTED,
    RESOURCES,
    Section,
    Table,
    sections_of,
    used,
    when,
)
from fedmon.experiment.run_files import Series
from fedmon.experiment.run_report import RunReport, report_on
from fedmon.experiment.situation import State
from fedmon.experiment.standing import as_reached
from fedmon.experiment.states import ResourceState
from fedmon.researcher.cli.shell import emit

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
