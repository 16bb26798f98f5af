"""Reads a planned table, in its order, by several processes where that is faster."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, BinaryIO, TypeAlias

import msgspec
import pyarrow as pa

from fedmon.common.errors import FedmonError, StorageError
from fedmon.report.pieces import Form, Lines, Reader, Task, opened, readers
from fedmon.report.record_batches import schema
from fedmon.report.selection import Plan
from fedmon.report.source import Source
from fedmon.report.spans import Span

LENGTH = 8

logger = logging.getLogger(__name__)

Piece: TypeAlias = list[pa.RecordBatch] | Lines
_AHEAD = 2
_PIPE_BYTES = 2**20
_START = """
import sys
sys.path[:] = {path!r}
from fedmon.report.reading import main
main()
"""
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # nothing here multiplies matrices, and threads that wait to do so take time
    # Memory given back after each span is cleared by the kernel when it is taken again: a fifth of all the time.
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MIMALLOC_PURGE_DELAY": "-1",
}


def read_pieces(
    source: Source, plan: Plan, *, is_tidy: bool, form: Form, processes: int | None = None
) -> Iterator[Piece]:
    """Return the pieces of a table, in order, read by so many processes more; None is as many as pay.

    Raises StorageError.
    """
    task = Task(paths=[os.fsencode(path) for path in source.paths], layout=plan.layout, is_tidy=is_tidy, form=form)
    count = readers(plan) if processes is None else min(processes, len(plan.spans))
    if count and sys.executable:
        yield from _by_processes(source, plan, task, count)
        return
    reader = Reader(task, source.rows)
    for span in plan.spans:
        yield _piece(reader, span, form)
    source.count_damaged(reader.damaged)


def _piece(reader: Reader, span: Span, form: Form) -> Piece:
    return reader.csv(span) if form is Form.CSV else list(reader.batches(span))


def _by_processes(source: Source, plan: Plan, task: Task, count: int) -> Iterator[Piece]:
    workers: list[_Worker] = []
    here: Reader | None = None
    try:
        workers = [_Worker(task) for _ in range(count)]
        for number, span in enumerate(plan.spans[: _AHEAD * len(workers)]):
            workers[number % len(workers)].ask(span)
        for number, span in enumerate(plan.spans):
            worker = workers[number % len(workers)]
            piece = worker.answer(task.form)
            if piece is None:
                if here is None:
                    logger.warning("a process that read for this one ended early: reading goes on in one process")
                    here = Reader(task, source.rows)
                piece = _piece(here, span, task.form)
            if number + _AHEAD * len(workers) < len(plan.spans):
                worker.ask(plan.spans[number + _AHEAD * len(workers)])
            yield piece
        source.count_damaged(sum(worker.damaged for worker in workers) + (here.damaged if here is not None else 0))
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """One reading process; answers come in the order of asking."""

    def __init__(self, task: Task) -> None:
        self.damaged = 0
        self._schema = schema(task.layout, is_tidy=task.is_tidy)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=os.environ | _ENVIRONMENT,
        )
        if self._process.stdout is not None:
            with contextlib.suppress(OSError):  # a small pipe is only slower
                fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._send(msgspec.json.encode(task))

    def ask(self, span: Span) -> None:
        """Ask for a span; short enough never to wait for the process."""
        self._send(msgspec.json.encode(span))

    def answer(self, form: Form) -> Piece | None:
        """Return the next piece; None when the process is gone. Raises StorageError."""
        head = self._receive()
        if head is None:
            return None
        answer = msgspec.json.decode(memoryview(head), type=Answer)
        parts: list[pa.Buffer] = []
        while len(parts) < answer.parts:
            part = self._receive()
            if part is None:
                return None
            parts.append(part)
        for line in answer.logged:
            logger.warning("%s", line)
        self.damaged = answer.damaged
        if answer.error is not None:
            raise StorageError(answer.error)
        if form is Form.CSV:
            return Lines(answer.rows, memoryview(parts[0]) if parts else memoryview(b""))
        return [pa.ipc.read_record_batch(part, self._schema) for part in parts]

    def stop(self) -> None:
        """End the process; safe to call twice."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _send(self, message: bytes) -> None:
        try:
            stream = self._process.stdin
            if stream is not None:
                view = memoryview(len(message).to_bytes(LENGTH, "big") + message)
                while view:
                    view = view[stream.write(view) :]
        except OSError as error:
            logger.debug("a reading process does not listen: %s", error)

    def _receive(self) -> pa.Buffer | None:
        stream = self._process.stdout
        head = _exactly(stream, LENGTH) if stream is not None else None
        if stream is None or head is None:
            return None
        return _exactly(stream, int.from_bytes(head.to_pybytes(), "big"))


def _exactly(stream: IO[bytes], length: int) -> pa.Buffer | None:
    """Return so many bytes; None when the stream ends before."""
    # Memory of Arrow's is used again without being cleared, which for large pieces is half of the work.
    content = pa.allocate_buffer(length)
    view = memoryview(content)
    filled = 0
    while filled < length:
        read = stream.readinto(view[filled:])  # type: ignore[attr-defined]  # of an unbuffered pipe
        if not read:
            return None
        filled += read
    return content


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What comes before a piece: its rows and parts, samples left out so far, what was logged, an error if any."""

    rows: int = 0
    parts: int = 0
    damaged: int = 0
    logged: list[str] = []
    error: str | None = None


class _Logged(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def receive(stream: BinaryIO) -> bytes | None:
    """Return the next message; None when there will be none."""
    head = stream.read(LENGTH)
    if len(head) < LENGTH:
        return None
    length = int.from_bytes(head, "big")
    message = stream.read(length)
    return message if len(message) == length else None


def send(stream: BinaryIO, message: bytes | memoryview) -> None:
    """Send one message. Raises OSError when nobody reads it."""
    view = memoryview(message)
    stream.write(view.nbytes.to_bytes(LENGTH, "big"))
    stream.write(view)
    stream.flush()


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Answer until there is nothing more to read; this is what a process does that reads spans for another.

    Messages have their length in front of them, in eight bytes. The first is a Task, then come spans. The answer to
    each is an Answer and the parts of the piece: its lines, or each of its batches.
    """
    first = receive(source)
    if first is None:
        return
    logged = _Logged()
    logger = logging.getLogger("fedmon")
    logger.addHandler(logged)
    logger.propagate = False
    task = msgspec.json.decode(first, type=Task)
    reader = Reader(task, opened(task.paths))
    while (asked := receive(source)) is not None:
        rows, parts = 0, list[memoryview]()
        error: str | None = None
        try:
            rows, parts = _parts(reader, msgspec.json.decode(asked, type=Span), task.form)
        except FedmonError as found:
            error = str(found)
        answer = Answer(rows=rows, parts=len(parts), damaged=reader.damaged, logged=logged.lines, error=error)
        send(target, msgspec.json.encode(answer))
        logged.lines = []
        for part in parts:
            send(target, part)


def _parts(reader: Reader, span: Span, form: Form) -> tuple[int, list[memoryview]]:
    """Return how many rows a piece has, and its lines or each of its batches."""
    if form is Form.CSV:
        lines = reader.csv(span)
        return lines.rows, [lines.text]
    made = list(reader.batches(span))
    return sum(batch.num_rows for batch in made), [memoryview(batch.serialize()) for batch in made]


def main() -> None:
    """Serve on stdin and stdout; whatever else is printed goes to stderr."""
    # Ctrl-C reaches all processes of a terminal; the one that asked decides what becomes of this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    pa.set_cpu_count(1)
    # What is decoded is lists of numbers, which have no cycles, and a look for cycles goes through all of them.
    gc.disable()
    try:
        serve(sys.stdin.buffer, target)
    except BrokenPipeError:
        os._exit(0)  # whoever asked is gone: nobody wants what is still buffered
