"""Write JSON without the json module, which takes as long to import as all else that a plan without data does."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_ESCAPES = {number: f"\\u{number:04x}" for number in range(32)} | {ord('"'): '\\"', ord("\\"): "\\\\"}


def quoted(text: str) -> str:
    """Return a JSON string; half a surrogate pair stays what it is, and has to be dealt with by who encodes it."""
    return f'"{text.translate(_ESCAPES)}"'


def flat_object(fields: Mapping[str, object]) -> bytes:
    """Return an object of texts, finite numbers, nulls and objects of these; half surrogate pairs become escapes."""
    return _text(fields).encode("utf-8", "backslashreplace")


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        # The escape of a lone surrogate would not be read as text elsewhere, so it becomes visible characters.
        return quoted(value.encode("utf-8", "backslashreplace").decode())
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_text(name)}:{_text(member)}" for name, member in value.items()) + "}"
    raise TypeError(f"no field of a frame: {type(value).__name__}")
