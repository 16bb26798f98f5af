"""One call of a user: ask, page by page where there are pages, and say what came of it node by node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.ids import NodeId
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import DatasetsReply
from fedmon.common.wire.runs import JobsReply
from fedmon.researcher.asking import rows
from fedmon.researcher.asking.outcomes import Outcomes
from fedmon.researcher.asking.pending import Answer
from fedmon.researcher.asking.request import Asked, checked_timeout
from fedmon.researcher.asking.tables import Row
from fedmon.researcher.asking.verdicts import outcomes_of
from fedmon.researcher.runs import tables
from fedmon.researcher.session.parts import Parts

R = TypeVar("R", bound=Reply)
D = TypeVar("D", bound=DatasetsReply | JobsReply)

MAX_PAGES = 1_000


def ask(
    parts: Parts,
    request: Request,
    kind: type[R],
    rows_of: Callable[[R], list[Row]],
    *,
    nodes: Sequence[NodeId] | None,
    timeout_s: float | None,
) -> Outcomes[R]:
    """Put a request and say what came of it."""
    asked = _asked(parts, request, nodes, _timeout(parts, timeout_s))
    return _outcomes(parts, request, asked, kind, rows_of, everybody=nodes is None)


def ask_pages(
    parts: Parts,
    request_kind: type[Request],
    kind: type[D],
    *,
    nodes: Sequence[NodeId] | None,
    timeout_s: float | None,
    **fields: Any,
) -> Outcomes[D]:
    """Put a request whose answers come in pages, and join the pages of each node."""
    deadline = Deadline(_timeout(parts, timeout_s))
    request = parts.asker.request(request_kind, **fields)
    asked = _asked(parts, request, nodes, deadline.left_s())
    answers = dict(asked.answers)
    for _ in range(MAX_PAGES):
        wanted: dict[int, list[NodeId]] = {}
        for node_id, answer in answers.items():
            if isinstance(answer.reply, kind) and answer.reply.next_offset is not None:
                wanted.setdefault(answer.reply.next_offset, []).append(node_id)
        if not wanted or deadline.passed():
            break
        for offset, node_ids in wanted.items():
            page_request = parts.asker.request(request_kind, offset=offset, **fields)
            pages = _asked(parts, page_request, node_ids, max(0.001, deadline.left_s())).answers
            for node_id in pages:
                answers[node_id] = _joined(answers[node_id], pages[node_id], kind)
    asked = msgspec.structs.replace(asked, answers=answers)
    return _outcomes(parts, request, asked, kind, _rows, everybody=nodes is None)


def _timeout(parts: Parts, timeout_s: float | None) -> float:
    return parts.timeout_s if timeout_s is None else checked_timeout(timeout_s)


def _asked(parts: Parts, request: Request, nodes: Sequence[NodeId] | None, timeout_s: float) -> Asked:
    if nodes is not None and not nodes:
        return Asked(answers={}, silent=frozenset(), elapsed_s=0.0, times=0)
    return parts.asker.ask(request, nodes, timeout_s=timeout_s)


def _joined(before: Answer, page: Answer, kind: type[D]) -> Answer:
    """Append a page; a node whose pages do not advance is not asked for more."""
    first, next_ = before.reply, page.reply
    if not isinstance(first, kind) or not isinstance(next_, kind):
        return page
    listed = "jobs" if isinstance(first, JobsReply) else "datasets"
    further = getattr(next_, listed)
    advances = bool(further) and (next_.next_offset is None or next_.next_offset > (first.next_offset or 0))
    reply = msgspec.structs.replace(
        first,
        **{listed: [*getattr(first, listed), *further]},
        count=next_.count,
        next_offset=next_.next_offset if advances else None,
    )
    return Answer(reply=reply, elapsed_s=before.elapsed_s + page.elapsed_s)


def _rows(reply: DatasetsReply | JobsReply) -> list[Row]:
    return tables.jobs(reply) if isinstance(reply, JobsReply) else rows.datasets(reply)


def _outcomes(
    parts: Parts, request: Request, asked: Asked, kind: type[R], rows_of: Callable[[R], list[Row]], *, everybody: bool
) -> Outcomes[R]:
    return Outcomes(
        str(request.__struct_config__.tag),
        outcomes_of(asked, kind, parts.roster, everybody=everybody),
        circumstances=parts.circumstances(),
        rows_of=rows_of,
        elapsed_s=asked.elapsed_s,
        named=not everybody,
    )
