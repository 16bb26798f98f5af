"""A job is over: its register, the researcher's outbox and the audit learn of it together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from fedmon.common.errors import FedmonError, InvalidInputError, StorageError
from fedmon.common.wire.runs import Job, JobOutcome, JobState, Parcel
from fedmon.node.registers.state import Registers
from fedmon.node.requests.policy import Policy
from fedmon.node.runs import results
from fedmon.node.runs.going import Going, Phase
from fedmon.node.runs.leaving import leaving
from fedmon.node.runs.order import Ending
from fedmon.node.runs.register import JobRecord, JobRegister
from fedmon.node.runs.transfers import Transfers

logger = logging.getLogger(__name__)


class Conclusion:
    """Ends jobs; belongs to the node's worker. ``gone(job_id)`` is told of each once all of it is written."""

    def __init__(
        self,
        registers: Registers,
        policy: Policy,
        register: JobRegister,
        transfers: Transfers,
        *,
        boot: Callable[[], int],
        push: Callable[[Iterable[str]], None],
        gone: Callable[[str], None],
    ) -> None:
        self._registers, self._policy, self._register, self._transfers = registers, policy, register, transfers
        self._boot, self._push, self._gone = boot, push, gone

    def take(self, going: Going, job: Job, ending: Ending) -> None:
        """Conclude a job as its keeper says, once its result is checked and, where it is large, stored."""
        if ending.state is not JobState.SUCCEEDED:
            self.conclude(going, job)
            return
        if ending.result_format is None or ending.result_sha256 is None:
            self.conclude(going, _failed(job, JobState.INVALID_RESULT, "the plan ended well but handed over no result"))
            return
        parcel = results.described(ending.result_format, ending.result_sha256, ending.result_bytes)
        try:
            whole = self._whole(going, parcel)
        except FedmonError as problem:
            self.conclude(going, _with_problem(job, problem))
            return
        if whole is not None:
            self.conclude(going, job, whole)
            return
        going.phase = Phase.RESULT
        self._transfers.deliver(going.folder.result, parcel, lambda delivered: self._delivered(going, job, delivered))

    def conclude(self, going: Going, job: Job, result: Parcel | None = None) -> None:
        """Write down how a job ended; on a full disk that is tried again with the next look."""
        going.verdict, going.phase = (job, result), Phase.REGISTER
        kept = None if result is None else msgspec.structs.replace(result, json=None, base64=None)
        record = msgspec.structs.replace(going.saved(), job=job, result=kept)
        try:
            with self._registers.database.transaction():
                self._register.keep(record)
                self._registers.outbox.add(self._outcome(record, result))
                self._write_down(record)
        except StorageError as problem:
            going.tell(problem)
            return
        going.record = record
        self._gone(job.job_id)
        self._push([record.researcher_id])

    def _whole(self, going: Going, parcel: Parcel) -> Parcel | None:
        if parcel.size_bytes > results.INLINE_BYTES:
            return None
        results.check(going.folder.result, parcel)
        return results.inline(going.folder.result, parcel)

    def _delivered(self, going: Going, job: Job, delivered: Parcel | FedmonError) -> None:
        if isinstance(delivered, Parcel):
            self.conclude(going, job, delivered)
        else:
            self.conclude(going, _with_problem(job, delivered))

    def _outcome(self, record: JobRecord, result: Parcel | None) -> JobOutcome:
        output_leaves = self._policy.settings.job_output
        return JobOutcome(
            node_id=self._policy.node_id,
            researcher_id=record.researcher_id,
            id=f"job-{record.job.job_id}",
            boot=self._boot(),
            job=leaving(record.job, output_leaves=output_leaves),
            result=result,
        )

    def _write_down(self, record: JobRecord) -> None:
        job = record.job
        self._registers.audit.record(
            "run-outcome",
            job=job.job_id,
            researcher=record.researcher_id,
            sha256=job.sha256,
            state=job.state.value,
            reason=job.reason,
            sandbox=job.sandbox,
            exit_code=job.exit_code,
            wall_s=job.usage.wall_s,
            cpu_s=job.usage.cpu_s,
            peak_memory_bytes=job.usage.peak_memory_bytes,
            result_sha256=None if record.result is None else record.result.sha256,
            result_bytes=None if record.result is None else record.result.size_bytes,
        )


def _failed(job: Job, state: JobState, reason: str) -> Job:
    return msgspec.structs.replace(job, state=state, reason=reason)


def _with_problem(job: Job, problem: FedmonError) -> Job:
    """Return a job that ended well, and whose result does not reach who asked for it."""
    if isinstance(problem, results.NoRepositoryError):
        return _failed(job, JobState.FAILED, str(problem))
    if isinstance(problem, InvalidInputError):
        return _failed(job, JobState.INVALID_RESULT, "what the plan returned is no parcel of values and plain arrays")
    logger.error("the result of job %s stays in its folder: %s", job.job_id, problem)
    return _failed(
        job,
        JobState.FAILED,
        "the result could not be stored in the node's file repository; its owner has it, and the log says why",
    )
