"""Files that exactly one of many hosts makes, and locks that end with their holder, on a folder that all share."""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import os
from pathlib import Path

from fedmon.common.errors import StorageError
from fedmon.node.job.layout import FILE_MODE

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def write_once(path: Path, content: bytes) -> bool:
    """Make a file, whole at once; False when it is there already, whoever made it. Raises StorageError.

    A link is made or refused in one step also by a file server, where creating and then writing is two.
    """
    staged = path.with_name(f".{path.name[:80]}.{os.urandom(8).hex()}")
    try:
        _write(staged, content)
        try:
            os.link(staged, path)
        except FileExistsError:
            # An answer of a file server can get lost: then the link is made, and refused when it is asked for again.
            return staged.stat().st_nlink > 1
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _create(path, content)
        return True
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            staged.unlink()


def _create(path: Path, content: bytes) -> bool:
    """Make a file where there are no links; a reader may find it before it is whole."""
    try:
        _write(path, content)
    except FileExistsError:
        return False
    return True


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


class Held(enum.Enum):
    """What a lock says of its holder; where a file system locks for one machine alone, "free" says little."""

    YES = "held"
    NO = "free"
    UNKNOWN = "no locks here"


class Lock:
    """The lock of one file: the kernel lets it go when its holder ends in any way. Not inherited by programs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def take(self) -> Held:
        """Take the lock unless another holds it; NO says that it is ours now. Raises StorageError."""
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        except OSError as error:
            raise StorageError(f"cannot use {self.path}: {error.strerror}") from error
        found = _tried(self._fd, fcntl.LOCK_EX)
        if found is Held.YES:
            self.release()
        return found

    def look(self) -> Held:
        """Tell whether somebody holds the lock."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return Held.UNKNOWN
        try:
            return _tried(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Let the lock go; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _tried(descriptor: int, kind: int) -> Held:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return Held.YES
    except OSError:
        return Held.UNKNOWN
    return Held.NO
