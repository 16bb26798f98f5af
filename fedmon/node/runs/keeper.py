"""The process that keeps one job: it starts the plan in its sandbox, watches over it, and writes down how it ended.

Forked by the launcher. It belongs to no daemon: what it does it does by the files of the job's folder (see order.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from fedmon.common.errors import FedmonError
from fedmon.common.wire.runs import JobState, Problem, Usage
from fedmon.node.collectors.job.family import Relative, descendants, relative
from fedmon.node.runs.folder import JobFolder, remove_tree, write_ending
from fedmon.node.runs.journal import Journal
from fedmon.node.runs.killing import Known, Signals, end_all, reap
from fedmon.node.runs.metering import Meter
from fedmon.node.runs.order import EVENTS, PROCESSES, RESULT, STDERR, STDOUT, STOP, Ending, JobOrder, Started, is_weaker
from fedmon.node.runs.result_file import ResultFile
from fedmon.node.runs.sandbox import kernel
from fedmon.node.runs.sandbox.cgroup import JobGroup, name_of
from fedmon.node.runs.sandbox.confined import command, data_path, own_folder
from fedmon.node.runs.sandbox.kernel import KEEPER, name_process
from fedmon.node.runs.sealed import sealed
from fedmon.node.runs.supervision import CHUNK_BYTES, Kept, Streams, Supervision
from fedmon.node.runs.trace import TraceWriter
from fedmon.node.runs.verdict import Seen, decide

_HELPERS = {"bubblewrap": 2, "landlock": 0, "limits": 0}
_POKE_TIMEOUT_S = 1.0
_KILL_TIMEOUT_S = 10.0
_LONG_TEXT = 16_384
_SHORT_TEXT = 256
_SETUP_BYTES = 1000


def keep(folder: Path, *, lock: int, plan: int, inputs: int | None, pokes: socket.socket) -> None:
    """Keep the job of a folder from its start to its end; ``lock`` is held until the ending is written."""
    begun = time.time()
    afterwards = contextlib.ExitStack()
    try:
        ending = _kept(folder, lock, plan, inputs, pokes, afterwards)
    except BaseException as error:  # noqa: BLE001 - whatever happens here, the job has to have an ending
        ending = Ending(
            state=JobState.LOST,
            reason="what watches over the job failed; this is a defect of fedmon",
            started=begun,
            ended=time.time(),
            sandbox=None,
            problem=Problem(type=type(error).__name__, message=str(error)[:_LONG_TEXT], traceback=_trace(error)),
        )
        end_all(_children, timeout_s=_KILL_TIMEOUT_S)
    with contextlib.suppress(OSError):
        write_ending(folder, ending)
    os.close(lock)
    with contextlib.suppress(OSError):
        pokes.settimeout(_POKE_TIMEOUT_S)
        pokes.sendmsg([folder.name.encode()], [], socket.MSG_NOSIGNAL)
    with contextlib.suppress(OSError):  # nobody waits for what is cleared away
        afterwards.close()


def _kept(
    folder: Path,
    lock: int,
    plan: int,
    inputs: int | None,
    pokes: socket.socket,
    afterwards: contextlib.ExitStack,
) -> Ending:
    _become_keeper()
    signals = Signals(str(folder / STOP))
    _tell_who(lock)
    order = JobFolder(folder).order()
    limits, level = order.limits, order.level
    if is_weaker(level, order.minimum):
        return _not_started(
            f"this machine confines plans by {level}, and the owner demands {order.minimum} ([runs] sandbox)"
        )
    asked = signals.asked()  # also by whom asked before there was anybody to signal
    if asked is not None:
        return Ending(state=asked.state, reason=asked.reason, started=None, ended=time.time(), sandbox=None)
    processes = limits.processes + _HELPERS[level]
    group = JobGroup(name_of(order), memory_bytes=limits.memory_bytes, processes=processes)
    afterwards.callback(group.remove)
    try:
        try:
            kept = Kept(
                journal=Journal(folder / EVENTS, mono=time.monotonic()),
                result=ResultFile(folder / RESULT),
                stdout=TraceWriter(folder / STDOUT, size_bytes=order.trace_bytes),
                stderr=TraceWriter(folder / STDERR, size_bytes=order.trace_bytes),
                poke=_poker(pokes, order.job_id),
                remember=_rememberer(folder),
                is_findable=lambda: os.fstat(lock).st_nlink > 0,
            )
            own = own_folder(order, level)
            files = Path(own) if own else None
            if files is not None:
                afterwards.callback(remove_tree, files)
            meter = Meter(limits, group, helpers=_HELPERS[level], files=files)
            started = time.time()
            running = start(order, plan=plan, inputs=inputs, first=group.enter, memory_is_held=group.holds_memory)
        except (FedmonError, OSError) as error:
            return _not_started(str(error))
        kept.journal.add(Started(t=started, pid=running.pid, sandbox=level, cgroup=group.path or None))
        kept.poke()
        return _watched(folder, order, running, kept, meter, group, signals, started)
    finally:
        group.kill()
        end_all(_children, timeout_s=_KILL_TIMEOUT_S)


def _watched(
    folder: Path,
    order: JobOrder,
    running: Running,
    kept: Kept,
    meter: Meter,
    group: JobGroup,
    signals: Signals,
    started: float,
) -> Ending:
    seen = Supervision(running.pid, order.level, order.limits, running.streams, kept, meter, signals)
    seen.run()
    result_format, result = seen.result_format, kept.result
    invalid = ""
    if result_format is not None and seen.cut is None and seen.exit_code == 0 and not result.problem:
        invalid = result.check(result_format, order.limits.output_bytes)
        if not invalid:
            result.keep()
    cpu_s = meter.cpu_s()
    verdict = decide(
        Seen(
            level=order.level,
            limits=order.limits,
            cut=seen.cut,
            exit_code=seen.exit_code,
            said=seen.said,
            has_result=result_format is not None,
            broken=seen.broken,
            invalid=invalid,
            unkept=result.problem,
            memory_kills=group.ended_for_memory(),
            refused_forks=group.refused_processes(),
            cpu_s=cpu_s,
            has_begun=seen.has_begun,
            setup="" if seen.has_begun else _complaint(JobFolder(folder)),
        )
    )
    has_result = verdict.state is JobState.SUCCEEDED
    if not has_result:
        result.discard()
    reason = verdict.reason
    if seen.left:
        numbers = ", ".join(str(each.pid) for each in seen.left[:10])
        reason = f"{reason}; {len(seen.left)} of its processes could not be killed ({numbers})"
    problem = None
    if seen.said is not None:
        said = seen.said
        problem = Problem(
            type=said.type[:_SHORT_TEXT],
            message=said.message[:_LONG_TEXT] or None,
            traceback=said.traceback[-_LONG_TEXT:] or None,
        )
    return Ending(
        state=verdict.state,
        reason=reason,
        started=started,
        ended=started + seen.wall_s,  # the clock may have been set meanwhile
        sandbox=order.level,
        exit_code=seen.exit_code,
        problem=problem,
        usage=Usage(wall_s=seen.wall_s, cpu_s=cpu_s, peak_memory_bytes=meter.peak_memory_bytes()),
        scalars=kept.journal.scalars,
        result_format=result_format if has_result else None,
        result_sha256=result.sha256 if has_result else None,
        result_bytes=result.size_bytes if has_result else 0,
    )


def _become_keeper() -> None:
    os.setsid()
    name_process(KEEPER)
    # Whoever leaves its parent becomes our child, so that nothing of the job gets away.
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)


def _children() -> list[Relative]:
    reap()
    return descendants(os.getpid())


def _tell_who(lock: int) -> None:
    me = relative(os.getpid())
    if me is not None:
        os.pwrite(lock, b"%d %d\n" % (me.pid, me.start), 0)


def _not_started(reason: str) -> Ending:
    return Ending(state=JobState.NOT_STARTED, reason=reason, started=None, ended=time.time(), sandbox=None)


def _poker(pokes: socket.socket, job_id: str) -> Callable[[], bool]:
    def poke() -> bool:
        try:
            pokes.send(job_id.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:
            return True  # there is no daemon: the next one looks for itself
        return True

    return poke


def _rememberer(folder: Path) -> Callable[[list[Known]], None]:
    path, staged = folder / PROCESSES, folder / f".{PROCESSES}"

    def remember(processes: list[Known]) -> None:
        with contextlib.suppress(OSError):  # the disk is full: what descends from those of before is found still
            staged.write_bytes(b"".join(b"%d %d\n" % each for each in processes))
            staged.replace(path)

    return remember


def _complaint(folder: JobFolder) -> str:
    """Return what bubblewrap or the interpreter complained about; nothing of the plan has run, so it is not its."""
    lines = folder.stderr(0, _SETUP_BYTES).text.split("\n")
    return lines[0].strip()


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-_LONG_TEXT:]


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """The first process, which became the sandbox or the interpreter, and what is heard of it."""

    pid: int
    streams: Streams


def start(
    order: JobOrder, *, plan: int, inputs: int | None, first: Callable[[], None], memory_is_held: bool
) -> Running:
    """Start it; ``first`` is called in the child before anything else. For ``memory_is_held`` see confined.command.

    Raises StorageError and ConflictError naming why it could not be started, and OSError.
    """
    keeper = os.getpid()

    def prepare() -> None:
        # The plan dies with its keeper. One that ended before this line is noticed by the line after it.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)
        _prefer_for_oom()
        first()

    with _Closing() as ours, _Closing() as theirs:
        pipes = [_pipe(ours, theirs) for _ in range(3)]
        given = {
            0: theirs.add(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)),
            1: pipes[0][1],
            2: pipes[1][1],
            3: theirs.add(sealed("job", _job(order))),
            4: theirs.add(_own(plan)),
            5: theirs.add(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) if inputs is None else _own(inputs)),
            6: pipes[2][1],
        }
        pid = command(order, order.level, given, memory_is_held=memory_is_held).start(first=prepare)
        ours.keep()
    return Running(pid=pid, streams=Streams(stdout=pipes[0][0], stderr=pipes[1][0], channel=pipes[2][0]))


def _job(order: JobOrder) -> bytes:
    """Return what the plan is told of its job."""
    dataset = order.dataset
    inside = data_path(order, order.level)
    return msgspec.json.encode(
        {
            "job_id": order.job_id,
            "node_id": order.node_id,
            "name": order.name,
            "arguments": order.arguments,
            "dataset": None if dataset is None else {**msgspec.structs.asdict(dataset), "path": inside},
            "inputs_format": order.inputs_format,
            "output_bytes": order.limits.output_bytes,
            "path": order.interpreter.path,
        }
    )


def _own(descriptor: int) -> int:
    """Return a descriptor of the same bytes, read-only and with a position of its own."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a file that was removed, or no /proc
        os.lseek(descriptor, 0, os.SEEK_SET)
        return os.dup(descriptor)


def _pipe(ours: _Closing, theirs: _Closing) -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC)
    ours.add(read)
    theirs.add(write)
    os.set_blocking(read, False)
    with contextlib.suppress(OSError):  # an ordinary user may have only so much in pipes
        fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, CHUNK_BYTES)
    return read, write


def _prefer_for_oom() -> None:
    """Have a machine without memory end the plan first, and not who watches over it; see proc(5), oom_score_adj."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")


class _Closing:
    """Descriptors that are closed at the end of a block."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)

    def add(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return descriptor

    def keep(self) -> None:
        """Leave them open after all."""
        self._descriptors.clear()
