"""The journal of a run: every event on a line of its own, written before it takes effect."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import FolderInUseError, StorageError
from fedmon.experiment.errors import UnwritableEventError
from fedmon.experiment.events import AnyEvent

_LOCKS, _PROCESSES = Path("/proc/locks"), Path("/proc")


def holder_of(path: Path) -> int | None:
    """Return the process that holds the lock of a file; null where there is none, or nobody can know.

    Source: proc_locks(5): ``1: FLOCK  ADVISORY  WRITE 22768 fe:00:3277848 0 EOF``.
    """
    try:
        inode = str(path.stat().st_ino)
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    for words in map(str.split, lines):
        # A device's number differs from that of its files on some file systems, so the process is asked what it has.
        if "FLOCK" in words[1:2] and len(words) > 5 and words[5].rpartition(":")[2] == inode and words[4].isdigit():
            number = int(words[4])
            if _has_open(number, path):
                return number
    return None


def _has_open(process: int, path: Path) -> bool:
    try:
        with os.scandir(_PROCESSES / str(process) / "fd") as found:
            return any(_is_same(each, path) for each in found)
    except OSError:
        return False


def _is_same(found: os.DirEntry[str], path: Path) -> bool:
    try:
        return os.path.samestat(found.stat(), path.stat())
    except OSError:
        return False


NAME = "journal.jsonl"
_BLOCK_BYTES = 65_536
_FORK_S, _FORK_TICK_S = 1.0, 0.02
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(AnyEvent)


class Journal:
    """Appends events to a file that one process holds; for one thread at a time.

    What is written survives the death of the process. Raises FolderInUseError where another process or another
    controller has the run, and StorageError where the file cannot be written; what was cut off then is taken out again.
    The lock is of the process that opened it: a fork of that has the journal no longer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"cannot keep the journal {path}: {error.strerror}") from error
        try:
            _lock(self._file, path)
        except BaseException:
            os.close(self._file)
            raise
        # An experiment that everybody forgot holds its run no longer.
        _open[self._file] = weakref.ref(self)
        self._forget = weakref.finalize(self, _close, self._file)
        self._forget.atexit = False  # daemon threads may still write then, and the system closes it
        self._size = os.lseek(self._file, 0, os.SEEK_END)
        self._cut_torn_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, happened: Iterable[AnyEvent]) -> None:
        """Append events. Raises UnwritableEventError for what cannot be written down; then none of them is."""
        if self._file < 0:
            raise StorageError(
                f"the journal {self.path} is closed, or belongs to the process that this one was forked of"
            )
        text = b"".join(map(_line, happened))
        left = memoryview(text)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            with contextlib.suppress(
                OSError
            ):  # what cannot be taken out again is a cut last line, which counts as none
                os.ftruncate(self._file, self._size)
            raise StorageError(f"cannot write to the journal {self.path}: {error.strerror}") from error
        self._size += len(text)

    def _cut_torn_line(self) -> None:
        """Take out a last line that a crash cut off, so that the next one begins on its own."""
        end = self._size
        while end:
            begin = max(0, end - _BLOCK_BYTES)
            at = os.pread(self._file, end - begin, begin).rfind(b"\n")
            if at >= 0:
                end = begin + at + 1
                break
            end = begin
        if end != self._size:
            os.ftruncate(self._file, end)
            self._size = end

    def close(self) -> None:
        """Let others have the run."""
        self._file = -1
        self._forget()


_open: dict[int, weakref.ref[Journal]] = {}
"""The journals of this process, by their open files."""


def _close(file: int) -> None:
    _open.pop(file, None)
    os.close(file)


def _lock(file: int, path: Path) -> None:
    """Take the lock of a run. Raises FolderInUseError saying who has it."""
    deadline, tick = Deadline(_FORK_S), threading.Event()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if _is_open_here(os.fstat(file)):
                told = f"this process has the experiment in {path.parent} open: shut that controller down first"
                raise FolderInUseError(told) from error
            # What a process forked in the moment of its death gives up what it inherited as soon as it runs.
            if holder_of(path) is not None or deadline.passed():
                told = f"another process runs the experiment in {path.parent}: wait for its end, or stop it"
                raise FolderInUseError(told) from error
            tick.wait(_FORK_TICK_S)
        else:
            return


def _is_open_here(found: os.stat_result) -> bool:
    with contextlib.suppress(OSError):  # one was closed just now
        return any(os.path.samestat(found, os.fstat(file)) for file in list(_open))
    return False


def _close_all() -> None:
    """Give up what a fork inherited: it would keep the lock when the process that has the run is long dead."""
    for journal in [reference() for reference in list(_open.values())]:
        if journal is not None:
            journal.close()


os.register_at_fork(after_in_child=_close_all)


def _line(event: AnyEvent) -> bytes:
    try:
        return _ENCODER.encode(event) + b"\n"
    except Exception as error:
        what = type(event).__name__
        raise UnwritableEventError(f"{what} cannot be written down in the journal: {error}") from error


def read_journal(path: Path) -> Iterator[AnyEvent]:
    """Return the events of a journal; a last line that a crash cut off is none.

    Raises StorageError naming the line that is no event.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield _DECODER.decode(line)
                except msgspec.DecodeError as error:
                    raise StorageError(f"line {number} of {path} is no event of an experiment: {error}") from error
    except OSError as error:
        raise StorageError(f"cannot read the journal {path}: {error.strerror}") from error
