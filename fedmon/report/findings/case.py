"""The data of findings and reports: one job on its nodes, or nodes without any job."""

from __future__ import annotations

import enum
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from fedmon.common.metrics.series import metric_name
from fedmon.common.store.recording import LostRange, Mark
from fedmon.report.blocks import labels_of
from fedmon.report.source import JOB, Host, told_number
from fedmon.report.totals import SeriesTotal, StreamTotal


class Severity(enum.Enum):
    """Severity of a finding, the worst first; unknown means not measured."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"
    GOOD = "good"
    UNKNOWN = "unknown"


WORDS: Mapping[Severity, str] = {
    Severity.PROBLEM: "Problem",
    Severity.WARNING: "Look at",
    Severity.NOTE: "Note",
    Severity.GOOD: "Good",
    Severity.UNKNOWN: "Unknown",
}
"""Severities as reports name them."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened, in words.

    ``name`` is the same in every report. ``text`` is a sentence or two with figures and units, ``advice`` says what
    to do, empty if there is no remedy. ``figures`` are the same numbers for programs, in base units; None is unknown.
    ``nodes`` are those that it is about, by name.
    """

    name: str
    severity: Severity
    title: str
    text: str
    advice: str = ""
    figures: Mapping[str, float | None] = {}
    nodes: tuple[str, ...] = ()


def unknown(nodes: Sequence[Node], name: str, title: str, *metrics: str, reason: str = "") -> Finding:
    """Report that a value is unknown, and why: for this reason, or since the first node measured no such metric."""
    reason = reason or next((node.why_not(*metrics) for node in nodes), "no node")
    return Finding(name=name, severity=Severity.UNKNOWN, title=title, text=f"Not measured: {reason}.")


Labels = Mapping[str, str]
COMMAND = "command"
"""The method of a job that the tool itself started, from its first process."""


class Node(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One node: its description, and the totals of its streams; ``job`` is that of the case's job.

    ``document`` is the node's knowledge of the job. ``lost`` are the samples of each stream and boot that are gone for
    good.
    ``has_begin`` tells whether the selection includes the first sample of the job, so that counters begin with
    the job. ``counted_by`` names the node whose samples of the machine they share count, empty for that one.
    """

    host: Host
    streams: Mapping[str, StreamTotal] = {}
    job: StreamTotal | None = None
    document: Mapping[str, Any] = {}
    lost: Mapping[tuple[str, int], Sequence[LostRange]] = {}
    has_begin: bool = True
    counted_by: str = ""

    @property
    def name(self) -> str:
        """The node's display name."""
        return self.host.name

    @property
    def machine(self) -> StreamTotal | None:
        """The totals of the machine as a whole."""
        return self.streams.get("host")

    def all(self, metric: str) -> list[tuple[Labels, SeriesTotal]]:
        """Return every series of a metric that has values, with its labels; those of the job before the machine's."""
        return self._by_metric.get(metric, [])

    def one(self, metric: str, **labels: str) -> SeriesTotal | None:
        """Return the first series of a metric that has these labels; None when nothing of it was measured."""
        for found, total in self.all(metric):
            if all(found.get(name) == value for name, value in labels.items()):
                return total
        return None

    def why_not(self, *metrics: str) -> str:
        """Say why none of some metrics was measured."""
        reasons = [reason for metric in metrics if (reason := self.host.capabilities.get(metric))]
        if reasons:
            return reasons[0]
        if self.all(metrics[0]):
            return f"one reading of {metrics[0]} does not show its growth"
        if metrics[0].startswith("job_") and self.job is None:
            return "no sample of the job from this node"
        if not self.streams:
            return "no sample from this node"
        return f"no value of {metrics[0]} was recorded"

    @property
    def cpus(self) -> tuple[float | None, bool]:
        """The number of CPUs of the job here, else of the machine, and whether it is that of the machine."""
        given = told_number(self.document, "cpus")
        if given is not None and given > 0:
            return given, False
        online = self.one("host_cpu_count")
        amount = told_number(self.host.hardware, "threads") if online is None else online.last
        return amount if amount is not None and amount > 0 else None, True

    @property
    def share(self) -> tuple[str, object]:
        """The key of the CPUs and memory that the job was given here; ranks of one step on a host share theirs."""
        is_rank = self.document.get("method") == COMMAND
        return (is_rank and self.host.machine) or self.name, self.document.get("step")

    @property
    def span(self) -> tuple[float, float]:
        """When the job ran here: as told, else from the first to the last sample; always if unknown."""
        first_t, last_t = (-math.inf, math.inf) if self.job is None else (self.job.first_t, self.job.last_t)
        started_t, ended_t = unix(self.document.get("started")), unix(self.document.get("ended"))
        begin_t = first_t if started_t is None else started_t
        return begin_t, max(begin_t, last_t if ended_t is None else ended_t)

    @functools.cached_property
    def _by_metric(self) -> dict[str, list[tuple[Labels, SeriesTotal]]]:
        found: dict[str, list[tuple[Labels, SeriesTotal]]] = {}
        streams = [self.job] if self.job is not None else []
        for total in (*streams, *(one for name, one in self.streams.items() if not name.startswith(JOB))):
            for series in total.series.values():
                found.setdefault(metric_name(series.series), []).append((labels_of(series.series), series))
        return found


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The subject of a report; ``job`` is None for nodes.

    ``jobs`` are the ids of all jobs of which there are samples. ``is_part`` tells whether the reader left out any
    of their streams.
    """

    job: str | None
    nodes: tuple[Node, ...]
    marks: tuple[Mark, ...] = ()
    jobs: tuple[str, ...] = ()
    is_part: bool = False

    @property
    def document(self) -> dict[str, Any]:
        """The knowledge of all nodes about the job; for each key the first node with a value counts."""
        merged: dict[str, Any] = {}
        for told in self.documents:
            merged |= {name: value for name, value in told.items() if name not in merged and value is not None}
        return merged

    @property
    def documents(self) -> list[Mapping[str, Any]]:
        """The knowledge of each node about the job, without nodes that it left when it was requeued."""
        return [node.document for node in self._last_nodes]

    @property
    def _last_nodes(self) -> list[Node]:
        starts = [told_number(node.document, "starts_at") or 0.0 for node in self.nodes]
        last = max(starts, default=0.0)
        return [node for node, t in zip(self.nodes, starts, strict=True) if t in (0.0, last)]

    @property
    def labels(self) -> dict[str, str]:
        """The owner's labels of the run."""
        return {name: value for node in reversed(self.nodes) for name, value in node.host.labels.items() if value}

    @property
    def span(self) -> tuple[float, float] | None:
        """When the first and the last sample was taken, of the job where there is one; None when there is none."""
        streams = self._measured()
        if not streams:
            return None
        return min(one.first_t for one in streams), max(one.last_t for one in streams)

    @property
    def started_t(self) -> float | None:
        """When the job began on its first node: as told, else its first sample."""
        return min(self._told("started"), default=None) or (self.span or (None, None))[0]

    @property
    def ended_t(self) -> float | None:
        """When the job ended: as told, else None."""
        return max(self._told("ended"), default=None)

    @property
    def end(self) -> Mapping[str, Any]:
        """The knowledge of a node on which the job failed, else of one that has an exit code, else of all nodes."""
        known = [told for told in self.documents if isinstance(told.get("exit_code"), int)]
        return next((one for one in known if one["exit_code"]), (*known, self.document | {"exit_code": None})[0])

    @property
    def elapsed_s(self) -> float | None:
        """Duration of the job, or of the measurement, unaffected by clock changes; None without any sample."""
        streams, span = self._measured(), self.span
        if any(one.clock_steps for one in streams):
            return max(one.elapsed_s for one in streams)
        if self.job is not None and self.started_t is not None and self.ended_t is not None:
            return max(0.0, self.ended_t - self.started_t)
        return None if span is None else span[1] - span[0]

    def _told(self, name: str) -> list[float]:
        """Return when nodes began or ended, by the clock of their file server if it is known."""
        return [t - (told_number(node.host.tool, "clock_offset_s") or 0.0) for node in self._last_nodes
                if (t := unix(node.document.get(name))) is not None]  # fmt: skip

    def _measured(self) -> list[StreamTotal]:
        """Return the streams of the job if there is one, else all."""
        streams = [node.job for node in self.nodes if node.job is not None]
        return streams or [one for node in self.nodes for one in node.streams.values()]


def unix(text: object) -> float | None:
    """Return an RFC 3339 time as Unix seconds; None for any other text."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def most_at_once(values: Iterable[tuple[Node, float]]) -> tuple[float, float]:
    """Return the largest sum of values of nodes on which the job ran at the same time, and when; 0 without any."""
    changes: list[tuple[float, float]] = []
    for node, value in values:
        begin_t, end_t = node.span
        changes += (begin_t, value), (end_t, -value)
    in_order = sorted(changes, key=lambda change: (change[0], -change[1]))
    sums = itertools.accumulate(change for _, change in in_order)
    return max(zip(sums, (t for t, _ in in_order), strict=True), key=lambda one: one[0], default=(0.0, 0.0))


def summed(totals: Iterable[SeriesTotal | None]) -> float | None:
    """Add the growth of counters; None if none of them exists."""
    found = [one.increase for one in totals if one is not None and one.increase is not None]
    return sum(found) if found else None


def past(shares: Mapping[str, float], limit: float) -> dict[str, float]:
    """Return the shares from a limit on, the largest first."""
    return dict(sorted(((name, share) for name, share in shares.items() if share >= limit), key=lambda one: -one[1]))


def directive(node: Node, *, cpus: int | None = None, memory_bytes: float | None = None) -> str:
    """Return a sentence with the line of a job script to copy; empty if the scheduler is unknown.

    SLURM counts CPUs by task, and how many tasks a job has is not recorded; its ``--mem`` is for each node. PBS's
    ``mem`` and ``ncpus`` and OAR's ``core`` are for the whole job, so there is no line for a job on several nodes.
    Source: Slurm, sbatch(1), "--mem"; OpenPBS, pbs_resources(7B), "mem" and "Requesting resources".
    """
    mib = math.ceil((memory_bytes or 0) / 2**20)
    memory = f"{mib}M" if mib < 1024 else f"{math.ceil(mib / 1024)}G"
    nodes = node.document.get("nodes")
    is_one = not (isinstance(nodes, list) and len(nodes) > 1)
    lines = {
        "slurm": "" if cpus is not None else f"#SBATCH --mem={memory}",
        "pbs": "" if not is_one else f"#PBS -l ncpus={cpus}" if cpus is not None else f"#PBS -l mem={memory.lower()}b",
        "oar": f"#OAR -l core={cpus}" if cpus is not None and is_one else "",
    }
    scheduler = str(node.document.get("scheduler") or "").lower()
    line = next((line for name, line in lines.items() if scheduler.startswith(name)), "")
    return f" For example: {line}" if line else ""
