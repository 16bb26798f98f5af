"""Tables of what users hold: JSON files beside this module, and the rule by which something found is measured by them.

Nothing of a table may vanish or change its type; what is found beyond it is allowed. Where a change is wanted,
`CONTRACT=write python -m pytest tests/contract` writes the tables as the package is now; delete a row to have it anew.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WRITES = os.environ.get("CONTRACT") == "write"
MAPS = {
    "capabilities", "columns", "datasets", "dtypes", "failed", "files", "m", "methods", "metric", "missing",
    "positions", "reasons", "results", "sandbox_reasons", "scalars", "undelivered", "values",
}  # fmt: skip
"""Keys whose objects are maps: their own keys are no promise, the type of their values is."""

LOOSE = {"arguments", "dataset_parameters", "details", "hardware", "result", "usage"}
"""Keys whose content depends on the machine, on what the user gave, or on what was measured."""

NOT_YET = {
    "decided": "null|time", "ended": "null|time", "exit_code": "int|null", "minified_sha256": "null|sha256",
    "peak_memory_bytes": "int|null",
    "started": "null|time",
}  # fmt: skip
"""Keys that are null until it has happened."""

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def kind(value: Any) -> str:
    """Name the type of a value that holds no other: what a program that reads it must know."""
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "number"
        case str() if _TIME.fullmatch(value):
            return "time"
        case str() if _DIGEST.fullmatch(value):
            return "sha256"
    return "text"


def shape(value: Any, key: str = "") -> Any:
    """Return the keys and types of a JSON value; a key that not every object of a list has ends in ``?``."""
    if key in LOOSE:
        return "any"
    if key in NOT_YET and kind(value) in NOT_YET[key].split("|"):
        return NOT_YET[key]
    if isinstance(value, list):
        return [union([shape(each) for each in value])] if value else []
    if not isinstance(value, dict):
        return kind(value)
    if value and (key in MAPS or len(value) > 25 or not all(re.fullmatch(r"[a-z]\w*", name) for name in value)):
        return {"*": union([shape(each) for each in value.values()])}
    return {name: shape(each, name) for name, each in value.items()}


def union(shapes: list[Any]) -> Any:
    """Return the shape of what has one of several shapes."""
    objects = [each for each in shapes if isinstance(each, dict)]
    lists = [each for each in shapes if isinstance(each, list)]
    if objects and len(objects) == len(shapes):
        names = list(dict.fromkeys(name.rstrip("?") for each in objects for name in each))
        found = {}
        for name in names:
            here = [each[word] for each in objects for word in (name, f"{name}?") if word in each]
            everywhere = all(name in each for each in objects)
            found[name if everywhere else f"{name}?"] = union(here)
        return found
    if lists and len(lists) == len(shapes):
        inner = [each[0] for each in lists if each]
        return [union(inner)] if inner else []
    if objects or lists:
        return "any"
    words = sorted({word for each in shapes for word in each.split("|")})
    if {"int", "number"} <= set(words):
        words.remove("int")
    return "any" if "any" in words else "|".join(words)


def breaches(frozen: Any, found: Any, where: str = "it") -> list[str]:
    """Return what a frozen shape promises and a value does not hold."""
    if frozen in ("any", "null"):
        return []
    if isinstance(frozen, str):
        return [] if _fits(frozen.split("|"), found) else [f"{where} is {found!r:.80} and no {frozen}"]
    if not isinstance(found, type(frozen)):
        return [f"{where} is no {type(frozen).__name__}"]
    if isinstance(frozen, list):
        return [
            each for at, one in enumerate(found) for each in breaches((frozen or ["any"])[0], one, f"{where}[{at}]")
        ]
    if "*" in frozen:
        return [each for name, one in found.items() for each in breaches(frozen["*"], one, f"{where}.{name}")]
    lacking = [f"{where}.{name} is missing" for name in frozen if not name.endswith("?") and name not in found]
    for name, inner in frozen.items():
        if (key := name.rstrip("?")) in found:
            lacking += breaches(inner, found[key], f"{where}.{key}")
    return lacking


def _fits(kinds: list[str], found: Any) -> bool:
    wider = {"int": "number", "time": "text", "sha256": "text"}
    return not isinstance(found, dict | list) and {kind(found), wider.get(kind(found))} & {*kinds} != set()


def packed(frozen: Any) -> Any:
    """Return a shape with the keys of one type together: ``{"boot, seq": "int"}``."""
    if isinstance(frozen, list):
        return [packed(each) for each in frozen]
    if not isinstance(frozen, dict):
        return frozen
    together: dict[str, list[str]] = {}
    for name, inner in frozen.items():
        together.setdefault(json.dumps(packed(inner)), []).append(name)
    return {", ".join(names): json.loads(inner) for inner, names in together.items()}


def unpacked(frozen: Any) -> Any:
    """Return a shape with each key by itself."""
    if isinstance(frozen, list):
        return [unpacked(each) for each in frozen]
    if not isinstance(frozen, dict):
        return frozen
    return {name: unpacked(inner) for names, inner in frozen.items() for name in names.split(", ")}


def table(name: str) -> dict[str, Any]:
    """Return a table; empty where it is to be written."""
    return {} if WRITES else kept(name)


def kept(name: str) -> dict[str, Any]:
    """Return a table as it lies there, also where it is to be written anew."""
    file = HERE / f"{name}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def rewrite(name: str, rows: dict[str, Any]) -> None:
    """Write a table anew, when that was asked for."""
    if WRITES:
        (HERE / f"{name}.json").write_text(f"{_pretty(rows)}\n", encoding="utf-8")


def _pretty(rows: dict[str, Any]) -> str:
    """Return JSON with each row of a table on its own lines, as full as lines may be."""
    blocks = []
    for name, row in rows.items():
        lines = [f" {json.dumps(name)}:"]
        for atom in _atoms(row):
            if len(lines[-1]) + len(atom) + 2 > 120:
                lines.append(" ")
            lines[-1] += f" {atom}"
        blocks.append("\n".join(lines))
    return "{\n" + ",\n".join(blocks) + "\n}"


def _atoms(value: Any) -> list[str]:
    """Return the pieces of a JSON text between which a line may end."""
    if not isinstance(value, dict | list) or not value:
        return [json.dumps(value, ensure_ascii=False)]
    pieces = [_atoms(each) for each in (value.values() if isinstance(value, dict) else value)]
    for name, piece in zip(value, pieces, strict=True) if isinstance(value, dict) else ():
        piece[0] = f"{json.dumps(name, ensure_ascii=False)}: {piece[0]}"
    for piece in pieces[:-1]:
        piece[-1] += ","
    atoms = [atom for piece in pieces for atom in piece]
    atoms[0] = ("{" if isinstance(value, dict) else "[") + atoms[0]
    atoms[-1] += "}" if isinstance(value, dict) else "]"
    return atoms
