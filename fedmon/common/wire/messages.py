"""Every message of the wire "fedmon/1", as frozen values.

Requests, replies and unrequested messages of a node have separate unions, so that a reply can never be taken for a
request. Field names are the JSON keys. Times are RFC 3339 in UTC.
"""

from __future__ import annotations

import datetime
import enum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fedmon.common.metrics.sample import Batch
from fedmon.common.wire.envelope import Count, Id, LongText, Message, Reply, Request, Sha256, ShortText, Utc
from fedmon.common.wire.grants import Grant, GrantReport
from fedmon.common.wire.runs import JobOutcome, JobsReply, JobStatus, Run, RunReply, RunScalars, Stop, StopReply
from fedmon.common.wire.samples import AddScalar, MonitorReply, SamplesReply

MAX_INTERVAL_S, MAX_LEASE_S = 3600.0, 60.0
MAX_PAGE = 1000
CONNECTION_LOST = "connection lost"
"""The reason in a last will, which was written when its node connected: its ``since`` is not when the node went."""


class ErrorCode(enum.Enum):
    """Why a node did not serve a request."""

    MALFORMED = "malformed"
    VERSION = "version"
    UNKNOWN_COMMAND = "unknown-command"
    EXPIRED = "expired"
    WRONG_ADDRESS = "wrong-address"
    REFUSED = "refused"
    UNSUPPORTED = "unsupported"
    NO_SANDBOX = "no-sandbox"
    OUTSIDE_GRANT = "outside-grant"
    TOO_LARGE = "too-large"
    BUSY = "busy"
    FAILED = "failed"


class PlanStatus(enum.Enum):
    """Where a training plan stands with the owner of a node."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"


# --- requests: researcher to node ---------------------------------------------------------------------------------


class Ping(Request, frozen=True, kw_only=True, tag="ping"):
    """Ask for a sign of life."""


class ListDatasets(Request, frozen=True, kw_only=True, tag="list"):
    """Ask for the datasets that this researcher may see, in pages."""

    offset: Count = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = MAX_PAGE


class SearchDatasets(Request, frozen=True, kw_only=True, tag="search"):
    """Ask for the datasets that carry every one of ``tags``; answered also when nothing matches."""

    tags: Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=64)]
    offset: Count = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = MAX_PAGE


class Approval(Request, frozen=True, kw_only=True, tag="approval"):
    """Ask the owner to approve a training plan: its exact bytes as ``source``, or where to fetch them.

    ``sha256`` is the digest of the exact bytes. Exactly one of ``source`` and ``url`` is given. ``datasets`` are ids or
    names, or tags joined by commas that must all fit; a node takes those that it lists to the researcher, and null asks
    for all of them.
    """

    name: ShortText
    description: LongText = ""
    purpose: LongText = ""
    datasets: Annotated[list[ShortText], Meta(max_length=1000)] | None = None
    sha256: Sha256
    size_bytes: Count
    source: str | None = None
    url: Annotated[str, Meta(max_length=2048)] | None = None


class TrainingPlanStatus(Request, frozen=True, kw_only=True, tag="training-plan-status"):
    """Ask where the plan with this digest stands."""

    sha256: Sha256


class Monitor(Request, frozen=True, kw_only=True, tag="monitor"):
    """Start, stop or renew a lease on live metrics, ask for the metrics, or ask for samples again.

    ``interval_s`` is the wanted sampling interval; ``lease_s`` how long it holds unless renewed. ``first_seq`` and
    ``last_seq`` (both included) name the samples of ``stream`` that a resend asks for; with ``since_t`` it begins with
    the first of them that is not older than this Unix time.
    """

    action: Literal["start", "stop", "status", "resend"]
    interval_s: Annotated[float, Meta(gt=0, le=MAX_INTERVAL_S)] | None = None
    lease_s: Annotated[float, Meta(gt=0, le=MAX_LEASE_S)] = 30.0
    live: bool = True
    stream: ShortText = "host"
    boot: Count | None = None
    first_seq: Count | None = None
    last_seq: Count | None = None
    since_t: float | None = None


class Ack(Request, frozen=True, kw_only=True, tag="ack"):
    """Tell a node that these results of its outbox are safe with the researcher; has no reply."""

    ids: Annotated[list[ShortText], Meta(max_length=1000)]


AnyRequest = (
    Ping | ListDatasets | SearchDatasets | Approval | TrainingPlanStatus | Monitor | Ack | Run | Stop | JobStatus
)
STATE_CHANGING: tuple[type[Request], ...] = (Approval, Run, Stop)
"""Requests whose effect is committed with their id, so that asking again changes nothing twice."""
NEVER_BROADCAST: tuple[type[Request], ...] = (Approval, TrainingPlanStatus, Run)
"""Requests that carry or name the source of a plan: batch jobs hear broadcasts, so each node is sent its own."""


# --- replies: node to the researcher that asked -------------------------------------------------------------------


class Pong(Reply, frozen=True, kw_only=True, tag="pong"):
    """A sign of life; ``time`` is the node's clock."""

    time: Utc
    boot: Count
    agent_version: ShortText


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """A node's description of a dataset; its path never leaves the node.

    ``shape`` is rows and columns of a table (or as the owner gave it); ``dtypes`` maps column to type name.
    """

    dataset_id: str
    name: str
    data_type: str
    tags: list[str]
    description: str = ""
    shape: list[int] | None = None
    dtypes: dict[str, str] | None = None
    dataset_parameters: dict[str, Any] | None = None
    created: datetime.datetime | None = None
    modified: datetime.datetime | None = None


class DatasetsReply(Reply, frozen=True, kw_only=True):
    """One page of datasets; ``count`` is how many there are in all, ``next_offset`` where the next page starts."""

    datasets: list[Dataset]
    count: Count
    offset: Count = 0
    next_offset: Count | None = None


class ListReply(DatasetsReply, frozen=True, kw_only=True, tag="list"):
    """The datasets that this researcher may see."""


class SearchReply(DatasetsReply, frozen=True, kw_only=True, tag="search"):
    """The datasets that match."""


class ApprovalReply(Reply, frozen=True, kw_only=True, tag="approval"):
    """The plan's bytes and record are on the node's disk; ``status`` is the owner's decision so far."""

    plan_id: str
    sha256: str
    status: PlanStatus
    note: str = ""


class TrainingPlanStatusReply(Reply, frozen=True, kw_only=True, tag="training-plan-status"):
    """Where a plan stands; ``status`` is null when the node does not know these bytes.

    ``grants`` are those that hold for the asking researcher.
    """

    sha256: str
    status: PlanStatus | None
    plan_id: str | None = None
    name: str | None = None
    note: str = ""
    decided: Utc | None = None
    approval_obligation: bool = True
    grants: list[GrantReport] = []


class Error(Reply, frozen=True, kw_only=True, tag="error"):
    """The node did not do it, and why; id, session and sequence are empty or 0 where they could not be read.

    ``retry_after_s`` tells with the code "busy" when to try again, and is null if the node does not know.
    """

    id: str = ""
    session: str = ""
    sequence: int = 0
    success: bool = False
    code: ErrorCode
    reason: str
    retry_after_s: float | None = None


# --- sent by a node of itself --------------------------------------------------------------------------------------


class PlanDecision(Message, frozen=True, kw_only=True, tag="plan-decision"):
    """The owner decided, or the node found out something, about a plan; stays in the outbox until acknowledged.

    ``grant`` has the terms of an approval.
    """

    node_id: Id
    researcher_id: Id
    id: ShortText
    boot: Count
    plan_id: str
    sha256: str
    name: str
    status: PlanStatus
    note: str = ""
    problem: str = ""
    decided: Utc
    grant: Grant | None = None


class LogRecord(Message, frozen=True, kw_only=True, tag="log"):
    """One record of a node's log."""

    node_id: Id
    boot: Count
    time: Utc
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
    logger: ShortText
    msg: LongText


class Presence(Message, frozen=True, kw_only=True, tag="status"):
    """Retained on the node's status topic, and its last will; ``boot`` rises with each connection."""

    node_id: Id
    boot: Count
    state: Literal["online", "draining", "offline"]
    since: Utc
    reason: str = ""
    agent_version: ShortText
    capabilities: list[str] = []
    streams: list[str] = []


OTHER_WIRE = "fedbiomed4"
"""Among the capabilities of a node's presence: it answers on the wire of Fed-BioMed 4.4 and not on this one."""

ONLY_TELLS = "reporter"
"""Among the capabilities of a presence: this party answers ping and monitor, and nothing else is waited for."""

AnyReply = (
    Pong
    | ListReply
    | SearchReply
    | ApprovalReply
    | TrainingPlanStatusReply
    | MonitorReply
    | SamplesReply
    | RunReply
    | StopReply
    | JobsReply
    | Error
    | PlanDecision
    | JobOutcome
    | RunScalars
)
Result = PlanDecision | JobOutcome
"""Messages that a node keeps in its outbox until the researcher acknowledges them."""

AnyTelemetry = Batch | AddScalar
