"""Values of attributes as text with a type beside it, and back; none of it is ever run."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from fedmon.experiment import attributes
from fedmon.experiment.document.errors import ValueFormError

_INTEGER = re.compile(r"[+-]?[0-9]{1,4300}L?")
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TYPES = ("string", "bool", "integer", "float", "null", "json")
# As NEPI's documents call them, and as its attributes do.
_NEPI_TYPES = {kind: kind for kind in _TYPES[:4]} | {"double": "float", "enumerate": "string"}


def is_legal(text: str) -> bool:
    """Tell whether XML 1.0 can hold a text as it is. Source: W3C XML 1.0, production Char."""
    return not _NOT_IN_XML.search(text)


def plain(value: Any, *, where: str) -> Any:
    """Return a value of plain parts only: tuples become lists. Raises ValueFormError for what no document holds."""
    try:
        return attributes.plain(value)
    except ValueError as error:
        raise ValueFormError(f"{where}: {error}") from error


def as_text(value: Any) -> tuple[str, str]:
    """Return a plain value as text and the name of its type, so that `from_text` gives the same value."""
    if isinstance(value, bool):
        return str(value), "bool"
    if isinstance(value, int):
        return _integer_text(value), "integer"
    if isinstance(value, float):
        return repr(value), "float"
    if value is None:
        return "", "null"
    if isinstance(value, str) and is_legal(value):
        return value, "string"
    return json.dumps(value), "json"


def from_text(text: str, kind: str, *, where: str, is_ours: bool = True) -> Any:
    """Return the value of a text. In NEPI's own files the text "None" is null and an unknown type is text.

    Raises ValueFormError, naming ``where``.
    """
    if not is_ours:
        if text == "None":
            return None
        kind = _NEPI_TYPES.get(kind.lower(), kind)
    match kind:
        case "string":
            return text
        case "bool":
            return _bool(text, where=where)
        case "integer":
            return integer(text, where=where)
        case "float":
            return number(text, where=where)
        case "null":
            return None
        case "json" if is_ours:
            return _json(text, where=where)
        case _ if not is_ours:
            return text
    raise ValueFormError(f"{where}: no values of the type {kind!r}; one of: {', '.join(_TYPES)}")


def integer(text: str, *, where: str) -> int:
    """Return a whole number. Raises ValueFormError."""
    if not _INTEGER.fullmatch(text.strip()):
        raise ValueFormError(f"{where}: {_shown(text)} is not a whole number")
    return int(text.strip().rstrip("L"))


def number(text: str, *, where: str) -> float:
    """Return a number. Raises ValueFormError."""
    try:
        return float(text)
    except ValueError as error:
        raise ValueFormError(f"{where}: {_shown(text)} is not a number") from error


def seconds_text(seconds: float) -> str:
    """Return seconds so that nothing of them is lost, and whole ones without a fraction."""
    return repr(int(seconds)) if math.isfinite(seconds) and seconds == int(seconds) else repr(seconds)


def _integer_text(value: int) -> str:
    try:
        return str(value)
    except ValueError as error:  # Python refuses to write more than 4300 digits
        raise ValueFormError("a whole number of more than 4300 digits cannot be kept in a document") from error


def _bool(text: str, *, where: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise ValueFormError(f"{where}: {_shown(text)} is neither True nor False")
    return text.strip().lower() == "true"


def _json(text: str, *, where: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueFormError(f"{where}: {_shown(text)} is not JSON") from error
    return plain(value, where=where)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}..."
