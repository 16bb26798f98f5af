"""The chain of an audit: how a line proves the one before it, and what a whole folder proves."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from fedmon.common.errors import StorageError

LOG_NAME = "audit.jsonl"
HEAD_NAME = "audit.head"
FIRST_PREVIOUS = "0" * 64
MAX_LINE_BYTES = 16 * 1024 * 1024

_SUFFIX = re.compile(rb',"hash":"([0-9a-f]{64})"\}\n\Z')
_SUFFIX_LENGTH = len(b',"hash":""}\n') + 64
_ROTATED = re.compile(r"audit-[0-9]{15}\.jsonl")
_BLOCK = 256 * 1024
_ATTEMPTS = 100


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What the chain needs of a line; ``intact`` tells whether its bytes are those of its ``hash``."""

    n: int
    event: str
    prev: str
    hash: str = ""
    intact: bool = True


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the chain at the last sync."""

    n: int
    hash: str


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Where the chain goes on; ``broken`` holds the facts when it is not the chain that was synced to the disk.

    Then ``n`` and ``hash`` are those that were synced, so that every later `verify` finds the break.
    """

    n: int = 0
    hash: str = FIRST_PREVIOUS
    broken: dict[str, int] | None = None


class BadLine(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where an audit is not what was written: line ``line`` of ``file``, where ``n`` was to come."""

    file: str
    line: int
    n: int
    why: str

    def __str__(self) -> str:
        return f"{self.file} line {self.line} (number {self.n}): {self.why}"


class VerifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """What reading a whole audit found: how much of it is good, and the first bad line if there is one."""

    files: int
    lines: int
    first_bad: BadLine | None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Tell whether every line is as it was written."""
        return self.first_bad is None


def hash_of(body: bytes) -> str:
    """Return the hash of a line: SHA-256 of its JSON object before the member ``hash`` was added at its end."""
    return hashlib.sha256(body).hexdigest()


def read_line(raw: bytes) -> Line | None:
    """Read one line with its line feed; None when it is not a line of an audit."""
    suffix = _SUFFIX.search(raw, max(0, len(raw) - _SUFFIX_LENGTH))
    if suffix is None:
        return None
    body = raw[: suffix.start()] + b"}"
    try:
        line = msgspec.json.decode(body, type=Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not 0 < line.n < 2**53:
        return None
    stated = suffix.group(1).decode()
    return msgspec.structs.replace(line, hash=stated, intact=hash_of(body) == stated)


def read_head(folder: Path) -> Head | None:
    """Return where the chain ended at the last sync; None when that note is missing or damaged."""
    try:
        return msgspec.json.decode((folder / HEAD_NAME).read_bytes(), type=Head)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def chain_files(folder: Path) -> list[Path]:
    """Return the files of an audit in the order of their lines."""
    names = sorted(name for name in (path.name for path in folder.iterdir()) if _ROTATED.fullmatch(name))
    if (folder / LOG_NAME).exists():
        names.append(LOG_NAME)
    return [folder / name for name in names]


def lines_backwards(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file from its end to its start, each with its line feed where it has one."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        rest, ending = b"", b""
        while position:
            start = max(0, position - _BLOCK)
            file.seek(start)
            rest, *pieces = (file.read(position - start) + rest).split(b"\n")
            position = start
            for piece in reversed(pieces):
                if piece or ending:
                    yield piece + ending
                ending = b"\n"
        if rest or ending:
            yield rest + ending


def find_end(folder: Path) -> End:
    """Learn from the last lines of an audit, and from the note of its last sync, where the chain goes on."""
    head = read_head(folder) or Head(n=0, hash=FIRST_PREVIOUS)
    last: Line | None = None
    for line in filter(None, map(read_line, _all_backwards(folder))):
        last = last or line
        if line.n == head.n and line.hash != head.hash:
            return End(n=last.n, hash=head.hash, broken={"written_anew": head.n})
        if line.n <= head.n or head.n == 0:
            break
    end = End(n=last.n, hash=last.hash) if last is not None else End()
    if head.n > end.n:
        return End(n=head.n, hash=head.hash, broken={"first_missing": end.n + 1, "last_missing": head.n})
    return end


def facts_since(folder: Path, behind: tuple[int, str], events: frozenset[str]) -> tuple[list[dict[str, Any]], bool]:
    """Return the lines of some ``events`` after a line (number and hash), oldest first, and whether none is missing.

    Lines that were altered are left out. Raises OSError.
    """
    number, digest = behind
    found: list[dict[str, Any]] = []
    after, is_whole = None, True
    for raw in _all_backwards(folder):
        line = read_line(raw)
        if line is not None and line.n <= number:
            return found[::-1], is_whole and _follows(after, line.n, line.hash) and (line.n, line.hash) == behind
        if line is None or not line.intact or (after is not None and not _follows(after, line.n, line.hash)):
            is_whole = False
            continue
        after = line
        if line.event in events:
            found.append(msgspec.json.decode(raw))
    return found[::-1], is_whole and number == 0 and _follows(after, number, digest)


def _follows(line: Line | None, number: int, digest: str) -> bool:
    return (line.n, line.prev) == (number + 1, digest) if line is not None else True


def _all_backwards(folder: Path) -> Iterator[bytes]:
    for path in reversed(chain_files(folder)):
        yield from lines_backwards(path)


def verify(folder: Path) -> VerifyResult:
    """Read every line of an audit and name the first that is not as it was written.

    Found out: a line altered, taken out, put in, repeated or moved; a file taken out; lines cut off the end that had
    been synced; lines from any place on written anew while ``audit.head`` was not. Not found out: unsynced lines cut
    off the end, and an audit that was written anew as a whole together with its head, because no secret is in the
    chain. Keep the number and hash of a line elsewhere to be sure against whoever can write to the folder.

    May run while another process writes. Raises StorageError when the folder cannot be read.
    """
    try:
        head = read_head(folder)
        with contextlib.ExitStack() as stack:
            return _walk(_opened_files(folder, stack), head)
    except OSError as error:
        raise StorageError(f"the audit in {folder} cannot be read: {error.strerror}") from error


def _opened_files(folder: Path, stack: contextlib.ExitStack) -> list[tuple[Path, BinaryIO | None]]:
    """Return the files of an audit as they are at one moment; the last is open, for only it can get another name."""
    for _ in range(_ATTEMPTS):
        paths = chain_files(folder)
        if not paths:
            return []
        try:
            last = stack.enter_context(paths[-1].open("rb"))
        except FileNotFoundError:
            continue
        if chain_files(folder) == paths:
            return [(path, None) for path in paths[:-1]] + [(paths[-1], last)]
    raise StorageError(f"the audit in {folder} cannot be read: its files change too fast")


def _walk(files: list[tuple[Path, BinaryIO | None]], head: Head | None) -> VerifyResult:
    walk = _Walk(head)
    for path, opened in files:
        with opened or path.open("rb") as file:
            if not walk.follow(path.name, file, is_last=opened is not None):
                break
    if walk.bad is None and head is not None and head.n > walk.lines:
        walk.bad = BadLine(
            file=files[-1][0].name if files else LOG_NAME,
            line=walk.lines_of_file + 1,
            n=walk.lines + 1,
            why=f"missing: {_span(walk.lines + 1, head.n)} had been synced to the disk",
        )
    if not files and head is None:
        walk.notes.append(f"there is no {LOG_NAME} here: nothing was written yet, or everything was taken away")
    if head is None and walk.lines:
        walk.notes.append(f"{HEAD_NAME} is missing or damaged: whether lines were cut off the end cannot be told")
    return VerifyResult(files=len(files), lines=walk.lines, first_bad=walk.bad, notes=tuple(walk.notes))


class _Walk:
    """Where a reader of the chain is, and what it found."""

    def __init__(self, head: Head | None) -> None:
        self.head = head
        self.lines, self.lines_of_file = 0, 0
        self.previous = FIRST_PREVIOUS
        self.bad: BadLine | None = None
        self.notes: list[str] = []

    def follow(self, name: str, file: BinaryIO, *, is_last: bool) -> bool:
        """Read one file; False when its end is not the end of good lines."""
        self.lines_of_file = 0
        while raw := file.readline(MAX_LINE_BYTES):
            if is_last and not raw.endswith(b"\n") and len(raw) < MAX_LINE_BYTES:
                self.notes.append(f"{name} ends in half a line: it is being written, or a crash cut it off")
                return False
            why = self._flaw(raw)
            if why:
                self.bad = BadLine(file=name, line=self.lines_of_file + 1, n=self.lines + 1, why=why)
                return False
            self.lines_of_file += 1
            self.lines += 1
        return True

    def _flaw(self, raw: bytes) -> str:
        """Say what is wrong with the next line; empty when it goes on where the one before ended."""
        line = read_line(raw)
        expected = self.lines + 1
        if line is None:
            return "not a line of an audit: altered, or cut off"
        if not line.intact:
            return "altered: it does not hold what its hash stands for"
        if line.n > expected:
            return f"missing or moved: {_span(expected, line.n - 1)}; number {line.n} follows instead"
        if line.n < expected:
            return f"number {line.n} comes again or too late"
        if line.prev != self.previous:
            return "it does not continue the line before it: one of the two was written anew"
        if self.head is not None and line.n == self.head.n and line.hash != self.head.hash:
            return "written anew: another line had been synced to the disk under this number"
        self.previous = line.hash
        return ""


def _span(first: int, last: int) -> str:
    return f"line number {first}" if first == last else f"line numbers {first} to {last}"
