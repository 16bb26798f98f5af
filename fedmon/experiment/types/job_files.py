"""The files of a job in the folder of a run: what it is given, what it printed, reported and returned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from fedmon.common.errors import FedmonError
from fedmon.common.files import write_whole
from fedmon.experiment.errors import TraceNotReadableError

if TYPE_CHECKING:
    from fedmon.common.wire.runs import Scalar
    from fedmon.researcher.runs.handle import RunHandle


def read_inputs(path: Path) -> dict[str, Any]:
    """Return the inputs in a .json or .npz file. Raises InvalidInputError and StorageError."""
    from fedmon.researcher.cli import run_values as cli_run_values

    return cli_run_values.read_inputs(path.expanduser())


def shown(value: Any) -> Any:
    """Return values as JSON has them: arrays by type, shape and, if they are few, elements."""
    from fedmon.researcher.cli import run_values as cli_run_values

    return cli_run_values.shown(value)


def write(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, into a folder that is the owner's alone. Raises StorageError naming it."""
    write_whole(path, content, folder_mode=0o700)


def write_shown(path: Path, value: Any) -> None:
    """Write values to be read."""
    write(path, json.dumps(shown(value), ensure_ascii=False, indent=1).encode("utf-8", "replace"))


def save_values(folder: Path, values: Mapping[str, Mapping[str, Any]]) -> None:
    """Write values as they are, with a file for each name: JSON, or a .npz file where there are arrays.

    Raises InvalidValuesError for what is neither JSON nor a plain array, and StorageError.
    """
    from fedmon.researcher.cli import run_values as cli_run_values

    cli_run_values.save(values, folder)


def saved_values(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what `save_values` wrote, by name; nothing where it wrote nothing."""
    paths = sorted(path for path in folder.glob("*") if path.suffix in (".json", ".npz"))
    return {path.stem: read_inputs(path) for path in paths}


def write_result(folder: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write what a job returned, by node: to be read, and as it is."""
    write_shown(folder / "result", results)
    save_values(folder / "returned", results)


def write_scalars(folder: Path, scalars: Mapping[str, Sequence[Scalar]]) -> None:
    """Write what was reported, a line of JSON each."""
    lines = [
        msgspec.json.encode({"node": node_id, **msgspec.structs.asdict(scalar)}) + b"\n"
        for node_id, reported in scalars.items()
        for scalar in reported
    ]
    write(folder / "scalars", b"".join(lines))


def fetch(folder: Path, path: Path, handle: RunHandle, name: str) -> None:
    """Write a trace of a job to its path as far as it is there now. Raises what `write_log` does."""
    if name in ("stdout", "stderr"):
        write_log(path, handle, name)
    elif name == "scalars":
        write_scalars(folder, handle.scalars)
    elif results := handle.results():
        write_result(folder, results)


def write_log(path: Path, handle: RunHandle, stream: str) -> None:
    """Fetch what a plan printed, node by node where there are more than one.

    Raises TraceNotReadableError where no owner lets it leave, or no node answers.
    """
    said: dict[str, str] = {}
    missing: dict[str, str] = {}
    for node_id, part in handle.states().items():
        if part.job is None:
            missing[node_id] = part.sentence()
            continue
        try:
            log = handle.logs(node_id, cast("Literal['stdout', 'stderr']", stream))
        except FedmonError as error:
            missing[node_id] = str(error)
            continue
        if log.withheld:
            missing[node_id] = f"withheld: {log.withheld}"
        else:
            said[node_id] = log.text
    if not said:
        reasons = "; ".join(f"{node_id}: {reason}" for node_id, reason in missing.items())
        raise TraceNotReadableError(f"{stream} of job {handle.job_id} is not there: {reasons}")
    if len(said) == 1 and not missing:
        text = next(iter(said.values()))
    else:
        parts = {**said, **{node_id: f"({reason})\n" for node_id, reason in missing.items()}}
        text = "".join(f"==> {node_id} <==\n{parts[node_id]}\n" for node_id in sorted(parts))
    write(path, text.encode("utf-8", "replace"))
