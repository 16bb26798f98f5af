"""The folder of one job: its events, its output and its end, all in files.

A folder holds ``lock``, locked while the keeper lives; ``stop.json``, why the job has to end; ``events.jsonl``, one
event a line; ``stdout.N`` and ``stderr.N``, printed bytes from N on; ``result``; ``tmp``, the plan's files if its
sandbox has no file system for them; and finally ``ending.json``, written whole or not at all. The keeper writes and the
daemon reads; each may end without the other.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import hashlib
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import ConflictError, StorageError
from fedmon.common.files import LockFile, storage_errors, write_whole
from fedmon.common.wire.runs import JobState, Level, Parcel, Problem, Scalar, TracePiece, Usage
from fedmon.node.cgroup import kill_in, left_folders, remove_cgroup
from fedmon.node.collectors.job.family import with_limit
from fedmon.node.collectors.job.process import Birth, find_birth
from fedmon.node.runs.release import Rules

LOCK, STOP, EVENTS = "lock", "stop.json", "events.jsonl"
STDOUT, STDERR, RESULT, TMP, ENDING = "stdout", "stderr", "result", "tmp", "ending.json"
FOLDER_MODE, FILE_MODE = 0o700, 0o600
ENDING_ROOM = ".ending"
"""The file that becomes ``ending.json``: it takes its space on the disk before the job starts."""
ENDING_BYTES = 262_144
KILL_TIMEOUT_S = 10.0
LEVELS: tuple[Level, ...] = get_args(Level)
"""Strongest first."""
_MAX_FILE_BYTES = 1_048_576
_LOOK_AGAIN_S = 0.002
_TRIES_WITHOUT_NEWS = 2
_MARK = b"Max file locks"
"""The name of RLIMIT_LOCKS in /proc/PID/limits; see JobFolder.mark."""
_TRACE_FILES = 4
_LONGEST_CHARACTER = 4


def is_weaker(level: Level, minimum: Level) -> bool:
    """Return True if a level confines less than another."""
    return LEVELS.index(level) > LEVELS.index(minimum)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a job, see RunLimits."""

    cpu_s: float
    wall_s: float
    memory_bytes: int
    processes: int
    output_bytes: int
    tmp_bytes: int


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """The Python that plans run on: its program, the folders and files that it needs, and where it finds packages."""

    executable: str
    needs: list[str]
    path: list[str]


class GivenDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset as a job gets it; ``path`` is its place on this machine."""

    dataset_id: str
    name: str
    data_type: str
    path: str
    tags: list[str] = []
    shape: list[int] | None = None
    dtypes: dict[str, str] | None = None


class JobOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One job, as its keeper gets it. ``inputs_format`` is None without inputs, ``rules`` without a release gate.

    ``level`` is the confinement, None only when a user tries a plan without a sandbox; see confinement.py, which fills
    in the defaults.
    """

    job_id: str = ""
    node_id: str = "here"
    folder: str = ""
    name: str
    interpreter: Interpreter
    runtime: str = ""
    limits: Limits
    level: Level | None
    trace_bytes: int = 1_048_576
    dataset: GivenDataset | None = None
    arguments: dict[str, Any] = {}
    inputs_format: Literal["json", "npz"] | None = None
    devices: list[str] = []
    rules: Rules | None = None

    @property
    def sandbox_processes(self) -> int:
        """The number of its processes that belong to its sandbox, and not to the plan."""
        return 2 if self.level == "bubblewrap" else 0


class Started(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="started"):
    """The plan's first process runs; ``pid`` as the machine counts, ``cgroup`` a path below the hierarchies or None."""

    t: float
    pid: int
    sandbox: Level | None
    cgroup: str | None = None


class Reported(Scalar, frozen=True, kw_only=True, tag_field="event", tag="scalar"):
    """The plan called ``context.report``."""


class Logged(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="log"):
    """The plan called ``context.log``."""

    t: float
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
    message: str


Event = Started | Reported | Logged


class Verdict(msgspec.Struct, frozen=True):
    """The state of a job that is over, or has to end, and a sentence about the cause and the remedy."""

    state: JobState
    reason: str


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended; ``problem`` is whole, whatever of it may leave. ``result_format`` is None without a result.

    ``numbers`` counts the numbers in its result, and ``held`` are the rules of release that it breaks.
    """

    state: JobState
    reason: str
    started: float | None = None
    ended: float = 0.0
    sandbox: Level | None = None
    exit_code: int | None = None
    problem: Problem | None = None
    usage: Usage = Usage()
    scalars: int = 0
    result_format: Literal["json", "npz"] | None = None
    result_sha256: str | None = None
    result_bytes: int = 0
    numbers: int = 0
    held: str = ""

    @property
    def result(self) -> Parcel | None:
        """The result without its bytes."""
        if self.result_format is None or self.result_sha256 is None:
            return None
        return Parcel(format=self.result_format, sha256=self.result_sha256, size_bytes=self.result_bytes)


_EVENT: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_ENDING = msgspec.json.Decoder(Ending)
_VERDICT = msgspec.json.Decoder(Verdict)


class Known(NamedTuple):
    """A process by its number and its start in clock ticks since the boot; no other process ever has both."""

    pid: int
    start: int


def made(path: Path, flags: int) -> int:
    """Open a file of a job, never through a link; it is made if it is missing. Raises OSError."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)


class JobFolder:
    """The files of one job. Every method is safe from any thread; those that read raise StorageError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.result = path / RESULT

    @property
    def mark(self) -> int:
        """A number of 62 bits in a limit of all processes of the job; without a keeper they are known by it.

        The limit is RLIMIT_LOCKS: the kernel does not use it, every process inherits it, none can raise it, and the
        filters of system calls keep a plan from lowering it. A plan could overwrite an environment, and the same job
        id may run on several nodes of one machine.
        Source: Linux man-pages, getrlimit(2), "In Linux 2.4.25 and later" of RLIMIT_LOCKS.
        """
        digest = hashlib.sha256(os.fsencode(self.path)).digest()
        return int.from_bytes(digest[:8], "big") >> 2 | 1

    @property
    def cgroup(self) -> str:
        """The name of its cgroup; the same job may run on other nodes of this machine."""
        return f"fedmon-job-{self.path.name}-{self.mark:016x}"

    def prepare(self) -> LockFile:
        """Make the folder, and return its held lock, for the keeper.

        The space for the ending is taken now, so that a full disk cannot prevent it later. Raises ConflictError if the
        job runs, ran, or is over, and StorageError.
        """
        with storage_errors(self.path), contextlib.ExitStack() as undo:
            self.path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            lock = LockFile(self.path / LOCK)
            if not lock.take():
                raise ConflictError(f"job {self.path.name} is kept already: the lock of {self.path} is held")
            undo.callback(lock.release)
            if self.ending() is not None:
                raise ConflictError(f"job {self.path.name} is over: {self.path} holds its ending")
            if self.had_keeper():
                raise ConflictError(f"job {self.path.name} was begun before, and lost its keeper")
            with open(made(self.path / ENDING_ROOM, os.O_RDWR), "rb+", buffering=0) as room:
                os.posix_fallocate(room.fileno(), 0, ENDING_BYTES)
            undo.pop_all()
        return lock

    def is_alive(self) -> bool:
        """Return True if the keeper of the job lives, or is about to be started."""
        return LockFile(self.path / LOCK).holder() is not None

    def wait(self) -> None:
        """Wait for the end of the keeper; only for the process that launched it."""
        with open(self.path / LOCK, "rb", buffering=0) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)

    def keeper(self) -> Known | None:
        """Return the keeper's process, once it has written its number."""
        found = re.match(r"(\d+) (\d+)$", LockFile(self.path / LOCK).holder() or "")
        return None if found is None else Known(int(found[1]), int(found[2]))

    def had_keeper(self) -> bool:
        """Return True if a keeper has ever written its number: before that it starts nothing."""
        return bool(self._read(LOCK))

    def stop_asked(self) -> Verdict | None:
        """Return why the job has to end before its time, if so."""
        with contextlib.suppress(StorageError, msgspec.DecodeError):
            return _VERDICT.decode(self._read(STOP))
        return None

    def ending(self) -> Ending | None:
        """Return how the job ended; None while it runs, and for a file that a power cut damaged."""
        text = self._read(ENDING)
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            return _ENDING.decode(text) if text else None
        return None

    def events(self, offset: int = 0) -> Iterator[tuple[Event, int]]:
        """Yield the events from a byte of the file on, each with the byte to continue from; 0 is the beginning."""
        path = self.path / EVENTS
        with storage_errors(path, "read"), contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # its rest comes later
                offset += len(line)
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # half a line: the disk was full
                    yield _EVENT.decode(line), offset

    def started(self) -> Started | None:
        """Return the event of its start, if it has started. Raises StorageError."""
        return next((each for each, _ in self.events() if isinstance(each, Started)), None)

    def trace(self, name: str, offset: int, max_bytes: int) -> TracePiece:
        """Return the kept bytes of ``stdout`` or ``stderr`` from ``offset`` on, ``max_bytes`` at most, as text.

        A character is not cut in two: its beginning waits for the rest while the keeper lives. Bytes that are not UTF-8
        become U+FFFD.
        """
        is_over = not self.is_alive()
        chunk, start, total, most = b"", offset, 0, max(max_bytes, _LONGEST_CHARACTER)
        with storage_errors(self.path / name, "read"):
            files = sorted((int(each.suffix[1:]), each) for each in self.path.glob(f"{name}.*"))
            for first, each in files:
                # One that is not there was removed meanwhile.
                with contextlib.suppress(FileNotFoundError), each.open("rb", buffering=0) as file:
                    total = first + os.fstat(file.fileno()).st_size
                    start = start if chunk else max(offset, first)
                    at = start + len(chunk)
                    if first <= at < total:
                        file.seek(at - first)
                        chunk += file.read(most - len(chunk))
        start = min(offset, total) if files and not chunk else start
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text, rest = decoder.decode(chunk), len(decoder.getstate()[0])
        # The beginning of a character whose end is not kept.
        if rest == len(chunk) and (is_over or start + rest < total):
            text, rest = chunk.decode(errors="replace"), 0
        return TracePiece(
            offset=start,
            text=text,
            next_offset=start + len(chunk) - rest,
            size_bytes=total,
            skipped_bytes=max(0, start - offset),
        )

    def stop(self, state: JobState, reason: str) -> bool:
        """Ask the keeper to end the job with this state and reason; return False if no keeper lives.

        The first request counts. The ending comes when all processes have ended.
        """
        if not self.is_alive():
            return False
        if not self._read(STOP):
            with contextlib.suppress(StorageError):  # on a full disk it ends without its reason
                write_whole(self.path / STOP, msgspec.json.encode(Verdict(state, reason)), mode=FILE_MODE)
        # A keeper that has not written its number yet looks for the file afterwards.
        keeper = self.keeper()
        if keeper is not None:
            send(keeper, signal.SIGTERM)
        return True

    def kill_leftovers(self) -> list[int]:
        """Kill the processes that a dead keeper left, known by the mark of the job, and return their numbers.

        Their files and the cgroup are removed.
        """
        killed = {each.pid for each in with_limit(_MARK, self.mark) if not each.is_zombie}
        kill_in(self._cgroup_folders())
        if killed:
            end_all(lambda: with_limit(_MARK, self.mark))
        remove_cgroup(self._cgroup_folders())
        with contextlib.suppress(OSError):  # removed later with the folder
            remove_tree(self.path / TMP)
        return sorted(killed)

    def remove(self) -> None:
        """Remove the folder with everything in it, once its keeper has ended. Raises OSError and StorageError."""
        remove_cgroup(self._cgroup_folders())  # left by a keeper that was killed at its very end
        remove_tree(self.path)

    def _cgroup_folders(self) -> list[Path]:
        started = self.started()
        return left_folders(self.cgroup, "" if started is None else started.cgroup or "")

    def _read(self, name: str) -> bytes:
        path = self.path / name
        with storage_errors(path, "read"), contextlib.suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
            return file.read(_MAX_FILE_BYTES)
        return b""


def write_ending(folder: Path, ending: Ending) -> None:
    """Write the ending into its reserved space, and give the file its name. Raises OSError.

    The disk is not waited for: no job survives a power cut, and an empty file counts as no ending.
    """
    room = folder / ENDING_ROOM
    with open(made(room, os.O_WRONLY), "wb") as file:
        file.write(msgspec.json.encode(ending))
        file.truncate()
    room.replace(folder / ENDING)


class TraceWriter:
    """The first and the last bytes that a plan prints, in files of a quarter of ``size_bytes``.

    A file is named after the place of its first byte. The first two files stay, and of the others the last two. A full
    disk ends the trace and not the job.
    """

    def __init__(self, path: Path, *, size_bytes: int) -> None:
        """Make the first file. Raises OSError."""
        self._path, self._file_bytes = path, max(1, size_bytes // _TRACE_FILES)
        self._total, self._starts = 0, list[int]()
        self._fd = self._next()

    def write(self, chunk: bytes | memoryview) -> None:
        """Append the next bytes, without those that later ones would replace."""
        view, half_bytes = memoryview(chunk), _TRACE_FILES // 2 * self._file_bytes
        try:
            while view and self._fd >= 0:
                room = self._starts[-1] + self._file_bytes - self._total
                if not room:
                    skipped = max(0, len(view) - half_bytes) if self._total >= half_bytes else 0
                    view, self._total = view[skipped:], self._total + skipped
                    os.close(self._fd)
                    self._fd, room = self._next(), self._file_bytes
                written = os.write(self._fd, view[:room])
                view, self._total = view[written:], self._total + written
        except OSError:
            self._fd = -1

    def _next(self) -> int:
        self._starts.append(self._total)
        if len(self._starts) > _TRACE_FILES:
            Path(f"{self._path}.{self._starts.pop(_TRACE_FILES // 2)}").unlink()
        return made(Path(f"{self._path}.{self._total}"), os.O_WRONLY)


def remove_tree(folder: Path) -> None:
    """Remove a folder of any depth with its content; links are not followed, and no process may write into it.

    Raises OSError; a missing folder is no error.
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
                continue  # an entry that was unlinked during the scan may hide others
            here.pop_all().close()
            at = other
            here.callback(os.close, at)


def send(known: Known, number: int) -> bool:
    """Send a signal to a process; return False if it is gone, even if another process has its number now.

    Where the kernel can (5.3), a descriptor holds the process before its start is compared, so that no other one can
    take its place in between.
    """
    held = None
    try:
        with contextlib.suppress(OSError):
            held = os.pidfd_open(known.pid)
        now = find_birth(known.pid)
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


def end_all(living: Callable[[], Sequence[Birth]]) -> list[Known]:
    """Kill the processes that ``living`` returns until only zombies are left; return those that survived.

    All of them are stopped before any is killed, because a stopped process starts no others.
    """
    deadline = Deadline(KILL_TIMEOUT_S)
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


def _awake(relatives: Iterable[Birth]) -> set[Known]:
    return {Known(each.pid, each.start) for each in relatives if not each.is_zombie}
