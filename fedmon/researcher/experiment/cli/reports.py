"""`fedmon experiment report`: everything that is known of a run, as text, for programs, or as a page."""

from __future__ import annotations

import shutil
import textwrap
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fedmon.common.errors import FedmonError
from fedmon.common.log import escape_control
from fedmon.common.store.whole_file import replacing
from fedmon.researcher.cli_output import emit
from fedmon.researcher.experiment.cli.options import EPILOG, JsonOption, RunArgument
from fedmon.researcher.experiment.drawing import draw, picture_of
from fedmon.researcher.experiment.report_sections import Section, Table, sections_of, when
from fedmon.researcher.experiment.run_report import RunReport, report_on
from fedmon.researcher.experiment.situation import State
from fedmon.researcher.experiment.standing import as_reached

_WIDEST = 160


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
    return {"well": found.overview.is_well, **document.pop("overview"), **document, "written": written}


def _text(sections: list[Section], written: list[str]) -> str:
    width = min(_WIDEST, shutil.get_terminal_size((100, 24)).columns)
    parts = []
    for section in sections:
        lines = [section.title, "-" * min(width, len(section.title))]
        for line in section.lines:
            lines += textwrap.wrap(escape_control(line), width, subsequent_indent="  ", break_long_words=False)
        if section.table is not None:
            lines += _rows(section.table, width)
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, *(f"written: {path}" for path in written)])


def _rows(table: Table, width: int) -> list[str]:
    """Return a table as lines, without the columns that are empty; the last one is cut where it is too wide."""
    used = [at for at, _ in enumerate(table.headers) if any(row[at] for row in table.rows)]
    rows = [tuple(escape_control(row[at]) for at in used) for row in (table.headers, *table.rows)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(used))]
    lines = []
    for row in rows:
        cells = [
            text.rjust(widths[place]) if used[place] in table.numeric else text.ljust(widths[place])
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
        parts = [_section(section) for section in sections]
        picture = _picture(found, state)
        if picture is not None:
            parts.insert(1, model.Section(title="Graph", parts=(picture,)))
        document = model.Document(
            title=f"Experiment {shown.exp_id}",
            subtitle=f"run {shown.run_id}: {shown.status}",
            header=f"experiment {shown.exp_id}, run {shown.run_id}; made {when(time.time())}",
            sections=tuple(parts),
        )
        with replacing(path) as new, new.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(html(document))


def _section(section: Section) -> Any:
    from fedmon.report.document import model

    parts: list[Any] = [model.Paragraph(text=line) for line in section.lines]
    if section.table is not None and section.table.rows:
        parts.append(model.Table(headers=section.table.headers, rows=section.table.rows, numeric=section.table.numeric))
    return model.Section(title=section.title, parts=tuple(parts))


def _picture(found: RunReport, state: State) -> Any:
    """Return the drawing of a run; null for one that is too large to be drawn."""
    from fedmon.report.document import model

    names = {each.guid: each.name for each in found.overview.resources if each.name}
    try:
        png = draw(picture_of(as_reached(state), names=names), "png")
    except FedmonError:
        return None
    return model.Picture(title="The resources and their conditions", png=lambda: png)
