"""Finding runs again: by job id, in any process of their researcher, and the list of all that nodes know."""

from __future__ import annotations

from collections.abc import Sequence

from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.common.ids import ID_PATTERN, NodeId
from fedmon.common.settings import RepositorySettings
from fedmon.common.wire.runs import JobsReply, JobStatus
from fedmon.researcher.calls import ask, ask_pages
from fedmon.researcher.outcomes import Outcomes
from fedmon.researcher.parts import Parts
from fedmon.researcher.runs import tables
from fedmon.researcher.runs.handle import RunHandle
from fedmon.researcher.runs.ledger import Ledger


def find_run(
    parts: Parts,
    job_id: str,
    *,
    nodes: Sequence[NodeId] | None,
    repository: RepositorySettings,
    timeout_s: float | None,
) -> RunHandle:
    """Return a run of this researcher by its id: of the nodes that know it, and those whose outcome is kept here.

    Raises NotFoundError when there are none, saying which nodes did not answer.
    """
    if not ID_PATTERN.fullmatch(job_id):
        raise InvalidInputError(f"{job_id[:100]!r} is no job id; `fedmon jobs` lists those that nodes know")
    kept = parts.job_outcomes.take(lambda outcome: outcome.job.job_id == job_id)
    request = parts.asker.request(JobStatus, job_id=job_id)
    outcomes = ask(parts, request, JobsReply, tables.jobs, nodes=nodes, timeout_s=timeout_s)
    knowing = {
        NodeId(node_id): job for node_id, reply in outcomes.ok.items() for job in reply.jobs[:1] if job.job_id == job_id
    }
    ledger = Ledger(job_id, sha256=None, dispatcher=parts.dispatcher, tally=parts.tally)
    followed = parts.runs.open(ledger)
    if followed is ledger and not knowing and not kept:
        parts.runs.forget(ledger)
        raise NotFoundError(f"no node that answered knows job {job_id}. {outcomes.explanation()}")
    followed.take_part({*knowing, *(NodeId(outcome.node_id) for outcome in kept)})
    for outcome in kept:
        followed.outcome(outcome)
    for node_id, job in knowing.items():
        followed.job_said(node_id, job)
    followed.is_complete = True
    parts.machinery.runs_changed()
    return RunHandle(followed, parts, repository=repository)


def all_jobs(parts: Parts, *, nodes: Sequence[NodeId] | None, timeout_s: float | None) -> Outcomes[JobsReply]:
    """Return the jobs of this researcher that each node knows, newest first."""
    return ask_pages(parts, JobStatus, JobsReply, nodes=nodes, timeout_s=timeout_s)
