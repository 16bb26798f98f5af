"""The audit: one hash-chained line for everything that came in, was decided, or left."""

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
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

import msgspec

from fedmon.common.errors import StorageError
from fedmon.node.requests.audit_chain import (
    HEAD_NAME,
    LOG_NAME,
    Head,
    VerifyResult,
    find_end,
    hash_of,
    lines_backwards,
    read_line,
    verify,
)

DEFAULT_ROTATE_BYTES = 64 * 1024 * 1024
COUNT_PERIOD_S = 3600.0
MAX_COUNTED_NAMES = 2000
OTHER_NAMES = "(other names)"

_SURROGATE = re.compile("[\ud800-\udfff]")
_RESERVED = frozenset({"n", "time", "prev", "hash"})


class Audit:
    """The audit of one node folder; every method is safe from any thread.

    A line is one write to the file, so that readers see whole lines and a killed process leaves whole lines. Only one
    process may write at a time, which the lock of the node folder guards. What can be proved later, and what not, is
    told by `verify`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rotate_bytes: int = DEFAULT_ROTATE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Continue the chain in ``folder``, or begin one.

        Half a line that a crash left is put aside, and lines that are missing are noted, both as an event of the audit.
        Raises StorageError.
        """
        self.folder = folder.absolute()
        self.path = self.folder / LOG_NAME
        self._rotate_bytes, self._clock = rotate_bytes, clock
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, int]] = defaultdict(dict)
        self._counting_since = clock()
        self._counted_from = _utc_text()
        self._closed = False
        try:
            self._file = _opened(self.path)
            self._size = os.fstat(self._file).st_size
            torn = self._put_torn_aside()
            end = find_end(self.folder)
        except OSError as error:
            raise self._storage_error(error) from error
        self._n, self._previous = end.n, end.hash
        self._synced_n = -1
        with self._lock:
            if torn is not None:
                self._write("audit-torn-line", torn)
            if end.broken is not None:
                self._write("audit-broken", end.broken)
            if torn is not None or end.broken is not None:
                self._sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, event: str, **facts: object) -> int:
        """Write one line and return its number; it survives a killed process, and a power cut after the next `sync`.

        Raises StorageError, with nothing written, when the line could not be written whole.
        """
        if not facts.keys().isdisjoint(_RESERVED):
            raise ValueError(f"facts of the audit may not be called {', '.join(sorted(facts.keys() & _RESERVED))}")
        with self._lock:
            self._flush_counts_when_due()
            return self._write(event, facts)

    def record_durably(self, event: str, **facts: object) -> int:
        """Write one line and have it on the disk before returning its number. Raises StorageError."""
        number = self.record(event, **facts)
        self.sync()
        return number

    def sync(self) -> None:
        """Have every line written so far on the disk, and note the end of the chain beside it. Raises StorageError."""
        with self._lock:
            self._sync()

    @property
    def end(self) -> tuple[int, str]:
        """The number and the hash of the last line; 0 before the first."""
        with self._lock:
            return self._n, self._previous

    def count(self, kind: str, name: str, n: int = 1) -> None:
        """Count ``n`` metrics or log records (``kind``) of one name for the line of this hour."""
        self.count_all(kind, (name,), n)

    def count_all(self, kind: str, names: Iterable[str], n: int = 1) -> None:
        """Count ``n`` for each of ``names``; beyond 2000 names of a kind an hour, the rest is counted together."""
        with self._lock:
            counts = self._counts[kind]
            for name in names:
                known = name in counts or len(counts) < MAX_COUNTED_NAMES
                counted = name if known else OTHER_NAMES
                counts[counted] = counts.get(counted, 0) + n
            with contextlib.suppress(StorageError):  # the counts are kept, and written with the next line that can be
                self._flush_counts_when_due()

    def verify(self) -> VerifyResult:
        """Read this folder's whole chain; see `audit_chain.verify`."""
        return verify(self.folder)

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
        body = _encoded({"n": number, "time": _utc_text(), "event": event, **facts, "prev": self._previous})
        digest = hash_of(body)
        line = b'%b,"hash":"%b"}\n' % (body[:-1], digest.encode())
        try:
            if self._size and self._size + len(line) > self._rotate_bytes:
                self._rotate()
            written = os.write(self._file, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, "no space left for the whole line")
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise self._storage_error(error) from error
        self._size += len(line)
        self._n, self._previous = number, digest
        return number

    def _rotate(self) -> None:
        """Give the full file a name that sorts by its first line, and go on in a new one."""
        os.fsync(self._file)
        if self.path.exists():  # it is not when an earlier attempt came only this far
            with self.path.open("rb") as file:
                first = read_line(file.readline())
            rotated = self.folder / f"audit-{first.n if first is not None else self._n:015d}.jsonl"
            if rotated.exists():
                raise FileExistsError(errno.EEXIST, f"{rotated.name} exists already")
            self.path.rename(rotated)
        fresh = _opened(self.path)
        os.close(self._file)
        self._file, self._size = fresh, 0
        _sync_folder(self.folder)

    def _sync(self) -> None:
        if self._synced_n == self._n:
            return  # a node that nobody asks writes nothing, not even each second
        try:
            os.fsync(self._file)
            head = msgspec.json.encode(Head(n=self._n, hash=self._previous)) + b"\n"
            staged = self.folder / f".{HEAD_NAME}.new"
            staged.unlink(missing_ok=True)
            with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(head)
            staged.replace(self.folder / HEAD_NAME)
            self._synced_n = self._n
        except OSError as error:
            raise self._storage_error(error) from error

    def _flush_counts_when_due(self) -> None:
        if self._clock() - self._counting_since >= COUNT_PERIOD_S:
            self._flush_counts()

    def _flush_counts(self) -> None:
        if self._counts:
            kinds = {kind: dict(sorted(counts.items())) for kind, counts in sorted(self._counts.items())}
            self._write("hourly-counts", {"since": self._counted_from, "counts": kinds})
            self._counts.clear()
        self._counting_since, self._counted_from = self._clock(), _utc_text()

    def _put_torn_aside(self) -> dict[str, object] | None:
        """Move half a line at the end into a file of its own; return the facts of it."""
        torn = next(lines_backwards(self.path), b"")
        if not torn or torn.endswith(b"\n"):
            return None
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S%fZ")
        aside = self.folder / f"audit.torn-{stamp}"
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(torn)
            file.flush()
            os.fsync(file.fileno())
        self._size -= len(torn)
        os.ftruncate(self._file, self._size)
        return {"file": aside.name, "size_bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()}

    def _storage_error(self, error: OSError) -> StorageError:
        return StorageError(
            f"the audit {self.path} cannot be written: {error.strerror}; make that possible and try again"
        )


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


def _utc_text() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


def _opened(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
