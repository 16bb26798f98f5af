"""Every request passes here: decoded, judged by the policy, handled, audited, answered; an effect is made once.

Real, demo and simulated nodes all run this router; it knows no broker.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from fedmon.common.clock import timestamp, utc_now
from fedmon.common.errors import ConflictError, FedmonError, InvalidInputError, StorageError
from fedmon.common.ids import made_at
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import STATE_CHANGING, ApprovalReply, Error, ErrorCode
from fedmon.common.wire.runs import RunReply, StopReply
from fedmon.node.registers.database import Database
from fedmon.node.requests.audit import Audit
from fedmon.node.requests.dialect import DeclinedError, NodeDialect, RefusedMessageError, command_of, error
from fedmon.node.requests.handlers import BytesElsewhereError, Handler
from fedmon.node.requests.outbox import Delivery
from fedmon.node.requests.policy import Policy
from fedmon.node.requests.quotas import Quotas, RefusedResearchers, Throttle

logger = logging.getLogger(__name__)

KEEP_AFTER_EXPIRY = datetime.timedelta(days=1)
MAX_LIFETIME = datetime.timedelta(days=7)
"""A request that claims to live longer is forgotten after this all the same, so that no party can fill the disk."""

KEPT_REFUSALS, NEW_REFUSALS = 9_000, 1_000
"""The most refusals, of all researchers, that `purge` leaves, and the new ones until it is called again."""

_ENVELOPE = frozenset({"node_id", "instance", "session", "sequence", "expires", "protocol_version"})
_ADDED = (("datasets", None), ("purpose", ""))
"""Fields that earlier releases did not have, at their defaults: requests from before keep their digest."""
_decode = msgspec.json.Decoder(ApprovalReply | RunReply | StopReply | Error).decode

Fetch = Callable[[str, str | None, Callable[[bytes | FedmonError], None]], bool]
"""``fetch(url, sha256, done)`` fetches a plan's bytes and calls ``done`` with them, or with the error, on the router's
thread; False when too many wait already."""


class Router:
    """Turns incoming bytes into answers; owned by one thread. Each kind of request has a handler."""

    def __init__(
        self,
        policy: Policy,
        *,
        dialect: NodeDialect,
        audit: Audit,
        database: Database,
        handlers: Mapping[type[Request], Handler],
        delivery: Delivery,
        refused: RefusedResearchers,
        quotas: Quotas,
        fetch: Fetch,
    ) -> None:
        self._policy, self._dialect, self._audit, self.effects = policy, dialect, audit, Effects(database)
        self._handlers, self._delivery, self._refused, self._fetch = handlers, delivery, refused, fetch
        self._quotas = quotas
        self.counters: Counter[str] = Counter()
        self._junk = Throttle(burst=20, per_s=5.0)
        self._noise = Throttle(burst=10, per_s=0.2)
        self._lines = Throttle(burst=20, per_s=0.2)
        self._fetching: set[tuple[str, str]] = set()

    def receive(self, topic: str, payload: bytes, *, retained: bool = False) -> None:
        """Serve one message; never raises because of its content."""
        if retained:
            # A command that a broker kept is of an unknown age, and no caller waits for it.
            self._count_refused("retained", "a retained command was ignored on topic %s", topic)
            return
        sender = self._dialect.sender(topic)
        if sender is not None and self._policy.refusal(sender) and self._junk.left(sender) < 1:
            # A researcher that is not obeyed must not cost more than a look at the topic.
            code = ErrorCode.REFUSED.value
            self._refused.count(sender)
            self._count_refused(code, "message of researcher %s dropped: not obeyed, and too many", sender)
            self._audit.count("declined", [f"{sender} {code}"])
            return
        try:
            request = self._dialect.request(topic, payload)
        except RefusedMessageError as refused:
            self._count_refused(refused.code, "message on topic %s refused: %s", topic, refused.reason)
            if refused.researcher_id:
                self._send_refusal(refused.reply(self._policy.node_id), refused, refused.code)
            return
        if (request.researcher_id, request.id) in self._fetching:
            return  # it is answered once its plan is here
        refusal = self._policy.refusal(request.researcher_id)
        fetched = sum(who == request.researcher_id for who, _ in self._fetching)
        busy = self._quotas.judge(request, fetched=fetched) if refusal is None else None
        if busy is not None:
            # Nothing is written, and a flood is not even answered.
            if self._junk.allows(request.researcher_id):
                node_id, wait_s = self._policy.node_id, busy.retry_after_s
                answer = error(request, node_id, ErrorCode.BUSY, busy.reason, retry_after_s=wait_s)
                self._answer(request, answer, is_written=False)
            return
        if request.expires <= utc_now():
            reason = f"the request expired at {request.expires.isoformat()} by this node's clock; check both clocks"
            self._decline(request, ErrorCode.EXPIRED, reason)
            return
        if refusal is not None:
            self._refused.count(request.researcher_id)
            self._decline(request, ErrorCode.REFUSED, refusal)
            return
        self._serve(request)

    def _serve(self, request: Request) -> None:
        who, command, is_written = request.researcher_id, command_of(request), self._quotas.is_written(request)
        self.counters["served"] += 1

        def serve() -> Reply | None:
            if is_written:
                self._audit.record("command", researcher=who, instance=request.instance, command=command, id=request.id)
            else:
                self._audit.count("served", [f"{who} {command}"])
            return self._handled(request, lambda: self._handlers[type(request)](request))

        self._answer(request, self._outcome(request, serve), is_written=is_written)
        if is_written:
            # Nor does a flood of what is not counted bring all that waits again.
            self._delivery.resend_to(request)

    def _outcome(self, request: Request, serve: Callable[[], Reply | None]) -> Reply | None:
        """Return the reply to a request; None if it has none, or gets it once its plan is here."""
        try:
            return serve()
        except BytesElsewhereError as elsewhere:
            self._fetch_bytes(request, elsewhere)
            return None
        except FedmonError as problem:
            return self._failure(request, problem)
        except Exception:
            # One broken handler must not end the node.
            command = command_of(request)
            logger.exception("command %s of researcher %s failed", command, request.researcher_id)
            reason = f"the node failed at {command}; its log says why"
            return error(request, self._policy.node_id, ErrorCode.FAILED, reason)

    def _handled(self, request: Request, effect: Callable[[], Reply | None]) -> Reply | None:
        return self.effects.once(request, effect) if isinstance(request, STATE_CHANGING) else effect()

    def _failure(self, request: Request, problem: FedmonError) -> Error:
        """Return the error reply to a request that could not be done; details of this machine stay here."""
        if isinstance(problem, DeclinedError):
            return self._refusal(request, problem.code, str(problem))
        if isinstance(problem, ConflictError):
            return self._refusal(request, ErrorCode.REFUSED, str(problem))
        if isinstance(problem, InvalidInputError):
            return self._refusal(request, ErrorCode.MALFORMED, str(problem))
        command, reason = command_of(request), str(problem)
        if isinstance(problem, StorageError):
            self._delivery.log_unstored(command, problem)
            reason = "this node cannot write its records, so nothing was done; its owner's log has the cause"
        else:
            logger.error("%s of researcher %s failed: %s", command, request.researcher_id, problem)
        return error(request, self._policy.node_id, ErrorCode.FAILED, reason)

    def _refusal(self, request: Request, code: ErrorCode, reason: str) -> Error:
        """Return the error reply to a refused request; a state-changing one stays refused unless we are busy."""
        refusal = error(request, self._policy.node_id, code, reason)
        if isinstance(request, STATE_CHANGING) and code is not ErrorCode.BUSY:
            try:
                self.effects.refuse(request, refusal)
            except StorageError as problem:
                logger.error("a refused %s is not remembered: %s", command_of(request), problem)  # noqa: TRY400
        return refusal

    def _fetch_bytes(self, request: Request, elsewhere: BytesElsewhereError) -> None:
        """Have the bytes of a plan fetched; its request is answered once they have arrived."""
        key = (request.researcher_id, request.id)

        def answer(source: bytes | FedmonError) -> None:
            self._fetching.discard(key)
            if isinstance(source, FedmonError):
                logger.warning("the plan of researcher %s was not fetched: %s", request.researcher_id, source)
            serve = partial(self._handled, request, lambda: elsewhere.then(source))
            self._answer(request, self._outcome(request, serve))

        if self._fetch(elsewhere.url, elsewhere.sha256, answer):
            self._fetching.add(key)
        else:
            self._decline(request, ErrorCode.BUSY, "this node fetches too many plans already; try again later")

    def _answer(self, request: Request, reply: Reply | None, *, is_written: bool = True) -> None:
        if reply is not None:
            self._delivery.reply(reply, request, is_written=is_written)

    def _decline(self, request: Request, code: ErrorCode, reason: str) -> None:
        self._count_refused(code.value, "command of researcher %s declined: %s", request.researcher_id, reason)
        self._send_refusal(self._refusal(request, code, reason), request, f"{command_of(request)} {code.value}")

    def _send_refusal(self, refusal: Error, to: Request | RefusedMessageError, said: str) -> None:
        """Answer with an error, and write it down, as long as this researcher does not flood us."""
        is_written = self._lines.allows(to.researcher_id)
        if not is_written:
            self._audit.count("declined", [f"{to.researcher_id} {said}"])
        elif isinstance(to, Request):
            who, code, command = to.researcher_id, refusal.code.value, command_of(to)
            self._delivery.write_down(
                "command", researcher=who, instance=to.instance, command=command, id=to.id, declined=code
            )
        if self._junk.allows(to.researcher_id):
            self._delivery.reply(refusal, to, is_written=is_written)

    def _count_refused(self, code: str, text: str, *facts: object) -> None:
        self.counters[f"refused {code}"] += 1
        level = logging.WARNING if self._noise.allows(code) else logging.DEBUG
        logger.log(level, text, *facts)


def content_digest(request: Request) -> str:
    """Return a digest of a request without its envelope, so that it stays the same when the request is repeated."""
    fields = msgspec.structs.asdict(request).items()
    content = {name: value for name, value in fields if name not in _ENVELOPE and (name, value) not in _ADDED}
    return hashlib.sha256(msgspec.json.encode([type(request).__name__, content], order="sorted")).hexdigest()


class Effects:
    """The stored replies of state-changing requests; belongs to the thread of its database.

    A reply is kept until one day after its request expires, and for a day at least. ``counters`` counts repeats.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._new_refusals = 0
        self.counters: Counter[str] = Counter()

    def once(self, request: Request, effect: Callable[[], Reply | None]) -> Reply | None:
        """Make an effect, its id and its reply one commit; a repeat gets the stored reply and is counted.

        Raises ConflictError if another request (see `content_digest`) was made under this id, and if the register was
        restored after the request was made, so that its effect may be there without its reply.
        """
        content = content_digest(request)
        reply: Reply | None = self._stored(request, content)
        if reply is not None:
            self.counters["repeated"] += 1
            return reply
        with self._database.transaction():
            reply = effect()
            if reply is not None:
                self._remember(request, reply, content)
        return reply

    def refuse(self, request: Request, refusal: Error) -> None:
        """Keep a refusal, unless the request has a reply: it is not served later, such as after the clock went back."""
        self._remember(request, refusal, "")
        self._new_refusals += 1
        if self._new_refusals >= NEW_REFUSALS:
            self.purge()

    def purge(self, *, now: datetime.datetime | None = None) -> int:
        """Drop the replies whose time is over, and of the refusals all but the latest; return how many."""
        self._new_refusals = 0
        return self._database.execute(
            "DELETE FROM effects WHERE keep_until < ? OR rowid IN (SELECT rowid FROM effects WHERE content = '' "
            "ORDER BY keep_until DESC, rowid DESC LIMIT -1 OFFSET ?)",
            (timestamp(now or utc_now()), KEPT_REFUSALS),
        )

    def _stored(self, request: Request, content: str) -> Reply | None:
        found = self._database.rows(
            "SELECT reply, content FROM effects WHERE researcher_id = ? AND request_id = ?",
            (request.researcher_id, request.id),
        )
        if not found:
            restored, made = self._database.restored, made_at(request.id)
            if restored is not None and (made is None or made <= restored):
                raise ConflictError(
                    f"request {request.id!r} was made before this node restored its register at "
                    f"{restored.isoformat(timespec='seconds')}, or its id is no UUID of version 7, so it may have had "
                    "its effect already: check the state, and ask with a new id"
                )
            return None
        if found[0]["content"] not in ("", content):
            raise ConflictError(
                f"request {request.id!r} of researcher {request.researcher_id} asked something else before: "
                "use a new id"
            )
        reply: Reply = _decode(found[0]["reply"])
        return reply

    def _remember(self, request: Request, reply: Reply, content: str) -> None:
        now = utc_now()
        keep_until = max(now, min(request.expires, now + MAX_LIFETIME)) + KEEP_AFTER_EXPIRY
        self._database.execute(
            "INSERT OR IGNORE INTO effects (researcher_id, request_id, content, reply, keep_until) "
            "VALUES (?, ?, ?, ?, ?)",
            (request.researcher_id, request.id, content, msgspec.json.encode(reply), timestamp(keep_until)),
        )
