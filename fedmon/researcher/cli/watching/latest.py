"""The newest values of one stream of one node, and how fast its counters grow."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from fedmon.common.metrics.rate import rate
from fedmon.common.metrics.series import split_series
from fedmon.researcher.samples.watch import LiveSample

REMEMBERED_S = 150.0
"""A series that was not heard of for so long is gone: the slowest lane of a node reads every 60 s."""


@functools.lru_cache(maxsize=32_768)
def _split(series: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    try:
        name, labels = split_series(series)
    except ValueError:
        return series, ()
    return name, tuple(labels.items())


class Latest:
    """Takes the samples of one stream; times are the node's monotonic clock. Belongs to one thread."""

    def __init__(self) -> None:
        self.newest: LiveSample | None = None
        self.samples = 0
        self._points: dict[str, tuple[float, float | None]] = {}
        self._before: dict[str, tuple[float, float | None]] = {}
        self._reasons: dict[str, str] = {}
        self._of_name: dict[str, dict[str, Mapping[str, str]]] = {}

    def take(self, sample: LiveSample) -> None:
        """Take a sample; one that is late only counts."""
        self.samples += 1
        newest = self.newest
        if newest is not None and newest.boot != sample.boot:
            if sample.boot < newest.boot:
                return
            self._forget()
        elif newest is not None and sample.seq <= newest.seq:
            return
        self.newest = sample
        for series, value in sample.values.items():
            known = self._points.get(series)
            if known is None:
                name, labels = _split(series)
                self._of_name.setdefault(name, {})[series] = dict(labels)
            else:
                self._before[series] = known
            self._points[series] = (sample.mono, value)
        if self._reasons:
            self._reasons = {series: why for series, why in self._reasons.items() if series not in sample.values}
        self._reasons.update(sample.reasons)

    def value(self, series: str) -> float | None:
        """Return the newest value of a series; null when it was missed, is not measured, or is too old."""
        point = self._points.get(series)
        return None if point is None or self._is_old(point) else point[1]

    def each(self, name: str) -> list[tuple[Mapping[str, str], float | None]]:
        """Return labels and newest value of each series of a metric."""
        found = self._of_name.get(name, {})
        return [(labels, self.value(series)) for series, labels in found.items() if self.has(series)]

    def has(self, series: str) -> bool:
        """Tell whether a series was heard of lately."""
        point = self._points.get(series)
        return point is not None and not self._is_old(point)

    def total(self, name: str) -> float | None:
        """Return the sum over the series of a metric; null when there is none, or when one is missing."""
        values = [value for _, value in self.each(name)]
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None

    def largest(self, name: str) -> float | None:
        """Return the largest value of a metric; null when none is known."""
        return max((value for _, value in self.each(name) if value is not None), default=None)

    def growth(self, series: str) -> float | None:
        """Return how fast one counter grew between its last two readings, per second; null when that is not known."""
        before, point = self._before.get(series), self._points.get(series)
        if before is None or point is None or self._is_old(point):
            return None
        return rate(before[1], point[1], point[0] - before[0])

    def growths(self, name: str) -> list[tuple[Mapping[str, str], float | None]]:
        """Return labels and growth of each series of a counter."""
        found = self._of_name.get(name, {})
        return [(labels, self.growth(series)) for series, labels in found.items() if self.has(series)]

    def total_growth(self, name: str) -> float | None:
        """Return how fast all series of a counter grew together; null when that of one is not known."""
        values = [value for _, value in self.growths(name)]
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None

    def missed(self) -> dict[str, str]:
        """Map each series whose newest reading was missed to the reason."""
        return {series: why for series, why in self._reasons.items() if self.has(series)}

    def _is_old(self, point: tuple[float, float | None]) -> bool:
        return self.newest is not None and self.newest.mono - point[0] > REMEMBERED_S

    def _forget(self) -> None:
        self._points, self._before, self._reasons, self._of_name = {}, {}, {}, {}
