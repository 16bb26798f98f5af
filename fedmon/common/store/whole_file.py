"""Files that appear whole or not at all.

What is written has no name until it is complete: a process that is killed leaves nothing, and the old file stays. Where
a file system has no files without names, a hidden one is used, and what a killed process left of these is removed by
the next that replaces the same file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from fedmon.common.errors import InvalidInputError, StorageError

_NO_NAMELESS = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})
_PART = ".part"


class TargetExistsError(StorageError):
    """Somebody else made the file in the meantime."""


def target_of(path: Path) -> Path:
    """Return where a path leads. Raises InvalidInputError for what no file can take the place of."""
    try:
        target = path.expanduser().resolve()
        found = target.stat() if target.exists() else None
    except (OSError, RuntimeError) as error:
        raise InvalidInputError(f"cannot write {path}: {error}") from error
    if not target.parent.is_dir():
        raise InvalidInputError(f"cannot write {path}: there is no folder {target.parent}; make it first")
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise InvalidInputError(f"cannot write {path}: it is a folder; name a file in it")
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise InvalidInputError(f"cannot write {path}: it is no regular file; name another, or - for stdout")
    return target


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an error of the system into StorageError that names the path."""
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        why = error.strerror or str(error)
        advice = "; make space and try again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise StorageError(f"cannot write {path}: {why}{advice}") from error


@contextlib.contextmanager
def replacing(path: Path, *, only_new: bool = False) -> Iterator[Path]:
    """Give a path to write to; what lies there takes the place of ``path`` when the block ends well.

    Otherwise ``path`` stays as it was, and nothing else is left. A file that is replaced hands on its rights. Raises
    InvalidInputError for what cannot be replaced, StorageError, and with ``only_new`` TargetExistsError.
    """
    target = target_of(path)
    with storage_errors(path):
        _remove_abandoned(target)
        staged = _Staged(target)
        try:
            with contextlib.suppress(FileNotFoundError):
                staged.set_mode(stat.S_IMODE(target.stat().st_mode))
            yield staged.path
            staged.force_content()
            staged.publish(only_new=only_new)
            staged.force_name()
        finally:
            staged.close()


def write_whole(path: Path, content: bytes, *, mode: int | None = None, folder_mode: int = 0o777) -> None:
    """Write a file, whole or not at all, into a folder that is made where there is none.

    What lies there is replaced, a link itself and not what it leads to. ``mode`` is that of the file, null as that of
    every new one. Made for folders of many files: it neither looks for what killed processes left nor forces anything
    to the disk, so that after a loss of power the file may be missing. Raises StorageError.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=folder_mode)
        staged = _Staged(path.absolute())
        try:
            if mode is not None:
                staged.set_mode(mode)
            staged.path.write_bytes(content)
            staged.publish(only_new=False)
        finally:
            staged.close()


class _Staged:
    """A file that is being written for a target."""

    def __init__(self, target: Path) -> None:
        """Raise OSError."""
        self.target = target
        self._name: Path | None = None
        try:
            self._fd = os.open(target.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
            self.path = Path(f"/proc/self/fd/{self._fd}")
            if not self.path.exists():
                os.close(self._fd)
                raise OSError(errno.EOPNOTSUPP, "there is no /proc")
        except OSError as error:
            if error.errno not in _NO_NAMELESS:
                raise
            self.path = self._name = self._part()
            self._fd = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # says that its writer lives; see _remove_abandoned

    def set_mode(self, mode: int) -> None:
        """Say who may read and write it. Raises OSError."""
        os.fchmod(self._fd, mode)

    def force_content(self) -> None:
        """Have what was written on the disk. Raises OSError."""
        os.fsync(self._fd)

    def force_name(self) -> None:
        """Have the name of what was published on the disk. Raises OSError."""
        folder = os.open(self.target.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def publish(self, *, only_new: bool) -> None:
        """Put what was written in the target's place. Raises OSError and TargetExistsError."""
        try:
            if only_new:
                self._link(self.target)
            else:
                if self._name is None:
                    name = self._part()
                    self._link(name)
                    self._name = name
                self._name.replace(self.target)
                self._name = None
        except FileExistsError as error:
            raise TargetExistsError(f"{self.target} was made by somebody else in the meantime") from error

    def close(self) -> None:
        """Let go of the file; what was not published is gone."""
        if self._name is not None:
            self._name.unlink(missing_ok=True)
            self._name = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _link(self, name: Path) -> None:
        # Naming a folder makes Python follow the link in /proc to the file itself.
        folder = os.open(self.target.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.link(self.path, name.name, dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)

    def _part(self) -> Path:
        return self.target.with_name(f".{self.target.name[:200]}.{secrets.token_hex(6)}{_PART}")


def _remove_abandoned(target: Path) -> None:
    """Remove what killed writers of the same file left; that of a living one is locked."""
    prefix = f".{target.name[:200]}."
    with contextlib.suppress(OSError):
        for entry in os.scandir(target.parent):
            if not (entry.name.startswith(prefix) and entry.name.endswith(_PART)):
                continue
            with contextlib.suppress(OSError), open(entry.path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                Path(entry.path).unlink()
