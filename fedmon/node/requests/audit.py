"""The audit: a hash-chained line for everything that came in, was decided, or left; and its verification."""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import json
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from fedmon.common.clock import timestamp, utc_now
from fedmon.common.errors import StorageError
from fedmon.common.files import Closing, storage_errors, sync, write_whole

LOG_NAME = "audit.jsonl"
HEAD_NAME = "audit.head"
STUB_NAME = "audit.stub"
PRUNED = "audit-pruned"
FIRST_PREVIOUS = "0" * 64
MAX_LINE_BYTES = 64 * 1024 * 1024
DEFAULT_ROTATE_BYTES = 64 * 1024 * 1024
COUNT_PERIOD_S = 3600.0
MAX_COUNTED_NAMES = 2000
OTHER_NAMES = "(other names)"

_SUFFIX = re.compile(rb',"hash":"([0-9a-f]{64})"\}\n\Z')
_SUFFIX_LENGTH = len(b',"hash":""}\n') + 64
_ROTATED = re.compile(r"audit-[0-9]{15}\.jsonl")
_BLOCK = 256 * 1024
_SURROGATE = re.compile("[\ud800-\udfff]")


class Audit(Closing):
    """The audit of one node folder; every method is safe from any thread.

    A line is one write to the file, so that readers see whole lines and a killed process leaves whole lines. Only one
    process may write at a time, which the lock of the node folder guards. `verify` tells the limits of later proof.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rotate_bytes: int = DEFAULT_ROTATE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Continue the chain in ``folder``, or begin one.

        Half a line that a crash left is cut off, and lines that are missing stay missing; an event of the audit tells
        of either. Raises StorageError.
        """
        self.folder = folder.absolute()
        self.path = self.folder / LOG_NAME
        self._rotate_bytes, self._clock = rotate_bytes, clock
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, int]] = defaultdict(dict)
        self._bytes: dict[str, int] = {}
        self._counting_since = clock()
        self._counted_from = timestamp(utc_now())
        self._closed = False
        with storage_errors(self.path):
            self._file = _opened(self.path)
            self._size = os.fstat(self._file).st_size
            found = {"audit-torn-line": self._cut_torn_end()}
            self._cut_pruned(read_note(self.folder / STUB_NAME))
            end, found["audit-broken"] = find_end(self.folder)
        self._n, self._previous = end.n, end.hash
        self._synced_n = self._n if read_note(self.folder / HEAD_NAME) == end else -1
        with self._lock:
            for event, facts in found.items():
                if facts is not None:
                    self._write(event, facts)
                    self._sync()

    def record(self, event: str, **facts: object) -> int:
        """Write one line and return its number; it survives a killed process, and a power cut after the next `sync`.

        Raises StorageError, with nothing written, when the line could not be written whole.
        """
        with self._lock:
            self._flush_counts_when_due()
            return self._write(event, facts)

    def sync(self) -> None:
        """Have every line written so far on the disk, and note the end of the chain beside it. Raises StorageError."""
        with self._lock:
            self._sync()

    @property
    def end(self) -> tuple[int, str]:
        """The number and the hash of the last line; 0 before the first."""
        with self._lock:
            return self._n, self._previous

    def count(self, kind: str, names: Iterable[str], n: int = 1) -> None:
        """Count ``n`` metrics or log records (``kind``) of each name for the line of this hour.

        Beyond 2000 names of a kind an hour, the rest is counted together.
        """
        with self._lock:
            counts = self._counts[kind]
            for name in names:
                known = name in counts or len(counts) < MAX_COUNTED_NAMES
                counted = name if known else OTHER_NAMES
                counts[counted] = counts.get(counted, 0) + n
            with contextlib.suppress(StorageError):  # the counts are kept, and written with the next line that can be
                self._flush_counts_when_due()

    def take_bytes(self) -> dict[str, int]:
        """Return the bytes of the lines about each researcher that were written since the last call."""
        with self._lock:
            taken, self._bytes = self._bytes, {}
            return taken

    def prune(self, before: datetime.datetime, *, by: str) -> int:
        """Remove the lines from before a moment, and return how many; `verify` still proves the others.

        A stub holds number and hash of the last line removed, and a line of the audit vouches for it. A crash on the
        way is made good at the next start. Raises StorageError.
        """
        with self._lock, storage_errors(self.path):
            old, last = read_note(self.folder / STUB_NAME), _last_before(self.folder, timestamp(before))
            if last is None:
                return 0
            self._write(PRUNED, {"pruned_n": last.n, "pruned_hash": last.hash, "until": last.time, "by": by})
            self._sync()
            stub = ChainHead(n=last.n, hash=last.hash)
            write_whole(self.folder / STUB_NAME, msgspec.json.encode(stub) + b"\n", mode=0o600, durable=True)
            self._cut_pruned(stub)
            return last.n - (0 if old is None else old.n)

    def close(self) -> None:
        """Write the counts of the hour that has begun, sync and close; safe to call twice. Raises StorageError."""
        with self._lock:
            if self._closed:
                return
            try:
                self._flush_counts()
                self._sync()
            finally:
                self._closed = True
                os.close(self._file)

    def _write(self, event: str, facts: Mapping[str, object]) -> int:
        if self._closed:
            raise StorageError(f"the audit {self.path} is closed: nothing more can be written")
        number = self._n + 1
        body = _encoded({"n": number, "time": timestamp(utc_now()), "event": event, **facts, "prev": self._previous})
        digest = hashlib.sha256(body).hexdigest()
        line = b'%b,"hash":"%b"}\n' % (body[:-1], digest.encode())
        try:
            if self._size and self._size + len(line) > self._rotate_bytes:
                self._rotate()
            written = os.write(self._file, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, "no space left for the whole line")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            with storage_errors(self.path):
                raise
        self._size += len(line)
        self._n, self._previous = number, digest
        about = facts.get("researcher") or facts.get("to")
        if isinstance(about, str):
            self._bytes[about] = self._bytes.get(about, 0) + len(line)
        return number

    def _rotate(self) -> None:
        """Give the full file a name that sorts by its first line, and continue in a new one."""
        os.fsync(self._file)
        if self.path.exists():  # it is not when an earlier attempt came only this far
            first = _first_line(self.path)
            rotated = self.folder / f"audit-{first.n if first is not None else self._n:015d}.jsonl"
            if rotated.exists():
                raise FileExistsError(errno.EEXIST, f"{rotated.name} exists already")
            self.path.rename(rotated)
        fresh = _opened(self.path)
        os.close(self._file)
        self._file, self._size = fresh, 0
        sync(self.folder)

    def _cut_pruned(self, stub: ChainHead | None) -> None:
        """Remove the lines up to the stub's, if some are left. Raises OSError and StorageError."""
        if stub is None:
            return
        is_there = self.path.exists()  # it is not when an earlier rotation came only this far
        first = _first_line(self.path) if is_there else None
        if not is_there or (first is not None and first.n <= stub.n):
            self._rotate()
        for path in chain_files(self.folder):
            first = _first_line(path)
            if first is None or first.n > stub.n:
                return
            last = _last_line(path)
            if last is None or last.n > stub.n:
                with path.open("rb") as file:
                    at = 0
                    while (line := read_line(file.readline(MAX_LINE_BYTES))) is not None and line.n <= stub.n:
                        at = file.tell()
                    file.seek(at)
                    rest = path.with_name(f"audit-{stub.n + 1:015d}.jsonl")
                    write_whole(rest, file.read(), mode=0o600, durable=True)
            path.unlink()
            sync(self.folder)

    def _sync(self) -> None:
        if self._synced_n == self._n:
            return  # a node that nobody asks writes nothing, not even each second
        with storage_errors(self.path):
            os.fsync(self._file)
            head = msgspec.json.encode(ChainHead(n=self._n, hash=self._previous)) + b"\n"
            write_whole(self.folder / HEAD_NAME, head, mode=0o600)
            self._synced_n = self._n

    def _flush_counts_when_due(self) -> None:
        if self._clock() - self._counting_since >= COUNT_PERIOD_S:
            self._flush_counts()

    def _flush_counts(self) -> None:
        if self._counts:
            kinds = {kind: dict(sorted(counts.items())) for kind, counts in sorted(self._counts.items())}
            self._write("hourly-counts", {"since": self._counted_from, "counts": kinds})
            self._counts.clear()
        self._counting_since, self._counted_from = self._clock(), timestamp(utc_now())

    def _cut_torn_end(self) -> dict[str, object] | None:
        """Cut half a line off the end; return the facts of it."""
        torn = next(_lines_backwards(self.path), b"")
        if not torn or torn.endswith(b"\n"):
            return None
        self._size -= len(torn)
        os.ftruncate(self._file, self._size)
        return {"size_bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()}


def _encoded(members: dict[str, object]) -> bytes:
    """Return one JSON object on one line, in which only printable ASCII is not escaped."""
    try:
        body = msgspec.json.encode(members, enc_hook=str)
    except UnicodeEncodeError:
        body = b"\xff"
    if body.isascii() and b"\x7f" not in body:
        return body
    # A lone surrogate, as in a file name that is not UTF-8, has no place in JSON: it becomes readable text.
    text = json.dumps(msgspec.to_builtins(members, enc_hook=str), ensure_ascii=False)
    text = _SURROGATE.sub(lambda found: f"\\\\u{ord(found.group()):04x}", text)
    return json.dumps(json.loads(text), separators=(",", ":")).replace("\x7f", "\\u007f").encode("ascii")


def _opened(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """The chain's view of a line; ``intact`` tells whether its bytes are those of its ``hash``.

    ``undone_n`` is the line of a decision that the register could not keep.
    """

    n: Annotated[int, msgspec.Meta(ge=1, lt=10**15)]
    event: str
    prev: str
    time: str = ""
    pruned_n: int = 0
    pruned_hash: str = ""
    undone_n: int = 0
    hash: str = ""
    intact: bool = True


class ChainHead(msgspec.Struct, frozen=True, kw_only=True):
    """A line by number and hash: the last one at the last sync, or the last one that was pruned."""

    n: int
    hash: str


class BadLine(msgspec.Struct, frozen=True, kw_only=True):
    """The first altered place of an audit: line ``line`` of ``file``, where ``n`` was to come."""

    file: str
    line: int
    n: int
    why: str

    def __str__(self) -> str:
        return f"{self.file} line {self.line} (number {self.n}): {self.why}"


class VerifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading a whole audit: its good part, and the first bad line if there is one."""

    files: int
    lines: int
    first_bad: BadLine | None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Tell whether every line is as it was written."""
        return self.first_bad is None


def read_line(raw: bytes) -> AuditLine | None:
    """Read one line with its line feed; None when it is not a line of an audit.

    The hash of a line is the SHA-256 of its JSON object before the member ``hash`` was added at its end.
    """
    suffix = _SUFFIX.search(raw, max(0, len(raw) - _SUFFIX_LENGTH))
    if suffix is None:
        return None
    body = raw[: suffix.start()] + b"}"
    try:
        line = msgspec.json.decode(body, type=AuditLine)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    stated = suffix.group(1).decode()
    return msgspec.structs.replace(line, hash=stated, intact=hashlib.sha256(body).hexdigest() == stated)


def read_note(path: Path) -> ChainHead | None:
    """Return the line that the note of the last sync, or the stub, names; None if that is missing or damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ChainHead)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def chain_files(folder: Path) -> list[Path]:
    """Return the files of an audit in the order of their lines."""
    names = sorted(name for name in (path.name for path in folder.iterdir()) if _ROTATED.fullmatch(name))
    if (folder / LOG_NAME).exists():
        names.append(LOG_NAME)
    return [folder / name for name in names]


def backwards(folder: Path) -> Iterator[bytes]:
    """Yield the lines of an audit from its end to its start. Raises StorageError."""
    with storage_errors(folder, "read the audit in"):
        for path in reversed(chain_files(folder)):
            yield from _lines_backwards(path)


def _lines_backwards(path: Path) -> Iterator[bytes]:
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


def find_end(folder: Path) -> tuple[ChainHead, dict[str, object] | None]:
    """Learn from the last lines of an audit, and from the note of its last sync, where the chain continues.

    If it is not the chain that was synced to the disk, the facts of that come too, and the synced line is the end, so
    that every later `verify` finds the break.
    """
    head = read_note(folder / HEAD_NAME) or ChainHead(n=0, hash=FIRST_PREVIOUS)
    last: AuditLine | None = None
    for line in filter(None, map(read_line, backwards(folder))):
        last = last or line
        if line.n == head.n and line.hash != head.hash:
            return ChainHead(n=last.n, hash=head.hash), {"written_anew": head.n}
        if line.n <= head.n or head.n == 0:
            break
    end = ChainHead(n=0, hash=FIRST_PREVIOUS) if last is None else ChainHead(n=last.n, hash=last.hash)
    if head.n > end.n:
        return head, {"first_missing": end.n + 1, "last_missing": head.n}
    return end, None


def facts_since(folder: Path, behind: tuple[int, str], events: frozenset[str]) -> tuple[list[dict[str, Any]], bool]:
    """Return the lines of some ``events`` after a line (number and hash), oldest first, and whether none is missing.

    Lines that were altered are left out, and those of decisions that failed. Raises StorageError.
    """
    number, digest = behind
    found: list[dict[str, Any]] = []
    undone: set[int] = set()
    after, is_whole = None, True
    for raw in backwards(folder):
        line = read_line(raw)
        if line is not None and line.n <= number:
            return found[::-1], is_whole and _follows(after, line.n, line.hash) and (line.n, line.hash) == behind
        if line is None or not line.intact or (after is not None and not _follows(after, line.n, line.hash)):
            is_whole = False
            continue
        after = line
        undone.add(line.undone_n)
        if line.event in events and line.n not in undone:
            found.append(msgspec.json.decode(raw))
    return found[::-1], is_whole and (number == 0 or after is not None) and _follows(after, number, digest)


def _follows(line: AuditLine | None, number: int, digest: str) -> bool:
    return (line.n, line.prev) == (number + 1, digest) if line is not None else True


def _last_line(path: Path) -> AuditLine | None:
    return read_line(next(_lines_backwards(path), b""))


def _first_line(path: Path) -> AuditLine | None:
    with path.open("rb") as file:
        return read_line(file.readline(MAX_LINE_BYTES))


def _last_before(folder: Path, moment: str) -> AuditLine | None:
    """Return the last of the lines at the beginning of an audit that are older than a moment. Raises OSError."""
    found: AuditLine | None = None
    for path in chain_files(folder):
        last = _last_line(path)
        if last is not None and last.time < moment:  # and so is the whole file
            found = last
            continue
        with path.open("rb") as file:
            while (line := read_line(file.readline(MAX_LINE_BYTES))) is not None and line.time < moment:
                found = line
        break
    return found


def exported(folder: Path, since: datetime.datetime | None, until: datetime.datetime | None) -> Iterator[bytes]:
    """Yield the lines of an audit from one moment to another, both included, as they are in its files.

    Lines that were altered come as well if their time can be read. Raises StorageError.
    """
    first, last = timestamp(since) if since else "", timestamp(until) if until else "~"
    with storage_errors(folder, "read the audit in"):
        for _, file in _files(folder):
            while raw := file.readline(MAX_LINE_BYTES):
                line = read_line(raw)
                if line is not None and first <= line.time <= last:
                    yield raw


def verify(folder: Path) -> VerifyResult:
    """Read every line of an audit and name the first that is not as it was written.

    Found out: a line altered, taken out, put in, repeated or moved; a file taken out; lines cut off the end that had
    been synced; lines from any place on written anew while ``audit.head`` was not. Not found out: unsynced lines cut
    off the end, and an audit that was written anew as a whole together with its head, because no secret is in the
    chain. Keep the number and hash of a line elsewhere to be sure against anyone who can write to the folder.
    Lines that were pruned are not missed if their stub and the line that vouches for it are there.

    May run while another process writes. Raises StorageError when the folder cannot be read.
    """
    while True:
        with storage_errors(folder, "read the audit in"):
            stub = read_note(folder / STUB_NAME)
            result = _verified(_files(folder), read_note(folder / HEAD_NAME), stub)
            if read_note(folder / STUB_NAME) == stub:  # else lines were pruned meanwhile
                return result


def _files(folder: Path) -> Iterator[tuple[str, BinaryIO]]:
    """Yield the files of an audit, oldest first, each with its name; a file rotated meanwhile comes once."""
    with contextlib.ExitStack() as stack:
        log, number = None, 0
        with contextlib.suppress(FileNotFoundError):  # for a moment while it is rotated
            log = stack.enter_context((folder / LOG_NAME).open("rb"))
            number = os.fstat(log.fileno()).st_ino
        for path in chain_files(folder):
            if path.name == LOG_NAME or path.stat().st_ino == number:
                break
            with path.open("rb") as file:
                yield path.name, file
        if log is not None:
            yield LOG_NAME, log


def _verified(files: Iterator[tuple[str, BinaryIO]], head: ChainHead | None, stub: ChainHead | None) -> VerifyResult:
    notes: list[str] = []
    start = stub or ChainHead(n=0, hash=FIRST_PREVIOUS)
    last = AuditLine(n=start.n, event="", prev="", hash=start.hash)
    is_vouched = stub is None
    name, number, count, why = LOG_NAME, 0, 0, ""
    for count, (name, file) in enumerate(files, start=1):  # noqa: B007 - they tell where it ended
        number = 0
        while not why and (raw := file.readline(MAX_LINE_BYTES)):
            if name == LOG_NAME and not raw.endswith(b"\n") and len(raw) < MAX_LINE_BYTES:
                notes.append(f"{name} ends in half a line: it is being written, or a crash cut it off")
                break
            number += 1
            line = read_line(raw)
            if line is not None and line.n <= start.n == last.n:
                continue  # left over from a pruning that a crash interrupted
            why = _flaw(line, last, head)
            if line is not None and not why:
                last = line
                is_vouched |= line.event == PRUNED and (line.pruned_n, line.pruned_hash) == (start.n, start.hash)
        if why:
            break
    if not why and head is not None and head.n > last.n:
        number += 1
        why = f"missing: lines up to number {head.n} had been synced to the disk"
    if not why and not is_vouched:
        name, number, why = STUB_NAME, 1, f"no line says that the lines up to number {start.n} were pruned"
    bad = BadLine(file=name, line=number, n=last.n + 1, why=why) if why else None
    lines = last.n - start.n
    notes += _notes(count, lines, head, stub)
    return VerifyResult(files=count, lines=lines, first_bad=bad, notes=tuple(notes))


def _notes(files: int, lines: int, head: ChainHead | None, stub: ChainHead | None) -> Iterator[str]:
    """Yield the notes on an audit beside its lines."""
    if stub is not None:
        yield f"the lines up to number {stub.n} were pruned by the owner; {STUB_NAME} stands for them"
    if not files and head is None:
        yield f"{LOG_NAME} not found: nothing was written yet, or everything was taken away"
    if head is None and lines:
        yield f"{HEAD_NAME} is missing or damaged: lines may have been cut off the end"


def _flaw(line: AuditLine | None, before: AuditLine, head: ChainHead | None) -> str:
    """Return the flaw of a line; empty when it continues where the one before ended."""
    if line is None or not line.intact:
        return "altered or cut off: its content does not match its hash"
    if not _follows(line, before.n, before.hash):
        return f"number {line.n} does not continue the line before it: lines are missing, moved or rewritten"
    if head is not None and line.n == head.n and line.hash != head.hash:
        return "rewritten: another line had been synced to the disk under this number"
    return ""
