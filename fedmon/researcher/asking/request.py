"""Asking nodes: send, wait for everybody expected, ask the silent ones again, and say why who did not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from fedmon.common.clock import Deadline, seconds_from_now
from fedmon.common.errors import InvalidInputError, NotConnectedError
from fedmon.common.ids import NodeId, new_id
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import NEVER_BROADCAST, STATE_CHANGING
from fedmon.researcher.asking.pending import READS, Answer, Pending, Waiting
from fedmon.researcher.roster import Instant, Roster
from fedmon.researcher.session.dialect import Dialect

FIRST_RETRY_S = 0.25
"""Time before silent nodes are asked again the first time; with more than 1,000 nodes it grows with their number."""
BROADCAST_ABOVE = 200
"""More silent nodes than this are asked again by one broadcast: as many single messages slow a busy broker down."""
STREAMING_S = 0.1
"""While answers follow each other as closely as this, nobody is asked again: a thousand take longer than one."""
DISCOVERY_S = 1.0
EXPIRES_AFTER_S = 2 * 24 * 3600.0
"""A node's clock may be wrong by hours; an answer that nobody waits for any more does no harm."""


class Line(Protocol):
    """The connection as asking needs it."""

    @property
    def is_connected(self) -> bool:
        """Tell whether messages can be sent at this moment."""

    def publish(self, topic: str, payload: bytes, *, qos: int = 0) -> bool:
        """Send a message, or return False when there is no connection."""

    @property
    def flapping(self) -> str:
        """Why the connection keeps getting lost just after it came up; empty once a connection lasts."""
        ...

    def lost_error(self) -> NotConnectedError:
        """Return the error that says why nothing can be sent now."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What came back, who was waited for in vain, and how long it took."""

    answers: Mapping[NodeId, Answer]
    silent: frozenset[NodeId]
    elapsed_s: float
    times: int


class Asker:
    """Puts requests to nodes and waits for their replies. Safe from any thread; each call waits in its own."""

    def __init__(
        self,
        line: Line,
        *,
        dialect: Dialect,
        researcher_id: str,
        instance: str,
        pending: Pending,
        roster: Roster,
        is_settled: Callable[[], bool],
        on_ended: Callable[[Waiting, list[Reply]], None],
    ) -> None:
        self.line, self.dialect, self.roster, self.is_settled = line, dialect, roster, is_settled
        self._sending = threading.Lock()
        self._pending, self._on_ended = pending, on_ended
        self._researcher_id, self._instance = researcher_id, instance

    def request(self, kind: type[Request], *, sequence: int | None = None, **fields: Any) -> Request:
        """Make a request with its envelope; ``sequence`` null draws the next number."""
        return kind(
            researcher_id=self._researcher_id,
            instance=self._instance,
            id=new_id(),
            session=self._pending.session,
            sequence=self._pending.next_sequence() if sequence is None else sequence,
            expires=seconds_from_now(EXPIRES_AFTER_S),
            **fields,
        )

    def is_never_broadcast(self, request: Request) -> bool:
        """Tell whether each node is sent its own copy, because batch jobs hear what goes to all."""
        return self.dialect.announced and isinstance(request, NEVER_BROADCAST)

    def send(self, request: Request, payloads: Sequence[bytes], nodes: Sequence[NodeId] | None) -> bool:
        """Send a request to the nodes named, each on its own topic, or to all; False when nothing went out.

        What belongs together follows each other without a request of another thread in between.
        """
        if nodes is None and self.is_never_broadcast(request):
            nodes = sorted(self.roster.askable())
        with self._sending:
            sent = [
                self.line.publish(topic, payload, qos=qos)
                for topic, payload, qos in self.dialect.addressed(request, payloads, nodes)
            ]
        # With nobody to send it to, nothing is missing but the nodes.
        return any(sent) or (not sent and self.line.is_connected)

    def send_again(
        self, request: Request, payloads: Sequence[bytes], silent: Collection[NodeId], *, all_asked: bool
    ) -> bool:
        """Ask silent nodes again, many of them by one broadcast where the request went to all; False when not sent.

        A broadcast makes the others answer again as well, so that only reads are broadcast.
        """
        may_broadcast = all_asked and isinstance(request, READS) and not isinstance(request, NEVER_BROADCAST)
        is_broadcast = may_broadcast and len(silent) > BROADCAST_ABOVE
        return self.send(request, payloads, None if is_broadcast else sorted(silent))

    def tell(
        self,
        request: Request,
        nodes: Sequence[NodeId] | None,
        *,
        on_answer: Callable[[Reply], None] | None = None,
    ) -> Waiting:
        """Send a request that nobody waits for; its replies go to ``on_answer``, on the inbox's thread, alone.

        The caller closes what this returns, by `Pending.close`, when the replies are of no interest any more.
        """
        payloads = self.dialect.encode(request)
        waiting = Waiting(request, kept=False, on_answer=on_answer)
        self._pending.open(waiting)
        self.send(request, payloads, nodes)
        return waiting

    def ask(self, request: Request, nodes: Sequence[NodeId] | None, *, timeout_s: float) -> Asked:
        """Ask and wait until everybody expected has answered, or the time is over.

        Raises NotConnectedError when nothing could be sent at all, and when no answer came to a question because
        connections keep getting lost.
        """
        payloads = self.dialect.encode(request)
        lookout = nodes is None and self.dialect.finds_nodes_by(request)
        waiting = Waiting(request, kept=True)
        self._pending.open(waiting)
        taken = False
        try:
            asked = _Round(self, request, waiting, payloads, nodes, timeout_s, lookout=lookout).run()
            taken = True
        finally:
            answers = self._pending.close(waiting, taken=taken)
            self._on_ended(waiting, [answer.reply for answer in answers.values()])
        if not answers and self.line.flapping and not isinstance(request, STATE_CHANGING):
            raise self.line.lost_error()
        answers |= waiting.unreadable_only()
        return msgspec.structs.replace(asked, answers=answers, silent=asked.silent - answers.keys())


class _Round:
    """One call of `Asker.ask`: its deadline, whom it expects, and when it asks again."""

    def __init__(
        self,
        asker: Asker,
        request: Request,
        waiting: Waiting,
        payloads: Sequence[bytes],
        nodes: Sequence[NodeId] | None,
        timeout_s: float,
        *,
        lookout: bool,
    ) -> None:
        self._asker, self._waiting, self._nodes = asker, waiting, nodes
        self._request, self._payloads = request, payloads
        self._one_by_one = nodes is None and asker.is_never_broadcast(request)
        self._timeout_s, self._lookout = timeout_s, lookout
        self._deadline = Deadline(timeout_s)
        self._discovery = Deadline(min(DISCOVERY_S, timeout_s))
        self._expected: set[NodeId] = set()
        self._sent = False
        self._times = 0

    def run(self) -> Asked:
        self._expect_more()
        gap_s = FIRST_RETRY_S * max(1.0, len(self._expected) / 1000)
        retry = Deadline(gap_s)
        self._note(self._asker.send(self._request, self._payloads, self._nodes))
        while True:
            discovering = self._discovering()
            missing = self._waiting.expect(
                self._to_wait_for(discovering=discovering), may_end=not discovering or self._nodes is not None
            )
            if (not missing and not discovering) or self._deadline.passed():
                break
            pause_s = min(self._deadline.left_s(), retry.left_s())
            if discovering:
                pause_s = min(pause_s, self._discovery.left_s())
            self._waiting.wait(pause_s)
            if self._discovering() or discovering:
                self._expect_more()
            urged, everybody = self._waiting.to_ask_at_once()
            if everybody or not self._sent:
                self._note(self._asker.send(self._request, self._payloads, self._nodes))
            elif retry.passed() and (quiet_s := self._waiting.quiet_s()) < STREAMING_S:
                retry = Deadline(STREAMING_S - quiet_s)
            elif retry.passed():
                urged |= self._waiting.missing() & self._expected
            if retry.passed():
                gap_s *= 2
                retry = Deadline(gap_s)
            self._ask_again(urged)
        return self._ended(missing)

    def _discovering(self) -> bool:
        """Tell whether somebody that we do not expect may still turn up."""
        if self._discovery.passed():
            return False
        if self._nodes is not None:
            return any(node not in self._expected and not self._waiting.has_answered(node) for node in self._nodes)
        return self._lookout or not self._expected or not self._asker.is_settled()

    def _expect_more(self) -> None:
        there = self._asker.roster.expected(Instant.now())
        self._expected |= there if self._nodes is None else there & set(self._nodes)

    def _to_wait_for(self, *, discovering: bool) -> set[NodeId]:
        return self._expected if self._nodes is None or not discovering else self._expected | set(self._nodes)

    def _ask_again(self, nodes: set[NodeId]) -> None:
        wanted = nodes if self._nodes is None else nodes & set(self._nodes)
        if self._one_by_one:
            wanted &= self._asker.roster.askable()
        if wanted:
            all_asked = self._nodes is None
            self._note(self._asker.send_again(self._request, self._payloads, wanted, all_asked=all_asked))

    def _note(self, sent: bool) -> None:  # noqa: FBT001 - what `send` returned
        self._sent = self._sent or sent
        self._times += sent

    def _ended(self, missing: set[NodeId]) -> Asked:
        if not self._sent:
            raise self._asker.line.lost_error()
        if self._deadline.passed() and self._timeout_s >= DISCOVERY_S:
            for node_id in missing - self._waiting.unreadable_only().keys():
                self._asker.roster.silent(node_id)
        silent = self._expected if self._nodes is None else set(self._nodes)
        return Asked(
            answers={},
            silent=frozenset(node for node in silent if not self._waiting.has_answered(node)),
            elapsed_s=self._deadline.elapsed_s(),
            times=self._times,
        )


def checked_timeout(timeout_s: float, *, name: str = "timeout_s") -> float:
    """Return a timeout that can be waited for.

    Raises InvalidInputError, with the ``name`` of the argument, when it is not a positive, finite number of seconds.
    """
    if not 0 < timeout_s < threading.TIMEOUT_MAX:
        raise InvalidInputError(f"{name} is {timeout_s!r}: give a positive number of seconds")
    return float(timeout_s)
