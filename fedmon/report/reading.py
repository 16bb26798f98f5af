"""Reads a planned table, in its order, by several processes where that is faster."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, TypeAlias

import msgspec
import pyarrow as pa

from fedmon.common.errors import StorageError
from fedmon.report.pieces import Form, Lines, Reader, Task, readers
from fedmon.report.reading_worker import LENGTH, Answer
from fedmon.report.record_batches import schema
from fedmon.report.selection import Plan
from fedmon.report.source import Source
from fedmon.report.spans import Span

logger = logging.getLogger(__name__)

Piece: TypeAlias = list[pa.RecordBatch] | Lines
_AHEAD = 2
_PIPE_BYTES = 2**20
_START = """
import sys
sys.path[:] = {path!r}
from fedmon.report.reading_worker import main
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
