"""The machines and jobs of recordings, and their values at the same instants, side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from fedmon.common.metrics.series import metric_name
from fedmon.report.blocks import Block, Floats
from fedmon.report.selection import find_job, natural
from fedmon.report.source import HOST, JOB, Host, Source

Chooser = Callable[[str], bool]


class Instants(NamedTuple):
    """Neighbouring samples of one boot of one node; ``host`` and ``job`` map series to arrays of equal length.

    ``t`` is Unix and ``mono`` monotonic time in seconds. A series that one of the streams does not have is absent.
    """

    node_id: str
    boot: int
    t: Floats
    mono: Floats
    host: Mapping[str, Floats]
    job: Mapping[str, Floats]

    def of_host(self, series: str) -> Floats:
        """Return a series of the machine, NaN throughout where there is none."""
        return self.host[series] if series in self.host else np.full(len(self.t), np.nan)

    def of_job(self, series: str) -> Floats:
        """Return a series of the job, NaN throughout where there is none."""
        return self.job[series] if series in self.job else np.full(len(self.t), np.nan)


def _side(blocks: Iterator[Block], spans: Mapping[int, tuple[float, float]]) -> dict[int, Block]:
    """Return all samples of each boot as one block; with ``spans`` those between two monotonic times."""
    parts: dict[int, list[Block]] = {}
    for block in blocks:
        first, last = spans.get(block.boot, (np.inf, -np.inf)) if spans else (-np.inf, np.inf)
        inside = np.flatnonzero((block.mono >= first) & (block.mono <= last))
        if len(inside):
            part = block.part(block.seq + int(inside[0]), block.seq + int(inside[-1]))
            parts.setdefault(block.boot, []).append(part)
    return {boot: _whole(found) for boot, found in parts.items()}


def _whole(parts: list[Block]) -> Block:
    names = dict.fromkeys(name for part in parts for name in part.columns)
    columns = {
        name: np.concatenate([part.columns.get(name, np.full(len(part.t), np.nan)) for part in parts]) for name in names
    }
    t, mono = (np.concatenate([getattr(part, clock) for part in parts]) for clock in ("t", "mono"))
    return parts[0]._replace(t=t, mono=mono, columns=columns)


def _spread(block: Block | None, mono: Floats) -> dict[str, Floats]:
    """Return the columns of a block at some moments, NaN if it has none."""
    found: dict[str, Floats] = {}
    if block is not None:
        at = np.searchsorted(mono, block.mono)
        for name, values in block.columns.items():
            found[name] = np.full(len(mono), np.nan)
            found[name][at] = values
    return found


Moment = tuple[int, float]
"""Boot and monotonic time."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One job on one machine, or a machine on which there is no job.

    ``of_host`` and ``of_job`` map each series that has a value to the moment of its last one. ``spans`` are the first
    and last monotonic time of the job in each boot; empty where everything of the machine belongs to it. ``rows`` is
    how many instants there are at most, ``interval_s`` the usual distance of two; None with fewer than two.
    """

    host: Host
    job: str | None
    of_host: Mapping[str, Moment]
    of_job: Mapping[str, Moment]
    spans: Mapping[int, tuple[float, float]]
    since_t: float | None
    until_t: float | None
    rows: int
    interval_s: float | None

    def instants(self, source: Source, host: Collection[str], job: Collection[str]) -> Iterator[Instants]:
        """Return the instants of this place in order, with these series of the machine and of the job."""
        of_host = source.blocks(
            node_id=self.host.node_id,
            stream=HOST,
            series=frozenset(host).__contains__,
            since_t=self.since_t,
            until_t=self.until_t,
        )
        of_job: Iterator[Block] = iter(())
        if self.job is not None and self.spans:
            of_job = source.blocks(node_id=self.host.node_id, stream=JOB + self.job, series=frozenset(job).__contains__)
        machine, watched = _side(of_host, self.spans), _side(of_job, {})
        for boot in sorted(machine.keys() | watched.keys()):
            sides = [side[boot] for side in (watched, machine) if boot in side]
            # Samples of one tick have the same monotonic time.
            mono = np.unique(np.concatenate([one.mono for one in sides]))
            t = np.empty(len(mono))
            for one in sides:
                t[np.searchsorted(mono, one.mono)] = one.t
            yield Instants(
                self.host.node_id, boot, t, mono, _spread(machine.get(boot), mono), _spread(watched.get(boot), mono)
            )


def survey(source: Source, job: str | None, *, metrics: Callable[[str], bool]) -> list[Place]:
    """Return every place of one job, or of all, by job and host; ``metrics`` says which metrics matter.

    ``job`` is its name at its scheduler or in its stream. Raises NotFoundError when there is nothing of that job.
    """
    key = job if job is None else find_job(source, job)
    places = [place for host in source.hosts for place in _places(source, host, key, metrics)]
    return sorted(places, key=lambda place: (natural(place.job or ""), natural(place.host.name)))


def _places(source: Source, host: Host, job: str | None, metrics: Callable[[str], bool]) -> Iterator[Place]:
    streams = {one.stream for one in source.streams if one.node_id == host.node_id}
    jobs: list[str | None] = [*sorted({one.removeprefix(JOB) for one in streams if one.startswith(JOB)} | {*host.jobs})]
    chosen = [one for one in jobs if job in (None, one)] or ([None] if job is None else [])
    for one in chosen:
        of_job = _Seen(source, host.node_id, f"{JOB}{one}", metrics) if f"{JOB}{one}" in streams else None
        low_t, high_t = (of_job.low_t, of_job.high_t) if of_job else (None, None)
        of_host = _Seen(source, host.node_id, HOST, metrics, since_t=low_t, until_t=high_t)
        timed = of_job or of_host
        yield Place(
            host=host,
            job=one,
            of_host=of_host.last,
            of_job=of_job.last if of_job else {},
            spans=of_job.spans if of_job else {},
            since_t=low_t,
            until_t=high_t,
            rows=max(of_host.samples, of_job.samples if of_job else 0),
            interval_s=timed.interval_s,
        )


class _Seen:
    """The content of one stream of one node, found by reading it once."""

    def __init__(
        self,
        source: Source,
        node_id: str,
        stream: str,
        metrics: Callable[[str], bool],
        *,
        since_t: float | None = None,
        until_t: float | None = None,
    ) -> None:
        self.last: dict[str, Moment] = {}
        self.spans: dict[int, tuple[float, float]] = {}
        self.low_t: float | None = None
        self.high_t: float | None = None
        self.samples = 0
        self._distances: list[float] = []
        names: dict[str, bool] = {}

        def wanted(series: str) -> bool:
            if series not in names:
                names[series] = metrics(metric_name(series))
            return names[series]

        for block in source.blocks(node_id=node_id, stream=stream, series=wanted, since_t=since_t, until_t=until_t):
            if len(block.t):
                self._add(block)

    @property
    def interval_s(self) -> float | None:
        """The usual distance of two samples in seconds."""
        return round(float(np.median(self._distances)), 3) if self._distances else None

    def _add(self, block: Block) -> None:
        self.samples += len(block.t)
        first = self.spans.get(block.boot, (float(block.mono[0]), 0.0))[0]
        self.spans[block.boot] = first, float(block.mono[-1])
        low, high = float(block.t.min()), float(block.t.max())
        self.low_t = low if self.low_t is None else min(low, self.low_t)
        self.high_t = high if self.high_t is None else max(high, self.high_t)
        if len(block.mono) > 1:
            self._distances.append(float(np.median(np.diff(block.mono))))
        for name, values in block.columns.items():
            known = np.flatnonzero(~np.isnan(values))
            if len(known):
                self.last[name] = block.boot, float(block.mono[known[-1]])
