"""Traces: what a resource writes while it runs, and how it is read, whole or in blocks."""

from __future__ import annotations

import os
import stat
from enum import StrEnum
from pathlib import Path, PurePosixPath

from fedmon.experiment.errors import InvalidAttributeError, TraceNotReadableError

_LONGEST_CHARACTER = 4


class TraceAttr(StrEnum):
    """What is asked of a trace: its whole text, a block of it, where it is, how many bytes it has."""

    ALL = "all"
    STREAM = "stream"
    PATH = "path"
    SIZE = "size"


class Trace:
    """A trace that a resource can write; it does where that was enabled."""

    __slots__ = ("enabled", "help", "name")

    def __init__(self, name: str, help: str, enabled: bool = False) -> None:  # noqa: A002, FBT001, FBT002 - NEPI's
        if not name or not isinstance(name, str):
            raise InvalidAttributeError(f"a trace needs a name, not {name!r}")
        self.name, self.help, self.enabled = name, help, enabled

    def __repr__(self) -> str:
        return f"Trace({self.name!r}, enabled={self.enabled})"


def trace_path(folder: str | Path, name: str) -> Path:
    """Return where in a folder a trace lies. Raises TraceNotReadableError for a name that leads out of the folder."""
    parts = PurePosixPath(name)
    if not name or "\0" in name or parts.is_absolute() or ".." in parts.parts:
        raise TraceNotReadableError(f"trace {name!r} is not the name of a file within {folder}")
    root, found = Path(folder).resolve(), (Path(folder) / parts).resolve()
    if not found.is_relative_to(root):
        raise TraceNotReadableError(f"trace {name!r} leads out of {folder}, to {found}")
    return found


def read_trace(
    path: str | Path, attr: TraceAttr | str = TraceAttr.ALL, block: int = 512, offset: int = 0
) -> str | int | None:
    """Return what is asked of the file of a trace: ALL and STREAM its text, PATH its path, SIZE its bytes.

    STREAM is the block of ``block`` bytes that begins ``offset`` blocks from the start, "" past the end. A character on
    the border of two blocks belongs to the first, so that all blocks together are the text.
    Raises TraceNotReadableError.
    """
    try:
        asked = TraceAttr(attr)
    except ValueError:
        raise TraceNotReadableError(f"of a trace one asks {', '.join(TraceAttr)}, not {attr!r}") from None
    try:
        about = Path(path).stat()
        if not stat.S_ISREG(about.st_mode):  # a pipe would keep its reader for ever
            raise TraceNotReadableError(f"trace {path} cannot be read: it is no file")
        match asked:
            case TraceAttr.PATH:
                return str(path)
            case TraceAttr.SIZE:
                return about.st_size
            case TraceAttr.ALL:
                return Path(path).read_bytes().decode("utf-8", "replace")
            case TraceAttr.STREAM:
                return _block(Path(path), block, offset)
    except OSError as error:
        reason = "nothing was written yet" if isinstance(error, FileNotFoundError) else error.strerror
        raise TraceNotReadableError(f"trace {path} cannot be read: {reason}") from error


def _block(path: Path, block: int, offset: int) -> str:
    if not _is_number_from(1, block) or not _is_number_from(0, offset):
        raise TraceNotReadableError(
            f"trace {path}: a block has at least 1 byte, and offset counts blocks from 0; not block={block!r}, "
            f"offset={offset!r}"
        )
    start, reach = block * offset, _LONGEST_CHARACTER - 1
    with path.open("rb") as file:
        before = min(start, reach)
        if start > os.fstat(file.fileno()).st_size:
            return ""
        file.seek(start - before)
        content = file.read(before + block + reach)
    first = before + _rest_of_character(content, before)
    last = min(len(content), before + block)
    last += _rest_of_character(content, last)
    return content[first:last].decode("utf-8", "replace")


def _is_number_from(least: int, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _rest_of_character(content: bytes, place: int) -> int:
    """Return how many bytes from ``place`` on belong to a UTF-8 character that begins before it."""
    for back in range(1, min(_LONGEST_CHARACTER, place + 1)):
        lead = content[place - back]
        if 0x80 <= lead < 0xC0:  # in the middle of a character
            continue
        length = 2 + (lead >= 0xE0) + (lead >= 0xF0) if 0xC0 <= lead < 0xF8 else 1
        rest = content[place : place + max(0, length - back)]
        return len(rest) if all(0x80 <= byte < 0xC0 for byte in rest) else 0
    return 0
