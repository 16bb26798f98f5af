"""The messages of Fed-BioMed 4.4, with exactly the fields that its programs check for.

One field more or less ends a Fed-BioMed program's network thread, so these classes allow neither.
Source: the message classes of Fed-BioMed 4.4.0.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from fedmon.common.errors import InvalidMessageError
from fedmon.common.wire import messages
from fedmon.common.wire.envelope import Message, Reply
from fedmon.common.wire.messages import Dataset, DatasetsReply, ErrorCode, PlanStatus

PROTOCOL_VERSION = "1"
NODES = "general/nodes"
REPLIES = "general/researcher"
MONITORING = "general/monitoring"
LOGGER = "general/logger"

UNKNOWN_RESEARCHER = "<unknown>"
"""The researcher of a log record."""
PLAN_STATUS = {
    PlanStatus.APPROVED: "Approved",
    PlanStatus.REJECTED: "Rejected",
    PlanStatus.PENDING: "Pending",
    None: "Not Registered",
}
DOWNLOADED, NOT_DOWNLOADED = 200, 0
_UNSERVED = frozenset(
    {ErrorCode.MALFORMED, ErrorCode.VERSION, ErrorCode.UNKNOWN_COMMAND, ErrorCode.UNSUPPORTED, ErrorCode.WRONG_ADDRESS}
)


class WireMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command"):
    """Fields of every message; ``command`` is the tag of the class."""

    protocol_version: str = PROTOCOL_VERSION


# --- researcher to node ---------------------------------------------------------------------------------------------


class WireRequest(WireMessage, frozen=True, kw_only=True):
    """Fields of every request."""

    researcher_id: str


class PingRequest(WireRequest, frozen=True, kw_only=True, tag="ping"):
    """Ask for a sign of life."""

    sequence: int


class ListRequest(WireRequest, frozen=True, kw_only=True, tag="list"):
    """Ask for all datasets; the reply does not name its request."""


class SearchRequest(WireRequest, frozen=True, kw_only=True, tag="search"):
    """Ask for the datasets that carry all of ``tags``; without a match there is no answer."""

    tags: list[str]


class ApprovalRequest(WireRequest, frozen=True, kw_only=True, tag="approval"):
    """Ask for approval of the training plan at a URL."""

    description: str
    sequence: int
    training_plan_url: str


class StatusRequest(WireRequest, frozen=True, kw_only=True, tag="training-plan-status"):
    """Ask for the status of the training plan at a URL; the reply repeats ``job_id``."""

    job_id: str
    training_plan_url: str


class TrainRequest(WireRequest, frozen=True, kw_only=True, tag="train"):
    """Ask for one round of training. Version 4.4 refuses ``aux_var_urls``, which only 4.5 knows."""

    job_id: str
    params_url: str
    training_args: dict[str, Any]
    dataset_id: str
    training: bool
    model_args: dict[str, Any]
    training_plan_url: str
    training_plan_class: str
    secagg_servkey_id: str | None
    secagg_biprime_id: str | None
    secagg_random: float | None
    secagg_clipping_range: int | None
    round: int
    aggregator_args: dict[str, Any]
    aux_var_urls: list[Any] | msgspec.UnsetType | None = msgspec.UNSET


# Training is for nodes of Fed-BioMed, ours serve the others; secure aggregation is asked for by none of our programs.
ServedRequest = PingRequest | ListRequest | SearchRequest | ApprovalRequest | StatusRequest
AnyRequest = ServedRequest | TrainRequest


# --- node to researcher ---------------------------------------------------------------------------------------------


class WireReply(WireMessage, frozen=True, kw_only=True):
    """Fields of every message of a node."""

    researcher_id: str
    node_id: str


class PingReply(WireReply, frozen=True, kw_only=True, tag="pong"):
    """A sign of life."""

    success: bool
    sequence: int


class WireDatasetsReply(WireReply, frozen=True, kw_only=True):
    """Datasets as a node keeps them, without hidden fields; ``count`` is their number."""

    success: bool
    databases: list[dict[str, Any]]
    count: int


class WireListReply(WireDatasetsReply, frozen=True, kw_only=True, tag="list"):
    """All datasets of a node."""


class WireSearchReply(WireDatasetsReply, frozen=True, kw_only=True, tag="search"):
    """The matching datasets, at least one."""


class WireApprovalReply(WireReply, frozen=True, kw_only=True, tag="approval"):
    """Whether the plan reached the node; ``status`` is the HTTP status of its download, 0 without one."""

    sequence: int
    status: int
    success: bool


class StatusReply(WireReply, frozen=True, kw_only=True, tag="training-plan-status"):
    """The status of a plan: ``status`` is Approved, Rejected, Pending, Not Registered, or Error without success."""

    job_id: str
    success: bool
    approval_obligation: bool
    status: str
    msg: str
    training_plan_url: str


class TrainReply(WireReply, frozen=True, kw_only=True, tag="train"):
    """The result of a round."""

    job_id: str
    success: bool
    dataset_id: str
    params_url: str
    timing: dict[str, Any]
    sample_size: int | None
    msg: str


class ErrorMessage(WireReply, frozen=True, kw_only=True, tag="error"):
    """An error; it names neither the request nor the instance."""

    errnum: str
    extra_msg: str


class WireScalar(WireReply, frozen=True, kw_only=True, tag="add_scalar"):
    """Values of a training loop."""

    job_id: str
    train: bool
    test: bool
    test_on_local_updates: bool
    test_on_global_updates: bool
    metric: dict[str, Any]
    epoch: int | None
    total_samples: int
    batch_samples: int
    num_batches: int
    num_samples_trained: int | None
    iteration: int


class Log(WireReply, frozen=True, kw_only=True, tag="log"):
    """One record of a node's log; ``msg`` is a JSON text in itself."""

    level: str
    msg: str


UnderstoodReply = (
    PingReply | WireListReply | WireSearchReply | WireApprovalReply | StatusReply | TrainReply | ErrorMessage
)
AnyReply = UnderstoodReply | WireScalar | Log


def reply_of(reply: Message, *, job_id: str = "", training_plan_url: str = "") -> UnderstoodReply | None:
    """Return the message for a reply of ours; None for any other, and where version 4.4 has none.

    The last two are fields that ours lacks; programs of version 4.4, too, send an empty text where they have none.
    """
    if not isinstance(reply, Reply):
        return None
    head: dict[str, Any] = {"researcher_id": reply.researcher_id, "node_id": reply.node_id}
    match reply:
        case messages.Pong():
            return PingReply(success=reply.success, sequence=reply.sequence, **head)
        case messages.ListReply():
            return WireListReply(**_datasets(reply, with_dtypes=False), **head)
        case messages.SearchReply():
            return WireSearchReply(**_datasets(reply, with_dtypes=True), **head)
        case messages.ApprovalReply():
            status = DOWNLOADED if reply.success else NOT_DOWNLOADED
            return WireApprovalReply(sequence=reply.sequence, status=status, success=reply.success, **head)
        case messages.TrainingPlanStatusReply():
            return StatusReply(
                job_id=job_id,
                success=reply.success,
                approval_obligation=reply.approval_obligation,
                status=PLAN_STATUS[reply.status],
                msg=reply.note,
                training_plan_url=training_plan_url,
                **head,
            )
        case messages.Error():
            number = "FB301: Protocol error" if reply.code in _UNSERVED else "FB300: undetermined node error"
            return ErrorMessage(errnum=number, extra_msg=reply.reason, **head)
    return None


def _datasets(reply: DatasetsReply, *, with_dtypes: bool) -> dict[str, Any]:
    databases = [record_of(dataset, with_dtypes=with_dtypes) for dataset in reply.datasets]
    return {"success": reply.success, "databases": databases, "count": reply.count}


def record_of(dataset: Dataset, *, with_dtypes: bool) -> dict[str, Any]:
    """Return the record that a Fed-BioMed node sends of a dataset: types of columns only in the answer to a search."""
    record: dict[str, Any] = {
        "name": dataset.name,
        "data_type": dataset.data_type,
        "tags": dataset.tags,
        "description": dataset.description,
        "shape": dataset.shape or [],
        "dataset_id": dataset.dataset_id,
        "dataset_parameters": dataset.dataset_parameters,
    }
    if with_dtypes:
        record["dtypes"] = list((dataset.dtypes or {}).values())
    return record


def converted(message: object, kind: Any) -> Any:
    """Return a message, given as a mapping, as one of the classes of a union. Raises InvalidMessageError."""
    command = message.get("command") if isinstance(message, Mapping) else None
    if command is None:
        raise InvalidMessageError("the message names no command")
    commands = sorted(one.__struct_config__.tag for one in typing.get_args(kind) or [kind])
    if command not in commands:
        raise InvalidMessageError(
            f"command {str(command)[:64]!r} is not one of {', '.join(commands)}", code=ErrorCode.UNKNOWN_COMMAND.value
        )
    try:
        return msgspec.convert(message, kind)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise InvalidMessageError(f"{command}: {' '.join(str(error).split())[:300]}") from None


def checked_request(message: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request of a researcher, with the protocol version. Raises InvalidMessageError."""
    return _checked({**message, "protocol_version": PROTOCOL_VERSION}, AnyRequest)


def checked_reply(message: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message that a node sent. Raises InvalidMessageError."""
    if "protocol_version" not in message:
        raise InvalidMessageError("the message has no field 'protocol_version'")
    return _checked(message, AnyReply)


def _checked(message: dict[str, Any], kind: Any) -> dict[str, Any]:
    fields = msgspec.structs.asdict(converted(message, kind))
    given = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    return given | {"command": message["command"]}
