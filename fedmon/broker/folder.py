"""The broker's folder: its users and files, one editor at a time, and the broker that runs in it."""

from __future__ import annotations

import contextlib
import enum
import os
import pathlib
import shlex
import signal
import socket
from collections.abc import Iterator

import platformdirs

from fedmon.common.errors import FolderInUseError, StorageError
from fedmon.common.files import LockFile, storage_errors, write_whole

_EDIT_S = 60.0


class Reload(enum.Enum):
    """The result of asking a running broker to read its users again."""

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

    def command(self, words: str) -> str:
        """Return the command line of `fedmon broker` with these words, for this folder."""
        where = "" if self.path == default_folder() else f" --data-dir {shlex.quote(str(self.path))}"
        return f"fedmon broker {words}{where}"

    def make(self) -> None:
        """Make the folder if it does not exist. Raises StorageError."""
        with storage_errors(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextlib.contextmanager
    def running(self, *, has_users: bool) -> Iterator[None]:
        """Hold the folder for the broker that runs in it. Raises FolderInUseError."""
        lock = self._broker_lock()
        if not lock.take(f"{os.getpid()} {'users' if has_users else 'open'} {socket.gethostname()}"):
            pid = (lock.holder() or "").partition(" ")[0]
            raise FolderInUseError(
                f"a broker with process id {pid or 'unknown'} runs in {self.path}; stop it, or choose another "
                f"--data-dir"
            )
        try:
            yield
        finally:
            lock.release()

    def reload_running(self) -> Reload:
        """Ask the broker that runs in this folder, if any, to read its users again."""
        holder = self._broker_lock().holder()
        if holder is None:
            return Reload.NOT_RUNNING
        pid, kind, host, *_ = f"{holder}   ".split(" ")  # an older broker tells no host, a starting one nothing
        if kind != "users":
            return Reload.RESTART_NEEDED
        # On another machine that shares the folder, and in a container, its process has another number.
        if host in ("", socket.gethostname()):
            with contextlib.suppress(OSError):  # it may have ended meanwhile
                os.kill(int(pid), signal.SIGHUP)
                return Reload.DONE
        return Reload.NOT_RUNNING

    def replace(self, name: str, text: str) -> None:
        """Replace a file whole or not at all, readable by its owner only. Raises StorageError."""
        write_whole(self.path / name, text.encode(), mode=0o600, folder_mode=0o700, durable=True)

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
        lock = LockFile(self.path / "users.lock")
        if not lock.take(timeout_s=_EDIT_S):
            raise StorageError(f"another process has been changing the users in {self.path} for {_EDIT_S:g} s")
        try:
            before = self.entries(name)
            entries = dict(before)
            yield entries
            if entries != before:
                self.replace(name, "".join(f"{party}:{hashed}\n" for party, hashed in sorted(entries.items())))
        finally:
            lock.release()

    def _broker_lock(self) -> LockFile:
        return LockFile(self.path / "running.pid")
