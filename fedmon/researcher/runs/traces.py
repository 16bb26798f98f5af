"""What a plan printed on a node, page by page, where its owner lets that leave."""

from __future__ import annotations

from typing import Literal

import msgspec

from fedmon.common.errors import ConflictError, NoAnswerError, NotFoundError
from fedmon.common.ids import NodeId
from fedmon.common.log import escape_control
from fedmon.common.wire.runs import JobsReply, JobStatus, Trace
from fedmon.researcher.asking.outcome import OutcomeStatus
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.runs import tables

MAX_PAGES = 1_000
MAX_TEXT = 64 * 2**20
"""Of characters that are read at once; where it goes on is told."""


class JobLog(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan printed; ``withheld`` says why there is nothing where its owner does not let it leave.

    ``size_bytes`` is how much it printed so far, ``skipped_bytes`` how much of that is not kept, and ``next_offset``
    where to read on.
    """

    node_id: NodeId
    stream: Literal["stdout", "stderr"]
    text: str = ""
    size_bytes: int = 0
    skipped_bytes: int = 0
    next_offset: int = 0
    withheld: str = ""
    is_over: bool = False

    def __str__(self) -> str:
        """Return it for a terminal, which must not do what a plan printed; `text` has it as it was printed."""
        if self.withheld:
            return f"({self.stream} of {self.node_id} is withheld: {escape_control(self.withheld)})"
        return escape_control(self.text, keep="\n\t")


def read_log(asker: Asker, job_id: str, node_id: NodeId, stream: Literal["stdout", "stderr"], *, offset: int) -> JobLog:
    """Return what was printed from a byte on. Raises NoAnswerError, ConflictError for a refusal, or NotFoundError."""
    texts: list[str] = []
    log = JobLog(node_id=node_id, stream=stream, next_offset=offset)
    for _ in range(MAX_PAGES):
        reply = _page(asker, job_id, node_id, stream, log.next_offset)
        trace = reply.stdout if stream == "stdout" else reply.stderr
        log = msgspec.structs.replace(log, is_over=reply.jobs[0].state.is_over)
        if trace is None:
            return msgspec.structs.replace(log, withheld=reply.withheld or "the node keeps nothing of it")
        texts.append(_with_gap(trace))
        # A node whose pages do not advance is not asked for more.
        ended = trace.next_offset <= log.next_offset or trace.next_offset >= trace.size_bytes
        log = msgspec.structs.replace(
            log,
            size_bytes=trace.size_bytes,
            skipped_bytes=log.skipped_bytes + trace.skipped_bytes,
            next_offset=max(log.next_offset, trace.next_offset),
        )
        if ended or sum(map(len, texts)) > MAX_TEXT:
            break
    return msgspec.structs.replace(log, text="".join(texts))


def _page(asker: Asker, job_id: str, node_id: NodeId, stream: str, offset: int) -> JobsReply:
    fields = {f"{stream}_from": offset}
    request = asker.request(JobStatus, job_id=job_id, **fields)
    outcome = asker.ask(request, JobsReply, tables.jobs, nodes=[node_id], timeout_s=None)[node_id]
    if outcome.reply is None:
        kind = ConflictError if outcome.status in (OutcomeStatus.REFUSED, OutcomeStatus.FAILED) else NoAnswerError
        raise kind(f"{stream} of {node_id}: {outcome.reason}")
    if not outcome.reply.jobs or outcome.reply.jobs[0].job_id != job_id:
        raise NotFoundError(f"node {node_id} does not know job {job_id}; `fedmon jobs` lists those that nodes know")
    return outcome.reply


def _with_gap(trace: Trace) -> str:
    return f"\n[... {trace.skipped_bytes} bytes not kept ...]\n{trace.text}" if trace.skipped_bytes else trace.text
