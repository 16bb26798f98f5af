"""Run a plan once on this machine, with nobody's approval: in the sandbox of nodes, or with nothing around it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import select
import selectors
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import StorageError
from fedmon.common.ids import new_id
from fedmon.common.wire.runs import JobState, Level, Problem, TracePiece, Usage
from fedmon.node.runs.folder import Events, JobFolder
from fedmon.node.runs.order import Ending, GivenDataset, Interpreter, JobOrder, Limits, Logged, Reported
from fedmon.node.runs.sealed import sealed
from fedmon.plan import runtime
from fedmon.plan.frame_reader import (
    BadFrameError,
    Failure,
    Frame,
    FrameReader,
    LogLine,
    OutputTooLargeError,
    Piece,
    Scalars,
)

_LOOK_S = 0.5  # how soon what no poke told is seen
_TRACE_BYTES = 1 << 20
_PIECE_BYTES = 32_768

MAIN = "fedmon/plan/main.py"
_READ_BYTES = 1 << 20
_FIRST_FREE = 64  # above every descriptor that a plan is given


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried: the exact bytes of a plan, and what it gets."""

    source: bytes
    name: str
    interpreter: Interpreter
    limits: Limits
    dataset: GivenDataset | None = None
    arguments: dict[str, Any] = {}
    inputs: bytes = b""
    inputs_format: Literal["json", "npz"] | None = None


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """How a trial ended; ``result`` are the bytes of the parcel."""

    ending: Ending
    result: bytes = b""


def run_unconfined(trial: Trial, on_event: Callable[[Reported | Logged], None] = lambda _: None) -> Tried:
    """Run the plan to its end, with every process that it started; what it prints goes to our standard error.

    Of the limits, those of CPU time and memory hold for each process alone, those of time and output as they do on
    nodes, and no others. Raises StorageError when no process can be started.
    """
    limits = trial.limits
    job = {
        "job_id": "trial",
        "node_id": "here",
        "name": trial.name,
        "arguments": trial.arguments,
        "dataset": None if trial.dataset is None else msgspec.to_builtins(trial.dataset),
        "inputs_format": trial.inputs_format,
        "output_bytes": limits.output_bytes,
        "path": trial.interpreter.path,
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedmon-plan-")))
        runtime.lay_out(folder / "runtime")
        given = {
            3: _file(stack, json.dumps(job).encode()),
            4: _file(stack, trial.source),
            5: _file(stack, trial.inputs),
        }
        read_end, write_end = os.pipe()
        channel = stack.enter_context(open(read_end, "rb", buffering=0))
        with open(write_end, "wb", buffering=0) as writer:
            files = {number: file.fileno() for number, file in given.items()} | {6: writer.fileno()}
            pid = _start(trial.interpreter.executable, folder, files, limits)
        return _follow(pid, channel, limits, on_event)


def _file(stack: ExitStack, content: bytes) -> BinaryIO:
    file: BinaryIO = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    file.write(content)
    file.flush()
    return file


def _start(executable: str, folder: Path, files: Mapping[int, int], limits: Limits) -> int:
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
                (os.POSIX_SPAWN_DUP2, 2, 1),
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
    resource.prlimit(pid, resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes))
    resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    return pid


class _Gathered:
    """What came through the channel so far."""

    def __init__(self, limits: Limits, on_event: Callable[[Reported | Logged], None]) -> None:
        self.reader = FrameReader(output_bytes=limits.output_bytes)
        self.result = bytearray()
        self.failure: Failure | None = None
        self.scalars = 0
        self.state, self.reason = JobState.FAILED, ""
        self._on_event = on_event

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

    def _take_frame(self, frame: Frame) -> None:
        match frame:
            case Piece():
                self.result += frame.data
            case Failure():
                self.failure = frame
            case Scalars():
                self._on_event(Reported(t=frame.t, number=self.scalars, values=frame.values, step=frame.step))
                self.scalars += 1
            case LogLine():
                self._on_event(Logged(t=frame.t, level=frame.level, message=frame.message))


def _follow(pid: int, channel: BinaryIO, limits: Limits, on_event: Callable[[Reported | Logged], None]) -> Tried:
    gathered = _Gathered(limits, on_event)
    started, deadline = time.time(), Deadline(limits.wall_s)
    try:
        for data in _chunks(channel, deadline):
            if not gathered.take(data):
                break
        else:
            if not gathered.reader.has_ended and not _is_over(pid, deadline):
                gathered.state, gathered.reason = JobState.WALL_LIMIT, f"it was not over after {limits.wall_s:g} s"
    finally:
        # Whoever is left of its session, also when somebody pressed Ctrl-C here.
        _kill(pid)
        _, status, usage = os.wait4(pid, 0)
    wall_s, cpu_s = deadline.elapsed_s(), usage.ru_utime + usage.ru_stime
    exit_code = os.waitstatus_to_exitcode(status)
    state, reason = _verdict(gathered, exit_code, cpu_s, limits)
    result = bytes(gathered.result) if state is JobState.SUCCEEDED else b""
    ending = Ending(
        state=state,
        reason=reason,
        started=started,
        ended=started + wall_s,
        sandbox=None,
        exit_code=exit_code,
        problem=None if gathered.failure is None else _problem(gathered.failure),
        usage=Usage(wall_s=wall_s, cpu_s=cpu_s, peak_memory_bytes=_peak_bytes(usage)),
        scalars=gathered.scalars,
        result_format=gathered.reader.result_format if result else None,
        result_sha256=hashlib.sha256(result).hexdigest() if result else None,
        result_bytes=len(result),
    )
    return Tried(ending=ending, result=result)


def _peak_bytes(usage: resource.struct_rusage) -> int | None:
    """Return the most memory that the process had; null where that cannot be told.

    A process begins with the most that its parent ever had, as Linux keeps the number over exec.
    """
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage.ru_maxrss * 1024 if usage.ru_maxrss > ours else None


def _problem(failure: Failure) -> Problem:
    return Problem(type=failure.type, message=failure.message, traceback=failure.traceback)


def _verdict(gathered: _Gathered, exit_code: int, cpu_s: float, limits: Limits) -> tuple[JobState, str]:
    if gathered.reason:
        return gathered.state, gathered.reason
    if gathered.failure is not None:
        if gathered.failure.type.endswith("MemoryError"):
            return JobState.MEMORY_LIMIT, f"it needed more than {limits.memory_bytes} bytes of memory"
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


def _is_over(pid: int, deadline: Deadline) -> bool:
    """Wait for the end of a process; a plan may close its channel and go on."""
    process = os.pidfd_open(pid)
    try:
        return bool(select.select([process], [], [], deadline.left_s())[0])
    finally:
        os.close(process)


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def run_confined(trial: Trial, level: Level, on_event: Callable[[Reported | Logged], None] = lambda _: None) -> Tried:
    """Run the plan to its end at this level; what it prints goes to our standard error, as far as it is kept.

    Interrupted, it ends all of the plan's processes first. Raises StorageError, ConflictError and LauncherError.
    """
    from fedmon.node.runs.launching import Launcher

    news = threading.Event()
    with tempfile.TemporaryDirectory(prefix="fedmon-plan-") as base, contextlib.ExitStack() as stack:
        runtime.lay_out(Path(base, "runtime"), python=trial.interpreter.executable)
        folder = JobFolder(Path(base, "job"))
        launcher = Launcher(on_poke=lambda _: news.set())
        launcher.start()
        stack.callback(launcher.stop)
        plan = sealed("plan", trial.source)
        stack.callback(os.close, plan)
        inputs = None
        if trial.inputs_format is not None:
            inputs = sealed("inputs", trial.inputs)
            stack.callback(os.close, inputs)
        launcher.launch(_order(trial, level, base), plan, inputs)
        try:
            ending = _ending_of(folder, news, on_event)
        except BaseException:
            folder.stop(JobState.STOPPED, "interrupted")
            _ending_of(folder, news, lambda _: None)
            raise
        result = folder.result.read_bytes() if ending.result_format is not None else b""
    return Tried(ending=ending, result=result)


def _order(trial: Trial, level: Level, base: str) -> JobOrder:
    return JobOrder(
        job_id=new_id(),
        node_id="here",
        folder=str(Path(base, "job")),
        sha256="",
        name=trial.name,
        interpreter=trial.interpreter,
        runtime=str(Path(base, "runtime")),
        limits=trial.limits,
        minimum=level,
        level=level,
        trace_bytes=_TRACE_BYTES,
        dataset=trial.dataset,
        arguments=trial.arguments,
        inputs_format=trial.inputs_format,
    )


def _ending_of(folder: JobFolder, news: threading.Event, on_event: Callable[[Reported | Logged], None]) -> Ending:
    """Tell what happens until the job is over, and return how it ended."""
    offset = 0
    printed = {folder.stdout: 0, folder.stderr: 0}
    while True:
        news.wait(_LOOK_S)
        news.clear()
        # Asked before the rest is read: what is written before the end is then seen before it.
        is_over = not folder.is_alive()
        offset = _tell(folder.events(offset), on_event)
        for read, at in printed.items():
            printed[read] = _print(read, at)
        if is_over:
            ending = folder.ending()
            if ending is not None:
                return ending
            reason = "what watches over the job ended before it had written how the job ended"
            return Ending(state=JobState.LOST, reason=reason, started=None, ended=0.0, sandbox=None)


def _tell(events: Events, on_event: Callable[[Reported | Logged], None]) -> int:
    for event in events.events:
        if isinstance(event, Reported | Logged):
            on_event(event)
    return events.next_offset


def _print(read: Callable[[int, int], TracePiece], offset: int) -> int:
    """Print what came since ``offset``, and return how far that is."""
    while True:
        trace = read(offset, _PIECE_BYTES)
        if trace.next_offset <= offset:
            return offset
        if trace.skipped_bytes:
            sys.stderr.write(f"[{trace.skipped_bytes} bytes are not kept]\n")
        sys.stderr.write(trace.text)
        sys.stderr.flush()
        offset = trace.next_offset
