"""What of a source becomes a table: its nodes, streams, series and time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from fedmon.common.errors import NotFoundError
from fedmon.common.store.recording_file import Key
from fedmon.common.store.recording_reader import Reach, chooser
from fedmon.report.layout import JOB, LABELS, Layout, Owner, columns, natural, sound
from fedmon.report.source import Host, Source
from fedmon.report.spans import Span, spans

_SPAN_ROWS = 6_144
_SPAN_VALUES = 2**20
_LATEST = 2.0**1023
"""Infinity has no place in JSON, and plans are sent to other processes."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """``metrics`` are names or globs; ``job`` a job's id or key; times in Unix seconds, both included."""

    metrics: tuple[str, ...] | None = None
    job: str | None = None
    rates: bool = True
    since_t: float | None = None
    until_t: float | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a selection is read: the columns, and stretches of time in the order of their rows."""

    layout: Layout
    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        """How many rows there are at most."""
        return sum(span.rows for span in self.spans)


def plan(source: Source, selection: Selection) -> Plan:
    """Look up what there is of a selection. Raises NotFoundError for a job that is not there, and StorageError."""
    job = None if selection.job is None else find_job(source, selection.job)
    keys = sorted({(one.node_id, one.stream, one.boot) for one in source.streams})
    if job is not None:
        nodes = {node_id for node_id, stream, _ in keys if stream == JOB + job}
        keys = [key for key in keys if key[0] in nodes and (not key[1].startswith(JOB) or key[1] == JOB + job)]
    wanted = chooser(selection.metrics)
    found: list[tuple[Key, list[str]]] = []
    for key in keys:
        names = dict.fromkeys(name for rows in source.rows_with(key) for name in rows.series(key))
        chosen = [name for name in names if wanted is None or wanted(name)]
        if chosen:
            found.append((key, chosen))
    made = columns(((key[1], names) for key, names in found), rates=selection.rates)
    rows = max(256, min(_SPAN_ROWS, _SPAN_VALUES // max(1, len(made))))
    jobs = {stream for _, stream, _ in keys if stream.startswith(JOB)}
    hosts = sorted(source.hosts, key=lambda host: (natural(host.name), host.node_id))
    owners = {host.node_id: _owner(source, host, jobs, keys) for host in hosts}
    used = {label for owner in owners.values() for label in owner.labels}
    cut: list[Span] = []
    for host in hosts:
        reaches = {key: _reaches(source, key) for key, _ in found if key[0] == host.node_id}
        of_job = [
            reach
            for key in keys
            if job is not None and key[:2] == (host.node_id, JOB + job)
            for reach in _reaches(source, key)
        ]
        low, high = _times(selection, of_job)
        cut += spans(host.node_id, reaches, since_t=low, until_t=high, rows=rows)
    layout = Layout(
        columns=made,
        labels=tuple(label for label in LABELS if label in used),
        owners=owners,
        rates=selection.rates,
    )
    return Plan(layout=layout, spans=tuple(cut))


def find_job(source: Source, job: str) -> str:
    """Return the key of a job by its key or by its scheduler's id. Raises NotFoundError."""
    if job in source.job_ids:
        return job
    for host in source.hosts:
        for key, known in host.jobs.items():
            if str(known.get("job_id")) == job and key in source.job_ids:
                return key
    there = ", ".join(source.job_ids) or "none at all"
    raise NotFoundError(f"no job {job!r} in what was named; there are: {there}")


def _times(selection: Selection, of_job: Sequence[Reach]) -> tuple[float, float]:
    """Return from when, and up to when without that moment itself; of a job, from its first to its last sample."""
    low = -_LATEST if selection.since_t is None else selection.since_t
    high = _LATEST if selection.until_t is None else selection.until_t
    if of_job:
        low = max(low, min(reach.low_t for reach in of_job))
        high = min(high, max(reach.high_t for reach in of_job))
    return low, math.nextafter(high, math.inf)


def _owner(source: Source, host: Host, jobs: set[str], keys: Sequence[Key]) -> Owner:
    """Say what is in the rows of a host; where there is one job alone, also of which, while that ran there."""
    labels = {name: sound(text) for name, text in host.labels.items() if name in LABELS and text}
    job_times: list[tuple[float, float]] = []
    if len(jobs) == 1:
        stream = next(iter(jobs))
        reaches = [_reaches(source, key) for key in keys if key[:2] == (host.node_id, stream)]
        job_times = [(min(one.low_t for one in each), max(one.high_t for one in each)) for each in reaches if each]
        if job_times:
            labels["job"] = sound(stream.removeprefix(JOB))
    return Owner(host=sound(host.name), labels=labels, job_times=job_times)


def _reaches(source: Source, key: Key) -> list[Reach]:
    return [reach for one in source.rows_with(key) for reach in one.reaches(key)]
