"""The subject of a report: chooses the job and its nodes, and computes all totals in one pass."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

import msgspec

from fedmon.common.errors import NotFoundError
from fedmon.common.metrics.sample import is_user_stream
from fedmon.common.store.recording import Mark, RecordedStream
from fedmon.common.text import natural, plural
from fedmon.report.blocks import Block
from fedmon.report.findings.case import COMMAND, Case, Node, unix
from fedmon.report.selection import find_job, known_jobs, named, of_job
from fedmon.report.source import HOST, JOB, Host, Source
from fedmon.report.totals import StreamTotal, Totals

_OF_THE_TOOL = ("job_energy_", "job_emissions_")
"""Counters that begin with the measuring, and not with the job's processes."""

_MARKS_AROUND_S = 60.0


class Consumer(Protocol):
    """Anything that takes the blocks of a pass, in their order."""

    def add(self, block: Block) -> None:
        """Take the next block."""


class Subject:
    """The part of a source in a report: a job or None, its hosts, and the time; made by `choose`."""

    def __init__(
        self, source: Source, job: str | None, hosts: Sequence[Host], since_t: float | None, until_t: float | None
    ) -> None:
        self.source, self.job, self.since_t, self.until_t = source, job, since_t, until_t
        # Of monitors on one machine that searched for the job, each found all of its processes there: one counts.
        searched = [one for one in hosts if one.jobs.get(job or "", {}).get("method") not in (None, COMMAND, "pids")]
        self._again = self._shared(searched, f"{JOB}{job}")
        counted = (host for host in hosts if host.node_id not in self._again)
        self.hosts = tuple(sorted(counted, key=lambda host: (natural(host.name), host.node_id)))
        self._names = {host.node_id for host in self.hosts}
        self._counted_by = self._shared(self.hosts, HOST)
        self._streams = self._chosen()

    @property
    def machines(self) -> dict[str, str]:
        """Name machines that several nodes share, by the id of the node whose samples count."""
        amounts = Counter(first.node_id for first in self._counted_by.values())
        return {
            host.node_id: f"{host.name} (machine shared with {plural(amount, 'more node')})"
            for host in self.hosts
            if (amount := amounts[host.node_id])
        }

    @property
    def span(self) -> tuple[float, float] | None:
        """Times of the first and the last of its samples; None without any."""
        if not self._streams:
            return None
        return self._inside(min(one.oldest_t for one in self._streams), max(one.last_t for one in self._streams))

    def read(self, consumers: Sequence[Consumer] = ()) -> Case:
        """Hand every sample to the consumers, and return the totals. Raises StorageError."""
        totals = Totals()
        for block in self.blocks():
            for consumer in (totals, *consumers):
                consumer.add(block)
        return self._case(totals)

    def blocks(self, *, series: Callable[[str], bool] | None = None) -> Iterator[Block]:
        """Return all samples, or some series of them, in the order of `Source.blocks`. Raises StorageError."""
        is_own = of_job(self.source, self.job)
        wanted = is_own if series is None else lambda name: series(name) and is_own(name)
        streams = {(one.node_id, one.stream) for one in self._streams}
        return self.source.blocks(streams=streams, series=wanted, since_t=self.since_t, until_t=self.until_t)

    def _case(self, totals: Totals) -> Case:
        found: dict[str, dict[str, StreamTotal]] = defaultdict(dict)
        for total in totals.streams():
            found[total.node_id][total.stream] = total
        recorded: dict[str, list[RecordedStream]] = defaultdict(list)
        for one in self._streams:
            if not is_user_stream(one.stream):
                recorded[one.node_id].append(one)
        chosen, whole = (
            sum(self.job is None or one.stream == f"{JOB}{self.job}" for one in streams)
            for streams in (self._streams, [one for one in self.source.streams if one.node_id not in self._again])
        )
        return Case(
            job=self.job,
            nodes=tuple(self._node(host, found[host.node_id], recorded[host.node_id]) for host in self.hosts),
            marks=tuple(self._marks()),
            jobs=tuple(known_jobs(self.source)),
            is_part=chosen < whole,
        )

    def _marks(self) -> list[Mark]:
        """Return the events on its hosts in its time, and shortly before and after."""
        span = self.span
        return [
            mark
            for mark in self.source.marks()
            if mark.node_id in self._names
            and (span is None or span[0] - _MARKS_AROUND_S <= mark.t <= span[1] + _MARKS_AROUND_S)
        ]

    def _node(self, host: Host, streams: dict[str, StreamTotal], recorded: Sequence[RecordedStream]) -> Node:
        job, document = (None, {}) if self.job is None else (streams.get(JOB + self.job), host.jobs.get(self.job, {}))
        has_begin = job is None or all(job.first_t <= one.oldest_t for one in recorded if one.stream == job.stream)
        started_t = unix(document.get("started"))
        if job is not None and has_begin and started_t is not None and document.get("method") == COMMAND:
            job = from_begin(job, started_t)
        first = self._counted_by.get(host.node_id)
        return Node(
            host=host,
            streams=streams,
            job=job,
            document=document,
            lost={(one.stream, one.boot): self.source.lost(host.node_id, one.stream, one.boot) for one in recorded},
            has_begin=has_begin,
            counted_by="" if first is None else first.name,
        )

    def _shared(self, hosts: Sequence[Host], stream: str) -> dict[str, Host]:
        """Return by node id the host whose samples of a stream count, for those on its machine half of their time."""
        reach: dict[str, set[tuple[float, float]]] = defaultdict(set)
        for one in self.source.streams:
            low, high = self._inside(one.oldest_t, one.last_t)
            if one.stream == stream and low <= high:
                reach[one.node_id].add((low, high))
        found: dict[str, Host] = {}
        firsts: dict[str, list[Host]] = defaultdict(list)
        sharing = [host for host in hosts if host.machine and host.node_id in reach]
        for host in sorted(sharing, key=lambda host: -sum(high - low for low, high in reach[host.node_id])):
            same = firsts[host.machine]
            first = next((one for one in same if _covers(reach[one.node_id], reach[host.node_id])), None)
            if first is None:
                same.append(host)
            else:
                found[host.node_id] = first
        return found

    def _inside(self, low: float, high: float) -> tuple[float, float]:
        """Return the part of a time that is chosen."""
        return (
            low if self.since_t is None else max(low, self.since_t),
            high if self.until_t is None else min(high, self.until_t),
        )

    def _chosen(self) -> list[RecordedStream]:
        wanted = (HOST, f"{JOB}{self.job}")
        return [
            one
            for one in self.source.streams
            if one.node_id in self._names
            and not (one.stream == HOST and one.node_id in self._counted_by)
            and (self.job is None or one.stream in wanted or is_user_stream(one.stream))
            and (self.since_t is None or one.last_t >= self.since_t)
            and (self.until_t is None or one.oldest_t <= self.until_t)
        ]


def _covers(ones: Collection[tuple[float, float]], others: Collection[tuple[float, float]]) -> bool:
    common = [min(high, end) - max(low, begin) for low, high in ones for begin, end in others]
    return max(common) >= 0 and 2 * sum(max(0.0, each) for each in common) >= sum(end - begin for begin, end in others)


def choose(
    source: Source,
    *,
    job: str | None = None,
    nodes: Sequence[str] = (),
    since_t: float | None = None,
    until_t: float | None = None,
) -> Subject:
    """Choose the subject of a report.

    ``job`` is a job's id, as the scheduler or as the recording writes it. The default is the job that every node
    reports; without one, or with several, the subject is the nodes. ``nodes`` are ids or names; all without it. The
    time is that of the job's samples, unless ``since_t`` and ``until_t`` say otherwise. Raises NotFoundError.
    """
    hosts = [_host(source, name) for name in dict.fromkeys(nodes)] if nodes else list(source.hosts)
    chosen = find_job(source, job) if job is not None else _only_job(source, hosts)
    if chosen is None:
        return Subject(source, None, hosts, since_t, until_t)
    measured = [one for one in source.streams if one.stream == f"{JOB}{chosen}"]
    taking_part = {one.node_id for one in measured}
    hosts = [host for host in hosts if host.node_id in taking_part or chosen in host.jobs]
    if not hosts:
        raise NotFoundError(f"job {chosen!r} did not run on {', '.join(nodes)}")
    if measured:
        since_t = min(one.oldest_t for one in measured) if since_t is None else since_t
        until_t = max(one.last_t for one in measured) if until_t is None else until_t
    return Subject(source, chosen, hosts, since_t, until_t)


def _host(source: Source, name: str) -> Host:
    for host in source.hosts:
        if name in (host.node_id, host.name):
            return host
    raise NotFoundError(f"no node {name!r} in the recording; it has {named([host.name for host in source.hosts])}")


def _only_job(source: Source, hosts: Sequence[Host]) -> str | None:
    known = known_jobs(source)
    if len(known) != 1:
        return None
    taking_part = {one.node_id for one in source.streams if one.stream == f"{JOB}{known[0]}"}
    return known[0] if all(host.node_id in taking_part or known[0] in host.jobs for host in hosts) else None


def from_begin(job: StreamTotal, started_t: float) -> StreamTotal:
    """Return the totals of a job's stream with counters that grew from 0 since ``started_t``, in Unix seconds.

    Unchanged if a clock was set meanwhile: then no two times can be compared.
    """
    if job.clock_steps:
        return job
    series = dict(job.series)
    for name, total in job.series.items():
        before_s = total.first_t - started_t
        if before_s > 0 and name.startswith("job_") and "_total" in name and not name.startswith(_OF_THE_TOOL):
            increase = (total.increase or 0.0) + total.first
            series[name] = msgspec.structs.replace(total, increase=increase, grown_s=total.grown_s + before_s)
    return msgspec.structs.replace(job, series=series)
