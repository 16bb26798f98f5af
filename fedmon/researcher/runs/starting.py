"""Starting a run: choose the nodes, pack once, ask everybody at the same time, and note what each answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import InvalidInputError, InvalidMessageError
from fedmon.common.ids import NodeId, checked_id, new_id
from fedmon.common.settings import RepositorySettings
from fedmon.common.wire.messages import ListDatasets, ListReply, SearchDatasets, SearchReply
from fedmon.common.wire.runs import Run, RunLimits, RunReply
from fedmon.researcher.asking.outcome import Outcomes, OutcomeStatus
from fedmon.researcher.asking.request import Asker, checked_timeout
from fedmon.researcher.asking.submission import ENVELOPE_BYTES
from fedmon.researcher.asking.tables import dataset_rows
from fedmon.researcher.roster import Instant, NodeState
from fedmon.researcher.runs import tables
from fedmon.researcher.runs.book import RunBook
from fedmon.researcher.runs.errors import NobodyToRunError
from fedmon.researcher.runs.handle import RunHandle
from fedmon.researcher.runs.inputs import checked_arguments, checked_limits, packed
from fedmon.researcher.runs.ledger import Ledger
from fedmon.researcher.runs.wording import named, why_not

MAX_TAGS = 64


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
) -> RunHandle:
    """Ask nodes to run a plan; return once each accepted or refused, or the time is over.

    Raises InvalidInputError for what cannot be sent, and NobodyToRunError when there is nobody to ask.
    """
    if not asker.dialect.announced:
        raise InvalidInputError('nodes of Fed-BioMed run no plans for us: runs need `wire = "fedmon"`')
    job_id = new_id() if job_id is None else checked_id(job_id, what="job_id")
    deadline = Deadline(asker.timeout_s if timeout_s is None else checked_timeout(timeout_s))
    plain, wanted_tags, bounds = checked_arguments(arguments), _checked_tags(tags), checked_limits(limits)
    named = nodes is not None
    asked = list(nodes) if nodes is not None else _everybody(asker, wanted_tags, dataset_id, deadline)
    if not asked:
        raise NobodyToRunError("no node was named")
    parcel = packed(inputs, repository, beside_bytes=ENVELOPE_BYTES + len(msgspec.json.encode(plain)))
    request = asker.request(
        Run,
        job_id=job_id,
        sha256=sha256,
        dataset_id=dataset_id,
        tags=wanted_tags,
        arguments=plain,
        inputs=parcel,
        limits=bounds,
    )
    ledger = book.open(job_id, sha256=sha256)
    ledger.take_part(asked)
    book.wake()
    try:
        # Packing and uploading take their own time; whoever is asked gets a second at least.
        outcomes = asker.ask(request, RunReply, tables.running, nodes=asked, timeout_s=max(1.0, deadline.left_s()))
    except InvalidMessageError as error:
        book.forget(ledger)
        raise InvalidInputError(f"the run does not fit into a message: {error}; hand less in as args") from None
    except BaseException:
        # What nodes were asked until now goes on there, and `job` finds it; nobody here waits for it.
        book.forget(ledger)
        raise
    _note(ledger, outcomes, named=named)
    book.wake()
    return RunHandle(ledger, asker, book, repository=repository, started=outcomes, max_result_bytes=bounds.output_bytes)


def _note(ledger: Ledger, outcomes: Outcomes[RunReply], *, named: bool) -> None:
    for node_id, outcome in outcomes.items():
        if outcome.reply is not None and outcome.ok:
            ledger.job_said(node_id, outcome.reply.job)
        elif outcome.status is OutcomeStatus.OFFLINE and not named:
            # It went while it was asked; a node that nobody named is no part of the run then.
            ledger.leave_out([node_id])
        else:
            ledger.came_of_asking(node_id, outcome.status, outcome.reason)
    ledger.is_complete = True


def _everybody(asker: Asker, tags: Sequence[str], dataset_id: str | None, deadline: Deadline) -> list[NodeId]:
    """Return the nodes that are there, of those the ones that have the dataset where one is wanted."""
    asker.wait_settled()
    left_s = max(0.5, deadline.left_s())
    outcomes: Outcomes[Any] | None = None
    if dataset_id is not None:
        outcomes = listed = asker.ask_pages(ListDatasets, ListReply, dataset_rows, nodes=None, timeout_s=left_s)
        found = [
            NodeId(node_id)
            for node_id, reply in listed.ok.items()
            if any(dataset.dataset_id == dataset_id for dataset in reply.datasets)
        ]
        what = f"dataset {dataset_id!r} is offered to you"
    elif tags:
        outcomes = searched = asker.ask_pages(
            SearchDatasets, SearchReply, dataset_rows, nodes=None, timeout_s=left_s, tags=list(tags)
        )
        found = [NodeId(node_id) for node_id, reply in searched.ok.items() if reply.datasets]
        what = f"dataset with the {'tag' if len(tags) == 1 else 'tags'} {', '.join(map(repr, tags))} is offered to you"
    else:
        there, askable = asker.roster.nodes(Instant.now()), asker.roster.askable()
        found = [
            node_id for node_id, node in there.items() if node_id in askable and node.state is not NodeState.OFFLINE
        ]
        what = "node is there"
    if not found:
        raise _nobody(what, outcomes, asker)
    return found


def _nobody(what: str, outcomes: Outcomes[Any] | None, asker: Asker) -> NobodyToRunError:
    """Return the error that says what there is not, who was asked for it, and who did not say."""
    if not outcomes:
        return NobodyToRunError(f"no {what}. {asker.circumstances().sentence()}")
    said = [f"no {what}"]
    if outcomes.ok:
        return NobodyToRunError(
            "; ".join([f"{said[0]} by {named(list(outcomes.ok))}", *why_not(outcomes)]), exit_code=3
        )
    refused = all(outcome.status is OutcomeStatus.REFUSED for outcome in outcomes.values())
    return NobodyToRunError("; ".join([*said, *why_not(outcomes)]), exit_code=4 if refused else 6)


def _checked_tags(tags: Sequence[str] | None) -> list[str]:
    if tags is None:
        return []
    if isinstance(tags, str) or not isinstance(tags, list | tuple):
        raise InvalidInputError(f"tags is {tags!r}: give a list of tags, such as [{str(tags)!r}]")
    if not all(isinstance(tag, str) and 0 < len(tag) <= 256 for tag in tags) or len(tags) > MAX_TAGS:
        raise InvalidInputError(f"tags: give at most {MAX_TAGS} texts of 1 to 256 characters each")
    return list(tags)
