"""Watch over a running plan: read what it sends and prints, hold it to its limits, and see all of it end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from fedmon.common.wire.runs import JobState, Level
from fedmon.node.collectors.job.family import Relative, descendants, relative
from fedmon.node.runs.journal import Journal
from fedmon.node.runs.killing import Known, Signals, end_all, reap, send
from fedmon.node.runs.metering import Meter
from fedmon.node.runs.order import Limits, Logged
from fedmon.node.runs.result_file import ResultFile
from fedmon.node.runs.trace import TraceWriter
from fedmon.node.runs.verdict import Said, Verdict, exit_code, output_reason, wall_reason
from fedmon.plan.frame_reader import (
    BadFrameError,
    Begun,
    Failure,
    Frame,
    FrameReader,
    LogLine,
    OutputTooLargeError,
    Piece,
    Scalars,
)

CHUNK_BYTES = 1_048_576
POKE_EVERY_S = 0.05
"""The daemon is told of news at once, and then no more often than this."""
_FIRST_LOOK_S = 0.1
_KILL_TIMEOUT_S = 10.0
_DRAIN_S = 2.0


class Streams(msgspec.Struct, frozen=True, kw_only=True):
    """The keeper's ends of the three pipes, which do not block."""

    channel: int
    stdout: int
    stderr: int


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Where what the plan sends and prints is kept, and who is told that there is news."""

    journal: Journal
    result: ResultFile
    stdout: TraceWriter
    stderr: TraceWriter
    poke: Callable[[], bool]
    """Tells the daemon; false when it cannot be told now."""
    remember: Callable[[list[Known]], None]
    """Writes down who is to be killed if the keeper is not there to do it."""
    is_findable: Callable[[], bool]
    """Tells whether the job's folder is still there; without it nobody can find the job, or stop it."""


class Supervision:
    """One plan from its start to the end of everything that it started.

    After `run`, the attributes tell what was seen. Limits are counted by the monotonic clock alone.
    """

    def __init__(
        self, pid: int, level: Level, limits: Limits, streams: Streams, kept: Kept, meter: Meter, signals: Signals
    ) -> None:
        self._pid, self._level, self._limits = pid, level, limits
        self._kept, self._meter, self._signals = kept, meter, signals
        self._reader = FrameReader(output_bytes=limits.output_bytes)
        self._takers: dict[int, Callable[[memoryview], None]] = {
            streams.channel: self._take_frames,
            streams.stdout: kept.stdout.write,
            streams.stderr: kept.stderr.write,
        }
        self._poller = select.poll()
        self._buffer = bytearray(CHUNK_BYTES)
        self._begun = time.monotonic()
        self._poke_at: float | None = None
        self._poked = float("-inf")
        self._kill_at: float | None = None
        self._known: frozenset[Known] = frozenset()
        self.cut: Verdict | None = None
        self.said: Said | None = None
        self.exit_code: int | None = None
        self.wall_s = 0.0
        self.broken = ""
        self.has_begun = False
        """Whether the interpreter said so; nothing of the plan ran before."""
        self.left: list[Known] = []
        """Who could not be killed."""

    @property
    def result_format(self) -> Literal["json", "npz"] | None:
        """The format of the result when a whole one came."""
        is_whole = self._reader.result_format is not None and self._reader.has_ended
        return self._reader.result_format if is_whole else None

    def run(self) -> None:
        """Watch until the plan's first process has ended, then end the rest."""
        for descriptor in (*self._takers, self._signals.descriptor):
            self._poller.register(descriptor, select.POLLIN)
        wall_at = self._begun + self._limits.wall_s
        look_at = self._begun + _FIRST_LOOK_S
        self._remember([each for each in [relative(self._pid)] if each is not None])
        while self.exit_code is None:
            self._read_once(self._wait_ms(wall_at, look_at))
            now = time.monotonic()
            if now >= wall_at:
                self.end(Verdict(JobState.WALL_LIMIT, wall_reason(self._limits)), is_gentle=True)
            if now >= look_at:
                self._look()
                look_at = time.monotonic() + self._meter.pause_s
            if self._kill_at is not None and now >= self._kill_at:
                break
            if self._poke_at is not None and now >= self._poke_at:
                self._poke(now)
        self.wall_s = time.monotonic() - self._begun
        self._end_everything()
        self._drain()

    def end(self, verdict: Verdict, *, is_gentle: bool) -> None:
        """End the plan for a reason; the first reason counts. A gentle end leaves it ``grace_s`` after SIGTERM."""
        if self.cut is not None:
            if not is_gentle:
                self._kill_at = time.monotonic()
            return
        self.cut = verdict
        self._kill_at = time.monotonic() + (self._limits.grace_s if is_gentle else 0.0)
        if is_gentle:
            for each in self._plan_processes():
                send(Known(each.pid, each.start), signal.SIGTERM)

    def _plan_processes(self) -> list[Relative]:
        """Return the processes of the plan; without the sandbox's own two, which would end without a word to it."""
        found = descendants(os.getpid())
        if self._level != "bubblewrap":
            return found
        inits = {each.pid for each in found if each.parent == self._pid}
        return [each for each in found if each.pid != self._pid and each.pid not in inits]

    def _wait_ms(self, wall_at: float, look_at: float) -> float:
        moments = [wall_at, look_at, self._kill_at, self._poke_at]
        return max(0.0, min(each for each in moments if each is not None) - time.monotonic()) * 1000

    def _read_once(self, wait_ms: float) -> None:
        for descriptor, _ in self._poller.poll(wait_ms):
            if descriptor == self._signals.descriptor:
                self._hear_signals()
            else:
                self._read(descriptor)

    def _hear_signals(self) -> None:
        self._signals.clear()
        asked = self._signals.asked()
        if asked is not None:
            self.end(asked, is_gentle=True)
        self._reap()

    def _reap(self) -> None:
        status = reap().get(self._pid)
        if status is not None:
            self.exit_code = exit_code(status, self._level)

    def _read(self, descriptor: int) -> bool:
        """Read what there is of one pipe; tell whether there may be more."""
        try:
            size = os.readv(descriptor, [self._buffer])
        except BlockingIOError:
            return False
        except OSError:
            size = 0
        if not size:
            self._poller.unregister(descriptor)
            del self._takers[descriptor]
            os.close(descriptor)
            return False
        with memoryview(self._buffer) as whole, whole[:size] as chunk:
            self._takers[descriptor](chunk)
        if self._poke_at is None:
            self._poke_at = max(time.monotonic(), self._poked + POKE_EVERY_S)
        return True

    def _take_frames(self, chunk: memoryview) -> None:
        if self.broken or (self.cut is not None and self.cut.state is JobState.OUTPUT_LIMIT):
            return
        try:
            for frame in self._reader.feed(chunk):
                self._take(frame)
        except OutputTooLargeError as error:
            reason = output_reason(error.size_bytes, self._limits)
            self.end(Verdict(JobState.OUTPUT_LIMIT, reason), is_gentle=False)
        except BadFrameError as error:
            self.broken = f"what the plan sent through its channel is not what fedmon sends: {error}"
            self.end(Verdict(JobState.FAILED, self.broken), is_gentle=False)
        else:
            if self._reader.has_ended and self.exit_code is None:
                self._meter.note_peaks()

    def _take(self, frame: Frame) -> None:
        now, mono = time.time(), time.monotonic()  # the plan's own clock is the plan's to set
        match frame:
            case Begun():
                self.has_begun = True
            case Piece():
                self._kept.result.write(frame.data)
            case Scalars():
                self._kept.journal.report(now, frame.values, frame.step, mono=mono)
            case LogLine():
                self._kept.journal.log(Logged(t=now, level=frame.level, message=frame.message), mono=mono)
            case Failure():
                self.said = Said(
                    state=JobState(frame.state),
                    reason=frame.reason,
                    type=frame.type,
                    message=frame.message or "",
                    traceback=frame.traceback or "",
                )

    def _look(self) -> None:
        if not self._kept.is_findable():
            self.end(Verdict(JobState.LOST, "the folder of the job was removed while it ran"), is_gentle=False)
        excess = self._meter.read()
        self._remember(self._meter.relatives)
        if excess is not None:
            self.end(excess.verdict, is_gentle=excess.is_gentle)

    def _remember(self, relatives: Iterable[Relative]) -> None:
        known = frozenset(Known(each.pid, each.start) for each in relatives)
        if known != self._known:
            self._known = known
            self._kept.remember(sorted(known))

    def _poke(self, now: float) -> None:
        self._poke_at = None if self._kept.poke() else now + POKE_EVERY_S
        self._poked = now

    def _end_everything(self) -> None:
        """Kill whatever is left, and wait for it."""

        def living() -> list[Relative]:
            self._reap()
            return descendants(os.getpid())

        self.left = end_all(living, timeout_s=_KILL_TIMEOUT_S)
        self._reap()

    def _drain(self) -> None:
        """Read what is still in the pipes: nobody is there to write more."""
        until = time.monotonic() + _DRAIN_S
        for descriptor in list(self._takers):
            while descriptor in self._takers and self._read(descriptor) and time.monotonic() < until:
                pass
        for descriptor in self._takers:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if self.cut is None and self.exit_code == 0 and not self.broken:
            try:
                self._reader.close()
            except BadFrameError as error:
                self.broken = f"what the plan sent through its channel is not what fedmon sends: {error}"
