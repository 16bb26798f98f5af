"""The journal of a run: every event on a line of its own, written before it takes effect.

Beside it the folder of the run, the replay of a journal whose process died, and the following of one that is written.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import re
import secrets
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import msgspec

from fedmon.common.clock import Deadline, utc_now
from fedmon.common.errors import FolderInUseError, NotFoundError, StorageError
from fedmon.experiment.errors import InvalidExperimentError, UnwritableEventError
from fedmon.experiment.events import (
    Action,
    AnyEvent,
    Assign,
    AttributeSet,
    ConditionAdded,
    Inform,
    Leveled,
    Measured,
    Opened,
    Registered,
    SetWanted,
    TaskDone,
    TaskScheduled,
)
from fedmon.experiment.machine import step_safely
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceState

NAME = "journal.jsonl"
DOCUMENT = "experiment.toml"
"""The file in which a run that was started from a document keeps it: for its failure policy and its report."""
_LOCKS, _PROCESSES = Path("/proc/locks"), Path("/proc")
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_BLOCK_BYTES = 65_536
_FORK_S, _TICK_S = 1.0, 0.02
_LOOK_S = 0.2
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(AnyEvent)


class RunFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The names of an experiment and of one of its runs, and their folders."""

    exp_id: str
    run_id: str
    local_dir: Path

    @property
    def exp_dir(self) -> Path:
        """What belongs to the experiment, whichever run."""
        return self.local_dir / self.exp_id

    @property
    def run_dir(self) -> Path:
        """What belongs to this run."""
        return self.exp_dir / self.run_id

    def make(self) -> Path:
        """Make the folder of the run, for its owner alone, and return it. Raises StorageError."""
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StorageError(f"cannot make the folder of the run {self.run_dir}: {error.strerror}") from error
        return self.run_dir


def run_folder(exp_id: str | None, local_dir: str | Path | None, run_id: str | None = None) -> RunFolder:
    """Return the folder of a run, a new one where ``run_id`` is null; nothing is made yet.

    ``exp_id`` is made up where it is null; ``local_dir`` is then the system's folder for temporary files, as in NEPI.
    Raises InvalidExperimentError for an id that is no plain file name.
    """
    exp_id = f"exp-{secrets.token_hex(4)}" if exp_id is None else exp_id
    for what, name in (("exp_id", exp_id), ("run_id", run_id)):
        if name is not None and not is_folder_name(name):
            raise InvalidExperimentError(
                f"{what} {name!r} cannot name a folder: take up to 100 letters, digits, '-', '_' and '.', "
                "no '.' and no '-' first"
            )
    where = path_of("local_dir", tempfile.gettempdir() if local_dir is None else local_dir)
    return RunFolder(exp_id=exp_id, run_id=run_id or run_id_of(utc_now()), local_dir=where)


def path_of(what: str, given: object) -> Path:
    """Return a path that a caller gave as an absolute one. Raises InvalidExperimentError for what is none."""
    try:
        if isinstance(given, str | os.PathLike) and "\0" not in os.fsdecode(given):
            return Path(given).expanduser().absolute()
    except (TypeError, ValueError, RuntimeError) as error:  # such as the home of nobody
        raise InvalidExperimentError(f"{what} is {given!r:.80}, and no path: {error}") from error
    raise InvalidExperimentError(f"{what} is {given!r:.80}, and must be a path")


def is_folder_name(name: object) -> bool:
    """Tell whether an id can be the name of a folder, on any system."""
    return type(name) is str and bool(_ID.fullmatch(name))


def run_id_of(moment: datetime.datetime) -> str:
    """Return the id of a run that begins at a moment: 20 digits, YYYYMMDDhhmmss and microseconds."""
    return moment.strftime("%Y%m%d%H%M%S%f")


def holder_of(path: Path) -> int | None:
    """Return the process that holds the lock of a file; None where there is none, or nobody can know.

    Source: proc_locks(5): ``1: FLOCK  ADVISORY  WRITE 22768 fe:00:3277848 0 EOF``.
    """
    try:
        about = path.stat()
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    for words in map(str.split, lines):
        # A device's number differs from that of its files on some file systems, so the process is asked what it has.
        if "FLOCK" in words[1:2] and words[5].rpartition(":")[2] == str(about.st_ino) and words[4].isdigit():
            number = int(words[4])
            if _has_open(number, about):
                return number
    return None


def _has_open(process: int, about: os.stat_result) -> bool:
    with contextlib.suppress(OSError):
        for each in os.scandir(_PROCESSES / str(process) / "fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(each.stat(), about):
                    return True
    return False


class Journal:
    """Appends events to a file that one process holds; for one thread at a time.

    What is written survives the death of the process. Raises FolderInUseError where another process or another
    controller has the run, and StorageError where the file cannot be written; what was cut off then is taken out again.
    The lock is of the process that opened it: a fork of that has the journal no longer.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"cannot keep the journal {path}: {error.strerror}") from error
        try:
            _lock(self._file, path)
        except BaseException:
            self.close()
            raise
        _open.add(self)
        self._size = os.lseek(self._file, 0, os.SEEK_END)
        self._cut_torn_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:  # an experiment that everybody forgot holds its run no longer
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
            with contextlib.suppress(OSError):  # else it is a cut last line, which counts as none
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
        os.ftruncate(self._file, end)
        self._size = end

    def has_open(self, about: os.stat_result) -> bool:
        """Tell whether a file is the one that it holds."""
        with contextlib.suppress(OSError):  # it was closed just now
            return self._file >= 0 and os.path.samestat(about, os.fstat(self._file))
        return False

    def close(self) -> None:
        """Let others have the run."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


_open: weakref.WeakSet[Journal] = weakref.WeakSet()
"""The journals of this process."""


def _lock(file: int, path: Path) -> None:
    """Take the lock of a run. Raises FolderInUseError saying who has it."""
    deadline, tick = Deadline(_FORK_S), threading.Event()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            about = os.fstat(file)
            if any(journal.has_open(about) for journal in list(_open)):
                told = f"this process has the experiment in {path.parent} open: shut that controller down first"
                raise FolderInUseError(told) from error
            # What a process forked in the moment of its death gives up what it inherited as soon as it runs.
            if holder_of(path) is not None or deadline.passed():
                told = f"another process runs the experiment in {path.parent}: wait for its end, or stop it"
                raise FolderInUseError(told) from error
            tick.wait(_TICK_S)
        else:
            return


def _close_all() -> None:
    """Give up what a fork inherited: it would keep the lock when the process that has the run is long dead."""
    for journal in list(_open):
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
                yield _event(line, number, path)
    except OSError as error:
        raise StorageError(f"cannot read the journal {path}: {error.strerror}") from error


def _event(line: bytes, number: int, path: Path) -> AnyEvent:
    try:
        found: AnyEvent = _DECODER.decode(line)
    except msgspec.DecodeError as error:
        raise StorageError(f"line {number} of {path} is no event of an experiment: {error}") from error
    return found


class Left(msgspec.Struct, kw_only=True):
    """The run that another process left: its folder, its state, and what it asked for and did not note as done.

    ``journal`` is held from before it was read. ``until`` is the moment of its last event; ``highest_guid``,
    ``conditions`` and ``tasks`` are where numbers go on. ``opened`` is what the controller was told, ``names`` are
    those of resources; ``unassigned`` are attributes to set, by guid and name, ``unjudged`` failed and were not looked
    at, ``due`` are tasks that have not run, by number.
    """

    folder: RunFolder
    journal: Journal | None = None
    state: State = State()
    until: float = 0.0
    highest_guid: int = 0
    conditions: int = 0
    tasks: int = 0
    opened: Opened | None = None
    names: dict[int, str] = {}
    unassigned: dict[tuple[int, str], Any] = {}
    unjudged: list[int] = []
    due: dict[int, TaskScheduled] = {}
    told: dict[int, set[tuple[str, int, str]]] = {}
    """The source, number and name of each numbered metric value, by guid; of a job, since it was last sent."""

    def take(self, event: AnyEvent) -> None:
        """Go on by an event."""
        self.state, asked, _ = step_safely(self.state, event)
        self.until = max(self.until, event.t)
        match event:
            case Opened():
                self.opened = event
            case Registered(guid=guid, name=name):
                self.highest_guid = max(self.highest_guid, guid)
                self.names |= {guid: name} if name else {}
            case AttributeSet(guid=guid, name=name):
                self.unassigned.pop((guid, name), None)
                if name == "jobId":
                    self.told.pop(guid, None)
            case Measured(guid=guid, name=name, source=source, nth=int(nth)):
                self.told.setdefault(guid, set()).add((source, nth, name))
            case Leveled(guid=guid) if guid in self.unjudged:
                self.unjudged.remove(guid)
            case ConditionAdded() | SetWanted() if event.condition is not None:
                self.conditions = max(self.conditions, event.condition.number)
            case TaskScheduled(number=number):
                self.due[number], self.tasks = event, max(self.tasks, number)
            case TaskDone(number=number):
                self.due.pop(number, None)
        self._take_asked(asked)

    def _take_asked(self, asked: Iterable[Action]) -> None:
        for action in asked:
            if isinstance(action, Assign):
                self.unassigned[action.guid, action.name] = action.value
            elif isinstance(action, Inform):
                self.unjudged.append(action.guid)


def left_in(run_dir: str | Path) -> Left:
    """Take a run, and return what its journal tells.

    Raises StorageError where there is none, or it is no journal of ours, and FolderInUseError where somebody has it.
    """
    where = path_of("run_dir", run_dir)
    folder = run_folder(where.parent.name, where.parent.parent, where.name)
    if not (where / NAME).is_file():
        raise StorageError(f"there is no run to take up in {where}: it has no {NAME}")
    journal = Journal(where / NAME)  # before it is read: no other process goes on with it meanwhile
    try:
        left = Left(folder=folder, journal=journal)
        for event in read_journal(journal.path):
            left.take(event)
    except BaseException:
        journal.close()
        raise
    resources = left.state.resources
    left.names = {guid: name for guid, name in left.names.items() if guid in resources}
    failed = ResourceState.FAILED
    left.unjudged = [guid for guid in left.unjudged if guid in resources and resources[guid].state is failed]
    return left


class FileChanges:
    """Tells when a file that is there changes, or the process that writes it ends; for one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._look()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until the file has changed since the last wait; False if the time was over first."""
        deadline, pause = Deadline(timeout_s), threading.Event()
        while (seen := self._look()) == self._seen:
            if deadline.passed():
                return False
            pause.wait(min(_LOOK_S, deadline.left_s()))
        self._seen = seen
        return True

    def _look(self) -> tuple[object, ...]:
        try:
            about = self._path.stat()
        except OSError:
            return ()
        return about.st_ino, about.st_size, about.st_mtime_ns, holder_of(self._path)


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
        self._names: dict[int, str] = {}
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    @property
    def process(self) -> int | None:
        """The process that has the run; null where none has it any more, or nobody can know."""
        return holder_of(self.path)

    def names(self) -> dict[int, str]:
        """Return the names of resources that have one, as far as the journal was read."""
        return self._names  # which grows with what is read

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
        event = _event(line, self._lines, self.path)
        self.state, _, _ = step_safely(self.state, event)
        if isinstance(event, Registered) and event.name:
            self._names[event.guid] = event.name
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
