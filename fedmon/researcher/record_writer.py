"""Writing a researcher's store, on a thread of its own, in few transactions."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.errors import StorageError
from fedmon.common.metrics.batch import Batch
from fedmon.common.store.damage import tells_of_damage
from fedmon.common.store.recording import RecordedStream, Recording
from fedmon.researcher.refill_line import Want

logger = logging.getLogger(__name__)

QUEUE_BYTES = 16 * 1024 * 1024
AT_ONCE_BYTES = 2 * 1024 * 1024
LINGER_S = 0.5
"""So long what came is gathered for one transaction; what a killed process had not written is asked for again."""
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 30.0
OPEN_WITHIN_S = 600.0
STOP_WITHIN_S = 30.0


class _Samples(msgspec.Struct, frozen=True, kw_only=True):
    batch: Batch
    size_bytes: int
    late: bool


class _Lost(msgspec.Struct, frozen=True, kw_only=True):
    want: Want
    reason: str


class _Described(msgspec.Struct, frozen=True, kw_only=True):
    node_id: str
    boot: int
    document: Mapping[str, Any]


_Entry = _Samples | _Lost | _Described


class RecordWriter:
    """Owns the store from `open` to `stop`. Safe from any thread; nothing but these two waits.

    What cannot be written, as on a full disk, waits in up to 16 MiB and is tried again after pauses of 1 to 30 s.
    ``on_room`` is called on the writer's thread when there is room again after `has_room` said no.
    """

    def __init__(self, path: Path, *, on_room: Callable[[], None]) -> None:
        self.path, self._on_room = path, on_room
        self.stored = self.late = self.repeated = self.size_bytes = 0
        self.error = ""
        self.last_error = ""
        self.positions: dict[tuple[str, str], tuple[int, int, float]] = {}
        self._changed = threading.Condition()
        self._queue: deque[_Entry] = deque()
        self._queued_bytes = 0
        self._was_full = self._stopping = False
        self._opened = threading.Event()
        self._found: list[RecordedStream] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fedmon-record", daemon=True)

    def open(self) -> list[RecordedStream]:
        """Open the store, which is made where there is none, and return what it holds. Raises StorageError."""
        self._thread.start()
        if not self._opened.wait(OPEN_WITHIN_S):
            raise StorageError(f"cannot open {self.path}: it took longer than {OPEN_WITHIN_S:.0f} s")
        if self._failure is not None:
            raise self._failure
        return self._found

    def stop(self) -> bool:
        """Write what waits, and end; tells whether everything was written."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(STOP_WITHIN_S)
        return not self._thread.is_alive() and not self._queue

    def has_room(self) -> bool:
        """Tell whether samples may be put; once not, not before half of the bound is empty."""
        with self._changed:
            bound = QUEUE_BYTES / 2 if self._was_full else QUEUE_BYTES
            self._was_full = self._queued_bytes > bound
            return not self._was_full

    def put(self, batch: Batch, *, size_bytes: int, late: bool) -> None:
        """Take samples in."""
        self._add(_Samples(batch=batch, size_bytes=size_bytes, late=late), size_bytes)

    def lose(self, want: Want, reason: str) -> None:
        """Take in that samples will not come."""
        self._add(_Lost(want=want, reason=reason), 0)

    def describe(self, node_id: str, boot: int, document: Mapping[str, Any]) -> None:
        """Take in what a node is."""
        self._add(_Described(node_id=node_id, boot=boot, document=document), 0)

    def _add(self, entry: _Entry, size_bytes: int) -> None:
        with self._changed:
            if self._stopping:
                return
            self._queue.append(entry)
            self._queued_bytes += size_bytes
            if len(self._queue) == 1 or self._queued_bytes >= AT_ONCE_BYTES:
                self._changed.notify_all()

    # --- the writer's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            recording = self._prepared()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
            self._failure = error
            self._opened.set()
            return
        self._opened.set()
        try:
            self._serve(recording)
        except BaseException as error:
            self.error = self.last_error = f"the writer ended: {type(error).__name__}: {error}"
            raise

    def _serve(self, recording: Recording) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            self._wait(recording)
            try:
                self._write(recording)
                retry_s = FIRST_RETRY_S
            except StorageError as error:
                self._failed(error)
                if self._stopping:
                    break
                recording = self._again(recording, error)
                self._pause(retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)
            if self._stopping and not self._queue:
                break
        recording.close()

    def _prepared(self) -> Recording:
        recording = Recording(self.path)
        self._found = recording.extents()
        self.size_bytes = recording.size_bytes()
        for stream in sorted(self._found, key=lambda stream: stream.boot):
            self.positions[stream.node_id, stream.stream] = (stream.boot, stream.last_seq, stream.last_t)
        return recording

    def _wait(self, recording: Recording) -> None:
        """Wait until something is to be written; what can wait for quiet times is done meanwhile."""
        with self._changed:
            if not self._queue and not self._stopping:
                self._changed.wait(LINGER_S)
                idle = not self._queue
            else:
                idle = False
        if idle and not self._stopping:
            self._maintain(recording)
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._queued_bytes >= AT_ONCE_BYTES, LINGER_S)

    def _maintain(self, recording: Recording) -> None:
        try:
            while recording.maintain() and not self._queue and not self._stopping:
                pass
            self.size_bytes = recording.size_bytes()
        except StorageError as error:
            logger.debug("store %s cannot be tidied now: %s", self.path, error)

    def _write(self, recording: Recording) -> None:
        while entries := self._next():
            samples = [entry for entry in entries if isinstance(entry, _Samples)]
            if samples:
                stored = recording.append(entry.batch for entry in samples)
                self.stored += stored
                self.late += sum(len(entry.batch.t) for entry in samples if entry.late)
                self.repeated += sum(len(entry.batch.t) for entry in samples) - stored
                for entry in samples:
                    batch = entry.batch
                    self.positions[batch.node_id, batch.stream] = (batch.boot, batch.last_seq, batch.t[-1])
            for other in entries:
                if isinstance(other, _Lost):
                    want = other.want
                    recording.set_lost(
                        want.node_id, want.boot, want.stream, want.first_seq, want.last_seq, other.reason
                    )
                elif isinstance(other, _Described):
                    recording.describe(other.node_id, other.boot, other.document)
            self._done(entries)
        self.size_bytes = recording.size_bytes()
        if self.error:
            logger.warning("store %s is written again", self.path)
            self.error = ""

    def _next(self) -> list[_Entry]:
        """Return what goes into one transaction, without taking it: samples in a row, or one word about some."""
        entries: list[_Entry] = []
        size_bytes = 0
        with self._changed:
            for entry in self._queue:
                if entries and not (isinstance(entry, _Samples) and isinstance(entries[0], _Samples)):
                    break
                entries.append(entry)
                size_bytes += entry.size_bytes if isinstance(entry, _Samples) else 0
                if size_bytes >= AT_ONCE_BYTES:
                    break
        return entries

    def _done(self, entries: list[_Entry]) -> None:
        with self._changed:
            for entry in entries:
                self._queue.popleft()
                self._queued_bytes -= entry.size_bytes if isinstance(entry, _Samples) else 0
            room_again = self._was_full and self._queued_bytes <= QUEUE_BYTES / 2
            self._was_full = self._was_full and not room_again
        if room_again:
            self._on_room()

    def _failed(self, error: StorageError) -> None:
        if not self.error:
            logger.error("what was recorded waits in memory and is tried again: %s", error)
        self.error = self.last_error = str(error)

    def _again(self, recording: Recording, error: StorageError) -> Recording:
        """Open a damaged store anew, which sets it aside; any other error is waited for."""
        if not tells_of_damage(error):
            return recording
        try:
            again = Recording(self.path)
        except StorageError as second:
            self._failed(second)
            return recording
        recording.close()
        return again

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)
