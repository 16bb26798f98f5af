"""Missed samples: which are missing, per consumer, node, boot and stream; asked for again in pages, or given up."""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

import msgspec

from fedmon.common.backoff import Backoff
from fedmon.common.clock import utc_now
from fedmon.common.ids import NodeId
from fedmon.common.metrics.sample import Batch
from fedmon.common.store.seq_ranges import SeqRanges
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Error, ErrorCode, Monitor
from fedmon.common.wire.samples import Extent, MonitorReply, SamplesReply
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.roster import Moment
from fedmon.researcher.session.inbox import memory_bytes

logger = logging.getLogger(__name__)

MAX_STREAMS = 20_000
MAX_BOOTS = 100
MAX_MISSING_RANGES = 1_000
HOLD_BYTES = 8 * 1024 * 1024
GRACE_S = 1.0
"""A node announces a sample on one topic and sends it on another: the sample may arrive this much later."""
ROOM_EVERY_S, ROOM_AGAIN = 0.1, 0.5
"""How often a consumer that is full is asked whether it has room again: less than this share of its bound is taken."""
TOO_OLD = "the node no longer keeps them"
TOO_MANY_GAPS = "more gaps than are kept track of"
NODES_AT_ONCE = 16
REPLY_WITHIN_S = 5.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
MAX_TRIES = 6
FEW_PASSED = 1_000
"""A page without a sample skips more than this number, or is the last one."""
NO_RECORDING = "this node keeps no recording"
NO_ROOM = "no room for them yet"
NOT_KEPT = "the node does not have them, or withholds them"
_TRY_AGAIN = frozenset({ErrorCode.BUSY, ErrorCode.FAILED, ErrorCode.EXPIRED})


class GapAccount:
    """The samples of one (node, boot, stream), by their numbers; changed by one thread.

    It begins with ``begin``. Every number from there on is received once, ``missing`` (known to exist, not received
    yet), or lost because it was given up; ``next`` is the number after the last one known to exist. While ``since_t``
    is set, the first missing number that counts is that of the first sample not older than this Unix time.
    """

    def __init__(self, begin: int, *, since_t: float | None = None) -> None:
        self.next, self.since_t = begin, since_t
        self.missing = SeqRanges()

    @property
    def edge(self) -> int:
        """The first number that was neither received nor given up."""
        return self.missing.ranges[0][0] if self.missing.ranges else self.next

    def exists(self, last: int) -> None:
        """Note that every number up to ``last`` exists; those not heard of so far are missing."""
        if last >= self.next:
            self.missing.add(self.next, last)
            self.next = last + 1

    def arrived(self, first: int, last: int) -> list[tuple[int, int, bool]]:
        """Account for samples; return the ranges that are new, in order, and whether they come late."""
        self.exists(first - 1)
        new = [(low, high, True) for low, high in self.missing.remove(first, last)] if first < self.next else []
        if last >= self.next:
            new.append((max(first, self.next), last, False))
            self.next = last + 1
        if not self.missing.ranges:
            self.since_t = None
        return new


class MissingSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that a consumer misses, ``first_seq`` to ``last_seq``, both included.

    With ``since_t`` those before the first one that is not older than this Unix time are not wanted.
    """

    node_id: str
    boot: int
    stream: str
    first_seq: int
    last_seq: int
    since_t: float | None = None


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """A stream continues at this number of this boot, and at the beginning of every later boot."""

    boot: int
    seq: int


Start = Callable[[NodeId, str], Resume | float]
"""Where a stream begins for a consumer; a number is a Unix time: it begins with the first sample not older."""


class Sink(Protocol):
    """Where a consumer's samples go; called on the inbox thread."""

    def has_room(self, share: float) -> bool:
        """Tell whether a batch may be put now, as less than this share of its bound is taken."""

    def put(self, batch: Batch, *, size_bytes: int, late: bool) -> None:
        """Take samples; ``late`` ones were resent, or came after newer ones."""

    def lost_for_good(self, want: MissingSamples, reason: str) -> None:
        """Hear that samples will not come."""


class _Held(NamedTuple):
    """A batch that waits for earlier ones; sorted by boot and number, which occur once."""

    boot: int
    seq: int
    batch: Batch
    size_bytes: int
    late: bool


class _Node:
    """A node and its followed streams.

    It has told its extents in the boots below ``told``, so that they are over. ``at_begin`` are the streams that it
    had, at boot ``begun_at``, when we began.
    """

    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        self.streams: dict[str, _Stream] = {}
        self.newest_boot = self.told = -1
        self.is_up = True
        self.begun_at = 0
        self.at_begin: frozenset[str] | None = None


class _Stream:
    """One stream of a node through its boots: an account for each boot, and batches that wait for their turn.

    Boots below ``done`` are over for this consumer.
    """

    def __init__(self, node: _Node, name: str, *, done: int, since_t: float | None) -> None:
        self.node, self.name, self.done, self.since_t = node, name, done, since_t
        self.accounts: dict[int, GapAccount] = {}
        self.held: list[_Held] = []

    def is_next(self, batch: Batch) -> bool:
        """Tell whether nothing is to be delivered before this batch."""
        is_first = batch.boot == min(self.accounts) and batch.boot <= self.node.told
        return is_first and batch.seq <= self.accounts[batch.boot].edge

    def has_ready(self) -> bool:
        """Tell whether the first held batch may be delivered; moves on to the next boot when one is over."""
        while self.accounts and (boot := min(self.accounts)) <= self.node.told:
            account = self.accounts[boot]
            if self.held and (self.held[0].boot, self.held[0].seq) < (boot, account.edge):
                return True
            if boot == self.node.told or account.missing.ranges or len(self.accounts) == 1:
                return False
            del self.accounts[boot]
            self.done = max(self.done, boot + 1)
        return False

    def want(self) -> MissingSamples | None:
        """Return the oldest missing range."""
        for boot in sorted(self.accounts):
            account = self.accounts[boot]
            if account.missing.ranges:
                return self.range(boot, *account.missing.ranges[0], since_t=account.since_t)
        return None

    def range(self, boot: int, first: int, last: int, *, since_t: float | None = None) -> MissingSamples:
        """Return the samples from ``first`` to ``last``."""
        return MissingSamples(
            node_id=self.node.node_id, boot=boot, stream=self.name, first_seq=first, last_seq=last, since_t=since_t
        )


class StreamFollower:
    """Follows every stream of some nodes for one consumer; belongs to the inbox thread, but for its counters.

    Live batches go to the sink at once, or with ``ordered`` in order: those that come too early are held, within
    8 MiB. Batches without room are missing, and asked for again once there is room; ``is_full`` until then. ``start``
    None begins with the first sample heard, and any other needs ``ordered``. ``wanting`` are the nodes of which
    something may be missing.
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
        return sum(account.missing.total for account in accounts) + self._held_samples

    def newest_boot(self, node_id: NodeId) -> int:
        """Return the newest boot heard of, -1 if there is none."""
        node = self._nodes.get(node_id)
        return -1 if node is None else node.newest_boot

    def follows(self, node_id: str) -> bool:
        """Tell whether samples of this node are wanted."""
        return self._chosen is None or node_id in self._chosen

    # --- input --------------------------------------------------------------------------------------------------------

    def heard(self, batch: Batch, size_bytes: int) -> None:
        """Take a live batch; one without a sample says nothing."""
        if not (batch.t and self.follows(batch.node_id)):
            return
        node = self._node(NodeId(batch.node_id))
        stream = node.streams.get(batch.stream) or self._add_stream(node, batch.stream, boot=batch.boot)
        account = stream.accounts.get(batch.boot) or self._boot_of(batch, node, stream)
        if account is None:
            return
        if not self._accepts(stream, batch, size_bytes):
            account.exists(batch.last_seq)
        else:
            new = account.arrived(batch.seq, batch.seq + len(batch.t) - 1)
            self.repeated += len(batch.t) - sum(last - first + 1 for first, last, _ in new)
            for first, last, late in new:
                self._take(stream, batch, first, last, size_bytes, late=late)
            if self._ordered:
                self._flush(stream)
        if account.missing.ranges:
            while len(account.missing.ranges) > MAX_MISSING_RANGES:
                self._give_up(stream, batch.boot, account, *account.missing.ranges[0], TOO_MANY_GAPS)
            self.wanting[node.node_id] = None

    def pulled(self, batch: Batch, size_bytes: int) -> bool:
        """Take the samples of a resent page that this consumer misses; tell whether there was room."""
        found = self._find(batch.node_id, batch.stream, batch.boot)
        if found is None or found[1].since_t is not None:
            return True
        stream, account = found
        if not self._accepts(stream, batch, size_bytes):
            return False
        for first, last in account.missing.remove(batch.seq, batch.last_seq):
            self.refilled += last - first + 1
            self._take(stream, batch, first, last, size_bytes, late=True)
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
            if not kept and reply.reason:  # its recording is being opened
                self._inquire(node.node_id, now + GRACE_S)
                return
        self._told(node)

    def node_changed(self, node_id: NodeId, *, is_up: bool) -> None:
        """Note that a node came up, or went offline: then its batches wait for no first answer."""
        if self.follows(node_id):
            node = self._node(node_id)
            node.is_up = is_up
            if not is_up and node.told < 0:
                self._told(node)

    def begins(self, want: MissingSamples, seq: int, *, is_known: bool) -> None:
        """Leave out missing samples before ``seq``, which are too old; ``is_known`` if the next one is wanted."""
        found = self._find(want.node_id, want.stream, want.boot)
        if found is not None:
            stream, account = found
            account.missing.remove(want.first_seq, seq - 1)
            if is_known:
                account.since_t = None
            self._flush(stream)

    def gone(self, want: MissingSamples, reason: str) -> None:
        """Give up samples that the node does not have."""
        found = self._find(want.node_id, want.stream, want.boot)
        if found is not None:
            stream, account = found
            self._give_up(stream, want.boot, account, want.first_seq, want.last_seq, reason)
            if want.since_t is not None:
                account.since_t = None

    def cannot(self, node_id: NodeId, reason: str) -> None:
        """Give up everything that is missing of a node, because it resends nothing."""
        node = self._nodes.get(node_id)
        for stream in node.streams.values() if node is not None else ():
            for boot, account in list(stream.accounts.items()):
                self._give_up(stream, boot, account, 0, account.next - 1, reason)
                account.since_t = None

    # --- questions ----------------------------------------------------------------------------------------------------

    def want(self, node_id: NodeId) -> MissingSamples | None:
        """Return the next samples to ask a node for; None for none, or none at the moment."""
        node = self._nodes.get(node_id)
        if self.is_full or node is None:
            return None
        for name, stream in list(node.streams.items()):
            want = stream.want()
            if want is not None:
                # Behind the others, so that a stream or node that cannot be had just now holds up none of them.
                node.streams[name] = node.streams.pop(name)
                self.wanting.pop(node_id, None)
                self.wanting[node_id] = None
                return want
        self.wanting.pop(node_id, None)
        return None

    def tick(self, now: float) -> None:
        """Take the announcements that are due, and deliver held batches if there is room again."""
        while self._announced and self._announced[0][0] <= now:
            _, node_id, account, last = self._announced.popleft()
            if last >= account.next:
                account.exists(last)
                self.wanting[node_id] = None
        if self.is_full and self._sink.has_room(ROOM_AGAIN):
            self.is_full = False
            for node in self._nodes.values():
                for stream in node.streams.values():
                    self._flush(stream)
                    if stream.want() is not None:
                        self.wanting[node.node_id] = None

    def due_at(self) -> float | None:
        """Return when `tick` is to be called next, on the monotonic clock."""
        if self.is_full:
            return time.monotonic() + ROOM_EVERY_S
        return self._announced[0][0] if self._announced else None

    # --- delivery ----------------------------------------------------------------------------------------------------

    def _accepts(self, stream: _Stream, batch: Batch, size_bytes: int) -> bool:
        """Tell whether there is room for a batch: in the sink if it is next, else among held ones."""
        if self._ordered and not stream.is_next(batch):
            return self._held_bytes + size_bytes <= HOLD_BYTES
        self.is_full = self.is_full or not self._sink.has_room(1.0)
        return not self.is_full

    def _take(self, stream: _Stream, batch: Batch, first: int, last: int, size_bytes: int, *, late: bool) -> None:
        """Deliver a part of a batch, or hold it until `_flush`.

        That is called once, after all parts of a batch: samples between two parts may be held already.
        """
        part = batch if last - first + 1 == len(batch.t) else batch.part(first, last)
        if not self._ordered:
            self._sink.put(part, size_bytes=size_bytes, late=late)
            return
        self._held_bytes += size_bytes
        self._held_samples += len(part.t)
        heapq.heappush(stream.held, _Held(batch.boot, first, part, size_bytes, late))

    def _flush(self, stream: _Stream) -> None:
        """Deliver held batches whose turn it is, as long as there is room."""
        while stream.has_ready():
            self.is_full = self.is_full or not self._sink.has_room(1.0)
            if self.is_full:
                return
            held = heapq.heappop(stream.held)
            stream.done = held.boot
            self._released(held)
            self._sink.put(held.batch, size_bytes=held.size_bytes, late=held.late)

    def _released(self, held: _Held) -> None:
        self._held_bytes -= held.size_bytes
        self._held_samples -= len(held.batch.t)

    def _give_up(self, stream: _Stream, boot: int, account: GapAccount, first: int, last: int, reason: str) -> None:
        """Count missing samples as lost, and tell the sink; how many are wanted before a beginning is not known."""
        for low, high in account.missing.remove(first, last):
            if account.since_t is None:
                self.losses[reason] += high - low + 1
                self._sink.lost_for_good(stream.range(boot, low, high), reason)
        self._flush(stream)

    # --- nodes, streams and boots -------------------------------------------------------------------------------------

    def _node(self, node_id: NodeId) -> _Node:
        return self._nodes.get(node_id) or self._nodes.setdefault(node_id, _Node(node_id))

    def _find(self, node_id: str, name: str, boot: int) -> tuple[_Stream, GapAccount] | None:
        node = self._nodes.get(NodeId(node_id))
        stream = None if node is None else node.streams.get(name)
        account = None if stream is None else stream.accounts.get(boot)
        return None if stream is None or account is None else (stream, account)

    def _told(self, node: _Node) -> None:
        """Deliver the batches that waited for the node's answer."""
        node.told = node.newest_boot
        for stream in node.streams.values():
            self._flush(stream)

    def _is_new(self, node: _Node, name: str) -> bool:
        """Tell whether a stream was not there when we began: then it is wanted from its beginning."""
        return self._start is not None or (node.at_begin is not None and name not in node.at_begin)

    def _add_stream(self, node: _Node, name: str, *, boot: int) -> _Stream:
        """Begin to follow a stream, first heard in a boot; beyond 20,000 of them the oldest is forgotten."""
        if self._stream_count >= MAX_STREAMS:
            known = next(one.streams for one in self._nodes.values() if one.streams)
            for held in known.pop(next(iter(known))).held:
                self._released(held)
            self._stream_count -= 1
        start = None if self._start is None else self._start(node.node_id, name)
        if isinstance(start, Resume):
            stream = _Stream(node, name, done=start.boot, since_t=None)
            stream.accounts[start.boot] = GapAccount(start.seq)
            node.newest_boot = max(node.newest_boot, start.boot)
        else:
            done = 0 if start is not None else node.begun_at if self._is_new(node, name) else boot
            stream = _Stream(node, name, done=done, since_t=start)
        node.streams[name] = stream
        self._stream_count += 1
        return stream

    def _add_boot(self, stream: _Stream, boot: int, begin: int) -> GapAccount:
        """Begin to account for a boot; beyond 100 of them the oldest is given up."""
        if len(stream.accounts) >= MAX_BOOTS:
            oldest = min(stream.accounts)
            account = stream.accounts[oldest]
            self._give_up(stream, oldest, account, 0, account.next - 1, TOO_MANY_GAPS)
            stream.accounts.pop(oldest, None)
            stream.done = max(stream.done, oldest + 1)
            stream.node.told = max(stream.node.told, min(stream.accounts))
        added = stream.accounts[boot] = GapAccount(begin, since_t=stream.since_t)
        return added

    def _boot_of(self, batch: Batch, node: _Node, stream: _Stream) -> GapAccount | None:
        """Begin with a boot at the first batch heard of it; None if it can no longer be delivered in order."""
        boot, is_first = batch.boot, not stream.accounts
        if boot < stream.done:
            if not self._ordered:
                return self._add_boot(stream, boot, batch.seq)
            if not self._warned:
                self._warned = True
                logger.warning(
                    "samples of node %s, boot %d, came after those of a later boot and are left out; if the folder "
                    "of that node was replaced, begin again", node.node_id, boot,
                )  # fmt: skip
            return None
        if boot > node.newest_boot:
            if node.newest_boot < 0 and (self._start is None or not node.is_up):
                node.told = boot
            else:
                self._inquire(node.node_id, 0.0)
            node.newest_boot = boot
        return self._add_boot(stream, boot, batch.seq if is_first and not self._is_new(node, batch.stream) else 0)

    def _keeps(self, node: _Node, name: str, extents: list[Extent], now: float) -> None:
        """Take which samples of a stream a node keeps."""
        stream = node.streams.get(name)
        if stream is None:
            if not self._is_new(node, name):
                return  # not heard yet, and there before us: it begins with the first sample heard
            stream = self._add_stream(node, name, boot=0)
        for extent in extents:
            is_wanted = stream.since_t is None or extent.last_t >= stream.since_t or extent.boot in stream.accounts
            if is_wanted and extent.boot >= stream.done:
                self._extent(node, stream, extent, now)
        self.wanting[node.node_id] = None

    def _extent(self, node: _Node, stream: _Stream, extent: Extent, now: float) -> None:
        account = stream.accounts.get(extent.boot) or self._add_boot(stream, extent.boot, 0)
        if extent.boot < node.newest_boot or account.since_t is not None:
            account.exists(extent.last_seq)
        elif extent.last_seq >= account.next:
            self._announced.append((now + GRACE_S, node.node_id, account, extent.last_seq))
        account.exists(extent.oldest_seq - 1)
        self._give_up(stream, extent.boot, account, 0, extent.oldest_seq - 1, TOO_OLD)


class _Asked(msgspec.Struct, kw_only=True):
    want: MissingSamples
    follower: StreamFollower
    request_id: str
    asked: datetime
    deadline: float


class _Pause:
    """The pause before a node is asked again; ``tries`` are those that count before the range is given up."""

    def __init__(self) -> None:
        self.backoff = Backoff(FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        self.tries, self.until = 0, 0.0


class Resend:
    """Asks for pages as consumers want them: one outstanding request a node, 16 nodes at once.

    A page that is not answered within 5 s is asked for again, after pauses that double up to 30 s. If a node that is
    heard of has not answered six times, the range is given up; a busy node is waited for. ``due_at`` is when `look` is
    to be called next, on the monotonic clock. Belongs to the inbox thread.
    """

    def __init__(self, asker: Asker, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._asker, self._clock = asker, clock
        self._open: dict[NodeId, _Asked] = {}
        self._pauses: dict[NodeId, _Pause] = {}
        self._followers: Sequence[StreamFollower] = ()
        self._linked = False
        self.due_at: float | None = None

    def link(self, *, up: bool) -> None:
        """Note that the connection came up or was lost: open requests are repeated once it is up."""
        self._linked = up
        self._pauses.clear()
        self._open.clear()

    def node_came_up(self, node_id: NodeId) -> None:
        """Note that a node came up: it does not know of an open request."""
        self._pauses.pop(node_id, None)
        self._open.pop(node_id, None)

    # --- asking ------------------------------------------------------------------------------------------------------

    def look(self, followers: Sequence[StreamFollower], now: float) -> None:
        """Ask for missing samples, within the bounds."""
        self._followers = followers
        if not followers:
            self._open.clear()
            self.due_at = None
            return
        for node_id, asked in list(self._open.items()):
            if now >= asked.deadline:
                del self._open[node_id]
                node = self._asker.roster.get(node_id, Moment.now())
                was_heard = node is not None and node.last_seen is not None and node.last_seen >= asked.asked
                self._failed(asked.want, "it did not answer", counts=was_heard)
        paused = {node_id: pause.until for node_id, pause in self._pauses.items() if pause.until > now}
        tried: set[NodeId] = set()
        while self._linked and len(self._open) < NODES_AT_ONCE:
            # Only as far as needed: with very many nodes, to go through all of them takes longer than to ask.
            wanting = (node_id for follower in followers if not follower.is_full for node_id in follower.wanting)
            excluded = (paused, self._open, tried)
            chosen = next((node_id for node_id in wanting if not any(node_id in each for each in excluded)), None)
            if chosen is None:
                break
            tried.add(chosen)
            self._ask(chosen, now)
        dues = (asked.deadline for asked in self._open.values())
        self.due_at = min((*dues, *paused.values()), default=None)

    def _ask(self, node_id: NodeId, now: float) -> None:
        for follower in self._followers:
            want = follower.want(node_id)
            if want is None:
                continue
            request = self._asker.request(
                Monitor,
                action="resend",
                boot=want.boot,
                stream=want.stream,
                first_seq=want.first_seq,
                last_seq=want.last_seq,
                since_t=want.since_t,
            )
            if not self._asker.dialect.encode(request):
                self._cannot(node_id, "this wire has no word for it")
                return
            self._asker.tell(request, [node_id], on_answer=self._on_answer)
            self._open[node_id] = _Asked(
                want=want, follower=follower, request_id=request.id, asked=utc_now(), deadline=now + REPLY_WITHIN_S
            )
            return

    # --- answers -----------------------------------------------------------------------------------------------------

    def _on_answer(self, reply: Reply) -> None:
        node_id = NodeId(reply.node_id)
        asked = self._open.get(node_id)
        if asked is None or asked.request_id != reply.id:
            return
        del self._open[node_id]
        if isinstance(reply, SamplesReply):
            self._page(asked, reply)
        elif isinstance(reply, Error) and reply.code in _TRY_AGAIN:
            self._failed(asked.want, reply.reason, counts=reply.code is not ErrorCode.BUSY)
        else:
            self._cannot(node_id, reply.reason if isinstance(reply, Error) else NO_RECORDING)

    def _page(self, asked: _Asked, reply: SamplesReply) -> None:
        want, node_id = asked.want, NodeId(reply.node_id)
        if (reply.boot, reply.stream) != (want.boot, want.stream):
            self._failed(want, "it answered with other samples than those asked for", counts=True)
            return
        batches = [batch.part(want.first_seq, want.last_seq) for batch in reply.as_batches()]
        batches = [batch for batch in batches if batch.t]
        end = want.last_seq + 1 if reply.next_seq is None else min(reply.next_seq, want.last_seq + 1)
        if want.boot >= max((one.newest_boot(node_id) for one in self._followers), default=-1):
            # Of the running boot the node still writes: only samples before a written one are gone.
            written_to = (reply.last_seq if reply.last_seq is not None else -1) + 1
            sent_to = max((batch.last_seq + 1 for batch in batches), default=want.first_seq)
            end = min(end, max(written_to, sent_to))
        begin = want.first_seq
        if want.since_t is not None:
            # A node that does not know the field sends older samples, too.
            numbered = ((seq, t) for batch in batches for seq, t in enumerate(batch.t, batch.seq))
            begin = next((seq for seq, t in numbered if t >= want.since_t), end)
            asked.follower.begins(want, begin, is_known=begin < end or end > want.last_seq)
        had_room = self._deliver(asked.follower, batches)
        if not (had_room or asked.follower.is_full):  # a full consumer asks again once there is room
            self._failed(want, NO_ROOM, counts=False)
        elif end <= want.first_seq:
            self._failed(want, NOT_KEPT, counts=True)
        else:
            if batches or reply.next_seq is None or end - want.first_seq > FEW_PASSED:
                self._pauses.pop(node_id, None)
            else:  # a node that passes over sample after sample must not keep us busy
                self._failed(want, NOT_KEPT, counts=False)
            too_old = reply.oldest_seq is None or reply.oldest_seq > begin
            wanted = msgspec.structs.replace(want, since_t=None)
            sent = SeqRanges((batch.seq, batch.last_seq) for batch in batches)
            self._gone(wanted, TOO_OLD if too_old else NOT_KEPT, sent.absent(begin, end - 1))

    def _deliver(self, asking: StreamFollower, batches: Sequence[Batch]) -> bool:
        """Hand a page to all followers; return whether the one that asked had room for any of it."""
        had_room = not batches
        for batch in batches:
            values = sum(map(len, batch.columns.values()))
            size_bytes = memory_bytes(samples=len(batch.t), columns=batch.columns, payload_bytes=12 * values)
            for follower in self._followers:
                had_room = (follower.pulled(batch, size_bytes) and follower is asking) or had_room
        return had_room

    def _failed(self, want: MissingSamples, reason: str, *, counts: bool) -> None:
        """Pause before the node is asked again; give the range up after too many tries that count."""
        node_id = NodeId(want.node_id)
        pause = self._pauses.setdefault(node_id, _Pause())
        pause.until = self._clock() + pause.backoff.next_s()
        pause.tries += counts
        if pause.tries >= MAX_TRIES:
            # Not begun anew: a node that has not answered so often is not waited for as long the next time.
            pause.tries = MAX_TRIES - 1
            self._gone(want, f"{reason} ({MAX_TRIES} times)", [(want.first_seq, want.last_seq)])

    def _gone(self, want: MissingSamples, reason: str, ranges: Sequence[tuple[int, int]]) -> None:
        if not ranges:
            return
        logger.warning(
            "%d of samples %d to %d of node %s (boot %d, %s) are lost: %s",
            sum(last - first + 1 for first, last in ranges), ranges[0][0], ranges[-1][1],
            want.node_id, want.boot, want.stream, reason,
        )  # fmt: skip
        for first, last in ranges:
            lost = msgspec.structs.replace(want, first_seq=first, last_seq=last)
            for follower in self._followers:
                follower.gone(lost, reason)

    def _cannot(self, node_id: NodeId, reason: str) -> None:
        logger.info("missed samples of node %s cannot be sent again: %s", node_id, reason)
        for follower in self._followers:
            follower.cannot(node_id, reason)
