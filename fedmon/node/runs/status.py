"""Answers to researchers about the state of their jobs."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from fedmon.common.errors import FedmonError
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.common.wire.runs import (
    MAX_SCALARS,
    MAX_TRACE_BYTES,
    JobReport,
    JobsReply,
    JobState,
    JobStatus,
    Parcel,
    Scalar,
    TracePiece,
)
from fedmon.node.requests.dialect import echo
from fedmon.node.requests.policy import Policy
from fedmon.node.runs.folder import STDERR, STDOUT, JobFolder, Reported
from fedmon.node.runs.outcome import WITHHELD, fitting, inline, leaving
from fedmon.node.runs.register import JobRecord, JobRegister

SCALARS_BYTES = 40_000
ROOM_BYTES = MAX_PAYLOAD_BYTES - 4_000
"""The room for the members of a reply; the rest is for its envelope."""
IDS_KEPT = datetime.timedelta(days=31)
"""A job's id is known for this time after its files are removed: no request lives longer."""
_MAX_REMEMBERED = 64
_LEAST_TRACE_BYTES = 256

_encode = msgspec.json.Encoder().encode

logger = logging.getLogger(__name__)


class Status:
    """Answers questions about jobs; belongs to the node's worker."""

    def __init__(self, policy: Policy, register: JobRegister, folder: Path) -> None:
        self._policy, self._register, self._folder = policy, register, folder
        self._places: dict[str, tuple[int, int]] = {}
        """By job, a number of a scalar, and a byte of the file before it and all later ones."""

    def own(self, job_id: str, researcher_id: str) -> JobRecord | None:
        """Return a job of this researcher; None if it is unknown, or of another researcher."""
        record = self._register.find(job_id)
        return record if record is not None and record.researcher_id == researcher_id else None

    def leaving(self, record: JobRecord) -> JobReport:
        """Return a job as its researcher may see it."""
        return leaving(record.job, output_leaves=self._policy.settings.job_output)

    def answer(self, request: JobStatus) -> JobsReply:
        """Return one job with the parts that were asked for, none if it is unknown, or a page. Raises StorageError."""
        if request.job_id is None:
            return self._page(request)
        record = self.own(request.job_id, request.researcher_id)
        if record is None:
            return JobsReply(jobs=[], count=0, **echo(request, self._policy.node_id))
        reply = JobsReply(jobs=[self.leaving(record)], count=1, **echo(request, self._policy.node_id))
        folder = JobFolder(self._folder / request.job_id)
        if request.result and record.result is not None and record.job.state is JobState.SUCCEEDED:
            reply = msgspec.structs.replace(reply, result=_result(folder, record.result))
        if request.scalars_from is not None:
            scalars = self._scalars(request.job_id, folder, request.scalars_from)
            # Beside a large result they come with the next question.
            if len(_encode(scalars)) <= _room(reply):
                reply = msgspec.structs.replace(reply, scalars=scalars)
        asked = {STDOUT: request.stdout_from, STDERR: request.stderr_from}
        offsets = {name: offset for name, offset in asked.items() if offset is not None}
        if offsets and not self._policy.settings.job_output:
            return msgspec.structs.replace(reply, withheld=WITHHELD)
        share = _room(reply) // max(1, len(offsets))
        traces = {name: piece(partial(folder.trace, name), offset, share) for name, offset in offsets.items()}
        return msgspec.structs.replace(reply, **traces)

    def purge(self, before: datetime.datetime) -> None:
        """Remove the files of jobs that ended ``before`` that moment, and forget those that no request can name."""
        present = {path.name for path in self._folder.glob("*")}
        for job_id in present.intersection(self._register.ended_before(before)):
            try:
                JobFolder(self._folder / job_id).remove()
            except (FedmonError, OSError) as problem:
                logger.warning("files of job %s are not removed: %s", job_id, problem)
        self._register.forget(before - IDS_KEPT)

    def _page(self, request: JobStatus) -> JobsReply:
        count = self._register.count(request.researcher_id)
        found = self._register.of(request.researcher_id, offset=request.offset, limit=request.limit)
        page = fitting((self.leaving(each) for each in found), ROOM_BYTES)
        end = request.offset + len(page)
        return JobsReply(
            jobs=page,
            count=count,
            next_offset=end if page and end < count else None,
            **echo(request, self._policy.node_id),
        )

    def _scalars(self, job_id: str, folder: JobFolder, start: int) -> list[Scalar]:
        """Return scalars from a number on, as many as a page holds. Raises StorageError."""
        first, before = self._places.get(job_id, (0, 0))
        before = before if first <= start else 0
        wanted: list[Scalar] = []
        for event, offset in folder.events(before):
            if isinstance(event, Reported) and event.number >= start:
                wanted.append(Scalar(**msgspec.structs.asdict(event)))
            if not wanted:
                before = offset
            if len(wanted) == MAX_SCALARS:
                break
        if len(self._places) >= _MAX_REMEMBERED:
            self._places.clear()
        self._places[job_id] = (start, before)
        return fitting(wanted, SCALARS_BYTES)


def _result(folder: JobFolder, result: Parcel) -> Parcel | None:
    if result.url is not None:
        return result
    try:
        return inline(folder.result, result)
    except FedmonError:
        return None  # it was removed after the time that the owner set


def _room(reply: JobsReply) -> int:
    return ROOM_BYTES - len(_encode(reply))


def piece(read: Callable[[int, int], TracePiece], offset: int, budget: int) -> TracePiece:
    """Return a piece of a trace that fits into ``budget`` bytes of JSON, where a byte takes up to six."""
    trace = read(offset, max(_LEAST_TRACE_BYTES, min(MAX_TRACE_BYTES, budget)))
    if len(_encode(trace)) > budget:
        trace = read(offset, max(_LEAST_TRACE_BYTES, budget // 6 - _LEAST_TRACE_BYTES))
    return trace
