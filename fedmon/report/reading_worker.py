"""A process that reads spans for another: it is told on stdin which, and answers on stdout, in the order of asking.

Messages have their length in front of them, in eight bytes. The first is a Task, then come spans. The answer to each is
an Answer and the piece itself.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import BinaryIO

import msgspec
import pyarrow as pa

from fedmon.common.errors import FedmonError
from fedmon.report.pieces import Form, Lines, Reader, Task, opened
from fedmon.report.spans import Span

LENGTH = 8


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What comes with a piece: its rows, samples left out so far, what was logged since the last, an error if any."""

    rows: int = 0
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
    """Answer until there is nothing more to read."""
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
        rows, piece = 0, memoryview(b"")
        error: str | None = None
        try:
            rows, piece = _piece(reader, msgspec.json.decode(asked, type=Span), task.form)
        except FedmonError as found:
            error = str(found)
        send(target, msgspec.json.encode(Answer(rows=rows, damaged=reader.damaged, logged=logged.lines, error=error)))
        logged.lines = []
        send(target, piece)


def _piece(reader: Reader, span: Span, form: Form) -> Lines:
    if form is Form.CSV:
        return reader.csv(span)
    rows = 0
    sink = pa.BufferOutputStream()
    writer: pa.RecordBatchStreamWriter | None = None
    for batch in reader.batches(span):
        rows += batch.num_rows
        if writer is None:
            writer = pa.ipc.new_stream(sink, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()
    return Lines(rows, memoryview(sink.getvalue()))


def main() -> None:
    """Serve on stdin and stdout; whatever else is printed goes to stderr."""
    # Ctrl-C reaches all processes of a terminal; the one that asked decides what becomes of this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    pa.set_cpu_count(1)
    try:
        serve(sys.stdin.buffer, target)
    except BrokenPipeError:
        os._exit(0)  # whoever asked is gone: nobody wants what is still buffered
