"""How a researcher speaks with nodes of Fed-BioMed 4.4.

Most of their replies name their request: by sequence, or by the job id, which we choose. Those to list and search do
not; but a node answers in order, so a ping, the barrier, follows each of these. The messages of a
node before the barrier's pong are its answer; a search without a message has no match.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import InvalidMessageError
from fedmon.common.ids import NodeId
from fedmon.common.log import LEVELS
from fedmon.common.metrics.sample import Batch
from fedmon.common.metrics.series import series
from fedmon.common.wire import fedbiomed4, messages, topics
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import ErrorCode, LogRecord, PlanStatus
from fedmon.common.wire.samples import AddScalar
from fedmon.compat.fedbiomed import codec
from fedmon.researcher.asking.match import Pending, echo_of
from fedmon.researcher.asking.submission import StatusByUrl
from fedmon.researcher.historic.forms import ScriptRequest
from fedmon.researcher.replies.content import StoredDocument
from fedmon.researcher.session.connection import Dialect
from fedmon.researcher.session.inbox import Tally

MAX_REASON = 2_000
MAX_STREAMS = 10_000
MAX_TEXT = 16_384
MAX_NAME = 256
MAX_HELD_BYTES = 32 * 1024 * 1024
HELD_S = 60.0
NOT_TOLD = "the plan reached the node; this wire does not push the owner's decision: ask for the plan's status"

_PLAN_STATUS = {word: status for status, word in fedbiomed4.PLAN_STATUS.items()}
_REQUESTS = (messages.Ping, messages.ListDatasets, messages.SearchDatasets, messages.Approval, StatusByUrl)
"""Requests that an error may belong to; one about a request of a script is kept as it came."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a node to a list (``by_tags`` false) or to a search."""

    by_tags: bool
    success: bool
    datasets: list[messages.Dataset]


class _Said(NamedTuple):
    node_id: NodeId
    said: Listed | InvalidMessageError
    at: float
    size_bytes: int


class Held:
    """Bounded list of answers that no pong has assigned to a request yet. Belongs to one thread.

    Another process of the same researcher causes and hears the same answers: they are held until a pong to ours.
    """

    def __init__(self, *, max_bytes: int = MAX_HELD_BYTES, held_s: float = HELD_S) -> None:
        self._max_bytes, self._held_s = max_bytes, held_s
        self._said: deque[_Said] = deque()
        self._bytes = 0

    def add(self, node_id: NodeId, said: Listed | InvalidMessageError, *, size_bytes: int, at: float) -> None:
        """Hold an answer; the oldest is dropped if there are too many bytes, or if it is too old."""
        self._said.append(_Said(node_id, said, at, size_bytes))
        self._bytes += size_bytes
        while self._said and (self._bytes > self._max_bytes or at - self._said[0].at > self._held_s):
            self._bytes -= self._said.popleft().size_bytes

    def take(self, node_id: NodeId, *, since: float) -> list[Listed | InvalidMessageError]:
        """Return the answers of a node since a moment, in order, and forget all of its answers."""
        taken = [one.said for one in self._said if one.node_id == node_id and one.at >= since]
        self._said = deque(one for one in self._said if one.node_id != node_id)
        self._bytes = sum(one.size_bytes for one in self._said)
        return taken


class RoundScalar(AddScalar, frozen=True, kw_only=True, tag="add_scalar"):
    """Scalars of one iteration of a training round, with all that Fed-BioMed says about them."""

    train: bool
    test: bool
    test_on_local_updates: bool
    test_on_global_updates: bool
    total_samples: int
    batch_samples: int
    num_batches: int
    num_samples_trained: int | None

    @property
    def phase(self) -> str:
        """The part of a round that it belongs to."""
        if self.test_on_global_updates:
            return "test-global"
        if self.test_on_local_updates:
            return "test-local"
        return "test" if self.test else "train"


class FedBioMedDialect(Dialect):
    """The wire of Fed-BioMed 4.4. `read` belongs to the thread of the inbox, the rest is safe from any thread."""

    announced = False
    plans_inline = False

    def __init__(self, *, researcher_id: str, instance: str, pending: Pending, tally: Tally) -> None:
        super().__init__(researcher_id=researcher_id, instance=instance)
        self._pending, self._tally = pending, tally
        self._held = Held()
        self._next_number: OrderedDict[tuple[str, str], int] = OrderedDict()

    # --- saying ------------------------------------------------------------------------------------------------------

    def subscriptions(self) -> list[tuple[str, int]]:
        """Return the filters and QoS that are always heard: the shared topic of replies, and our own marker."""
        return [(fedbiomed4.REPLIES, 0), (topics.reply(self.researcher_id, self.instance, self.researcher_id), 0)]

    def encode(self, request: Request) -> tuple[bytes, ...]:
        """Write a request; a list and a search with their barrier. Raises InvalidMessageError when it is too large."""
        sender = self.researcher_id
        match request:
            case messages.Ping():
                return (self._ping(request),)
            case messages.ListDatasets():
                return codec.encode(fedbiomed4.ListRequest(researcher_id=sender)), self._ping(request)
            case messages.SearchDatasets():
                search = fedbiomed4.SearchRequest(researcher_id=sender, tags=request.tags)
                return codec.encode(search), self._ping(request)
            case messages.Approval():
                approval = fedbiomed4.ApprovalRequest(
                    researcher_id=sender,
                    description=request.description,
                    sequence=request.sequence,
                    training_plan_url=request.url or "",
                )
                return (codec.encode(approval),)
            case StatusByUrl():
                question = fedbiomed4.StatusRequest(
                    researcher_id=sender, job_id=request.id, training_plan_url=request.url
                )
                return (codec.encode(question),)
            case ScriptRequest():
                own = {"researcher_id": sender, "sequence": request.sequence}
                return (codec.encode(request.fields | {name: own[name] for name in own.keys() & request.fields}),)
            case _:
                return ()

    def _ping(self, request: Request) -> bytes:
        return codec.encode(fedbiomed4.PingRequest(researcher_id=self.researcher_id, sequence=request.sequence))

    def addressed(
        self, _request: Request, payloads: Sequence[bytes], nodes: Sequence[NodeId] | None
    ) -> Iterator[tuple[str, bytes, int]]:
        """Return topic, bytes and QoS of each message that asks these nodes, or all."""
        places = [fedbiomed4.NODES] if nodes is None else [f"general/{node}" for node in nodes]
        return ((topic, payload, 0) for topic in places for payload in payloads)

    def metrics_filters(self, _node_id: NodeId | None) -> set[str]:
        """Return the filter that brings scalars, and the metrics that nodes of ours publish beside them."""
        return {topics.ALL_MONITORING}

    def logs_filters(self, _node_id: NodeId | None) -> set[str]:
        """Return the filter that brings the log of every node."""
        return {fedbiomed4.LOGGER}

    # --- hearing -----------------------------------------------------------------------------------------------------

    def hears(self, topic: str) -> bool:
        """Tell whether this is a topic of Fed-BioMed."""
        return topic in (fedbiomed4.REPLIES, fedbiomed4.MONITORING, fedbiomed4.LOGGER)

    def read(self, topic: str, payload: bytes) -> Iterable[Reply | AddScalar | LogRecord]:
        """Read a message into ours. Raises InvalidMessageError."""
        if topic == fedbiomed4.MONITORING:
            return (scalar_of(payload),)
        if topic == fedbiomed4.LOGGER:
            return (log_record_of(payload),)
        try:
            told = codec.decode_reply(payload, researcher_id=self.researcher_id)
        except InvalidMessageError as error:
            node_id = codec.answering_node(payload, researcher_id=self.researcher_id)
            if node_id is not None:
                self._held.add(NodeId(node_id), error, size_bytes=len(payload), at=time.monotonic())
            raise
        reply = None if told is None else self._reply_of(told, size_bytes=len(payload))
        return () if reply is None else (reply,)

    def samples_of(self, scalar: AddScalar) -> Batch | None:
        """Return scalars as one sample of the stream of their job on their node, at the time of its arrival."""
        if not isinstance(scalar, RoundScalar):
            return None
        stream = f"job-{scalar.job_id}"[:MAX_NAME]
        key = (scalar.node_id, stream)
        number = self._next_number.pop(key, 0)
        self._next_number[key] = number + 1
        if len(self._next_number) > MAX_STREAMS:
            self._next_number.popitem(last=False)
        return Batch(
            node_id=scalar.node_id,
            boot=0,
            stream=stream,
            seq=number,
            t=[scalar.t or 0.0],
            mono=[time.monotonic()],
            columns={series(name, phase=scalar.phase): [value] for name, value in scalar.metric.items()},
        )

    def _reply_of(self, told: fedbiomed4.UnderstoodReply, *, size_bytes: int) -> Reply | None:
        node_id = NodeId(told.node_id)
        match told:
            case fedbiomed4.WireListReply() | fedbiomed4.WireSearchReply():
                self._held.add(node_id, _listed(told), size_bytes=size_bytes, at=time.monotonic())
                return None
            case fedbiomed4.PingReply():
                return self._pong(told)
            case fedbiomed4.WireApprovalReply():
                return self._approval(told)
            case fedbiomed4.StatusReply():
                return self._plan_status(told)
            case fedbiomed4.TrainReply():
                return _as_it_came(told, self._of_script(told.node_id, command="train", job_id=told.job_id))
            case fedbiomed4.ErrorMessage():
                return self._error(told)

    def _pong(self, told: fedbiomed4.PingReply) -> Reply | None:
        asked = self._pending.find(lambda one: one.request.sequence == told.sequence)
        match request := None if asked is None else asked.request:
            case messages.Ping():
                return messages.Pong(
                    success=told.success, time=utc_now(), boot=0, agent_version="", **echo_of(request, told.node_id)
                )
            case messages.ListDatasets() | messages.SearchDatasets():
                since = 0.0 if asked is None else asked.started
                return _answer_to(request, told.node_id, self._held.take(NodeId(told.node_id), since=since))
            case _:
                self._count_unasked(told)
                return None

    def _approval(self, told: fedbiomed4.WireApprovalReply) -> Reply | None:
        asked = self._pending.find(lambda one: one.request.sequence == told.sequence)
        request = None if asked is None else asked.request
        if isinstance(request, ScriptRequest):
            return _as_it_came(told, request)
        if not isinstance(request, messages.Approval):
            self._count_unasked(told)
            return None
        if not told.success:
            how = f"its download ended with HTTP status {told.status}" if told.status else "it could not download it"
            return _failed(request, told.node_id, f"the node did not take the plan in: {how}")
        return messages.ApprovalReply(
            plan_id="",
            sha256=request.sha256,
            status=PlanStatus.PENDING,
            note=NOT_TOLD,
            **echo_of(request, told.node_id),
        )

    def _plan_status(self, told: fedbiomed4.StatusReply) -> Reply | None:
        echoed = {"job_id": told.job_id, "training_plan_url": told.training_plan_url}
        if by_script := self._of_script(told.node_id, command="training-plan-status", **echoed):
            return _as_it_came(told, by_script)
        asked = self._pending.find(lambda one: one.id == told.job_id)
        request = None if asked is None else asked.request
        if not isinstance(request, StatusByUrl):
            self._count_unasked(told)
            return None
        if not told.success or told.status not in _PLAN_STATUS:
            return _failed(request, told.node_id, told.msg or f"the node answered {told.status!r}")
        return messages.TrainingPlanStatusReply(
            sha256=request.sha256,
            status=_PLAN_STATUS[told.status],
            note=told.msg[:MAX_REASON],
            approval_obligation=told.approval_obligation,
            **echo_of(request, told.node_id),
        )

    def _error(self, told: fedbiomed4.ErrorMessage) -> Reply | None:
        """Give an error to the newest request that this node owes an answer: it does not name the request."""
        reason = f"{told.errnum}: {told.extra_msg}"
        for waiting in reversed(self._pending.all_open()):
            if isinstance(waiting.request, _REQUESTS) and waiting.is_owed_by(NodeId(told.node_id)):
                return _failed(waiting.request, told.node_id, reason)
        self._tally.count("errors from nodes", f"{told.node_id}: {reason}")
        by_script = self._of_script(told.node_id)
        return None if by_script is None else _as_it_came(told, by_script)

    def _of_script(self, node_id: str, **fields: str) -> Request | None:
        """Return the last request of a script, with these fields, that a node has not answered."""
        asked = self._pending.find(
            lambda one: (
                isinstance(one.request, ScriptRequest)
                and fields.items() <= one.request.fields.items()
                and one.is_owed_by(NodeId(node_id))
            )
        )
        return None if asked is None else asked.request

    def _count_unasked(self, told: fedbiomed4.WireReply) -> None:
        self._tally.count("replies of a wrong session, sequence or kind", f"{type(told).__name__} of {told.node_id}")


def scalar_of(payload: bytes) -> RoundScalar:
    """Read scalars; ``t`` is their arrival. Raises InvalidMessageError."""
    fields = msgspec.structs.asdict(codec.decode_scalar(payload))
    del fields["protocol_version"]
    metric = {name: _number(value) for name, value in fields["metric"].items()}
    return RoundScalar(**fields | {"metric": metric, "t": time.time()})


def log_record_of(payload: bytes) -> LogRecord:
    """Read a log record; its time is the arrival, as its own names no zone. Raises InvalidMessageError."""
    told, text = codec.decode_log(payload)
    return LogRecord(
        node_id=told.node_id,
        boot=0,
        time=utc_now(),
        level=told.level if told.level in LEVELS else "INFO",  # type: ignore[arg-type]  # one of the words just named
        logger=text.name[:MAX_NAME],
        msg=text.message[:MAX_TEXT],
    )


def _listed(told: fedbiomed4.WireListReply | fedbiomed4.WireSearchReply) -> Listed | InvalidMessageError:
    try:
        datasets = [_dataset_of(record) for record in told.databases]
    except InvalidMessageError as error:
        return error
    return Listed(by_tags=isinstance(told, fedbiomed4.WireSearchReply), success=told.success, datasets=datasets)


def _answer_to(
    request: messages.ListDatasets | messages.SearchDatasets, node_id: str, said: list[Listed | InvalidMessageError]
) -> Reply:
    """Return the answer of a node before the barrier.

    Another of our processes may have asked it something else meanwhile. An answer to other tags that fits these as well
    is a part of the answer to these, so the longest is used.
    """
    echo = echo_of(request, node_id)
    fitting = [listed for listed in said if isinstance(listed, Listed) and _fits(listed, request)]
    if fitting:
        longest = max(fitting, key=lambda listed: len(listed.datasets))
        kind = messages.SearchReply if longest.by_tags else messages.ListReply
        return kind(success=longest.success, datasets=longest.datasets, count=len(longest.datasets), **echo)
    unreadable = [error for error in said if isinstance(error, InvalidMessageError)]
    if unreadable:
        return _failed(request, node_id, f"its reply cannot be read: {unreadable[-1].reason}")
    if isinstance(request, messages.SearchDatasets):
        return messages.SearchReply(datasets=[], count=0, **echo)
    return _failed(request, node_id, "the node answered the ping that followed, but not this request; ask again")


def _fits(listed: Listed, request: messages.ListDatasets | messages.SearchDatasets) -> bool:
    if not isinstance(request, messages.SearchDatasets):
        return not listed.by_tags
    return listed.by_tags and all(set(request.tags) <= set(dataset.tags) for dataset in listed.datasets)


def _as_it_came(told: fedbiomed4.WireReply, request: Request | None) -> StoredDocument:
    return StoredDocument.of(msgspec.to_builtins(told), **({} if request is None else echo_of(request, told.node_id)))


def _failed(request: Request, node_id: str, reason: str) -> messages.Error:
    return messages.Error(code=ErrorCode.FAILED, reason=reason[:MAX_REASON], **echo_of(request, node_id))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a dataset."""

    dataset_id: str | None = None
    name: str | None = None
    data_type: str | None = None
    tags: list[str] = []
    description: str | None = None
    shape: Any = None
    dtypes: list[str] | None = None
    dataset_parameters: dict[str, Any] | None = None
    dlp_id: Any = None


def _dataset_of(record: Mapping[str, Any]) -> messages.Dataset:
    """Read the record that a Fed-BioMed node sends of a dataset.

    Its types of columns name no columns: they are numbered from "0". Fields that we lack, such as the shape of a
    folder of images and tables, become parameters. Raises InvalidMessageError.
    """
    try:
        told = msgspec.convert(record, _Record)
    except msgspec.ValidationError as error:
        raise InvalidMessageError(f"the record of a dataset is malformed: {error}") from None
    parameters, shape = told.dataset_parameters, told.shape
    others = {} if told.dlp_id is None else {"dlp_id": told.dlp_id}
    if shape and not (isinstance(shape, list) and all(type(size) is int for size in shape)):
        others["shape"], shape = shape, None
    return messages.Dataset(
        dataset_id=told.dataset_id or "",
        name=told.name or "",
        data_type=told.data_type or "",
        tags=told.tags,
        description=told.description or "",
        shape=shape or None,
        dtypes={str(number): dtype for number, dtype in enumerate(told.dtypes or ())} or None,
        dataset_parameters={**(parameters or {}), **others} if parameters is not None or others else None,
    )
