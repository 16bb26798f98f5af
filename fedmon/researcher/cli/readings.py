"""The newest values of every stream heard while watching, how fast counters grow, and which readings are missing."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.metrics.sample import is_user_stream, rate
from fedmon.common.metrics.series import metric_name, split_series
from fedmon.common.wire.samples import MonitorReply

if TYPE_CHECKING:
    from fedmon.researcher.samples.watch import LiveSample

REMEMBERED_S = 150.0
"""Seconds without a reading after which a series is gone: the slowest lane of a node reads every 60 s."""
SILENT_AFTER_S = 15.0
"""A node that sent nothing for three of its default intervals is shown as silent."""
SPARK_S = 60.0
SPARKLINES = frozenset({"host_cpu_busy_ratio", "job_cpus_busy", "gpu_utilization_ratio", "user_value"})
"""The metrics whose values of the last minute are remembered."""

Labels = Mapping[str, str]


@functools.lru_cache(maxsize=32_768)
def split(series: str) -> tuple[str, Labels]:
    """Return name and labels of a series; one that cannot be read is a name."""
    try:
        return split_series(series)
    except ValueError:
        return series, {}


class Latest:
    """Takes the samples of one stream; times are the node's monotonic clock. Belongs to one thread.

    ``pace_s`` is the distance of the last two samples, 0 before there are two of one boot.
    """

    def __init__(self) -> None:
        self.newest: LiveSample | None = None
        self.heard_at = self.pace_s = 0.0
        self.samples = 0
        self._points: dict[str, tuple[float, float | None]] = {}
        self._before: dict[str, tuple[float, float | None]] = {}
        self._reasons: dict[str, str] = {}
        self._of_name: dict[str, dict[str, Labels]] = {}
        self._minute: dict[str, deque[tuple[float, float]]] = {}

    def take(self, sample: LiveSample) -> None:
        """Take a sample; a late one only counts. A live one of an older boot is of a node that was set back."""
        self.samples += 1
        newest = self.newest
        if newest is not None and sample.late and (sample.boot, sample.seq) <= (newest.boot, newest.seq):
            return
        if newest is None or newest.boot != sample.boot:
            self._points, self._before, self._reasons, self._of_name, self._minute = {}, {}, {}, {}, {}
            self.pace_s = 0.0
        else:
            self.pace_s = (sample.mono - newest.mono) / (sample.seq - newest.seq)
        self.newest = sample
        for series, value in sample.values.items():
            known = self._points.get(series)
            if known is None:
                name, labels = split(series)
                self._of_name.setdefault(name, {})[series] = labels
                if name in SPARKLINES:
                    self._minute[series] = deque()
            else:
                self._before[series] = known
            self._points[series] = (sample.mono, value)
        for series, minute in self._minute.items():
            value = sample.values.get(series)
            if value is not None:
                minute.append((sample.mono, value))
            while minute and minute[0][0] <= sample.mono - SPARK_S:
                minute.popleft()
        if self._reasons:
            self._reasons = {series: why for series, why in self._reasons.items() if series not in sample.values}
        self._reasons.update(sample.reasons)

    def value(self, series: str) -> float | None:
        """Return the newest value of a series; None if it was missed, is not measured, or is too old."""
        return self._points[series][1] if self.has(series) else None

    def has(self, series: str) -> bool:
        """Tell whether a series was heard of lately."""
        point = self._points.get(series)
        return point is not None and self.newest is not None and self.newest.mono - point[0] <= REMEMBERED_S

    def series(self) -> list[str]:
        """Return each series that was heard of lately."""
        return sorted(filter(self.has, self._points))

    def growth(self, series: str) -> float | None:
        """Return how fast one counter grew between its last two readings, per second; None if that is unknown."""
        before = self._before.get(series)
        if before is None or not self.has(series):
            return None
        point = self._points[series]
        return rate(before[1], point[1], point[0] - before[0])

    def each(self, name: str) -> list[tuple[Labels, float | None]]:
        """Return labels and newest value of each series of a metric."""
        return [(labels, self.value(series)) for series, labels in self._series(name)]

    def growths(self, name: str) -> list[tuple[Labels, float | None]]:
        """Return labels and growth of each series of a counter."""
        return [(labels, self.growth(series)) for series, labels in self._series(name)]

    def minute(self, name: str, labels: Labels, parts: int) -> list[float | None]:
        """Return the means of a series in equal parts of the last minute, oldest first; None without a value in it."""
        found: list[list[float]] = [[] for _ in range(parts)]
        wanted = [series for series, its in self._series(name) if labels.items() <= its.items()]
        if len(wanted) != 1 or self.newest is None:
            return []
        part_s = SPARK_S / parts
        # Parts begin at multiples of their length, so that a value does not wander from one to the next.
        last = int(self.newest.mono // part_s)
        for mono, value in self._minute.get(wanted[0], ()):
            at = parts - 1 - last + int(mono // part_s)
            if at >= 0:
                found[at].append(value)
        return [sum(values) / len(values) if values else None for values in found]

    def _series(self, name: str) -> list[tuple[str, Labels]]:
        return [(series, labels) for series, labels in self._of_name.get(name, {}).items() if self.has(series)]

    def missed(self) -> dict[str, str]:
        """Map each series whose newest reading was missed to the reason."""
        return {series: why for series, why in self._reasons.items() if self.has(series)}


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics that some nodes do not measure, or miss at present, and why."""

    metric: str
    reason: str
    nodes: tuple[str, ...]


class WatchState:
    """The newest values of all nodes. Belongs to one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latest: dict[tuple[str, str], Latest] = {}
        self._heard: dict[str, float] = {}
        self.samples = 0
        self.late = 0

    def take(self, sample: LiveSample) -> None:
        """Take a sample of any stream."""
        node = str(sample.node_id)
        self.samples += 1
        self.late += sample.late
        self._heard[node] = self._clock()
        latest = self._latest.setdefault((node, sample.stream), Latest())
        latest.heard_at = self._heard[node]
        latest.take(sample)

    @property
    def nodes(self) -> list[str]:
        """The nodes that were heard, by name."""
        return sorted(self._heard)

    def streams(self, prefix: str) -> list[tuple[str, str, Latest]]:
        """Return node, stream and newest values of each stream whose name begins so; ended jobs are left out."""
        return [
            (node, stream, latest)
            for (node, stream), latest in sorted(self._latest.items())
            if stream.startswith(prefix) and not self._has_ended(node, latest)
        ]

    def latest(self, node: str, stream: str) -> Latest | None:
        """Return the newest values of a stream; None if it was not heard of."""
        return self._latest.get((node, stream))

    def silent_s(self, node: str) -> float | None:
        """Return how long a node has sent nothing, if that is longer than it should be."""
        quiet_s = self._clock() - self._heard.get(node, self._clock())
        return quiet_s if quiet_s > self._patience_s(node) else None

    def _patience_s(self, node: str) -> float:
        """Return how long a node, or a job on it, may send nothing: three of its intervals."""
        host = self.latest(node, "host")
        interval_s = max(host.value("agent_interval_seconds") or 0.0, host.pace_s) if host is not None else 0.0
        return max(SILENT_AFTER_S, 3 * interval_s)

    def unheard_s(self, latest: Latest) -> float:
        """Return how long no sample of a stream came."""
        return self._clock() - latest.heard_at

    def forget(self, unheard_s: float) -> None:
        """Drop the streams without a sample for too long."""
        for key in [key for key, latest in self._latest.items() if self.unheard_s(latest) > unheard_s]:
            del self._latest[key]

    def absent(self, capabilities: Mapping[NodeId, MonitorReply]) -> list[Absent]:
        """Return the metrics that are not measured or missed now, grouped by reason; those of most nodes first."""
        found: dict[tuple[str, str], set[str]] = {}
        for node_id, reply in capabilities.items():
            for name, reason in reply.capabilities.items():
                if reason:
                    found.setdefault((metric_name(name), _short(reason)), set()).add(node_id)
        for (node, _), latest in self._latest.items():
            for series, reason in latest.missed().items():
                found.setdefault((metric_name(series), _short(reason)), set()).add(node)
        merged: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for (metric, reason), nodes in sorted(found.items()):
            merged.setdefault((reason, tuple(sorted(nodes))), []).append(metric)
        groups = [
            Absent(metric=_named(metrics), reason=reason, nodes=nodes) for (reason, nodes), metrics in merged.items()
        ]
        return sorted(groups, key=lambda one: (-len(one.nodes), one.metric))

    def _has_ended(self, node: str, latest: Latest) -> bool:
        """Tell whether a stream fell silent while its node did not."""
        host = self._latest.get((node, "host"))
        if host is None or host.newest is None or latest.newest is None or latest is host:
            return False
        if is_user_stream(latest.newest.stream):
            return False
        gap_s = host.newest.mono - latest.newest.mono
        return latest.newest.boot != host.newest.boot or gap_s > self._patience_s(node)


def _short(reason: str) -> str:
    return " ".join(reason.split())[:200]


def _named(metrics: list[str]) -> str:
    """Name metrics that are missing together: one or two by name, more by how they begin and their number."""
    names = sorted(set(metrics))
    if len(names) <= 2:
        return ", ".join(names)
    prefixes = sorted({name.split("_", 1)[0] for name in names})
    return f"{', '.join(f'{prefix}_*' for prefix in prefixes[:4])} ({len(names)} metrics)"
