"""Files and folders of ours: written whole or not at all, locked, and private.

A file that is being written has no name until it is complete: a process that is killed leaves nothing, and the old file
stays. On a file system without nameless files the new one is hidden, and a killed process leaves it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from fedmon.common.clock import Deadline
from fedmon.common.errors import FolderInUseError, InvalidInputError, StorageError

LOCK_NAME = "lock"
_OTHERS = 0o077
_LOCK_RETRY_S, _LOOK_S = 0.02, 5
"""How often a held lock is tried again, as flock has no deadline; and the longest look of `LockFile.holder`."""


class TargetExistsError(StorageError):
    """Another process made the file in the meantime."""


def at_home(path: Path | str) -> Path:
    """Return a path with the home of a user in place of ``~``. Raises InvalidInputError for an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def target_of(path: Path) -> Path:
    """Return where a path leads. Raises InvalidInputError for targets that a file cannot replace."""
    try:
        target = path.expanduser().resolve()
        found = _stat(target)
    except (OSError, RuntimeError) as error:
        raise InvalidInputError(f"cannot write {path}: {error}") from error
    if not target.parent.is_dir():
        raise InvalidInputError(f"cannot write {path}: folder {target.parent} not found; make it first")
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise InvalidInputError(f"cannot write {path}: it is a folder; name a file in it")
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise InvalidInputError(f"cannot write {path}: not a regular file; name another, or - for stdout")
    return target


def _stat(path: Path) -> os.stat_result | None:
    """Return the status of a file; None if it is missing, even if it was there a moment ago."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return path.stat()
    return None


@contextlib.contextmanager
def storage_errors(path: Path, does: str = "write") -> Iterator[None]:
    """Turn an error of the system into StorageError that names the path and the attempt; ``does`` is its verb."""
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        why = error.strerror or str(error)
        advice = "; make space and try again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise StorageError(f"cannot {does} {path}: {why}{advice}") from error


@contextlib.contextmanager
def replacing(path: Path, *, only_new: bool = False, folder_mode: int | None = None) -> Iterator[Path]:
    """Give a path to write to; its file replaces ``path`` when the block succeeds.

    Otherwise ``path`` stays as it was, and nothing else is left but its folder, which is made if it has a mode. A file
    that is replaced hands on its rights. Raises InvalidInputError for targets that cannot be replaced, StorageError,
    and with ``only_new`` TargetExistsError.
    """
    with storage_errors(path):
        if folder_mode is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=folder_mode)
        target = target_of(path)
        old = _stat(target)
        mode = None if old is None else stat.S_IMODE(old.st_mode)
        with _staged(target, mode=mode, durable=True, only_new=only_new) as part:
            yield part


def write_whole(
    path: Path,
    content: bytes,
    *,
    mode: int | None = None,
    folder_mode: int = 0o777,
    durable: bool = False,
    only_new: bool = False,
) -> None:
    """Write a file, whole or not at all; its folder is made if there is none.

    An existing file is replaced, a link itself and not its target; with ``only_new`` it raises TargetExistsError.
    ``mode`` is that of the file (default: that of every new file). Only a ``durable`` file outlives a loss of power.
    Raises StorageError.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=folder_mode)
        with _staged(path.absolute(), mode=mode, durable=durable, only_new=only_new) as part:
            part.write_bytes(content)


@contextlib.contextmanager
def _staged(target: Path, *, mode: int | None, durable: bool, only_new: bool) -> Iterator[Path]:
    """Give a file that takes the target's place when the block succeeds. Raises OSError and TargetExistsError."""
    name = os.fsencode(target.name)[:200].decode(errors="ignore")  # names are limited in bytes
    hidden = target.with_name(f".{name}.{os.urandom(6).hex()}.part")
    descriptor, part = _part(target.parent, hidden, 0o666 if mode is None else mode)
    try:
        if mode is not None:  # whatever the umask takes away
            os.fchmod(descriptor, mode)
        yield part
        if durable:
            os.fsync(descriptor)
        if only_new:
            try:
                _link(part, target)
            except FileExistsError as error:
                raise TargetExistsError(f"{target} was made by another process in the meantime") from error
        else:
            if part != hidden:
                _link(part, hidden)
            hidden.replace(target)
        if durable:
            sync(target.parent)
    finally:
        with contextlib.suppress(OSError):  # mostly renamed or never made; the outcome of the block counts
            hidden.unlink()
        os.close(descriptor)


def _part(folder: Path, hidden: Path, mode: int) -> tuple[int, Path]:
    """Open a file without a name, which Linux alone has, and only with /proc; else one with this name."""
    flags = os.O_RDWR | os.O_CLOEXEC
    with contextlib.suppress(OSError):  # elsewhere a folder cannot be opened to write
        descriptor = os.open(folder, getattr(os, "O_TMPFILE", os.O_DIRECTORY) | flags, mode)
        if (part := Path(f"/proc/self/fd/{descriptor}")).exists():
            return descriptor, part
        os.close(descriptor)
    return os.open(hidden, flags | os.O_CREAT | os.O_EXCL, mode), hidden


def _link(part: Path, name: Path) -> None:
    # Naming a folder makes Python follow the link in /proc to the file itself.
    folder = os.open(name.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.link(part, name.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def make_private(path: Path) -> Path:
    """Give a file mode 0600, and return its path; it is made if there is none.

    Raises StorageError, also for a symbolic link, which could lead elsewhere.
    """
    with storage_errors(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        path.chmod(0o600)
    return path


def refuse_others(path: Path, mode: int, otherwise: str = "") -> None:
    """Raise StorageError if a file or folder, which should have this mode, is open to other users; or OSError."""
    found = stat.S_IMODE(path.stat().st_mode)
    if found & _OTHERS:
        raise StorageError(f"{path} is open to other users (mode {found:04o}): chmod {mode:o} {path}{otherwise}")


def sync(path: Path) -> None:
    """Have a file or folder on the disk, safe from a power cut. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LockFile:
    """An exclusive lock on a file that holds a text about its holder; safe from any thread.

    The kernel frees the lock when its holder ends in any way. ``descriptor`` is -1 without the lock; another process
    that gets it holds the lock, too. Raises StorageError where a file system has no locks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = -1

    def take(self, text: str = "", *, timeout_s: float = 0.0) -> bool:
        """Take the lock, and write a ``text`` for others; return False if another holds it after ``timeout_s``."""
        with storage_errors(self.path):
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                deadline, latest, retry = Deadline(timeout_s), Deadline(timeout_s + _LOOK_S), threading.Event()
                while not _locked(fd, fcntl.LOCK_EX):
                    if latest.passed() or (deadline.passed() and not _locked(fd, fcntl.LOCK_SH)):
                        return False
                    fcntl.flock(fd, fcntl.LOCK_UN)
                    retry.wait(_LOCK_RETRY_S)
                if text:
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, f"{text}\n".encode(), 0)
                self.descriptor, fd = fd, -1
            finally:
                if fd >= 0:
                    os.close(fd)
        return True

    def hold(self) -> Self:
        """Take the lock of its folder for this process, and return it. Raises FolderInUseError, naming the holder."""
        if not self.take(str(os.getpid())):
            raise FolderInUseError(
                f"{self.path.parent} is in use by process {self.holder() or 'unknown'}: stop that one, or choose "
                "another folder"
            )
        return self

    def holder(self) -> str | None:
        """Return the text of the process that holds the lock; None if it is free."""
        with storage_errors(self.path), contextlib.suppress(FileNotFoundError):
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                return None if _locked(fd, fcntl.LOCK_SH) else os.pread(fd, 200, 0).decode(errors="replace").strip()
            finally:
                os.close(fd)
        return None

    def release(self) -> None:
        """Hold the lock here no longer; safe to call twice."""
        fd, self.descriptor = self.descriptor, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Let the lock go with its owner, so that a forgotten object does not hold it for the whole process."""
        self.release()


class Closing:
    """A context manager that calls its ``close`` at the end."""

    close: Callable[[], None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def owned_folder(path: Path) -> LockFile:
    """Make a folder with mode 0700 if there is none, and return its lock, which this process now holds.

    Raises FolderInUseError naming the holder, or StorageError naming the path and the cause.
    """
    path = at_home(path).absolute()
    with storage_errors(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_others(path, 0o700, ", or choose a folder that does not exist yet")
    return LockFile(path / LOCK_NAME).hold()


def _locked(fd: int, kind: int) -> bool:
    """Try to lock an open file. Raises OSError where a file system has no locks."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        return True
    return False
