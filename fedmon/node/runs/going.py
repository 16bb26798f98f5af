"""One job that goes on, as the daemon follows it."""

from __future__ import annotations

import datetime
import enum
import logging
import os

import msgspec

from fedmon.common.errors import FedmonError
from fedmon.common.wire.runs import JobReport, JobState, Parcel
from fedmon.node.runs.admission import Admitted
from fedmon.node.runs.folder import JobFolder
from fedmon.node.runs.order import Ending, Started
from fedmon.node.runs.register import JobRecord

logger = logging.getLogger(__name__)


class Phase(enum.Enum):
    """What is waited for."""

    INPUTS = "inputs"
    KEEPER = "keeper"
    RESULT = "result"
    """The plan is over, and its result on the way to the repository."""
    REGISTER = "register"
    """It is over, and that could not be written yet."""


class Going:
    """What is known of a job beside its record; belongs to the node's worker.

    ``admitted`` is there as long as the job has not been handed to a keeper.
    """

    def __init__(self, record: JobRecord, folder: JobFolder, *, phase: Phase, admitted: Admitted | None = None) -> None:
        self.record, self.folder, self.phase, self.admitted = record, folder, phase, admitted
        self.read_bytes = record.read_bytes
        self.verdict: tuple[JobReport, Parcel | None] | None = None
        self.is_saved = True
        self._told = ""

    @property
    def job(self) -> JobReport:
        """The job as it stands."""
        return self.record.job

    def tell(self, problem: FedmonError) -> None:
        """Log a problem with this job, once as long as it stays the same."""
        if str(problem) != self._told:
            logger.error("job %s is looked after again: %s", self.job.job_id, problem)
        self._told = str(problem)

    def is_now(self, job: JobReport) -> None:
        """Take how the job stands from now on."""
        self.record = msgspec.structs.replace(self.record, job=job)
        self.is_saved = False

    def started(self, event: Started) -> None:
        """Take that the plan's first process runs."""
        self.is_now(
            msgspec.structs.replace(self.job, state=JobState.RUNNING, started=utc(event.t), sandbox=event.sandbox)
        )

    def saved(self) -> JobRecord:
        """Return the record as it is to be kept."""
        self.record = msgspec.structs.replace(self.record, read_bytes=self.read_bytes)
        return self.record


def over(job: JobReport, ending: Ending, *, energy_j: float | None) -> JobReport:
    """Return a job as its keeper says that it ended."""
    return msgspec.structs.replace(
        job,
        state=ending.state,
        reason=ending.reason,
        sandbox=ending.sandbox or job.sandbox,
        started=job.started if ending.started is None else utc(ending.started),
        ended=utc(ending.ended),
        exit_code=ending.exit_code,
        problem=ending.problem,
        usage=msgspec.structs.replace(ending.usage, energy_j=energy_j),
        scalars=ending.scalars,
    )


def closed(descriptor: int | None) -> None:
    """Close a descriptor, if there is one."""
    if descriptor is not None:
        os.close(descriptor)


def utc(seconds: float) -> datetime.datetime:
    """Return Unix time in seconds as a moment."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
