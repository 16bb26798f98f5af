"""The node's results, kept until their researcher acknowledges them, and the delivery of everything that it sends."""

from __future__ import annotations

import datetime
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from fedmon.common.clock import timestamp, utc_now
from fedmon.common.errors import InvalidMessageError, StorageError
from fedmon.common.text import plural
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import Error, ErrorCode, PlanDecision, Result
from fedmon.common.wire.runs import JobOutcome
from fedmon.node.registers.database import Database
from fedmon.node.registers.grants import told
from fedmon.node.requests.audit import Audit
from fedmon.node.requests.dialect import NodeDialect, Outgoing, RefusedMessageError, command_of, error
from fedmon.node.requests.policy import Policy
from fedmon.node.requests.quotas import Throttle

logger = logging.getLogger(__name__)

LIFETIME = datetime.timedelta(days=30)
RESEND_AFTER_S = 5.0
RESEND_TO_NEW_S = 0.5

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Result).decode


class Outbox:
    """Decisions and outcomes that no researcher has acknowledged yet, in their order; of its database's thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, result: Result) -> None:
        """Keep a result until it is acknowledged, or for 30 days; inside the transaction of its cause.

        An existing one stays.
        """
        self._database.execute(
            "INSERT OR IGNORE INTO outbox (researcher_id, message_id, message, expires) VALUES (?, ?, ?, ?)",
            (result.researcher_id, result.id, _encode(result).decode(), timestamp(utc_now() + LIFETIME)),
        )

    def unacked(self, researcher_id: str) -> list[Result]:
        """Return the results that this researcher has not acknowledged, oldest first, at most 1000."""
        found = self._database.rows(
            "SELECT message FROM outbox WHERE researcher_id = ? ORDER BY position LIMIT 1000", (researcher_id,)
        )
        return [_decode(row["message"]) for row in found]

    def waiting(self) -> dict[str, int]:
        """Return how many results wait for each researcher."""
        found = self._database.rows("SELECT researcher_id, count(*) AS waiting FROM outbox GROUP BY researcher_id")
        return {row["researcher_id"]: row["waiting"] for row in found}

    def ack(self, researcher_id: str, ids: Sequence[str]) -> int:
        """Drop the results that are safe with this researcher; returns how many."""
        statement = "DELETE FROM outbox WHERE researcher_id = ? AND message_id = ?"
        with self._database.transaction():
            return sum(self._database.execute(statement, (researcher_id, message_id)) for message_id in ids)

    def expire(self, *, now: datetime.datetime | None = None) -> int:
        """Drop results that were not acknowledged in their lifetime; returns how many."""
        dropped = self._database.execute("DELETE FROM outbox WHERE expires < ?", (timestamp(now or utc_now()),))
        if dropped:
            logger.warning(
                "%s dropped: not acknowledged in time", plural(dropped, "decision or outcome", "decisions and outcomes")
            )
        return dropped


class Delivery:
    """Replies and results on their way out: written down in the audit, then sent; of the outbox's thread.

    ``send(outgoing)`` hands a message to the connection and returns False if there is none, and ``seen(researcher)``
    returns the datasets that a decision may name. On a full disk messages go out all the same; those without a line in
    the audit are counted.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        dialect: NodeDialect,
        policy: Policy,
        audit: Audit,
        send: Callable[[Outgoing], bool],
        seen: Callable[[str], Collection[str]],
    ) -> None:
        self._seen = seen
        self._outbox, self._dialect, self._policy, self._audit, self._send = outbox, dialect, policy, audit, send
        self.counters: Counter[str] = Counter()
        self._unstored = ""
        self._waiting = set(outbox.waiting())
        self._resent: dict[str, tuple[str, float]] = {}
        self._sent: dict[str, frozenset[str]] = {}
        self._sessions = Throttle(burst=10, per_s=0.1)

    def reply(self, reply: Reply, to: Request | RefusedMessageError, *, is_written: bool = True) -> None:
        """Send a reply; one that is too large is replaced by an error if its request is known.

        One that is not ``is_written`` is counted by the hour in the audit.
        """
        try:
            outgoing = self._dialect.answer(reply, to)
        except InvalidMessageError as problem:
            logger.error("a reply to researcher %s cannot be sent: %s", to.researcher_id, problem)  # noqa: TRY400
            if isinstance(to, Request) and not isinstance(reply, Error):
                too_large = error(to, reply.node_id, ErrorCode.TOO_LARGE, problem.reason)
                self.reply(too_large, to, is_written=is_written)
            return
        if outgoing is not None and not is_written:
            self._audit.count("replies", [f"{to.researcher_id} {command_of(reply)}"])
            self.counters["unsent"] += not self._send(outgoing)
            return
        if outgoing is not None:
            facts = {"code": reply.code.value} if isinstance(reply, Error) else {}
            named = {"to": to.researcher_id, "instance": to.instance, "command": command_of(reply), "id": reply.id}
            self._send_audited(outgoing, "reply", **named, **facts)

    def push(self, researcher_ids: Iterable[str] | None = None) -> None:
        """Send the waiting results: all of them, or those that are new for these researchers."""
        self._waiting = set(self._outbox.waiting())
        for researcher_id in sorted(self._waiting if researcher_ids is None else self._waiting & set(researcher_ids)):
            if self._policy.refusal(researcher_id) is None:
                self._resend(researcher_id, only_new=researcher_ids is not None)

    def resend_to(self, request: Request) -> None:
        """Send again the results that a researcher has not acknowledged: at once to a new session, else after 5 s.

        Of many new sessions most wait, too.
        """
        researcher_id = request.researcher_id
        if researcher_id not in self._waiting:
            return
        session, then = self._resent.get(researcher_id, ("", -RESEND_AFTER_S))
        elapsed_s = time.monotonic() - then
        is_new = session != request.session and elapsed_s > RESEND_TO_NEW_S
        if elapsed_s > RESEND_AFTER_S or (is_new and self._sessions.allows(researcher_id)):
            self._resent[researcher_id] = (request.session, time.monotonic())
            self._resend(researcher_id)

    def write_down(self, event: str, **facts: object) -> None:
        """Write a line into the audit; a failure is logged and counted."""
        try:
            self._audit.record(event, **facts)
            self._unstored = ""
        except StorageError as problem:
            self.counters["unaudited"] += 1
            self.log_unstored(event, problem)

    def log_unstored(self, what: str, problem: StorageError) -> None:
        """Log that something could not be written, once until that works again."""
        if str(problem) != self._unstored:
            logger.error("the %s and later messages could not be written: %s", what, problem)
        self._unstored = str(problem)

    def _resend(self, researcher_id: str, *, only_new: bool = False) -> None:
        results = self._outbox.unacked(researcher_id)
        if not results:
            self._waiting.discard(researcher_id)
        # Of many that wait, each new one would otherwise bring all of them again before the first can be acknowledged.
        sent = self._sent.get(researcher_id, frozenset())
        self._sent[researcher_id] = frozenset(result.id for result in results)
        for result in results:
            is_new = result.id not in sent
            outgoing = self._written(result, is_new=is_new) if is_new or not only_new else None
            if outgoing is None:
                continue
            if not is_new:
                # One line tells that a message left; a researcher who acknowledges nothing must not fill the audit.
                self._audit.count("resent", [f"{researcher_id} {command_of(result)}"])
                self.counters["unsent"] += not self._send(outgoing)
            elif isinstance(result, JobOutcome):
                facts = {"job": result.job.job_id, "state": result.job.state.value, "sha256": result.job.sha256}
                self._send_audited(outgoing, "outcome", to=researcher_id, id=result.id, **facts)
            else:
                self._send_audited(outgoing, "decision", to=researcher_id, id=result.id, sha256=result.sha256)

    def _written(self, result: Result, *, is_new: bool) -> Outgoing | None:
        """Write a result for its researcher; None if this wire stays silent, or if it is too large, logged if new."""
        to, sent = result.researcher_id, result
        if isinstance(result, PlanDecision) and result.grant is not None:
            grant = told(result.grant, to, self._seen(to))
            sent = msgspec.structs.replace(result, grant=msgspec.structs.replace(grant, note=""))
        try:
            return self._dialect.answer(sent, None)
        except InvalidMessageError as problem:
            if isinstance(result, PlanDecision) and result.grant is not None:
                # The terms are told to everyone who asks for the status of the plan.
                return self._written(msgspec.structs.replace(result, grant=None), is_new=is_new)
            if is_new:
                logger.error("a message to researcher %s cannot be sent: %s", to, problem)  # noqa: TRY400
            return None

    def _send_audited(self, outgoing: Outgoing, event: str, **facts: object) -> None:
        self.write_down(event, **facts)
        if not self._send(outgoing):
            self.counters["unsent"] += 1
            self.write_down("unsent", what=event, **facts)
