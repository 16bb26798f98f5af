"""The state of runs on their nodes, as tables and sentences."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.log import escape_control
from fedmon.common.text import moment, plural, short_ids
from fedmon.common.wire.runs import JobReport, JobsReply, JobState, Scalar, Usage
from fedmon.researcher.asking.outcome import ByNode, Outcomes, OutcomeStatus
from fedmon.researcher.asking.tables import Row, by_reason, frame, html_table, named

_STATES = {OutcomeStatus.TIMED_OUT: "unanswered", OutcomeStatus.FAILED: "refused", OutcomeStatus.OK: "refused"}
_MIB = 2**20
_WHOLE = 1e12
"""Whole numbers up to here are shown with all of their digits: they count something."""


class NodeRun(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run on one node.

    ``job`` is the node's last message about it, None as long as there is none. Then ``asked`` is the outcome of asking
    it, and ``reason`` why it does not run there. ``scalars`` is the number received, ``latest`` the values of the last
    one, ``result`` whether the plan's result is available. ``unheard`` while a node that should be running it is not
    heard, ``unheard_since`` if that is known.
    """

    node_id: NodeId
    job: JobReport | None = None
    asked: OutcomeStatus = OutcomeStatus.OK
    reason: str = ""
    scalars: int = 0
    latest: Mapping[str, float | None] = {}
    result: bool = False
    unheard_since: datetime | None = None
    unheard: bool = False

    @property
    def state(self) -> str:
        """The state of the job there, such as ``running`` or ``memory-limit``, or why there is none.

        That is ``refused``, ``outside-grant``, ``busy``, ``unanswered``, ``no-sandbox``, or for a node not asked
        ``offline``, ``stale``, ``too-old`` or ``id-in-use``.
        """
        if self.job is not None:
            return self.job.state.value
        return _STATES.get(self.asked, self.asked.value)

    @property
    def is_over(self) -> bool:
        """Whether it no longer runs there; a held result may still come."""
        return not self.job.state.is_running if self.job is not None else self.asked is not OutcomeStatus.TIMED_OUT

    @property
    def succeeded(self) -> bool:
        """Whether the plan ran to its end there."""
        return self.job is not None and self.job.state is JobState.SUCCEEDED

    @property
    def is_held(self) -> bool:
        """Whether its result waits for the owner of the node."""
        return self.job is not None and self.job.state is JobState.HELD

    def sentence(self) -> str:
        """Return the state, and why."""
        reason = self.explanation()
        # A node that was not reached says by which state, and its reason begins with the same word.
        reason = reason.removeprefix(f"{self.state}: ")
        return f"{self.state} ({reason})" if reason else self.state

    def explanation(self) -> str:
        """Return why the state is as it is, as one line that is safe for a terminal; empty if there is no reason.

        The message of the plan's error is in ``job.problem``, unchanged.
        """
        said: list[str] = []
        if self.unheard:
            since = f" since {moment(self.unheard_since)}" if self.unheard_since else ""
            said.append(f"the node is unheard{since}")
        if self.job is not None:
            said += _why(self.job)
        if self.reason and self.reason not in said:
            said.append(self.reason)
        return escape_control("; ".join(said))

    def row(self) -> Row:
        """Return the table row."""
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
            "latest": shown_scalars(self.latest),
            "reason": self.explanation(),
        }


class RunStates(ByNode[NodeRun]):
    """The state of a run on each of its nodes, sorted by id; immutable. Shows itself as a table."""

    def __init__(self, job_id: str, parts: Mapping[NodeId, NodeRun]) -> None:
        super().__init__(parts)
        self.job_id = job_id

    @property
    def is_over(self) -> bool:
        """Whether it no longer runs on any node."""
        return all(part.is_over for part in self.values())

    def rows(self) -> list[Row]:
        """Return a flat row for each node."""
        return [part.row() for part in self.values()]

    def text_rows(self) -> list[Row]:
        """Return the rows for a terminal: a value that all nodes share, and reasons, stand below the table."""
        left_out = {"reason", "scalars", *(["sandbox"] if self._level else [])}
        return [{name: value for name, value in row.items() if name not in left_out} for row in self.rows()]

    def notes(self) -> list[str]:
        """Return a line for each reason, with the nodes that share it, and the summary."""
        reasons = {str(node_id): part.sentence() for node_id, part in self.items() if part.explanation()}
        return [*by_reason(reasons), self.summary()]

    @property
    def _level(self) -> str | None:
        """The level of confinement, if it is the same on all nodes."""
        levels = {part.job.sandbox for part in self.values() if part.job is not None}
        return levels.pop() if len(levels) == 1 else None

    def summary(self) -> str:
        """Return the state as a whole, as one line."""
        counts = Counter(part.state for part in self.values())
        said = ", ".join(f"{number} {state}" for state, number in sorted(counts.items())) or "no node"
        unheard = sum(part.unheard for part in self.values())
        confined = f", in sandbox {self._level}" if self._level else ""
        return f"job {self.job_id}: {said}{confined}" + (f"; {unheard} of them unheard" if unheard else "")

    def __repr__(self) -> str:
        return f"<{self.summary()}>"


class ScalarsByNode(dict[str, list[Scalar]]):
    """The reports of a plan by node, each in order; also one table."""

    def rows(self) -> list[Row]:
        """Return a flat row a report: node, number, Unix time, step and values; a value ``node`` is ``value_node``."""
        return [
            head | {f"value_{name}" if name in head else name: value for name, value in one.values.items()}
            for node_id, scalars in self.items()
            for one in scalars
            for head in [{"node": node_id, "number": one.number, "t": one.t, "step": one.step}]
        ]

    def to_frame(self) -> Any:
        """Return `rows` as a pandas DataFrame. Raises NoDataframeError if pandas is not installed."""
        return frame(self.rows(), instead="rows()")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def shown_scalars(values: Mapping[str, float | None]) -> str:
    """Return reported values, as text."""
    return ", ".join(f"{name}={_shown(value)}" for name, value in values.items())


def _shown(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.0f}" if value.is_integer() and abs(value) < _WHOLE else f"{value:.4g}"


def _why(job: JobReport) -> list[str]:
    """Return why a job ended as it did, without repetition."""
    problem, said = job.problem, []
    if problem is not None and problem.message:
        said.append(f"{problem.type}: {problem.message}")
    elif problem is not None and problem.type not in job.reason:
        said.append(problem.type)
    if job.reason and job.reason not in said:
        said.append(job.reason)
    # The reason names an end from outside; the code is news only if the plan itself ended the process.
    if job.state is JobState.FAILED and job.exit_code and problem is None and "exit code" not in job.reason:
        said.append(f"exit code {job.exit_code}")
    if job.dataset_id is None and problem is not None and problem.type == "AttributeError":  # of None
        said.append("it ran without a dataset: name one by its tags, name or id if it needs one")
    return said


class RunList(Outcomes[JobsReply]):
    """The answer of each node, by node id; shown as the runs that they know, newest first.

    The rounds of one training are one row of the text and of a notebook.
    """

    def __init__(self, outcomes: Outcomes[JobsReply], *, limit: int | None = None) -> None:
        vars(self).update(vars(outcomes))
        self._limit = limit

    def runs(self) -> dict[str, dict[str, JobReport]]:
        """Return the jobs by their id and the node, newest first."""
        found: dict[str, dict[str, JobReport]] = {}
        for node_id, reply in self.ok.items():
            for job in reply.jobs:
                found.setdefault(job.job_id, {})[str(node_id)] = job
        return dict(sorted(found.items(), key=lambda one: min(job.created for job in one[1].values()), reverse=True))

    def called(self, name: str) -> str | None:
        """Return the id of the newest run with a name; None if there is none."""
        return next((job_id for job_id, jobs in self.runs().items() if name and name == _label(jobs)), None)

    def rows(self) -> list[Row]:
        """Return a row for each run: its id, name and plan, when it was asked for, and its state on the nodes."""
        return [self._row(job_id, jobs) for job_id, jobs in self.runs().items()]

    def _row(self, job_id: str, jobs: Mapping[str, JobReport]) -> Row:
        return {
            "job": job_id,
            "name": _label(jobs),
            "plan": next(iter(jobs.values())).name,
            "began": min(job.created for job in jobs.values()),
            "nodes": _standing(jobs),
        }

    def summary(self) -> str:
        """Return the number of nodes that answered and of runs, or the reason for an empty table."""
        told, runs = super().summary(), plural(len(self.runs()), "run")
        return f"{told.removesuffix('.')}, {runs} of {self.circumstances.researcher_id}." if self else told

    def text(self, limit: int | None = None) -> str:
        """Return the newest runs as a table, and how many more there are."""
        return str(RunList(self, limit=limit))

    def text_rows(self) -> list[Row]:
        """Return the rows that are shown: short ids, and each training as its newest round with their number."""
        runs, short, rows = self.runs(), short_ids(self.runs()), []
        for group, ids in self._trainings()[: self._limit]:
            jobs: dict[str, JobReport] = {}
            for node, job in (each for job_id in ids for each in runs[job_id].items()):
                # Of each node the newest round, or the newest that did not succeed.
                if node not in jobs or (jobs[node].state is JobState.SUCCEEDED and job.state is not JobState.SUCCEEDED):
                    jobs[node] = job
            row = self._row(ids[0], runs[ids[0]])
            name, rounds = row["name"] or group, plural(len(ids), "round") if group else None
            rows.append(row | {"job": short[ids[0]], "name": name, "nodes": _standing(jobs), "rounds": rounds})
        return rows

    def _repr_html_(self) -> str:
        return html_table(self.text_rows(), caption="; ".join(self.notes()))

    def notes(self) -> list[str]:
        """Return the lines below the table."""
        older = len(self._trainings()[self._limit :]) if self._limit is not None else 0
        return [*([f"... and {plural(older, 'older one')}"] if older else []), *super().notes()]

    def _trainings(self) -> list[tuple[str, list[str]]]:
        """Return groups with the ids of their runs, newest first; a run without a group stands alone."""
        found: dict[tuple[str, str], list[str]] = {}
        for job_id, jobs in self.runs().items():
            group = next(iter(jobs.values())).group
            found.setdefault((group, "" if group else job_id), []).append(job_id)
        return [(group, ids) for (group, _), ids in found.items()]


def _label(jobs: Mapping[str, JobReport]) -> str:
    """Return the name that its researcher gave to a run."""
    return next((job.label for job in jobs.values() if job.label), "")


def _standing(jobs: Mapping[str, JobReport]) -> str:
    """Return the number of nodes by state, with the names of those that did not succeed."""
    nodes: dict[JobState, list[str]] = {}
    for node_id, job in jobs.items():
        nodes.setdefault(job.state, []).append(node_id)
    alike = len(nodes) == 1
    return ", ".join(
        f"{len(node_ids)} {state.value}"
        + ("" if alike or state is JobState.SUCCEEDED else f" ({named(sorted(node_ids))})")
        for state, node_ids in sorted(nodes.items(), key=lambda one: one[0].value)
    )


def shown_in_place(changes: Iterable[RunStates]) -> bool:
    """Show each in place of the one before, if a notebook runs us; return whether the last one is over."""
    # Only a notebook has loaded it; to load it ourselves would take longer than most runs.
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    is_notebook = get_shell is not None and hasattr(get_shell(), "kernel")
    display = getattr(sys.modules.get("IPython.display"), "display", None) if is_notebook else None
    place, last = None, None
    for last in changes:
        if display is not None and place is None:
            place = display(last, display_id=True)
        elif place is not None:
            place.update(last)
    return last is not None and last.is_over
