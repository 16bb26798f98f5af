"""What of a job may leave the node: its outcome always, the plan's own words only as its owner allows."""

from __future__ import annotations

import builtins

import msgspec

from fedmon.common import errors
from fedmon.common.log import without_paths
from fedmon.common.wire.runs import Job, JobState, Problem

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


def leaving(job: Job, *, output_leaves: bool) -> Job:
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


def _fitting(job: Job) -> Job:
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
