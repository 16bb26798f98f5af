"""The folder of one job, as the daemon reads it: who keeps the job, what happened so far, and how it ended.

And who is to be ended with it: processes are known by number and start, and never one that only has the number.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import ConflictError, StorageError
from fedmon.common.wire.runs import JobState, TracePiece
from fedmon.node.collectors.job.cgroup import members_of
from fedmon.node.collectors.job.family import Relative, descendants, relative, with_limit
from fedmon.node.job.cgroup import remove_cgroup
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
from fedmon.node.runs.sandbox.cgroup import kill_in, left_folders
from fedmon.node.runs.trace import read_trace

FOLDER_MODE = 0o700
FILE_MODE = 0o600
ENDING_ROOM = ".ending"
"""The file that becomes ``ending.json``: its room on the disk is taken before the job starts."""
ENDING_BYTES = 65_536
_LONGEST_REASON = 2000
_MAX_EVENTS_BYTES = 4_194_304
_MAX_FILE_BYTES = 1_048_576
_KILL_TIMEOUT_S = 10.0
_LOOK_AGAIN_S = 0.002
_TRIES_WITHOUT_NEWS = 2
_MARK = b"Max file locks"
"""What RLIMIT_LOCKS is called in /proc/PID/limits; see JobOrder.mark."""

_EVENT: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_ENDING = msgspec.json.Decoder(Ending)
_ORDER = msgspec.json.Decoder(JobOrder)
_STOP_ASKED = msgspec.json.Decoder(StopAsked)


class Known(NamedTuple):
    """A process by its number and its start in clock ticks since the boot; no other one ever has both."""

    pid: int
    start: int


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
        with contextlib.ExitStack() as undo:
            try:
                self.path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
                lock = self._made(LOCK)
                undo.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.ending() is not None:
                    raise ConflictError(f"job {order.job_id} is over: {self.path} holds its ending")
                if self.had_keeper():
                    raise ConflictError(f"job {order.job_id} was begun before, and lost what watched over it")
                for name in (ENDING_ROOM, f".{ORDER}", LOCK):
                    undo.callback((self.path / name).unlink, missing_ok=True)
                with open(self._made(ENDING_ROOM), "rb+", buffering=0) as room:
                    os.posix_fallocate(room.fileno(), 0, ENDING_BYTES)
                self._write(ORDER, msgspec.json.encode(order))
            except BlockingIOError:
                message = f"job {order.job_id} is kept already: the lock of {self.path} is held"
                raise ConflictError(message) from None
            except OSError as error:
                message = f"cannot write the files of job {order.job_id} into {self.path}: {error.strerror}"
                raise StorageError(message) from error
            undo.pop_all()
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
            with open(self.path / LOCK, "rb", buffering=0) as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        except OSError as error:
            raise StorageError(f"cannot open {self.path / LOCK}: {error.strerror}") from error
        return False

    def wait(self) -> None:
        """Wait until no keeper holds the job; for its launcher alone."""
        with open(self.path / LOCK, "rb", buffering=0) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)

    def keeper(self) -> Known | None:
        """Return the process that keeps the job, once it has told who it is."""
        return next(self._known(LOCK), None) if self.is_alive() else None

    def had_keeper(self) -> bool:
        """Tell whether a keeper has ever told who it is: before that it starts nothing."""
        return bool(self._read(LOCK))

    def stop_asked(self) -> StopAsked | None:
        """Return why the job is to end before its time; None unless that was asked."""
        with contextlib.suppress(StorageError, msgspec.DecodeError):
            return _STOP_ASKED.decode(self._read(STOP))
        return None

    def ending(self) -> Ending | None:
        """Return how the job ended; None as long as it goes on, and for a file that a power cut left damaged."""
        text = self._read(ENDING)
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            return _ENDING.decode(text) if text else None
        return None

    def events(self, from_offset: int = 0) -> Events:
        """Return what happened since a byte of the file, some megabytes of it at most; 0 is the beginning."""
        text = self._read(EVENTS, from_offset, _MAX_EVENTS_BYTES)
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
        cgroup of the job, and by its mark. What they wrote, and the cgroup, go with them.
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
        found: dict[int, Relative | None] = {}
        for known in self._known(PROCESSES):
            now = relative(known.pid)
            if now is not None and now.start == known.start:
                found[known.pid] = now
        for pid in set().union(*map(members_of, self._cgroup_folders())):
            found[pid] = relative(pid)
        with contextlib.suppress(StorageError):
            found |= {each.pid: each for each in with_limit(_MARK, self.order().mark)}
        for pid in list(found):
            for each in descendants(pid):
                found.setdefault(each.pid, each)
        return [each for each in found.values() if each is not None]

    def _cgroup_folders(self) -> list[Path]:
        try:
            name = self.order().cgroup
        except StorageError:
            return []
        started = next((each for each in self.events().events if isinstance(each, Started)), None)
        return left_folders(name, "" if started is None else started.cgroup or "")

    def _known(self, name: str) -> Iterator[Known]:
        """Read lines of a number and a start; half a line at the end is none."""
        text = self._read(name)
        for line in text[: text.rfind(b"\n") + 1].splitlines():
            words = line.split()
            if len(words) == 2 and all(map(bytes.isdigit, words)):
                yield Known(*map(int, words))

    def _made(self, name: str) -> int:
        return os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)

    def _read(self, name: str, offset: int = 0, most: int = _MAX_FILE_BYTES) -> bytes:
        path = self.path / name
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(offset)
                return file.read(most)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error

    def _write(self, name: str, content: bytes) -> None:
        staged = self.path / f".{name}"
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE), "wb") as file:
            file.write(content)
        staged.replace(self.path / name)


def write_ending(folder: Path, ending: Ending) -> None:
    """Write it into the room that was taken for it, and rename that.

    Not waited for until it is on the disk: after a power cut there is no job to speak of, and a file without content
    is none. Raises OSError.
    """
    text = msgspec.json.encode(ending)
    if len(text) > ENDING_BYTES:
        # Escapes made it longer than its room: the problem's text is the least that is needed.
        shorter = msgspec.structs.replace(ending, problem=None, reason=ending.reason[:_LONGEST_REASON])
        text = msgspec.json.encode(shorter)
    room = folder / ENDING_ROOM
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(room, flags, FILE_MODE), "wb") as file:
        file.write(text)
        file.truncate()
    room.replace(folder / ENDING)


def remove_tree(folder: Path) -> None:
    """Remove a folder of any depth with all that is in it, following no link; nobody may be writing into it any more.

    Raises OSError; a folder that is not there is no error.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as here, contextlib.suppress(FileNotFoundError):
        folder.chmod(FOLDER_MODE)
        way, at = [folder.name], os.open(folder, flags)
        here.callback(os.close, at)
        while way:
            inner, is_empty = None, True
            with os.scandir(at) as entries:
                for entry in entries:
                    is_empty = False
                    if entry.is_dir(follow_symlinks=False):
                        inner = entry.name
                        break
                    os.unlink(entry.name, dir_fd=at)
            if inner is not None:
                os.chmod(inner, FOLDER_MODE, dir_fd=at)
                other = os.open(inner, flags, dir_fd=at)
                way.append(inner)
            elif is_empty:
                other = os.open("..", flags, dir_fd=at)
                os.rmdir(way.pop(), dir_fd=other)
            else:
                continue  # what is unlinked during a look may hide others from it
            here.pop_all().close()
            at = other
            here.callback(os.close, at)


def send(known: Known, number: int) -> bool:
    """Send a signal to a process, unless its number belongs to another one now; tell whether it was sent.

    Where the kernel can (5.3), a descriptor holds the process before its start is looked at, so that it cannot be
    replaced in between.
    """
    held = None
    try:
        with contextlib.suppress(OSError):
            held = os.pidfd_open(known.pid)
        now = relative(known.pid)
        if now is None or now.start != known.start:
            return False
        if held is None:
            os.kill(known.pid, number)
        else:
            signal.pidfd_send_signal(held, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if held is not None:
            os.close(held)
    return True


def end_all(living: Callable[[], Sequence[Relative]], *, timeout_s: float) -> list[Known]:
    """Kill whatever ``living`` returns until it returns nothing but zombies; return those that are left.

    All of them are stopped before any is killed, as one that is stopped starts no others meanwhile.
    """
    deadline = Deadline(timeout_s)
    while True:
        stopped: set[Known] = set()
        for _ in range(_TRIES_WITHOUT_NEWS):
            while (news := _awake(living()) - stopped) and not deadline.passed():
                for each in news:
                    send(each, signal.SIGSTOP)
                stopped |= news
        left = _awake(living())
        for each in left:
            send(each, signal.SIGKILL)
        if not left or deadline.passed():
            return sorted(left)
        threading.Event().wait(_LOOK_AGAIN_S)


def _awake(relatives: Iterable[Relative]) -> set[Known]:
    return {Known(each.pid, each.start) for each in relatives if not each.is_zombie}
