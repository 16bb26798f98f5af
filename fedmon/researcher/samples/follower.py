"""One consumer's view of the streams it follows: samples delivered, missing and lost, per node, stream and boot."""

from __future__ import annotations

import heapq
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.metrics.sample import Batch
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.samples import Extent, MonitorReply
from fedmon.researcher.samples.gaps import Arrival, GapAccount

logger = logging.getLogger(__name__)

MAX_STREAMS = 20_000
MAX_BOOTS = 100
MAX_MISSING_RANGES = 1_000
HOLD_BYTES = 8 * 1024 * 1024
GRACE_S = 1.0
"""A node announces a sample on one topic and sends it on another: the sample may arrive this much later."""
TOO_OLD = "the node no longer keeps them"
TOO_MANY_GAPS = "more gaps than are kept track of"


class MissingSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that a consumer misses, ``first_seq`` to ``last_seq``, both included.

    With ``probe`` only the time of that one sample is wanted.
    """

    node_id: str
    boot: int
    stream: str
    first_seq: int
    last_seq: int
    probe: bool = False


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """A stream continues at this number of this boot, and at the beginning of every later boot."""

    boot: int
    seq: int


class Since(msgspec.Struct, frozen=True, kw_only=True):
    """A stream begins with the first sample kept that is not older than the Unix time ``t``."""

    t: float


Start = Callable[[NodeId, str], Resume | Since | None]
"""Where a stream begins for a consumer; None for the first sample that it hears."""


class Sink(Protocol):
    """Where a consumer's samples go; called on the inbox thread."""

    def has_room(self) -> bool:
        """Tell whether a batch may be put now; after a no, the sink wakes the inbox once there is room again."""

    def put(self, batch: Batch, *, size_bytes: int, late: bool) -> None:
        """Take samples; ``late`` ones were resent, or came after newer ones."""

    def lost_for_good(self, want: MissingSamples, reason: str) -> None:
        """Hear that samples will not come."""


class _Held(msgspec.Struct, frozen=True, order=True):
    """A batch that waits for earlier ones; sorted by boot and number, which occur once."""

    boot: int
    seq: int
    batch: Batch
    size_bytes: int
    late: bool


class _Search(msgspec.Struct, kw_only=True):
    """Binary search for the first sample of a boot that is not older than ``since``: one of ``low`` to ``high``."""

    boot: int
    since: float
    low: int
    high: int
    end: int

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2

    def narrow(self, t: float | None) -> bool:
        """Take the time of the middle sample, None if it is gone; return whether the search is over."""
        if t is not None and t >= self.since:
            self.high = self.middle
        else:
            self.low = self.middle + 1
        return self.low >= self.high


class _Stream:
    """One stream of a node through its boots: an account for each boot, and batches that wait for their turn.

    ``opened`` is false until it is known where the stream begins. Boots below ``done`` are over for this consumer;
    boots below ``closed_below`` are over for the node, which has announced what it keeps of them.
    """

    def __init__(self, node_id: NodeId, name: str, *, opened: bool) -> None:
        self.node_id, self.name, self.opened = node_id, name, opened
        self.accounts: dict[int, GapAccount] = {}
        self.held: list[_Held] = []
        self.done = self.closed_below = 0
        self.search: _Search | None = None

    @property
    def current(self) -> int:
        """The boot whose samples come next."""
        return min(self.accounts, default=self.done)

    def is_past(self, boot: int) -> bool:
        """Tell whether samples of this boot come too late to be delivered in order."""
        return boot < self.done or (bool(self.accounts) and boot < self.current)

    def is_next(self, batch: Batch) -> bool:
        """Tell whether nothing is to be delivered before this batch."""
        return self.opened and batch.boot == self.current and batch.seq <= self.accounts[batch.boot].edge

    def has_ready(self) -> bool:
        """Tell whether the first held batch may be delivered; moves on to the next boot when one is over."""
        while self.opened and self.accounts:
            boot = self.current
            account = self.accounts[boot]
            if self.held and (self.held[0].boot, self.held[0].seq) < (boot, account.edge):
                return True
            if boot >= self.closed_below or account.missing or len(self.accounts) == 1:
                return False
            del self.accounts[boot]
            self.done = boot + 1
        return False

    def want(self) -> MissingSamples | None:
        """Return what to ask the node for next: the oldest missing range, or a sample whose time is searched."""
        if self.search is not None:
            return self.range(self.search.boot, self.search.middle, self.search.middle + 1, probe=True)
        for boot in sorted(self.accounts):
            if self.accounts[boot].missing:
                return self.range(boot, *self.accounts[boot].missing[0])
        return None

    def range(self, boot: int, first: int, end: int, *, probe: bool = False) -> MissingSamples:
        """Return the samples ``first`` up to ``end``, not included."""
        return MissingSamples(
            node_id=self.node_id, boot=boot, stream=self.name, first_seq=first, last_seq=end - 1, probe=probe
        )

    def begin(self, boot: int, first: int, end: int) -> None:
        """Let a boot begin at ``first``, whether it was heard already or not, and exist up to ``end``."""
        account = self.accounts.setdefault(boot, GapAccount(first))
        account.begin_back(first)
        account.exists(end)

    def open_at(self, extents: Iterable[Extent], since: float) -> None:
        """Begin with what the node keeps from a moment on, or begin to search for that moment."""
        kept = [extent for extent in extents if extent.last_t >= since]
        if not kept:
            return
        first, *later = kept
        self.done = first.boot
        for extent in later:
            self.begin(extent.boot, extent.oldest_seq, extent.last_seq + 1)
        low, high = first.oldest_seq + 1, first.last_seq
        if first.oldest_t < since and low < high:
            self.opened = False
            self.search = _Search(boot=first.boot, since=since, low=low, high=high, end=high + 1)
        else:
            self.begin(first.boot, first.oldest_seq if first.oldest_t >= since else high, high + 1)
            self.opened = True


class _Node:
    """A node and its followed streams; ``at_begin`` are those that it had, at boot ``begun_at``, when we began."""

    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        self.streams: dict[str, _Stream] = {}
        self.newest_boot = -1
        self.begun_at = 0
        self.answered, self.is_up = False, True
        self.at_begin: frozenset[str] | None = None


class StreamFollower:
    """Follows every stream of some nodes for one consumer; belongs to the inbox thread, but for its counters.

    Live batches go to the sink at once, or with ``ordered`` in order: those that come too early are held, within
    8 MiB. Batches without room are missing, and asked for again once there is room; ``is_full`` until then. ``start``
    None begins with the first sample heard. ``wanting`` are the nodes of which something may be missing.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        nodes: frozenset[NodeId] | None,
        ordered: bool,
        start: Start | None,
        inquire: Callable[[NodeId, float], None],
    ) -> None:
        self._sink, self._chosen, self._ordered = sink, nodes, ordered
        self._start, self._inquire = start, inquire
        self._nodes: dict[NodeId, _Node] = {}
        self._stream_count = self._held_samples = self._held_bytes = 0
        self._announced: deque[tuple[float, NodeId, GapAccount, int]] = deque()
        self.is_full = self._warned = False
        self.wanting: dict[NodeId, None] = {}
        self.losses: Counter[str] = Counter()
        self.repeated = self.refilled = 0

    @property
    def pending(self) -> int:
        """How many samples are known to exist and were neither delivered nor given up."""
        accounts = (
            account
            for node in list(self._nodes.values())
            for stream in list(node.streams.values())
            for account in list(stream.accounts.values())
        )
        return sum(account.pending for account in accounts) + self._held_samples

    def newest_boot(self, node_id: NodeId) -> int:
        """Return the newest boot heard of, -1 if there is none."""
        node = self._nodes.get(node_id)
        return -1 if node is None else node.newest_boot

    def follows(self, node_id: str) -> bool:
        """Tell whether samples of this node are wanted."""
        return self._chosen is None or node_id in self._chosen

    # --- input --------------------------------------------------------------------------------------------------------

    def heard(self, batch: Batch, size_bytes: int) -> None:
        """Take a live batch."""
        if not self.follows(batch.node_id):
            return
        node = self._node(NodeId(batch.node_id))
        stream = node.streams.get(batch.stream) or self._add_stream(node, batch.stream)
        account = stream.accounts.get(batch.boot) or self._boot_of(batch, node, stream)
        if account is None:
            return
        if not self._accepts(stream, batch, size_bytes):
            account.exists(batch.last_seq + 1)
        else:
            for offset, count, arrival in account.arrived(batch.seq, len(batch.t)):
                if arrival is Arrival.REPEATED:
                    self.repeated += count
                else:
                    self._take(stream, batch, offset, count, size_bytes, late=arrival is Arrival.LATE)
            if self._ordered:
                self._flush(stream)
        if account.missing:
            while len(account.missing) > MAX_MISSING_RANGES:
                self._give_up(stream, batch.boot, account, *account.missing[0], TOO_MANY_GAPS)
                self._flush(stream)
            self.wanting[node.node_id] = None

    def pulled(self, batch: Batch, size_bytes: int) -> bool:
        """Take the samples of a resent page that this consumer misses; tell whether there was room."""
        found = self._find(batch.node_id, batch.stream, batch.boot)
        if found is None or not self._accepts(found[0], batch, size_bytes):
            return found is None
        stream, account = found
        for offset, count in account.refilled(batch.seq, len(batch.t)):
            self.refilled += count
            self._take(stream, batch, offset, count, size_bytes, late=True)
        self._flush(stream)
        return True

    def answered(self, reply: Reply, now: float) -> None:
        """Take a node's answer to a lease: which samples it keeps, or a refusal."""
        node = self._node(NodeId(reply.node_id))
        kept: dict[str, list[Extent]] = {}
        if isinstance(reply, MonitorReply) and reply.success:
            for extent in sorted(reply.extents, key=lambda extent: extent.boot):
                kept.setdefault(extent.stream, []).append(extent)
                node.newest_boot = max(node.newest_boot, extent.boot)
            for name, extents in kept.items():
                self._keeps(node, name, extents, now)
            if node.at_begin is None and kept:
                node.at_begin, node.begun_at = frozenset(reply.streams) | frozenset(kept), node.newest_boot
            if not kept and (reply.reason or node.at_begin is not None):
                if reply.reason:  # its recording is being opened
                    self._inquire(node.node_id, now + GRACE_S)
                return
        node.answered = True
        for stream in node.streams.values():
            stream.closed_below = node.newest_boot
        self._open(node)

    def node_changed(self, node_id: NodeId, *, is_up: bool) -> None:
        """Note that a node came up, or went offline: then its batches wait for no answer."""
        if self.follows(node_id):
            node = self._node(node_id)
            node.is_up = is_up
            if not is_up:
                self._open(node)

    def gone(self, want: MissingSamples, reason: str) -> None:
        """Give up samples that the node does not have."""
        found = self._find(want.node_id, want.stream, want.boot)
        if found is not None:
            stream, account = found
            self._give_up(stream, want.boot, account, want.first_seq, want.last_seq + 1, reason)
            self._flush(stream)

    def cannot(self, node_id: NodeId, reason: str) -> None:
        """Give up everything that is missing of a node, because it resends nothing."""
        node = self._nodes.get(node_id)
        for stream in node.streams.values() if node is not None else ():
            stream.search, stream.opened = None, True
            for boot, account in stream.accounts.items():
                self._give_up(stream, boot, account, 0, account.next, reason)
            self._flush(stream)

    def probed(self, want: MissingSamples, t: float | None) -> None:
        """Take the time of a sample that was asked for to find the beginning."""
        node = self._nodes.get(NodeId(want.node_id))
        stream = None if node is None else node.streams.get(want.stream)
        search = None if stream is None else stream.search
        if stream is None or search is None or (search.boot, search.middle) != (want.boot, want.first_seq):
            return
        if search.narrow(t):
            stream.search, stream.opened = None, True
            stream.begin(search.boot, search.low, search.end)
            self._flush(stream)

    # --- questions ----------------------------------------------------------------------------------------------------

    def want(self, node_id: NodeId) -> MissingSamples | None:
        """Return what to ask a node for next; None for nothing, or for nothing at the moment."""
        node = self._nodes.get(node_id)
        if self.is_full or node is None:
            return None
        for name, stream in list(node.streams.items()):
            want = stream.want()
            if want is not None:
                # Behind the others, so that a stream that cannot be had just now holds up none of them.
                node.streams[name] = node.streams.pop(name)
                return want
        self.wanting.pop(node_id, None)
        return None

    def tick(self, now: float) -> None:
        """Do what time and room allow."""
        while self._announced and self._announced[0][0] <= now:
            _, node_id, account, end = self._announced.popleft()
            if end > account.next:
                account.exists(end)
                self.wanting[node_id] = None
        if self.is_full and self._sink.has_room():
            self.is_full = False
            for node in self._nodes.values():
                for stream in node.streams.values():
                    self._flush(stream)
                    if stream.want() is not None:
                        self.wanting[node.node_id] = None

    def due_at(self) -> float | None:
        """Return when `tick` is to be called next, on the monotonic clock."""
        return self._announced[0][0] if self._announced else None

    # --- delivery ----------------------------------------------------------------------------------------------------

    def _accepts(self, stream: _Stream, batch: Batch, size_bytes: int) -> bool:
        """Tell whether there is room for a batch: in the sink if it is next, else among held ones."""
        if self._ordered and not stream.is_next(batch):
            return self._held_bytes + size_bytes <= HOLD_BYTES
        self.is_full = self.is_full or not self._sink.has_room()
        return not self.is_full

    def _take(self, stream: _Stream, batch: Batch, offset: int, count: int, size_bytes: int, *, late: bool) -> None:
        """Deliver a part of a batch, or hold it until `_flush`.

        That is called once, after all parts of a batch: samples between two parts may be held already.
        """
        first = batch.seq + offset
        part = batch if count == len(batch.t) else batch.part(first, first + count - 1)
        if not self._ordered:
            self._sink.put(part, size_bytes=size_bytes, late=late)
            return
        self._held_bytes += size_bytes
        self._held_samples += count
        heapq.heappush(stream.held, _Held(batch.boot, first, part, size_bytes, late))

    def _flush(self, stream: _Stream) -> None:
        """Deliver held batches whose turn it is, as long as there is room."""
        while stream.has_ready():
            if not self._sink.has_room():
                self.is_full = True
                return
            held = heapq.heappop(stream.held)
            self._released(held)
            self._sink.put(held.batch, size_bytes=held.size_bytes, late=held.late)

    def _released(self, held: _Held) -> None:
        self._held_bytes -= held.size_bytes
        self._held_samples -= len(held.batch.t)

    def _give_up(self, stream: _Stream, boot: int, account: GapAccount, first: int, end: int, reason: str) -> None:
        """Count missing samples as lost, and tell the sink."""
        for low, high in account.give_up(first, end):
            self.losses[reason] += high - low
            self._sink.lost_for_good(stream.range(boot, low, high), reason)

    # --- nodes, streams and boots -------------------------------------------------------------------------------------

    def _node(self, node_id: NodeId) -> _Node:
        return self._nodes.get(node_id) or self._nodes.setdefault(node_id, _Node(node_id))

    def _find(self, node_id: str, name: str, boot: int) -> tuple[_Stream, GapAccount] | None:
        node = self._nodes.get(NodeId(node_id))
        stream = None if node is None else node.streams.get(name)
        account = None if stream is None else stream.accounts.get(boot)
        return None if stream is None or account is None else (stream, account)

    def _start_of(self, node: _Node, name: str) -> Resume | Since | None:
        return None if self._start is None else self._start(node.node_id, name)

    def _open(self, node: _Node) -> None:
        """Deliver the batches that were held for the node's answer."""
        for stream in node.streams.values():
            stream.opened = stream.opened or stream.search is None
            self._flush(stream)

    def _add_stream(self, node: _Node, name: str) -> _Stream:
        """Begin to follow a stream; beyond 20,000 of them the node known longest is forgotten."""
        start = self._start_of(node, name)
        stream = _Stream(node.node_id, name, opened=not (node.is_up and isinstance(start, Since)))
        if isinstance(start, Resume):
            stream.accounts[start.boot] = GapAccount(start.seq)
            stream.done = start.boot
            node.newest_boot = max(node.newest_boot, start.boot)
        elif start is not None and node.answered:
            self._inquire(node.node_id, 0.0)  # it is newer than the node's last answer
        if self._stream_count >= MAX_STREAMS:
            oldest = next((one for one in self._nodes if one != node.node_id), None)
            if oldest is None:
                forgotten = [node.streams.pop(next(iter(node.streams)))]
            else:
                forgotten = list(self._nodes.pop(oldest).streams.values())
            self._stream_count -= len(forgotten)
            for held in (held for one in forgotten for held in one.held):
                self._released(held)
        node.streams[name] = stream
        self._stream_count += 1
        return stream

    def _add_boot(self, stream: _Stream, boot: int, begin: int) -> GapAccount:
        """Begin to account for a boot; beyond 100 of them the oldest is given up."""
        if len(stream.accounts) >= MAX_BOOTS:
            oldest = stream.current
            account = stream.accounts[oldest]
            self._give_up(stream, oldest, account, 0, account.next, TOO_MANY_GAPS)
            self._flush(stream)
            stream.accounts.pop(oldest, None)
            stream.done = max(stream.done, oldest + 1)
        added = stream.accounts[boot] = GapAccount(begin)
        return added

    def _boot_of(self, batch: Batch, node: _Node, stream: _Stream) -> GapAccount | None:
        """Begin with a boot at the first batch heard of it; None if it can no longer be delivered in order."""
        boot, is_first = batch.boot, not stream.accounts and not stream.done
        if stream.is_past(boot):
            if not self._ordered:
                return self._add_boot(stream, boot, batch.seq)
            if not self._warned:
                self._warned = True
                logger.warning(
                    "samples of node %s, boot %d, came after those of a later boot and are left out; if the folder "
                    "of that node was replaced, begin anew", node.node_id, boot,
                )  # fmt: skip
            return None
        if boot > node.newest_boot:
            if node.newest_boot >= 0:
                self._inquire(node.node_id, 0.0)
            node.newest_boot = boot
        # A stream that was not there when we began is wanted from its beginning, and so is a later boot.
        is_new = node.at_begin is not None and batch.stream not in node.at_begin and self._start is None
        is_searched = stream.search is not None and stream.search.boot == boot
        return self._add_boot(stream, boot, batch.seq if is_searched or (is_first and not is_new) else 0)

    def _keeps(self, node: _Node, name: str, extents: list[Extent], now: float) -> None:
        """Take which samples of a stream a node keeps."""
        stream = node.streams.get(name)
        if stream is None:
            if self._start is None and (node.at_begin is None or name in node.at_begin):
                return  # not heard yet, and there before us: it begins with the first sample heard
            stream = self._add_stream(node, name)
        start = self._start_of(node, name)
        if isinstance(start, Since) and not (stream.opened and stream.accounts):
            if stream.search is None:
                stream.open_at(extents, start.t)
        else:
            for extent in extents:
                if stream.accounts or start is not None or extent.boot >= node.begun_at:
                    self._extent(node, stream, extent, now)
        self.wanting[node.node_id] = None

    def _extent(self, node: _Node, stream: _Stream, extent: Extent, now: float) -> None:
        if stream.is_past(extent.boot):
            return
        account = stream.accounts.get(extent.boot) or self._add_boot(stream, extent.boot, 0)
        end = extent.last_seq + 1
        if extent.boot < node.newest_boot:
            account.exists(end)
        elif end > account.next:
            self._announced.append((now + GRACE_S, node.node_id, account, end))
        account.exists(extent.oldest_seq)
        self._give_up(stream, extent.boot, account, 0, extent.oldest_seq, TOO_OLD)
