"""Results of a run as files, as JSON and as lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmon.common.files import replacing

SHOWN_ELEMENTS = 1_000
"""Larger arrays are told by type and shape alone; --output writes them."""


def save(results: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write the result of each node, whole, to ``<node>.json``, or ``<node>.npz`` if there are arrays.

    Raises StorageError naming the file.
    """
    from fedmon.plan import parcels

    written: list[Path] = []
    for node_id, values in results.items():
        packed = parcels.pack(values)
        written.append(folder / f"{node_id}.{packed.format}")
        with replacing(written[-1], folder_mode=0o777) as new, new.open("wb") as file:
            file.writelines(packed.pieces)
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
