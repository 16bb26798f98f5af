"""The rows of a planned table as Arrow record batches or CSV: read here when it is short, else by several processes."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedmon.common.errors import FedmonError, StorageError
from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import METRICS, Kind, is_counter
from fedmon.common.store.recording_file import Key
from fedmon.common.store.recording_reader import RecordingRows
from fedmon.report.blocks import Damage, Floats
from fedmon.report.export import csv
from fedmon.report.selection import Column, Layout, Plan, Span, SpanReader, SpanRows
from fedmon.report.source import Source

TIME = pa.timestamp("us", tz="UTC")
_TIDY_ROWS = 65_536


def schema(layout: Layout, *, is_tidy: bool) -> pa.Schema:
    """Return the columns of a table; values are floating point numbers, for any recorded type."""
    fields = [("host", pa.string()), ("time", TIME), *((label, pa.string()) for label in layout.labels)]
    if is_tidy:
        fields += [(name, pa.string()) for name in ("stream", "metric", "labels", "unit", "kind")]
        fields += [("value", pa.float64()), *([("rate", pa.float64())] if layout.rates else [])]
    else:
        fields += [(column.name, pa.float64()) for column in layout.columns]
    return pa.schema(fields)


def batches(layout: Layout, span: Span, rows: SpanRows, *, is_tidy: bool) -> Iterator[pa.RecordBatch]:
    """Return the rows of a span."""
    if is_tidy:
        yield from _tidy(layout, span, rows)
    elif len(rows.t):
        arrays = _heads(layout, span, rows.t)
        arrays += [pa.array(values, from_pandas=True) for values in rows.values]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema(layout, is_tidy=False))


def _tidy(layout: Layout, span: Span, rows: SpanRows) -> Iterator[pa.RecordBatch]:
    values = [number for number, column in enumerate(layout.columns) if not column.is_rate]
    if not values:
        return
    rates = {(column.stream, column.series): number for number, column in enumerate(layout.columns) if column.is_rate}
    of_rate = [rates.get((layout.columns[at].stream, layout.columns[at].series), -1) for at in values]
    texts = [_texts(layout.columns[at]) for at in values]
    made = schema(layout, is_tidy=True)
    step = max(1, _TIDY_ROWS // len(values))
    for first in range(0, len(rows.t), step):
        table = rows.values[values, first : first + step].T
        row, at = np.nonzero(~np.isnan(table))
        arrays = _heads(layout, span, rows.t[first : first + step][row])
        arrays += [_repeated([text[number] for text in texts], at) for number in range(5)]
        arrays.append(pa.array(table[row, at]))
        if layout.rates:
            grown = np.full((len(values) + 1, table.shape[0]), np.nan)
            for number, place in enumerate(of_rate):
                if place >= 0:
                    grown[number] = rows.values[place, first : first + step]
            arrays.append(pa.array(grown[at, row], from_pandas=True))
        if len(row):
            yield pa.RecordBatch.from_arrays(arrays, schema=made)


def _texts(column: Column) -> tuple[str, str | None, str | None, str | None, str | None]:
    """Return stream, metric, labels, unit and kind of a column."""
    metric = METRICS.get(metric_name(column.series))
    kind = metric.kind if metric is not None else Kind.COUNTER if is_counter(column.series) else None
    name, _, labels = column.name.partition("{")
    return (
        column.stream,
        name,
        labels.removesuffix("}") or None,
        metric.unit.value if metric is not None else None,
        kind.value if kind is not None else None,
    )


def _heads(layout: Layout, span: Span, t: Floats) -> list[pa.Array]:
    owner = layout.owners[span.node_id]
    same = np.zeros(len(t), dtype=np.intp)
    arrays = [_repeated([owner.host], same), _times(t)]
    for label in layout.labels:
        places = same if label != "job" else _outside(owner.job_times, t)
        arrays.append(_repeated([owner.labels.get(label), None], places))
    return arrays


def _outside(times: Sequence[tuple[float, float]], t: Floats) -> NDArray[np.intp]:
    """Return 0 for each time within one of these, and 1 for all others."""
    found = np.ones(len(t), dtype=np.intp)
    for low, high in times:
        found[(t >= low) & (t <= high)] = 0
    return found


def _repeated(texts: Sequence[str | None], places: NDArray[np.intp]) -> pa.Array:
    return pa.array(texts, pa.string()).take(pa.array(places))


def _times(t: Floats) -> pa.Array:
    return pa.array(np.rint(t * 1e6).astype(np.int64)).cast(TIME)


LONG_VALUES = 4_000_000
"""Samples from which processes pay off: each takes a third of a second to begin."""
MOST_READERS = 3
"""Each takes about 100 MB."""
_LENGTH = 8
_PIPE_BYTES = 2**20
_PROGRAM = "fedmon.report.rows"
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # nothing here multiplies matrices, and threads that wait to do so take time
    # Memory given back after each span is cleared by the kernel when it is taken again: a fifth of all the time.
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MIMALLOC_PURGE_DELAY": "-1",
}


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a reading process; ``paths`` as the system has them, which need not be text."""

    paths: list[bytes]
    layout: Layout
    is_tidy: bool
    as_lines: bool
    spans: list[Span] = []


class Portion(NamedTuple):
    """Some rows: record batches, or lines of CSV."""

    rows: int
    batches: Sequence[pa.RecordBatch] = ()
    lines: memoryview = memoryview(b"")


def _portion(task: Task, reader: SpanReader, span: Span) -> Portion:
    """Return the rows of a span. Raises StorageError."""
    made = list(batches(task.layout, span, reader.read(span), is_tidy=task.is_tidy))
    rows = sum(batch.num_rows for batch in made)
    return Portion(rows, lines=csv.text(made)) if task.as_lines else Portion(rows, made)


def reader_count(plan: Plan) -> int:
    """Return how many processes should read: none for short reads, else one per CPU, up to a limit."""
    if plan.rows * len(plan.layout.columns) < LONG_VALUES or len(plan.spans) < 2:
        return 0
    cpus = len(os.sched_getaffinity(0))
    return min(MOST_READERS, cpus) if cpus > 1 else 0


def read_pieces(source: Source, plan: Plan, task: Task, processes: int | None = None) -> Iterator[Portion]:
    """Return the pieces of a table, in order, read by this number of additional processes; None is as many as pay off.

    Raises StorageError.
    """
    count = reader_count(plan) if processes is None else min(processes, len(plan.spans))
    if count and sys.executable:
        yield from _by_processes(plan, task, count, source.damage)
        return
    reader = SpanReader(source.readers, task.layout, source.damage)
    for span in plan.spans:
        yield _portion(task, reader, span)


def _by_processes(plan: Plan, task: Task, count: int, damage: Damage) -> Iterator[Portion]:
    workers: list[_Worker] = []
    try:
        workers = [_Worker(task, damage) for _ in range(count)]
        for first, worker in enumerate(workers):
            worker.order(plan.spans[first::count])
        for number in range(len(plan.spans)):
            yield workers[number % count].piece()
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """One reading process; it makes the pieces of its spans in order, and waits while its pipe is full."""

    def __init__(self, task: Task, damage: Damage) -> None:
        self._task, self._damage = task, damage
        self._schema = schema(task.layout, is_tidy=task.is_tidy)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._process = process
        self._orders: IO[bytes] = process.stdin  # type: ignore[assignment]  # a pipe
        self._pieces: IO[bytes] = process.stdout  # type: ignore[assignment]  # a pipe
        with contextlib.suppress(OSError):  # a small pipe is only slower
            fcntl.fcntl(self._pieces, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def order(self, spans: Sequence[Span]) -> None:
        """Have it read these spans; called once."""
        with contextlib.suppress(BrokenPipeError), self._orders:
            _send(self._orders, msgspec.json.encode(msgspec.structs.replace(self._task, spans=list(spans))))

    def piece(self) -> Portion:
        """Return the next piece. Raises StorageError, also if the process is gone."""
        answer = msgspec.json.decode(memoryview(self._receive()), type=Answer)
        if answer.error is not None:
            raise StorageError(answer.error)
        parts = [self._receive() for _ in range(answer.parts)]
        for lost in answer.damaged:
            self._damage.add(*lost)
        if self._task.as_lines:
            return Portion(answer.rows, lines=memoryview(parts[0]))
        return Portion(answer.rows, [pa.ipc.read_record_batch(part, self._schema) for part in parts])

    def stop(self) -> None:
        """End the process; safe to call twice."""
        self._process.kill()
        self._process.wait()
        self._orders.close()
        self._pieces.close()

    def _receive(self) -> pa.Buffer:
        return _exactly(self._pieces, int.from_bytes(_exactly(self._pieces, _LENGTH).to_pybytes(), "big"))


def _exactly(stream: IO[bytes], length: int) -> pa.Buffer:
    """Return this number of bytes. Raises StorageError if the stream ends before."""
    # Memory of Arrow's is used again without being cleared, which for large pieces is half of the work.
    content = pa.allocate_buffer(length)
    view = memoryview(content)
    filled = 0
    while filled < length:
        read = stream.readinto(view[filled:])  # type: ignore[attr-defined]  # of an unbuffered pipe
        if not read:
            raise StorageError("a process that read the recording for this one ended early: start it again")
        filled += read
    return content


def _send(stream: IO[bytes], message: bytes | memoryview) -> None:
    """Send one message, with its length before it."""
    for part in (memoryview(message).nbytes.to_bytes(_LENGTH, "big"), message):
        view = memoryview(part)
        while view:
            view = view[stream.write(view) :]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Sent before a piece: its rows and parts, samples left out so far, and an error if there is one."""

    rows: int = 0
    parts: int = 0
    damaged: list[tuple[Key, int, int]] = []
    error: str | None = None


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Read a Task, and send for each of its spans an Answer and the parts of the piece: its lines, or its batches."""
    length = int.from_bytes(source.read(_LENGTH), "big")
    task, damage = msgspec.json.decode(source.read(length), type=Task), Damage()
    reader = SpanReader([RecordingRows(Path(os.fsdecode(path))) for path in task.paths], task.layout, damage)
    for span in task.spans:
        try:
            piece = _portion(task, reader, span)
        except FedmonError as found:
            _send(target, msgspec.json.encode(Answer(error=str(found))))
            break
        parts = [piece.lines] if task.as_lines else [memoryview(batch.serialize()) for batch in piece.batches]
        _send(target, msgspec.json.encode(Answer(rows=piece.rows, parts=len(parts), damaged=damage.ranges())))
        for part in parts:
            _send(target, part)


def main() -> None:
    """Serve on stdin and stdout; all other prints go to stderr."""
    # Ctrl-C reaches all processes of a terminal; the one that asked decides what becomes of this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    pa.set_cpu_count(1)
    # What is decoded is lists of numbers, which have no cycles, and a look for cycles goes through all of them.
    gc.disable()
    with contextlib.suppress(BrokenPipeError):  # the reader is gone
        serve(sys.stdin.buffer, target)


if __name__ == "__main__":
    main()
