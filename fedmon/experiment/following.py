"""A run that another process has: its journal is read and replayed, and nothing is locked or written."""

from __future__ import annotations

import ctypes
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from fedmon.common.errors import FedmonError, NotFoundError, StorageError
from fedmon.experiment.document.files import read
from fedmon.experiment.events import AnyEvent
from fedmon.experiment.journal import NAME, holder_of
from fedmon.experiment.situation import State
from fedmon.experiment.step_safely import step_safely

# Source: inotify(7): content changed, attributes changed, a writer closed it, it was moved or deleted.
_MODIFIED, _ATTRIBUTES, _CLOSED, _DELETED, _MOVED = 0x2, 0x4, 0x8, 0x400, 0x800
_EVENTS_BYTES = 65_536


class FileChanges:
    """Tells when a file that is there changes; for one thread. Also the death of a process that writes it is a change.

    Without inotify, and of files that other machines write, nothing is heard of a change: the deadline of a wait is
    how old what one knows may become.
    """

    def __init__(self, path: Path) -> None:
        self._file = _watching(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the file has changed since the last wait; false where the time was over first."""
        if self._file < 0:
            threading.Event().wait(timeout_s)
            return False
        ready, _, _ = select.select([self._file], [], [], timeout_s)
        if ready:
            os.read(self._file, _EVENTS_BYTES)
        return bool(ready)

    def close(self) -> None:
        """Watch no longer."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _watching(path: Path) -> int:
    """Return a descriptor that can be read when the file changes; -1 where the system has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        begin, watch = libc.inotify_init1, libc.inotify_add_watch
    except AttributeError:
        return -1
    file = int(begin(os.O_CLOEXEC | os.O_NONBLOCK))
    mask = _MODIFIED | _ATTRIBUTES | _CLOSED | _DELETED | _MOVED
    if file >= 0 and watch(file, os.fsencode(path), ctypes.c_uint32(mask)) < 0:
        os.close(file)
        return -1
    return file


DOCUMENT = "experiment.toml"
"""What a run that was started from a document keeps of it: for the names of its resources."""
_DECODER = msgspec.json.Decoder(AnyEvent)


class Follower:
    """Follows a run by its journal; for one thread. Raises NotFoundError for a folder without one.

    ``state`` is how things stand as far as it was read, ``until`` the moment of the last event, ``began`` of the first.
    ``on_event`` is told each event, once, unless the journal had to be read again from its start.
    """

    def __init__(self, run_dir: str | Path, *, on_event: Callable[[AnyEvent], object] = lambda _event: None) -> None:
        self._on_event = on_event
        self.folder = Path(run_dir).expanduser().absolute()
        self.path = self.folder / NAME
        if not self.path.is_file():
            raise NotFoundError(f"there is no run in {self.folder}: it has no {NAME}; {_advice(self.folder)}")
        self._changes = FileChanges(self.path)
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._changes.close()

    @property
    def process(self) -> int | None:
        """The process that has the run; null where none has it any more, or nobody can know."""
        return holder_of(self.path)

    def names(self) -> dict[int, str]:
        """Return what the document of the run calls its resources; nothing where it has none."""
        try:
            return {guid: name for name, guid in read(self.folder / DOCUMENT).names.items()}
        except FedmonError:
            return {}

    def look(self) -> bool:
        """Read what is new, and tell whether there was anything. Raises StorageError naming the line that is no event.

        A line that is still being written waits for the next look.
        """
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self._offset:  # what could not be written whole was taken out again
                    self._begin()
                file.seek(self._offset)
                before = self._offset
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._take(line)
        except OSError as error:
            raise StorageError(f"cannot read the journal {self.path}: {error.strerror}") from error
        return self._offset > before

    def wait(self, timeout_s: float) -> bool:
        """Wait until the journal changes, or its process ends; false where the time was over first."""
        return self._changes.wait(timeout_s)

    def _begin(self) -> None:
        self.state, self.began, self.until = State(), 0.0, 0.0
        self._offset = self._lines = 0

    def _take(self, line: bytes) -> None:
        self._lines += 1
        try:
            event = _DECODER.decode(line)
        except msgspec.DecodeError as error:
            raise StorageError(f"line {self._lines} of {self.path} is no event of an experiment: {error}") from error
        self.state, _ = step_safely(self.state, event)
        self._on_event(event)
        self.began = self.began or event.t
        self.until = max(self.until, event.t)
        self._offset += len(line)


def _advice(folder: Path) -> str:
    """Say where runs are, for somebody who named the folder of an experiment, or that of all."""
    try:
        below = [path.parent for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/{NAME}")]
    except OSError:
        below = []
    if not below:
        return "a run's folder is EXPERIMENT/RUN in that of all"
    latest = max(below, key=lambda path: path.name)
    return f"runs are below it, such as {latest}"
