"""The node's recorder: every sample goes to the recording first, and can be read again."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from fedmon.common.actor import Actor, Priority
from fedmon.common.backoff import Backoff
from fedmon.common.errors import StorageError
from fedmon.common.metrics.sample import Batch, may_read
from fedmon.common.store.damage import tells_of_damage
from fedmon.common.store.recording import Recording
from fedmon.common.store.recording_reader import timed
from fedmon.common.wire.samples import Extent

logger = logging.getLogger(__name__)

RECORDED = "agent_samples_recorded_total"
DROPPED_FULL = "agent_recording_samples_dropped_total"
DROPPED_BOUND = "agent_recording_samples_expired_total"
BUFFERED = "agent_recording_samples_buffered"
FILE_BYTES = "agent_recording_size_bytes"
BUFFER_BYTES = 8 * 2**20
HOLD_S = 10.0
CHECK_EVERY_S = 60.0
MAX_EXTENTS = 256
_FULL_BATCH, _AT_ONCE = 10, 100
_VALUE_BYTES, _COLUMN_BYTES, _BATCH_BYTES = 32, 120, 1_000

Place = tuple[str, int]
"""A stream and a boot."""


class Recorder:
    """Keeps every sample of this node in its recording, within its bounds.

    Every method is safe from any thread, and only ``samples`` and ``stop`` wait for the disk. Samples wait in memory
    until a stream has 10, or for ``hold_s``, then a thread commits them. While that fails, as on a full disk, they wait
    in ``buffer_bytes``, then the oldest are dropped and counted: each sample is stored, dropped or waiting at any
    moment. A file that is damaged, moved or removed while it is open is noticed when read, or within ``check_every_s``,
    and begun anew. ``problem`` is the reason why nothing can be stored at present, or empty; ``foreign`` says
    without the path why that does not pass by itself, as with a file of a newer fedmon.
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
        check_every_s: float = CHECK_EVERY_S,
    ) -> None:
        self.path, self._node_id, self._hold_s = path, node_id, hold_s
        self._max_bytes, self._max_age_s = max_bytes, max_age_s
        self._actor = Actor("fedmon-recorder")
        self._actor.every(check_every_s, self._check)
        self._lock = threading.Lock()
        self._buffer = _Buffer(buffer_bytes)
        self._lengths: Counter[Place] = Counter()
        self._due_at, self._not_before = 0.0, 0.0
        self._retry = Backoff(1.0, longest_s=30.0)
        self._stored: dict[Place, Extent] = {}
        self._known: set[str] | None = None
        self._recorded = self._size_bytes = self._expired = self._files = 0
        self.problem = self.foreign = ""
        self._recording: Recording | None = None

    def start(self) -> None:
        """Start the thread, which opens the recording and tries again if it cannot."""
        self._actor.post(self._store)
        self._actor.start()

    def stop(self, timeout_s: float) -> bool:
        """Store all samples, then end; return False if that takes longer."""
        self._actor.post(self._finish)
        return self._actor.close(timeout_s=timeout_s)

    def keep(self, batch: Batch) -> None:
        """Take samples in without waiting; for ``Publisher``."""
        now, place = time.monotonic(), (batch.stream, batch.boot)
        with self._lock:
            self._buffer.add(batch)
            self._lengths[place] += len(batch.t)
            # A batch that took long to gather does not wait again.
            is_due = self._lengths[place] >= _FULL_BATCH or batch.mono[-1] - batch.mono[0] >= self._hold_s / 2
            self._set_due(max(self._not_before, now if is_due else now + self._hold_s))

    def set_bounds(self, *, max_bytes: int | None, max_age_s: float | None) -> None:
        """Keep to other bounds from now on."""
        self._max_bytes, self._max_age_s = max_bytes, max_age_s
        self._actor.post(lambda: self._run(self._bound))

    def counts(self) -> dict[str, float | None]:
        """Return the ``agent_`` metrics of the recording, all of one moment."""
        with self._lock:
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
        with self._lock:
            return (self._known or set()) | {batch.stream for batch in self._buffer.batches}

    def extents(self, researcher_id: str = "") -> list[Extent]:
        """Return the extents of the streams that a researcher may read; newest boot first, at most 256."""
        with self._lock:
            found = _joined(self._stored, self._buffer.batches).values()
        mine = [extent for extent in found if may_read(extent.stream, researcher_id)]
        return sorted(mine, key=lambda extent: (-extent.boot, -extent.last_t, extent.stream))[:MAX_EXTENTS]

    def extent(self, stream: str, boot: int | None) -> Extent | None:
        """Return the extent of a stream, of one boot or of the newest; None if nothing is kept."""
        with self._lock:
            found = _joined(self._stored, self._buffer.batches).values()
        mine = [extent for extent in found if extent.stream == stream and boot in (None, extent.boot)]
        return max(mine, key=lambda extent: extent.boot, default=None)

    def samples(
        self,
        stream: str,
        boot: int,
        first_seq: int,
        last_seq: int,
        *,
        wanted: Callable[[str], bool],
        since_t: float | None = None,
    ) -> Iterator[Batch]:
        """Yield kept samples in order, with the series that are ``wanted``, perhaps none; none older than ``since_t``.

        They are read from the disk as the caller goes on. Raises StorageError.
        """
        with self._lock:
            waiting = [batch for batch in self._buffer.batches if (batch.stream, batch.boot) == (stream, boot)]
            is_stored, files = (stream, boot) in self._stored, self._files
        position = first_seq
        if is_stored:
            try:
                with Recording(self.path, read_only=True) as reader:
                    for batch in reader.read(
                        self._node_id,
                        boot,
                        stream,
                        first_seq=first_seq,
                        last_seq=last_seq,
                        since_t=since_t,
                        series=wanted,
                    ):
                        position = batch.last_seq + 1
                        yield batch
            except StorageError as error:
                failure = error
                if tells_of_damage(error) and files == self._files:
                    # The writer need not notice: its connection reads from memory.
                    self._actor.post(lambda: self._failed(failure))
                raise
        for batch in waiting:
            if batch.last_seq >= position and batch.seq <= last_seq:
                part = batch.part(position, last_seq)
                position = part.last_seq + 1
                chosen = part.only([series for series in part.columns if wanted(series)])
                yield from timed(chosen, since_t)

    # --- the recorder's thread ---------------------------------------------------------------------------------------

    def _set_due(self, due_at: float) -> None:
        """Store at ``due_at``, unless that is done earlier; under the lock."""
        if due_at < self._due_at:
            self._due_at = due_at
            self._actor.at(due_at, self._store)

    def _store(self) -> None:
        with self._lock:
            if time.monotonic() < self._due_at:
                return  # it was done earlier
            self._due_at = float("inf")
            self._lengths.clear()
        self._run(self._store_all)

    def _run(self, work: Callable[[Recording], None]) -> None:
        try:
            work(self._opened())
        except StorageError as error:
            self._failed(error)

    def _opened(self) -> Recording:
        if self._recording is None:
            self._recording = Recording(self.path, max_bytes=self._max_bytes, max_age_s=self._max_age_s)
            self._files += 1  # it may be another file than before, which was set aside
            self._look(self._recording)
        return self._recording

    def _store_all(self, recording: Recording) -> None:
        while batches := self._take():
            self._look(recording, stored=recording.append(batches))
        if self.problem:
            logger.warning("recording %s works again", self.path)
            self.problem = self.foreign = ""
        self._retry.reset()
        self._not_before = 0.0
        self._actor.post(self._maintain, priority=Priority.BULK)

    def _take(self) -> list[Batch]:
        with self._lock:
            return self._buffer.take()

    def _maintain(self) -> None:
        """Do one piece of the maintenance; storing goes first."""
        if self._recording is not None:
            self._run(self._maintain_once)

    def _maintain_once(self, recording: Recording) -> None:
        if recording.maintain():
            self._look(recording)
            self._actor.post(self._maintain, priority=Priority.BULK)

    def _bound(self, recording: Recording) -> None:
        recording.set_bounds(max_bytes=self._max_bytes, max_age_s=self._max_age_s)
        self._maintain_once(recording)

    def _check(self) -> None:
        """Look for damage through another connection, because the writer's shows pages from memory."""
        if self._recording is not None:
            self._run(self._read_once)

    def _read_once(self, recording: Recording) -> None:
        with Recording(self.path, read_only=True) as file:
            file.extents()
        self._maintain_once(recording)

    def _look(self, recording: Recording, *, stored: int | None = None) -> None:
        """Read extents and counts of the recording, and note the samples in hand as ``stored``, at one moment."""
        mine = [one for one in recording.extents() if one.node_id == self._node_id]
        extents = {(one.stream, one.boot): msgspec.convert(one, Extent, from_attributes=True) for one in mine}
        counts, size, known = recording.counts(), recording.size_bytes(), recording.streams(self._node_id)
        with self._lock:
            self._known = known
            self._stored, self._size_bytes, self._expired = extents, size, sum(counts.values())
            if stored is not None:
                self._recorded += stored
                self._buffer.done(stored)

    def _failed(self, error: StorageError) -> None:
        if not self.problem:
            logger.error("samples wait in memory: %s", error)
        # An error of the system or of SQLite may pass; without one, a file that cannot be opened is not ours to change.
        is_foreign = self._recording is None and error.__cause__ is None and not tells_of_damage(error)
        self.problem, self.foreign = str(error), str(error).replace(f"{self.path} ", "") if is_foreign else ""
        with self._lock:
            self._buffer.failed()
            self._not_before = time.monotonic() + self._retry.next_s()
            self._set_due(self._not_before)
        if self._recording is not None and tells_of_damage(error):
            self._recording.close()
            self._recording = None  # opened anew, it is set aside

    def _finish(self) -> None:
        self._run(self._store_all)
        if self._buffer.samples:
            logger.error("%d samples could not be stored and are lost", self._buffer.samples)
        if self._recording is not None:
            self._recording.close()
            self._recording = None


def _joined(stored: Mapping[Place, Extent], waiting: Iterable[Batch]) -> dict[Place, Extent]:
    """Return the extents of stored and waiting samples together; waiting ones are newer."""
    found = dict(stored)
    for batch in waiting:
        place = (batch.stream, batch.boot)
        before = found.get(place)
        found[place] = Extent(
            boot=batch.boot,
            stream=batch.stream,
            oldest_seq=batch.seq if before is None else before.oldest_seq,
            last_seq=batch.last_seq,
            oldest_t=batch.t[0] if before is None else before.oldest_t,
            last_t=batch.t[-1],
        )
    return found


class _Buffer:
    """Batches on their way to the disk, oldest first, bounded in size; used under the lock of its owner.

    The first ``in_hand`` of them are being stored: they take room, and are not dropped. ``dropped`` counts samples
    without room.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._size = max_bytes, 0
        self.batches: deque[Batch] = deque()
        self._in_hand = self.samples = self.dropped = 0

    def add(self, batch: Batch) -> None:
        """Append a batch; the oldest make room for it."""
        self.batches.append(batch)
        self._size += _memory_bytes(batch)
        self.samples += len(batch.t)
        self._make_room()

    def take(self) -> list[Batch]:
        """Return the next batches to store, of at most half of the buffer; the rest stays free for newer ones."""
        first = list(itertools.islice(self.batches, _AT_ONCE))
        fitting = sum(size <= self._max_bytes // 2 for size in itertools.accumulate(map(_memory_bytes, first)))
        self._in_hand = min(len(first), max(1, fitting))
        return first[: self._in_hand]

    def done(self, stored: int) -> None:
        """Forget the batches in hand; samples that the recording had already count as dropped."""
        while self._in_hand:
            self._in_hand -= 1
            self._drop(0)
        self.dropped -= stored

    def failed(self) -> None:
        """Let the batches in hand wait again."""
        self._in_hand = 0
        self._make_room()

    def _make_room(self) -> None:
        while self._size > self._max_bytes and len(self.batches) > self._in_hand:
            self._drop(self._in_hand)

    def _drop(self, position: int) -> None:
        batch = self.batches[position]
        del self.batches[position]
        self._size -= _memory_bytes(batch)
        self.samples -= len(batch.t)
        self.dropped += len(batch.t)


def _memory_bytes(batch: Batch) -> int:
    """Estimate the size of a batch in memory, from above."""
    return _BATCH_BYTES + (len(batch.columns) + 2) * (_COLUMN_BYTES + _VALUE_BYTES * len(batch.t))
