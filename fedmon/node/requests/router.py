"""Every request passes here: decoded, judged by the policy, handled, audited, answered.

Real, demo and simulated nodes all run this router; it knows no broker.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import ConflictError, FedmonError, InvalidInputError, InvalidMessageError, StorageError
from fedmon.common.wire.envelope import Message, Reply, Request
from fedmon.common.wire.messages import STATE_CHANGING, Error, ErrorCode, Result
from fedmon.common.wire.runs import JobOutcome
from fedmon.node.requests.dialect import Dialect, Outgoing, RefusedMessageError, Sender, error_reply
from fedmon.node.requests.effects import content_digest
from fedmon.node.requests.handlers import HANDLERS, WITH_BYTES
from fedmon.node.requests.handlers.approval import BytesElsewhereError
from fedmon.node.requests.handlers.envelope import error
from fedmon.node.requests.throttle import Throttle
from fedmon.node.runs.refusal import RunRefusedError
from fedmon.node.services import Services

logger = logging.getLogger(__name__)

RESEND_AFTER_S = 5.0
RESEND_TO_NEW_S = 0.5
_COMMANDS = {kind: kind.__struct_config__.tag for kind in HANDLERS}


class Router:
    """Turns incoming bytes into answers; owned by one thread.

    ``send(outgoing)`` hands a message to the connection and returns False when there is none.
    """

    def __init__(self, services: Services, dialect: Dialect, send: Callable[[Outgoing], bool]) -> None:
        self.services, self.dialect = services, dialect
        self._send = send
        self.counters: Counter[str] = Counter()
        self._strangers = Throttle(burst=20, per_s=5.0)
        self._junk = Throttle(burst=20, per_s=5.0)
        self._noise = Throttle(burst=10, per_s=0.2)
        self._unstored = ""
        self._fetching: set[tuple[str, str]] = set()
        self._resent: dict[str, tuple[str, float]] = {}
        self._sent: dict[str, frozenset[str]] = {}
        self._waiting = set(services.outbox.waiting())

    def receive(self, topic: str, payload: bytes, *, retained: bool = False) -> None:
        """Serve one message; never raises for what it holds."""
        if retained:
            # A command that a broker kept is of an unknown age, and nobody waits for it.
            self._refuse("retained", "a retained command was ignored on topic %s", topic)
            return
        sender = self.dialect.sender(topic)
        if sender is not None and self.services.policy.refusal(sender) and not self._strangers.allows(sender):
            # Who is not obeyed must not cost more than a look at the topic.
            self._refuse(ErrorCode.REFUSED.value, "message of researcher %s dropped: not obeyed, and too many", sender)
            self.services.audit.count("declined", f"{sender} {ErrorCode.REFUSED.value}")
            return
        try:
            request = self.dialect.request(topic, payload)
        except RefusedMessageError as refused:
            self._refuse(refused.code, "message on topic %s refused: %s", topic, refused.reason)
            self._answer_refused(refused)
            return
        if request.expires <= utc_now():
            reason = f"the request expired at {request.expires.isoformat()} by this node's clock; check both clocks"
            self._decline(request, ErrorCode.EXPIRED, reason)
            return
        refusal = self.services.policy.refusal(request.researcher_id)
        if refusal is not None:
            self._decline(request, ErrorCode.REFUSED, refusal)
            return
        self._serve(request)

    def push(self, researcher_ids: Iterable[str] | None = None) -> None:
        """Send what waits in the outbox: all of it, or what is new for these researchers."""
        self._waiting = set(self.services.outbox.waiting())
        for researcher_id in sorted(self._waiting if researcher_ids is None else self._waiting & set(researcher_ids)):
            if self.services.policy.refusal(researcher_id) is None:
                self._resend(researcher_id, only_new=researcher_ids is not None)

    # --- serving ---------------------------------------------------------------------------------------------------

    def _serve(self, request: Request) -> None:
        command = _COMMANDS[type(request)]
        self.counters["served"] += 1
        try:
            self.services.audit.record(
                "command", researcher=request.researcher_id, instance=request.instance, command=command, id=request.id
            )
            answer = self._handled(request, lambda: HANDLERS[type(request)](request, self.services))
        except BytesElsewhereError as wait:
            self._fetch(request, wait)
            answer = None
        except FedmonError as problem:
            answer = self._failure(request, problem)
        except Exception:
            # One broken handler must not end the node.
            logger.exception("command %s of researcher %s failed", command, request.researcher_id)
            reason = f"the node failed at {command}; its log says why"
            answer = error(request, self.services.node_id, ErrorCode.FAILED, reason)
        if answer is not None:
            self._answer(answer, request)
        self._resend_to(request)

    def _failure(self, request: Request, problem: FedmonError) -> Error:
        """Return the error reply to a request that could not be done; what it says of this machine stays here."""
        if isinstance(problem, RunRefusedError):
            return self._refusal(request, problem.code, str(problem))
        if isinstance(problem, ConflictError):
            return self._refusal(request, ErrorCode.REFUSED, str(problem))
        if isinstance(problem, InvalidInputError):
            return self._refusal(request, ErrorCode.MALFORMED, str(problem))
        command, reason = str(_COMMANDS[type(request)]), str(problem)
        if isinstance(problem, StorageError):
            self._tell_unstored(command, problem)
            reason = "this node cannot write what it must keep, so nothing was done; its owner's log says why"
        else:
            logger.error("%s of researcher %s failed: %s", command, request.researcher_id, problem)
        return error(request, self.services.node_id, ErrorCode.FAILED, reason)

    def _refusal(self, request: Request, code: ErrorCode, reason: str) -> Error:
        """Return the error reply to a refused request; a state-changing one stays refused unless we are busy."""
        refusal = error(request, self.services.node_id, code, reason)
        if isinstance(request, STATE_CHANGING) and code is not ErrorCode.BUSY:
            try:
                self.services.effects.remember_refusal(
                    request.researcher_id, request.id, msgspec.json.encode(refusal), request.expires
                )
            except StorageError as problem:
                logger.error("a refused %s is not remembered: %s", _COMMANDS[type(request)], problem)  # noqa: TRY400
        return refusal

    def _handled(self, request: Request, effect: Callable[[], Reply | None]) -> Reply | bytes | None:
        return self._once(request, effect) if isinstance(request, STATE_CHANGING) else effect()

    def _once(self, request: Request, effect: Callable[[], Reply | None]) -> Reply | bytes | None:
        """Make an effect, its id and its reply one commit; a repeat gets the stored reply."""
        services = self.services
        content = content_digest(request)
        stored = services.effects.stored_reply(request.researcher_id, request.id, content=content)
        if stored is not None:
            self.counters["repeated"] += 1
            return stored
        with services.database.transaction():
            reply = effect()
            if reply is not None:
                services.effects.remember(
                    request.researcher_id,
                    request.id,
                    msgspec.json.encode(reply),
                    request.expires,
                    content=content,
                )
        return reply

    def _fetch(self, request: Request, wait: BytesElsewhereError) -> None:
        """Have the bytes of a plan fetched; its request is answered when they are there."""
        key = (request.researcher_id, request.id)
        if key in self._fetching:
            return
        self._fetching.add(key)

        def finish(source: bytes | FedmonError) -> None:
            self._fetching.discard(key)
            self._continue(request, source)

        if not self.services.fetch(wait.url, wait.sha256, finish):
            self._fetching.discard(key)
            self._decline(request, ErrorCode.BUSY, "this node fetches too many plans already; try again later")

    def _continue(self, request: Request, source: bytes | FedmonError) -> None:
        try:
            answer = self._handled(request, lambda: WITH_BYTES[type(request)](request, source, self.services))
        except FedmonError as problem:
            answer = self._failure(request, problem)
        if answer is not None:
            self._answer(answer, request)

    # --- answering -------------------------------------------------------------------------------------------------

    def _answer(self, answer: Reply | bytes, request: Request) -> None:
        reply = answer if isinstance(answer, Reply) else _stored(answer)
        to = Sender(researcher_id=request.researcher_id, instance=request.instance)
        outgoing = self._encoded(reply, to, request)
        if outgoing is None:
            return
        facts = {"code": reply.code.value} if isinstance(reply, Error) else {}
        self._send_audited(
            outgoing, "reply", to=to.researcher_id, instance=to.instance, command=_tag(reply), id=reply.id, **facts
        )

    def _encoded(self, reply: Reply, to: Sender, request: Request | None) -> Outgoing | None:
        try:
            return self.dialect.answer(reply, to=to, request=request)
        except InvalidMessageError as problem:
            logger.error(  # noqa: TRY400
                "a reply to researcher %s cannot be sent: %s", to.researcher_id, problem
            )
            if request is None or isinstance(reply, Error):
                return None
            too_large = error(request, self.services.node_id, ErrorCode.TOO_LARGE, problem.reason)
            return self.dialect.answer(too_large, to=to, request=request)

    def _decline(self, request: Request, code: ErrorCode, reason: str) -> None:
        """Answer with an error, and write it down, as long as this researcher does not flood us."""
        self._refuse(code.value, "command of researcher %s declined: %s", request.researcher_id, reason)
        refusal = self._refusal(request, code, reason)
        command = _COMMANDS[type(request)]
        if not self._junk.allows(request.researcher_id):
            self.services.audit.count("declined", f"{request.researcher_id} {command} {code.value}")
            return
        self._write_down(
            "command",
            researcher=request.researcher_id,
            instance=request.instance,
            command=command,
            id=request.id,
            declined=code.value,
        )
        self._answer(refusal, request)

    def _answer_refused(self, refused: RefusedMessageError) -> None:
        reply = error_reply(self.services.node_id, refused)
        if reply is None or refused.sender is None:
            return
        if not self._junk.allows(refused.sender.researcher_id):
            self.services.audit.count("declined", f"{refused.sender.researcher_id} {refused.code}")
            return
        outgoing = self._encoded(reply, refused.sender, None)
        if outgoing is not None:
            self._send_audited(
                outgoing, "reply", to=refused.sender.researcher_id, command="error", id=reply.id, code=refused.code
            )

    def _refuse(self, code: str, text: str, *facts: object) -> None:
        self.counters[f"refused {code}"] += 1
        level = logging.WARNING if self._noise.allows(code) else logging.DEBUG
        logger.log(level, text, *facts)

    def _send_audited(self, outgoing: Outgoing, event: str, **facts: object) -> None:
        """Write down what leaves, then send it."""
        self._write_down(event, **facts)
        if not self._send(outgoing):
            self.counters["unsent"] += 1
            self._write_down("unsent", what=event, **facts)

    def _write_down(self, event: str, **facts: object) -> None:
        """Leave a line in the audit; on a full disk answers go out all the same, and what has no line is counted."""
        try:
            self.services.audit.record(event, **facts)
            self._unstored = ""
        except StorageError as problem:
            self.counters["unaudited"] += 1
            self._tell_unstored(event, problem)

    def _tell_unstored(self, what: str, problem: StorageError) -> None:
        """Log that something could not be written, once until that works again."""
        if str(problem) != self._unstored:
            logger.error("a %s could not be written down, nor what follows: %s", what, problem)
        self._unstored = str(problem)

    # --- the outbox ------------------------------------------------------------------------------------------------

    def _resend_to(self, request: Request) -> None:
        """Send again what this researcher has not acknowledged: at once to a new session, else every few seconds."""
        researcher_id = request.researcher_id
        if researcher_id not in self._waiting:
            return
        session, then = self._resent.get(researcher_id, ("", -RESEND_AFTER_S))
        elapsed_s = time.monotonic() - then
        if elapsed_s > RESEND_AFTER_S or (session != request.session and elapsed_s > RESEND_TO_NEW_S):
            self._resent[researcher_id] = (request.session, time.monotonic())
            self._resend(researcher_id)

    def _resend(self, researcher_id: str, *, only_new: bool = False) -> None:
        results = self.services.outbox.unacked(researcher_id)
        if not results:
            self._waiting.discard(researcher_id)
        # Of many that wait, each new one would otherwise bring all of them again before the first can be acknowledged.
        sent = self._sent.get(researcher_id, frozenset())
        self._sent[researcher_id] = frozenset(result.id for result in results)
        for result in results:
            if only_new and result.id in sent:
                continue
            outgoing = self.dialect.answer(result, to=Sender(researcher_id=researcher_id), request=None)
            if outgoing is None:
                continue
            if isinstance(result, JobOutcome):
                facts = {"job": result.job.job_id, "state": result.job.state.value, "sha256": result.job.sha256}
                self._send_audited(outgoing, "outcome", to=researcher_id, id=result.id, **facts)
            else:
                self._send_audited(outgoing, "decision", to=researcher_id, id=result.id, sha256=result.sha256)


_stored_types = {kind.__struct_config__.tag: kind for kind in Reply.__subclasses__() if kind.__struct_config__.tag}


def _stored(payload: bytes) -> Reply:
    command = msgspec.json.decode(payload, type=dict[str, object])["command"]
    return msgspec.json.decode(payload, type=_stored_types[str(command)])


def _tag(message: Message | Result) -> str:
    return str(type(message).__struct_config__.tag)
