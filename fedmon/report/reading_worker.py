"""A process that reads spans for another: it is told on stdin which, and answers on stdout, in the order of asking.

Messages have their length in front of them, in eight bytes. The first is a Task, then come spans. The answer to each is
an Answer and the parts of the piece: its lines, or each of its batches.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from typing import BinaryIO

import msgspec
import pyarrow as pa

from fedmon.common.errors import FedmonError
from fedmon.report.pieces import Form, Reader, Task, opened
from fedmon.report.spans import Span

LENGTH = 8


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
        rows, parts = 0, list[memoryview]()
        error: str | None = None
        try:
            rows, parts = _piece(reader, msgspec.json.decode(asked, type=Span), task.form)
        except FedmonError as found:
            error = str(found)
        answer = Answer(rows=rows, parts=len(parts), damaged=reader.damaged, logged=logged.lines, error=error)
        send(target, msgspec.json.encode(answer))
        logged.lines = []
        for part in parts:
            send(target, part)


def _piece(reader: Reader, span: Span, form: Form) -> tuple[int, list[memoryview]]:
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
