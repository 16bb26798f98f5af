"""The source of training plans: checked, kept by its digest, and shown with nothing hidden."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
from collections.abc import Set as AbstractSet
from pathlib import Path

from fedmon.common.errors import InvalidInputError, StorageError
from fedmon.common.files import storage_errors, write_whole
from fedmon.common.log import is_hidden

MAX_NAME_LENGTH = 256
MAX_TEXT_LENGTH = 16_384
OPEN, CLOSE = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}", "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"
"""They enclose the code of a hidden character; a plan that holds them itself has them shown in the same way."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_STAGED = re.compile(r"\.[0-9a-f]{64}\.([0-9a-f]{16}|[0-9a-f]{12}\.part)")
_UNUSUAL = re.compile(r"[^\t\n -~]")
_MAX_COMPARED = 1_000_000
_CONTEXT_LINES = 3


class PlanStore:
    """A folder of plan files; every method is safe from any thread.

    Names come from digests that we computed or checked, never from outside, so nothing can be written elsewhere.
    """

    def __init__(self, folder: Path) -> None:
        """Make the folder when it is missing, readable by its owner only. Raises StorageError."""
        self.folder = folder.absolute()
        with storage_errors(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, source: bytes) -> str:
        """Have bytes whole on the disk, safe from a power cut, and return their SHA-256. Raises StorageError."""
        sha256 = hashlib.sha256(source).hexdigest()
        with contextlib.suppress(StorageError):
            self.read(sha256)
            return sha256
        write_whole(self.folder / sha256, source, mode=0o600, folder_mode=0o700, durable=True)
        return sha256

    def read(self, sha256: str) -> bytes:
        """Return the bytes with this digest, computed again. Raises StorageError when they are missing or altered."""
        path = self.folder / sha256
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                source = file.read()
        except OSError as error:
            raise StorageError(f"cannot read the plan file {path}: {error.strerror}") from error
        if hashlib.sha256(source).hexdigest() != sha256:
            raise StorageError(
                f"the plan file {path} no longer holds the bytes of its digest: "
                "delete the plan and let the researcher send it again"
            )
        return source

    def remove(self, sha256: str) -> None:
        """Remove the bytes with this digest; nothing happens when they are gone. Raises StorageError."""
        with storage_errors(self.folder / sha256):
            (self.folder / sha256).unlink(missing_ok=True)

    def keep_only(self, digests: AbstractSet[str]) -> None:
        """Remove the files of other plans, and half-written files of a crash. Raises StorageError."""
        with storage_errors(self.folder):
            for path in self.folder.iterdir():
                if _STAGED.fullmatch(path.name) or (_DIGEST.fullmatch(path.name) and path.name not in digests):
                    path.unlink(missing_ok=True)


def checked_name(source: bytes, name: str, description: str, *, max_bytes: int) -> str:
    """Return the trimmed name of a plan. Raises InvalidInputError when name, bytes or description cannot be used."""
    if len(source) > max_bytes:
        raise InvalidInputError(f"the plan has {len(source)} bytes and this node takes {max_bytes}")
    if not source.strip():
        raise InvalidInputError("the plan is empty")
    name = checked_line(name, "a plan's name", MAX_NAME_LENGTH)
    if len(description) > MAX_TEXT_LENGTH:
        raise InvalidInputError(f"the description has {len(description)} characters, more than {MAX_TEXT_LENGTH}")
    return name


def checked_line(text: str, what: str, longest: int) -> str:
    """Return a trimmed text. Raises InvalidInputError unless it is one line of visible characters."""
    line = text.strip()
    if not line or len(line) > longest or "\n" in line or "\t" in line or visible_text(line) != line:
        raise InvalidInputError(
            f"{what} is 1 to {longest} visible characters on one line, not {visible_text(line[:80])!r}"
        )
    return line


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


def visible(source: bytes) -> str:
    """Return a plan's text with every control, bidirectional and invisible character written out.

    Tabs, line feeds and visible characters stay. ``⟦U+202E⟧`` stands for a character, ``⟦0xFF⟧`` for a byte that is not
    UTF-8. Different bytes always give different texts.
    """
    return _UNUSUAL.sub(_shown, source.decode("utf-8", "surrogateescape"))


def visible_text(text: str) -> str:
    """Return a text with every control, bidirectional and invisible character written out, as `visible` does."""
    return _UNUSUAL.sub(_shown, text)


def diff(old: bytes, new: bytes, *, old_name: str = "approved", new_name: str = "asked for") -> str:
    """Return the unified difference of two plans in their visible forms; empty when the bytes are the same."""
    before, after = visible(old).split("\n"), visible(new).split("\n")
    heading = [f"--- {visible_text(old_name)}", f"+++ {visible_text(new_name)}"]
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    taken, put = before[head : len(before) - tail], after[head : len(after) - tail]
    if len(taken) * len(put) <= _MAX_COMPARED:
        lines = list(difflib.unified_diff(before, after, n=_CONTEXT_LINES, lineterm=""))[2:]
    else:  # comparing so many lines one by one would take minutes
        lines = [f"@@ -{head + 1},{len(taken)} +{head + 1},{len(put)} @@"]
        lines += [*(f"-{line}" for line in taken), *(f"+{line}" for line in put)]
    return "\n".join(heading + lines) + "\n" if lines else ""


def _common(left: list[str], right: list[str]) -> int:
    """Count how many lines two lists share from their start."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(left), len(right)))


def _shown(found: re.Match[str]) -> str:
    character = found.group()
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"{OPEN}0x{code - 0xDC00:02X}{CLOSE}"
    if character in (OPEN, CLOSE) or is_hidden(character):
        return f"{OPEN}U+{code:04X}{CLOSE}"
    return character
