"""The node's recorder: every sample goes to the recording first, on a thread of its own, and can be asked for again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fedmon.common.errors import StorageError
from fedmon.common.metrics.batch import Batch, may_read
from fedmon.common.store.damage import tells_of_damage
from fedmon.common.store.recording import Recording
from fedmon.common.wire.samples import Extent
from fedmon.node.measure.kept_extents import Place, extent_of, joined
from fedmon.node.measure.kept_samples import KeptSamples, chosen, look_at
from fedmon.node.measure.record_buffer import HOLD_S, RecordBuffer

logger = logging.getLogger(__name__)

RECORDED = "agent_samples_recorded_total"
DROPPED_FULL = "agent_recording_samples_dropped_total"
DROPPED_BOUND = "agent_recording_samples_expired_total"
BUFFERED = "agent_recording_samples_buffered"
FILE_BYTES = "agent_recording_size_bytes"
BUFFER_BYTES = 8 * 2**20
MAX_EXTENTS = 256
_IDLE_S, _LOOK_AGAIN_S = 600.0, 60.0
_RETRY_S, _MAX_RETRY_S = 1.0, 30.0


class Recorder:
    """Keeps every sample of this node in its recording, as far as the bounds allow.

    ``samples`` reads with a connection of its own and belongs to one thread, the one that calls ``stop`` last; every
    other method is safe from any thread and never waits for the disk. Samples wait in memory for at most ``hold_s`` or
    10 samples, then a thread commits them. While that fails, as on a full disk, they wait in ``buffer_bytes``, then the
    oldest are dropped and counted: what was kept is stored, dropped or waiting, always. A file that is damaged,
    moved or removed while it is open is noticed within a minute, or when read, and begun anew.
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
        self._problem = ""
        self._doubt: StorageError | None = None
        self._look_again_at, self._stopping = 0.0, False
        self._recording: Recording | None = None
        self._reader = KeptSamples(path, node_id=node_id)
        self._thread = threading.Thread(target=self._run, name="fedmon-recorder")

    def start(self) -> None:
        """Start the thread, which opens the recording; what it cannot open it tries again."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Store what waits, then end; tells whether that came true in time. The reading thread must have ended."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        self._reader.close()
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

    def tally(self) -> dict[str, int]:
        """Return what became of the samples that were kept since the start, of one moment."""
        with self._changed:
            return {
                "samples_recorded": self._recorded,
                "samples_waiting": self._buffer.samples,
                "samples_never_recorded": self._buffer.dropped,
            }

    @property
    def ready(self) -> bool:
        """Whether it is known what the recording holds."""
        return self._known is not None

    def streams(self) -> set[str]:
        """Name every stream of which the recording ever held something."""
        with self._changed:
            return (self._known or set()) | {batch.stream for batch in self._buffer}

    @property
    def problem(self) -> str:
        """Why nothing can be stored at present; empty while all is well."""
        return self._problem

    def extents(self, researcher_id: str = "") -> list[Extent]:
        """Return what is kept of each stream that a researcher may read; newest boot first, at most 256."""
        with self._changed:
            found = joined(self._stored, self._buffer).values()
        mine = [extent for extent in found if may_read(extent.stream, researcher_id)]
        return sorted(mine, key=lambda extent: (-extent.boot, -extent.last_t, extent.stream))[:MAX_EXTENTS]

    def extent(self, stream: str, boot: int | None) -> Extent | None:
        """Return what is kept of a stream: of one boot, or of the newest that has it; None for nothing."""
        with self._changed:
            found = joined(self._stored, (batch for batch in self._buffer if batch.stream == stream))
        if boot is None:
            boot = max((number for name, number in found if name == stream), default=0)
        return found.get((stream, boot))

    def samples(
        self, stream: str, boot: int, first_seq: int, last_seq: int, *, wanted: Callable[[str], bool]
    ) -> Iterator[Batch]:
        """Return kept samples in order, with the series that are ``wanted``; some have none of them.

        Only as much is read as is taken. Raises StorageError.
        """
        with self._changed:
            waiting = self._buffer.of(stream, boot)
        position = first_seq
        for batch in self._read(stream, boot, first_seq, last_seq, wanted):
            position = batch.last_seq + 1
            yield batch
        for batch in waiting:
            if batch.last_seq >= position and batch.seq <= last_seq:
                part = chosen(batch.part(position, last_seq), wanted)
                position = part.last_seq + 1
                yield part

    # --- the reading thread ------------------------------------------------------------------------------------------

    def _read(
        self, stream: str, boot: int, first_seq: int, last_seq: int, wanted: Callable[[str], bool]
    ) -> Iterator[Batch]:
        if (stream, boot) not in self._stored:
            return
        file = self._files
        try:
            yield from self._reader.read(stream, boot, first_seq, last_seq, wanted=wanted, file=file)
        except StorageError as error:
            if tells_of_damage(error) and file == self._files:
                with self._changed:
                    self._doubt = error  # who writes need not come upon it: what it reads is in its memory
                    self._changed.notify_all()
            raise

    # --- the recorder's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        retry_s = _RETRY_S
        while self._wait():
            try:
                self._work()
                retry_s = _RETRY_S
            except StorageError as error:
                self._failed(error)
                if not self._pause(retry_s):
                    break
                retry_s = min(2 * retry_s, _MAX_RETRY_S)
        self._finish()

    def _is_due(self) -> bool:
        due_at = self._buffer.due_at()
        return due_at is not None and self._monotonic() >= due_at

    def _wait(self) -> bool:
        """Wait until something is to be stored, or looked after; False when it is time to stop."""
        with self._changed:
            while not (self._stopping or self._has_new_bounds or not self._is_open() or self._is_due()):
                due_at = self._buffer.due_at()
                if not self._changed.wait(_IDLE_S if due_at is None else max(0.0, due_at - self._monotonic())):
                    break
            return not self._stopping

    def _is_open(self) -> bool:
        return self._recording is not None and self._doubt is None

    def _pause(self, seconds: float) -> bool:
        """Wait before the next try; False when it is time to stop."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._stopping, seconds)

    def _work(self) -> None:
        """Store what waits, then do what can wait for as long as nothing else does."""
        if (doubt := self._doubt) is not None:
            self._doubt = None
            raise doubt
        recording = self._opened()
        with self._changed:
            (max_bytes, max_age_s), is_new, self._has_new_bounds = self._bounds, self._has_new_bounds, False
        if is_new:
            recording.set_bounds(max_bytes=max_bytes, max_age_s=max_age_s)
        self._store(recording)
        self._look_again()
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
            stored = recording.append(batches)
            self._look(recording, stored=stored, done=True)
        if self._problem:
            logger.warning("recording %s works again", self.path)
            self._problem = ""

    def _look(self, recording: Recording, *, stored: int = 0, done: bool = False) -> None:
        """Take over what the recording holds now; with ``done`` the samples in hand are stored, all in one moment."""
        extents = {
            (one.stream, one.boot): extent_of(one) for one in recording.extents() if one.node_id == self._node_id
        }
        counts, size, known = recording.counts(), recording.size_bytes(), recording.streams(self._node_id)
        with self._changed:
            self._known = known
            self._stored, self._size_bytes, self._expired = extents, size, sum(counts.values())
            if done:
                self._recorded += stored
                self._buffer.done(stored)

    def _look_again(self) -> None:
        """Look at the file itself, now and then: a connection sees what it has in memory. Raises StorageError."""
        if self._monotonic() >= self._look_again_at:
            look_at(self.path)
            self._look_again_at = self._monotonic() + _LOOK_AGAIN_S

    def _failed(self, error: StorageError) -> None:
        if not self._problem:
            logger.error("samples wait in memory: %s", error)
        self._problem = str(error)
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
