"""The folder of one job, as the daemon reads it: who keeps the job, what happened so far, and how it ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
from pathlib import Path

import msgspec

from fedmon.common.errors import ConflictError, StorageError
from fedmon.common.wire.runs import JobState, TracePiece
from fedmon.node.collectors.job.cgroup import members_of
from fedmon.node.collectors.job.family import Relative, descendants, relative, with_limit
from fedmon.node.job.cgroup import remove_cgroup
from fedmon.node.runs.killing import Known, end_all, send
from fedmon.node.runs.mark import LIMIT, mark_of
from fedmon.node.runs.order import (
    ENDING,
    EVENTS,
    LOCK,
    ORDER,
    PROCESSES,
    RESULT,
    STDERR,
    STDOUT,
    STOP,
    TMP,
    Ending,
    Event,
    JobOrder,
    Started,
    StopAsked,
)
from fedmon.node.runs.sandbox.cgroup import kill_in, left_folders, name_of
from fedmon.node.runs.trace import read_trace

_OPEN = 0o700

_LONGEST_REASON = 2000

FOLDER_MODE = 0o700
FILE_MODE = 0o600
ENDING_ROOM = ".ending"
"""The file that becomes ``ending.json``: its room on the disk is taken before the job starts."""
ENDING_BYTES = 65_536
_MAX_EVENTS_BYTES = 4_194_304
_MAX_FILE_BYTES = 1_048_576
_KILL_TIMEOUT_S = 10.0

_EVENT: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_ENDING = msgspec.json.Decoder(Ending)
_ORDER = msgspec.json.Decoder(JobOrder)


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """What happened from one byte of the file on; ``next_offset`` is where to go on."""

    events: list[Event]
    next_offset: int


class JobFolder:
    """The files of one job. Every method is safe from any thread; those that read raise StorageError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.result = path / RESULT

    def prepare(self, order: JobOrder) -> int:
        """Make the folder with its order, and return the descriptor of its held lock, for whoever keeps the job.

        The room for the ending is taken now, so that a full disk cannot keep it from being written later. Raises
        ConflictError when the job is kept already, was, or is over, and StorageError.
        """
        try:
            self.path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        except OSError as error:
            raise StorageError(f"cannot make the folder {self.path} of job {order.job_id}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self.ending() is not None:
                raise ConflictError(f"job {order.job_id} is over: {self.path} holds its ending")
            if self.had_keeper():
                raise ConflictError(f"job {order.job_id} was begun before, and lost what watched over it")
            room = os.open(self.path / ENDING_ROOM, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
            with contextlib.closing(os.fdopen(room, "rb+", buffering=0)):
                os.posix_fallocate(room, 0, ENDING_BYTES)
            self._write(ORDER, msgspec.json.encode(order))
        except BlockingIOError:
            os.close(lock)
            raise ConflictError(f"job {order.job_id} is kept already: the lock of {self.path} is held") from None
        except OSError as error:
            os.close(lock)
            for name in (ENDING_ROOM, f".{ORDER}", LOCK):  # a full disk needs no files of a job that does not start
                with contextlib.suppress(OSError):
                    (self.path / name).unlink()
            raise StorageError(f"cannot write into {self.path}: {error.strerror}") from error
        except BaseException:
            os.close(lock)
            raise
        return lock

    def order(self) -> JobOrder:
        """Return what the job was to be."""
        path = self.path / ORDER
        try:
            return _ORDER.decode(path.read_bytes())
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise StorageError(f"{path} is damaged: {error}") from None

    def is_alive(self) -> bool:
        """Tell whether somebody keeps the job: its keeper lives, or is about to be started."""
        try:
            lock = os.open(self.path / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"cannot open {self.path / LOCK}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def keeper(self) -> Known | None:
        """Return the process that keeps the job, once it has told who it is."""
        return next(iter(_known_in(self._read(LOCK))), None) if self.is_alive() else None

    def had_keeper(self) -> bool:
        """Tell whether a keeper has ever told who it is: before that it starts nothing."""
        return bool(self._read(LOCK))

    def ending(self) -> Ending | None:
        """Return how the job ended; None as long as it goes on, and for a file that a power cut left damaged."""
        text = self._read(ENDING)
        if not text:
            return None
        try:
            return _ENDING.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def events(self, from_offset: int = 0) -> Events:
        """Return what happened since a byte of the file, some megabytes of it at most; 0 is the beginning."""
        path = self.path / EVENTS
        try:
            with path.open("rb") as file:
                file.seek(from_offset)
                text = file.read(_MAX_EVENTS_BYTES)
        except FileNotFoundError:
            return Events(events=[], next_offset=from_offset)
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        end = text.rfind(b"\n") + 1
        found: list[Event] = []
        for line in text[:end].splitlines():
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # a disk was full in the middle of it
                found.append(_EVENT.decode(line))
        return Events(events=found, next_offset=from_offset + end)

    def last_events(self, max_bytes: int) -> list[Event]:
        """Return what happened last, as much as the last bytes of the file hold. Raises StorageError."""
        try:
            size = (self.path / EVENTS).stat().st_size
        except OSError:
            return []
        # The first line may be the end of one, and is no event then.
        return self.events(max(0, size - max_bytes)).events

    def stdout(self, offset: int, max_bytes: int) -> TracePiece:
        """Return what is kept of its standard output; see read_trace."""
        return read_trace(self.path / STDOUT, offset, max_bytes)

    def stderr(self, offset: int, max_bytes: int) -> TracePiece:
        """Return what is kept of its standard error; see read_trace."""
        return read_trace(self.path / STDERR, offset, max_bytes)

    def stop(self, state: JobState, reason: str) -> bool:
        """Ask the keeper to end the job, and tell whether there is one; the ending comes when all of it has ended.

        ``state`` and ``reason`` are what the ending will say. The first who asks is heard.
        """
        if not self.is_alive():
            return False
        if not self._read(STOP):
            try:
                self._write(STOP, msgspec.json.encode(StopAsked(state=state, reason=reason)))
            except OSError as error:
                raise StorageError(f"cannot write {self.path / STOP}: {error.strerror}") from error
        # A keeper that has not told who it is yet looks for the file when it has.
        keeper = self.keeper()
        if keeper is not None:
            send(keeper, signal.SIGTERM)
        return True

    def kill_leftovers(self) -> list[int]:
        """Kill what a keeper that is no more left running, and return the numbers of those that were killed.

        They are known by the pairs of number and start that the keeper wrote down and what descends from them, by the
        cgroup of the job, and by its mark (see mark.py). What they wrote, and the cgroup, go with them.
        """
        if self.is_alive():
            return []
        killed = {each.pid for each in self._left_over() if not each.is_zombie}
        kill_in(self._cgroup_folders())
        if killed:
            end_all(self._left_over, timeout_s=_KILL_TIMEOUT_S)
        remove_cgroup(self._cgroup_folders())
        with contextlib.suppress(OSError):  # it goes with the folder, in time
            remove_tree(self.path / TMP)
        return sorted(killed)

    def remove(self) -> None:
        """Remove the folder with everything in it. Raises ConflictError while the job is kept."""
        if self.is_alive():
            raise ConflictError(f"the job of {self.path} goes on: stop it first")
        try:
            remove_cgroup(self._cgroup_folders())  # a keeper that was killed at its very end left one
            remove_tree(self.path)
        except OSError as error:
            raise StorageError(f"cannot remove {self.path}: {error.strerror}") from error

    def _left_over(self) -> list[Relative]:
        found: dict[int, Relative] = {}
        for known in _known_in(self._read(PROCESSES)):
            now = relative(known.pid)
            if now is not None and now.start == known.start:
                found[known.pid] = now
        for pid in set().union(*map(members_of, self._cgroup_folders())):
            now = relative(pid)
            if now is not None:
                found[pid] = now
        with contextlib.suppress(StorageError):
            for each in with_limit(LIMIT, mark_of(self.order().folder)):
                found[each.pid] = each
        for pid in list(found):
            for each in descendants(pid):
                found.setdefault(each.pid, each)
        return list(found.values())

    def _cgroup_folders(self) -> list[Path]:
        try:
            name = name_of(self.order())
        except StorageError:
            return []
        started = next((each for each in self.events().events if isinstance(each, Started)), None)
        return left_folders(name, "" if started is None else started.cgroup or "")

    def _read(self, name: str) -> bytes:
        path = self.path / name
        try:
            with path.open("rb") as file:
                return file.read(_MAX_FILE_BYTES)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error

    def _write(self, name: str, content: bytes) -> None:
        staged = self.path / f".{name}"
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE), "wb") as file:
            file.write(content)
        staged.replace(self.path / name)


def _known_in(text: bytes) -> list[Known]:
    """Read lines of a number and a start; half a line at the end is none."""
    lines = [line.split() for line in text[: text.rfind(b"\n") + 1].splitlines()]
    return [Known(int(line[0]), int(line[1])) for line in lines if len(line) == 2 and all(map(bytes.isdigit, line))]


def write_ending(folder: Path, ending: Ending) -> None:
    """Write it into the room that was taken for it, and rename that.

    Not waited for until it is on the disk: after a power cut there is no job to speak of, and a file without content
    is none. Raises OSError.
    """
    text = msgspec.json.encode(ending)
    if len(text) > ENDING_BYTES:
        # Escapes made it longer than its room: the problem's text is the least that is needed.
        text = msgspec.json.encode(
            msgspec.structs.replace(ending, problem=None, reason=ending.reason[:_LONGEST_REASON])
        )
    room = folder / ENDING_ROOM
    descriptor = os.open(room, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        view, offset = memoryview(text), 0
        while view:
            written = os.pwrite(descriptor, view, offset)
            view, offset = view[written:], offset + written
        os.ftruncate(descriptor, len(text))
    finally:
        os.close(descriptor)
    room.replace(folder / ENDING)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, following no link; nobody may be writing into it any more.

    What lies deep is first moved up, as a path or a recursion of any depth could not be. Raises OSError; a folder that
    is not there is no error.
    """
    number = 0
    with contextlib.suppress(FileNotFoundError):
        while inner := _folders_in(folder):
            for each in inner:
                for deeper in _folders_in(each):
                    number += 1
                    deeper.rename(_unused(folder, number))
                each.rmdir()
        folder.rmdir()


def _folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, and remove everything else in it."""
    folder.chmod(_OPEN)
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                path = Path(entry.path)
                if stat.S_IMODE(path.lstat().st_mode) & _OPEN != _OPEN:
                    path.chmod(_OPEN)  # a folder that may not be written to cannot be moved
                found.append(path)
            else:
                Path(entry.path).unlink()
    return found


def _unused(folder: Path, number: int) -> Path:
    """Return a name in a folder that is not taken."""
    path = folder / f".{number}"
    while os.path.lexists(path):
        path = path.with_name(f"{path.name}.")
    return path
