"""Starting runs and finding them again: parts are checked, nodes asked together, and a handle has their answers."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import InvalidInputError, InvalidMessageError, NotFoundError
from fedmon.common.ids import ID_PATTERN, NodeId, checked_id, chosen, made_at, new_id
from fedmon.common.settings.values import RepositorySettings
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.common.wire.messages import ApprovalReply, SearchDatasets, SearchReply
from fedmon.common.wire.runs import JobOutcome, JobsReply, JobStatus, Parcel, Run, RunLimits, RunReply
from fedmon.plan.values import MAX_ARGUMENTS_BYTES, InvalidValuesError, ValuesWalk, json_text, spelled
from fedmon.researcher.asking.outcome import SILENT, Outcomes, OutcomeStatus, exit_code
from fedmon.researcher.asking.request import Asker, checked_tags, checked_timeout
from fedmon.researcher.asking.submission import ENVELOPE_BYTES, uploaded
from fedmon.researcher.asking.tables import by_reason, named
from fedmon.researcher.replies.announcements import Announcements
from fedmon.researcher.roster import Moment
from fedmon.researcher.runs.errors import NobodyToRunError, RunNotKnownError
from fedmon.researcher.runs.handle import RunBook, RunHandle
from fedmon.researcher.runs.states import RunList

if TYPE_CHECKING:
    from fedmon.common.plan_source import Plan

logger = logging.getLogger(__name__)

LONGEST_NAME = 100
INLINE_BYTES = 60_000
"""Larger inputs go through the repository if there is one, as large messages hold up the others."""
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_UNSAID = (*SILENT, OutcomeStatus.FAILED)


def start_run(
    asker: Asker,
    book: RunBook,
    *,
    sha256: str,
    nodes: Sequence[NodeId] | None,
    tags: Sequence[str] | None,
    dataset_id: str | None,
    arguments: Mapping[str, Any] | None,
    inputs: Mapping[str, Any] | None,
    limits: RunLimits | Mapping[str, Any] | None,
    repository: RepositorySettings,
    timeout_s: float | None,
    job_id: str | None = None,
    group: str = "",
    name: str = "",
) -> RunHandle:
    """Ask nodes to run a plan; return once each accepted or refused, or the time is over.

    Raises InvalidInputError for arguments that cannot be sent, ConflictError if this process has another run of the id,
    and NobodyToRunError if there is no node to ask.
    """
    if not asker.dialect.announced:
        raise InvalidInputError('nodes of Fed-BioMed run no plans for us: runs need `wire = "fedmon"`')
    job_id = new_id() if job_id is None else checked_id(job_id, what="job_id")
    _check_names(group=group, name=name)
    deadline = Deadline(asker.timeout_s if timeout_s is None else checked_timeout(timeout_s))
    plain, bounds = checked_arguments(arguments), checked_limits(limits)
    wanted_tags = checked_tags(tags) if tags else []
    asked = list(nodes) if nodes is not None else _everybody(asker, wanted_tags, dataset_id, deadline)
    if not asked:
        raise NobodyToRunError("nodes is empty: name at least one node")
    parcel = packed(inputs, repository, beside_bytes=ENVELOPE_BYTES + len(msgspec.json.encode(plain)))
    fields: dict[str, Any] = {"sha256": sha256, "dataset_id": dataset_id, "tags": wanted_tags, "limits": bounds}
    fields |= {"arguments": plain, "inputs": parcel, "group": group, "label": name}
    is_new = not book.holds(job_id)
    content = msgspec.json.encode(fields | {"inputs": parcel and parcel.sha256}, order="sorted")
    handle = book.open(job_id, sha256=sha256, content=content)
    handle.expect(asked)
    try:
        # Packing and uploading take their own time; the nodes get a second at least.
        outcomes = asker.ask(Run, RunReply, nodes=asked, timeout_s=max(1.0, deadline.left_s()), job_id=job_id, **fields)
    except BaseException as error:
        # Nodes that were asked already run it, and `job` finds it; only a handle of an earlier call waits for it.
        if is_new:
            book.forget(handle)
        if isinstance(error, KeyboardInterrupt):
            logger.warning("job %s may run on nodes that were asked: `fedmon runs show %s` finds it", job_id, job_id)
        if isinstance(error, InvalidMessageError):
            raise InvalidInputError(f"the run does not fit into a message: {error}; hand less in as args") from None
        raise
    handle.asked(outcomes, max_result_bytes=bounds.output_bytes)
    book.follow(job_id)
    return handle


def _check_names(**names: str) -> None:
    for what, text in names.items():
        if len(text) > LONGEST_NAME:
            raise InvalidInputError(f"the {what} {text[:40]!r}... is longer than {LONGEST_NAME} characters")


def _everybody(asker: Asker, tags: Sequence[str], dataset_id: str | None, deadline: Deadline) -> list[NodeId]:
    """Return the online nodes, or those of them that have the wanted dataset."""
    asker.wait_settled()
    outcomes, what = None, "node is there"
    found = sorted(asker.roster.expected(Moment.now()))
    if tags or dataset_id is not None:
        # Without tags a search finds all datasets.
        left_s = max(0.5, deadline.left_s())
        outcomes = asker.ask(SearchDatasets, SearchReply, nodes=None, timeout_s=left_s, tags=list(tags))
        found = [
            NodeId(node_id)
            for node_id, reply in outcomes.ok.items()
            if any(dataset_id in (None, dataset.dataset_id, dataset.name) for dataset in reply.datasets)
        ]
        tagged = f"with the {'tag' if len(tags) == 1 else 'tags'} {', '.join(map(repr, tags))}" if tags else ""
        what = " ".join(filter(None, ["dataset", dataset_id and repr(dataset_id), tagged, "is offered to you"]))
    if not found:
        raise _nobody(what, outcomes, asker)
    return found


def _nobody(what: str, outcomes: Outcomes[Any] | None, asker: Asker) -> NobodyToRunError:
    """Return the error that names the missing part, the nodes asked for it, and those that did not answer."""
    if not outcomes:
        return NobodyToRunError(f"no {what}. {asker.circumstances().sentence()}")
    asked = f" by {named(list(outcomes.ok))}" if outcomes.ok else ""
    code = 3 if outcomes.ok else exit_code({outcome.status for outcome in outcomes.values()})
    return NobodyToRunError("; ".join([f"no {what}{asked}", *outcomes.reasons()]), exit_code=code)


# --- parts of a run, checked before they are sent ---------------------------------------------------------------------


def digest_of(plan: Plan | ApprovalReply) -> str:
    """Return the digest of a plan: of its source, of an answer to `approve`, or of a text ``sha256:...``.

    Raises InvalidPlanError if it is no plan.
    """
    if isinstance(plan, ApprovalReply):
        return plan.sha256
    if isinstance(plan, str) and plan.startswith("sha256:"):
        matched = _DIGEST.fullmatch(plan)
        if matched is None:
            raise InvalidInputError(f"plan {plan[:100]!r} is not a digest: write sha256: and 64 digits of 0-9 and a-f")
        return matched[1]
    from fedmon.common.plan_source import load_source

    return load_source(plan).sha256


def checked_arguments(arguments: object) -> dict[str, Any]:
    """Return arguments as plain JSON values. Raises InvalidInputError with the place and the reason."""
    walk = ValuesWalk(max_bytes=None)
    try:
        text = json_text(walk.named({} if arguments is None else arguments)).encode()
    except InvalidValuesError as error:
        raise InvalidInputError(f"args: {error}") from None
    if walk.arrays:
        raise InvalidInputError(f"args: {spelled(walk.places[0])}: an array; arrays are inputs")
    if len(text) > MAX_ARGUMENTS_BYTES:
        raise InvalidInputError(
            f"args take {len(text)} bytes, and {MAX_ARGUMENTS_BYTES} are allowed: pass large values as inputs"
        )
    plain: dict[str, Any] = msgspec.json.decode(text)
    return plain


def checked_limits(limits: object) -> RunLimits:
    """Return limits as the wire has them. Raises InvalidInputError naming the wrong one, and those there are."""
    if limits is None or isinstance(limits, RunLimits):
        return limits or RunLimits()
    known = RunLimits.__struct_fields__
    if not isinstance(limits, Mapping) or (unknown := [name for name in limits if name not in known]):
        named = "limits" if not isinstance(limits, Mapping) else f"limits.{unknown[0]}"
        raise InvalidInputError(f"{named} is not known: give a mapping of {', '.join(known)}")
    try:
        return msgspec.convert(dict(limits), RunLimits)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"limits: {error}") from None


def packed(inputs: object, repository: RepositorySettings, *, beside_bytes: int = ENVELOPE_BYTES) -> Parcel | None:
    """Return inputs as a parcel, inside the message while it fits beside other things, else uploaded.

    Raises InvalidInputError for values that are neither JSON nor plain arrays, or too large where no repository is set,
    and RepositoryError.
    """
    if not isinstance(inputs, Mapping | None):
        raise InvalidInputError(f"inputs is {type(inputs).__name__}: give a mapping of names to JSON values and arrays")
    if not inputs:
        return None
    from fedmon.plan import parcels

    parcel = parcels.pack(inputs)
    content = b"".join(parcel.pieces)
    about = Parcel(format=parcel.format, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    inline = about.carrying(content) if len(content) <= MAX_PAYLOAD_BYTES else None
    most_bytes = INLINE_BYTES if repository.url else MAX_PAYLOAD_BYTES
    if inline is not None and len(msgspec.json.encode(inline)) + beside_bytes <= most_bytes:
        return inline
    why = f"inputs take {len(content)} bytes and do not fit into a message of {MAX_PAYLOAD_BYTES}"
    return msgspec.structs.replace(about, url=uploaded(content, repository, why=why))


# --- finding ----------------------------------------------------------------------------------------------------------


def find_run(
    asker: Asker,
    book: RunBook,
    job_outcomes: Announcements[JobOutcome],
    job_id: str,
    *,
    nodes: Sequence[NodeId] | None,
    expected: Sequence[NodeId] = (),
    timeout_s: float | None,
) -> RunHandle:
    """Return a run of this researcher: of the nodes that know it, and those whose outcome is kept here.

    Nodes that are ``expected`` to know it and do not answer now are asked until they tell its state; a warning names
    others that do not. Raises RunNotKnownError if there are none, naming the nodes that did not answer.
    """
    if not made_at(job_id) and not book.holds(job_id):
        known = all_jobs(asker, nodes=nodes, timeout_s=timeout_s)
        ids = {each: each for each in known.runs()}
        with contextlib.suppress(NotFoundError):  # nodes that are silent now may know it
            job_id = ids.get(job_id) or known.called(job_id) or chosen(job_id, ids, what="run", see="fedmon runs")
        timeout_s = max(0.5, (timeout_s or asker.timeout_s) - known.elapsed_s)
    if not ID_PATTERN.fullmatch(job_id):
        raise InvalidInputError(f"{job_id[:100]!r} is no job id; `fedmon runs` lists those that nodes know")
    outcomes = asker.ask(JobStatus, JobsReply, nodes=nodes, timeout_s=timeout_s, job_id=job_id, scalars_from=0)
    kept = job_outcomes.take(lambda outcome: outcome.job.job_id == job_id)
    knowing = [
        NodeId(node_id) for node_id, reply in outcomes.ok.items() if reply.jobs and reply.jobs[0].job_id == job_id
    ]
    absent = {str(each): one.reason for each, one in outcomes.items() if one.status in _UNSAID}
    silent = [each for each in expected if each not in outcomes or each in absent]
    if not (knowing or kept or silent or book.holds(job_id)):
        raise _not_known(job_id, outcomes)
    handle = book.open(job_id)
    handle.expect([*knowing, *(outcome.node_id for outcome in kept), *silent])
    for outcome in kept:
        handle.outcome(outcome)
    for node_id in knowing:
        handle.answered(outcomes.ok[node_id], {"scalars_from": 0})
    if unsaid := by_reason({each: reason for each, reason in absent.items() if each not in handle.nodes}):
        logger.warning("job %s: nodes that did not say whether they run it: %s", job_id, "; ".join(unsaid))
    book.follow(job_id)
    return handle


def _not_known(job_id: str, outcomes: Outcomes[JobsReply]) -> RunNotKnownError:
    """Return the error that names the nodes that know no such job, and those that did not say."""
    unknowing, statuses = list(outcomes.ok), {outcome.status for outcome in outcomes.failed.values()}
    asked = [f"asked: {named(unknowing)}"] if unknowing else []
    said = [f"no node knows a job {job_id} of {outcomes.circumstances.researcher_id}", *asked, *outcomes.reasons()]
    code = 3 if unknowing or not statuses else exit_code(statuses)
    return RunNotKnownError(f"{'; '.join(said)}. `fedmon runs` lists those that nodes know", exit_code=code)


def all_jobs(asker: Asker, *, nodes: Sequence[NodeId] | None, timeout_s: float | None) -> RunList:
    """Return the jobs of this researcher that each node knows, newest first."""
    return RunList(asker.ask(JobStatus, JobsReply, nodes=nodes, timeout_s=timeout_s))
