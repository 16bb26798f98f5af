"""Missed samples are asked for again: one page at a time of each node, for all consumers of this process together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence, Sized

import msgspec

from fedmon.common.backoff import Backoff
from fedmon.common.ids import NodeId
from fedmon.common.metrics.sample import Batch
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Error, ErrorCode, Monitor
from fedmon.common.wire.samples import SamplesReply
from fedmon.researcher.asking.match import Pending, PendingRequest
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.samples.follower import TOO_OLD, MissingSamples, StreamFollower

logger = logging.getLogger(__name__)

NODES_AT_ONCE = 16
REPLY_WITHIN_S = 5.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
MAX_TRIES = 6
FEW_PASSED = 1_000
"""A page without a sample passes over more than so many, or is the last one."""
NO_RECORDING = "this node keeps no recording"
NO_ROOM = "there is no room for them yet"
NOT_KEPT = "the node does not have them, or lets nothing of them leave"
_TRY_AGAIN = frozenset({ErrorCode.BUSY, ErrorCode.FAILED, ErrorCode.EXPIRED})
BYTES_A_COLUMN = 220
"""A list, its name as an object, and its place in a dictionary: CPython 3.11 to 3.13 on 64 bits, measured."""
BYTES_A_VALUE = 40
"""A float and its place in a list that may have grown by an eighth."""


def memory_bytes(*, samples: int, columns: Sized, payload_bytes: int) -> int:
    """Return about how much memory a decoded batch takes; its text weighs as much as its names and reasons at least."""
    return 400 + payload_bytes + len(columns) * BYTES_A_COLUMN + (len(columns) + 2) * samples * BYTES_A_VALUE


class _Asked(msgspec.Struct, kw_only=True):
    want: MissingSamples
    follower: StreamFollower
    waiting: PendingRequest
    deadline: float
    heard: bool = False


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

    def __init__(self, asker: Asker, pending: Pending, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._asker, self._pending, self._clock = asker, pending, clock
        self._open: dict[NodeId, _Asked] = {}
        self._pauses: dict[NodeId, _Pause] = {}
        self._asked_at: dict[NodeId, float] = {}
        self._followers: Sequence[StreamFollower] = ()
        self._linked = False
        self.due_at: float | None = None

    def link(self, *, up: bool) -> None:
        """Note that the connection came up or was lost: open requests are repeated once it is there."""
        self._linked = up
        self._pauses.clear()
        for node_id in list(self._open):
            self._forget(node_id)

    def node_came_up(self, node_id: NodeId) -> None:
        """Note that a node came up: it does not know of an open request."""
        self._pauses.pop(node_id, None)
        self._forget(node_id)

    def node_heard(self, node_id: NodeId) -> None:
        """Note a sign of life of a node."""
        asked = self._open.get(node_id)
        if asked is not None:
            asked.heard = True

    # --- asking ------------------------------------------------------------------------------------------------------

    def look(self, followers: Sequence[StreamFollower], now: float) -> None:
        """Ask for missing samples, as far as the bounds allow."""
        self._followers = followers
        if not followers:
            for node_id in list(self._open):
                self._forget(node_id)
            self.due_at = None
            return
        for node_id, asked in list(self._open.items()):
            if now >= asked.deadline:
                self._forget(node_id)
                self._failed(asked.want, "it did not answer", counts=asked.heard)
        paused = {node_id: pause.until for node_id, pause in self._pauses.items() if pause.until > now}
        waiting = (
            {node_id for follower in followers for node_id in follower.wanting} - paused.keys() - self._open.keys()
        )
        for node_id in sorted(waiting, key=lambda node_id: self._asked_at.get(node_id, 0.0)):
            if len(self._open) >= NODES_AT_ONCE or not self._linked:
                break
            self._ask(node_id, now)
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
            )
            if not self._asker.dialect.encode(request):
                self._cannot(node_id, "this wire has no word for it")
                return
            self._asked_at[node_id] = now
            waiting = self._asker.tell(request, [node_id], on_answer=self._on_answer)
            self._open[node_id] = _Asked(want=want, follower=follower, waiting=waiting, deadline=now + REPLY_WITHIN_S)
            return

    # --- answers -----------------------------------------------------------------------------------------------------

    def _on_answer(self, reply: Reply) -> None:
        node_id = NodeId(reply.node_id)
        asked = self._open.get(node_id)
        if asked is None or asked.waiting.id != reply.id:
            return
        if isinstance(reply, SamplesReply):
            # There are very many of these, and one that comes twice does no harm.
            del self._open[node_id]
            self._pending.forget(asked.waiting)
            self._page(asked, reply)
            return
        self._forget(node_id)
        if isinstance(reply, Error) and reply.code in _TRY_AGAIN:
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
        had_room = self._deliver(asked.follower, batches)
        if want.probe:
            asked.follower.probed(want, batches[0].t[0] if batches else None)
            self._pauses.pop(node_id, None)
            return
        if not (had_room or asked.follower.is_full):  # a full consumer asks again once there is room
            self._failed(want, NO_ROOM, counts=False)
            return
        end = want.last_seq + 1 if reply.next_seq is None else min(reply.next_seq, want.last_seq + 1)
        sent_to = max((batch.last_seq + 1 for batch in batches), default=want.first_seq)
        if want.boot >= max((one.newest_boot(node_id) for one in self._followers), default=-1):
            # Of the running boot the node still writes: only samples before a written one are gone.
            written_to = (reply.last_seq if reply.last_seq is not None else -1) + 1
            end = min(end, max(written_to, sent_to))
        if end <= want.first_seq:
            self._failed(want, NOT_KEPT, counts=True)
            return
        if batches or reply.next_seq is None or end - want.first_seq > FEW_PASSED:
            self._pauses.pop(node_id, None)
        else:  # a node that passes over sample after sample must not keep us busy
            self._failed(want, NOT_KEPT, counts=False)
        too_old = reply.oldest_seq is None or reply.oldest_seq > want.first_seq
        self._gone(want, TOO_OLD if too_old else NOT_KEPT, _left_out(want.first_seq, end, batches))

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
            if want.probe:
                for follower in self._followers:
                    follower.probed(want, None)
            else:
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

    def _forget(self, node_id: NodeId) -> None:
        asked = self._open.pop(node_id, None)
        if asked is not None:
            self._pending.close(asked.waiting, taken=True)


def _left_out(first: int, end: int, batches: Iterable[Batch]) -> list[tuple[int, int]]:
    """Return the ranges, both ends included, from ``first`` up to ``end`` (not included) that no batch covers."""
    ranges, at = [], first
    for batch in sorted(batches, key=lambda batch: batch.seq):
        if batch.seq > at:
            ranges.append((at, min(batch.seq, end) - 1))
        at = max(at, batch.last_seq + 1)
    if at < end:
        ranges.append((at, end - 1))
    return [(low, high) for low, high in ranges if low <= high]
