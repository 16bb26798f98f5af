"""What a trial gets, from what was typed: the dataset, the arguments and the inputs."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fedmon.common.errors import InvalidInputError
from fedmon.node.registers.dataset_source import measure
from fedmon.node.runs.order import GivenDataset
from fedmon.plan import parcels
from fedmon.plan.parcel_check import read_object

_TABLE_SUFFIXES = frozenset({".csv", ".tsv", ".tab", ".txt"})


def dataset_at(path: Path) -> GivenDataset:
    """Return a table, or any other file or folder, as a plan gets its dataset. Raises InvalidInputError."""
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
