"""The outcomes of a request: one for each node, with the reason where it did not do it, shown as a table."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

import msgspec

from fedmon.common.ids import JOB_PREFIX, NodeId
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import OTHER_WIRE, DatasetsReply, Error, ErrorCode
from fedmon.researcher.asking.match import Asked
from fedmon.researcher.asking.tables import Row, html_table, local_time, text_table
from fedmon.researcher.roster import Instant, Node, NodeState, Roster, only_tells

R = TypeVar("R", bound=Reply)


class OutcomeStatus(enum.Enum):
    """What came of asking one node."""

    OK = "ok"
    REFUSED = "refused"
    OFFLINE = "offline"
    STALE = "stale"
    TIMED_OUT = "timed-out"
    TOO_OLD = "too-old"
    ID_IN_USE = "id-in-use"
    NO_SANDBOX = "no-sandbox"
    FAILED = "failed"


class Outcome(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """What came of asking one node; ``reply`` is null and ``reason`` a sentence unless the status is ok."""

    node_id: NodeId
    status: OutcomeStatus
    reply: R | None = None
    reason: str = ""
    elapsed_s: float | None = None

    @property
    def ok(self) -> bool:
        """Tell whether the node did what it was asked."""
        return self.status is OutcomeStatus.OK


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """Under what conditions was asked: what makes an empty result understandable."""

    broker: str
    researcher_id: str
    instance: str
    connected: bool
    settled: bool
    last_error: str = ""

    def sentence(self) -> str:
        """Say them in one sentence."""
        roster = (
            "everybody who is there had been heard of" if self.settled else "the roster was not settled yet: ask again"
        )
        link = "connected" if self.connected else "NOT connected"
        error = f"; last error: {self.last_error}" if self.last_error else ""
        return f"{link} to the broker at {self.broker} as {self.researcher_id} ({self.instance}); {roster}{error}"


class Outcomes(Mapping[NodeId, Outcome[R]], Generic[R]):
    """The outcomes of one request by node id, sorted; immutable.

    Shows itself as a table: text by `str`, HTML in a notebook.
    """

    def __init__(
        self,
        command: str,
        outcomes: Mapping[NodeId, Outcome[R]],
        *,
        circumstances: Circumstances,
        rows_of: Callable[[R], list[Row]],
        elapsed_s: float,
        named: bool = False,
    ) -> None:
        self.command, self.circumstances, self.elapsed_s = command, circumstances, elapsed_s
        self._outcomes = {node_id: outcomes[node_id] for node_id in sorted(outcomes)}
        self._rows_of, self._named = rows_of, named

    def __getitem__(self, node_id: str) -> Outcome[R]:
        return self._outcomes[NodeId(node_id)]

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._outcomes)

    def __len__(self) -> int:
        return len(self._outcomes)

    @property
    def ok(self) -> dict[str, R]:
        """The replies of the nodes that did what they were asked."""
        return {node_id: outcome.reply for node_id, outcome in self.items() if outcome.ok and outcome.reply is not None}

    @property
    def failed(self) -> dict[str, Outcome[R]]:
        """The outcomes of all other nodes."""
        return {node_id: outcome for node_id, outcome in self.items() if not outcome.ok}

    def rows(self) -> list[Row]:
        """Return flat rows: node, status, what it answered (one row for each dataset where it lists some), why not."""
        found: list[Row] = []
        for node_id, outcome in self.items():
            head: Row = {"node": str(node_id), "status": outcome.status.value}
            tail: Row = {
                "reason": outcome.reason,
                "ms": None if outcome.elapsed_s is None else round(outcome.elapsed_s * 1000, 1),
            }
            parts = self._rows_of(outcome.reply) if outcome.reply is not None and outcome.ok else [{}]
            found.extend(head | part | tail for part in parts or [{}])
        return found

    def explanation(self) -> str:
        """Say why there is nothing, or nothing more, to see."""
        if not self and self._named:
            return f"no node was asked to {self.command}: `nodes` names none"
        if not self:
            return f"no node answered {self.command}: none is known. {self.circumstances.sentence()}"
        listed = [reply for reply in self.ok.values() if isinstance(reply, DatasetsReply)]
        found = f", {sum(len(reply.datasets) for reply in listed)} datasets" if listed else ""
        return f"{len(self.ok)} of {len(self)} nodes: ok{found}. {self.circumstances.sentence()}"

    def __str__(self) -> str:
        return f"{text_table(self.rows())}\n{self.explanation()}" if self else self.explanation()

    def __repr__(self) -> str:
        states = ", ".join(f"{node_id}: {outcome.status.value}" for node_id, outcome in self.items())
        return f"<Outcomes of {self.command}: {states or self.explanation()}>"

    def _repr_html_(self) -> str:
        return html_table(self.rows(), caption=self.explanation())


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
