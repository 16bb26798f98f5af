"""The journal of a run: one event a line, written before it takes effect; its folder, its replay, and its followers."""

from __future__ import annotations

import contextlib
import datetime
import functools
import operator
import os
import re
import secrets
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import FolderInUseError, NotFoundError, StorageError
from fedmon.common.files import Closing, LockFile, at_home, storage_errors
from fedmon.common.store.seq_ranges import SeqRanges
from fedmon.experiment.errors import DescriptionError, UnwritableEventError
from fedmon.experiment.events import (
    AnyEvent,
    Assign,
    AttributeSet,
    ConditionAdded,
    Inform,
    Leveled,
    Measured,
    Opened,
    Registered,
    Reopened,
    SetWanted,
    TaskDone,
    TaskScheduled,
)
from fedmon.experiment.machine import step_safely
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceState

NAME = "journal.jsonl"
DOCUMENT = "experiment.toml"
"""The file that keeps the document of a run, for its failure policy and its report."""
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_FORK_S = 1.0
"""How long a forked child may take to close its copy of a journal."""
_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(
    functools.reduce(operator.or_, AnyEvent.__subclasses__())
)


def new_run_dir(exp_id: str | None, local_dir: str | Path | None) -> Path:
    """Return the folder of a new run, ``local_dir/exp_id/run_id``; nothing is made yet.

    Without ``exp_id`` the experiment gets a random name; without ``local_dir`` the folder is in that of temporary
    files, as in NEPI. Raises DescriptionError and InvalidInputError.
    """
    exp_id = f"exp-{secrets.token_hex(4)}" if exp_id is None else exp_id
    check_folder_name("experiment id", exp_id)
    where = at_home(tempfile.gettempdir() if local_dir is None else local_dir).absolute()
    return where / exp_id / run_id_of(utc_now())


def check_folder_name(what: str, name: object) -> None:
    """Raise DescriptionError for an id that cannot be the name of a folder, on any system."""
    if not (type(name) is str and _ID.fullmatch(name)):
        raise DescriptionError(
            f"{what} {name!r:.100} cannot name a folder; use up to 100 letters, digits, '-', '_' and '.', "
            "and neither '.' nor '-' first"
        )


def run_id_of(moment: datetime.datetime) -> str:
    """Return the id of a run that begins at a moment: 20 digits, YYYYMMDDhhmmss and microseconds."""
    return moment.strftime("%Y%m%d%H%M%S%f")


class Journal(Closing):
    """A file of events that one process holds; for one thread at a time.

    A written event survives the death of the process. Raises FolderInUseError if another process or another controller
    has the run, and StorageError if the file cannot be written. A fork of the process does not have the journal.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._file, self._lock = path, -1, LockFile(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._lock.take(timeout_s=_FORK_S):
                raise _in_use(path)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with path.open("rb") as lines:
                self._size = sum(len(line) for line in lines if line.endswith(b"\n"))
            os.ftruncate(self._file, self._size)  # without a last line that a crash cut off
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise StorageError(f"cannot keep the journal {path}: {error.strerror}") from error
            raise
        _open.add(self)

    def __del__(self) -> None:  # a forgotten experiment must not keep its run
        self.close()

    def write(self, happened: Iterable[AnyEvent]) -> None:
        """Append events, all or none. Raises UnwritableEventError for one that JSON cannot hold."""
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
            with contextlib.suppress(OSError):  # else it is a torn last line, which is ignored
                os.ftruncate(self._file, self._size)
            raise StorageError(f"cannot write to the journal {self.path}: {error.strerror}") from error
        self._size += len(text)

    def close(self) -> None:
        """Let another process have the run."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
        self._lock.release()


_open: weakref.WeakSet[Journal] = weakref.WeakSet()
"""The journals of this process."""


def _in_use(path: Path) -> FolderInUseError:
    """Return the error that says who has a run."""
    if any(each.path == path for each in list(_open)):
        return FolderInUseError(
            f"this process has the experiment in {path.parent} open: shut that controller down first"
        )
    return FolderInUseError(f"another process runs the experiment in {path.parent}: wait for its end, or stop it")


def _close_all() -> None:
    """Close the journals that a fork inherited; else it would keep the locks when its parent is dead."""
    for journal in list(_open):
        journal.close()


os.register_at_fork(after_in_child=_close_all)


def _line(event: AnyEvent) -> bytes:
    try:
        return _ENCODER.encode(event) + b"\n"
    except Exception as error:
        raise UnwritableEventError(f"{type(event).__name__} cannot be written down in the journal: {error}") from error


class Reports:
    """The numbers of the reports that conditions know, by their source; those without a gap take no memory."""

    def __init__(self) -> None:
        self._known: dict[str, SeqRanges] = {}
        self._last: tuple[str, int] | None = None
        self._names: set[str] = set()

    def add(self, source: str, number: int) -> bool:
        """Add a report; return False if it was known."""
        known = self._known.setdefault(source, SeqRanges())
        is_new = not known.within(number, number)
        known.add(number, number)
        return is_new

    def note(self, event: Measured) -> None:
        """Add a value that the journal holds; a crash may have cut off the rest of the last report."""
        if event.nth is not None:
            report = event.source, event.nth
            if report != self._last:
                self._last, self._names = report, set()
                self.add(*report)
            self._names.add(event.name)

    def take(self, source: str, number: int, values: Mapping[str, float | None]) -> Mapping[str, float | None]:
        """Return the values of a report that conditions do not know, and add them."""
        if self.add(source, number):
            return values
        names = self._names if (source, number) == self._last else values.keys()
        taken = {name: value for name, value in values.items() if name not in names}
        self._names.update(taken)
        return taken


class ReplayedRun(msgspec.Struct, kw_only=True):
    """A run as its journal tells it: its folder and state, and the actions whose end was not noted.

    ``journal`` is held. ``until`` is the moment of the last event, ``process`` the one that ran it last;
    ``highest_guid``, ``conditions`` and ``tasks`` are the last numbers. ``unassigned`` are attributes to set, by guid
    and name; ``unjudged`` are failed resources that the failure manager has not judged; ``due`` are tasks to run.
    """

    folder: Path
    journal: Journal | None = None
    state: State = State()
    until: float = 0.0
    highest_guid: int = 0
    conditions: int = 0
    tasks: int = 0
    opened: Opened | None = None
    process: int = 0
    unassigned: dict[tuple[int, str], Assign] = {}
    unjudged: list[int] = []
    due: dict[int, TaskScheduled] = {}
    reports: dict[int, Reports] = {}
    """The numbered reports of metrics by guid; of a job, since it was last sent."""

    def take(self, event: AnyEvent) -> None:
        """Go on by an event."""
        self.state, actions, _ = step_safely(self.state, event)
        self.until = max(self.until, event.t)
        match event:
            case Opened():
                self.opened, self.process = event, event.process
            case Reopened(process=process):
                self.process = process
            case Registered(guid=guid):
                self.highest_guid = max(self.highest_guid, guid)
            case AttributeSet(guid=guid, name=name):
                self.unassigned.pop((guid, name), None)
            case Leveled(guid=guid) if guid in self.unjudged:
                self.unjudged.remove(guid)
            case ConditionAdded() | SetWanted() if event.condition is not None:
                self.conditions = max(self.conditions, event.condition.number)
            case TaskScheduled(number=number):
                self.due[number], self.tasks = event, max(self.tasks, number)
            case TaskDone(number=number):
                self.due.pop(number, None)
        self.unassigned |= {(action.guid, action.name): action for action in actions if isinstance(action, Assign)}
        self.unjudged += [action.guid for action in actions if isinstance(action, Inform)]
        self._take_reports(event)

    def _take_reports(self, event: AnyEvent) -> None:
        if isinstance(event, Measured):
            self.reports.setdefault(event.guid, Reports()).note(event)
        elif isinstance(event, AttributeSet) and event.name == "jobId":
            self.reports.pop(event.guid, None)


def replayed_run(run_dir: str | Path) -> ReplayedRun:
    """Take a run over, and return it. Raises StorageError without a good journal, and FolderInUseError."""
    where = at_home(run_dir).absolute()
    if not os.access(where / NAME, os.R_OK, effective_ids=True):
        raise StorageError(f"no run found in {where}: it has no {NAME} that you may read")
    journal = Journal(where / NAME)  # before it is read, so that no other process goes on with it meanwhile
    try:
        follower = Follower(where)
        follower.look()
    except BaseException:
        journal.close()
        raise
    run = follower.run
    run.journal, resources = journal, run.state.resources
    failed = ResourceState.FAILED
    run.unjudged = [guid for guid in run.unjudged if guid in resources and resources[guid].state is failed]
    return run


class Follower:
    """A reader of the journal of a run that continues; for one thread. Raises NotFoundError for a folder without one.

    ``run`` is the part read so far, ``began`` the moment of its first event, 0 before that was read. ``on_event`` is
    called with each event once, unless the journal was read again from its start.
    """

    def __init__(self, run_dir: str | Path, *, on_event: Callable[[AnyEvent], object] = lambda _event: None) -> None:
        self._on_event = on_event
        self.folder = at_home(run_dir).absolute()
        self.path = self.folder / NAME
        if not os.access(self.path, os.R_OK, effective_ids=True):
            where = "the folder of a run is LOCAL_DIR/EXP_ID/RUN_ID"
            raise NotFoundError(f"no run found in {self.folder}: it has no {NAME} that you may read; {where}")
        self._begin()

    @property
    def is_held(self) -> bool:
        """Whether a process runs the experiment."""
        with contextlib.suppress(StorageError):
            return LockFile(self.path).holder() is not None
        return False

    def look(self) -> None:
        """Read the new events. Raises StorageError, which names a wrong line."""
        with storage_errors(self.path, "read the journal"), self.path.open("rb") as file:
            if file.seek(0, 2) < self._offset:  # lines that could not be written whole were removed
                self._begin()
            file.seek(self._offset)
            for line in file:
                if line.endswith(b"\n"):
                    self._take(line)

    def _begin(self) -> None:
        self.run, self.began = ReplayedRun(folder=self.folder), 0.0
        self._offset = self._lines = 0

    def _take(self, line: bytes) -> None:
        self._lines += 1
        try:
            event = _DECODER.decode(line)
        except msgspec.DecodeError as error:
            raise StorageError(
                f"line {self._lines} of {self.path} is not an event of an experiment: {error}"
            ) from error
        self.run.take(event)
        self._on_event(event)
        self.began = self.began or event.t
        self._offset += len(line)
