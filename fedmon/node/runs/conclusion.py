"""A job is over: its register, the researcher's outbox and the audit learn of it together."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Iterable

import msgspec

from fedmon.common import errors
from fedmon.common.errors import FedmonError, InvalidInputError, StorageError
from fedmon.common.log import without_paths
from fedmon.common.wire.runs import JobOutcome, JobReport, JobState, Parcel, Problem
from fedmon.node.registers.state import Registers
from fedmon.node.requests.policy import Policy
from fedmon.node.runs import results
from fedmon.node.runs.going import Going, Phase
from fedmon.node.runs.order import Ending
from fedmon.node.runs.register import JobRecord, JobRegister
from fedmon.node.runs.transfers import Transfers

logger = logging.getLogger(__name__)
WITHHELD = (
    "the owner of this node lets nothing leave of what jobs print, log or fail with "
    "(job_output in [policy] is false; the owner would allow it with: fedmon node policy allow --job-output)"
)
JOB_BYTES = 40_000
"""What a job may take in a message; a control character takes six bytes there."""
_NUMPY = (
    "exceptions.AxisError", "exceptions.ComplexWarning", "exceptions.DTypePromotionError", "exceptions.TooHardError",
    "linalg.LinAlgError", "ma.core.MAError", "ma.core.MaskError",
    *(
        f"{core}._exceptions.{name}"
        for core in ("_core", "core")
        for name in ("UFuncTypeError", "_ArrayMemoryError", "_UFuncNoLoopError", "_UFuncBinaryResolutionError",
                     "_UFuncCastingError", "_UFuncInputCastingError", "_UFuncOutputCastingError")
    ),
)  # fmt: skip
_KNOWN_TYPES = frozenset(
    {
        *(
            name
            for module in (builtins, errors)
            for name, kind in vars(module).items()
            if isinstance(kind, type) and issubclass(kind, BaseException)
        ),
        *("NoPlanError", "InvalidValuesError", "TooLargeError", "ChannelClosedError"),
        *(f"numpy.{name}" for name in _NUMPY),
    }
)
"""Types of errors as a plan's process names them. A name says one of these, or nothing: a plan can claim any name."""
_MAX_TEXT = 16_384
_SHORTEST = 64
_UNNAMED = "Exception"


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

    def take(self, going: Going, job: JobReport, ending: Ending) -> None:
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

    def conclude(self, going: Going, job: JobReport, result: Parcel | None = None) -> None:
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

    def _delivered(self, going: Going, job: JobReport, delivered: Parcel | FedmonError) -> None:
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


def _failed(job: JobReport, state: JobState, reason: str) -> JobReport:
    return msgspec.structs.replace(job, state=state, reason=reason)


def _with_problem(job: JobReport, problem: FedmonError) -> JobReport:
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


def leaving(job: JobReport, *, output_leaves: bool) -> JobReport:
    """Return a job as it may be told to its researcher.

    Where output does not leave, neither does the type of an error that is not built in, numpy's or fedmon's.
    """
    # What the machine said of its files is its owner's.
    job = msgspec.structs.replace(job, reason=without_paths(job.reason))
    if output_leaves:
        return _fitting(job)
    kind, reason = None, job.reason
    if job.problem is not None:
        kind = job.problem.type if job.problem.type in _KNOWN_TYPES else _UNNAMED
    if job.state is JobState.INVALID_RESULT or (job.state is JobState.FAILED and kind is not None):
        named = f" ({kind})" if kind else ""
        reason = f"{_sentence(job.state)}{named}; {WITHHELD}"
    return msgspec.structs.replace(job, problem=kind and Problem(type=kind), reason=reason)


def _fitting(job: JobReport) -> JobReport:
    """Return a job that a message has room for, its texts shortened where they must be."""
    longest = _MAX_TEXT
    while len(msgspec.json.encode(job)) > JOB_BYTES and longest > _SHORTEST:
        longest //= 2
        problem = job.problem and Problem(
            type=job.problem.type,
            message=_shortened(job.problem.message, longest),
            traceback=_shortened(job.problem.traceback, longest),
        )
        job = msgspec.structs.replace(job, problem=problem, reason=_shortened(job.reason, longest) or "")
    return job


def _sentence(state: JobState) -> str:
    if state is JobState.INVALID_RESULT:
        return "what the plan returned cannot travel: a mapping of JSON values and plain arrays can"
    return "the plan failed"


def _shortened(text: str | None, longest: int) -> str | None:
    if text is None or len(text) <= longest:
        return text
    # The end of a trace says what happened, its middle how it came there.
    return f"{text[: longest // 4]} ... {text[-(longest * 3 // 4) :]}"
