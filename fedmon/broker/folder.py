"""The broker's folder: its users and files, one editor at a time, and the broker that runs in it."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import pathlib
import signal
import tempfile
from collections.abc import Iterator

import platformdirs

from fedmon.common.errors import FolderInUseError, StorageError

_RUNNING = "running.pid"
_EDITING = "users.lock"


class Reload(enum.Enum):
    """What came of asking a running broker to read its users again."""

    DONE = "done"
    NOT_RUNNING = "not running"
    RESTART_NEEDED = "restart needed"


def default_folder() -> pathlib.Path:
    """Return where a broker keeps its users and data by default."""
    return pathlib.Path(platformdirs.user_data_dir("fedmon", appauthor=False)) / "broker"


class BrokerFolder:
    """One folder, private to its user, that holds a broker's users, access lists, certificates and data."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def make(self) -> None:
        """Make the folder if it does not exist. Raises StorageError."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot make the folder {self.path}: {error.strerror}; choose another --data-dir"
            ) from None

    @contextlib.contextmanager
    def running(self, *, has_users: bool) -> Iterator[None]:
        """Hold the folder for the broker that runs in it. Raises FolderInUseError."""
        with self._opened(_RUNNING) as descriptor:
            if not _try_lock(descriptor):
                pid, _ = _holder(descriptor)
                raise FolderInUseError(
                    f"a broker with process id {pid or 'unknown'} runs in {self.path}; stop it, or choose another "
                    f"--data-dir"
                )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d %s\n" % (os.getpid(), b"users" if has_users else b"open"), 0)
            yield

    def reload_running(self) -> Reload:
        """Ask the broker that runs in this folder, if any, to read its users again."""
        if not (self.path / _RUNNING).exists():
            return Reload.NOT_RUNNING
        with self._opened(_RUNNING) as descriptor:
            if _try_lock(descriptor):
                return Reload.NOT_RUNNING
            pid, has_users = _holder(descriptor)
            if pid is None or not has_users:
                return Reload.RESTART_NEEDED
            # The lock is held, so the process that wrote its id is alive.
            os.kill(pid, signal.SIGHUP)
            return Reload.DONE

    def replace(self, name: str, text: str) -> None:
        """Replace a file whole or not at all, readable by its owner only. Raises StorageError."""
        target = self.path / name
        try:
            target.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                    stream.write(text)
                    stream.flush()
                    os.fsync(stream.fileno())
                pathlib.Path(temporary).replace(target)
            except BaseException:
                pathlib.Path(temporary).unlink()
                raise
        except OSError as error:
            raise StorageError(f"cannot write {target}: {error.strerror}") from None

    def entries(self, name: str) -> dict[str, str]:
        """Return the hash of each name in a file of lines ``name:hash``, which may be missing. Raises StorageError."""
        path = self.path / name
        entries = {}
        try:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                party, _, hashed = line.partition(":")
                if party and hashed:
                    entries[party] = hashed
                elif line:
                    raise StorageError(f"line {number} of {path} is not <name>:<hash>; correct or delete it")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"cannot read {path}: {error}") from None
        return entries

    @contextlib.contextmanager
    def edited_entries(self, name: str) -> Iterator[dict[str, str]]:
        """Yield the entries of a file for one editor of the folder at a time, and write them if they change.

        A folder that does not exist has no entries. Raises StorageError.
        """
        if not self.path.is_dir():
            yield {}
            return
        with self._opened(_EDITING) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            before = self.entries(name)
            entries = dict(before)
            yield entries
            if entries != before:
                self.replace(name, "".join(f"{party}:{hashed}\n" for party, hashed in sorted(entries.items())))

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        try:
            descriptor = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StorageError(f"cannot open {self.path / name}: {error.strerror}") from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _holder(descriptor: int) -> tuple[int | None, bool]:
    pid, _, kind = os.pread(descriptor, 32, 0).strip().partition(b" ")
    return int(pid) if pid.isdigit() else None, kind == b"users"


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
