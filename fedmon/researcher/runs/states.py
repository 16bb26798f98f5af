"""How a run stands on each node, as a mapping that shows itself as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.wire.runs import Job, JobState, Usage
from fedmon.researcher.outcomes import OutcomeStatus
from fedmon.researcher.tables import Row, html_table, local_time, text_table

REFUSED, UNANSWERED = "refused", "unanswered"


class NodeRun(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands on one node.

    ``job`` is what the node said of it last, null as long as it said nothing. Then ``asked`` is what came of asking
    it, and ``reason`` why it does not run there. ``scalars`` is how many are here, ``result`` whether what the plan
    returned is there to be had. ``unheard`` while a node that should be running it is not heard, ``unheard_since`` when
    that is known.
    """

    node_id: NodeId
    job: Job | None = None
    asked: OutcomeStatus = OutcomeStatus.OK
    reason: str = ""
    scalars: int = 0
    result: bool = False
    unheard_since: datetime | None = None
    unheard: bool = False

    @property
    def state(self) -> str:
        """``refused``, ``unanswered``, or the state of the job there, such as ``running`` or ``memory-limit``."""
        if self.job is not None:
            return self.job.state.value
        return UNANSWERED if self.asked is OutcomeStatus.TIMED_OUT else REFUSED

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen there."""
        return self.job.state.is_over if self.job is not None else self.asked is not OutcomeStatus.TIMED_OUT

    @property
    def succeeded(self) -> bool:
        """Whether the plan ran to its end there."""
        return self.job is not None and self.job.state is JobState.SUCCEEDED

    def unheard_from(self, since: datetime | None) -> NodeRun:
        """Return this with the word that the node is not heard, since a moment where that is known."""
        return msgspec.structs.replace(self, unheard=True, unheard_since=since)

    def sentence(self) -> str:
        """Say how it stands, and why."""
        words = self.state
        if reason := self.explanation():
            words += f" ({reason})"
        return words

    def explanation(self) -> str:
        """Say why it stands as it does; empty where there is nothing to say."""
        said: list[str] = []
        if self.unheard:
            since = f" since {local_time(self.unheard_since)}" if self.unheard_since else ""
            said.append(f"the node is unheard{since}")
        if self.job is not None:
            problem = self.job.problem
            if problem is not None:
                said.append(f"{problem.type}: {problem.message}" if problem.message else problem.type)
            if self.job.reason and self.job.reason not in said:
                said.append(self.job.reason)
            if self.job.exit_code:
                said.append(f"exit code {self.job.exit_code}")
        if self.reason and self.reason not in said:
            said.append(self.reason)
        return "; ".join(said)

    def row(self, *, latest: Mapping[str, float | None]) -> Row:
        """Return what a table shows; ``latest`` are the last scalars."""
        usage = self.job.usage if self.job is not None else Usage()
        return {
            "node": str(self.node_id),
            "state": self.state,
            "sandbox": self.job.sandbox if self.job is not None else None,
            "s": _rounded(usage.wall_s),
            "CPU s": _rounded(usage.cpu_s),
            "peak MB": None if usage.peak_memory_bytes is None else round(usage.peak_memory_bytes / 1e6, 1),
            "J": _rounded(usage.energy_j),
            "scalars": self.scalars or None,
            "latest": ", ".join(f"{name}={_shown(value)}" for name, value in latest.items()),
            "reason": self.explanation(),
        }


class RunStates(Mapping[NodeId, NodeRun]):
    """How a run stands on each of its nodes, sorted by id; immutable. A table by `str`, and in a notebook."""

    def __init__(
        self, job_id: str, parts: Mapping[NodeId, NodeRun], latest: Mapping[NodeId, Mapping[str, float | None]]
    ) -> None:
        self.job_id = job_id
        self._parts = {node_id: parts[node_id] for node_id in sorted(parts)}
        self._latest = latest

    def __getitem__(self, node_id: str) -> NodeRun:
        return self._parts[NodeId(node_id)]

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def is_over(self) -> bool:
        """Whether it goes on nowhere."""
        return all(part.is_over for part in self.values())

    def rows(self) -> list[Row]:
        """Return a flat row for each node."""
        return [part.row(latest=self._latest.get(node_id, {})) for node_id, part in self.items()]

    def summary(self) -> str:
        """Say in a line how it stands as a whole."""
        counts: dict[str, int] = {}
        for part in self.values():
            counts[part.state] = counts.get(part.state, 0) + 1
        said = ", ".join(f"{number} {state}" for state, number in sorted(counts.items())) or "no node"
        unheard = sum(part.unheard for part in self.values())
        return f"job {self.job_id}: {said}" + (f"; {unheard} of them unheard" if unheard else "")

    def __str__(self) -> str:
        return f"{text_table(self.rows())}\n{self.summary()}" if self else self.summary()

    def __repr__(self) -> str:
        return f"<{self.summary()}>"

    def _repr_html_(self) -> str:
        return html_table(self.rows(), caption=self.summary())


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"
