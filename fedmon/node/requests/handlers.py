"""One handler for each command of the wire: it gets a valid request of an obeyed researcher, and returns the reply."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from fedmon import __version__
from fedmon.common.clock import utc_now
from fedmon.common.errors import ConflictError, FedmonError, InvalidInputError
from fedmon.common.http import RepositoryError
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import (
    Ack,
    Approval,
    ApprovalReply,
    Error,
    ErrorCode,
    ListDatasets,
    ListReply,
    Monitor,
    Ping,
    Pong,
    SearchDatasets,
    SearchReply,
    TrainingPlanStatus,
    TrainingPlanStatusReply,
)
from fedmon.common.wire.runs import JobStatus, Run, Stop
from fedmon.node.registers.state import Registers
from fedmon.node.requests.dialect import echo
from fedmon.node.requests.monitor import MonitorHandler
from fedmon.node.requests.policy import Policy
from fedmon.node.runs.outcome import fitting
from fedmon.node.runs.service import Runs

Handler = Callable[[Any], Reply | None]
HTTP_OK = 200


class PlanApprovalByUrl(Request, frozen=True, kw_only=True, tag="approval"):
    """Ask the owner to approve the plan at a URL."""

    url: str
    description: str


class PlanStatusByUrl(Request, frozen=True, kw_only=True, tag="training-plan-status"):
    """Ask for the status of the plan at a URL; ``job_id`` is the asker's id for it."""

    url: str
    job_id: str


class PlanError(Error, frozen=True, kw_only=True, tag="error"):
    """The plan was not fetched, or not taken in; ``http_status`` is how its download ended, 0 if there was none."""

    http_status: int


class BytesElsewhereError(Exception):
    """The plan's bytes are not in the message: they must be fetched before it can be answered.

    ``sha256`` is the digest that they must have, None if unknown. ``then`` makes the reply of the bytes, or of the
    error that fetching them ended with; it raises FedmonError.
    """

    def __init__(self, url: str, *, sha256: str | None, then: Callable[[bytes | FedmonError], Reply]) -> None:
        super().__init__(url)
        self.url, self.sha256, self.then = url, sha256, then


class Handlers:
    """A method for each command of the wire; ``by_kind`` maps kinds of requests to them.

    ``check_plan(sha256)`` has a new plan read by a worker. ``page_bytes`` is the room for the datasets of one reply.
    """

    def __init__(
        self,
        registers: Registers,
        policy: Policy,
        *,
        boot: Callable[[], int],
        runs: Runs,
        monitor: MonitorHandler,
        check_plan: Callable[[str], object],
        page_bytes: int,
    ) -> None:
        self._node_id, self._registers, self._policy, self._boot = policy.node_id, registers, policy, boot
        self._check_plan, self._page_bytes = check_plan, page_bytes
        self.by_kind: dict[type[Request], Handler] = {
            Ping: self._ping,
            ListDatasets: self._datasets,
            SearchDatasets: self._datasets,
            Approval: self._approval,
            PlanApprovalByUrl: self._by_url,
            TrainingPlanStatus: self._status,
            PlanStatusByUrl: self._by_url,
            Monitor: monitor,
            Ack: self._ack,
            Run: runs.start,
            Stop: runs.stop,
            JobStatus: runs.standing.answer,
        }

    def _ping(self, request: Ping) -> Pong:
        return Pong(time=utc_now(), boot=self._boot(), agent_version=__version__, **echo(request, self._node_id))

    def _ack(self, request: Ack) -> None:
        """Drop the results that this researcher has; an ack has no reply."""
        self._registers.outbox.ack(request.researcher_id, request.ids)

    def _datasets(self, request: ListDatasets | SearchDatasets) -> ListReply | SearchReply:
        """Return the datasets that this researcher may see, from the asked offset on, as many as fit into a message."""
        reply: type[ListReply | SearchReply]
        if isinstance(request, SearchDatasets):
            reply, records = SearchReply, self._registers.datasets.search(request.tags)
        else:
            reply, records = ListReply, self._registers.datasets.all()
        seen = [*self._policy.seen(request.researcher_id, records).values()]
        asked = (record.listed() for record in seen[request.offset : request.offset + request.limit])
        page = fitting(asked, self._page_bytes)
        end = request.offset + len(page)
        return reply(
            datasets=page,
            count=len(seen),
            offset=request.offset,
            next_offset=end if end < len(seen) else None,
            **echo(request, self._node_id),
        )

    # --- training plans ----------------------------------------------------------------------------------------------

    def _approval(self, request: Approval) -> Reply:
        """Keep bytes and record, then tell where the plan stands; runs inside the transaction of its effect.

        Raises BytesElsewhereError if the message names a URL, FedmonError if the plan cannot be taken in.
        """
        if (request.source is None) == (request.url is None):
            raise InvalidInputError("an approval carries exactly one of `source` and `url`")
        if request.source is None:
            raise BytesElsewhereError(request.url or "", sha256=request.sha256, then=partial(self._take_in, request))
        return self._take_in(request, request.source.encode())

    def _by_url(self, request: PlanApprovalByUrl | PlanStatusByUrl) -> Reply:
        """Have the bytes fetched."""
        raise BytesElsewhereError(request.url, sha256=None, then=partial(self._of_fetched, request))

    def _status(self, request: TrainingPlanStatus) -> Reply:
        """Return the owner's decision about these bytes, with the latest grants that fit; null if they are not here."""
        plan = self._registers.plans.find(request.sha256)
        if plan is None:
            return TrainingPlanStatusReply(sha256=request.sha256, status=None, **echo(request, self._node_id))
        seen = self._policy.seen(request.researcher_id, self._registers.datasets.all())
        grants = self._registers.plans.grants.reports(plan.sha256, request.researcher_id, seen)
        note = self._registers.plans.note_for(plan, request.researcher_id)
        room = self._page_bytes - len(msgspec.json.encode(note))
        sizes = itertools.accumulate(len(msgspec.json.encode(each)) + 1 for each in reversed(grants))
        fit = sum(size < room for size in sizes)
        return TrainingPlanStatusReply(
            sha256=plan.sha256,
            status=self._registers.plans.status_for(plan, request.researcher_id),
            plan_id=plan.plan_id,
            name=plan.name,
            note=note,
            decided=plan.decided,
            grants=grants[len(grants) - fit :],
            **echo(request, self._node_id),
        )

    def _take_in(self, request: Approval, source: bytes | FedmonError) -> ApprovalReply:
        """Keep bytes and record; have a worker read the plan once both are committed."""
        if isinstance(source, FedmonError):
            raise source
        datasets = None if request.datasets is None else self._offered(request, request.datasets)
        seen = self._policy.seen(request.researcher_id, self._registers.datasets.all())
        plan = self._registers.plans.request(request, source, datasets=datasets, seen=seen)
        asked = {"datasets": datasets, "purpose": request.purpose or None}
        self._registers.audit.record(
            "approval-requested",
            plan_id=plan.plan_id,
            sha256=plan.sha256,
            name=plan.name,
            description=plan.description,
            researcher=request.researcher_id,
            **{name: value for name, value in asked.items() if value is not None},
        )
        if not plan.checked:
            self._registers.database.after_commit(partial(self._check_plan, plan.sha256))
        return ApprovalReply(
            plan_id=plan.plan_id,
            sha256=plan.sha256,
            status=plan.status,
            note=self._registers.plans.note_for(plan, request.researcher_id),
            **echo(request, self._node_id),
        )

    def _offered(self, request: Approval, names: list[str]) -> list[str]:
        """Return the ids of the datasets that are asked for and listed to the researcher. Raises ConflictError."""
        seen, found = self._policy.seen(request.researcher_id, self._registers.datasets.all()), set[str]()
        for name in names:
            called = {dataset_id for dataset_id, record in seen.items() if name in (dataset_id, record.name)}
            tagged = {dataset_id for dataset_id, record in seen.items() if set(name.split(",")) <= set(record.tags)}
            found |= called if called & tagged else called | tagged  # a tag of others alone may be meant as such
        if names and not found:
            asked = ", ".join(map(repr, names))
            raise ConflictError(f"this node offers you no dataset {asked}: list or search its datasets first")
        return [dataset_id for dataset_id in seen if dataset_id in found]

    def _of_fetched(self, request: PlanApprovalByUrl | PlanStatusByUrl, source: bytes | FedmonError) -> Reply:
        """Take in a plan of fetched bytes, or tell where one of exactly these bytes stands."""
        problem, status = source, source.http_status if isinstance(source, RepositoryError) else 0
        if isinstance(source, bytes):
            digest = hashlib.sha256(source).hexdigest()
            envelope = {name: getattr(request, name) for name in Request.__struct_fields__}
            if isinstance(request, PlanStatusByUrl):
                return self._status(TrainingPlanStatus(sha256=digest, **envelope))
            known = Approval(
                name=f"plan-{digest[:12]}",
                description=request.description,
                sha256=digest,
                size_bytes=len(source),
                url=request.url,
                **envelope,
            )
            try:
                with self._registers.database.transaction():
                    return self._take_in(known, source)
            except (InvalidInputError, ConflictError) as error:
                problem, status = error, HTTP_OK
        return PlanError(code=ErrorCode.FAILED, reason=str(problem), http_status=status, **echo(request, self._node_id))
