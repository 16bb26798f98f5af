"""Files on disk under the digest of their content; nothing that a client sends becomes a path."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Protocol, Self

import msgspec

from fedmon.broker.errors import FileTooLargeError, QuotaExceededError
from fedmon.common.errors import StorageError

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest file, all files together and those of one party, and how long one is kept after its last upload."""

    max_file_bytes: int = 16_777_216
    max_total_bytes: int = 1_073_741_824
    max_files: int = 100_000
    max_party_bytes: int = 268_435_456
    max_party_files: int = 10_000
    keep_s: float = 7 * 86_400.0


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is safe on disk; times are Unix time."""

    sha256: str
    size_bytes: int
    stored: float
    expires: float


class Quota:
    """Counts what is stored and what uploads under way were promised. Safe from any thread."""

    def __init__(self, max_bytes: int, max_files: int, *, what: str) -> None:
        self._max_bytes, self._max_files, self._what = max_bytes, max_files, what
        self._lock = threading.Lock()
        self.total_bytes = self.files = 0

    def reserve(self, *, size_bytes: int, files: int) -> None:
        """Promise room. Raises QuotaExceededError."""
        with self._lock:
            if self.total_bytes + size_bytes > self._max_bytes or self.files + files > self._max_files:
                raise QuotaExceededError(
                    f"{self._what} is full: {self._max_bytes} bytes and {self._max_files} files are allowed; try again "
                    f"when older files have expired"
                )
            self.total_bytes += size_bytes
            self.files += files

    def count(self, *, size_bytes: int, files: int) -> None:
        """Count what came or went, without asking whether there is room."""
        with self._lock:
            self.total_bytes += size_bytes
            self.files += files


class FileStore:
    """The files in one folder. Safe from any thread; one process at a time may hold a folder.

    An empty file ``parties/PARTY/DIGEST`` says that a file is charged to a party, since when its time tells. Raises
    StorageError when the folder cannot be used.
    """

    def __init__(self, folder: pathlib.Path, limits: Limits) -> None:
        self._files, self._incoming, self._parties = folder / "sha256", folder / "incoming", folder / "parties"
        self._renaming = threading.Lock()
        self.limits = limits
        self.quota = Quota(limits.max_total_bytes, limits.max_files, what="the repository")
        self._party_quotas: dict[str, Quota] = {}
        try:
            for path in (folder, self._files, self._incoming, self._parties):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for leftover in self._incoming.iterdir():
                leftover.unlink()
            for path in self._stored():
                self.quota.count(size_bytes=path.stat().st_size, files=1)
            for charge in self._parties.glob("*/*"):
                if (charged := self._files / charge.name).exists():
                    self._quota_of(charge.parent.name).count(size_bytes=charged.stat().st_size, files=1)
                else:
                    charge.unlink()
        except OSError as error:
            raise StorageError(f"cannot use the folder {folder}: {error.strerror}") from None
        self.sweep()

    def find(self, sha256: str) -> StoredFile | None:
        """Return a file that has not expired, or None; any text may be asked for."""
        if not _DIGEST.fullmatch(sha256):
            return None
        try:
            found = (self._files / sha256).stat()
        except FileNotFoundError:
            return None
        expires = found.st_mtime + self.limits.keep_s
        if expires <= time.time():
            return None
        return StoredFile(sha256=sha256, size_bytes=found.st_size, stored=found.st_mtime, expires=expires)

    def path(self, file: StoredFile) -> pathlib.Path:
        """Return where the content of a found file lies."""
        return self._files / file.sha256

    def sweep(self) -> int:
        """Delete what has expired; returns how many files that were."""
        deleted = 0
        oldest = time.time() - self.limits.keep_s
        for charge in self._parties.glob("*/*"):
            with self._renaming:
                if not (charged := self._files / charge.name).exists():
                    charge.unlink()
                elif min(charged.stat().st_mtime, charge.stat().st_mtime) <= oldest:
                    charge.unlink()
                    self._quota_of(charge.parent.name).count(size_bytes=-charged.stat().st_size, files=-1)
        for path in self._stored():
            # A new upload of the same bytes may renew the file until the moment when it is deleted.
            with self._renaming:
                found = path.stat()
                if found.st_mtime <= oldest:
                    path.unlink()
                    self.quota.count(size_bytes=-found.st_size, files=-1)
                    deleted += 1
        return deleted

    def receive(self, party: str | None = None) -> Upload:
        """Begin to store a file, which is charged to a party where one is named."""
        return Upload(
            [self.quota] if party is None else [self.quota, self._quota_of(party)],
            self._incoming / secrets.token_hex(16),
            lambda incoming, sha256: self._keep(incoming, sha256, party),
            self.limits.max_file_bytes,
        )

    def _quota_of(self, party: str) -> Quota:
        limits = self.limits
        quota = Quota(limits.max_party_bytes, limits.max_party_files, what=f"the quota of {party}")
        return self._party_quotas.setdefault(party, quota)

    def _stored(self) -> list[pathlib.Path]:
        return [path for path in self._files.iterdir() if _DIGEST.fullmatch(path.name)]

    def _keep(self, incoming: pathlib.Path, sha256: str, party: str | None) -> StoredFile:
        target = self._files / sha256
        with self._renaming:
            # The same bytes are counted already; the new file only renews their time.
            known_bytes = target.stat().st_size if target.exists() else None
            charged = False
            if party is not None:
                charge = self._parties / party / sha256
                charged = known_bytes is not None and charge.exists()
                charge.parent.mkdir(mode=0o700, exist_ok=True)
                charge.touch(mode=0o600)
            incoming.replace(target)
            stored = target.stat()
            if known_bytes is not None:
                self.quota.count(size_bytes=-known_bytes, files=-1)
            if party is not None and charged:
                self._quota_of(party).count(size_bytes=-stored.st_size, files=-1)
            _sync_folder(self._files)
        return StoredFile(
            sha256=sha256,
            size_bytes=stored.st_size,
            stored=stored.st_mtime,
            expires=stored.st_mtime + self.limits.keep_s,
        )


class _Keep(Protocol):
    def __call__(self, incoming: pathlib.Path, sha256: str, /) -> StoredFile: ...


class Upload:
    """One file on its way in; a context manager that leaves nothing behind unless `finish` was reached."""

    def __init__(self, quotas: Sequence[Quota], path: pathlib.Path, keep: _Keep, max_bytes: int) -> None:
        self._quotas, self._path, self._keep, self._max_bytes = quotas, path, keep, max_bytes
        self._digest = hashlib.sha256()
        self._size_bytes = 0
        self._descriptor = -1
        self._kept = False

    def __enter__(self) -> Self:
        self._reserve(size_bytes=0, files=1)
        try:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._count(size_bytes=0, files=-1)
            raise _cannot_write(error) from None
        return self

    def __exit__(self, *_exception: object) -> None:
        os.close(self._descriptor)
        if not self._kept:
            self._path.unlink(missing_ok=True)
            self._count(size_bytes=-self._size_bytes, files=-1)

    def write(self, chunk: bytes) -> None:
        """Take the next bytes. Raises FileTooLargeError, QuotaExceededError or StorageError."""
        if self._size_bytes + len(chunk) > self._max_bytes:
            raise FileTooLargeError(f"a file may have {self._max_bytes} bytes")
        self._reserve(size_bytes=len(chunk), files=0)
        self._size_bytes += len(chunk)
        self._digest.update(chunk)
        view = memoryview(chunk)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            raise _cannot_write(error) from None

    def finish(self) -> StoredFile:
        """Make the file safe on disk and return what it is. Raises StorageError."""
        try:
            os.fsync(self._descriptor)
            stored = self._keep(self._path, self._digest.hexdigest())
            self._kept = True
        except OSError as error:
            raise _cannot_write(error) from None
        return stored

    def _reserve(self, *, size_bytes: int, files: int) -> None:
        for number, quota in enumerate(self._quotas):
            try:
                quota.reserve(size_bytes=size_bytes, files=files)
            except QuotaExceededError:
                self._count(size_bytes=-size_bytes, files=-files, quotas=self._quotas[:number])
                raise

    def _count(self, *, size_bytes: int, files: int, quotas: Sequence[Quota] | None = None) -> None:
        for quota in self._quotas if quotas is None else quotas:
            quota.count(size_bytes=size_bytes, files=files)


def _cannot_write(error: OSError) -> StorageError:
    return StorageError(f"the repository cannot write: {error.strerror}")


def _sync_folder(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
