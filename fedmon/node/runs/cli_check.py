"""`fedmon plan check`: a plan tried on this machine, before anybody is asked to approve it."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from fedmon.common.errors import InvalidInputError
from fedmon.common.log import escape_control
from fedmon.common.plan_source import PlanSource, load_source
from fedmon.common.settings.values import RunsSettings
from fedmon.common.wire.runs import JobState, Level
from fedmon.node.runs.order import GivenDataset, Limits, Logged, Reported
from fedmon.node.runs.trial import Trial, Tried, run_unconfined
from fedmon.plan import parcels
from fedmon.plan.values import read_object

_TABLE_SUFFIXES = frozenset({".csv", ".tsv", ".tab", ".txt"})

EXIT_CODES = "Exit codes: 0 the plan ran, 1 it did not, 2 wrong use."
NOT_CHECKED = (
    "that owners approve it, and their limits, which may be smaller",
    "that the Python of each node has the packages that it imports",
    "that the data of each node is like the data that was given here",
)

app = typer.Typer(
    name="plan",
    help="Try training plans.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def plan() -> None:
    """Try training plans."""


@app.command(epilog=EXIT_CODES)
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The Python file of the plan.")],
    dataset: Annotated[
        Path | None, typer.Option("--dataset", "-D", metavar="PATH", help="A table or folder to run on; else no data.")
    ] = None,
    args: Annotated[
        list[str] | None,
        typer.Option("--args", "--arg", "-a", metavar="NAME=VALUE|JSON", help="Arguments; may be repeated."),
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option("--inputs", "-i", metavar="FILE", help="Inputs: a JSON object, or arrays in a .npz.")
    ] = None,
    python: Annotated[
        Path | None, typer.Option("--python", metavar="PATH", help="The Python to run on, as in [runs] of a node.")
    ] = None,
    sandbox: Annotated[
        bool, typer.Option("--sandbox/--no-sandbox", help="Run in the sandbox of nodes where this machine has one.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run a plan here as a node would, and show what it reports, logs and returns; what it prints goes to stderr."""
    from fedmon.node.runs.sandbox.interpreter import look_at

    source = load_source(file)
    content, inputs_format = (b"", None) if inputs is None else inputs_at(inputs)
    trial = Trial(
        source=source.source,
        name=source.name,
        interpreter=look_at(python),
        limits=_limits(),
        dataset=None if dataset is None else dataset_at(dataset),
        arguments=arguments_of(args or []),
        inputs=content,
        inputs_format=inputs_format,
    )
    level, why = _level(python) if sandbox else (None, "not asked for")
    shown = _Shown(as_json=json)
    shown.begin(source, level, why)
    tried = _try(trial, level, shown)
    shown.end(source, level, why, trial, tried)
    raise typer.Exit(0 if tried.ending.state is JobState.SUCCEEDED else 1)


def _limits() -> Limits:
    """Return what a node gives whose owner changed nothing."""
    usual = RunsSettings()
    return Limits(
        cpu_s=usual.max_cpu_s,
        wall_s=usual.max_wall_s,
        memory_bytes=usual.max_memory_bytes,
        processes=usual.max_processes,
        output_bytes=usual.max_output_bytes,
        tmp_bytes=usual.max_tmp_bytes,
    )


def _level(python: Path | None) -> tuple[Level | None, str]:
    from fedmon.node.runs.sandbox import levels

    found = levels.available(python=python)
    return found.level, "; ".join(f"{level}: {reason}" for level, reason in found.reasons.items())


def _try(trial: Trial, level: Level | None, shown: _Shown) -> Tried:
    if level is None:
        return run_unconfined(trial, shown.event)
    from fedmon.node.runs.trial import run_confined

    return run_confined(trial, level, shown.event)


class _Shown:
    """What is printed: lines as they come, or all in one document."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._scalars: list[Reported] = []
        self._logs: list[Logged] = []

    def begin(self, source: PlanSource, level: Level | None, why: str) -> None:
        """Say what is run, and how it is confined."""
        self._line(f"plan     {source.name}, {len(source.source)} bytes, sha256 {source.sha256}")
        self._line(f"sandbox  {level or f'none ({why}): the plan can do here whatever you can'}")

    def event(self, event: Reported | Logged) -> None:
        """Show what the plan reports or logs."""
        if isinstance(event, Logged):
            self._logs.append(event)
            self._line(f"log      {event.level} {event.message}")
            return
        self._scalars.append(event)
        step = "" if event.step is None else f"step {event.step}  "
        numbers = "  ".join(
            f"{name}={'null' if value is None else f'{value:g}'}" for name, value in event.values.items()
        )
        self._line(f"scalars  {step}{numbers}")

    def end(self, source: PlanSource, level: Level | None, why: str, trial: Trial, tried: Tried) -> None:
        """Show how it ended, what it returned, and what all this does not say."""
        if self._as_json:
            sys.stdout.write(msgspec.json.encode(self._document(source, level, why, trial, tried)).decode() + "\n")
            return
        ending, usage = tried.ending, tried.ending.usage
        took = [f"{usage.wall_s:.2f} s"] if usage.wall_s is not None else []
        took += [f"{usage.cpu_s:.2f} s of CPU time"] if usage.cpu_s is not None else []
        took += [f"{usage.peak_memory_bytes / 2**20:.0f} MiB at most"] if usage.peak_memory_bytes is not None else []
        if ending.problem is not None and ending.problem.traceback and level is not None:
            self._line("")
        self._line(f"ended    {ending.state.value}{f': {ending.reason}' if ending.reason else ''}")
        if ending.problem is not None and ending.problem.message:
            self._line(f"error    {ending.problem.type}: {ending.problem.message}")
        for each in _values(tried):
            shape = "" if each.shape is None else f" {each.shape}"
            self._line(f"result   {each.name}  {each.type}{shape} {each.value}".rstrip())
        if ending.result_format is not None:
            most = trial.limits.output_bytes / 2**20
            self._line(f"size     {ending.result_bytes} bytes of {most:g} MiB at most, {ending.result_format}")
        self._line(f"took     {', '.join(took) or 'not known'}")
        for first, word in zip(("unknown", *[""] * len(NOT_CHECKED)), NOT_CHECKED, strict=False):
            self._line(f"{first:<9}{word}")

    def _document(
        self, source: PlanSource, level: Level | None, why: str, trial: Trial, tried: Tried
    ) -> dict[str, Any]:
        return {
            "ok": tried.ending.state is JobState.SUCCEEDED,
            "name": source.name,
            "sha256": source.sha256,
            "size_bytes": len(source.source),
            "sandbox": level,
            "sandbox_reason": why,
            "state": tried.ending.state,
            "reason": tried.ending.reason,
            "exit_code": tried.ending.exit_code,
            "problem": tried.ending.problem,
            "usage": tried.ending.usage,
            "limits": trial.limits,
            "scalars": self._scalars,
            "logs": self._logs,
            "result": None
            if tried.ending.result_format is None
            else {
                "format": tried.ending.result_format,
                "size_bytes": tried.ending.result_bytes,
                "sha256": tried.ending.result_sha256,
                "values": _values(tried),
            },
            "not_checked": NOT_CHECKED,
        }

    def _line(self, text: str) -> None:
        if not self._as_json:
            sys.stdout.write(f"{escape_control(text)}\n")
            sys.stdout.flush()


def _values(tried: Tried) -> list[Any]:
    from fedmon.plan.frame_reader import listing

    return [] if tried.ending.result_format is None else list(listing(tried.ending.result_format, tried.result))


def dataset_at(path: Path) -> GivenDataset:
    """Return a table, or any other file or folder, as a plan gets its dataset. Raises InvalidInputError."""
    from fedmon.node.registers.dataset_source import measure

    place = path.expanduser().resolve()
    data_type = "csv" if place.suffix.lower() in _TABLE_SUFFIXES and not place.is_dir() else "default"
    measured = measure(place, data_type)
    return GivenDataset(
        dataset_id="trial",
        name=place.stem,
        data_type=data_type,
        path=str(place),
        shape=measured.shape,
        dtypes=measured.dtypes,
    )


def arguments_of(words: Sequence[str]) -> dict[str, Any]:
    """Return arguments from words such as ``rate=0.1``, whose values are JSON or else texts, and from JSON objects.

    Raises InvalidInputError.
    """
    arguments: dict[str, Any] = {}
    for word in words:
        if word.lstrip().startswith("{"):
            arguments |= _object(word.encode(), "--args")
            continue
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise InvalidInputError(f"--args {word!r} is neither name=value nor a JSON object")
        arguments[name] = _value(text)
    return arguments


def inputs_at(path: Path) -> tuple[bytes, Literal["json", "npz"]]:
    """Return the inputs in a file as a parcel: a JSON object, a file that fedmon wrote, or any ``.npz`` of arrays.

    Raises InvalidInputError.
    """
    try:
        content = path.expanduser().read_bytes()
    except OSError as error:
        raise InvalidInputError(f"cannot read the inputs {path}: {error.strerror}") from error
    if not content.startswith(b"PK"):
        _object(content, str(path))
        return content, "json"
    try:
        return _packed(parcels.unpack("npz", content))
    except parcels.InvalidValuesError:
        return _packed(_arrays(path, content))


def _value(text: str) -> Any:
    """Return the one JSON value that a text is, or the text itself."""
    try:
        json.loads(text)
        return _object(f'{{"value":{text}}}'.encode(), "--args")["value"]
    except (ValueError, RecursionError):
        return text


def _arrays(path: Path, content: bytes) -> dict[str, Any]:
    try:
        import numpy as np

        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ImportError, ValueError, OSError, KeyError, zipfile.BadZipFile) as error:
        raise InvalidInputError(f"the inputs {path} are no .npz file of plain arrays: {error}") from error


def _packed(values: dict[str, Any]) -> tuple[bytes, Literal["json", "npz"]]:
    packed = parcels.pack(values)
    stream = io.BytesIO()
    packed.write(stream)
    return stream.getvalue(), packed.format


def _object(text: bytes, where: str) -> dict[str, Any]:
    try:
        return read_object(memoryview(text))
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error}") from None
