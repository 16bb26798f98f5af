"""Recording: every sample of some nodes, kept in a store on the researcher's side."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.backoff import Backoff
from fedmon.common.clock import Deadline
from fedmon.common.errors import ConflictError, InvalidInputError, StorageError
from fedmon.common.ids import NodeId
from fedmon.common.metrics.sample import Batch
from fedmon.common.settings.values import ResearcherSettings
from fedmon.common.store.damage import tells_of_damage
from fedmon.common.store.recording import RecordedStream, Recording
from fedmon.common.store.recording_file import Key
from fedmon.common.wire.messages import Monitor
from fedmon.common.wire.samples import MonitorReply
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.roster import Moment
from fedmon.researcher.samples.consumers import Consumers, SampleConsumer, Wish
from fedmon.researcher.samples.resend import MissingSamples, Resume, Start, StreamFollower
from fedmon.researcher.samples.store import StorePush, import_url

logger = logging.getLogger(__name__)

QUEUE_BYTES = 32 * 1024 * 1024
CALM_BYTES = QUEUE_BYTES // 4
"""While less than this waits, there is time to merge rows."""
LOST_BYTES = 500
"""Memory of one loss in the queue, so that very many of them are bounded too."""
LINGER_S, AT_ONCE_BYTES = 0.5, 2 * 1024 * 1024
"""Time and size gathered for one transaction; samples that a killed process had not written are resent."""
MANY_STREAMS = 200
LONG_LINGER_S, MANY_AT_ONCE_BYTES = 5.0, QUEUE_BYTES // 2
"""The same with more streams than that: each has a row in each transaction, and longer rows cost less."""
MERGED_TOGETHER = 10
"""Pieces of merging in one transaction; other writers of the file wait meanwhile."""
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 30.0
STOP_WITHIN_S = 30.0
BUFFER_NAME, BUFFER_BYTES = "record-buffer.fmr", 2 * 1024 * 1024 * 1024
"""The recording in the researcher's folder that buffers samples for a store if no other is named."""


class RecordPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The newest sample stored of one stream; ``t`` is its Unix time."""

    boot: int
    seq: int
    t: float


class RecordCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since a record began.

    ``stored`` samples, ``late`` ones among them (missed at first, or older), ``repeated`` ones that came twice and were
    left out, ``lost`` ones that their nodes no longer have, ``pending`` ones that are known to exist and not stored
    yet. ``nodes`` and ``size_bytes`` are those of the whole store. ``error`` is the last one, also after a recovery.
    """

    stored: int
    late: int
    repeated: int
    lost: int
    pending: int
    nodes: int
    size_bytes: int
    error: str


class Record(SampleConsumer):
    """Keeps a store until `stop`: a context manager. Safe from any thread.

    Each stream is stored in order and without a hole, but for samples that are lost for good. An existing store is
    continued, also after a crash; other nodes begin ``history_s`` back, if they still have those samples.
    ``store`` sends the samples on to a metrics store; None without one. Raises StorageError, ConflictError if an
    earlier record of the federation has the file, and InvalidInputError for an endless history, without path and store,
    or on a wire that numbers no samples.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        asker: Asker,
        consumers: Consumers,
        to: str | None,
        settings: ResearcherSettings,
        wish: Wish,
        metrics: Sequence[str] | None,
        history_s: float,
    ) -> None:
        super().__init__(consumers, wish, metrics)
        if not 0 <= history_s < float("inf"):
            raise InvalidInputError(f"history_s is {history_s!r}: give a number of seconds, 0 for none")
        if path is None and to is None:
            raise InvalidInputError("neither a file nor a store is given: name one of them, or both")
        if not asker.dialect.encode(asker.request(Monitor, action="status")):
            raise InvalidInputError("nodes on this wire neither number nor keep their samples: watch them instead")
        url = None if to is None else import_url(to, tenant=settings.store.tenant)
        self.path = path or settings.folder / BUFFER_NAME
        if any(isinstance(one, Record) and one.path == self.path for one in consumers.all):
            raise ConflictError(f"{self.path} is recorded already: stop that record, or name another")
        self.store: StorePush | None = None
        self._described: dict[NodeId, tuple[int, dict[str, Any]]] = {}
        self._writer = RecordWriter(self.path, max_bytes=None if path else BUFFER_BYTES)
        start = _start(self._writer.open(), since=time.time() - history_s)
        self.follower = StreamFollower(self, nodes=wish.nodes, ordered=True, start=start, inquire=consumers.inquire)
        if url is None:
            return
        try:
            self.store = StorePush(
                self.path,
                url,
                settings.store,
                is_online=lambda: {str(id_): node.is_online for id_, node in asker.roster.nodes(Moment.now()).items()},
                newest=self._writer.positions,
            )
        except BaseException:
            self._writer.stop()
            raise

    def __repr__(self) -> str:
        counts = self.counts
        return f"<Record of {self.path}: {counts.stored} samples, {counts.pending} missing, {counts.lost} lost>"

    @property
    def counts(self) -> RecordCounts:
        """The counters so far."""
        writer = self._writer
        return RecordCounts(
            stored=writer.stored,
            late=writer.late,
            repeated=writer.repeated + self.follower.repeated,
            lost=self.lost,
            pending=self.follower.pending,
            nodes=len(self.positions),
            size_bytes=writer.size_bytes,
            error=writer.last_error,
        )

    @property
    def error(self) -> str:
        """The reason why nothing can be written at the moment; empty if it can."""
        return self._writer.error

    @property
    def positions(self) -> Mapping[NodeId, Mapping[str, RecordPosition]]:
        """The stored end of each stream of each node."""
        positions: dict[NodeId, dict[str, RecordPosition]] = defaultdict(dict)
        for (node_id, stream), (boot, seq, t) in list(self._writer.positions.items()):
            positions[NodeId(node_id)][stream] = RecordPosition(boot=boot, seq=seq, t=t)
        return dict(positions)

    def close(self) -> None:
        """End with the newest samples, and everything written that came in order; may be called twice."""
        if self.closed:
            return
        self._consumers.flush(self)
        self.closed = True
        self._consumers.remove(self)
        if not self._writer.stop():
            logger.error("the store %s is not complete; recording into it again asks for the rest", self.path)
        self._tell_unmatched()
        if self.store is not None:
            self.store.stop()

    stop = close

    # --- called on the inbox thread ----------------------------------------------------------------------------------

    def has_room(self, share: float) -> bool:
        """Tell whether samples may be put; see `Sink`."""
        return self._writer.has_room(share)

    def put(self, batch: Batch, *, size_bytes: int, late: bool) -> None:
        """Store samples; see `Sink`."""
        self._writer.put(self._chosen(batch), size_bytes=size_bytes, late=late)

    def lost_for_good(self, want: MissingSamples, reason: str) -> None:
        """Note in the store that samples will not come."""
        self._writer.lose(want, reason)

    def _granted(self, node_id: NodeId, reply: MonitorReply) -> None:
        boot = self.follower.newest_boot(node_id)
        document = {
            "streams": reply.streams,
            "metrics": reply.metrics,
            "capabilities": reply.capabilities,
            "hardware": reply.hardware,
        }
        if boot >= 0 and self._described.get(node_id) != (boot, document):
            self._described[node_id] = (boot, document)
            self._writer.describe(node_id, boot, document)


def _start(found: Sequence[RecordedStream], *, since: float) -> Start:
    """Return where each stream begins: where the store ends, else at the oldest time that it has of the node."""
    ends: dict[tuple[str, str], Resume] = {}
    oldest: dict[str, float] = {}
    for one in sorted(found, key=lambda one: one.boot):
        ends[one.node_id, one.stream] = Resume(boot=one.boot, seq=one.last_seq + 1)
        oldest[one.node_id] = min(one.oldest_t, oldest.get(one.node_id, one.oldest_t))

    def start(node_id: NodeId, stream: str) -> Resume | float:
        return ends.get((node_id, stream)) or oldest.get(node_id, since)

    return start


class _Unwritten(msgspec.Struct, kw_only=True):
    """Samples and whether they are late, losses, and descriptions of nodes that wait for one transaction."""

    samples: list[tuple[Batch, bool]] = []
    lost: list[tuple[Key, int, int, str]] = []
    descriptions: list[tuple[str, int, Mapping[str, Any]]] = []
    size_bytes: int = 0


class RecordWriter:
    """Owns the store from `open` to `stop`. Safe from any thread; nothing but these two waits.

    Entries that cannot be written, as on a full disk, wait in up to 32 MiB and are tried again after pauses of 1 to
    30 s.
    """

    def __init__(self, path: Path, *, max_bytes: int | None = None) -> None:
        self.path, self._max_bytes = path, max_bytes
        self.stored = self.late = self.repeated = self.size_bytes = 0
        self.error = self.last_error = ""
        self.positions: dict[tuple[str, str], tuple[int, int, float]] = {}
        self._changed = threading.Condition()
        self._queue: deque[_Unwritten] = deque()
        self._unwritten_bytes = 0
        self._stopping = False
        self._recording: Recording
        self._thread = threading.Thread(target=self._run, name="fedmon-record", daemon=True)

    def open(self) -> list[RecordedStream]:
        """Open the store, which is made if it is missing, and return its extents. Raises StorageError."""
        self._recording = Recording(self.path, max_bytes=self._max_bytes)
        try:
            found = self._recording.extents()
            self.size_bytes = self._recording.size_bytes()
        except BaseException:
            self._recording.close()
            raise
        for stream in sorted(found, key=lambda stream: stream.boot):
            self.positions[stream.node_id, stream.stream] = (stream.boot, stream.last_seq, stream.last_t)
        self._thread.start()
        return found

    def stop(self) -> bool:
        """Write the queue, and end; tells whether everything was written."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(STOP_WITHIN_S)
        return not self._thread.is_alive() and not self._unwritten_bytes

    def has_room(self, share: float = 1.0) -> bool:
        """Tell whether no more than this share of the bound waits."""
        return self._unwritten_bytes <= share * QUEUE_BYTES

    def put(self, batch: Batch, *, size_bytes: int, late: bool) -> None:
        """Queue samples."""
        with self._adding(size_bytes) as unwritten:
            unwritten.samples.append((batch, late))

    def lose(self, want: MissingSamples, reason: str) -> None:
        """Queue a note that samples will not come."""
        key = (want.node_id, want.stream, want.boot)
        with self._adding(LOST_BYTES) as unwritten:
            unwritten.lost.append((key, want.first_seq, want.last_seq, reason))

    def describe(self, node_id: str, boot: int, document: Mapping[str, Any]) -> None:
        """Queue the description of a node."""
        with self._adding(2 * len(msgspec.json.encode(document))) as unwritten:
            unwritten.descriptions.append((node_id, boot, document))

    @contextlib.contextmanager
    def _adding(self, size_bytes: int) -> Iterator[_Unwritten]:
        """Give the last transaction, to add an entry of this size; after `stop` one that is not written."""
        with self._changed:
            if self._stopping:
                yield _Unwritten()
                return
            is_first = not self._queue
            if is_first or self._queue[-1].size_bytes >= self._linger[1]:
                self._queue.append(_Unwritten())
            yield self._queue[-1]
            self._queue[-1].size_bytes += size_bytes
            self._unwritten_bytes += size_bytes
            if is_first or self._unwritten_bytes >= self._linger[1]:
                self._changed.notify_all()

    # --- the writer's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self.error = self.last_error = f"the writer ended: {type(error).__name__}: {error}"
            raise
        finally:
            self._recording.close()

    def _serve(self) -> None:
        retry, damaged = Backoff(FIRST_RETRY_S, longest_s=LONGEST_RETRY_S), False
        gathered = _Unwritten()
        while True:
            try:
                if damaged:
                    # Closed first: the last one to close a file removes its log, by name.
                    self._recording.close()
                    self._recording, damaged = Recording(self.path, max_bytes=self._max_bytes), False
                if not gathered.size_bytes:
                    gathered = self._gathered()
                if not gathered.size_bytes:
                    break
                self._write(gathered)
                gathered = _Unwritten()
                retry.reset()
            except StorageError as error:
                self._failed(error)
                damaged = damaged or tells_of_damage(error)
                if self._stopping:
                    break
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, retry.next_s())

    def _failed(self, error: StorageError) -> None:
        if not self.error:
            logger.error("recorded samples wait in memory and are retried: %s", error)
        self.error = self.last_error = str(error)

    @property
    def _linger(self) -> tuple[float, int]:
        """For how many seconds, and up to how many bytes, entries are gathered for one transaction."""
        has_many = len(self.positions) > MANY_STREAMS
        return (LONG_LINGER_S, MANY_AT_ONCE_BYTES) if has_many else (LINGER_S, AT_ONCE_BYTES)

    def _gathered(self) -> _Unwritten:
        """Return the content of one transaction, empty at the end; rows are merged as long as little waits.

        Raises StorageError when merging finds the store damaged.
        """
        deadline = Deadline(self._linger[0])
        try:
            is_more = True
            while is_more and self._is_calm(deadline):
                with self._recording.changing():
                    is_more = all(self._recording.maintain() for _ in range(MERGED_TOGETHER))
            self.size_bytes = self._recording.size_bytes()
        except StorageError as error:
            if tells_of_damage(error):
                raise
            logger.debug("store %s cannot be tidied now: %s", self.path, error)
        with self._changed:
            if not self._queue:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                deadline = Deadline(self._linger[0])
            self._changed.wait_for(
                lambda: self._stopping or self._unwritten_bytes >= self._linger[1], deadline.left_s()
            )
            return self._queue.popleft() if self._queue else _Unwritten()

    def _is_calm(self, deadline: Deadline) -> bool:
        """Tell whether there is time to merge rows."""
        with self._changed:
            is_due = bool(self._queue) and deadline.passed()
            return not self._stopping and self._unwritten_bytes < CALM_BYTES and not is_due

    def _write(self, gathered: _Unwritten) -> None:
        batches = [batch for batch, _ in gathered.samples]
        with self._recording.changing():
            stored = self._recording.append(batches)
            self._recording.set_all_lost(gathered.lost)
            for description in gathered.descriptions:
                self._recording.describe(*description)
        self.late += sum(len(batch.t) for batch, late in gathered.samples if late)
        self.repeated += sum(len(batch.t) for batch in batches) - stored
        for batch in batches:
            self.positions[batch.node_id, batch.stream] = (batch.boot, batch.last_seq, batch.t[-1])
        self.stored += stored
        with self._changed:
            self._unwritten_bytes -= gathered.size_bytes
        self.size_bytes = self._recording.size_bytes()
        if self.error:
            logger.warning("store %s is written again", self.path)
            self.error = ""
