"""Requests to nodes: sent, matched with their replies, repeated to silent nodes, until every node expected answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import msgspec

from fedmon.common.clock import Deadline, seconds_from_now
from fedmon.common.errors import InvalidInputError, NotConnectedError
from fedmon.common.ids import NodeId, checked_id, new_id
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import NEVER_BROADCAST, STATE_CHANGING, DatasetsReply, Ping
from fedmon.common.wire.runs import JobsReply
from fedmon.researcher.asking.match import CLOSED, READS, RESTART_S, Answers, NodeAnswer, Pending, PendingRequest
from fedmon.researcher.asking.outcome import Circumstances, Outcomes, outcomes_of
from fedmon.researcher.roster import CAP_S, QUIET_S, Moment, Roster
from fedmon.researcher.session.connection import Connection, Dialect

R = TypeVar("R", bound=Reply)
Nodelist = Collection[str] | None

FIRST_RETRY_S = 0.25
"""Time before silent nodes are asked again the first time; with more than 1,000 nodes it grows with their number."""
BROADCAST_ABOVE = 200
"""More silent nodes than this are asked again by one broadcast: as many single messages slow a busy broker down."""
STREAMING_S = 0.1
"""While answers follow each other as closely as this, no node is asked again: a thousand take longer than one."""
DISCOVERY_S = 1.0
EXPIRES_AFTER_S = 2 * 24 * 3600.0
"""A node's clock may be wrong by hours; an answer after its caller has gone does no harm."""
PAGED = DatasetsReply | JobsReply
MAX_PAGES = 1_000


def node_ids(nodes: Nodelist) -> list[NodeId] | None:
    """Return the ids of the nodes named, each once; None for all nodes.

    Raises InvalidInputError for a bare text and InvalidIdError for an unusable id.
    """
    if nodes is None:
        return None
    if isinstance(nodes, str):
        raise InvalidInputError(f"nodes is {nodes!r}: give a list of node ids, such as [{nodes!r}]")
    return [NodeId(checked_id(node, what="node id")) for node in dict.fromkeys(nodes)]


def checked_tags(tags: Sequence[str], *, what: str = "tags") -> list[str]:
    """Return tags as a list. Raises InvalidInputError for a bare text, none, too many, and tags that are too long."""
    if isinstance(tags, str) or not isinstance(tags, list | tuple):
        raise InvalidInputError(f"{what} is {tags!r}: give a list or tuple of {what}, such as [{str(tags)!r}]")
    if not all(isinstance(tag, str) and 0 < len(tag) <= 256 for tag in tags) or not 0 < len(tags) <= 64:
        raise InvalidInputError(f"{what}: give 1 to 64 texts of 1 to 256 characters each")
    return list(tags)


def checked_timeout(timeout_s: float, *, name: str = "timeout_s") -> float:
    """Return a timeout that can be waited for.

    Raises InvalidInputError, with the ``name`` of the argument, when it is not a positive, finite number of seconds.
    """
    if not 0 < timeout_s < threading.TIMEOUT_MAX:
        raise InvalidInputError(f"{name} is {timeout_s!r}: give a positive number of seconds")
    return float(timeout_s)


class Asker:
    """Sends requests to nodes and waits for their replies. Safe from any thread; each call waits in its own.

    ``timeout_s`` is the timeout of calls that name none; ``keep`` gets the replies of a call that failed.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        dialect: Dialect,
        pending: Pending,
        roster: Roster,
        timeout_s: float,
        keep: Callable[[Reply], object],
    ) -> None:
        self.connection, self.dialect, self.pending, self.roster = connection, dialect, pending, roster
        self.timeout_s = timeout_s
        self._sending = threading.Lock()
        self._keep = keep

    def circumstances(self) -> Circumstances:
        """Return the state of connection and roster, which explains an empty result."""
        return Circumstances(
            broker=self.connection.place,
            researcher_id=self.dialect.researcher_id,
            instance=self.dialect.instance,
            connected=self.connection.is_connected,
            settled=self.roster.settled.is_set(),
            last_error=self.connection.problem,
        )

    def wait_settled(self) -> None:
        """Wait until the roster is settled, about 2 s at most; returns at once when there is no connection.

        Raises NotConnectedError when the federation is closed, and while connections keep getting lost.
        """
        if self.connection.is_connected:
            self.roster.settled.wait(CAP_S + QUIET_S)
        self.check_open()
        if not self.connection.is_connected and self.connection.flapping:
            raise self.connection.lost_error()

    def check_open(self) -> None:
        """Raise NotConnectedError when the federation was closed."""
        if self.pending.stopped:
            raise NotConnectedError(CLOSED)

    # --- calls -------------------------------------------------------------------------------------------------------

    def ask(
        self,
        request_kind: type[Request],
        kind: type[R],
        *,
        nodes: Sequence[NodeId] | None,
        timeout_s: float | None,
        **fields: Any,
    ) -> Outcomes[R]:
        """Ask these nodes, or all, and return one outcome for each, with all of its pages; see `answers`."""
        timeout_s = self.timeout_s if timeout_s is None else checked_timeout(timeout_s)
        deadline, request = Deadline(timeout_s), self.request(request_kind, **fields)
        asked = self.answers(request, nodes, timeout_s=timeout_s)
        answers = dict(asked.answers)
        for _ in range(MAX_PAGES):
            wanted = [
                (node_id, answer.reply.next_offset)
                for node_id, answer in answers.items()
                if isinstance(answer.reply, PAGED) and answer.reply.next_offset is not None
            ]
            if not wanted:
                break
            for offset in {offset for _, offset in wanted}:
                page_request = self.request(request_kind, offset=offset, **fields)
                node_ids = [node_id for node_id, wanted_offset in wanted if wanted_offset == offset]
                pages = self.answers(page_request, node_ids, timeout_s=max(0.001, deadline.left_s())).answers
                for node_id in node_ids:
                    # The first pages of a node that falls silent would be a wrong list.
                    before = answers.pop(node_id)
                    if node_id in pages:
                        answers[node_id] = _joined(before, pages[node_id])
        silent = asked.silent | (asked.answers.keys() - answers.keys())
        asked = msgspec.structs.replace(asked, answers=answers, silent=silent, elapsed_s=deadline.elapsed_s())
        return Outcomes(
            str(request.__struct_config__.tag),
            outcomes_of(asked, kind, self.roster, to_all=nodes is None),
            circumstances=self.circumstances(),
            elapsed_s=asked.elapsed_s,
            named=nodes is not None,
        )

    def answers(self, request: Request, nodes: Sequence[NodeId] | None, *, timeout_s: float) -> Answers:
        """Ask and wait until every node expected has answered, or the time is over.

        Raises NotConnectedError when nothing could be sent at all, and when no answer came to a question because
        connections keep getting lost.
        """
        if nodes is not None and not nodes:
            return Answers(answers={}, silent=frozenset(), elapsed_s=0.0, times=0)
        waiting = RequestRound(self, request, nodes)
        self.pending.open(waiting)
        taken = False
        try:
            waiting.run(timeout_s)
            taken = True
        finally:
            answers = self.pending.close(waiting)
            for answer in () if taken else answers.values():
                self._keep(answer.reply)
        if not answers and self.connection.flapping and not isinstance(request, STATE_CHANGING):
            raise self.connection.lost_error()
        answers |= waiting.unreadable_only()
        return Answers(
            answers=answers,
            silent=frozenset(waiting.expected if nodes is None else nodes) - answers.keys(),
            elapsed_s=time.monotonic() - waiting.started,
            times=waiting.times,
        )

    # --- sending -----------------------------------------------------------------------------------------------------

    def request(self, kind: type[Request], *, sequence: int | None = None, **fields: Any) -> Request:
        """Make a request with its envelope; ``sequence`` None draws the next number."""
        return kind(
            researcher_id=self.dialect.researcher_id,
            instance=self.dialect.instance,
            id=new_id(),
            session=self.pending.session,
            sequence=self.pending.next_sequence() if sequence is None else sequence,
            expires=seconds_from_now(EXPIRES_AFTER_S),
            **fields,
        )

    def is_never_broadcast(self, request: Request) -> bool:
        """Tell whether each node is sent its own copy, because batch jobs hear broadcasts."""
        return self.dialect.announced and isinstance(request, NEVER_BROADCAST)

    def send(self, request: Request, nodes: Sequence[NodeId] | None) -> bool:
        """Send a request to the nodes named, each on its own topic, or to all; False when nothing went out.

        The messages of one request follow each other without those of another thread in between. Raises
        InvalidMessageError, before anything is sent, for a request that does not fit into a message.
        """
        payloads = self.dialect.encode(request)
        if nodes is None and self.is_never_broadcast(request):
            nodes = sorted(self.roster.askable())
        with self._sending:
            sent = [
                self.connection.publish(topic, payload, qos=qos)
                for topic, payload, qos in self.dialect.addressed(request, payloads, nodes)
            ]
        # Without a node to send it to, only the nodes are missing, not the connection.
        return any(sent) or (not sent and self.connection.is_connected)

    def tell(
        self,
        request: Request,
        nodes: Sequence[NodeId] | None,
        *,
        on_answer: Callable[[Reply], object] = lambda _reply: None,
    ) -> None:
        """Send a request without waiting; replies within a minute go to ``on_answer``, on the inbox's thread."""
        self.pending.tell(PendingRequest(request, nodes, on_answer=on_answer))
        self.send(request, nodes)


class RequestRound(PendingRequest):
    """One request to nodes, or all, that a thread waits for: the nodes ``expected``, and the ``times`` it was sent.

    One that never ``repeats`` is sent once, whatever happens to it.
    """

    def __init__(
        self,
        asker: Asker,
        request: Request,
        nodes: Sequence[NodeId] | None,
        *,
        on_answer: Callable[[Reply], object] | None = None,
        repeats: bool = True,
    ) -> None:
        super().__init__(request, nodes, on_answer=on_answer)
        self._asker, self._repeats = asker, repeats
        self._one_by_one = nodes is None and asker.is_never_broadcast(request)
        # Where nodes do not announce themselves, only a ping to all finds them, so that it takes its whole time.
        self._searches = nodes is None and not asker.dialect.announced and isinstance(request, Ping)
        self._discovery = Deadline(DISCOVERY_S)
        self.expected: set[NodeId] = set()
        self._discovers = False
        self.times = 0
        self._expect_more()
        self._gap_s = FIRST_RETRY_S * max(1.0, len(self.expected) / 1000)
        self._retry = Deadline(self._gap_s)

    def run(self, timeout_s: float) -> None:
        """Send, and wait until every node expected has answered or the time is over.

        Raises NotConnectedError when nothing could be sent, and when the federation is closed, and InvalidMessageError
        for a request that does not fit into a message.
        """
        deadline = Deadline(timeout_s)
        self.send()
        while (pause_s := self.step()) is not None and not deadline.passed():
            self._asker.check_open()
            self._wait(min(pause_s, deadline.left_s()))
        if not self.times:
            raise self._asker.connection.lost_error()
        if deadline.passed() and timeout_s >= DISCOVERY_S:
            for node_id in self._missing - self.unreadable_only().keys():
                self._asker.roster.silent(node_id)

    def send(self) -> bool:
        """Send the request; return whether anything went out. Raises InvalidMessageError."""
        self.times += self._asker.send(self.request, self.nodes)
        return self.times > 0

    def step(self) -> float | None:
        """Ask silent nodes again if that is due; return in how many seconds at the latest to do so again.

        None when every node expected has answered, or has been offline for too long.
        """
        if self._discovers or self._is_discovering():
            self._expect_more()
        self._ask_again()
        self._discovers = self._is_discovering()
        wanted = self.expected if self.nodes is None or not self._discovers else self.expected | set(self.nodes)
        with self.changed:
            now = time.monotonic()
            given_up = {node_id for node_id, at in self._gone_at.items() if now - at >= RESTART_S}
            self._missing = wanted - self._answered - given_up
            self._may_end = not self._discovers or self.nodes is not None
            if not self._missing and not self._discovers:
                return None
        return min(self._retry.left_s(), self._discovery.left_s()) if self._discovers else self._retry.left_s()

    def _wait(self, timeout_s: float) -> None:
        """Wait until all expected nodes have answered, one is to be asked or given up, or the time is over."""
        with self.changed:
            now = time.monotonic()
            left_s = [at + RESTART_S - now for node_id, at in self._gone_at.items() if node_id in self._missing]
            self.changed.wait_for(
                lambda: self._woken or self._urged or self._all_again or (self._may_end and not self._missing),
                timeout=max(0.0, min([timeout_s, *left_s])),
            )
            self._woken = False

    def _is_discovering(self) -> bool:
        """Tell whether a node that we do not expect may still turn up."""
        if self._discovery.passed():
            return False
        if self.nodes is not None:
            return any(node not in self.expected and self.is_owed_by(node) for node in self.nodes)
        return self._searches or not self.expected or not self._asker.roster.settled.is_set()

    def _expect_more(self) -> None:
        there = self._asker.roster.expected(Moment.now())
        self.expected |= there if self.nodes is None else there & set(self.nodes)

    def _ask_again(self) -> None:
        with self.changed:
            urged, all_again = self._urged - self._answered, self._all_again
            self._urged, self._all_again = set(), False
            silent, quiet_s = self._missing & self.expected, time.monotonic() - self._last_answer_at
        if not self.times or (all_again and self._repeats):
            self.send()
        elif self._retry.passed() and quiet_s < STREAMING_S:
            self._retry = Deadline(STREAMING_S - quiet_s)
        elif self._retry.passed():
            urged |= silent
        if self._retry.passed():
            self._gap_s *= 2
            self._retry = Deadline(self._gap_s)
        wanted = urged if self.nodes is None else urged & set(self.nodes)
        if self._one_by_one:
            wanted &= self._asker.roster.askable()
        if wanted and self._repeats:
            # A broadcast makes the others answer again as well, so that only reads are broadcast.
            is_read = isinstance(self.request, READS) and not isinstance(self.request, NEVER_BROADCAST)
            is_broadcast = self.nodes is None and is_read and len(wanted) > BROADCAST_ABOVE
            self.times += self._asker.send(self.request, None if is_broadcast else sorted(wanted))


def _joined(before: NodeAnswer, page: NodeAnswer) -> NodeAnswer:
    """Append a page; a node whose pages do not advance is not asked for more."""
    first, next_ = before.reply, page.reply
    if not isinstance(first, PAGED) or not isinstance(next_, PAGED):
        return page
    listed = "jobs" if isinstance(first, JobsReply) else "datasets"
    further = getattr(next_, listed)
    advances = bool(further) and (next_.next_offset is None or next_.next_offset > (first.next_offset or 0))
    reply = msgspec.structs.replace(
        first,
        **{listed: [*getattr(first, listed), *further]},
        count=next_.count,
        next_offset=next_.next_offset if advances else None,
    )
    return NodeAnswer(reply=reply, elapsed_s=before.elapsed_s + page.elapsed_s)
