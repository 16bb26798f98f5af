"""`fedmon plan check`: try a plan on this machine before you ask for its approval."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from fedmon.common.log import escape_control
from fedmon.common.options import ArgOption, JsonOption, clean_up_at_signals
from fedmon.common.text import shorten, size
from fedmon.node.owner.cli.runs import quantities
from fedmon.plan import parcels
from fedmon.plan.values import arguments_of, spelled

if TYPE_CHECKING:
    from fedmon.common.plan_source import PlanSource
    from fedmon.node.runs.folder import Ending, GivenDataset, JobFolder, JobOrder, Logged, Reported

_TABLE_SUFFIXES = frozenset({".csv", ".tsv", ".tab", ".txt"})
_LOOK_S = 0.5
_PIECE_BYTES = 32_768
_MAX_SHOWN = 1_000

NOT_CHECKED = (
    "that owners approve it, and their limits, which may be smaller",
    "that the Python of each node has the packages that it imports",
    "that the data of each node is like the data that was given here",
)


def check(
    file: Annotated[Path, typer.Argument(help="The Python file of the plan.")],
    dataset: Annotated[
        Path | None, typer.Option("--dataset", "-D", metavar="PATH", help="Table or folder to run on (default: none).")
    ] = None,
    arg: ArgOption = None,
    inputs: Annotated[
        Path | None, typer.Option("--inputs", "-i", metavar="FILE", help="Inputs: a JSON object, or arrays in a .npz.")
    ] = None,
    python: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The Python to run on, as in [runs] of a node.")
    ] = None,
    sandbox: Annotated[
        bool, typer.Option("--sandbox/--no-sandbox", help="Run in the sandbox of nodes, if this machine has one.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Run a plan here as a node would, and show its reports, logs and result; its output goes to stderr."""
    from fedmon.common.plan_source import load_source
    from fedmon.common.settings.values import RunsSettings
    from fedmon.common.wire.runs import RunLimits
    from fedmon.node.registers.grants import arguments_problem
    from fedmon.node.registers.plan_source import check_source
    from fedmon.node.runs.folder import JobOrder, Limits
    from fedmon.node.runs.sandbox.interpreter import look_at

    clean_up_at_signals()  # the plan outlives this process unless it is ended
    source, arguments = load_source(file), arguments_of(arg or ())
    code = check_source(source.source)  # with a digest, if it could be read
    if code.minified_sha256 and (problem := arguments_problem(code.declared.arguments, arguments)):
        typer.echo(
            f"nodes refuse this run unless their owners grant it: {code.problem or problem} (see its `arguments`)",
            err=True,
        )
    content, inputs_format = (None, None) if inputs is None else inputs_at(inputs)
    usual = RunsSettings()
    order = JobOrder(
        name=source.name,
        interpreter=look_at(python),
        # The limits of a node with default settings.
        limits=msgspec.convert({name: getattr(usual, f"max_{name}") for name in RunLimits.__struct_fields__}, Limits),
        level=None,
        dataset=None if dataset is None else dataset_at(dataset),
        arguments=arguments,
        inputs_format=inputs_format,
    )
    line = (lambda _: None) if json else _line
    document = _tried(source, order, content, in_sandbox=sandbox, line=line)
    reported = {name for each in document["scalars"] for name in each.values}
    document["not_checked"] += [
        f"that nodes send {name}: `scalars` does not name it, so only [release] mode auto lets it leave"
        for name in sorted(reported.difference(code.declared.scalars))
    ]
    if json:
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    for text in _summary(document):
        line(text)
    raise typer.Exit(0 if document["ok"] else 1)


def _tried(
    source: PlanSource, order: JobOrder, content: bytes | None, *, in_sandbox: bool, line: Callable[[str], None]
) -> dict[str, Any]:
    """Run a plan to its end, with lines about its news; return all of it as a document."""
    from fedmon.node.runs.confinement import LOST, Trials
    from fedmon.node.runs.launcher import Launcher

    events: list[Reported | Logged] = []
    news = threading.Event()
    launcher = Launcher(on_poke=lambda _: news.set())
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedmon-plan-", ignore_cleanup_errors=True))
        stack.callback(launcher.stop)
        trials = Trials(launcher, Path(base, "trial"), Path(base, "runtime"))
        level, why = None, "not asked for"
        if in_sandbox:
            level, reasons = trials.strongest_level(order.interpreter)
            why = "; ".join(": ".join(each) for each in reasons.items())
        line(f"plan     {source.name}, {len(source.source)} bytes, sha256 {source.sha256}")
        line(f"sandbox  {level or f'none ({why}): the plan can do here whatever you can'}")
        order = msgspec.structs.replace(order, level=level)
        folder = stack.enter_context(trials.running(order, source.source, content))
        for event in _followed(folder, news):
            events.append(event)
            line(_as_line(event))
        ending = folder.ending() or LOST
        result = b"" if ending.result_format is None else folder.result.read_bytes()
    return _document(source, order, why, events, ending, result)


def _followed(folder: JobFolder, news: threading.Event) -> Iterator[Reported | Logged]:
    """Yield reports and logs until the job is over, and print its output; ``news`` is set by pokes."""
    from fedmon.node.runs.folder import STDERR, STDOUT, Logged, Reported

    offset = 0
    printed = {STDOUT: 0, STDERR: 0}
    is_over = False
    while not is_over:
        news.wait(_LOOK_S)
        news.clear()
        # Asked first: all output of before the end is then read after it.
        is_over = not folder.is_alive()
        for event, read_bytes in folder.events(offset):
            offset = read_bytes
            if isinstance(event, Reported | Logged):
                yield event
        for name in (STDOUT, STDERR):
            while (piece := folder.trace(name, printed[name], _PIECE_BYTES)).next_offset > printed[name]:
                if piece.skipped_bytes:
                    sys.stderr.write(f"[{piece.skipped_bytes} bytes are not kept]\n")
                sys.stderr.write(piece.text)
                printed[name] = piece.next_offset


def _line(text: str) -> None:
    sys.stdout.write(f"{escape_control(text)}\n")
    sys.stdout.flush()


def _as_line(event: Reported | Logged) -> str:
    from fedmon.node.runs.folder import Logged

    if isinstance(event, Logged):
        return f"log      {event.level} {event.message}"
    step = "" if event.step is None else f"step {event.step}  "
    numbers = (f"{name}={'null' if value is None else f'{value:g}'}" for name, value in event.values.items())
    return f"scalars  {step}{'  '.join(numbers)}"


def _summary(document: dict[str, Any]) -> Iterator[str]:
    """Yield its end, its result, and the questions that this check leaves open."""
    reason, problem, result, usage = (document[name] for name in ("reason", "problem", "result", "usage"))
    yield f"ended    {document['state'].value}{f': {reason}' if reason else ''}"
    if problem is not None and problem.message:
        yield f"error    {problem.type}: {problem.message}"
    for each in result["values"] if result else []:
        shape = "" if each["shape"] is None else f" {each['shape']}"
        yield f"result   {each['name']}  {each['type']}{shape} {shorten(each['value'], _MAX_SHOWN)}".rstrip()
    if result:
        most = size(document["limits"]["output_bytes"])
        yield f"size     {size(result['size_bytes'])} of {most} at most, {result['format']}"
    yield f"took     {quantities(msgspec.structs.asdict(usage)) or 'not known'}"
    for first, word in zip_longest(("unknown",), document["not_checked"], fillvalue=""):
        yield f"{first:<9}{word}"


def _document(
    source: PlanSource, order: JobOrder, why: str, events: list[Reported | Logged], ending: Ending, result: bytes
) -> dict[str, Any]:
    from fedmon.common.wire.runs import JobState
    from fedmon.node.runs.folder import Logged, Reported

    found = ending.result_format and {
        "format": ending.result_format,
        "size_bytes": ending.result_bytes,
        "sha256": ending.result_sha256,
        "values": list(listed(ending.result_format, result)),
    }
    return {
        "ok": ending.state is JobState.SUCCEEDED,
        "name": source.name,
        "sha256": source.sha256,
        "size_bytes": len(source.source),
        "sandbox": order.level,
        "sandbox_reason": why,
        "state": ending.state,
        "reason": ending.reason,
        "exit_code": ending.exit_code,
        "problem": ending.problem,
        "usage": ending.usage,
        "limits": {**msgspec.structs.asdict(order.limits), "grace_s": 0.0},  # a job that has to end is killed at once
        "scalars": [event for event in events if isinstance(event, Reported)],
        "logs": [event for event in events if isinstance(event, Logged)],
        "result": found,
        "not_checked": [*NOT_CHECKED],
    }


def dataset_at(path: Path) -> GivenDataset:
    """Return a table, or another file or folder, as a plan gets its dataset. Raises InvalidInputError."""
    from fedmon.node.registers.dataset_source import measure
    from fedmon.node.runs.folder import GivenDataset

    place = path.resolve()
    data_type = "csv" if place.suffix.lower() in _TABLE_SUFFIXES and not place.is_dir() else "default"
    found = msgspec.structs.asdict(measure(place, data_type))
    return GivenDataset(dataset_id="trial", name=place.stem, data_type=data_type, **found)


def inputs_at(path: Path) -> tuple[bytes, Literal["json", "npz"]]:
    """Return the inputs in a file as a parcel. Raises InvalidInputError."""
    packed = parcels.pack(parcels.read_inputs(path))
    return b"".join(packed.pieces), packed.format


def listed(parcel_format: str, content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the values of a parcel by their outermost names, and its arrays by their places."""
    values, arrays = parcels.contents(parcel_format, memoryview(content))
    taken = {place[0] for place, *_ in arrays if len(place) == 1}
    for name in (name for name in values if name not in taken):
        value = values[name]
        length = [len(value)] if isinstance(value, list) else None
        yield {"name": spelled([name]), "type": type(value).__name__, "shape": length, "value": json.dumps(value)}
    for place, descr, shape, *_ in arrays:
        yield {"name": spelled(place), "type": descr, "shape": shape, "value": ""}
