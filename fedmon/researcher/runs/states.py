"""How a run stands on each node, as a mapping that shows itself as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.log import escape_control
from fedmon.common.wire.runs import Job, JobState, Usage
from fedmon.researcher.asking.outcome import OutcomeStatus
from fedmon.researcher.asking.tables import Row, html_table, local_time, text_table
from fedmon.researcher.runs.wording import by_reason

REFUSED, UNANSWERED = "refused", "unanswered"
_SHOWN = (
    OutcomeStatus.OFFLINE, OutcomeStatus.STALE, OutcomeStatus.TOO_OLD, OutcomeStatus.ID_IN_USE,
    OutcomeStatus.NO_SANDBOX,
)  # fmt: skip
_MIB = 2**20
_WHOLE = 1e12
"""Whole numbers up to here are shown with all of their digits: they count something."""


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
        """The state of the job there, such as ``running`` or ``memory-limit``, or why there is none.

        That is ``refused``, ``unanswered``, ``no-sandbox``, or for what was not even asked ``offline``, ``stale``,
        ``too-old`` or ``id-in-use``.
        """
        if self.job is not None:
            return self.job.state.value
        if self.asked in _SHOWN:
            return self.asked.value
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
        reason = self.explanation()
        # A node that was not reached says by which state, and its reason begins with the same word.
        reason = reason.removeprefix(f"{self.state}: ")
        return f"{self.state} ({reason})" if reason else self.state

    def explanation(self) -> str:
        """Say why it stands as it does, in a line that does nothing to a terminal; empty where there is nothing to say.

        What the plan's error says is in ``job.problem`` as it was said.
        """
        said: list[str] = []
        if self.unheard:
            since = f" since {local_time(self.unheard_since)}" if self.unheard_since else ""
            said.append(f"the node is unheard{since}")
        if self.job is not None:
            said += _why(self.job)
        if self.reason and self.reason not in said:
            said.append(self.reason)
        return escape_control("; ".join(said))

    def row(self, *, latest: Mapping[str, float | None]) -> Row:
        """Return what a table shows; ``latest`` are the last scalars."""
        usage = self.job.usage if self.job is not None else Usage()
        return {
            "node": str(self.node_id),
            "state": self.state,
            "sandbox": self.job.sandbox if self.job is not None else None,
            "s": _rounded(usage.wall_s),
            "CPU s": _rounded(usage.cpu_s),
            "peak MiB": None if usage.peak_memory_bytes is None else round(usage.peak_memory_bytes / _MIB, 1),
            "J": _rounded(usage.energy_j),
            "scalars": self.scalars or None,
            "latest": shown_scalars(latest),
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

    def latest(self, node_id: str) -> str:
        """Return the last that the plan reported on a node, as text."""
        return shown_scalars(self._latest.get(NodeId(node_id), {}))

    def rows(self) -> list[Row]:
        """Return a flat row for each node."""
        return [part.row(latest=self._latest.get(node_id, {})) for node_id, part in self.items()]

    def text_rows(self) -> list[Row]:
        """Return the rows for a terminal: what is the same on all nodes, or as long as a sentence, stands below."""
        rows = self.rows()
        left_out = {"reason", "scalars", *(["sandbox"] if self._level else [])}
        return [{name: value for name, value in row.items() if name not in left_out} for row in rows]

    def notes(self) -> list[str]:
        """Return why nodes stand as they do, a line for each reason; those that have the same share it."""
        return by_reason({str(node_id): part.sentence() for node_id, part in self.items() if part.explanation()})

    @property
    def _level(self) -> str | None:
        """The level of confinement, where it is the same wherever it runs or ran."""
        levels = {part.job.sandbox for part in self.values() if part.job is not None}
        return levels.pop() if len(levels) == 1 else None

    def summary(self) -> str:
        """Say in a line how it stands as a whole."""
        counts: dict[str, int] = {}
        for part in self.values():
            counts[part.state] = counts.get(part.state, 0) + 1
        said = ", ".join(f"{number} {state}" for state, number in sorted(counts.items())) or "no node"
        unheard = sum(part.unheard for part in self.values())
        confined = f", in sandbox {self._level}" if self._level else ""
        return f"job {self.job_id}: {said}{confined}" + (f"; {unheard} of them unheard" if unheard else "")

    def __str__(self) -> str:
        if not self:
            return self.summary()
        return "\n".join([text_table(self.text_rows()), *map(escape_control, self.notes()), self.summary()])

    def __repr__(self) -> str:
        return f"<{self.summary()}>"

    def _repr_html_(self) -> str:
        return html_table(self.rows(), caption=self.summary())


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def shown_scalars(values: Mapping[str, float | None]) -> str:
    """Return what was reported, as text."""
    return ", ".join(f"{name}={_shown(value)}" for name, value in values.items())


def _shown(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.0f}" if value.is_integer() and abs(value) < _WHOLE else f"{value:.4g}"


def _why(job: Job) -> list[str]:
    """Return why a job ended as it did; nothing is said twice."""
    problem, said = job.problem, []
    if problem is not None and problem.message:
        said.append(f"{problem.type}: {problem.message}")
    elif problem is not None and problem.type not in job.reason:
        said.append(problem.type)
    if job.reason and job.reason not in said:
        said.append(job.reason)
    # What ended it from outside is in the reason; the code is news only where the plan itself ended the process.
    if job.state is JobState.FAILED and job.exit_code and problem is None and "exit code" not in job.reason:
        said.append(f"exit code {job.exit_code}")
    if job.state is JobState.FAILED and job.dataset_id is None and problem is not None and not problem.message:
        said.append("it ran without a dataset: name one by its tags or its id if it needs one")
    return said
