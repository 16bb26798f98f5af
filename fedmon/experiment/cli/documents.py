"""`fedmon experiment check` and `graph`: an experiment planned and drawn without running it."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from fedmon.common.errors import InvalidInputError
from fedmon.common.files import replacing
from fedmon.common.log import escape_control
from fedmon.experiment.checking import Checked, check
from fedmon.experiment.cli.options import EPILOG, EachOption, FileArgument, JsonOption
from fedmon.experiment.drawing import Picture, dot_of, draw, picture_of
from fedmon.experiment.journal import Follower
from fedmon.experiment.standing import as_reached
from fedmon.researcher.cli.shell import emit

IMPOSSIBLE = 2
_FORMATS = ("png", "svg", "dot")


def add_check(app: typer.Typer) -> None:
    """Add `check`."""
    app.command("check", epilog=EPILOG)(check_file)


def add_graph(app: typer.Typer) -> None:
    """Add `graph`."""
    app.command("graph", epilog=EPILOG)(graph)


def check_file(
    file: FileArgument,
    *,
    each: EachOption = False,
    ask: Annotated[
        bool,
        typer.Option("--ask", help="Ask the federation, too: nodes offline, datasets missing, approvals needed."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Plan an experiment without running it: what comes in which order, and what is wrong, with its place."""
    found = check(file, wait_all_ready=not each, asks=ask)
    emit(plan_document(found), text=_fitted(escape_control(plan_text(found), keep="\n")), as_json=json)
    if not found.plan.is_possible:
        raise typer.Exit(IMPOSSIBLE)


def _fitted(text: str) -> str:
    """Return lines that a terminal does not break in the middle of a word; a pipe gets each as it is."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )


def plan_text(found: Checked) -> str:
    """Return the plan for people, each problem with its place in the file."""
    placed = [replace(one, text=f"{one.text} ({found.place(one)})") for one in found.plan.problems]
    return str(replace(found.plan, problems=tuple(placed)))


def plan_document(found: Checked) -> dict[str, Any]:
    """Return the plan for programs."""
    names = found.plan.facts.names
    return {
        "file": str(found.path),
        "exp_id": found.description.exp_id,
        "possible": found.plan.is_possible,
        "resources": [
            {"guid": one.guid, "name": one.name, "rtype": one.rtype, "line": found.lines.get(one.guid)}
            for one in found.description.resources
        ],
        "waves": [
            [{"kind": step.kind, "guid": step.guid, "name": names.get(step.guid, "")} for step in wave]
            for wave in found.plan.waves
        ],
        "stuck": found.plan.stuck,
        "problems": [
            {
                "kind": one.kind,
                "severity": one.severity,
                "guids": one.guids,
                "text": one.text,
                "place": found.place(one),
                "line": found.line(one),
            }
            for one in found.plan.problems
        ],
    }


def graph(
    what: Annotated[
        Path, typer.Argument(metavar="FILE|RUN_DIR", help="An experiment as .toml or .xml, or the folder of a run.")
    ],
    *,
    format: Annotated[  # noqa: A002 - the name of the option
        str | None, typer.Option("--format", help="png, svg or dot; without it what --output ends in, or png.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file; - for what is piped on. Without it EXPERIMENT.FORMAT here."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Draw an experiment, its resources in the colours of their states, its conditions as arrows."""
    kind = _format(format, output)
    name, picture = _pictured(what)
    content = dot_of(picture).encode() if kind == "dot" else _drawn(picture, kind)
    if output == Path("-"):
        sys.stdout.buffer.write(content)
        return
    path = Path(f"{name}.{kind}") if output is None else output
    _write(path, content)
    document = {"written": str(path), "format": kind, "resources": len(picture.labels), "edges": len(picture.edges)}
    emit(document, text=escape_control(f"written: {path}"), as_json=json)


def _format(named: str | None, output: Path | None) -> str:
    ending = output.suffix.lstrip(".").lower() if output is not None else ""
    if named is None and ending and ending not in _FORMATS:
        raise InvalidInputError(
            f"a drawing cannot be written as .{ending}: end --output in .{', .'.join(_FORMATS)}, or give --format"
        )
    kind = named or ending or "png"
    if kind not in _FORMATS:
        raise InvalidInputError(f"--format {kind!r} is not one of {', '.join(_FORMATS)}")
    return kind


def _pictured(what: Path) -> tuple[str, Picture]:
    if what.is_dir():
        with Follower(what) as follower:
            follower.look()
            title = f"{follower.folder.parent.name}, run {follower.folder.name}"
            return follower.folder.parent.name, picture_of(
                as_reached(follower.state), title=title, names=follower.names()
            )
    found = check(what)
    picture = picture_of(
        found.plan.state,
        title=found.description.exp_id,
        names=found.plan.facts.names,
        problems=found.plan.problems,
    )
    return found.description.exp_id, picture


def _drawn(picture: Picture, kind: str) -> bytes:
    from fedmon.report.extra import report_extra

    with report_extra("a drawing"):
        from fedmon.report.plots.library import own_process

    with own_process(Path()):
        return draw(picture, kind)


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as new:
        new.write_bytes(content)
