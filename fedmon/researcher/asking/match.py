"""Requests that wait for replies, and the matching of replies to them."""

from __future__ import annotations

import enum
import itertools
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.wire import messages, runs, samples
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import Error, ErrorCode

REMEMBERED_REQUESTS = 1_000
TOLD_S = 60.0
"""Answers to a request that no caller waits for are taken for this long."""
SCRIPTS_NUMBERS = 2**32
"""Numbers that scripts may draw; those of `Federation` are above them."""
CLOSED = "the federation was closed while this call waited"
RESTART_S = 2.0
"""A node that went offline is still waited for this long: it may be restarting."""
UNREADABLE = "its reply could not be read"

READS = (messages.Ping, messages.ListDatasets, messages.SearchDatasets, messages.TrainingPlanStatus)
"""Requests that change nothing: asking again costs no more than time."""
NEVER_LATE = samples.MonitorReply | samples.SamplesReply | runs.JobsReply
"""These are of no use later: missing samples and jobs are asked for anew."""

REPLY_KINDS: dict[type[Request], type[Reply] | UnionType] = {
    messages.Ping: messages.Pong,
    messages.ListDatasets: messages.ListReply,
    messages.SearchDatasets: messages.SearchReply,
    messages.Approval: messages.ApprovalReply,
    messages.TrainingPlanStatus: messages.TrainingPlanStatusReply,
    messages.Monitor: samples.MonitorReply | samples.SamplesReply,
    runs.Run: runs.RunReply,
    runs.Stop: runs.StopReply,
    runs.JobStatus: runs.JobsReply,
}


class ReplyMatch(enum.Enum):
    """How a reply relates to the requests of this process."""

    MATCHED = "matched"
    REPEATED = "repeated"
    LATE = "late"
    UNKNOWN = "unknown"
    STALE = "stale"
    FORGOTTEN = "forgotten"


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of one node, and after how long it came."""

    reply: Reply
    elapsed_s: float


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to one request, the nodes that were waited for and stayed silent, and how long it took."""

    answers: Mapping[NodeId, NodeAnswer]
    silent: frozenset[NodeId]
    elapsed_s: float
    times: int


class PendingRequest:
    """One request to nodes, or all, and the replies to it. Safe from any thread.

    With ``on_answer`` replies go there and are not held here as well.
    """

    def __init__(
        self,
        request: Request,
        nodes: Sequence[NodeId] | None,
        *,
        on_answer: Callable[[Reply], object] | None = None,
    ) -> None:
        self.id, self.request, self.nodes = request.id, request, nodes
        self.changed = threading.Condition()
        self._asked = None if nodes is None else frozenset(nodes)
        self._answers: dict[NodeId, NodeAnswer] = {}
        self._answered: set[NodeId] = set()
        self._unreadable: dict[NodeId, NodeAnswer] = {}
        self._gone_at: dict[NodeId, float] = {}
        self.closed = False
        self._on_answer = on_answer
        self._kind = next((REPLY_KINDS[kind] for kind in type(request).__mro__ if kind in REPLY_KINDS), Reply)
        self.started = time.monotonic()
        self._last_answer_at = float("-inf")
        self._missing: set[NodeId] = set()
        self._may_end = False
        self._urged: set[NodeId] = set()
        self._all_again = self._woken = False

    def offer(self, reply: Reply) -> ReplyMatch:
        """Take a reply that carries this request's id, if it answers it; one thread does so."""
        node_id = NodeId(reply.node_id)
        asked = self.request
        if self._asked is not None and node_id not in self._asked:
            return ReplyMatch.STALE
        if (reply.session, reply.sequence, reply.researcher_id) != (
            asked.session,
            asked.sequence,
            asked.researcher_id,
        ) or not isinstance(reply, self._kind | Error):
            self.unreadable(node_id, ErrorCode.FAILED, "its session, sequence or kind is not that of the request")
            return ReplyMatch.STALE
        with self.changed:
            if node_id in self._answered:
                return ReplyMatch.REPEATED
            take = None if self.closed else self._on_answer
        # Before the node counts as answered: a caller that sees it so looks for the reply at once.
        if take is not None:
            take(reply)
        with self.changed:
            self._answered.add(node_id)
            if self.closed and take is None:
                return ReplyMatch.LATE
            self._last_answer_at = time.monotonic()
            if take is None:
                self._answers[node_id] = NodeAnswer(reply=reply, elapsed_s=self._last_answer_at - self.started)
            self._missing.discard(node_id)
            if not self._missing and self._may_end:
                self.changed.notify_all()
        return ReplyMatch.MATCHED

    def unreadable(self, node_id: NodeId, code: ErrorCode, reason: str) -> None:
        """Note a reply that cannot be read; the node is still waited for.

        A node of another version is waited for 2 s more: it will hardly answer in ours.
        """
        now = time.monotonic()
        error = Error(code=code, reason=f"{UNREADABLE}: {reason}", **echo_of(self.request, node_id))
        with self.changed:
            self._unreadable[node_id] = NodeAnswer(reply=error, elapsed_s=now - self.started)
            if code is ErrorCode.VERSION:
                self._give_up_on(node_id, now)

    def unreadable_only(self) -> dict[NodeId, NodeAnswer]:
        """Return an error for each node whose replies could not be read, none of them."""
        with self.changed:
            return {node_id: error for node_id, error in self._unreadable.items() if node_id not in self._answered}

    def node_changed(self, node_id: NodeId, *, offline: bool, came_up: bool) -> None:
        """Hear that a node went offline or is back; one that came up is asked at once."""
        with self.changed:
            if self.closed or node_id in self._answered:
                return
            if offline:
                self._give_up_on(node_id, time.monotonic())
                return
            self._gone_at.pop(node_id, None)
            if came_up:
                self._urged.add(node_id)
                self.changed.notify_all()

    def _give_up_on(self, node_id: NodeId, now: float) -> None:
        self._gone_at.setdefault(node_id, now)
        if node_id in self._missing:
            self._woken = True
            self.changed.notify_all()

    def wake(self, *, ask_all_again: bool = False) -> None:
        """Wake the caller; ``ask_all_again`` has it send the request anew: the connection came back."""
        with self.changed:
            self._woken = True
            self._all_again |= ask_all_again
            self.changed.notify_all()

    def is_owed_by(self, node_id: NodeId) -> bool:
        """Tell whether this node was asked and has not answered."""
        with self.changed:
            return node_id not in self._answered and (self._asked is None or node_id in self._asked)

    @property
    def is_answered(self) -> bool:
        """Whether it named its nodes, and each of them has answered."""
        return self._asked is not None and self._asked <= self._answered

    def end(self) -> dict[NodeId, NodeAnswer]:
        """End the wait and return the answers; only which nodes answered is remembered."""
        with self.changed:
            self.closed = True
            answers, self._answers = self._answers, {}
            return answers


def echo_of(request: Request, node_id: str) -> dict[str, Any]:
    """Return the fields of a node's reply that say which request it answers."""
    return {
        "node_id": node_id,
        "researcher_id": request.researcher_id,
        "id": request.id,
        "session": request.session,
        "sequence": request.sequence,
    }


class Pending:
    """All requests of this process that wait, and the last ones that did. Safe from any thread."""

    def __init__(self, session: str, *, first_sequence: int = 0) -> None:
        self.session = session
        self._lock = threading.Lock()
        self._open: dict[str, PendingRequest] = {}
        self._closed: OrderedDict[str, PendingRequest] = OrderedDict()
        self._told: OrderedDict[str, PendingRequest] = OrderedDict()
        self._forgotten: deque[str] = deque(maxlen=REMEMBERED_REQUESTS)
        self.stopped = False
        self._of_scripts = itertools.count(first_sequence)
        self._ours = itertools.count(first_sequence + SCRIPTS_NUMBERS)

    def next_sequence(self, *, of_script: bool = False) -> int:
        """Return the next number of this session; those of a script's own messages have no gaps."""
        return next(self._of_scripts if of_script else self._ours)

    def open(self, waiting: PendingRequest) -> None:
        """Begin to take replies for a request; do so before it is sent."""
        with self._lock:
            self._open[waiting.id] = waiting

    def stop(self) -> None:
        """End every wait with an error: the federation is closed."""
        self.stopped = True
        for waiting in self.all_open():
            waiting.wake()

    def close(self, waiting: PendingRequest) -> dict[NodeId, NodeAnswer]:
        """End a wait and return the answers; later ones are late."""
        answers = waiting.end()
        with self._lock:
            self._open.pop(waiting.id, None)
            self._closed[waiting.id] = waiting
            while len(self._closed) > REMEMBERED_REQUESTS:
                self._closed.popitem(last=False)
        return answers

    def tell(self, told: PendingRequest) -> None:
        """Begin to take replies for a request that no caller waits for, one of each node, for a minute at most."""
        with self._lock:
            self._told[told.id] = told
            while next(iter(self._told.values())).started < told.started - TOLD_S:
                self._forgotten.append(self._told.popitem(last=False)[0])

    def match(self, reply: Reply) -> ReplyMatch:
        """Give a reply to the request it belongs to."""
        with self._lock:
            waiting = self._open.get(reply.id) or self._told.get(reply.id) or self._closed.get(reply.id)
            if waiting is None:
                forgotten = reply.id in self._forgotten or isinstance(reply, NEVER_LATE)
                return ReplyMatch.FORGOTTEN if forgotten else ReplyMatch.UNKNOWN
        verdict = waiting.offer(reply)
        with self._lock:
            if waiting.is_answered and self._told.pop(reply.id, None) is not None:
                self._forgotten.append(reply.id)
        return verdict

    def find(self, wanted: Callable[[PendingRequest], bool]) -> PendingRequest | None:
        """Return the newest request, open or remembered, that is wanted."""
        with self._lock:
            newest_first = [each for one in (self._open, self._told, self._closed) for each in reversed(one.values())]
        return next(filter(wanted, newest_first), None)

    def all_open(self) -> list[PendingRequest]:
        """Return the requests that wait now."""
        with self._lock:
            return list(self._open.values())
