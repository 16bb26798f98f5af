"""`fedmon experiment check`, `graph` and `report`: an experiment before it runs, and after."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from fedmon.common.errors import InvalidInputError
from fedmon.common.files import replacing
from fedmon.common.log import escape_control
from fedmon.common.options import BrokerOption, IdOption, JsonOption, SettingsOption
from fedmon.common.text import plural
from fedmon.experiment.cli import EachOption, FileArgument, RunArgument, connected
from fedmon.researcher.cli.shell import emit

if TYPE_CHECKING:
    from fedmon.experiment.check.diagram import Diagram

IMPOSSIBLE = 2


def check(
    file: FileArgument,
    *,
    each: EachOption = False,
    ask: Annotated[
        bool, typer.Option("--ask", help="Ask the federation, too: nodes offline, datasets missing, approvals needed.")
    ] = False,
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    researcher: IdOption = None,
    json: JsonOption = False,
) -> None:
    """Plan an experiment without running it: the order of steps, and each problem with its place."""
    from fedmon.experiment.check import document as checking

    with connected(broker, settings, researcher) if ask else nullcontext() as federation:
        found = checking.check(file, wait_all_ready=not each, asks=ask, federation=federation)
    plan = found.plan
    document = {
        "file": str(found.path),
        "exp_id": found.description.exp_id,
        "possible": plan.is_possible,
        "resources": [
            {"guid": one.guid, "name": one.name, "rtype": one.rtype, "line": found.lines.get(one.guid)}
            for one in found.description.resources
        ],
        "waves": [
            [{"kind": step.kind, "guid": step.guid, "name": plan.state.resources[step.guid].name} for step in wave]
            for wave in plan.waves
        ],
        "stuck": plan.stuck,
        "problems": [
            {**msgspec.structs.asdict(one), "place": found.place(one), "line": found.line(one)} for one in plan.problems
        ],
    }
    emit(document, text=escape_control(str(found.placed), keep="\n"), as_json=json)
    if not plan.is_possible:
        raise typer.Exit(IMPOSSIBLE)


def graph(
    what: Annotated[
        Path, typer.Argument(metavar="FILE|RUN_DIR", help="An experiment as .toml or .xml, or the folder of a run.")
    ],
    *,
    format: Annotated[  # noqa: A002 - the name of the option
        str | None,
        typer.Option("--format", help="png, svg, dot or mmd (Mermaid); default: the ending of --output, or png."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Output file, or - for stdout (default: ./EXPERIMENT.FORMAT)."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Draw an experiment: its resources in the colours of their states, its conditions as arrows."""
    from fedmon.experiment.check.diagram import SUFFIXES, content_of

    kind = format or (output.suffix.lstrip(".").lower() if output is not None else "") or "png"
    if output == Path("-") and json:
        raise InvalidInputError("--json prints a summary on stdout, and -o - the drawing: choose one")
    if kind not in SUFFIXES.values():
        endings = ", ".join(f".{suffix}" for suffix in SUFFIXES.values())
        raise InvalidInputError(f"a drawing cannot be written as .{kind}: end --output in {endings}, or give --format")
    name, picture = _pictured(what)
    content = content_of(picture, kind)
    if output == Path("-"):
        sys.stdout.buffer.write(content)
        return
    path = Path(f"{name}.{kind}") if output is None else output
    with replacing(path) as new:
        new.write_bytes(content)
    boxes = sum(guid >= 0 for guid in picture.boxes)
    document = {"written": str(path), "format": kind, "resources": boxes, "edges": len(picture.edges)}
    emit(document, text=escape_control(f"written: {path}"), as_json=json)


def report(
    run_dir: RunArgument,
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a page, such as run.html.")] = None,
    json: JsonOption = False,
) -> None:
    """Report on a run: states and times, failures, metrics and traces."""
    from fedmon.experiment.cli.reports import report_run

    report_run(run_dir, output=output, as_json=json)


def _pictured(what: Path) -> tuple[str, Diagram]:
    """Return the name of an experiment, and its diagram."""
    from fedmon.experiment.check import document as checking
    from fedmon.experiment.check.diagram import picture_of
    from fedmon.experiment.check.status import as_reached
    from fedmon.experiment.journal import Follower

    if what.is_dir():
        follower = Follower(what)
        follower.look()
        name, run = follower.folder.parent.name, follower.folder.name
        return name, picture_of(as_reached(follower.run.state), title=f"{name}, run {run}")
    found = checking.check(what)
    if errors := found.plan.errors:
        count = plural(len(errors), "error")
        sys.stderr.write(f"fedmon: {count} in {escape_control(str(what))}; fedmon experiment check names them\n")
    name = found.description.exp_id
    return name, picture_of(found.plan.state, title=name, problems=found.plan.problems)
