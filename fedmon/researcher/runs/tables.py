"""The columns that tables show of the replies about runs."""

from __future__ import annotations

from fedmon.common.wire.runs import Job, JobsReply, RunReply, StopReply
from fedmon.researcher.asking.tables import Row


def running(reply: RunReply) -> list[Row]:
    """Show a job that was accepted."""
    return [_row(reply.job)]


def stopping(reply: StopReply) -> list[Row]:
    """Show a job that is asked to end."""
    return [{"job": reply.job.job_id, "state": reply.job.state.value, "why": reply.job.reason}]


def jobs(reply: JobsReply) -> list[Row]:
    """Show one row a job."""
    return [_row(job) for job in reply.jobs]


def _row(job: Job) -> Row:
    # An id that is folded cannot be copied: no more columns than leave room for it.
    return {
        "job": job.job_id,
        "state": job.state.value,
        "name": job.name,
        "created": job.created,
        "why": job.reason,
    }
