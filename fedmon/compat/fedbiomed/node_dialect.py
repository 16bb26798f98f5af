"""How a node speaks with researchers of Fed-BioMed 4.4.

Their requests become ours, with an id and a session that they lack, so that router, policy, audit and handlers are the
same as on our own wire; our replies become theirs, field for field.
"""

from __future__ import annotations

import sys
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from fedmon.common.clock import seconds_from_now
from fedmon.common.errors import InvalidMessageError
from fedmon.common.ids import new_id
from fedmon.common.wire import fedbiomed4, messages
from fedmon.common.wire.envelope import Message, Request
from fedmon.common.wire.fedbiomed4 import DOWNLOADED, NOT_DOWNLOADED
from fedmon.common.wire.messages import DatasetsReply, Error, ErrorCode, LogRecord, PlanStatus
from fedmon.compat.fedbiomed import codec
from fedmon.compat.fedbiomed.codec import checked_party
from fedmon.node.requests.dialect import NodeDialect, Outgoing, RefusedMessageError
from fedmon.node.requests.handlers import PlanApprovalByUrl, PlanError, PlanStatusByUrl

SESSION = "fedbiomed4"
"""Their requests name no session: for us each researcher has one that never ends."""
EXPIRES_AFTER_S = 3600.0
ENVELOPE_BYTES = 4_000

_EXPLANATIONS = {
    PlanStatus.APPROVED: "the owner of this node approved this plan",
    PlanStatus.REJECTED: "the owner of this node rejected this plan",
    PlanStatus.PENDING: "the owner of this node has not decided yet",
    None: "this node does not know these bytes; ask for approval first",
}


class FedBioMedDialect(NodeDialect):
    """The wire of Fed-BioMed 4.4, as a node speaks it.

    It pushes no decisions, and knows no pages: a list that exceeds one message is refused as too large.
    """

    commands: AbstractSet[str] = codec.REQUEST_COMMANDS
    page_bytes = codec.MAX_MESSAGE_BYTES - ENVELOPE_BYTES
    marks: tuple[str, ...] = (messages.OTHER_WIRE,)

    def subscriptions(self, node_id: str) -> list[tuple[str, int]]:
        """Return the filters and QoS under which the node hears requests."""
        return [(fedbiomed4.NODES, 0), (f"general/{node_id}", 0)]

    def sender(self, topic: str) -> str | None:  # noqa: ARG002
        """Return None: topics of this wire carry no sender."""
        return None

    def request(self, topic: str, payload: bytes) -> Request:  # noqa: ARG002
        """Read a request. Raises RefusedMessageError."""
        try:
            asked = codec.decode_request(payload)
            checked_party(asked.researcher_id, what="researcher id")
        except InvalidMessageError as error:
            raise RefusedMessageError(error, codec.sender(payload) or "") from None
        return _request_of(asked)

    def answer(self, reply: Message, to: Request | RefusedMessageError | None) -> Outgoing | None:
        """Write an answer; None for a search without a match, and where this wire has no message.

        Raises InvalidMessageError when it does not fit into one message.
        """
        answer = _answer_of(reply, to if isinstance(to, Request) else None)
        if answer is None:
            return None
        return Outgoing(topic=fedbiomed4.REPLIES, payload=codec.encode(answer), qos=0)

    def log(self, record: LogRecord) -> Outgoing:
        """Write a record of the node's log. Raises InvalidMessageError."""
        return Outgoing(topic=fedbiomed4.LOGGER, payload=codec.encode_log(record), qos=0)


def _request_of(asked: fedbiomed4.ServedRequest) -> Request:
    envelope: dict[str, Any] = {
        "researcher_id": asked.researcher_id,
        "id": new_id(),
        "session": SESSION,
        "expires": seconds_from_now(EXPIRES_AFTER_S),
    }
    match asked:
        case fedbiomed4.PingRequest():
            return messages.Ping(sequence=asked.sequence, **envelope)
        case fedbiomed4.ListRequest():
            return messages.ListDatasets(sequence=0, limit=sys.maxsize, **envelope)
        case fedbiomed4.SearchRequest():
            return messages.SearchDatasets(sequence=0, tags=asked.tags, limit=sys.maxsize, **envelope)
        case fedbiomed4.ApprovalRequest():
            return PlanApprovalByUrl(
                sequence=asked.sequence,
                url=asked.training_plan_url,
                description=asked.description,
                **envelope,
            )
        case fedbiomed4.StatusRequest():
            return PlanStatusByUrl(sequence=0, url=asked.training_plan_url, job_id=asked.job_id, **envelope)


def _answer_of(reply: Message, request: Request | None) -> fedbiomed4.UnderstoodReply | None:
    match reply:
        case DatasetsReply() if reply.next_offset is not None:
            raise InvalidMessageError(
                f"the {reply.count} datasets do not fit into one message of this wire; search with more tags",
                code=ErrorCode.TOO_LARGE.value,
            )
        case messages.TrainingPlanStatusReply() if isinstance(request, PlanStatusByUrl):
            explanation = _EXPLANATIONS[reply.status]
            told = msgspec.structs.replace(reply, note=f"{explanation}: {reply.note}" if reply.note else explanation)
            return fedbiomed4.reply_of(told, job_id=request.job_id, training_plan_url=request.url)
        case messages.SearchReply() if not reply.datasets:
            return None
        case Error() if reply.code in (ErrorCode.FAILED, ErrorCode.BUSY):
            return _failure(reply, request)
    return fedbiomed4.reply_of(reply)


def _failure(error: Error, request: Request | None) -> fedbiomed4.UnderstoodReply | None:
    """Return the message for a request that failed: a reply of the request's kind if the plan is the reason."""
    head: dict[str, Any] = {"researcher_id": error.researcher_id, "node_id": error.node_id}
    match request:
        case PlanApprovalByUrl():
            ended = DOWNLOADED if error.code is ErrorCode.FAILED else NOT_DOWNLOADED
            status = error.http_status if isinstance(error, PlanError) else ended
            return fedbiomed4.WireApprovalReply(sequence=request.sequence, status=status, success=False, **head)
        case PlanStatusByUrl():
            return fedbiomed4.StatusReply(
                job_id=request.job_id,
                success=False,
                approval_obligation=True,
                status="Error",
                msg=error.reason,
                training_plan_url=request.url,
                **head,
            )
    return fedbiomed4.reply_of(error)
