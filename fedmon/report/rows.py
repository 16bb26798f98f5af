"""The rows of a planned table as Arrow record batches, or as CSV, which several processes make if it is long."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedmon.common.errors import FedmonError, StorageError
from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import METRICS, Kind, is_counter
from fedmon.common.store.recording import Recording
from fedmon.common.store.recording_file import Key
from fedmon.common.text import sound
from fedmon.report.blocks import Damage, Floats
from fedmon.report.export import csv
from fedmon.report.selection import Column, Plan, Span, SpanReader, SpanRows
from fedmon.report.source import Source

TIME = pa.timestamp("us", tz="UTC")
_TIDY_ROWS = 65_536


def schema(plan: Plan, *, is_tidy: bool) -> pa.Schema:
    """Return the columns of a table; values are floating point numbers, for any recorded type."""
    fields = [("host", pa.string()), ("time", TIME), *((label, pa.string()) for label in plan.labels)]
    if is_tidy:
        fields += [(name, pa.string()) for name in ("stream", "metric", "labels", "unit", "kind")]
        fields += [("value", pa.float64()), *([("rate", pa.float64())] if plan.rates else [])]
    else:
        fields += [(column.name, pa.float64()) for column in plan.columns]
    return pa.schema(fields)


def _wide(plan: Plan, span: Span, rows: SpanRows) -> Iterator[pa.RecordBatch]:
    if len(rows.t):
        arrays = [*_heads(plan, span, rows.t), *(pa.array(values, from_pandas=True) for values in rows.values)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema(plan, is_tidy=False))


def _tidy(plan: Plan, span: Span, rows: SpanRows) -> Iterator[pa.RecordBatch]:
    values = [number for number, column in enumerate(plan.columns) if not column.is_rate]
    rates = {(column.stream, column.series): number for number, column in enumerate(plan.columns) if column.is_rate}
    of_rate = [rates.get((plan.columns[at].stream, plan.columns[at].series), -1) for at in values]
    texts = [_texts(plan.columns[at]) for at in values]
    made = schema(plan, is_tidy=True)
    step = max(1, _TIDY_ROWS // len(values))
    for first in range(0, len(rows.t), step):
        table = rows.values[values, first : first + step].T
        row, at = np.nonzero(~np.isnan(table))
        arrays = _heads(plan, span, rows.t[first : first + step][row])
        arrays += [_repeated([text[number] for text in texts], at) for number in range(5)]
        arrays.append(pa.array(table[row, at]))
        if plan.rates:
            grown = np.full((len(values) + 1, table.shape[0]), np.nan)
            for number, place in enumerate(of_rate):
                if place >= 0:
                    grown[number] = rows.values[place, first : first + step]
            arrays.append(pa.array(grown[at, row], from_pandas=True))
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


def _heads(plan: Plan, span: Span, t: Floats) -> list[pa.Array]:
    owner = plan.owners[span.node_id]
    same = np.zeros(len(t), dtype=np.intp)
    arrays = [_repeated([owner.host], same), pa.array(np.rint(t * 1e6).astype(np.int64)).cast(TIME)]
    for label in plan.labels:
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


LONG_VALUES = 4_000_000
"""Samples from which processes pay off: each takes a third of a second to begin."""
MOST_READERS = 3
"""Each takes about 100 MB."""
_PIPE_BYTES = 2**20
_PROGRAM = "fedmon.report.rows"
_GONE = "a process that read the recording for this one ended early: start it again"
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
    plan: Plan
    is_tidy: bool


class Lines(NamedTuple):
    """Some rows as lines of CSV."""

    rows: int
    text: bytes | memoryview


def _batches(plan: Plan, reader: SpanReader, span: Span, *, is_tidy: bool) -> Iterator[pa.RecordBatch]:
    return (_tidy if is_tidy else _wide)(plan, span, reader.read(span))


def _lines(task: Task, reader: SpanReader, span: Span) -> Lines:
    """Return the rows of a span. Raises StorageError."""
    made = list(_batches(task.plan, reader, span, is_tidy=task.is_tidy))
    return Lines(sum(batch.num_rows for batch in made), csv.text(made))


def reader_count(plan: Plan) -> int:
    """Return how many processes should read: none for short reads, else one per CPU, up to a limit."""
    if plan.rows * len(plan.columns) < LONG_VALUES or len(plan.spans) < 2:
        return 0
    cpus = len(os.sched_getaffinity(0))
    return min(MOST_READERS, cpus) if cpus > 1 else 0


def read_batches(source: Source, plan: Plan, *, is_tidy: bool) -> Iterator[pa.RecordBatch]:
    """Return the rows of a table, in order. Raises StorageError."""
    reader = SpanReader(source.readers, plan, source.damage)
    for span in plan.spans:
        yield from _batches(plan, reader, span, is_tidy=is_tidy)


def read_lines(source: Source, plan: Plan, *, is_tidy: bool, processes: int | None = None) -> Iterator[Lines]:
    """Return the rows of a table, in order, read by this number of additional processes; None is as many as pay off.

    Raises StorageError.
    """
    task = Task(paths=[os.fsencode(path) for path in source.paths], plan=plan, is_tidy=is_tidy)
    count = reader_count(plan) if processes is None else min(processes, len(plan.spans))
    if not count or not sys.executable:
        reader = SpanReader(source.readers, plan, source.damage)
        yield from (_lines(task, reader, span) for span in plan.spans)
        return
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(contextlib.closing(_Worker(task, source.damage))) for _ in range(count)]
        for first, worker in enumerate(workers):
            worker.order(plan.spans[first::count])
        for number in range(len(plan.spans)):
            yield workers[number % count].lines()


class _Worker:
    """One reading process; it makes the lines of its spans in order, and waits while its pipe is full."""

    def __init__(self, task: Task, damage: Damage) -> None:
        self._task, self._damage = task, damage
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._answers: IO[bytes] = self._process.stdout  # type: ignore[assignment]  # a pipe
        with contextlib.suppress(OSError):  # a small pipe is only slower
            fcntl.fcntl(self._answers, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._orders: IO[bytes] = self._process.stdin  # type: ignore[assignment]  # a pipe

    def order(self, spans: Sequence[Span]) -> None:
        """Have it read these spans; called once."""
        plan = msgspec.structs.replace(self._task.plan, spans=tuple(spans))
        with contextlib.suppress(BrokenPipeError), self._orders:
            self._orders.write(msgspec.json.encode(msgspec.structs.replace(self._task, plan=plan)) + b"\n")

    def lines(self) -> Lines:
        """Return the lines of the next span. Raises StorageError, also if the process is gone."""
        line = self._answers.readline()
        head = msgspec.json.decode(line, type=LinesHead) if line.endswith(b"\n") else LinesHead(error=_GONE)
        text = self._answers.read(head.size_bytes)
        if head.error or len(text) < head.size_bytes:
            raise StorageError(head.error or _GONE)
        for lost in head.damaged:
            self._damage.add(*lost)
        return Lines(head.rows, text)

    def close(self) -> None:
        """End the process."""
        with self._process:
            self._process.kill()


class LinesHead(msgspec.Struct, frozen=True, kw_only=True):
    """Sent before the lines of a span: their number, samples left out so far, and an error if there is one."""

    rows: int = 0
    size_bytes: int = 0
    damaged: list[tuple[Key, int, int]] = []
    error: str = ""


def serve(orders: IO[bytes], target: IO[bytes]) -> None:
    """Read a Task in a line, and send each of its spans: a LinesHead, then lines of CSV."""
    task, damage = msgspec.json.decode(orders.readline(), type=Task), Damage()
    try:
        recordings = [Recording(os.fsdecode(path), read_only=True).rows for path in task.paths]
        reader = SpanReader(recordings, task.plan, damage)
        for span in task.plan.spans:
            rows, text = _lines(task, reader, span)
            _send(target, LinesHead(rows=rows, size_bytes=len(text), damaged=damage.ranges()), text)
    except FedmonError as found:
        _send(target, LinesHead(error=sound(str(found))), b"")


def _send(target: IO[bytes], head: LinesHead, text: bytes | memoryview) -> None:
    target.write(msgspec.json.encode(head) + b"\n")
    target.write(text)
    target.flush()


def main() -> None:
    """Serve on stdin and stdout; all other prints go to stderr."""
    # Ctrl-C reaches all processes of a terminal; the one that asked decides what becomes of this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    pa.set_cpu_count(1)
    # What is decoded is lists of numbers, which have no cycles, and a look for cycles goes through all of them.
    gc.disable()
    with contextlib.suppress(BrokenPipeError):  # the reader is gone
        serve(sys.stdin.buffer, target)


if __name__ == "__main__":
    main()
