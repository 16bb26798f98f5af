"""What came of asking: one outcome a node, as a mapping that shows itself as a table."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import DatasetsReply
from fedmon.researcher.asking.tables import html_table, text_table

R = TypeVar("R", bound=Reply)
Row = dict[str, Any]


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
