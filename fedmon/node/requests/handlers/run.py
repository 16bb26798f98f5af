"""`run`: start an approved plan as a job, once."""

from __future__ import annotations

from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.runs import Run, RunReply
from fedmon.node.requests.handlers.envelope import echo
from fedmon.node.runs.refusal import RunRefusedError, switched_off
from fedmon.node.services import Services


def answer(request: Run, services: Services) -> Reply:
    """Take the job in; runs inside the transaction of its effect, and the job starts once that is committed.

    Raises RunRefusedError, ConflictError when the job id stands for another job, StorageError.
    """
    try:
        if services.runs is None:
            raise switched_off()
        job = services.runs.start(request)
    except RunRefusedError as refusal:
        services.audit.record(
            "run-refused",
            job=request.job_id,
            researcher=request.researcher_id,
            sha256=request.sha256,
            code=refusal.code.value,
            reason=str(refusal),
        )
        raise
    return RunReply(job=job, **echo(request, services.node_id))
