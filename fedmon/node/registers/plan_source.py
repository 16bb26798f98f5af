"""What a training plan may be called and hold before a node takes it in."""

from __future__ import annotations

from pathlib import Path

from fedmon.common.errors import InvalidInputError
from fedmon.node.registers.plan_view import visible_text

MAX_NAME_LENGTH = 256
MAX_TEXT_LENGTH = 16_384


def checked_name(source: bytes, name: str, description: str, *, max_bytes: int) -> str:
    """Return the trimmed name of a plan. Raises InvalidInputError when name, bytes or description cannot be used."""
    if len(source) > max_bytes:
        raise InvalidInputError(f"the plan has {len(source)} bytes and this node takes {max_bytes}")
    if not source.strip():
        raise InvalidInputError("the plan is empty")
    name = name.strip()
    if not name or len(name) > MAX_NAME_LENGTH or visible_text(name) != name or "\n" in name or "\t" in name:
        raise InvalidInputError(
            f"a plan's name is 1 to {MAX_NAME_LENGTH} visible characters on one line, not {visible_text(name[:80])!r}"
        )
    if len(description) > MAX_TEXT_LENGTH:
        raise InvalidInputError(f"the description has {len(description)} characters, more than {MAX_TEXT_LENGTH}")
    return name


def read_plan_file(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of an owner's plan file. Raises InvalidInputError when it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            source = file.read(max_bytes + 1)
    except OSError as error:
        raise InvalidInputError(f"cannot read the training plan {path}: {error.strerror}") from error
    if len(source) > max_bytes:
        raise InvalidInputError(f"the training plan {path} has more than the {max_bytes} bytes that this node takes")
    return source
