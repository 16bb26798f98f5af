"""The hosts of one job on their shared folder: each takes part under its own name, and the last one to end merges.

Files in ``hosts/KEY``: ``NODE.N.begin``, ``.beat`` and ``.end`` of the N-th run under a node's id, and ``claim.M``, the
run that merges after M ends. Only beats change, and no file is removed. Merging is idempotent: a claim saves work, and
nothing is lost if two hosts merge.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from fedmon.common.actor import Actor
from fedmon.common.errors import StorageError
from fedmon.common.files import Closing, TargetExistsError, storage_errors, write_whole
from fedmon.common.ids import JOB_PREFIX
from fedmon.node.collectors.job.process import find_birth, read_birth
from fedmon.node.job.layout import FILE_MODE, JobFolder, file_name, id_name

logger = logging.getLogger(__name__)

BEAT_S = 2.0
SILENT_BEATS = 6
"""Missed beats after which a host counts as lost."""
_LOOKS_A_BEAT = 4
TICK_S = 0.01  # files have the time of the kernel's last tick
_RUN_FILE = re.compile(r"([A-Za-z0-9_-]{1,64})\.(\d{1,9})\.(begin|end)")


class HostRun(NamedTuple):
    """One run of the tool on one host: the ``generation``-th under this node's id."""

    node_id: str
    generation: int

    def __str__(self) -> str:
        return f"{self.node_id}.{self.generation}"


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """The ``begin`` file of a run. ``machine`` names one boot and one pid namespace of a machine, empty if unknown.

    There the run is process ``pid``, which began ``start`` clock ticks after the boot.
    """

    boot: int
    machine: str = ""
    pid: int = 0
    start: int = 0


class _Seen(NamedTuple):
    ended: set[HostRun]
    newest: dict[str, HostRun]
    """The newest run of each node: an earlier one is over, or its id would not have been given again."""

    @property
    def running(self) -> list[HostRun]:
        return [run for run in self.newest.values() if run not in self.ended]


class _HostFolder:
    """The hosts of a job as one of them sees them; no clocks of two hosts are compared."""

    def __init__(self, path: Path, *, machine: str, patience_s: float) -> None:
        self.path, self._machine, self._patience_s = path, machine, patience_s
        self._beats: dict[HostRun, tuple[bytes, float]] = {}

    def see(self) -> _Seen:
        """List the runs. Raises StorageError."""
        # The folder is changed first, so that a network file system lists it anew.
        probe = self.path / f".look-{os.urandom(8).hex()}"
        with contextlib.suppress(OSError):
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
            probe.unlink()
        with storage_errors(self.path, "read"):
            names = [each.name for each in self.path.iterdir()]
        runs: dict[str, set[HostRun]] = {"begin": set(), "end": set()}
        for file in filter(None, map(_RUN_FILE.fullmatch, names)):
            runs[file[3]].add(HostRun(file[1], int(file[2])))
        return _Seen(runs["end"], {run.node_id: run for run in sorted(runs["begin"])})

    def is_alive(self, run: HostRun) -> bool | None:
        """Tell whether the process of a node's newest run lives; None if that is not known yet.

        On this machine its process tells; elsewhere its beat must change, and one without a change for six beats of
        this host's monotonic time is dead.
        """
        known = self.registration(run)
        if known is not None and self._machine and known.machine == self._machine:
            birth = find_birth(known.pid)
            return birth is not None and birth.start == known.start and not birth.is_zombie
        now, beat = time.monotonic(), self._content(f"{run}.beat")
        before, since = self._beats.get(run, (None, now))
        if before == beat:
            return False if now - since >= self._patience_s else None
        self._beats[run] = (beat, now)
        return None if before is None else True

    def sign(self, run: HostRun, seen: _Seen) -> bytes:
        """Return the last sign of life of a run: its beat, or its end."""
        return b"ended" if run in seen.ended else self._content(f"{run}.beat")

    def changed_at(self, name: str) -> float:
        """Return when a file was changed, by the file server's clock; 0 if it does not exist."""
        try:
            return (self.path / name).stat().st_mtime
        except OSError:
            return 0.0

    def registration(self, run: HostRun) -> Registration | None:
        """Return the registration of a run; None if it cannot be read."""
        try:
            return msgspec.json.decode(self._content(f"{run}.begin"), type=Registration)
        except msgspec.DecodeError:
            return None

    def write_once(self, name: str, content: bytes) -> bool:
        """Make a file, whole at once; False if another host made it before. Raises StorageError."""
        try:
            write_whole(self.path / name, content, mode=FILE_MODE, durable=True, only_new=True)
        except TargetExistsError:
            # The answer of a file server can get lost: then the file is ours, and refused when it is made again.
            return self._content(name) == content
        return True

    def _content(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError:
            return b""


class Membership(Closing):
    """One run of the tool on one host, among those of the other hosts of its job. A context manager.

    ``host`` is the name of this host in the run (with a number if another run uses it), ``node_id`` and ``boot`` are
    those of its samples, and ``clock_offset_s`` is this host's clock less that of the file server; all are known after
    `begin`. ``expected`` is the number of the job's hosts, if known. A thread beats from `begin` to `close`.
    """

    def __init__(
        self,
        folder: JobFolder,
        *,
        host: str,
        expected: int | None = None,
        beat_s: float = BEAT_S,
        wall: Callable[[], float] = time.time,
        machine: str | None = None,
    ) -> None:
        self._folder, self._hostname, self._expected = folder, host, expected
        self._beat_s, self._patience_s, self._wall = beat_s, beat_s * SILENT_BEATS, wall
        self._machine = _this_machine() if machine is None else machine
        self._hosts = self._look_into(folder.hosts)
        self._run, self._merged_ends, self._beats = HostRun("", 0), 0, 0
        self._began = time.monotonic()
        self._earlier: dict[HostRun, bytes] = {}
        self._actor: Actor | None = None
        self.host, self.node_id, self.boot = "", "", 0
        self.clock_offset_s = 0.0

    @property
    def recording(self) -> Path:
        """The recording of this host; no other run writes there."""
        return self._folder.recording(self.host)

    def begin(self) -> None:
        """Take part under a free name. Raises StorageError."""
        self._folder.make()
        self._began = time.monotonic()
        self._register()
        seen = self._hosts.see()
        self._earlier = {run: self._hosts.sign(run, seen) for run in seen.newest.values() if run != self._run}
        with storage_errors(self._folder.hosts):
            self.clock_offset_s = self._clock_offset()
        # Made here: CPython 3.13 cannot start a thread in a fork that was made before it (gh-134381).
        self._actor = Actor("fedmon-job-beat")
        self._actor.every(self._beat_s, self._beat_on)
        self._actor.start()

    def others_began(self) -> float | None:
        """Return when the other hosts began the run that this one joined, by the file server's clock.

        None for the first host of a run. Hosts that began before an earlier run of this host was over do not count.
        Raises StorageError.
        """
        before = HostRun(self.node_id, self._run.generation - 1)
        since = max(self._hosts.changed_at(f"{before}.{kind}") for kind in ("begin", "beat", "end"))
        others = (run for run in self._hosts.see().newest.values() if run != self._run)
        began = [at for run in others if (at := self._hosts.changed_at(f"{run}.begin")) > since]
        is_joined = self._expected is None or len(began) < self._expected
        return min(began, default=None) if is_joined else None

    def end(self) -> bool:
        """Note the end of this host; True if it is the one that merges, and calls `done` afterwards.

        Returns as soon as another host is known to live, which sees this end at its own. Otherwise it waits for six
        beats at most, for silent and for expected hosts. Raises StorageError.
        """
        self._hosts.write_once(f"{self._run}.end", b"")
        tick = threading.Event()
        while (is_ours := self._merges()) is None:
            tick.wait(self._beat_s / _LOOKS_A_BEAT)
        return is_ours

    def done(self) -> bool:
        """Tell after a merge whether a host ended meanwhile, so that this host merges again. Raises StorageError."""
        before, self._merged_ends = self._merged_ends, len(self._hosts.see().ended)
        return self._merged_ends > before

    def is_over(self) -> bool:
        """Tell whether every host of the job ended or is lost, and none is expected, under any prefix.

        Raises StorageError.
        """
        seen = self._hosts.see()
        others = (self._hosts.is_alive(run) for run in seen.running if run != self._run)
        if self._taking_part(seen) < (self._expected or 1) or any(life is not False for life in others):
            return False
        siblings = self._folder.save_dir.glob(f"*/hosts/{self._folder.key}")
        return not any(
            hosts.is_alive(run) is not False
            for hosts in (self._look_into(path) for path in siblings if path != self._folder.hosts)
            for run in hosts.see().running
        )

    def close(self) -> None:
        """Stop beating; safe to call twice."""
        if self._actor is not None:
            self._actor.close(timeout_s=self._beat_s)

    def _look_into(self, path: Path) -> _HostFolder:
        return _HostFolder(path, machine=self._machine, patience_s=self._patience_s)

    # --- taking part -------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        seen = self._hosts.see()
        for number in itertools.count(1):
            host = file_name(self._hostname if number == 1 else f"{self._hostname}-{number}")
            if self._take(host, id_name(f"{JOB_PREFIX}{self._folder.key}-{host.replace('.', '-')}"), seen):
                return

    def _take(self, host: str, node_id: str, seen: _Seen) -> bool:
        """Register as the next run under an id; False while an earlier one may be there."""
        before = seen.newest.get(node_id, HostRun(node_id, 0))
        alive = self._hosts.is_alive(before)
        # A run that has ended still merges and streams under its name, as long as its process lives.
        if alive or (alive is None and before in seen.running):
            return False
        earlier = self._hosts.registration(before)
        boot = max(int(self._wall()), 0 if earlier is None else earlier.boot + 1)
        run, pid = HostRun(node_id, before.generation + 1), os.getpid()
        entry = Registration(boot=boot, machine=self._machine, pid=pid, start=read_birth(pid).start)
        if not self._hosts.write_once(f"{run}.begin", msgspec.json.encode(entry)):
            return False
        self._run, self.host, self.node_id, self.boot = run, host, node_id, boot
        return True

    def _clock_offset(self) -> float:
        """Return this host's wall clock less that of the file server, in seconds; 0 if they may be the same."""
        before = self._wall()
        found = self._beat(b"0", sync=True)
        # A slow disk is no reason to doubt a clock.
        nearest = min(max(found.st_mtime, before - TICK_S), self._wall())
        return round(nearest - found.st_mtime, 3)

    def _beat_on(self) -> None:
        self._beats += 1
        try:
            self._beat(str(self._beats).encode())
        except OSError as error:
            raise StorageError(f"the other hosts cannot see that this one lives: {error}") from error

    def _beat(self, content: bytes, *, sync: bool = False) -> os.stat_result:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._folder.hosts / f"{self._run}.beat", flags, FILE_MODE)
        try:
            os.pwrite(descriptor, content, 0)
            if sync:
                os.fsync(descriptor)
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    # --- merging -----------------------------------------------------------------------------------------------------

    def _merges(self) -> bool | None:
        """Tell whether this host, which has ended, merges; None to look again.

        A living host sees this end at its own. So it is enough that one host goes on: the last one, or the first to
        claim the merge of the same ends.
        """
        seen = self._hosts.see()
        lives = [self._hosts.is_alive(run) for run in seen.running if run != self._run]
        if True in lives:
            return False
        is_patient = self._expected is not None and time.monotonic() - self._began < self._patience_s
        if None in lives or (is_patient and self._taking_part(seen) < (self._expected or 0)):
            return None
        self._merged_ends = len(seen.ended)
        if not self._hosts.write_once(f"claim.{self._merged_ends}", str(self._run).encode()):
            return False
        for run in seen.running:
            logger.warning("host %s is silent and has not ended: its samples are merged without their end", run)
        if self._expected is not None and len(seen.newest) < self._expected:
            logger.warning("%d of %d hosts of the job took part", len(seen.newest), self._expected)
        return True

    def _taking_part(self, seen: _Seen) -> int:
        """Return how many hosts take part in this run: those of an earlier one gave no sign of life since it began."""
        return sum(self._earlier.get(run) != self._hosts.sign(run, seen) for run in seen.newest.values())


def _this_machine() -> str:
    """Name this boot of this machine, and the pid namespace; empty if unknown."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
