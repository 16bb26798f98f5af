"""Supervise a running plan: read its frames and its output, enforce its limits, end all of it, and say how it ended."""

from __future__ import annotations

import contextlib
import hashlib
import math
import mmap
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from fedmon.common.errors import FedmonError, InvalidInputError
from fedmon.common.text import size
from fedmon.common.wire.runs import JobState, Level, Problem, Usage
from fedmon.node.cgroup import JobGroup
from fedmon.node.collectors.job.family import descendants, peak_resident_bytes, proportional_bytes
from fedmon.node.collectors.job.process import Birth
from fedmon.node.runs.folder import (
    EVENTS,
    STDERR,
    STDOUT,
    Ending,
    Event,
    JobFolder,
    JobOrder,
    Known,
    Limits,
    Logged,
    Reported,
    Started,
    TraceWriter,
    Verdict,
    end_all,
    made,
)
from fedmon.node.runs.release import SCALAR_EVERY_S, Rules, numbers_in, rounded
from fedmon.node.runs.release import check as check_release
from fedmon.node.runs.sandbox.process import own_folder
from fedmon.plan import frames
from fedmon.plan.parcels import contents

CHUNK_BYTES = 1_048_576
POKE_EVERY_S = 0.05
"""The daemon is told of news at once, and then no more often than this."""
METER_EVERY_S = 0.25
RATE_PER_S = 200.0
BURST = 2000
MAX_EVENTS_BYTES = 33_554_432
_BUSY_SHARE = 0.05
"""Measuring takes no more of a CPU than this."""
_MAX_FILES = 1_000_000
_FIRST_LOOK_S = 0.1
_DRAIN_S = 2.0
_SETUP_BYTES = 1000
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_SHELL_SIGNAL = 128
"""bubblewrap ends with this plus the number of the signal that ended the plan, as shells do."""
_NEARLY = 0.9
_NO_SPACE = ("[Errno 28]", "[Errno 122]", "[Errno 27]")
"""ENOSPC, EDQUOT, EFBIG. Source: Linux include/uapi/asm-generic/errno.h."""
_NO_THREAD = "can't start new thread"
_LIMITS: dict[JobState, tuple[str, str]] = {
    JobState.CPU_LIMIT: ("cpu_s", "s of CPU time"),
    JobState.WALL_LIMIT: ("wall_s", "s"),
    JobState.MEMORY_LIMIT: ("memory_bytes", "of memory"),
    JobState.PROCESS_LIMIT: ("processes", "processes and threads"),
    JobState.DISK_LIMIT: ("tmp_bytes", "in files"),
    JobState.OUTPUT_LIMIT: ("output_bytes", "of result"),
}
"""The name of each limit, and the words after its value."""


class Seen(msgspec.Struct, kw_only=True):
    """All signs of how a job ended, as far as they are known yet.

    ``cut`` is why the keeper ended it. ``memory_kills`` and ``refused_forks`` are counts of the cgroup. If
    ``has_begun`` is False the plan never ran, and ``setup`` is the complaint of the sandbox or the interpreter.
    """

    level: Level | None
    limits: Limits
    cut: Verdict | None = None
    exit_code: int | None = None
    said: Failure | None = None
    has_result: bool = False
    broken: str = ""
    invalid: str = ""
    unkept: str = ""
    memory_kills: int = 0
    refused_forks: int = 0
    cpu_s: float = 0.0
    has_begun: bool = False
    setup: str = ""


def exceeded(state: JobState, limits: Limits, had: float | None = None) -> Verdict:
    """Return the verdict about an exceeded limit; ``had`` is None if the kernel refused the job more."""
    name, words = _LIMITS[state]
    told = size if name.endswith("_bytes") else "{:.15g}".format
    most, took = told(getattr(limits, name)), "" if had is None else told(round(had, 2))
    text = f"it took more than its limit of {most} {words}{f' ({took})' if took and took != most else ''}"
    return Verdict(state, f"{text}: ask for more in limits, or have the owner raise [runs] max_{name}")


def decide(seen: Seen) -> Verdict:
    """Return how the job ended."""
    if seen.cut is not None:
        return seen.cut
    limit, said = _limit_behind(seen), seen.said
    if not seen.has_begun:
        return limit or Verdict(JobState.NOT_STARTED, _why_not_begun(seen))
    if said is not None:
        return limit or Verdict(JobState(said.state), said.reason or "the plan failed without a reason")
    if seen.has_result and seen.exit_code == 0 and not seen.broken:
        if seen.unkept:
            return Verdict(JobState.FAILED, f"the result cannot be kept on this node: {seen.unkept}")
        if seen.invalid:
            return Verdict(JobState.INVALID_RESULT, f"the result is not a parcel: {seen.invalid}")
        return Verdict(JobState.SUCCEEDED, "")
    return limit or Verdict(JobState.FAILED, _how(seen))


def _limit_behind(seen: Seen) -> Verdict | None:
    """Return the limit that a failure comes from, if any."""
    said, limits = seen.said, seen.limits
    kind, message, trace = ("", "", "") if said is None else (said.type, said.message or "", said.traceback or "")
    if seen.memory_kills or kind.endswith("MemoryError"):
        return exceeded(JobState.MEMORY_LIMIT, limits)
    is_killed = said is None and seen.exit_code in (-signal.SIGXCPU, -signal.SIGKILL)
    if is_killed and seen.cpu_s >= limits.cpu_s * _NEARLY:
        return exceeded(JobState.CPU_LIMIT, limits, seen.cpu_s)
    is_fork = kind == "BlockingIOError" and message.startswith("[Errno 11]") and "fork" in trace
    if seen.refused_forks or is_fork or (kind == "RuntimeError" and _NO_THREAD in message):
        return exceeded(JobState.PROCESS_LIMIT, limits)
    if kind.endswith("OSError") and message.startswith(_NO_SPACE):
        return exceeded(JobState.DISK_LIMIT, limits)
    # In our words, not in those of the plan.
    return None if said is None or said.state != "output-limit" else exceeded(JobState.OUTPUT_LIMIT, limits)


def _why_not_begun(seen: Seen) -> str:
    complaint = f": {seen.setup}" if seen.setup else ""
    return (
        f"the sandbox ({seen.level}) or its Python ended {_by(seen.exit_code or 0)} before the plan could begin; the "
        f"node's owner finds more with `fedmon node runs show`{complaint}"
    )


def _how(seen: Seen) -> str:
    code = seen.exit_code or 0  # one that did not end by itself was cut
    after = ", after it had sent its result" if seen.has_result else ", and returned nothing"
    if code < 0:
        return f"the plan was ended {_by(code)}, which this node did not send{after}"
    if code:
        return f"the plan ended {_by(code)}{after}"
    return seen.broken or "the plan ended without a result: run must return, and must not end the process"


def _by(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"by {names.get(-code, f'signal {-code}')}"


def reap() -> dict[int, int]:
    """Wait for the children of this process that have ended, and return their statuses by number."""
    found: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            found[pid] = status
    return found


class Meter:
    """Measures the descendants of this process, the keeper, against the limits that no cgroup keeps."""

    def __init__(self, order: JobOrder, group: JobGroup) -> None:
        self._limits, self._group = order.limits, group
        self._sandbox_processes, self._files = order.sandbox_processes, own_folder(order)
        self._own_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._peak = 0
        self._cpu_s = 0.0
        self.pause_s = METER_EVERY_S
        """The time until the next reading."""

    def read(self) -> Verdict | None:
        """Read everything, and return the limit that is exceeded, if any."""
        begun = time.monotonic()
        verdict = self._excess(descendants(os.getpid()))
        self.pause_s = max(METER_EVERY_S, (time.monotonic() - begun) / _BUSY_SHARE)
        return verdict

    def note_peaks(self) -> None:
        """Note the peak memory of each process so far: short jobs end before the next reading."""
        if not self._group.holds_memory:
            peaks = (peak_resident_bytes(each.pid) or 0 for each in descendants(os.getpid()))
            self._peak = max((self._peak, *peaks))

    def cpu_s(self, living_s: float = 0.0) -> float:
        """Return the CPU time of all processes of the job; never less than before."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._cpu_s = max(self._cpu_s, used.ru_utime + used.ru_stime + living_s, self._group.cpu_s() or 0.0)
        return self._cpu_s

    def peak_memory_bytes(self) -> int | None:
        """Return the peak memory; None if the job was too short for a reading."""
        counted = self._group.peak_memory_bytes() if self._group.holds_memory else None
        if counted:
            return counted
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        # The kernel's peak includes the parent's memory that the child had before exec.
        if largest > self._own_peak:
            self._peak = max(self._peak, largest)
        return self._peak or None

    def _excess(self, relatives: Sequence[Birth]) -> Verdict | None:
        limits = self._limits
        living = [each for each in relatives if not each.is_zombie]
        cpu_s = self.cpu_s(sum(each.cpu_s for each in relatives))
        threads = sum(each.threads for each in living) - self._sandbox_processes
        if threads > limits.processes:
            return exceeded(JobState.PROCESS_LIMIT, limits, threads)
        memory = 0 if self._group.holds_memory else sum(each.resident_bytes for each in living)
        if memory > limits.memory_bytes:
            # Pages that forked processes share were counted for each.
            shares = ((each, proportional_bytes(each.pid)) for each in living)
            memory = sum(each.resident_bytes if share is None else share for each, share in shares)
        self._peak = max(self._peak, memory)
        if memory > limits.memory_bytes:
            return exceeded(JobState.MEMORY_LIMIT, limits, memory)
        if cpu_s > limits.cpu_s:
            return exceeded(JobState.CPU_LIMIT, limits, cpu_s)
        if self._files is not None:
            written = size_of(self._files)
            if written > limits.tmp_bytes:
                return exceeded(JobState.DISK_LIMIT, limits, written)
        return None


def size_of(folder: Path) -> int:
    """Return the disk usage of the files below a folder, in bytes; a file with two names counts once."""
    size, seen = 0, set[tuple[int, int]]()
    queue = [folder]
    while queue and len(seen) < _MAX_FILES:
        with contextlib.suppress(OSError), os.scandir(queue.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    if (about.st_dev, about.st_ino) not in seen:
                        seen.add((about.st_dev, about.st_ino))
                        size += about.st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        queue.append(Path(entry.path))
    return size


# --- frames: nothing in them is trusted, and every length has a bound -------------------------------------------------

_FORMATS: dict[bytes, Literal["json", "npz"]] = {b"j": "json", b"n": "npz"}


class BadFrameError(InvalidInputError):
    """The bytes in a plan's channel are no frame; later bytes cannot be read either."""


class OutputTooLargeError(InvalidInputError):
    """A plan announced a result of more bytes than the job may return."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter runs, and the plan has not started yet."""


_Name = Annotated[str, msgspec.Meta(max_length=frames.MAX_NAME_CHARACTERS, pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z")]


class Scalars(msgspec.Struct, frozen=True, kw_only=True):
    """The plan called ``context.report``."""

    values: Annotated[dict[_Name, float | None], msgspec.Meta(min_length=1, max_length=frames.MAX_VALUES)]
    step: Annotated[int, msgspec.Meta(ge=-frames.MAX_STEP, le=frames.MAX_STEP)] | None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """The plan called ``context.log``."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
    message: Annotated[str, msgspec.Meta(max_length=frames.MAX_LOG_CHARACTERS)]


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The next bytes of the result; ``data`` is valid until the next `feed`."""

    data: memoryview


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The plan ended without a result, with the reason."""

    state: Literal["failed", "invalid-result", "output-limit"]
    reason: Annotated[str, msgspec.Meta(max_length=frames.MAX_REASON_CHARACTERS)]
    type: Annotated[str, msgspec.Meta(max_length=frames.MAX_TYPE_CHARACTERS)]
    message: Annotated[str, msgspec.Meta(max_length=frames.MAX_MESSAGE_CHARACTERS)] | None = None
    traceback: Annotated[str, msgspec.Meta(max_length=frames.MAX_TRACEBACK_CHARACTERS)] | None = None


Frame = Begun | Scalars | LogLine | Piece | Failure
_DECODERS: dict[bytes, msgspec.json.Decoder[Frame]] = {
    frames.BEGUN: msgspec.json.Decoder(Begun),
    frames.SCALARS: msgspec.json.Decoder(Scalars),
    frames.LOG: msgspec.json.Decoder(LogLine),
    frames.FAILURE: msgspec.json.Decoder(Failure),
}


class FrameReader:
    """Turns bytes in pieces of any size into frames; holds at most one frame, and no part of a result.

    ``result_format`` is None until a result begins; ``has_ended`` is True after a whole result or a failure. Not for
    several threads.
    """

    def __init__(self, *, output_bytes: int) -> None:
        self._output_bytes = output_bytes
        self._held = bytearray()
        self._left = 0
        self.result_format: Literal["json", "npz"] | None = None
        self.has_ended = False

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """Yield the frames that these bytes complete; to be exhausted before the next call.

        Raises BadFrameError, and OutputTooLargeError before a byte of such a result is yielded.
        """
        view = memoryview(data)
        while view:
            if self._left:
                piece = view[: self._left]
                view = view[len(piece) :]
                self._left -= len(piece)
                self.has_ended = not self._left
                yield Piece(data=piece)
            elif self.has_ended:
                raise BadFrameError("the plan sent more after its result")
            else:
                missing = frames.HEADER_BYTES - len(self._held)
                if missing <= 0:
                    missing += self._length()
                self._held += view[:missing]
                view = view[missing:]
                frame = self._frame() if len(self._held) >= frames.HEADER_BYTES else None
                if frame is not None:
                    yield frame

    def close(self) -> None:
        """End the input. Raises BadFrameError in the middle of a frame."""
        if self._held or self._left:
            raise BadFrameError("the plan's channel ended in the middle of a frame")

    def _length(self) -> int:
        return int.from_bytes(self._held[1 : frames.HEADER_BYTES], "big")

    def _frame(self) -> Frame | None:
        """Return the held frame if it is whole; of a result, read just the header."""
        # No error tells of the frame: a plan could have its data leave in an error of ours.
        kind, length = bytes(self._held[:1]), self._length()
        if kind in _FORMATS:
            if not length:
                raise BadFrameError("the plan sent a result without a byte")
            if length > self._output_bytes:
                raise OutputTooLargeError(f"the result has {length} bytes, and the job may return {self._output_bytes}")
            self.result_format, self._left = _FORMATS[kind], length
            self._held.clear()
            return None
        if kind not in _DECODERS:
            raise BadFrameError("the plan sent a frame of an unknown kind")
        if length > frames.MAX_FRAME_BYTES:
            raise BadFrameError(f"the plan sent a frame of more than {frames.MAX_FRAME_BYTES} bytes")
        if len(self._held) < frames.HEADER_BYTES + length:
            return None
        payload = bytes(self._held[frames.HEADER_BYTES :])
        self._held.clear()
        try:
            frame = _DECODERS[kind].decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # The error may hold words of the plan, which may have to stay on the node.
            raise BadFrameError(f"the plan sent a frame of kind {kind!r} that is not as fedmon writes it") from None
        self.has_ended = kind == frames.FAILURE
        return frame


# --- the files of a job -----------------------------------------------------------------------------------------------


class EventLog:
    """Appends events to a file, within bounds that no plan can exceed; belongs to the keeper.

    Reports and log lines beyond ``RATE_PER_S`` with bursts of ``BURST``, or beyond ``MAX_EVENTS_BYTES``, are left out,
    and one line says so. A full disk loses lines, never the job. With ``rules`` another line says that reports were
    left out that may not leave; these are not counted.
    """

    def __init__(self, path: Path, *, mono: float, rules: Rules | None = None) -> None:
        """Make the file; ``mono`` is the monotonic time of now. Raises OSError."""
        self._rules = rules
        self._due: dict[str, float] = {}
        self._warned: set[str] = set()
        self._fd = made(path, os.O_WRONLY | os.O_APPEND)
        self.scalars = 0
        """The number of reports, kept or not."""
        self._tokens, self._filled = float(BURST), mono
        self._bytes = 0

    def report(self, t: float, values: dict[str, float | None], step: int | None, *, mono: float) -> None:
        """Write a report of the plan at Unix time ``t``, as far as it may leave."""
        if self._rules is not None:
            values = self._passed(t, values, mono, self._rules)
            if not values:
                return
            step = None if step is None else int(rounded(step))
        number, self.scalars = self.scalars, self.scalars + 1
        self.add_bounded(Reported(t=t, number=number, values=values, step=step), mono=mono)

    def add_bounded(self, event: Reported | Logged, *, mono: float) -> None:
        """Write a report or a log line of the plan, unless that is too much."""
        self._tokens = min(self._tokens + (mono - self._filled) * RATE_PER_S, float(BURST))
        self._filled = mono
        if self._tokens >= 1 and self._bytes < MAX_EVENTS_BYTES:
            self._tokens -= 1
            self.add(event)
        else:
            bounds = f"{RATE_PER_S:g} reports and log lines a second, {BURST} at once, {MAX_EVENTS_BYTES} bytes in all"
            self._warn_once(event.t, f"{bounds} are kept; more are counted and left out")

    def _passed(self, t: float, values: dict[str, float | None], mono: float, rules: Rules) -> dict[str, float | None]:
        """Return the values that may leave, rounded."""
        passed = {
            name: None if value is None else rounded(value)
            for name, value in values.items()
            if name in rules.scalars and mono >= self._due.get(name, mono)
        }
        self._due.update(dict.fromkeys(passed, mono + SCALAR_EVERY_S))
        if len(passed) < len(values):
            self._warn_once(t, f"only declared names leave, each once in {SCALAR_EVERY_S:g} s; the others are left out")
        return passed

    def _warn_once(self, t: float, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self.add(Logged(t=t, level="WARNING", message=text))

    def add(self, event: Event) -> None:
        """Write an event; the first line break ends a line that a full disk cut."""
        with contextlib.suppress(OSError):
            self._bytes += os.write(self._fd, b"\n" + msgspec.json.encode(event) + b"\n")


class ResultFile:
    """The pieces of one result in a file, made at the first of them.

    ``problem`` is the error of the disk; after `keep`, ``fault`` says why it is no parcel, ``numbers`` counts the
    numbers in it, and ``held`` are the rules of release that it breaks.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._fd = path, -1
        self.size_bytes = self.numbers = 0
        self.sha256 = self.problem = self.fault = self.held = ""

    def write(self, piece: memoryview) -> None:
        """Append the next piece."""
        if self.problem:
            return
        self.size_bytes += len(piece)
        try:
            if self._fd < 0:
                self._fd = made(self._path, os.O_RDWR | os.O_TRUNC)
            while piece:
                piece = piece[os.write(self._fd, piece) :]
        except OSError as error:
            self._failed(error)

    def keep(self, result_format: Literal["json", "npz"], rules: Rules | None) -> None:
        """Check it, and write it to the disk, rounded where the rules say so."""
        try:
            with mmap.mmap(self._fd, self.size_bytes, access=mmap.ACCESS_READ) as whole, memoryview(whole) as view:
                content = self._checked(result_format, view, rules)
                self.sha256 = hashlib.sha256(view if content is None else content).hexdigest()
            if content is not None:
                os.ftruncate(self._fd, 0)
                os.lseek(self._fd, 0, os.SEEK_SET)
                self.size_bytes = 0
                self.write(memoryview(content))
            if not self.problem:
                os.fdatasync(self._fd)
        except OSError as error:
            self._failed(error)

    def discard(self) -> None:
        """Remove it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _checked(self, result_format: Literal["json", "npz"], view: memoryview, rules: Rules | None) -> bytes | None:
        """Return it rounded, None if it stays as it is; no error keeps its memory, which is unmapped next."""
        content = None
        try:
            values, arrays = contents(result_format, view)
            self.numbers = numbers_in(values, arrays, rules)
            if rules is not None:
                content, self.held = check_release(view, values, arrays, rules)
        except FedmonError as error:
            self.fault = str(error)
        except MemoryError:
            self.fault = "it is too large to be checked in the memory of this machine"
        return content

    def _failed(self, error: OSError) -> None:
        self.problem = f"{self._path}: {error.strerror}"
        self.discard()


class Signals:
    """Turns signals into readiness of ``descriptor``; belongs to the main thread.

    SIGTERM, SIGHUP and SIGINT end the job; ``stop.json`` says why.
    """

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self.descriptor, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *_ENDS):
            signal.signal(number, lambda *_: None)  # a handler makes Python write the number into the pipe
        # The daemon blocks these for its sigwait, and its children inherit that.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD, *_ENDS))

    def asked(self) -> Verdict | None:
        """Return why the job has to end, if that was asked since the last call."""
        came = b""
        with contextlib.suppress(BlockingIOError):
            while numbers := os.read(self.descriptor, 4096):
                came += numbers
        by = next((number.name for number in _ENDS if number in came), "")
        lost = f"the keeper of the job was ended by {by}, as when the machine or its service stops"
        return (self._folder.stop_asked() or Verdict(JobState.LOST, lost)) if by else None


class Supervision:
    """One plan from its start to the end of all processes that it started.

    Limits are counted by the monotonic clock alone. ``lock`` is the descriptor of the job's held lock. ``poke()`` tells
    the daemon of news.
    """

    def __init__(
        self, order: JobOrder, folder: JobFolder, lock: int, group: JobGroup, signals: Signals, poke: Callable[[], None]
    ) -> None:
        """Make the files of the job. Raises OSError."""
        self._order, self._folder, self._group, self._signals, self._tell = order, folder, group, signals, poke
        self._lock = lock
        self._meter = Meter(order, group)
        self._log = EventLog(folder.path / EVENTS, mono=time.monotonic(), rules=order.rules)
        self._result = ResultFile(folder.result)
        self._traces = [TraceWriter(folder.path / each, size_bytes=order.trace_bytes) for each in (STDOUT, STDERR)]
        self._reader = FrameReader(output_bytes=order.limits.output_bytes)
        self._takers: dict[int, Callable[[memoryview], None]] = {}
        self._poller = select.poll()
        self._buffer = bytearray(CHUNK_BYTES)
        self._poke_at, self._poked = math.inf, -math.inf
        self._pid = 0
        self._seen = Seen(level=order.level, limits=order.limits)

    def run(self, pid: int, pipes: Sequence[int], *, started: float) -> Ending:
        """Watch until the plan's first process has ended, then end the rest, and return how it ended.

        ``pipes`` are our ends of its stdout, stderr and channel, which do not block.
        """
        self._pid, begun = pid, time.monotonic()
        takers = (*(each.write for each in self._traces), self._take_frames)
        self._takers = dict(zip(pipes, takers, strict=True))
        level, cgroup = self._order.level, self._group.path or None
        self._log.add(Started(t=started, pid=pid, sandbox=level, cgroup=cgroup))
        self._tell()
        for descriptor in (*self._takers, self._signals.descriptor):
            self._poller.register(descriptor, select.POLLIN)
        wall_at, look_at = begun + self._order.limits.wall_s, begun + _FIRST_LOOK_S
        while self._seen.exit_code is None and self._seen.cut is None:
            now = time.monotonic()  # what happened until then is heard before anything is late
            wait_s = min(wall_at, look_at, self._poke_at) - now
            for descriptor, _ in self._poller.poll(max(0.0, wait_s * 1000)):
                if descriptor == self._signals.descriptor:
                    self._hear_signals()
                else:
                    self._read(descriptor)
            if now >= wall_at and self._seen.exit_code is None:
                self._end(exceeded(JobState.WALL_LIMIT, self._order.limits))
            if now >= look_at:
                self._look()
                look_at = time.monotonic() + self._meter.pause_s
            if now >= self._poke_at:
                self._tell()
                self._poke_at, self._poked = math.inf, now
        wall_s = time.monotonic() - begun
        left = end_all(self._living)
        self._reap()
        self._drain()
        return self._ending(started, wall_s, left)

    def _ending(self, started: float, wall_s: float, living: Sequence[Known]) -> Ending:
        """Return how it ended; a result that does not count is removed."""
        result, seen, said = self._result, self._seen, self._seen.said
        result_format: Literal["json", "npz"] | None = self._reader.result_format if self._reader.has_ended else None
        if result_format is not None and seen.cut is None and seen.exit_code == 0 and not result.problem:
            result.keep(result_format, self._order.rules)
        seen.has_result, seen.invalid, seen.unkept = result_format is not None, result.fault, result.problem
        seen.memory_kills, seen.refused_forks = self._group.ended_for_memory(), self._group.refused_processes()
        seen.cpu_s = self._meter.cpu_s()
        if not seen.has_begun:  # the words of bubblewrap or of the interpreter: the plan has not run
            seen.setup = self._folder.trace(STDERR, 0, _SETUP_BYTES).text.split("\n")[0].strip()
        verdict = decide(seen)
        left = ""
        if living:
            numbers = ", ".join(str(each.pid) for each in living[:10])
            left = f"; {len(living)} of its processes could not be killed ({numbers})"
        ending = Ending(
            state=verdict.state,
            reason=verdict.reason + left,
            started=started,
            ended=started + wall_s,  # the clock may have been set meanwhile
            sandbox=self._order.level,
            exit_code=seen.exit_code,
            problem=None
            if said is None
            else Problem(type=said.type, message=said.message or None, traceback=said.traceback or None),
            usage=Usage(wall_s=wall_s, cpu_s=seen.cpu_s, peak_memory_bytes=self._meter.peak_memory_bytes()),
            scalars=self._log.scalars,
        )
        if verdict.state is not JobState.SUCCEEDED:
            result.discard()
            return ending
        return msgspec.structs.replace(
            ending,
            result_format=result_format,
            result_sha256=result.sha256,
            result_bytes=result.size_bytes,
            numbers=result.numbers,
            held=result.held,
        )

    def _end(self, verdict: Verdict) -> None:
        """Have the job end for a reason; the first reason counts."""
        if self._seen.cut is None:
            self._seen.cut = verdict

    def _living(self) -> list[Birth]:
        self._reap()
        return descendants(os.getpid())

    def _hear_signals(self) -> None:
        asked = self._signals.asked()
        if asked is not None:
            self._end(asked)
        self._reap()

    def _reap(self) -> None:
        status = reap().get(self._pid)
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            is_signal = self._order.level == "bubblewrap" and 0 < code - _SHELL_SIGNAL <= signal.SIGRTMAX
            self._seen.exit_code = _SHELL_SIGNAL - code if is_signal else code

    def _read(self, descriptor: int) -> bool:
        """Read a piece from one pipe; return False if no more is available."""
        try:
            size = os.readv(descriptor, [self._buffer])
        except BlockingIOError:
            return False
        if not size:
            self._poller.unregister(descriptor)
            del self._takers[descriptor]
            os.close(descriptor)
            return False
        with memoryview(self._buffer) as whole, whole[:size] as chunk:
            self._takers[descriptor](chunk)
        self._poke_at = min(self._poke_at, max(time.monotonic(), self._poked + POKE_EVERY_S))
        return True

    def _take_frames(self, chunk: memoryview) -> None:
        if self._seen.broken:
            return
        try:
            for frame in self._reader.feed(chunk):
                self._take(frame)
        except OutputTooLargeError:  # the size is a number of the plan's choice
            self._break(exceeded(JobState.OUTPUT_LIMIT, self._order.limits))
        except BadFrameError as error:
            self._break(_bad_frame(error))
        else:
            if self._reader.has_ended and self._seen.exit_code is None:
                self._meter.note_peaks()

    def _break(self, verdict: Verdict) -> None:
        """End the plan, because nothing after this can be read from its channel."""
        self._seen.broken = verdict.reason
        self._end(verdict)

    def _take(self, frame: Frame) -> None:
        now, mono = time.time(), time.monotonic()  # the plan's own clock is the plan's to set
        match frame:
            case Begun():
                self._seen.has_begun = True
            case Piece():
                self._result.write(frame.data)
            case Scalars():
                self._log.report(now, frame.values, frame.step, mono=mono)
            case LogLine():
                self._log.add_bounded(Logged(t=now, level=frame.level, message=frame.message), mono=mono)
            case Failure():
                self._seen.said = frame

    def _look(self) -> None:
        if not os.fstat(self._lock).st_nlink:
            # No command could find or stop the job now.
            self._end(Verdict(JobState.LOST, "the folder of the job was removed while it ran"))
        excess = self._meter.read()
        if excess is not None:
            self._end(excess)

    def _drain(self) -> None:
        """Read the rest of the pipes; all writers have ended."""
        until = time.monotonic() + _DRAIN_S
        for descriptor in list(self._takers):
            while descriptor in self._takers and self._read(descriptor) and time.monotonic() < until:
                pass
        if self._seen.cut is None and self._seen.exit_code == 0 and not self._seen.broken:
            try:
                self._reader.close()
            except BadFrameError as error:
                self._seen.broken = _bad_frame(error).reason


def _bad_frame(error: BadFrameError) -> Verdict:
    return Verdict(JobState.FAILED, f"the plan sent something else than frames through its channel: {error}")
