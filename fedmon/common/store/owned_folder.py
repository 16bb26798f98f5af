"""A folder that one process owns at a time and nobody else can read."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from fedmon.common.errors import FolderInUseError, StorageError

LOCK_NAME = "lock"
_OTHERS = 0o077


class OwnedFolder:
    """Makes a folder with mode 0700 and holds its lock until ``release``, or until the process ends in any way."""

    def __init__(self, path: Path) -> None:
        """Raise FolderInUseError naming the holder, or StorageError naming the path and the cause."""
        self.path = path.expanduser().absolute()
        self._lock = -1
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = stat.S_IMODE(self.path.stat().st_mode)
            if mode & _OTHERS:
                raise StorageError(
                    f"{self.path} is open to other users (mode {mode:04o}): chmod 700 {self.path}, or choose a folder "
                    "that does not exist yet"
                )
            self._lock = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StorageError(f"cannot use folder {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            self.release()
            raise FolderInUseError(
                f"{self.path} is in use by process {holder}: stop that one, or choose another folder"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def make_private(self, name: str) -> Path:
        """Return the path of a file in the folder, made with mode 0600 when it is not there.

        Raises StorageError, also for a symbolic link, which could lead out of the folder.
        """
        path = self.path / name
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            path.chmod(0o600)
        except OSError as error:
            raise StorageError(f"cannot use {path}: {error.strerror}") from error
        return path

    def release(self) -> None:
        """Let another process own the folder; safe to call twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __del__(self) -> None:
        """Let the folder go with its owner, so that a forgotten object does not lock it for the whole process."""
        self.release()
