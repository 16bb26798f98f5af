"""Start a plan's first process with everything that it gets and the pipes through which it is heard."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Callable
from typing import Self

import msgspec

from fedmon.node.runs.order import JobOrder
from fedmon.node.runs.sandbox import kernel
from fedmon.node.runs.sandbox.confined import command, data_path
from fedmon.node.runs.sealed import sealed
from fedmon.node.runs.supervision import CHUNK_BYTES, Streams


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
