"""Why a node did not answer, or did not do it: from what came back and what the roster knows, one outcome a node."""

from __future__ import annotations

from typing import TypeVar

from fedmon.common.ids import JOB_PREFIX, NodeId
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import OTHER_WIRE, Error, ErrorCode
from fedmon.researcher.asking.outcomes import Outcome, OutcomeStatus
from fedmon.researcher.asking.request import Asked
from fedmon.researcher.asking.tables import local_time
from fedmon.researcher.roster import Instant, Node, NodeState, Roster, only_tells

R = TypeVar("R", bound=Reply)

_STATUS_OF_CODE = {
    ErrorCode.REFUSED: OutcomeStatus.REFUSED,
    ErrorCode.VERSION: OutcomeStatus.TOO_OLD,
    ErrorCode.UNKNOWN_COMMAND: OutcomeStatus.TOO_OLD,
    ErrorCode.UNSUPPORTED: OutcomeStatus.TOO_OLD,
    ErrorCode.NO_SANDBOX: OutcomeStatus.NO_SANDBOX,
}


def outcomes_of(asked: Asked, kind: type[R], roster: Roster, *, everybody: bool) -> dict[NodeId, Outcome[R]]:
    """Return one outcome for each node that answered, was waited for, or (``everybody``) is known."""
    now = Instant.now()
    found: dict[NodeId, Outcome[R]] = {}
    for node_id, answer in asked.answers.items():
        found[node_id] = _of_reply(node_id, answer.reply, kind, answer.elapsed_s)
    for node_id in asked.silent:
        found[node_id] = _of_silence(node_id, roster.get(node_id, now), asked)
    if everybody:
        for node_id, node in roster.nodes(now).items():
            if node_id not in found:
                found[node_id] = _of_silence(node_id, node, asked)
    return found


def _of_reply(node_id: NodeId, reply: Reply, kind: type[R], elapsed_s: float) -> Outcome[R]:
    if isinstance(reply, kind) and reply.success:
        return Outcome(node_id=node_id, status=OutcomeStatus.OK, reply=reply, elapsed_s=elapsed_s)
    if isinstance(reply, Error):
        status = _STATUS_OF_CODE.get(reply.code, OutcomeStatus.FAILED)
        return Outcome(node_id=node_id, status=status, reason=reply.reason, elapsed_s=elapsed_s)
    answered = reply if isinstance(reply, kind) else None
    reason = getattr(reply, "note", "") or getattr(reply, "reason", "") or "the node says that it did not succeed"
    return Outcome(node_id=node_id, status=OutcomeStatus.FAILED, reply=answered, reason=reason, elapsed_s=elapsed_s)


def _of_silence(node_id: NodeId, node: Node | None, asked: Asked) -> Outcome[R]:
    status, reason = OutcomeStatus.TIMED_OUT, f"no reply within {asked.elapsed_s:.1f} s, asked {asked.times} times"
    if node is None:
        status, reason = OutcomeStatus.OFFLINE, "offline: never heard of; check the id, or whether the node was started"
    elif node.id_in_use:
        status = OutcomeStatus.ID_IN_USE
        reason = "two processes run under this id; its owner must stop one"
    elif node.state is NodeState.OFFLINE:
        since = f" since {local_time(node.since)}" if node.since else ""
        status, reason = OutcomeStatus.OFFLINE, f"offline{since}" + (f": {node.reason}" if node.reason else "")
    elif node.state is NodeState.STALE:
        status, reason = OutcomeStatus.STALE, node.reason
    elif OTHER_WIRE in node.capabilities:
        status = OutcomeStatus.TOO_OLD
        reason = f"it speaks the wire {OTHER_WIRE!r} and we do not; set `wire` alike on both sides"
    elif only_tells(node_id, node.capabilities):
        what = "batch job" if node_id.startswith(JOB_PREFIX) else "reporter"
        reason = f"it is a {what}: it tells what it measures, and answers ping and monitor alone"
    return Outcome(node_id=node_id, status=status, reason=reason)
