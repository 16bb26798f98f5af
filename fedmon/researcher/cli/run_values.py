"""Arguments and inputs that `fedmon run` reads, and results that it writes."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmon.common.errors import InvalidInputError, StorageError

SHOWN_ELEMENTS = 1_000
"""Larger arrays are told by type and shape alone; --output writes them."""


def arguments(words: Sequence[str], document: str | None) -> dict[str, Any]:
    """Return the arguments of ``--args`` and ``--arg name=value``; a value that is no JSON is a text."""
    found: dict[str, Any] = {}
    if document is not None:
        try:
            found = json.loads(document)
        except ValueError as error:
            raise InvalidInputError(f"--args is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise InvalidInputError("--args is not a JSON object: write it like '{\"rounds\": 3}'")
    for word in words:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise InvalidInputError(f"--arg {word!r} is not of the form name=value")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def read_inputs(path: Path) -> dict[str, Any]:
    """Return the inputs in a .json file, a .npz file of numpy, or a file that `save` wrote.

    Raises InvalidInputError for any other content, and StorageError for a file that cannot be read.
    """
    try:
        if path.suffix == ".npz":
            return _arrays(path)
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, zipfile.BadZipFile, RecursionError) as error:
        raise InvalidInputError(f"{path} holds no inputs: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInputError(f"{path} holds no JSON object: inputs are values by name")
    return found


def save(results: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write the result of each node to ``<node>.json``, or ``<node>.npz`` if there are arrays.

    Raises StorageError naming the file.
    """
    from fedmon.plan import parcels

    written: list[Path] = []
    for node_id, values in results.items():
        packed = parcels.pack(values)
        path = folder / f"{node_id}.{packed.format}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                packed.write(file)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from None
        written.append(path)
    return written


def shown(value: Any) -> Any:
    """Return values as JSON has them: an array as its type, its shape and, unless there are many, its elements."""
    if isinstance(value, Mapping):
        return {name: shown(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [shown(inner) for inner in value]
    if not hasattr(value, "dtype"):
        return value
    elements = value.tolist() if value.size <= SHOWN_ELEMENTS and value.dtype.kind != "c" else None
    return {"array": {"dtype": str(value.dtype), "shape": list(value.shape), "elements": elements}}


def sketched(value: Any) -> str:
    """Return values as a line for people."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {sketched(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(sketched(inner) for inner in value) + "]"
    if hasattr(value, "dtype"):
        few = value.size <= 8 and value.dtype.kind != "c"
        return f"array{list(value.shape)} of {value.dtype}" + (f" {value.tolist()}" if few else "")
    return json.dumps(value)


def _arrays(path: Path) -> dict[str, Any]:
    import numpy as np

    from fedmon.plan import parcels

    with zipfile.ZipFile(path) as zipped:
        is_ours = parcels.DOCUMENT in zipped.namelist()
    if is_ours:
        content = path.read_bytes()
        parcels.check("npz", content, len(content))
        return parcels.unpack("npz", content)
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
