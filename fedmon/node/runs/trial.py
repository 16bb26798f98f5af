"""Run a plan once on this machine, before anybody is asked: over the protocol of real runs, but without their sandbox."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import selectors
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import StorageError
from fedmon.common.wire.runs import JobState
from fedmon.node.runs.order import GivenDataset, Interpreter
from fedmon.plan import runtime
from fedmon.plan.frame_reader import BadFrameError, Failure, FrameReader, LogLine, OutputTooLargeError, Piece, Scalars

MAIN = "fedmon/plan/main.py"
_READ_BYTES = 1 << 20
_FIRST_FREE = 64  # above every descriptor that a plan is given


class TrialLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial may take; as those of a job, as far as one process's own limits go."""

    cpu_s: float = 3600.0
    wall_s: float = 3600.0
    memory_bytes: int = 4 * 2**30
    output_bytes: int = 256 * 2**20


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How a trial ended. ``result`` are the bytes of the parcel, ``exit_code`` is negative for a signal."""

    state: JobState
    reason: str
    exit_code: int
    wall_s: float
    cpu_s: float
    peak_memory_bytes: int
    scalars: int
    failure: Failure | None = None
    result_format: str | None = None
    result: bytes = b""


def run_trial(
    source: bytes,
    *,
    name: str,
    interpreter: Interpreter,
    dataset: GivenDataset | None = None,
    arguments: Mapping[str, Any] | None = None,
    inputs: bytes = b"",
    inputs_format: str | None = None,
    limits: TrialLimits | None = None,
    on_frame: Callable[[Scalars | LogLine], None] = lambda _: None,
) -> Trial:
    """Run the plan with these bytes to its end, and every process that it started; what it prints is ours.

    ``on_frame`` gets what it reports and logs, at once. Raises StorageError when no process can be started.
    """
    limits = limits or TrialLimits()
    job = {
        "job_id": "trial",
        "node_id": "here",
        "name": name,
        "arguments": dict(arguments or {}),
        "dataset": None if dataset is None else msgspec.to_builtins(dataset),
        "inputs_format": inputs_format,
        "output_bytes": limits.output_bytes,
        "path": interpreter.path,
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedmon-plan-")))
        runtime.lay_out(folder / "runtime")
        given = {3: _file(stack, json.dumps(job).encode()), 4: _file(stack, source), 5: _file(stack, inputs)}
        read_end, write_end = os.pipe()
        channel = stack.enter_context(open(read_end, "rb", buffering=0))
        with open(write_end, "wb", buffering=0) as writer:
            began = time.monotonic()
            files = {number: file.fileno() for number, file in given.items()} | {6: writer.fileno()}
            pid = _start(interpreter.executable, folder, files, limits)
        return _follow(pid, channel, began, limits, on_frame)


def _file(stack: ExitStack, content: bytes) -> BinaryIO:
    file = stack.enter_context(tempfile.TemporaryFile())
    file.write(content)
    file.flush()
    return file


def _start(executable: str, folder: Path, files: Mapping[int, int], limits: TrialLimits) -> int:
    """Start the interpreter in a session of its own, with nothing of our environment."""
    high = {number: fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for number, given in files.items()}
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    script = str(folder / "runtime" / MAIN)
    try:
        pid = os.posix_spawn(
            executable,
            [executable, "-I", "-S", "-B", "-X", "utf8", script],
            {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(folder), "TMPDIR": str(folder)},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, nothing, 0),
                *((os.POSIX_SPAWN_DUP2, given, number) for number, given in high.items()),
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGINT],
        )
    except OSError as error:
        raise StorageError(f"cannot start {executable}: {error.strerror}") from error
    finally:
        for given in (nothing, *high.values()):
            os.close(given)
    cpu_s = max(1, round(limits.cpu_s))
    resource.prlimit(pid, resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.prlimit(pid, resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    return pid


class _Gathered:
    """What came through the channel so far."""

    def __init__(self, limits: TrialLimits, on_frame: Callable[[Scalars | LogLine], None]) -> None:
        self.reader = FrameReader(output_bytes=limits.output_bytes)
        self.result = bytearray()
        self.failure: Failure | None = None
        self.scalars = 0
        self.state, self.reason = JobState.FAILED, ""
        self._on_frame = on_frame

    def take(self, data: bytes) -> bool:
        """Take the next bytes; return whether to read on."""
        try:
            for frame in self.reader.feed(data):
                self._take_frame(frame)
        except OutputTooLargeError as error:
            self.state, self.reason = JobState.OUTPUT_LIMIT, str(error)
        except BadFrameError as error:
            self.reason = str(error)
        return not self.reason

    def _take_frame(self, frame: Scalars | LogLine | Piece | Failure) -> None:
        match frame:
            case Piece():
                self.result += frame.data
            case Failure():
                self.failure = frame
            case Scalars() | LogLine():
                self.scalars += isinstance(frame, Scalars)
                self._on_frame(frame)


def _follow(
    pid: int, channel: BinaryIO, began: float, limits: TrialLimits, on_frame: Callable[[Scalars | LogLine], None]
) -> Trial:
    gathered = _Gathered(limits, on_frame)
    deadline = Deadline(limits.wall_s)
    try:
        for data in _chunks(channel, deadline):
            if not gathered.take(data):
                break
        else:
            if deadline.passed():
                gathered.state, gathered.reason = JobState.WALL_LIMIT, f"it was not over after {limits.wall_s:g} s"
    finally:
        # Whoever is left of its session, also when somebody pressed Ctrl-C here.
        _kill(pid)
        _, status, usage = os.wait4(pid, 0)
    wall_s, cpu_s = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    exit_code = os.waitstatus_to_exitcode(status)
    state, reason = _verdict(gathered, exit_code, cpu_s, limits)
    has_result = state is JobState.SUCCEEDED
    return Trial(
        state=state,
        reason=reason,
        exit_code=exit_code,
        wall_s=wall_s,
        cpu_s=cpu_s,
        peak_memory_bytes=usage.ru_maxrss * 1024,
        scalars=gathered.scalars,
        failure=gathered.failure,
        result_format=gathered.reader.result_format if has_result else None,
        result=bytes(gathered.result) if has_result else b"",
    )


def _verdict(gathered: _Gathered, exit_code: int, cpu_s: float, limits: TrialLimits) -> tuple[JobState, str]:
    if gathered.reason:
        return gathered.state, gathered.reason
    if gathered.failure is not None:
        return JobState(gathered.failure.state), gathered.failure.reason
    if gathered.reader.has_ended:
        return JobState.SUCCEEDED, ""
    if exit_code == -signal.SIGXCPU or (exit_code == -signal.SIGKILL and cpu_s >= limits.cpu_s):
        return JobState.CPU_LIMIT, f"it took its {limits.cpu_s:g} s of CPU time"
    how = f"by signal {-exit_code}" if exit_code < 0 else f"with exit code {exit_code}"
    return JobState.FAILED, f"the plan's process ended {how} before it had a result"


def _chunks(channel: BinaryIO, deadline: Deadline) -> Iterator[bytes]:
    """Yield what comes until nobody can write any more, or the deadline has passed."""
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while selector.select(deadline.left_s()):
            data = channel.read(_READ_BYTES)
            if not data:
                return
            yield data


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
