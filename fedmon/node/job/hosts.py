"""The hosts of one job on the folder they share: each takes part under its own name, and one of them merges.

Files in ``hosts/KEY``: ``NODE.N.begin``, ``.beat`` and ``.end`` of the N-th run under a node's id, ``NODE.lock``, held
while that run lives, ``claim``, the host that merges now, and ``merged``, the claim that was done last. Merging is
idempotent: the claim saves work, and nothing is lost where two hosts merge.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import msgspec

from fedmon.common.errors import StorageError
from fedmon.common.files import LockFile, write_whole
from fedmon.common.ids import JOB_PREFIX
from fedmon.node.collectors.base import THIS_MACHINE, Roots
from fedmon.node.job.layout import FILE_MODE, MAX_NAME, JobFolder, file_name

logger = logging.getLogger(__name__)

T = TypeVar("T")

BEAT_S = 3.0
SILENT_BEATS = 4
"""A host that misses so many beats counts as lost."""
_LOOKS_A_BEAT = 6
_TICK_S = 0.01
_MOST_NAMES = 1000
_RUN_FILE = re.compile(r"([A-Za-z0-9_-]{1,64})\.(\d{1,9})\.(begin|end)")


class HostRun(NamedTuple):
    """One run of the tool on one host: the ``generation``-th under this node's id."""

    node_id: str
    generation: int

    def __str__(self) -> str:
        return f"{self.node_id}.{self.generation}"


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """The ``begin`` file of a run; ``machine`` names one boot of one machine, empty if unknown."""

    host: str
    boot: int
    machine: str = ""
    step: str | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The run that merges, and the runs that had ended when it began to."""

    by: tuple[str, int]
    ended: list[tuple[str, int]]


class Life(enum.Enum):
    """The state of another host's process, as far as it is known."""

    ALIVE = "alive"
    LOST = "lost"
    UNKNOWN = "unknown"


class _Choice(enum.Enum):
    OURS = "merge"
    THEIRS = "another host merges, or all is merged"
    WAIT = "look again"


class _Seen(NamedTuple):
    begun: frozenset[HostRun]
    ended: frozenset[HostRun]

    @property
    def newest(self) -> dict[str, HostRun]:
        """Map each node to its newest run: an earlier one is over, or its id would not have been given again."""
        return {run.node_id: run for run in sorted(self.begun)}

    @property
    def running(self) -> list[HostRun]:
        return [run for run in self.newest.values() if run not in self.ended]


class _Beat(NamedTuple):
    content: bytes
    since: float
    watched: bool = False


class Membership:
    """One run of the tool on one host, among those of the other hosts of its job. A context manager.

    No two clocks are compared. Another host lives if its lock is held; where locks do not reach it, if its beat changes
    within four beats of this host's monotonic time. ``host`` is the name of this host in the run (followed by a number
    if another run uses it), ``node_id`` and ``boot`` are those of its samples; all are known after `begin`.
    ``expected`` is the number of the job's hosts, if known. A thread beats from `begin` to `close`.
    """

    def __init__(
        self,
        folder: JobFolder,
        *,
        host: str,
        expected: int | None = None,
        beat_s: float = BEAT_S,
        wall: Callable[[], float] = time.time,
        roots: Roots = THIS_MACHINE,
    ) -> None:
        self._folder, self._hostname, self._expected = folder, host, expected
        self._beat_s, self._patience_s, self._wall = beat_s, beat_s * SILENT_BEATS, wall
        try:
            self._machine = (roots.proc / "sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            self._machine = ""
        self._lock: LockFile | None = None
        self._run, self._step = HostRun("", 0), ""
        self._claim: Claim | None = None
        self._began = time.monotonic()
        self._beats: dict[HostRun, _Beat] = {}
        self._earlier = self._before = frozenset[HostRun]()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="fedmon-job-beat", daemon=True)
        self.host, self.node_id, self.boot = "", "", 0
        self.clock_offset_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def recording(self) -> Path:
        """Where this host records; no other run writes there."""
        return self._folder.recording(self.host)

    def begin(self, step: str | None = None) -> None:
        """Take part under a free name, in this step of the job. Raises StorageError."""
        self._folder.make()
        self._began, self._step = time.monotonic(), step or ""
        self._register()
        seen = self._see()
        self._earlier, self._before = seen.ended, frozenset(seen.running) - {self._run}
        self._beats = {run: _Beat(self._last_beat(run), self._began) for run in self._before}
        self.clock_offset_s = self._clock_offset()
        self._thread.start()

    def others_began(self) -> float | None:
        """Return when the run began that other hosts began and this one joined, by the file server's clock.

        None for the first host of a run. Hosts that began before an earlier run of this host was over do not count.
        Raises StorageError.
        """
        before = f"{self._run._replace(generation=self._run.generation - 1)}"
        since = max(self._changed(f"{before}.{kind}") for kind in ("begin", "beat", "end"))
        began, steps = [], set()
        for run in self._see().newest.values():
            at, registration = self._changed(f"{run}.begin"), self._read(f"{run}.begin", Registration)
            if run != self._run and registration is not None and at > since:
                began.append(at)
                steps |= {registration.step} - {None, ""}
        joined = self._step in steps if self._step and steps else len(began) < (self._expected or 2**31)
        return min(began) if began and joined else None

    def end(self, *, given_up: threading.Event | None = None) -> bool:
        """Note the end of this host; True when it is the one that merges, and calls `done` afterwards.

        Returns at once while another host lives. Else it waits until each of the others has moved or was silent for
        four beats, and for expected hosts as long after `begin`; ``given_up`` ends that with False. Raises
        StorageError.
        """
        _write_once(self._file(f"{self._run}.end"), b"{}")
        return self._decide(given_up or threading.Event())

    def done(self) -> bool:
        """Note that everything is merged; True when a host ended meanwhile, so that it is to be done again.

        Raises StorageError.
        """
        write_whole(self._file("merged"), msgspec.json.encode(self._claim), mode=FILE_MODE)
        claim = self._read("claim", Claim)
        if claim is not None and claim.by == self._run:
            self._file("claim").unlink(missing_ok=True)
        # A host that saw our claim left without merging: its end is visible now.
        return self._decide(threading.Event())

    def is_over(self) -> bool:
        """Tell whether every host ended or is lost, and none is still expected. Raises StorageError."""
        seen = self._see()
        others = (self._life(run, seen) for run in seen.running if run != self._run)
        return all(life is Life.LOST for life in others) and self._taking_part(seen) >= (self._expected or 1)

    def close(self) -> None:
        """Stop beating and free the name; safe to call twice."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._lock is not None:
            self._lock.release()

    # --- taking part -------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        for number in range(1, _MOST_NAMES):
            host = file_name(self._hostname if number == 1 else f"{self._hostname}-{number}")
            node_id = _node_id(self._folder.key, host)
            lock = LockFile(self._file(f"{node_id}.lock"))
            is_ours: bool | None = None
            with contextlib.suppress(StorageError):  # this file system may have no locks
                is_ours = lock.take()
            if is_ours is not False and self._take(host, node_id, has_lock=bool(is_ours)):
                self._lock = lock
                return
            lock.release()
        raise StorageError(
            f"{_MOST_NAMES} runs of this job say that they are {self._hostname!r}: see {self._folder.hosts}"
        )

    def _take(self, host: str, node_id: str, *, has_lock: bool) -> bool:
        """Register as the next run under an id; False while an earlier one may live."""
        seen = self._see()
        before, earlier_boot = seen.newest.get(node_id), 0
        if before is not None:
            earlier = self._read(f"{before}.begin", Registration)
            earlier_boot = 0 if earlier is None else earlier.boot
            # A free lock tells of its holder's death on one machine alone.
            is_here = earlier is not None and bool(self._machine) and earlier.machine == self._machine
            if before not in seen.ended and not (is_here and has_lock):
                return False
        run = HostRun(node_id, 1 if before is None else before.generation + 1)
        boot = max(int(self._wall()), earlier_boot + 1)
        entry = Registration(host=host, boot=boot, machine=self._machine, step=self._step or None)
        if not _write_once(self._file(f"{run}.begin"), msgspec.json.encode(entry)):
            return False
        self._run, self.host, self.node_id, self.boot = run, host, node_id, boot
        return True

    def _clock_offset(self) -> float | None:
        """Return this host's wall clock less that of the file server, in seconds; 0 if they may be the same."""
        before = self._wall()
        try:
            found = self._beat(b"0", sync=True)
        except OSError as error:
            logger.info("the clocks of the hosts cannot be compared: %s", error)
            return None
        # A slow disk is no reason to doubt a clock; and files have the time of the kernel's last tick.
        nearest = min(max(found.st_mtime, before - _TICK_S), self._wall())
        return round(nearest - found.st_mtime, 3)

    def _beat_on(self) -> None:
        beats = failures = 0
        while not self._ended.wait(self._beat_s):
            beats += 1
            try:
                self._beat(str(beats).encode())
            except OSError as error:
                level = logging.DEBUG if failures else logging.WARNING
                logger.log(level, "the other hosts cannot see that this one lives: %s", error)
                failures += 1

    def _beat(self, content: bytes, *, sync: bool = False) -> os.stat_result:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._file(f"{self._run}.beat"), flags, FILE_MODE)
        try:
            os.pwrite(descriptor, content, 0)
            if sync:
                os.fsync(descriptor)
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    # --- the other hosts ---------------------------------------------------------------------------------------------

    def _life(self, run: HostRun, seen: _Seen) -> Life:
        if seen.newest.get(run.node_id, run) != run:
            return Life.LOST
        is_free = self._lock_is_free(run)
        if is_free is False:
            return Life.ALIVE
        registration = self._read(f"{run}.begin", Registration)
        if is_free and registration is not None and self._machine and registration.machine == self._machine:
            return Life.LOST
        now, content, known = time.monotonic(), self._last_beat(run), self._beats.get(run)
        if known is None or known.content != content:
            self._beats[run] = _Beat(content, now, watched=True)
            # A change since `begin` tells of some time since then, not of now.
            return Life.ALIVE if known is not None and known.watched else Life.UNKNOWN
        if now - known.since >= self._patience_s:
            return Life.LOST
        self._beats[run] = known._replace(watched=True)
        return Life.UNKNOWN

    def _lock_is_free(self, run: HostRun) -> bool | None:
        """Tell whether a run's lock is free, None if there is none; on some file systems that is for one machine."""
        lock = self._file(f"{run.node_id}.lock")
        try:
            return LockFile(lock).holder() is None if lock.exists() else None
        except StorageError:
            return None

    def _taking_part(self, seen: _Seen) -> int:
        """Return how many hosts take part in this run: not those of an earlier one that are silent."""
        return sum(
            run not in self._earlier
            and not (run in self._before and run not in seen.ended and self._life(run, seen) is Life.LOST)
            for run in seen.newest.values()
        )

    # --- who merges --------------------------------------------------------------------------------------------------

    def _decide(self, given_up: threading.Event) -> bool:
        while True:
            seen = self._see()
            choice = self._choose(seen)
            if choice is _Choice.THEIRS:
                return False
            if choice is _Choice.OURS:
                self._claim = Claim(by=self._run, ended=sorted(seen.ended))
                if _write_once(self._file("claim"), msgspec.json.encode(self._claim)):
                    self._log_missing(seen)
                    return True
            elif given_up.wait(self._beat_s / _LOOKS_A_BEAT):
                logger.warning("what other hosts do is not known: 'fedmon job merge %s' merges", self._folder.path)
                return False

    def _choose(self, seen: _Seen) -> _Choice:
        """Decide for a host that ended.

        A host that lives will see our end at its own, and the one that merges looks for ends once more afterwards. So
        it is enough that one host goes on: the last one, or the first to claim if none knows who is the last.
        """
        lives = [self._life(run, seen) for run in seen.running if run != self._run]
        if Life.ALIVE in lives:
            return _Choice.THEIRS
        if (claim := self._read("claim", Claim)) is not None or self._file("claim").exists():
            life = Life.LOST if claim is None else self._life(HostRun(*claim.by), seen)
            if life is not Life.LOST:
                return _Choice.THEIRS if life is Life.ALIVE else _Choice.WAIT
            self._file("claim").unlink(missing_ok=True)
        merged = self._read("merged", Claim)
        if merged is not None and seen.ended <= {HostRun(*each) for each in merged.ended}:
            return _Choice.THEIRS
        is_patient = self._expected is not None and time.monotonic() - self._began < self._patience_s
        is_absent = is_patient and self._taking_part(seen) < (self._expected or 0)
        return _Choice.WAIT if is_absent or Life.UNKNOWN in lives else _Choice.OURS

    def _log_missing(self, seen: _Seen) -> None:
        for run in seen.running:
            logger.warning("host %s did not end and is silent: what it recorded is merged without its end", run)
        if self._expected is not None and len(seen.newest) < self._expected:
            logger.warning("%d of %d hosts of the job took part", len(seen.newest), self._expected)

    # --- files -------------------------------------------------------------------------------------------------------

    def _file(self, name: str) -> Path:
        return self._folder.hosts / name

    def _see(self) -> _Seen:
        # Changed first, so that a network file system lists the folder anew.
        probe = self._file(f".look-{os.urandom(8).hex()}")
        with contextlib.suppress(OSError):
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
            probe.unlink()
        try:
            names = os.listdir(self._folder.hosts)  # noqa: PTH208  # names are all that is needed
        except OSError as error:
            raise StorageError(f"cannot read {self._folder.hosts}: {error.strerror}") from error
        found: dict[str, set[HostRun]] = {"begin": set(), "end": set()}
        for file in filter(None, map(_RUN_FILE.fullmatch, names)):
            found[file[3]].add(HostRun(file[1], int(file[2])))
        return _Seen(frozenset(found["begin"]), frozenset(found["end"]))

    def _last_beat(self, run: HostRun) -> bytes:
        try:
            return self._file(f"{run}.beat").read_bytes()[:100]
        except OSError:
            return b""

    def _changed(self, name: str) -> float:
        try:
            return self._file(name).stat().st_mtime
        except OSError:
            return 0.0

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode(self._file(name).read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            return None


def _write_once(path: Path, content: bytes) -> bool:
    """Make a file, whole at once; False when it is there already. Raises StorageError.

    A file server makes or refuses a link in one step; where there are no links, the file itself is made.
    """
    staged = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        with open(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(staged, path)
        except FileExistsError:
            # A file server's answer can get lost: then the link is there, and refused when it is asked for again.
            return staged.stat().st_nlink > 1
        except OSError:
            try:
                with path.open("xb") as file:
                    file.write(content)
            except FileExistsError:
                return False
        return True
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            staged.unlink()


def _node_id(key: str, host: str) -> str:
    """Return the id of one host's samples, also at a broker."""
    text = re.sub(r"[^A-Za-z0-9_-]", "-", f"{JOB_PREFIX}{key}-{host}")
    return text if len(text) <= MAX_NAME else re.sub(r"[^A-Za-z0-9_-]", "-", file_name(text + host))
