"""The outcomes of a request, one for each node and with its reason, and the nodes known; both shown as tables."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from fedmon.common.ids import JOB_PREFIX, NodeId
from fedmon.common.log import escape_control
from fedmon.common.text import moment, plural, short_ids
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import OTHER_WIRE, DatasetsReply, Error, ErrorCode
from fedmon.researcher.asking.match import Answers
from fedmon.researcher.asking.tables import Row, by_reason, frame, html_table, reply_rows, rich_rows, text_table
from fedmon.researcher.roster import NEVER_HEARD, Moment, Node, NodeState, Roster, only_tells

R = TypeVar("R", bound=Reply)
V = TypeVar("V")

SHORT_ABOVE, SHOWN = 50, 20
"""Above the first number of nodes, at most the second number of absent ones is shown."""


class OutcomeStatus(enum.Enum):
    """The result of asking one node, by kind."""

    OK = "ok"
    REFUSED = "refused"
    OUTSIDE_GRANT = "outside-grant"
    OFFLINE = "offline"
    STALE = "stale"
    TIMED_OUT = "timed-out"
    TOO_OLD = "too-old"
    ID_IN_USE = "id-in-use"
    NO_SANDBOX = "no-sandbox"
    BUSY = "busy"
    FAILED = "failed"


SILENT = (OutcomeStatus.OFFLINE, OutcomeStatus.STALE, OutcomeStatus.TIMED_OUT, OutcomeStatus.BUSY)
"""Of nodes that have not answered, and may when they are asked again."""
UNHEARD = {OutcomeStatus.OFFLINE, OutcomeStatus.STALE, OutcomeStatus.TIMED_OUT, OutcomeStatus.ID_IN_USE}
_REFUSALS = {OutcomeStatus.REFUSED, OutcomeStatus.OUTSIDE_GRANT}


def exit_code(statuses: set[OutcomeStatus]) -> int:
    """Return the exit code if nodes did not do it: 4 if all refused, 6 if one did not answer, else 1."""
    return 4 if statuses <= _REFUSALS else 6 if statuses & UNHEARD else 1


class Outcome(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """The result of asking one node; ``reply`` is None and ``reason`` a sentence unless the status is ok.

    ``retry_after_s`` is when a busy node is to be asked again, None if it does not know.
    """

    node_id: NodeId
    status: OutcomeStatus
    reply: R | None = None
    reason: str = ""
    elapsed_s: float | None = None
    retry_after_s: float | None = None

    @property
    def ok(self) -> bool:
        """Tell whether the node did it."""
        return self.status is OutcomeStatus.OK


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """The state of connection and roster when nodes were asked, which explains an empty result."""

    broker: str
    researcher_id: str
    instance: str
    connected: bool
    settled: bool
    last_error: str = ""

    def sentence(self) -> str:
        """Return them as one sentence."""
        roster = "all online nodes were known" if self.settled else "not all nodes may be known yet: ask again"
        link = "connected" if self.connected else "NOT connected"
        error = f"; last error: {self.last_error}" if self.last_error else ""
        return f"{link} to the broker at {self.broker} as {self.researcher_id} ({self.instance}); {roster}{error}"

    def beside(self, summary: str, *, named: bool = False) -> str:
        """Return a summary, and the circumstances if they are unusual; nodes that were named need no settled roster."""
        is_usual = self.connected and (self.settled or named) and not self.last_error
        return summary if is_usual else f"{summary} {self.sentence()}"


class ByNode(Mapping[NodeId, V], Generic[V]):
    """A read-only mapping by node id, sorted, that shows itself as a table: as text, by rich, and in a notebook."""

    def __init__(self, values: Mapping[NodeId, V]) -> None:
        self._by_node = {node_id: values[node_id] for node_id in sorted(values)}

    def __getitem__(self, node_id: str) -> V:
        return self._by_node[NodeId(node_id)]

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._by_node)

    def __len__(self) -> int:
        return len(self._by_node)

    @abstractmethod
    def rows(self) -> list[Row]:
        """Return flat rows, a mapping of columns to values each."""

    def to_frame(self) -> Any:
        """Return `rows` as a pandas DataFrame. Raises NoDataframeError if pandas is not installed."""
        return frame(self.rows(), instead="rows()")

    @abstractmethod
    def summary(self) -> str:
        """Return the whole as one line."""

    @abstractmethod
    def text_rows(self) -> list[Row]:
        """Return the rows for a terminal."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Return the lines below the table."""

    def __str__(self) -> str:
        rows = self.text_rows() if self else []
        return "\n".join([*([text_table(rows)] if rows else []), *map(escape_control, self.notes())])

    def __rich__(self) -> Any:
        return rich_rows(self.text_rows() if self else [], notes=self.notes())

    def _repr_html_(self) -> str:
        return html_table(self.rows(), caption=self.summary())


class Outcomes(ByNode[Outcome[R]], Generic[R]):
    """The outcomes of one request by node id, sorted; immutable. Shows itself as a table."""

    def __init__(
        self,
        command: str,
        outcomes: Mapping[NodeId, Outcome[R]],
        *,
        circumstances: Circumstances,
        elapsed_s: float,
        named: bool = False,
    ) -> None:
        super().__init__(outcomes)
        self.command, self.circumstances, self.elapsed_s = command, circumstances, elapsed_s
        self.named = named

    @property
    def ok(self) -> dict[str, R]:
        """The replies of the nodes that did it."""
        return {node_id: outcome.reply for node_id, outcome in self.items() if outcome.reply is not None}

    @property
    def failed(self) -> dict[str, Outcome[R]]:
        """The outcomes of all other nodes."""
        return {node_id: outcome for node_id, outcome in self.items() if not outcome.ok}

    def reasons(self) -> list[str]:
        """Return ``a, b: reason`` for the nodes that did not do it."""
        return by_reason({node_id: outcome.reason for node_id, outcome in self.failed.items()})

    def rows(self) -> list[Row]:
        """Return flat rows: node, status, its answer (a row for each dataset if it lists some), reason."""
        found: list[Row] = []
        for node_id, outcome in self.items():
            head: Row = {"node": str(node_id), "status": outcome.status.value}
            tail: Row = {
                "reason": outcome.reason,
                "ms": None if outcome.elapsed_s is None else round(outcome.elapsed_s * 1000, 1),
            }
            parts = reply_rows(outcome.reply) if outcome.reply is not None else []
            found.extend(head | part | tail for part in parts or [{}])
        return found

    def summary(self) -> str:
        """Return the number of successes, or the reason for an empty table."""
        if not self and self.named:
            return f"no node was asked to {self.command}: there was none to ask"
        if not self:
            return f"no node answered {self.command}: none is known. {self.circumstances.sentence()}"
        listed = [reply for reply in self.ok.values() if isinstance(reply, DatasetsReply)]
        found = f", {plural(sum(len(reply.datasets) for reply in listed), 'dataset')}" if listed else ""
        return f"{len(self.ok)} of {len(self)} nodes: ok{found}."

    def explanation(self) -> str:
        """Return the summary, and the state of connection and roster."""
        return f"{self.summary()} {self.circumstances.sentence()}" if self else self.summary()

    def text_rows(self) -> list[Row]:
        """Return the rows for a terminal: short ids, of a ping also times; grants and reasons stand below the table."""
        rows, left_out = self.rows(), dict.fromkeys(["grants", "reason", *(["ms"] if self.command != "ping" else [])])
        short = short_ids([row["dataset_id"] for row in rows if "dataset_id" in row])
        return [
            row | left_out | ({"dataset_id": short[row["dataset_id"]]} if "dataset_id" in row else {}) for row in rows
        ]

    def notes(self) -> list[str]:
        """Return the grants of each node, or the reason for its absence, and the summary."""
        granted = by_reason({row["node"]: f"granted {row['grants']}" for row in self.rows() if row.get("grants")})
        summary = self.summary()
        beside = self.circumstances.beside(summary, named=self.named) if self else summary
        return [*granted, *self.reasons(), beside]

    def __repr__(self) -> str:
        states = ", ".join(f"{node_id}: {outcome.status.value}" for node_id, outcome in self.items())
        return f"<Outcomes of {self.command}: {states or self.explanation()}>"


class Nodes(ByNode[Node]):
    """Every node known at one moment, by id, sorted; immutable.

    More than 50 are shown as counts by state and the first 20 that are not online; `rows` has them all. ``beyond``
    counts nodes that were heard of and are not here, because of the setting ``max_nodes``.
    """

    def __init__(self, nodes: Mapping[NodeId, Node], *, circumstances: Circumstances, beyond: int = 0) -> None:
        super().__init__(nodes)
        self.circumstances, self.beyond = circumstances, beyond

    @property
    def online(self) -> list[NodeId]:
        """The ids of the nodes that will answer, as far as we know."""
        return [node_id for node_id, node in self.items() if node.is_online]

    def rows(self) -> list[Row]:
        """Return flat rows: node, state, since, last seen, reason, agent, boot and streams."""
        return _node_rows(self.values())

    def summary(self) -> str:
        """Return the number of online nodes, or the reason for an empty table."""
        if not self:
            return f"no node is known: none was heard of. {self.circumstances.sentence()}"
        unheard = sum(node.is_online and node.last_seen is None for node in self.values())
        online = f"{len(self.online)} of {len(self)} nodes are online" + (
            f"; {unheard} of them not heard yet." if unheard else "."
        )
        if not self.beyond:
            return online
        number = f"at least {self.beyond}" if self.beyond >= len(self) else str(self.beyond)
        return f"{online} {number} more were heard of and are not kept track of: raise max_nodes in [researcher]."

    def explanation(self) -> str:
        """Return the summary, and the state of connection and roster."""
        return f"{self.summary()} {self.circumstances.sentence()}" if self else self.summary()

    def text_rows(self) -> list[Row]:
        """Return the rows that are shown, without the values that only programs ask for."""
        rows = self.rows() if len(self) <= SHORT_ABOVE else _node_rows(self._others[:SHOWN])
        return [{name: value for name, value in row.items() if name not in ("boot", "streams")} for row in rows]

    def notes(self) -> list[str]:
        """Return the lines below the table."""
        return [*self._left_out(), self.circumstances.beside(self.summary()) if self else self.summary()]

    def __repr__(self) -> str:
        if len(self) > SHORT_ABOVE:
            return f"<Nodes {_counts(self.values())}>"
        states = ", ".join(f"{node_id}: {node.state.value}" for node_id, node in self.items())
        return f"<Nodes {states or self.explanation()}>"

    def _repr_html_(self) -> str:
        return html_table(self.text_rows(), caption=" ".join([*self._left_out(), self.summary()]))

    @property
    def _others(self) -> list[Node]:
        return [node for node in self.values() if node.state is not NodeState.ONLINE or node.id_in_use]

    def _left_out(self) -> list[str]:
        """Return counts by state if not all nodes are shown."""
        if len(self) <= SHORT_ABOVE:
            return []
        others = self._others
        more = f"; {len(others) - SHOWN} more that are not online" if len(others) > SHOWN else ""
        counts = _counts(others, online=len(self) - len(others))
        return [f"{counts}{more}. rows(), or --json in a shell, lists every node."]


_STATUS_OF_CODE = {
    ErrorCode.REFUSED: OutcomeStatus.REFUSED,
    ErrorCode.OUTSIDE_GRANT: OutcomeStatus.OUTSIDE_GRANT,
    ErrorCode.VERSION: OutcomeStatus.TOO_OLD,
    ErrorCode.UNKNOWN_COMMAND: OutcomeStatus.TOO_OLD,
    ErrorCode.UNSUPPORTED: OutcomeStatus.TOO_OLD,
    ErrorCode.NO_SANDBOX: OutcomeStatus.NO_SANDBOX,
    ErrorCode.BUSY: OutcomeStatus.BUSY,
}


def outcomes_of(asked: Answers, kind: type[R], roster: Roster, *, to_all: bool) -> dict[NodeId, Outcome[R]]:
    """Return one outcome for each node that answered, was waited for, or (``to_all``) is known.

    Of parties that only tell, whose refusals may come in time or not, ``to_all`` leaves out those that did not do it.
    """
    now = Moment.now()
    found: dict[NodeId, Outcome[R]] = {}
    for node_id, answer in asked.answers.items():
        found[node_id] = _of_reply(node_id, answer.reply, kind, answer.elapsed_s)
    for node_id in asked.silent:
        found[node_id] = _of_silence(node_id, roster.get(node_id, now), asked)
    if to_all:
        for node_id, node in roster.nodes(now).items():
            if node_id not in found:
                found[node_id] = _of_silence(node_id, node, asked)
            if only_tells(node_id, node.capabilities) and not found[node_id].ok:
                del found[node_id]
    return found


def _of_reply(node_id: NodeId, reply: Reply, kind: type[R], elapsed_s: float) -> Outcome[R]:
    if isinstance(reply, kind) and reply.success:
        return Outcome(node_id=node_id, status=OutcomeStatus.OK, reply=reply, elapsed_s=elapsed_s)
    status, reason, retry_s = OutcomeStatus.FAILED, "the node says that it did not succeed", None
    if isinstance(reply, Error):
        status, reason, retry_s = _STATUS_OF_CODE.get(reply.code, status), reply.reason, reply.retry_after_s
    return Outcome(node_id=node_id, status=status, reason=reason, elapsed_s=elapsed_s, retry_after_s=retry_s)


def _of_silence(node_id: NodeId, node: Node | None, asked: Answers) -> Outcome[R]:
    status, reason = OutcomeStatus.TIMED_OUT, f"no reply within {asked.elapsed_s:.1f} s, asked {asked.times} times"
    if node is None:
        status, reason = OutcomeStatus.OFFLINE, f"offline: {NEVER_HEARD}"
    elif node.id_in_use:
        status = OutcomeStatus.ID_IN_USE
        reason = "two processes run under this id; its owner must stop one"
    elif node.state is NodeState.OFFLINE:
        since = f" since {moment(node.since)}" if node.since else ""
        status, reason = OutcomeStatus.OFFLINE, f"offline{since}" + (f": {node.reason}" if node.reason else "")
    elif node.state is NodeState.STALE:
        status, reason = OutcomeStatus.STALE, node.reason
    elif OTHER_WIRE in node.capabilities:
        status = OutcomeStatus.TOO_OLD
        reason = f"it speaks the wire {OTHER_WIRE!r} and we do not; set `wire` alike on both sides"
    elif only_tells(node_id, node.capabilities):
        what = "batch job" if node_id.startswith(JOB_PREFIX) else "reporter"
        reason = f"it is a {what}: it publishes metrics, and answers only ping and monitor"
    return Outcome(node_id=node_id, status=status, reason=reason)


def _counts(nodes: Iterable[Node], *, online: int = 0) -> str:
    states = Counter({NodeState.ONLINE.value: online}) + Counter(_state(node) for node in nodes)
    return ", ".join(f"{number} {state}" for state, number in states.most_common())


def _node_rows(nodes: Iterable[Node]) -> list[Row]:
    return [
        {
            "node": node.node_id,
            "state": _state(node),
            "since": node.since,
            "last seen": node.last_seen,
            "reason": node.reason,
            "agent": node.agent_version,
            "boot": node.boot,
            "streams": node.streams,
        }
        for node in nodes
    ]


def _state(node: Node) -> str:
    return "id in use" if node.id_in_use else node.state.value
