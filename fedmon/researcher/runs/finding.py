"""Finding runs again: by job id, in any process of their researcher, and the list of all that nodes know."""

from __future__ import annotations

from collections.abc import Sequence

from fedmon.common.errors import InvalidInputError
from fedmon.common.ids import ID_PATTERN, NodeId
from fedmon.common.settings import RepositorySettings
from fedmon.common.wire.runs import JobOutcome, JobsReply, JobStatus
from fedmon.researcher.asking.outcome import Outcomes, OutcomeStatus
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.replies.announcements import Announcements
from fedmon.researcher.runs import tables
from fedmon.researcher.runs.book import RunBook
from fedmon.researcher.runs.errors import RunNotKnownError
from fedmon.researcher.runs.handle import RunHandle
from fedmon.researcher.runs.run_list import RunList
from fedmon.researcher.runs.wording import named, reasons

_SILENT = (OutcomeStatus.OFFLINE, OutcomeStatus.STALE, OutcomeStatus.TIMED_OUT)


def find_run(
    asker: Asker,
    book: RunBook,
    job_outcomes: Announcements[JobOutcome],
    job_id: str,
    *,
    nodes: Sequence[NodeId] | None,
    expected: Sequence[NodeId] = (),
    repository: RepositorySettings,
    timeout_s: float | None,
) -> RunHandle:
    """Return a run of this researcher by its id: of the nodes that know it, and those whose outcome is kept here.

    Of nodes that are ``expected`` to know it, those that do not answer now are asked until they say how it stands.
    Raises RunNotKnownError when there are none, saying which nodes did not answer.
    """
    if not ID_PATTERN.fullmatch(job_id):
        raise InvalidInputError(f"{job_id[:100]!r} is no job id; `fedmon jobs` lists those that nodes know")
    kept = job_outcomes.take(lambda outcome: outcome.job.job_id == job_id)
    request = asker.request(JobStatus, job_id=job_id, scalars_from=0)
    outcomes = asker.ask(request, JobsReply, tables.jobs, nodes=nodes, timeout_s=timeout_s)
    knowing = {
        NodeId(node_id): job for node_id, reply in outcomes.ok.items() for job in reply.jobs[:1] if job.job_id == job_id
    }
    silent = {node_id for node_id in expected if node_id not in outcomes or outcomes[node_id].status in _SILENT}
    if not (knowing or kept or silent or book.holds(job_id)):
        raise _nobody_knows(job_id, outcomes)
    followed = book.open(job_id, sha256=None)
    followed.take_part({*knowing, *(NodeId(outcome.node_id) for outcome in kept), *silent})
    for outcome in kept:
        followed.outcome(outcome)
    for node_id in knowing:
        followed.answered(outcomes.ok[node_id], {"scalars_from": 0})
    followed.is_complete = True
    book.wake()
    return RunHandle(followed, asker, book, repository=repository)


def _nobody_knows(job_id: str, outcomes: Outcomes[JobsReply]) -> RunNotKnownError:
    """Return the error that says who knows no such job, and who did not say."""
    unknowing = [node_id for node_id, one in outcomes.items() if one.ok or one.status is OutcomeStatus.FAILED]
    silent = {node_id: one for node_id, one in outcomes.items() if node_id not in unknowing}
    said = [f"no node knows a job {job_id} of {outcomes.circumstances.researcher_id}"]
    said += [f"asked: {named(unknowing)}"] if unknowing else []
    said += reasons(silent)
    refused = bool(silent) and all(one.status is OutcomeStatus.REFUSED for one in silent.values())
    exit_code = 3 if unknowing or not silent else 4 if refused else 6
    return RunNotKnownError(f"{'; '.join(said)}. `fedmon jobs` lists those that nodes know", exit_code=exit_code)


def all_jobs(asker: Asker, *, nodes: Sequence[NodeId] | None, timeout_s: float | None) -> RunList:
    """Return the jobs of this researcher that each node knows, newest first."""
    return RunList(asker.ask_pages(JobStatus, JobsReply, tables.jobs, nodes=nodes, timeout_s=timeout_s))
