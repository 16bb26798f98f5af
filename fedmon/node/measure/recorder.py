"""The node's recorder: every sample goes to the recording first, on its own thread, and can be asked for again."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from fedmon.common.backoff import Backoff
from fedmon.common.errors import StorageError
from fedmon.common.metrics.sample import Batch, may_read
from fedmon.common.store.damage import tells_of_damage
from fedmon.common.store.recording import Recording
from fedmon.common.wire.samples import Extent

logger = logging.getLogger(__name__)

RECORDED = "agent_samples_recorded_total"
DROPPED_FULL = "agent_recording_samples_dropped_total"
DROPPED_BOUND = "agent_recording_samples_expired_total"
BUFFERED = "agent_recording_samples_buffered"
FILE_BYTES = "agent_recording_size_bytes"
BUFFER_BYTES = 8 * 2**20
HOLD_S = 10.0
MAX_EXTENTS = 256
_FULL_BATCH, _AT_ONCE = 10, 100
_VALUE_BYTES, _COLUMN_BYTES, _BATCH_BYTES = 32, 120, 1_000
_IDLE_S, _LOOK_AGAIN_S = 600.0, 60.0
_RETRY_S, _MAX_RETRY_S = 1.0, 30.0

Place = tuple[str, int]
"""A stream and a boot."""


class Recorder:
    """Keeps every sample of this node in its recording, as far as the bounds allow.

    ``samples`` reads through a separate connection and belongs to one thread, the one that calls ``stop`` last; every
    other method is safe from any thread and never waits for the disk. Samples wait in memory for at most ``hold_s`` or
    10 samples, then a thread commits them. While that fails, as on a full disk, they wait in ``buffer_bytes``, then the
    oldest are dropped and counted: what was kept is stored, dropped or waiting, always. A file that is damaged,
    moved or removed while it is open is noticed within a minute, or when read, and begun anew. ``problem`` says why
    nothing can be stored at present; it is empty otherwise.
    """

    def __init__(
        self,
        path: Path,
        *,
        node_id: str,
        max_bytes: int | None = None,
        max_age_s: float | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        hold_s: float = HOLD_S,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.path, self._node_id = path, node_id
        self._bounds, self._has_new_bounds = (max_bytes, max_age_s), False
        self._monotonic, self._wall = monotonic, wall
        self._changed = threading.Condition()
        self._buffer = RecordBuffer(buffer_bytes, hold_s=hold_s)
        self._stored: dict[Place, Extent] = {}
        self._known: set[str] | None = None
        self._recorded = self._size_bytes = self._expired = self._files = 0
        self.problem = ""
        self._doubt: StorageError | None = None
        self._look_again_at, self._stopping = 0.0, False
        self._recording: Recording | None = None
        self._reader: Recording | None = None
        self._reader_file = 0
        self._thread = threading.Thread(target=self._run, name="fedmon-recorder")

    def start(self) -> None:
        """Start the thread, which opens the recording and tries again if it cannot."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Store what waits, then end; return whether that was done in time. The reading thread must have ended."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        self._close_reader()
        return not self._thread.is_alive()

    def keep(self, batch: Batch) -> None:
        """Take samples in, from any thread, without waiting; for ``Publisher``."""
        with self._changed:
            self._buffer.add(batch, now=self._monotonic())
            if self._buffer.samples == len(batch.t) or self._is_due():
                self._changed.notify_all()

    def set_bounds(self, *, max_bytes: int | None, max_age_s: float | None) -> None:
        """Keep to other bounds from now on."""
        with self._changed:
            self._bounds, self._has_new_bounds = (max_bytes, max_age_s), True
            self._changed.notify_all()

    def counts(self) -> dict[str, float | None]:
        """Return the ``agent_`` metrics of the recording, of one moment."""
        with self._changed:
            return {
                RECORDED: self._recorded,
                DROPPED_FULL: self._buffer.dropped,
                DROPPED_BOUND: self._expired,
                BUFFERED: self._buffer.samples,
                FILE_BYTES: self._size_bytes,
            }

    @property
    def ready(self) -> bool:
        """Whether the content of the recording is known."""
        return self._known is not None

    def streams(self) -> set[str]:
        """Name every stream of which the recording ever held something."""
        with self._changed:
            return (self._known or set()) | {batch.stream for batch in self._buffer}

    def extents(self, researcher_id: str = "") -> list[Extent]:
        """Return what is kept of each stream that a researcher may read; newest boot first, at most 256."""
        with self._changed:
            found = _joined(self._stored, self._buffer).values()
        mine = [extent for extent in found if may_read(extent.stream, researcher_id)]
        return sorted(mine, key=lambda extent: (-extent.boot, -extent.last_t, extent.stream))[:MAX_EXTENTS]

    def extent(self, stream: str, boot: int | None) -> Extent | None:
        """Return what is kept of a stream: of one boot, or of the newest that has it; None for nothing."""
        with self._changed:
            found = _joined(self._stored, (batch for batch in self._buffer if batch.stream == stream))
        if boot is None:
            boot = max((number for name, number in found if name == stream), default=0)
        return found.get((stream, boot))

    def samples(
        self, stream: str, boot: int, first_seq: int, last_seq: int, *, wanted: Callable[[str], bool]
    ) -> Iterator[Batch]:
        """Yield kept samples in order, with the series that are ``wanted``; some have none of them.

        Only as much is read as is taken. Raises StorageError.
        """
        with self._changed:
            waiting = [batch for batch in self._buffer if (batch.stream, batch.boot) == (stream, boot)]
        position = first_seq
        for batch in self._read(stream, boot, first_seq, last_seq, wanted):
            position = batch.last_seq + 1
            yield batch
        for batch in waiting:
            if batch.last_seq >= position and batch.seq <= last_seq:
                part = batch.part(position, last_seq)
                position = part.last_seq + 1
                yield part.only([series for series in part.columns if wanted(series)])

    # --- the reading thread ------------------------------------------------------------------------------------------

    def _read(
        self, stream: str, boot: int, first_seq: int, last_seq: int, wanted: Callable[[str], bool]
    ) -> Iterator[Batch]:
        if (stream, boot) not in self._stored:
            return
        file = self._files
        if self._reader_file != file:  # another file was begun at this path
            self._close_reader()
        try:
            if self._reader is None:
                self._reader, self._reader_file = Recording(self.path, read_only=True), file
            yield from self._reader.read(
                self._node_id, boot, stream, first_seq=first_seq, last_seq=last_seq, series=wanted
            )
        except StorageError as error:
            self._close_reader()
            if tells_of_damage(error) and file == self._files:
                with self._changed:
                    self._doubt = error  # the writer need not notice: what it reads is in its memory
                    self._changed.notify_all()
            raise

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # --- the recorder's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        retry = Backoff(_RETRY_S, longest_s=_MAX_RETRY_S)
        while self._wait():
            try:
                self._work()
                retry.reset()
            except StorageError as error:
                self._failed(error)
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, retry.next_s())
        self._finish()

    def _is_due(self) -> bool:
        due_at = self._buffer.due_at()
        return due_at is not None and self._monotonic() >= due_at

    def _wait(self) -> bool:
        """Wait for something to store or to maintain; False when it is time to stop."""
        with self._changed:
            while self._recording is not None and self._doubt is None:
                if self._stopping or self._has_new_bounds or self._is_due():
                    break
                due_at = self._buffer.due_at()
                if not self._changed.wait(_IDLE_S if due_at is None else max(0.0, due_at - self._monotonic())):
                    break
            return not self._stopping

    def _work(self) -> None:
        """Store what waits, then maintain the file for as long as nothing else waits."""
        if (doubt := self._doubt) is not None:
            self._doubt = None
            raise doubt
        recording = self._opened()
        with self._changed:
            (max_bytes, max_age_s), is_new, self._has_new_bounds = self._bounds, self._has_new_bounds, False
        if is_new:
            recording.set_bounds(max_bytes=max_bytes, max_age_s=max_age_s)
        self._store(recording)
        if self._monotonic() >= self._look_again_at:
            # The writer's connection sees what it has in memory, and only a new one the file itself.
            with Recording(self.path, read_only=True) as file:
                file.extents()
            self._look_again_at = self._monotonic() + _LOOK_AGAIN_S
        while recording.maintain():
            self._look(recording)
            with self._changed:
                if self._stopping or self._is_due():
                    break

    def _opened(self) -> Recording:
        if self._recording is None:
            max_bytes, max_age_s = self._bounds
            recording = Recording(
                self.path, max_bytes=max_bytes, max_age_s=max_age_s, wall=self._wall, monotonic=self._monotonic
            )
            self._files += 1  # it may be another file than before, which was set aside
            try:
                self._look(recording)
            except StorageError:
                recording.close()
                raise
            self._recording = recording
        return self._recording

    def _store(self, recording: Recording) -> None:
        while True:
            with self._changed:
                batches = self._buffer.taken()
            if not batches:
                break
            self._look(recording, stored=recording.append(batches))
        if self.problem:
            logger.warning("recording %s works again", self.path)
            self.problem = ""

    def _look(self, recording: Recording, *, stored: int | None = None) -> None:
        """Take over what the recording holds now, and that the samples in hand were ``stored``, all in one moment."""
        mine = [one for one in recording.extents() if one.node_id == self._node_id]
        extents = {(one.stream, one.boot): msgspec.convert(one, Extent, from_attributes=True) for one in mine}
        counts, size, known = recording.counts(), recording.size_bytes(), recording.streams(self._node_id)
        with self._changed:
            self._known = known
            self._stored, self._size_bytes, self._expired = extents, size, sum(counts.values())
            if stored is not None:
                self._recorded += stored
                self._buffer.done(stored)

    def _failed(self, error: StorageError) -> None:
        if not self.problem:
            logger.error("samples wait in memory: %s", error)
        self.problem = str(error)
        with self._changed:
            self._buffer.failed()
        if self._recording is not None and tells_of_damage(error):
            self._recording.close()
            self._recording = None  # opened anew, it is set aside

    def _finish(self) -> None:
        try:
            self._store(self._opened())
        except StorageError as error:
            self._failed(error)
            logger.error("%d samples could not be stored and are lost", self._buffer.samples)  # noqa: TRY400
        if self._recording is not None:
            self._recording.close()


def _joined(stored: Mapping[Place, Extent], waiting: Iterable[Batch]) -> dict[Place, Extent]:
    """Return what is kept in all; what waits comes after what is stored."""
    found = dict(stored)
    for batch in waiting:
        place = (batch.stream, batch.boot)
        before = found.get(place)
        if before is None or batch.last_seq > before.last_seq:
            found[place] = Extent(
                boot=batch.boot,
                stream=batch.stream,
                oldest_seq=batch.seq if before is None else before.oldest_seq,
                last_seq=batch.last_seq,
                oldest_t=batch.t[0] if before is None else before.oldest_t,
                last_t=batch.t[-1],
            )
    return found


class RecordBuffer:
    """Samples on their way to the disk, oldest first, bounded in size. The owner holds its lock around every call.

    Samples wait for 10 in a stream or ``hold_s``, so that single samples share a row; a batch that took long to gather
    does not wait again. ``taken`` puts some in hand; then ``done`` lets them go, or ``failed`` puts them back. Samples
    in hand are dropped last, because they may be stored already. ``dropped`` counts the samples without room.
    """

    def __init__(self, max_bytes: int, *, hold_s: float = HOLD_S) -> None:
        self._max_bytes, self._hold_s = max_bytes, hold_s
        self._batches: deque[Batch] = deque()
        self._in_hand = self._size = 0
        self._lengths: Counter[Place] = Counter()
        self._hurry = False
        self._begun: float | None = None
        self.samples = self.dropped = 0

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)

    def due_at(self) -> float | None:
        """Return the monotonic time at which to store; None if nothing waits."""
        return None if self._begun is None else self._begun if self._hurry else self._begun + self._hold_s

    def add(self, batch: Batch, *, now: float) -> None:
        """Add a batch; the oldest ones make room for it."""
        if not batch.t:
            return
        self._batches.append(batch)
        self._size += _memory_bytes(batch)
        self.samples += len(batch.t)
        self._begun = now if self._begun is None else self._begun
        self._lengths[batch.stream, batch.boot] += len(batch.t)
        is_full = self._lengths[batch.stream, batch.boot] >= _FULL_BATCH
        self._hurry = self._hurry or is_full or batch.mono[-1] - batch.mono[0] >= self._hold_s / 2
        self._make_room()

    def taken(self) -> list[Batch]:
        """Put batches in hand, as many as are stored at once, and return all in hand."""
        if not self._in_hand:
            # The rest of the room is for new samples, which are worth the most.
            size, most_bytes = 0, self._max_bytes // 4
            for batch in itertools.islice(self._batches, _AT_ONCE):
                if size > most_bytes:
                    break
                size += _memory_bytes(batch)
                self._in_hand += 1
            if self._in_hand == len(self._batches):
                self._lengths.clear()
                self._begun, self._hurry = None, False
        return list(itertools.islice(self._batches, self._in_hand))

    def done(self, stored: int) -> None:
        """Drop the batches in hand; samples that were not stored, because they were there already, count as dropped."""
        self.dropped += sum(self._remove(0) for _ in range(self._in_hand)) - stored
        self._in_hand = 0

    def failed(self) -> None:
        """Put the batches in hand back."""
        self._in_hand = 0
        self._begun, self._hurry = (0.0, True) if self._batches else (None, False)
        self._make_room()

    def _make_room(self) -> None:
        while self._size > self._max_bytes and len(self._batches) > self._in_hand:
            self.dropped += self._remove(self._in_hand)

    def _remove(self, index: int) -> int:
        """Remove a batch, and return how many samples it held."""
        batch = self._batches[index]
        del self._batches[index]
        self._size -= _memory_bytes(batch)
        self.samples -= len(batch.t)
        return len(batch.t)


def _memory_bytes(batch: Batch) -> int:
    """Estimate what a batch takes in memory, from above."""
    columns = len(batch.columns) + 2
    return _BATCH_BYTES + columns * (_COLUMN_BYTES + _VALUE_BYTES * len(batch.t))
