"""The node folder: its files, their privacy, its lock, and the number of boots in it."""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedmon.common.clock import Deadline, utc_now
from fedmon.common.errors import ConflictError, FolderInUseError, NotFoundError, StorageError
from fedmon.common.files import LOCK_NAME, LockFile, at_home, refuse_others, storage_errors, write_whole
from fedmon.common.ids import CLIENT_FILE

logger = logging.getLogger(__name__)

DAEMON = "daemon"
"""The purpose for which a running node holds its folder."""
FOLDER_MODE = 0o700
FILE_MODE = 0o600
MAX_BOOT_DIGITS = 15
_RETRY_S = 0.02
"""How often `NodeFolder.wait_free` looks: a lock can be waited for, but not without taking it."""


class LockHolder(NamedTuple):
    """The process that holds a folder, and its purpose, such as ``daemon`` or ``plan approve``."""

    pid: int
    purpose: str


class NodeFolder:
    """The paths of one node folder, its privacy, and its lock."""

    def __init__(self, path: Path) -> None:
        self.path = at_home(path).resolve()
        self.settings_file = self.path / "node.toml"
        self.database_file = self.path / "state.sqlite"
        self.audit_file = self.path / "audit.jsonl"
        self.recording_file = self.path / "recording.sqlite"
        self.plans_dir = self.path / "plans"
        self.runs_dir = self.path / "runs"
        self.lock_file = self.path / LOCK_NAME
        self.boot_file = self.path / "boot"

    @classmethod
    def create(cls, path: Path) -> NodeFolder:
        """Make a folder for a new node, readable by its owner only.

        Raises ConflictError when a node lives there already, and StorageError when other users can read an existing
        folder, or when it cannot be made.
        """
        folder = cls(path)
        with storage_errors(folder.path):
            folder.path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        if folder.settings_file.exists():
            raise ConflictError(
                f"a node lives in {folder.path} already: choose another folder with --dir, or edit its node.toml"
            )
        folder.check_private()
        return folder

    @classmethod
    def open(cls, path: Path) -> NodeFolder:
        """Return the folder of a node that was made before.

        Raises NotFoundError when there is none, and StorageError when other users can read it or its files.
        """
        folder = cls(path)
        with storage_errors(folder.path, "look into"):
            is_there = folder.settings_file.exists()
        if not is_there:
            raise NotFoundError(
                f"no node in {folder.path}: make one with 'fedmon node init --broker URL --dir {folder.path}', "
                "or name its folder with --dir or FEDMON_NODE_DIR"
            )
        folder.check_private()
        return folder

    def check_private(self) -> None:
        """Raise StorageError when the folder or a file of ours in it is open to other users."""
        _refuse_wide(self.path, FOLDER_MODE)
        files = (self.settings_file, self.database_file, self.audit_file, self.recording_file, self.lock_file)
        for path in (*files, self.path / CLIENT_FILE):
            _refuse_wide(path, FILE_MODE)
        _refuse_wide(self.plans_dir, FOLDER_MODE)
        _refuse_wide(self.runs_dir, FOLDER_MODE)

    def write_private(self, path: Path, content: bytes) -> None:
        """Replace a file of the folder in one step: a crash leaves the old one or the new one, never half of it.

        Raises StorageError.
        """
        write_whole(path, content, mode=FILE_MODE, durable=True)

    @contextlib.contextmanager
    def hold(self, purpose: str, *, timeout_s: float = 0.5) -> Iterator[None]:
        """Keep every other process out of the folder's state until the end of the block.

        The lock belongs to the open file, so it is gone when this process is, however it ends. Raises FolderInUseError
        naming the holder when the lock is not free within ``timeout_s``, and StorageError for a user, root too, whose
        files the owner could not read.
        """
        owner = self.path.stat().st_uid
        if owner != os.geteuid():
            raise StorageError(
                f"{self.path} belongs to user {user_name(owner)}: run as that user, with sudo -u {user_name(owner)}"
            )
        lock = LockFile(self.lock_file)
        if not lock.take(f"{os.getpid()} {purpose}", timeout_s=timeout_s):
            raise self.in_use()
        try:
            yield
        finally:
            lock.release()

    def holder(self) -> LockHolder | None:
        """Return the process that holds the folder now, or None."""
        text = LockFile(self.lock_file).holder()
        if text is None:
            return None
        pid, _, purpose = text.partition(" ")
        return LockHolder(int(pid) if pid.isdigit() else 0, purpose or "a process that just started")

    def wait_free(self, timeout_s: float) -> bool:
        """Wait until no process holds the folder; return False after ``timeout_s``."""
        deadline, retry = Deadline(timeout_s), threading.Event()
        while self.holder() is not None:
            if deadline.passed():
                return False
            retry.wait(min(_RETRY_S, deadline.left_s()))
        return True

    def in_use(self) -> FolderInUseError:
        """Return the error that names the holder of the lock."""
        holder = self.holder()
        if holder is not None and holder.purpose == DAEMON:
            return FolderInUseError(
                f"the node of {self.path} is already running, pid {holder.pid}; if it does not answer, look at its log"
            )
        who = "another process" if holder is None else f"{holder.purpose} (pid {holder.pid})"
        return FolderInUseError(f"{self.path} is in use by {who}: wait until it is done, then try again")


def read_boot(file: Path) -> int:
    """Return the number of the last boot; the clock's seconds before the first, and if the file is damaged.

    So no boot of an earlier folder of the same node is used again. Raises StorageError.
    """
    with storage_errors(file, "read"), contextlib.suppress(FileNotFoundError):
        text = file.read_bytes()[:40].strip()
        if text.isdigit() and len(text) <= MAX_BOOT_DIGITS:
            return int(text)
        logger.error("%s is damaged: boots are counted from the clock", file)
    return int(utc_now().timestamp())


def user_name(uid: int) -> str:
    """Return the name of a user; "#1000" for one that the system does not know."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def _refuse_wide(path: Path, mode: int) -> None:
    if path.is_symlink():
        raise StorageError(f"{path} is a symbolic link: put the file itself there")
    with contextlib.suppress(FileNotFoundError):
        refuse_others(path, mode)
