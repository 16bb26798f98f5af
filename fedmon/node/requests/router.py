"""Every request passes here: decoded, judged by the policy, handled, audited, answered.

Real, demo and simulated nodes all run this router; it knows no broker.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import ConflictError, FedmonError, InvalidInputError, StorageError
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import STATE_CHANGING, Error, ErrorCode
from fedmon.node.requests.audit import Audit
from fedmon.node.requests.dialect import NodeDialect, Recipient, RefusedMessageError, command_of, error, error_reply
from fedmon.node.requests.effects import Effects
from fedmon.node.requests.handlers import BytesElsewhereError, Handler
from fedmon.node.requests.outbox import Delivery
from fedmon.node.requests.policy import Policy
from fedmon.node.requests.quotas import Quotas, RefusedResearchers, Throttle
from fedmon.node.runs.admission import RunRefusedError

logger = logging.getLogger(__name__)

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
        effects: Effects,
        handlers: Mapping[type[Request], Handler],
        delivery: Delivery,
        refused: RefusedResearchers,
        quotas: Quotas,
        fetch: Fetch,
    ) -> None:
        self._policy, self._dialect, self._audit, self._effects = policy, dialect, audit, effects
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
            if refused.sender is not None:
                reply = error_reply(self._policy.node_id, refused, refused.sender)
                self._send_refusal(reply, refused.sender, refused.code)
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
        command, is_written = command_of(request), self._quotas.is_written(request)
        self.counters["served"] += 1
        reply: Reply | None
        try:
            self._write_command(request, is_written=is_written)
            reply = self._handled(request, lambda: self._handlers[type(request)](request))
        except BytesElsewhereError as elsewhere:
            self._fetch_bytes(request, elsewhere)
            reply = None
        except FedmonError as problem:
            reply = self._failure(request, problem)
        except Exception:
            # One broken handler must not end the node.
            logger.exception("command %s of researcher %s failed", command, request.researcher_id)
            reason = f"the node failed at {command}; its log says why"
            reply = error(request, self._policy.node_id, ErrorCode.FAILED, reason)
        self._answer(request, reply, is_written=is_written)
        if is_written:
            # Nor does a flood of what is not counted bring all that waits again.
            self._delivery.resend_to(request)

    def _write_command(self, request: Request, *, is_written: bool) -> None:
        who, command = request.researcher_id, command_of(request)
        if is_written:
            self._audit.record("command", researcher=who, instance=request.instance, command=command, id=request.id)
        else:
            self._audit.count("served", [f"{who} {command}"])

    def _handled(self, request: Request, effect: Callable[[], Reply | None]) -> Reply | None:
        return self._effects.once(request, effect) if isinstance(request, STATE_CHANGING) else effect()

    def _failure(self, request: Request, problem: FedmonError) -> Error:
        """Return the error reply to a request that could not be done; details of this machine stay here."""
        if isinstance(problem, RunRefusedError):
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
                encoded = msgspec.json.encode(refusal)
                self._effects.remember(request.researcher_id, request.id, encoded, request.expires)
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
            try:
                reply = self._handled(request, lambda: elsewhere.then(source))
            except FedmonError as problem:
                reply = self._failure(request, problem)
            self._answer(request, reply)

        if self._fetch(elsewhere.url, elsewhere.sha256, answer):
            self._fetching.add(key)
        else:
            self._decline(request, ErrorCode.BUSY, "this node fetches too many plans already; try again later")

    def _answer(self, request: Request, reply: Reply | None, *, is_written: bool = True) -> None:
        if reply is not None:
            to = Recipient(researcher_id=request.researcher_id, instance=request.instance)
            self._delivery.reply(reply, to, request, is_written=is_written)

    def _decline(self, request: Request, code: ErrorCode, reason: str) -> None:
        self._count_refused(code.value, "command of researcher %s declined: %s", request.researcher_id, reason)
        to = Recipient(researcher_id=request.researcher_id, instance=request.instance)
        self._send_refusal(self._refusal(request, code, reason), to, f"{command_of(request)} {code.value}", request)

    def _send_refusal(self, refusal: Error, to: Recipient, said: str, request: Request | None = None) -> None:
        """Answer with an error, and write it down, as long as this researcher does not flood us."""
        is_written = self._lines.allows(to.researcher_id)
        if not is_written:
            self._audit.count("declined", [f"{to.researcher_id} {said}"])
        elif request is not None:
            who, code, command = to.researcher_id, refusal.code.value, command_of(request)
            self._delivery.write_down(
                "command", researcher=who, instance=to.instance, command=command, id=request.id, declined=code
            )
        if self._junk.allows(to.researcher_id):
            self._delivery.reply(refusal, to, request, is_written=is_written)

    def _count_refused(self, code: str, text: str, *facts: object) -> None:
        self.counters[f"refused {code}"] += 1
        level = logging.WARNING if self._noise.allows(code) else logging.DEBUG
        logger.log(level, text, *facts)
