"""The recording of samples in one SQLite file: a node's log, a researcher's store, or a job's result."""

from __future__ import annotations

import contextlib
import logging
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.files import Closing, at_home
from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording_compaction import Compaction
from fedmon.common.store.recording_file import (
    DAMAGED,
    DROPPED_BY_AGE,
    DROPPED_BY_SIZE,
    LARGEST,
    AgeClock,
    Bounds,
    Key,
    RecordingFile,
    StreamTable,
    add_batches,
)
from fedmon.common.store.recording_format import Chooser
from fedmon.common.store.recording_reader import RecordingRows, RowSelection, read_rows

logger = logging.getLogger(__name__)

DROPPED_HERE = "dropped by a bound of this recording"


class LostRange(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that will never be there."""

    first_seq: int
    last_seq: int
    reason: str


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """An event at Unix time ``t``."""

    node_id: str
    boot: int
    stream: str
    t: float
    text: str


class NodeDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a node since one of its boots."""

    node_id: str
    boot: int
    document: dict[str, Any]


class RecordedStream(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one stream of one boot of one node; times are those of the oldest and last sample."""

    node_id: str
    boot: int
    stream: str
    ranges: tuple[tuple[int, int], ...]
    oldest_seq: int
    last_seq: int
    oldest_t: float
    last_t: float
    samples: int


class Recording(Closing):
    """Samples of any number of nodes, in the order of node, stream, boot and number, however they arrived.

    For one thread at a time; several recordings, also in several processes, can have the same file open. Readers never
    wait for writers. ``rows`` reads it row by row. A file that is damaged when a writer opens it is set aside
    (``aside``, else None), and its readable part is taken over. Bounds: when the file would take more than
    ``max_bytes``, or a sample is older than ``max_age_s``, the oldest go first and are counted. Every method raises
    StorageError when the file cannot be read or written; then nothing has changed.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        max_bytes: int | None = None,
        max_age_s: float | None = None,
        read_only: bool = False,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = at_home(path)
        self._file = RecordingFile(self.path, read_only=read_only)
        self.aside = self._file.aside
        self.rows = RecordingRows(self._file)
        self._streams = StreamTable(self._file)
        self._bounds = Bounds(self._file, self._streams, max_bytes=max_bytes, max_age_s=max_age_s)
        self._compaction = Compaction(self._file, self._streams)
        try:
            self._clock = AgeClock(self._file, wall=wall, monotonic=monotonic)
            if not read_only:
                self._file.limit_log(self._bounds.wal_pages)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._file.close()

    def set_bounds(self, *, max_bytes: int | None, max_age_s: float | None) -> None:
        """Change the bounds; excluded samples go with the next ``append`` or ``maintain``."""
        self._bounds.set(max_bytes=max_bytes, max_age_s=max_age_s)
        self._file.limit_log(self._bounds.wal_pages)
        self._file.rows("PRAGMA wal_checkpoint(TRUNCATE)")

    # --- writing -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Make all changes of a block one transaction, which is stored whole or not at all, and faster than several."""
        with self._current(), self._file.transaction():
            self._streams.refresh()
            yield

    def append(self, batches: Iterable[Batch]) -> int:
        """Store samples in one transaction, and keep to the bounds; returns how many were new.

        Samples that are there already, or were dropped by a bound before, are left out.
        """
        with self.changing():
            now = self._clock.now()
            stored = add_batches(self._file, self._streams, batches, now)
            self._clock.save_when_due()
            self._bounds.enforce(now)
        return stored

    def set_all_lost(self, losses: Iterable[tuple[Key, int, int, str]]) -> None:
        """Declare samples lost, by stream, first and last number and reason, so that they are not asked for again.

        Samples that are here stay.
        """
        with self.changing():
            for key, first_seq, last_seq, reason in losses:
                found = self._streams.make(key)
                absent = found.stored.absent(max(first_seq, found.floor_seq), min(last_seq, LARGEST))
                for first, last in (gap for part in absent for gap in found.lost.absent(*part)):
                    self._file.run(
                        "INSERT OR REPLACE INTO lost (source, first_seq, last_seq, reason) VALUES (?, ?, ?, ?)",
                        (found.source, first, last, reason),
                    )
                    found.lost.add(first, last)

    def describe(self, node_id: str, boot: int, document: Mapping[str, Any]) -> None:
        """Keep the description of a node since one of its boots: replaces the former one."""
        with self.changing():
            self._file.run(
                "INSERT OR REPLACE INTO description (node_id, boot, document) VALUES (?, ?, ?)",
                (node_id, boot, zlib.compress(msgspec.json.encode(dict(document)))),
            )

    def mark(self, node_id: str, boot: int, stream: str, t: float, text: str) -> None:
        """Keep an event at Unix time ``t``."""
        with self.changing():
            source = self._streams.make((node_id, stream, boot)).source
            self._file.run("INSERT INTO mark (source, t, text) VALUES (?, ?, ?)", (source, t, text))

    def maintain(self) -> bool:
        """Do one small piece of maintenance, in some 100 ms: bounds, or merging rows; tell whether more may be left."""
        with self._current():
            now = self._clock.now()
            with self._file.transaction():
                dropped = self._bounds.enforce(now)
            return dropped > 0 or self._compaction.step(now)

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(
        self,
        node_id: str | None = None,
        boot: int | None = None,
        stream: str | None = None,
        *,
        first_seq: int = 0,
        last_seq: int = LARGEST,
        since_t: float | None = None,
        series: Chooser | None = None,
    ) -> Iterator[Batch]:
        """Return samples batch by batch, ordered by node, stream, boot and number, of everything that is not excluded.

        ``first_seq`` to ``last_seq`` are read, both included, from Unix time ``since_t`` on. ``series`` says which
        series are wanted; samples with none of them come without columns. Damaged rows are only logged.
        """
        selection = RowSelection(first_seq=first_seq, last_seq=last_seq, since_t=since_t, series=series)
        return read_rows(self._file, (node_id, stream, boot), selection)

    def extents(self) -> list[RecordedStream]:
        """Return the extent of each stream, by node, stream and boot."""
        with self._current():
            return [
                RecordedStream(
                    node_id=node_id,
                    boot=boot,
                    stream=name,
                    ranges=tuple(stream.stored),
                    oldest_seq=stream.stored.first,
                    last_seq=stream.stored.last,
                    oldest_t=stream.oldest_t,
                    last_t=stream.last_t,
                    samples=stream.stored.total,
                )
                for (node_id, name, boot), stream in sorted(self._streams.items())
                if stream.stored
            ]

    def streams(self, node_id: str) -> set[str]:
        """Name every stream of a node that ever had a sample."""
        with self._current():
            return {stream.key[1] for stream in self._streams.values() if stream.key[0] == node_id}

    def lost(self, node_id: str, boot: int, stream: str) -> list[LostRange]:
        """Return the lost samples of a stream with their reasons, by number."""
        with self._current():
            found = self._streams.get((node_id, stream, boot))
            if found is None:
                return []
            rows = self._file.rows(
                "SELECT first_seq, last_seq, reason FROM lost WHERE source = ? AND last_seq >= ? ORDER BY first_seq",
                (found.source, found.floor_seq),
            )
        dropped = [LostRange(first_seq=0, last_seq=found.floor_seq - 1, reason=DROPPED_HERE)] if found.floor_seq else []
        return dropped + [
            LostRange(first_seq=first, last_seq=last, reason=reason)
            for low, high, reason in rows
            for first, last in found.stored.absent(max(low, found.floor_seq), high)
        ]

    def descriptions(self) -> list[NodeDescription]:
        """Return the descriptions of nodes, by node and boot."""
        found = []
        for node, boot, body in self._file.rows(
            "SELECT node_id, boot, document FROM description ORDER BY node_id, boot"
        ):
            try:
                # Earlier versions wrote the text itself.
                text = body if isinstance(body, str) else zlib.decompress(body)
                document = msgspec.json.decode(text, type=dict[str, Any])
            except (msgspec.DecodeError, TypeError, zlib.error) as error:
                # The samples are worth reading without it.
                logger.warning("left out: the description of node %s since boot %s is damaged: %s", node, boot, error)
                continue
            found.append(NodeDescription(node_id=node, boot=boot, document=document))
        return found

    def marks(self) -> list[Mark]:
        """Return all marks in the order in which they were made."""
        return [
            Mark(node_id=node, boot=boot, stream=stream, t=t, text=text)
            for node, boot, stream, t, text in self._file.rows(
                "SELECT node_id, boot, stream, t, text FROM mark JOIN source ON source.id = source ORDER BY mark.id"
            )
            # After damage there may be values of any type.
            if isinstance(t, int | float) and isinstance(text, str)
        ]

    def counts(self) -> dict[str, int]:
        """Return how many samples were dropped by size and by age, or given up as damaged, since the file was begun."""
        found = dict(self._file.rows("SELECT name, value FROM number"))
        return {name: int(found.get(name, 0)) for name in (DROPPED_BY_SIZE, DROPPED_BY_AGE, DAMAGED)}

    def size_bytes(self) -> int:
        """Return the size of the recording on disk."""
        return self._file.size_bytes()

    # --- inside ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Run a block with the present state of the file in memory, which is read again after a failure."""
        try:
            self._streams.refresh()
            yield
        except BaseException:
            self._streams.forget()
            raise
