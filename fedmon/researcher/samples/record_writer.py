"""Writing a researcher's store, on a thread of its own, in few transactions."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import StorageError
from fedmon.common.metrics.batch import Batch
from fedmon.common.store.damage import tells_of_damage
from fedmon.common.store.recording import RecordedStream, Recording
from fedmon.researcher.samples.refill_line import Want

logger = logging.getLogger(__name__)

QUEUE_BYTES = 32 * 1024 * 1024
CALM_BYTES = QUEUE_BYTES // 4
"""While less than this waits, there is time to merge rows."""
LOST_BYTES = 500
"""What word of a loss takes in memory, so that very many of them are too much as well."""
LINGER_S, AT_ONCE_BYTES = 0.5, 2 * 1024 * 1024
"""So long, or so much, is gathered for one transaction; what a killed process had not written is asked for again."""
MANY_STREAMS = 200
LONG_LINGER_S, MANY_AT_ONCE_BYTES = 5.0, QUEUE_BYTES // 2
"""The same with more streams than that: each has a row in each transaction, and longer rows cost less."""
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
    size_bytes: int


class _Described(msgspec.Struct, frozen=True, kw_only=True):
    node_id: str
    boot: int
    document: Mapping[str, Any]
    size_bytes: int


_Entry = _Samples | _Lost | _Described


class RecordWriter:
    """Owns the store from `open` to `stop`. Safe from any thread; nothing but these two waits.

    What cannot be written, as on a full disk, waits in up to 32 MiB and is tried again after pauses of 1 to 30 s.
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
        self._add(_Samples(batch=batch, size_bytes=size_bytes, late=late))

    def lose(self, want: Want, reason: str) -> None:
        """Take in that samples will not come."""
        self._add(_Lost(want=want, reason=reason, size_bytes=LOST_BYTES))

    def describe(self, node_id: str, boot: int, document: Mapping[str, Any]) -> None:
        """Take in what a node is."""
        size_bytes = 2 * len(msgspec.json.encode(document))
        self._add(_Described(node_id=node_id, boot=boot, document=document, size_bytes=size_bytes))

    def _add(self, entry: _Entry) -> None:
        with self._changed:
            if self._stopping:
                return
            self._queue.append(entry)
            self._queued_bytes += entry.size_bytes
            if len(self._queue) == 1 or self._queued_bytes >= self._at_once_bytes():
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
        retry_s, damaged = FIRST_RETRY_S, False
        try:
            while True:
                try:
                    if damaged:
                        # Closed first: the last one to close a file removes its log, by name.
                        recording.close()
                        recording, damaged = Recording(self.path), False
                    self._wait(recording)
                    self._write(recording)
                    retry_s = FIRST_RETRY_S
                except StorageError as error:
                    self._failed(error)
                    damaged = damaged or tells_of_damage(error)
                    if self._stopping:
                        break
                    self._pause(retry_s)
                    retry_s = min(2 * retry_s, LONGEST_RETRY_S)
                if self._stopping and not self._queue:
                    break
        finally:
            recording.close()

    def _prepared(self) -> Recording:
        recording = Recording(self.path)
        self._found = recording.extents()
        self.size_bytes = recording.size_bytes()
        for stream in sorted(self._found, key=lambda stream: stream.boot):
            self.positions[stream.node_id, stream.stream] = (stream.boot, stream.last_seq, stream.last_t)
        return recording

    def _has_many_streams(self) -> bool:
        return len(self.positions) > MANY_STREAMS

    def _at_once_bytes(self) -> int:
        return MANY_AT_ONCE_BYTES if self._has_many_streams() else AT_ONCE_BYTES

    def _lingering(self) -> Deadline:
        return Deadline(LONG_LINGER_S if self._has_many_streams() else LINGER_S)

    def _wait(self, recording: Recording) -> None:
        """Gather what comes for one transaction; meanwhile rows are merged, while little waits.

        Raises StorageError when merging finds the store damaged.
        """
        deadline = self._lingering()
        self._maintain(recording, deadline)
        with self._changed:
            if not self._queue:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                deadline = self._lingering()
            self._changed.wait_for(
                lambda: self._stopping or self._queued_bytes >= self._at_once_bytes(), deadline.left_s()
            )

    def _maintain(self, recording: Recording, deadline: Deadline) -> None:
        try:
            while self._is_calm(deadline) and recording.maintain():
                pass
            self.size_bytes = recording.size_bytes()
        except StorageError as error:
            if tells_of_damage(error):
                raise
            logger.debug("store %s cannot be tidied now: %s", self.path, error)

    def _is_calm(self, deadline: Deadline) -> bool:
        """Tell whether there is time to merge rows."""
        with self._changed:
            return not self._stopping and self._queued_bytes < CALM_BYTES and not (self._queue and deadline.passed())

    def _write(self, recording: Recording) -> None:
        """Write what waits now; what comes meanwhile is for the next turn, so that rows are merged in between."""
        left = len(self._queue)
        while left > 0:
            entries = self._next()
            left -= len(entries)
            samples = [entry for entry in entries if isinstance(entry, _Samples)]
            if samples:
                stored = recording.append(entry.batch for entry in samples)
                self.stored += stored
                self.late += sum(len(entry.batch.t) for entry in samples if entry.late)
                self.repeated += sum(len(entry.batch.t) for entry in samples) - stored
                for entry in samples:
                    batch = entry.batch
                    self.positions[batch.node_id, batch.stream] = (batch.boot, batch.last_seq, batch.t[-1])
            losses = [(entry.want, entry.reason) for entry in entries if isinstance(entry, _Lost)]
            if losses:
                recording.set_all_lost(
                    ((want.node_id, want.stream, want.boot), want.first_seq, want.last_seq, reason)
                    for want, reason in losses
                )
            for other in entries:
                if isinstance(other, _Described):
                    recording.describe(other.node_id, other.boot, other.document)
            self._done(entries)
        self.size_bytes = recording.size_bytes()
        if self.error:
            logger.warning("store %s is written again", self.path)
            self.error = ""

    def _next(self) -> list[_Entry]:
        """Return what goes into one transaction, without taking it: samples in a row, losses in a row, or one word."""
        entries: list[_Entry] = []
        size_bytes = 0
        with self._changed:
            for entry in self._queue:
                if entries and (isinstance(entry, _Described) or type(entry) is not type(entries[0])):
                    break
                entries.append(entry)
                size_bytes += entry.size_bytes
                if size_bytes >= self._at_once_bytes():
                    break
        return entries

    def _done(self, entries: list[_Entry]) -> None:
        with self._changed:
            for entry in entries:
                self._queue.popleft()
                self._queued_bytes -= entry.size_bytes
            room_again = self._was_full and self._queued_bytes <= QUEUE_BYTES / 2
            self._was_full = self._was_full and not room_again
        if room_again:
            self._on_room()

    def _failed(self, error: StorageError) -> None:
        if not self.error:
            logger.error("what was recorded waits in memory and is tried again: %s", error)
        self.error = self.last_error = str(error)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)
