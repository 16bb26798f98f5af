"""How jobs stand, as their researcher is told."""

from __future__ import annotations

import datetime
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import FedmonError
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.common.wire.messages import ErrorCode
from fedmon.common.wire.runs import (
    MAX_SCALARS,
    MAX_TRACE_BYTES,
    JobReport,
    JobsReply,
    JobStatus,
    Parcel,
    Scalar,
    TracePiece,
)
from fedmon.node.requests.dialect import echo
from fedmon.node.requests.policy import Policy
from fedmon.node.runs import results
from fedmon.node.runs.conclusion import WITHHELD, leaving
from fedmon.node.runs.folder import JobFolder
from fedmon.node.runs.going import Going
from fedmon.node.runs.order import Reported
from fedmon.node.runs.refusal import RunRefusedError
from fedmon.node.runs.register import JobRecord, JobRegister

SCALARS_BYTES = 40_000
_MAX_REMEMBERED = 64
_LEAST_TRACE_BYTES = 256

_encode = msgspec.json.Encoder().encode

logger = logging.getLogger(__name__)

ROOM_BYTES = MAX_PAYLOAD_BYTES - 4_000
"""What the members of a reply may take; the rest is for its envelope."""
IDS_KEPT = datetime.timedelta(days=31)
"""So long after its files a job's id is still known: no request lives longer."""


class Status:
    """Answers questions about jobs; belongs to the node's worker. ``going`` are those that are not over."""

    def __init__(self, policy: Policy, register: JobRegister, folder: Path, going: Mapping[str, Going]) -> None:
        self._policy, self._register, self._folder, self._going = policy, register, folder, going
        self._scalars = ScalarPages()

    def own(self, job_id: str, researcher_id: str) -> JobRecord:
        """Return a job of this researcher. Raises RunRefusedError when he has none of this id."""
        going = self._going.get(job_id)
        record = self._register.find(job_id) if going is None else going.record
        if record is None or record.researcher_id != researcher_id:
            # Whether it is somebody else's is nobody's business.
            raise RunRefusedError(ErrorCode.FAILED, f"this node knows no job {job_id} of researcher {researcher_id}")
        return record

    def leaving(self, record: JobRecord) -> JobReport:
        """Return a job as it may be told."""
        return leaving(record.job, output_leaves=self._policy.settings.job_output)

    def answer(self, request: JobStatus) -> JobsReply:
        """Return one job with what was asked of it, or a page of jobs. Raises RunRefusedError, StorageError."""
        if request.job_id is None:
            return self._page(request)
        record = self.own(request.job_id, request.researcher_id)
        reply = JobsReply(jobs=[self.leaving(record)], count=1, **echo(request, self._policy.node_id))
        folder = JobFolder(self._folder / request.job_id)
        if request.result and record.result is not None:
            reply = msgspec.structs.replace(reply, result=self._result(folder, record.result))
        if request.scalars_from is not None:
            scalars = self._scalars.page(request.job_id, folder, request.scalars_from)
            # Together with a large result they come with the next question.
            if len(msgspec.json.encode(scalars)) <= _room(reply):
                reply = msgspec.structs.replace(reply, scalars=scalars)
        return self._with_output(reply, request, folder)

    def purge(self, keep_s: float) -> None:
        """Remove the files of jobs that were over ``keep_s`` ago, and forget those that nobody can ask for again."""
        before = utc_now() - datetime.timedelta(seconds=keep_s)
        for job_id in self._register.ended_before(before):
            try:
                JobFolder(self._folder / job_id).remove()
            except FedmonError as problem:
                logger.warning("what is left of job %s is not removed: %s", job_id, problem)
        self._register.forget(self._register.ended_before(before - IDS_KEPT))

    def _page(self, request: JobStatus) -> JobsReply:
        count = self._register.count(request.researcher_id)
        found = self._register.of(request.researcher_id, offset=request.offset, limit=request.limit)
        now = [self._going[each.job.job_id].record if each.job.job_id in self._going else each for each in found]
        page = fitting(map(self.leaving, now), ROOM_BYTES)
        end = request.offset + len(page)
        return JobsReply(
            jobs=page,
            count=count,
            next_offset=end if page and end < count else None,
            **echo(request, self._policy.node_id),
        )

    def _with_output(self, reply: JobsReply, request: JobStatus, folder: JobFolder) -> JobsReply:
        asked = [
            (name, read, offset)
            for name, read, offset in (
                ("stdout", folder.stdout, request.stdout_from),
                ("stderr", folder.stderr, request.stderr_from),
            )
            if offset is not None
        ]
        if not asked:
            return reply
        if not self._policy.settings.job_output:
            return msgspec.structs.replace(reply, withheld=WITHHELD)
        share = _room(reply) // len(asked)
        traces = {name: piece(read, offset, share) for name, read, offset in asked}
        return msgspec.structs.replace(reply, **traces)

    def _result(self, folder: JobFolder, result: Parcel) -> Parcel | None:
        if result.url is not None:
            return result
        try:
            return results.inline(folder.result, result)
        except FedmonError:
            return None  # it was kept for as long as the owner wants it


def _room(reply: JobsReply) -> int:
    return ROOM_BYTES - len(msgspec.json.encode(reply))


class ScalarPages:
    """Finds the scalars of a job by their numbers; remembers where pages of the last jobs began. Of one thread."""

    def __init__(self) -> None:
        self._places: OrderedDict[str, list[tuple[int, int]]] = OrderedDict()

    def page(self, job_id: str, folder: JobFolder, start: int) -> list[Scalar]:
        """Return scalars from a number on, as many as a page holds. Raises StorageError."""
        places = self._places.setdefault(job_id, [(0, 0)])
        self._places.move_to_end(job_id)
        if len(self._places) > _MAX_REMEMBERED:
            self._places.popitem(last=False)
        offset = max(offset for number, offset in places if number <= start)
        page: list[Scalar] = []
        size = 0
        while True:
            found = folder.events(offset)
            for event in found.events:
                if not isinstance(event, Reported):
                    continue
                if event.number < start:
                    continue
                scalar = Scalar(number=event.number, t=event.t, values=event.values, step=event.step)
                size += len(_encode(scalar)) + 1
                if page and (size > SCALARS_BYTES or len(page) >= MAX_SCALARS):
                    return page
                page.append(scalar)
            if found.next_offset == offset:
                return page
            offset = found.next_offset
            reported = [event.number for event in found.events if isinstance(event, Reported)]
            if reported and offset > places[-1][1]:
                places.append((reported[-1] + 1, offset))


def piece(read: Callable[[int, int], TracePiece], offset: int, budget: int) -> TracePiece:
    """Return as much of a trace as ``budget`` bytes of JSON hold; control characters take six bytes each."""
    most = max(_LEAST_TRACE_BYTES, min(MAX_TRACE_BYTES, budget))
    while True:
        trace = read(offset, most)
        if most <= _LEAST_TRACE_BYTES or len(_encode(trace)) <= budget:
            return trace
        most = max(_LEAST_TRACE_BYTES, most // 2)


def fitting(jobs: Iterable[JobReport], budget: int) -> list[JobReport]:
    """Return the first jobs that ``budget`` bytes of JSON hold, one of them at least."""
    page: list[JobReport] = []
    size = 0
    for job in jobs:
        size += len(_encode(job)) + 1
        if page and size > budget:
            break
        page.append(job)
    return page
