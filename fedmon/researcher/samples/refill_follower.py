"""What one consumer of samples has, misses and was told to be lost, of every stream that it follows."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable

from fedmon.common.ids import NodeId
from fedmon.common.metrics.batch import Batch
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.samples import Extent, MonitorReply
from fedmon.researcher.samples.gaps import Arrival, GapAccount
from fedmon.researcher.samples.refill_delivery import Delivery, Sink
from fedmon.researcher.samples.refill_line import MAX_BOOTS, MAX_MISSING_RANGES, Line, Want
from fedmon.researcher.samples.refill_nodes import FollowedNode, FollowedNodes
from fedmon.researcher.samples.refill_start import Resume, Since, Start, open_line

logger = logging.getLogger(__name__)

GRACE_S = 1.0
"""A node tells of a sample on one way and sends it on another: this long the sample itself may be under way."""
TOO_OLD = "the node no longer keeps them"
TOO_MANY_GAPS = "more gaps than are kept track of"


class Follower:
    """Follows every stream of some nodes for one consumer; belongs to the thread of the inbox.

    Live batches go to the sink at once, or in order; pulled ones are marked late. What finds no room is missing, and
    pulled when there is room.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        nodes: frozenset[NodeId] | None,
        ordered: bool,
        start: Start | None,
        inquire: Callable[[NodeId], None],
    ) -> None:
        self._chosen, self._start, self._inquire = nodes, start, inquire
        self._delivery = Delivery(sink, ordered=ordered)
        self._nodes = FollowedNodes()
        self._later: deque[tuple[float, NodeId, str, int, int]] = deque()
        self.wanting: dict[NodeId, None] = {}
        self.repeated = self.refilled = self.outdated = 0

    @property
    def losses(self) -> Counter[str]:
        """How many samples will not come, by reason."""
        return self._delivery.losses

    @property
    def pending(self) -> int:
        """How many samples are known to exist and were neither handed on nor given up."""
        return self._nodes.pending + self._delivery.held_samples

    def newest_boot(self, node_id: NodeId) -> int:
        """Return the newest boot heard of, -1 when none was."""
        node = self._nodes.get(node_id)
        return -1 if node is None else node.newest_boot

    # --- what comes in ------------------------------------------------------------------------------------------------

    def heard(self, batch: Batch, size_bytes: int) -> None:
        """Take a live batch."""
        node_id = NodeId(batch.node_id)
        if self._chosen is not None and node_id not in self._chosen:
            return
        node = self._nodes.make(node_id)
        line = node.lines.get(batch.stream) or self._line(node_id, node, batch.stream)
        account = line.accounts.get(batch.boot) or self._boot(node_id, node, line, batch)
        if account is None:
            self.outdated += len(batch.t)
            return
        if not self._delivery.accepts(line, batch, size_bytes):
            account.exists(batch.last_seq + 1)
        else:
            for offset, count, arrival in account.arrived(batch.seq, len(batch.t)):
                if arrival is Arrival.REPEATED:
                    self.repeated += count
                else:
                    self._delivery.take(line, batch, offset, count, size_bytes=size_bytes, late=arrival is Arrival.LATE)
            if self._delivery.ordered:
                self._delivery.flush(line)
        if account.missing:
            self._check_ranges(node_id, line, batch, account)
            self.wanting[node_id] = None

    @property
    def is_full(self) -> bool:
        """Whether the sink had no room; nothing is wanted until it has again."""
        return self._delivery.full

    def pulled(self, batch: Batch, size_bytes: int) -> bool:
        """Take samples that were asked for again, as far as this consumer misses them; tell if there was room."""
        found = self._nodes.account(batch.node_id, batch.stream, batch.boot)
        if found is None or not self._delivery.accepts(found[0], batch, size_bytes):
            return found is None
        line, account = found
        for offset, count in account.refilled(batch.seq, len(batch.t)):
            self.refilled += count
            self._delivery.take(line, batch, offset, count, size_bytes=size_bytes, late=True)
        self._delivery.flush(line)
        return True

    def answered(self, reply: Reply, now: float) -> None:
        """Take what a node says that it keeps, or that it refuses to."""
        node_id = NodeId(reply.node_id)
        if self._chosen is not None and node_id not in self._chosen:
            return
        node = self._nodes.make(node_id)
        kept: dict[str, list[Extent]] = {}
        if isinstance(reply, MonitorReply) and reply.success:
            for extent in sorted(reply.extents, key=lambda extent: extent.boot):
                kept.setdefault(extent.stream, []).append(extent)
                node.newest_boot = max(node.newest_boot, extent.boot)
            for stream, extents in kept.items():
                self._keeps(node_id, node, stream, extents, now)
            if node.streams is None and kept:
                node.streams, node.begun_at = frozenset(reply.streams) | frozenset(kept), node.newest_boot
            if not kept and (reply.reason or node.streams is not None):
                return  # its recording is being opened: what it holds is told when the lease is renewed
        node.answered = True
        for line in node.lines.values():
            line.opened = line.opened or line.search is None
            line.closed_below = node.newest_boot
            self._delivery.flush(line)
            if not self._delivery.ordered:
                line.forget_done()

    def gone(self, want: Want, reason: str) -> None:
        """Give up samples that the node does not have."""
        found = self._nodes.account(want.node_id, want.stream, want.boot)
        if found is not None:
            line, account = found
            self._give_up(want.node_id, want.stream, want.boot, account, want.first_seq, want.last_seq + 1, reason)
            self._delivery.flush(line)

    def cannot(self, node_id: NodeId, reason: str) -> None:
        """Give up whatever is missing of a node that sends nothing again."""
        node = self._nodes.get(node_id)
        for stream, line in node.lines.items() if node is not None else ():
            line.search, line.opened = None, True
            for boot, account in line.accounts.items():
                self._give_up(node_id, stream, boot, account, 0, account.next, reason)
            self._delivery.flush(line)

    def probed(self, want: Want, t: float | None) -> None:
        """Take the time of a sample that was asked for to find the beginning."""
        line = self._nodes.line(want.node_id, want.stream)
        search = None if line is None else line.search
        if line is None or search is None or (search.boot, search.middle) != (want.boot, want.first_seq):
            return
        if search.told(t):
            line.search, line.opened = None, True
            line.back(search.boot, begin=search.low, end=search.end)
            self._delivery.flush(line)

    # --- what is asked -----------------------------------------------------------------------------------------------

    def want(self, node_id: NodeId) -> Want | None:
        """Return what to pull of a node next, null for nothing, or for nothing at the moment."""
        node = self._nodes.get(node_id)
        if self._delivery.full or node is None:
            return None
        for stream, line in list(node.lines.items()):
            want = line.want(node_id, stream)
            if want is not None:
                # Behind the others, so that a stream that cannot be had just now holds up none of them.
                node.lines[stream] = node.lines.pop(stream)
                return want
        self.wanting.pop(node_id, None)
        return None

    def tick(self, now: float) -> None:
        """Do what time and room allow."""
        while self._later and self._later[0][0] <= now:
            _, node_id, stream, boot, end = self._later.popleft()
            found = self._nodes.account(node_id, stream, boot)
            if found is not None and end > found[1].next:
                found[1].exists(end)
                self.wanting[node_id] = None
        if self._delivery.full and self._delivery.sink.has_room():
            self._delivery.full = False
            for node_id, line in self._nodes.lines():
                self._delivery.flush(line)
                if line.missing() or line.search:
                    self.wanting[node_id] = None

    def due_at(self) -> float | None:
        """Return when `tick` is to be called next, on the monotonic clock."""
        return self._later[0][0] if self._later else None

    # -----------------------------------------------------------------------------------------------------------------

    def _line(self, node_id: NodeId, node: FollowedNode, stream: str) -> Line:
        start = self._start(node_id, stream) if self._start is not None else None
        line = Line(opened=not isinstance(start, Since))
        if isinstance(start, Resume):
            line.add(start.boot, begin=start.seq)
            line.done = start.boot
            node.newest_boot = max(node.newest_boot, start.boot)
        elif start is not None and node.answered:
            self._inquire(node_id)  # it is new since the node told what it keeps
        for forgotten in self._nodes.add(node_id, stream, line):
            self._delivery.forget(forgotten)
        return line

    def _boot(self, node_id: NodeId, node: FollowedNode, line: Line, batch: Batch) -> GapAccount | None:
        """Begin with a boot at the first batch heard of it; null when it cannot be taken in order any more."""
        boot, first = batch.boot, not line.accounts and not line.done
        sought = line.search is not None and line.search.boot == batch.boot
        if boot < line.done or (line.accounts and boot < line.current):
            if self._delivery.ordered:
                if not self.outdated:
                    logger.warning(
                        "samples of node %s, boot %d, came after those of a later boot and are left out; if the folder "
                        "of that node was replaced, begin anew", node_id, boot,
                    )  # fmt: skip
                return None
            return line.add(boot, begin=batch.seq)
        if len(line.accounts) >= MAX_BOOTS:
            self._drop_boot(node_id, batch.stream, line)
        if boot > node.newest_boot:
            if node.newest_boot >= 0:
                self._inquire(node_id)
            node.newest_boot = boot
        # A stream that was not there when we began is wanted from its beginning, and so is a later boot.
        is_new = node.streams is not None and batch.stream not in node.streams and self._start is None
        return line.add(boot, begin=batch.seq if sought or (first and not is_new) else 0)

    def _keeps(self, node_id: NodeId, node: FollowedNode, stream: str, extents: list[Extent], now: float) -> None:
        line = node.lines.get(stream)
        if line is None:
            if self._start is None and (node.streams is None or stream in node.streams):
                return  # not heard of yet, and there before we came: it begins with the first sample heard
            line = self._line(node_id, node, stream)
        start = self._start(node_id, stream) if self._start is not None else None
        if isinstance(start, Since) and not (line.opened and line.accounts):
            if line.search is None:
                open_line(line, extents, start.t)
        else:
            for extent in extents:
                if line.accounts or start is not None or extent.boot >= node.begun_at:
                    self._extent(node_id, node, line, extent, now)
        self.wanting[node_id] = None

    def _extent(self, node_id: NodeId, node: FollowedNode, line: Line, extent: Extent, now: float) -> None:
        if extent.boot < line.done or (line.accounts and extent.boot < line.current):
            return
        if extent.boot not in line.accounts and len(line.accounts) >= MAX_BOOTS:
            self._drop_boot(node_id, extent.stream, line)
        account = line.accounts.get(extent.boot) or line.add(extent.boot, begin=0)
        if extent.boot < node.newest_boot:
            account.exists(extent.last_seq + 1)
        elif extent.last_seq >= account.next:
            self._later.append((now + GRACE_S, node_id, extent.stream, extent.boot, extent.last_seq + 1))
        account.exists(extent.oldest_seq)
        self._give_up(node_id, extent.stream, extent.boot, account, 0, extent.oldest_seq, TOO_OLD)

    def _drop_boot(self, node_id: NodeId, stream: str, line: Line) -> None:
        boot = line.current
        account = line.accounts[boot]
        self._give_up(node_id, stream, boot, account, 0, account.next, TOO_MANY_GAPS)
        self._delivery.flush(line)
        line.accounts.pop(boot, None)
        line.done = max(line.done, boot + 1)

    def _check_ranges(self, node_id: NodeId, line: Line, batch: Batch, account: GapAccount) -> None:
        while len(account.missing) > MAX_MISSING_RANGES:
            low, high = account.missing[0]
            self._give_up(node_id, batch.stream, batch.boot, account, low, high, TOO_MANY_GAPS)
            self._delivery.flush(line)

    def _give_up(
        self, node_id: str, stream: str, boot: int, account: GapAccount, first: int, end: int, reason: str
    ) -> None:
        want = Want(node_id=node_id, boot=boot, stream=stream, first_seq=first, last_seq=end - 1)
        self._delivery.give_up(account, want, reason)
