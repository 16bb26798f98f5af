"""Samples become rows of a recording, without those that are there already."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from fedmon.common.metrics.batch import Batch
from fedmon.common.store.recording_body import encode
from fedmon.common.store.recording_compaction import TARGET_SAMPLES
from fedmon.common.store.recording_file import RecordingFile
from fedmon.common.store.recording_reader import LARGEST
from fedmon.common.store.recording_streams import Stream, Streams

logger = logging.getLogger(__name__)

ROW_SAMPLES = 60
"""Short batches of one transaction are joined up to so many samples."""


def add_batches(file: RecordingFile, streams: Streams, batches: Iterable[Batch], now: float) -> int:
    """Store what is new, at ``now`` on the age clock; inside a transaction. Returns how many samples that were.

    Short batches that follow each other make a row together. Raises StorageError.
    """
    stored = 0
    waiting: dict[int, list[Batch]] = {}
    for batch in batches:
        if not _is_sound(batch):
            continue
        stream = streams.make((batch.node_id, batch.stream, batch.boot))
        for part in _new_parts(stream, batch):
            before = waiting.get(stream.source)
            if before and part.seq == before[-1].last_seq + 1 and part.last_seq - before[0].seq < ROW_SAMPLES:
                before.append(part)
            else:
                if before:
                    _insert(file, stream, before, now)
                waiting[stream.source] = [part]
            _note(stream, part, now)
            stored += len(part.t)
    for parts in waiting.values():
        first = parts[0]
        _insert(file, streams.make((first.node_id, first.stream, first.boot)), parts, now)
    return stored


def _new_parts(stream: Stream, batch: Batch) -> list[Batch]:
    return [
        batch.part(low, min(last, low + TARGET_SAMPLES - 1))
        for first, last in stream.stored.absent(max(batch.seq, stream.floor_seq), batch.last_seq)
        for low in range(first, last + 1, TARGET_SAMPLES)
    ]


def _insert(file: RecordingFile, stream: Stream, parts: Sequence[Batch], now: float) -> None:
    first, last = parts[0], parts[-1]
    low_t, high_t = min(min(part.t) for part in parts), max(max(part.t) for part in parts)
    file.run(
        "INSERT INTO batch (source, first_seq, last_seq, first_t, last_t, low_t, high_t, last_mono, kept, body) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(stream.source, first.seq, last.last_seq, first.t[0], last.t[-1], low_t, high_t),
            *(last.mono[-1], now, encode(parts)),
        ),
    )


def _note(stream: Stream, part: Batch, now: float) -> None:
    """Note in memory what was stored."""
    if not stream.stored or part.seq < stream.stored.first:
        stream.oldest_t, stream.oldest_mono = part.t[0], part.mono[-1]
    if not stream.stored or part.last_seq > stream.stored.last:
        stream.last_t, stream.newest_mono, stream.kept = part.t[-1], part.mono[-1], now
    stream.stored.add(part.seq, part.last_seq)
    stream.compacted_to = min(stream.compacted_to, part.seq)
    stream.joined_to = min(stream.joined_to, part.seq)


def _is_sound(batch: Batch) -> bool:
    """Tell whether a batch can be stored; what cannot came from outside, and must not keep others from it."""
    length = len(batch.t)
    sound = (
        length > 0
        and 0 <= batch.seq <= LARGEST - length
        and 0 <= batch.boot <= LARGEST
        and len(batch.mono) == length
        and all(len(column) == length for column in batch.columns.values())
    )
    if not sound and length:
        logger.warning("samples of stream %s of node %s do not fit together: left out", batch.stream, batch.node_id)
    return sound
