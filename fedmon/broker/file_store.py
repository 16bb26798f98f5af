"""Files on disk under the digest of their content; nothing that a client sends becomes a path."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import pathlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

import msgspec

from fedmon.common.errors import FedmonError, StorageError
from fedmon.common.files import LOCK_NAME, LockFile, storage_errors, sync

_DIGEST = re.compile(r"[0-9a-f]{64}")


class UploadRefusedError(FedmonError):
    """The repository does not take an upload; ``status`` is the HTTP status that says so."""

    def __init__(self, reason: str, *, status: int) -> None:
        super().__init__(reason)
        self.status = status


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest file, all files together and those of one party, and how long one is kept after its last upload."""

    max_file_bytes: int
    max_total_bytes: int
    max_files: int = 100_000
    max_party_bytes: int
    max_party_files: int = 10_000
    keep_s: float


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is safe on disk; times are Unix time."""

    sha256: str
    size_bytes: int
    stored: float
    expires: float


def too_large(max_bytes: int) -> UploadRefusedError:
    """Return the error of a file that is over the limit for one file."""
    return UploadRefusedError(f"a file may have {max_bytes} bytes", status=413)


class FileStore:
    """The files in one folder. Safe from any thread; one process at a time may hold a folder.

    Files lie in ``files``, those on their way in ``incoming``. An empty file ``parties/PARTY/DIGEST`` says that a file
    is charged to a party, from its time on. Raises FolderInUseError, and StorageError if the folder cannot be used.
    """

    def __init__(self, folder: pathlib.Path, limits: StoreLimits) -> None:
        self.limits = limits
        self._bytes, self._counts = collections.Counter[str | None](), collections.Counter[str | None]()
        self._lock = threading.Lock()
        self.files, self.incoming, self._parties = folder / "sha256", folder / "incoming", folder / "parties"
        with storage_errors(folder):
            for path in (folder, self.files, self.incoming, self._parties):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = LockFile(folder / LOCK_NAME)
            self._held.hold()
            for leftover in self.incoming.iterdir():
                leftover.unlink()
            for path in self._stored():
                self._count(None, size_bytes=path.stat().st_size, files=1)
            for charge in self._parties.glob("*/*"):
                with contextlib.suppress(FileNotFoundError):
                    size_bytes = (self.files / charge.name).stat().st_size
                    self._count(charge.parent.name, size_bytes=size_bytes, files=1)
            self.sweep()

    def find(self, sha256: str) -> StoredFile | None:
        """Return a file that has not expired, or None; any text may be asked for."""
        if not _DIGEST.fullmatch(sha256):
            return None
        try:
            found = self._described(self.files / sha256)
        except FileNotFoundError:
            return None
        return found if found.expires > time.time() else None

    def sweep(self) -> None:
        """Delete expired files."""
        oldest = time.time() - self.limits.keep_s
        for charge in self._parties.glob("*/*"):
            with self._lock:
                if not (charged := self.files / charge.name).exists():
                    charge.unlink()
                elif min(charged.stat().st_mtime, charge.stat().st_mtime) <= oldest:
                    charge.unlink()
                    self._count(charge.parent.name, size_bytes=-charged.stat().st_size, files=-1)
        for path in self._stored():
            # A new upload of the same bytes may renew the file until the moment when it is deleted.
            with self._lock:
                found = path.stat()
                if found.st_mtime <= oldest:
                    path.unlink()
                    self._count(None, size_bytes=-found.st_size, files=-1)

    def usage(self) -> tuple[int, int]:
        """Return the number of files and bytes, stored or promised to uploads under way."""
        return self._counts[None], self._bytes[None]

    def reserve(self, party: str | None, *, size_bytes: int = 0, files: int = 0) -> None:
        """Promise room to an upload. Raises UploadRefusedError."""
        limits = self.limits
        quotas: list[tuple[str, str | None, int, int]] = [
            ("the repository", None, limits.max_total_bytes, limits.max_files)
        ]
        if party is not None:
            quotas.append((f"the quota of {party}", party, limits.max_party_bytes, limits.max_party_files))
        with self._lock:
            for what, owner, max_bytes, max_files in quotas:
                if self._bytes[owner] + size_bytes > max_bytes or self._counts[owner] + files > max_files:
                    raise UploadRefusedError(
                        f"{what} is full: {max_bytes} bytes and {max_files} files are allowed; try again when older "
                        f"files have expired",
                        status=507,
                    )
            self._count(*(owner for _, owner, _, _ in quotas), size_bytes=size_bytes, files=files)

    def release(self, party: str | None, *, size_bytes: int, files: int = 1) -> None:
        """Take back the room that was promised to an upload."""
        with self._lock:
            self._count(*{None, party}, size_bytes=-size_bytes, files=-files)

    @contextlib.contextmanager
    def room(self, party: str | None, max_bytes: int) -> Iterator[Callable[[int], None]]:
        """Give a function that reserves up to ``max_bytes`` until the block ends. It raises UploadRefusedError."""
        reserved = 0

        def take(size_bytes: int) -> None:
            nonlocal reserved
            if reserved + size_bytes > max_bytes:
                raise too_large(self.limits.max_file_bytes)
            self.reserve(party, size_bytes=size_bytes)
            reserved += size_bytes

        try:
            yield take
        finally:
            self.release(party, size_bytes=reserved, files=0)

    def keep(self, incoming: pathlib.Path, sha256: str, party: str | None) -> StoredFile:
        """Give a file that was received its name. Raises OSError."""
        target = self.files / sha256
        # The same bytes are counted already; the new file only renews their time.
        counted: list[str | None] = []
        with self._lock:
            if target.exists():
                counted.append(None)
            if party is not None:
                charge = self._parties / party / sha256
                if counted and charge.exists():
                    counted.append(party)
                charge.parent.mkdir(mode=0o700, exist_ok=True)
                charge.touch(mode=0o600)
            incoming.replace(target)
            stored = self._described(target)
            self._count(*counted, size_bytes=-stored.size_bytes, files=-1)
            return stored

    def _described(self, path: pathlib.Path) -> StoredFile:
        found = path.stat()
        stored = found.st_mtime
        return StoredFile(
            sha256=path.name, size_bytes=found.st_size, stored=stored, expires=stored + self.limits.keep_s
        )

    def _count(self, *owners: str | None, size_bytes: int, files: int) -> None:
        for owner in owners:
            self._bytes[owner] += size_bytes
            self._counts[owner] += files

    def _stored(self) -> list[pathlib.Path]:
        return [path for path in self.files.iterdir() if _DIGEST.fullmatch(path.name)]


class Upload:
    """One file on its way in, charged to a party if one is named; a context manager that keeps it after `finish`."""

    def __init__(self, store: FileStore, party: str | None = None) -> None:
        self._store, self._path, self._party = store, store.incoming / secrets.token_hex(16), party
        self._digest = hashlib.sha256()
        self._size_bytes = 0
        self._descriptor = -1
        self._kept = False

    def __enter__(self) -> Self:
        self._store.reserve(self._party, files=1)
        try:
            with _writing():
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except StorageError:
            self._store.release(self._party, size_bytes=0)
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        os.close(self._descriptor)
        if not self._kept:
            self._path.unlink(missing_ok=True)
            self._store.release(self._party, size_bytes=self._size_bytes)

    def write(self, chunk: bytes) -> None:
        """Take the next bytes. Raises UploadRefusedError or StorageError."""
        if self._size_bytes + len(chunk) > self._store.limits.max_file_bytes:
            raise too_large(self._store.limits.max_file_bytes)
        self._store.reserve(self._party, size_bytes=len(chunk))
        self._size_bytes += len(chunk)
        self._digest.update(chunk)
        view = memoryview(chunk)
        with _writing():
            while view:
                view = view[os.write(self._descriptor, view) :]

    def finish(self) -> StoredFile:
        """Make the file safe on disk and return it. Raises StorageError."""
        with _writing():
            os.fsync(self._descriptor)
            stored = self._store.keep(self._path, self._digest.hexdigest(), self._party)
            self._kept = True
            sync(self._store.files)
        return stored


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:  # told to clients, who learn no path
        raise StorageError(f"the repository cannot write: {error.strerror}") from None
