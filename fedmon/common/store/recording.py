"""The recording of samples: a node's log, a researcher's store, and what a job leaves behind, in one SQLite file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.batch import Batch
from fedmon.common.store import recording_notes as notes
from fedmon.common.store.recording_body import Chooser
from fedmon.common.store.recording_bounds import DAMAGED, DROPPED_BY_AGE, DROPPED_BY_SIZE, AgeClock, Bounds
from fedmon.common.store.recording_compaction import Compaction
from fedmon.common.store.recording_file import RecordingFile
from fedmon.common.store.recording_means import Means, read_means
from fedmon.common.store.recording_notes import Description, LostRange, Mark
from fedmon.common.store.recording_reader import LARGEST, Selection, read_rows
from fedmon.common.store.recording_salvage import salvage
from fedmon.common.store.recording_streams import Key, Stream, Streams
from fedmon.common.store.recording_writer import add_batches


class RecordedStream(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording holds of one stream of one boot of one node; times are those of the oldest and last sample."""

    node_id: str
    boot: int
    stream: str
    ranges: tuple[tuple[int, int], ...]
    oldest_seq: int
    last_seq: int
    oldest_t: float
    last_t: float
    samples: int


class Recording:
    """Samples of any number of nodes, in the order of node, stream, boot and number, however they arrived.

    For one thread at a time; several recordings, also in several processes, can have the same file open. Whoever only
    reads never waits for who writes. A file that is damaged when a writer opens it is set aside (``aside``), and
    what can be read of it is taken over. Bounds: when the file would take more than ``max_bytes``, or a sample is
    older than ``max_age_s``, the oldest go first and are counted. Every method raises StorageError when the file
    cannot be read or written, and InvalidInputError for text that is no Unicode; then nothing has changed.
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
        self.path = Path(path).expanduser()
        self._file = RecordingFile(self.path, read_only=read_only)
        self._streams = Streams(self._file)
        self._bounds = Bounds(self._file, self._streams, max_bytes=max_bytes, max_age_s=max_age_s)
        self._compaction = Compaction(self._file, self._streams)
        try:
            if self._file.aside is not None:
                salvage(self._file.aside, into=self._file)
            self._clock = AgeClock(self._file, wall=wall, monotonic=monotonic)
            if not read_only:
                self._file.limit_log(self._bounds.wal_pages)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._file.close()

    def set_bounds(self, *, max_bytes: int | None, max_age_s: float | None) -> None:
        """Keep to other bounds from now on; what they exclude goes with the next ``append`` or ``maintain``."""
        self._bounds.set(max_bytes=max_bytes, max_age_s=max_age_s)
        self._file.limit_log(self._bounds.wal_pages)
        self._file.rows("PRAGMA wal_checkpoint(TRUNCATE)")

    @property
    def aside(self) -> Path | None:
        """Where the damaged file lies that was found in place of this one; None when there was none."""
        return self._file.aside

    # --- writing -----------------------------------------------------------------------------------------------------

    def append(self, batches: Iterable[Batch]) -> int:
        """Store samples in one transaction, and keep to the bounds; returns how many were not there yet.

        Samples that are there already, or were dropped by a bound before, are left out.
        """
        with self._changing():
            now = self._clock.now()
            stored = add_batches(self._file, self._streams, batches, now)
            self._clock.save_when_due()
            self._bounds.enforce(now)
        return stored

    def set_lost(self, node_id: str, boot: int, stream: str, first_seq: int, last_seq: int, reason: str) -> None:
        """Declare samples lost, as far as they are not there: nobody needs to ask for them again."""
        self.set_all_lost([((node_id, stream, boot), first_seq, last_seq, reason)])

    def set_all_lost(self, losses: Iterable[tuple[Key, int, int, str]]) -> None:
        """Declare samples of any number of streams lost, in one transaction; see `set_lost`."""
        with self._changing():
            for key, first_seq, last_seq, reason in losses:
                found = self._streams.make(key)
                for first, last in self._gaps(found, first_seq, last_seq):
                    notes.add_lost(self._file, found.source, first, last, reason)
                    found.lost.add(first, last)

    def describe(self, node_id: str, boot: int, document: Mapping[str, Any]) -> None:
        """Keep what is known of a node since one of its boots: hardware, capabilities, labels; replaces the former."""
        with self._changing():
            notes.add_description(self._file, node_id, boot, document)

    def mark(self, node_id: str, boot: int, stream: str, t: float, text: str) -> None:
        """Keep something that happened at Unix time ``t``."""
        with self._changing():
            notes.add_mark(self._file, self._streams.make((node_id, stream, boot)).source, t, text)

    def maintain(self, *, everything: bool = False) -> bool:
        """Do one small piece of what can wait: bounds, or merging rows; tells whether there may be more to do.

        One piece takes some 100 ms at most. With ``everything`` the newest rows are merged too, as at the end.
        """
        with self._guarded():
            self._streams.refresh()
            now = self._clock.now()
            if self._bounds.exceeded(now):
                with self._file.transaction():
                    self._bounds.enforce(now)
                return True
            return self._compaction.step(now, everything=everything)

    def compact(self) -> None:
        """Merge every row that can be merged; takes long, for the end of a recording or a quiet hour."""
        while self.maintain(everything=True):
            pass

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(
        self,
        node_id: str | None = None,
        boot: int | None = None,
        stream: str | None = None,
        *,
        first_seq: int | None = None,
        last_seq: int | None = None,
        since_t: float | None = None,
        until_t: float | None = None,
        metrics: Sequence[str] | None = None,
        series: Chooser | None = None,
    ) -> Iterator[Batch]:
        """Return samples batch by batch, ordered by node, stream, boot and number, of everything that is not excluded.

        ``first_seq`` to ``last_seq`` and ``since_t`` to ``until_t`` (Unix time) belong to what is read. ``metrics``
        are names or globs such as ``host_cpu_*``: samples with none of them are left out. ``series`` says which series
        are wanted; samples with none of them come without columns. A row that is damaged is reported in the log and
        left out.
        """
        selection = Selection(
            node_id=node_id,
            boot=boot,
            stream=stream,
            first_seq=first_seq or 0,
            last_seq=LARGEST if last_seq is None else min(last_seq, LARGEST),
            since_t=since_t,
            until_t=until_t,
            metrics=None if metrics is None else tuple(metrics),
            series=series,
        )
        return read_rows(self._file, selection)

    def means(
        self,
        series: str,
        *,
        step_s: float,
        node_id: str | None = None,
        boot: int | None = None,
        stream: str | None = None,
        since_t: float | None = None,
        until_t: float | None = None,
    ) -> Iterator[Means]:
        """Return the means of one series, such as ``host_cpu_busy_ratio``, at steps of ``step_s`` seconds.

        Much faster than reading samples: of each row only this column and the times are looked at.
        """
        selection = Selection(node_id=node_id, boot=boot, stream=stream, since_t=since_t, until_t=until_t)
        return read_means(self._file, selection, series, step_s)

    def extents(self) -> list[RecordedStream]:
        """Return what there is of each stream, by node, stream and boot."""
        with self._guarded():
            self._streams.refresh()
            return [_extent(stream) for stream in self._streams.all() if stream.stored]

    def streams(self, node_id: str) -> set[str]:
        """Name every stream of a node of which there ever was something."""
        with self._guarded():
            self._streams.refresh()
            return {stream.key[1] for stream in self._streams.each() if stream.key[0] == node_id}

    def extent(self, node_id: str, boot: int, stream: str) -> RecordedStream | None:
        """Return what there is of one stream, or None when there is nothing."""
        with self._guarded():
            found = self._find((node_id, stream, boot))
            return _extent(found) if found is not None and found.stored else None

    def missing(self, node_id: str, boot: int, stream: str, first_seq: int, last_seq: int) -> list[tuple[int, int]]:
        """Return the ranges of samples that are neither here nor lost, nor dropped by a bound."""
        with self._guarded():
            found = self._find((node_id, stream, boot))
            if found is None:
                return [(first_seq, last_seq)] if first_seq <= last_seq else []
            return self._gaps(found, first_seq, last_seq)

    def lost(self, node_id: str, boot: int, stream: str) -> list[LostRange]:
        """Return what of a stream will never be here, and why."""
        with self._guarded():
            found = self._find((node_id, stream, boot))
            if found is None:
                return []
            return notes.lost_ranges(self._file, found)

    def descriptions(self, node_id: str | None = None) -> list[Description]:
        """Return what is known of nodes, by node and boot."""
        return notes.descriptions(self._file, node_id)

    def marks(self, node_id: str | None = None) -> list[Mark]:
        """Return what happened, in the order in which it was written down."""
        return notes.marks(self._file, node_id)

    def counts(self) -> dict[str, int]:
        """Return how many samples were dropped by size and by age, or given up as damaged, since the file was begun."""
        found = dict(self._file.rows("SELECT name, value FROM number"))
        return {name: int(found.get(name, 0)) for name in (DROPPED_BY_SIZE, DROPPED_BY_AGE, DAMAGED)}

    def size_bytes(self) -> int:
        """Return what the recording takes on the disk."""
        return self._file.size_bytes()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _find(self, key: Key) -> Stream | None:
        self._streams.refresh()
        return self._streams.find(key)

    @staticmethod
    def _gaps(stream: Stream, first_seq: int, last_seq: int) -> list[tuple[int, int]]:
        absent = stream.stored.absent(max(first_seq, stream.floor_seq), last_seq)
        return [gap for first, last in absent for gap in stream.lost.absent(first, last)]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Run a block in one transaction, on what the file holds at its begin."""
        with self._guarded(), self._file.transaction():
            self._streams.refresh()
            yield

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Forget what is in memory when something failed: the file did not follow."""
        try:
            yield
        except BaseException as error:
            self._streams.forget()
            if isinstance(error, UnicodeEncodeError):
                raise InvalidInputError(f"{ascii(error.object)[:80]} is no Unicode, so not to be kept") from error
            raise


def _extent(stream: Stream) -> RecordedStream:
    node_id, name, boot = stream.key
    return RecordedStream(
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
