"""A planned table piece by piece: read here when it is short, by several processes when it is long."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from fedmon.common.store.recording_reader import RecordingRows
from fedmon.report.export import csv_text
from fedmon.report.layout import Layout
from fedmon.report.record_batches import batches
from fedmon.report.selection import Plan
from fedmon.report.span_reader import SpanReader
from fedmon.report.spans import Span

logger = logging.getLogger(__name__)

LONG_VALUES = 4_000_000
"""From so many on it pays to start processes: each takes a third of a second to begin."""
MOST_READERS = 3
"""Each takes about 100 MB."""


class Form(Enum):
    """What a piece is: record batches, or lines of CSV."""

    BATCHES = "batches"
    CSV = "csv"


class Lines(NamedTuple):
    """Rows as text, and how many they are."""

    rows: int
    text: memoryview


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What a reading process is told first; ``paths`` as the system has them, which need not be text."""

    paths: list[bytes]
    layout: Layout
    is_tidy: bool
    form: Form


class Reader:
    """Makes the pieces of a table; for one thread. Raises StorageError."""

    def __init__(self, task: Task, recordings: Sequence[RecordingRows]) -> None:
        self._task = task
        self._reader = SpanReader(recordings, task.layout)

    @property
    def damaged(self) -> int:
        """How many samples were left out so far."""
        return self._reader.damaged

    def batches(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Return the rows of a span."""
        return batches(self._task.layout, span, self._reader.read(span), is_tidy=self._task.is_tidy)

    def csv(self, span: Span) -> Lines:
        """Return the rows of a span as lines."""
        made = list(self.batches(span))
        return Lines(sum(batch.num_rows for batch in made), csv_text.text(made))


def readers(plan: Plan) -> int:
    """Return how many processes should read: none for what is short, else as many as there are CPUs, within reason."""
    if plan.rows * len(plan.layout.columns) < LONG_VALUES or len(plan.spans) < 2:
        return 0
    cpus = len(os.sched_getaffinity(0))
    return min(MOST_READERS, cpus) if cpus > 1 else 0


def opened(paths: Sequence[bytes]) -> list[RecordingRows]:
    """Open recordings. Raises StorageError."""
    return [RecordingRows(Path(os.fsdecode(path))) for path in paths]
