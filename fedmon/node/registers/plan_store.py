"""The bytes of training plans, one file each, named by their digest."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from pathlib import Path

from fedmon.common.errors import StorageError

_DIGEST = re.compile(r"[0-9a-f]{64}")
_STAGED = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{16}")


class PlanStore:
    """A folder of plan files; every method is safe from any thread.

    Names come from digests that we computed or checked, never from outside, so nothing can be written elsewhere.
    """

    def __init__(self, folder: Path) -> None:
        """Make the folder when it is missing, readable by its owner only. Raises StorageError."""
        self.folder = folder.absolute()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make the plan folder {self.folder}: {error.strerror}") from error

    def write(self, source: bytes, *, durably: bool = True) -> str:
        """Write bytes whole or not at all, and return their SHA-256.

        ``durably`` has them on the disk, safe from a power cut, before this returns. Raises StorageError.
        """
        sha256 = hashlib.sha256(source).hexdigest()
        path = self.folder / sha256
        staged = self.folder / f".{sha256}.{secrets.token_hex(8)}"
        try:
            if not _holds(path, source):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(staged, flags, 0o600), "wb") as file:
                    file.write(source)
                    file.flush()
                    if durably:
                        os.fsync(file.fileno())
                staged.replace(path)
            elif durably:
                _sync(path, os.O_RDONLY)
            if durably:
                _sync(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            with contextlib.suppress(OSError):
                staged.unlink()
            raise StorageError(f"cannot write the plan file {path}: {error.strerror}") from error
        return sha256

    def read(self, sha256: str) -> bytes:
        """Return the bytes with this digest, computed anew. Raises StorageError when they are missing or altered."""
        path = self._path(sha256)
        try:
            source = _content(path)
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
        path = self._path(sha256)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot remove the plan file {path}: {error.strerror}") from error

    def clear_staged(self) -> None:
        """Remove what a crash left half-written. Raises StorageError."""
        try:
            for path in self.folder.iterdir():
                if _STAGED.fullmatch(path.name):
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot tidy the plan folder {self.folder}: {error.strerror}") from error

    def _path(self, sha256: str) -> Path:
        if not _DIGEST.fullmatch(sha256):
            raise ValueError(f"{sha256!r} is not a SHA-256")
        return self.folder / sha256


def _holds(path: Path, source: bytes) -> bool:
    try:
        return _content(path) == source
    except FileNotFoundError:
        return False


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _content(path: Path) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        return file.read()
