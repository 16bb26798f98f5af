"""How a node speaks with researchers of Fed-BioMed 4.4.

Their requests become ours, with an id and a session that they lack, so that router, policy, audit and handlers are the
same as on our own wire; our replies become theirs, field for field.
"""

from __future__ import annotations

import sys
from collections.abc import Set as AbstractSet
from typing import Any

from fedmon.common.clock import seconds_from_now
from fedmon.common.errors import InvalidMessageError
from fedmon.common.ids import new_id
from fedmon.common.wire import fedbiomed4, messages
from fedmon.common.wire.envelope import Message, Reply, Request
from fedmon.common.wire.fedbiomed4 import error_number, record_of
from fedmon.common.wire.messages import DatasetsReply, Error, ErrorCode, LogRecord, PlanStatus
from fedmon.compat.fedbiomed import codec
from fedmon.compat.fedbiomed.codec import checked_party
from fedmon.node.requests.dialect import NodeDialect, Outgoing, Recipient, RefusedMessageError
from fedmon.node.requests.handlers import HTTP_OK, PlanApprovalByUrl, PlanError, PlanStatusByUrl

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
            researcher_id = codec.sender(payload)
            sender = None if researcher_id is None else Recipient(researcher_id=researcher_id)
            raise RefusedMessageError(error, sender, {}) from None
        return _request_of(asked)

    def answer(self, reply: Message, *, to: Recipient, request: Request | None) -> Outgoing | None:
        """Write an answer; None for a search without a match, and where this wire has no message.

        Raises InvalidMessageError when it does not fit into one message.
        """
        answer = _answer_of(reply, to.researcher_id, request)
        if answer is None:
            return None
        return Outgoing(topic=fedbiomed4.REPLIES, payload=codec.encode(answer), qos=0)

    def log(self, record: LogRecord) -> Outgoing:
        """Write a record of the node's log. Raises InvalidMessageError."""
        payload = codec.encode(fedbiomed4.log_of(record, record.time.astimezone()))
        return Outgoing(topic=fedbiomed4.LOGGER, payload=payload, qos=0)


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


def _answer_of(reply: Message, researcher_id: str, request: Request | None) -> fedbiomed4.UnderstoodReply | None:
    if not isinstance(reply, Reply):
        return None
    head: dict[str, Any] = {"researcher_id": researcher_id, "node_id": reply.node_id}
    match reply:
        case messages.Pong():
            return fedbiomed4.PingReply(success=True, sequence=reply.sequence, **head)
        case messages.ListReply():
            return fedbiomed4.WireListReply(**_datasets(reply, with_dtypes=False), **head)
        case messages.SearchReply() if reply.datasets:
            return fedbiomed4.WireSearchReply(**_datasets(reply, with_dtypes=True), **head)
        case messages.ApprovalReply():
            return fedbiomed4.WireApprovalReply(sequence=reply.sequence, status=HTTP_OK, success=True, **head)
        case messages.TrainingPlanStatusReply() if isinstance(request, PlanStatusByUrl):
            explanation = _EXPLANATIONS[reply.status]
            note = f"{explanation}: {reply.note}" if reply.note else explanation
            return _status(head, request, success=True, status=fedbiomed4.PLAN_STATUS[reply.status], msg=note)
        case Error():
            return _failure(reply, head, request)
    return None


def _failure(error: Error, head: dict[str, Any], request: Request | None) -> fedbiomed4.UnderstoodReply:
    """Return the message for a request that was not served: a reply of the request's kind if the plan is the reason."""
    about_plan = error.code in (ErrorCode.FAILED, ErrorCode.BUSY)
    if about_plan and isinstance(request, PlanApprovalByUrl):
        status = error.http_status if isinstance(error, PlanError) else HTTP_OK if error.code is ErrorCode.FAILED else 0
        return fedbiomed4.WireApprovalReply(sequence=request.sequence, status=status, success=False, **head)
    if about_plan and isinstance(request, PlanStatusByUrl):
        return _status(head, request, success=False, status="Error", msg=error.reason)
    return fedbiomed4.ErrorMessage(errnum=error_number(error.code), extra_msg=error.reason, **head)


def _status(
    head: dict[str, Any], request: PlanStatusByUrl, *, success: bool, status: str, msg: str
) -> fedbiomed4.StatusReply:
    return fedbiomed4.StatusReply(
        job_id=request.job_id,
        success=success,
        approval_obligation=True,
        status=status,
        msg=msg,
        training_plan_url=request.url,
        **head,
    )


def _datasets(reply: DatasetsReply, *, with_dtypes: bool) -> dict[str, Any]:
    if reply.next_offset is not None:
        raise InvalidMessageError(
            f"the {reply.count} datasets do not fit into one message of this wire; search with more tags",
            code=ErrorCode.TOO_LARGE.value,
        )
    databases = [record_of(dataset, with_dtypes=with_dtypes) for dataset in reply.datasets]
    return {"success": True, "databases": databases, "count": len(databases)}
