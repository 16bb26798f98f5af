"""Recording: every sample of some nodes, kept in a store on the researcher's side."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.ids import NodeId
from fedmon.common.metrics.batch import Batch
from fedmon.common.store.recording import RecordedStream
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Monitor
from fedmon.common.wire.samples import MonitorReply
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.samples.consumer import Consumer
from fedmon.researcher.samples.leases import Wish
from fedmon.researcher.samples.live_sample import WantedSeries
from fedmon.researcher.samples.record_writer import RecordWriter
from fedmon.researcher.samples.refill_consumers import Consumers
from fedmon.researcher.samples.refill_follower import Follower
from fedmon.researcher.samples.refill_line import Want
from fedmon.researcher.samples.refill_start import Resume, Since, Start

logger = logging.getLogger(__name__)


class RecordPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The newest sample stored of one stream; ``t`` is its Unix time."""

    boot: int
    seq: int
    t: float


class RecordCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What happened since a record began.

    ``stored`` samples, ``late`` ones among them (missed at first, or of before), ``repeated`` ones that came twice and
    were left out, ``lost`` ones that their nodes do not have any more, ``pending`` ones that are known to exist and not
    stored yet. ``nodes`` and ``size_bytes`` are those of the whole store. ``error`` is the last one, also when all is
    well again.
    """

    stored: int
    late: int
    repeated: int
    lost: int
    pending: int
    nodes: int
    size_bytes: int
    error: str


class Record(Consumer):
    """Keeps a store until `stop`: a context manager. Safe from any thread.

    Each stream is stored in order and without a hole, but for what is lost for good. A store that was there goes on
    where it ended, also after a crash; of other nodes it begins ``history_s`` back, as far as they still have that.
    """

    def __init__(
        self,
        path: Path,
        *,
        wish: Wish,
        metrics: Sequence[str] | None,
        history_s: float,
        on_closed: Callable[[Record], None],
        inquire: Callable[[NodeId], None],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(wish)
        self.path = path
        self._wanted = None if metrics is None else WantedSeries(metrics)
        self._on_closed = on_closed
        self._described: dict[NodeId, tuple[int, dict[str, Any]]] = {}
        self._writer = RecordWriter(path, on_room=wake)
        start = _start(self._writer.open(), since=time.time() - history_s)
        self.follower = Follower(self, nodes=wish.nodes, ordered=True, start=start, inquire=inquire)

    @property
    def counts(self) -> RecordCounts:
        """What happened so far."""
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
        """Why nothing can be written at the moment; empty when it can."""
        return self._writer.error

    @property
    def positions(self) -> Mapping[NodeId, Mapping[str, RecordPosition]]:
        """How far each stream of each node is stored."""
        positions: dict[NodeId, dict[str, RecordPosition]] = defaultdict(dict)
        for (node_id, stream), (boot, seq, t) in list(self._writer.positions.items()):
            positions[NodeId(node_id)][stream] = RecordPosition(boot=boot, seq=seq, t=t)
        return dict(positions)

    def close(self) -> None:
        """End with everything written that came in order; may be called twice."""
        if self.closed:
            return
        self.closed = True
        self._on_closed(self)
        if not self._writer.stop():
            logger.error("the store %s is not complete; recording into it again asks for the rest", self.path)

    stop = close

    # --- called on the thread of the inbox ---------------------------------------------------------------------------

    def answered(self, reply: Reply) -> None:
        """Take what a node says of itself, and of what it keeps."""
        node_id = NodeId(reply.node_id)
        if self.closed or (self.wish.nodes is not None and node_id not in self.wish.nodes):
            return
        self.follower.answered(reply, time.monotonic())
        granted = self._granted(reply)
        if granted is not None:
            self._describe(node_id, granted)

    def has_room(self) -> bool:
        """Tell whether samples may be put; see `Sink`."""
        return self._writer.has_room()

    def put(self, batch: Batch, *, size_bytes: int, late: bool) -> None:
        """Store samples; see `Sink`."""
        chosen = batch if self._wanted is None else self._wanted.batch(batch)
        self._writer.put(chosen, size_bytes=size_bytes, late=late)

    def lost_for_good(self, want: Want, reason: str) -> None:
        """Write down that samples will not come."""
        self._writer.lose(want, reason)

    def _describe(self, node_id: NodeId, reply: MonitorReply) -> None:
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


def begin_record(
    asker: Asker,
    consumers: Consumers,
    path: Path,
    *,
    wish: Wish,
    metrics: Sequence[str] | None,
    history_s: float,
    wake: Callable[[], None],
) -> Record:
    """Begin to record; see `Federation.record`.

    Raises StorageError, and InvalidInputError for an endless history, or on a wire that numbers no samples.
    """
    if not 0 <= history_s < float("inf"):
        raise InvalidInputError(f"history_s is {history_s!r}: give a number of seconds, 0 for none")
    if not asker.dialect.encode(asker.request(Monitor, action="status")):
        raise InvalidInputError("nodes on this wire neither number nor keep their samples: watch them with monitor()")
    record = Record(
        path,
        wish=wish,
        metrics=metrics,
        history_s=history_s,
        on_closed=consumers.remove,
        inquire=consumers.inquire,
        wake=wake,
    )
    consumers.add(record)
    return record


def _start(found: Sequence[RecordedStream], *, since: float) -> Start:
    """Return where each stream begins: where the store ends, or else with what it may hold of that node."""
    ends: dict[tuple[str, str], Resume] = {}
    oldest: dict[str, float] = {}
    for one in sorted(found, key=lambda one: one.boot):
        ends[one.node_id, one.stream] = Resume(boot=one.boot, seq=one.last_seq + 1)
        oldest[one.node_id] = min(one.oldest_t, oldest.get(one.node_id, one.oldest_t))

    def start(node_id: NodeId, stream: str) -> Resume | Since:
        return ends.get((node_id, stream)) or Since(t=oldest.get(node_id, since))

    return start
