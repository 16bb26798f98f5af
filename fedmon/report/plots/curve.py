"""One line of a figure, and how several of them become one: by time, never by their position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedmon.report.bins import Binned, mean_over_time
from fedmon.report.blocks import Floats
from fedmon.report.plots.figure import Join

_APART = 0.75
"""Moments of two nodes are one when they are closer than this part of the usual distance of their samples."""


class Curve(NamedTuple):
    """One line: ``name`` says what of its figure, ``node`` and ``instance`` of whom; both are empty when joined.

    ``low`` and ``high`` are the band around the means, None where a point is one value. ``breaks`` tells for each two
    neighbouring points that values are missing between them. ``average`` is the mean of all values; ``peak`` the
    highest one, or the highest mean of a step where ``is_peak_of_means``. Values of an event come when they come.
    """

    t: Floats
    mean: Floats
    low: Floats | None
    high: Floats | None
    breaks: NDArray[np.bool_]
    is_dense: bool
    average: float
    peak: float
    is_peak_of_means: bool = False
    name: str = ""
    node: str = ""
    instance: str = ""
    is_limit: bool = False
    is_event: bool = False

    @classmethod
    def of(cls, binned: Binned, *, is_event: bool = False, name: str = "", node: str = "", instance: str = "") -> Self:
        """Make the line of one series; values of an event come when they come, so that nothing is missing between."""
        is_dense = binned.is_dense
        breaks = np.zeros(max(0, len(binned.t) - 1), dtype=np.bool_) if is_event else binned.gaps()
        average = (
            float(np.average(binned.mean, weights=binned.counts))
            if is_event
            else mean_over_time(binned.t, binned.mean, binned.counts, breaks)
        )
        return cls(
            binned.t,
            binned.mean,
            binned.low if is_dense else None,
            binned.high if is_dense else None,
            breaks,
            is_dense,
            average,
            float(np.max(binned.high)),
            name=name,
            node=node,
            instance=instance,
            is_event=is_event,
        )

    def scaled(self, factor: float) -> Self:
        """Return the line in another unit."""
        return self._replace(
            mean=self.mean * factor,
            low=None if self.low is None else self.low * factor,
            high=None if self.high is None else self.high * factor,
            average=self.average * factor,
            peak=self.peak * factor,
        )


def join(curves: Sequence[Curve], how: Join, width_s: float) -> Curve:
    """Return one line for several: their sum, mean or maximum at each moment.

    A curve has no part in moments before its first and after its last value. Where one of them has a gap, the sum is
    not known, so that it has a gap too; a mean is that of the others. ``width_s`` is the width of a step of dense
    curves. The band of a mean goes from the lowest curve to the highest.
    """
    if len(curves) == 1:
        return curves[0]
    t = _moments(curves, width_s)
    means, lows, highs = (np.full((len(curves), len(t)), np.nan) for _ in range(3))
    known = np.ones(len(t), dtype=np.bool_)
    reach = 0.0
    for row, curve in enumerate(curves):
        slack = max(width_s, _usual(curve.t)) / 2
        reach = max(reach, 2 * slack)
        inside = (t >= curve.t[0] - slack) & (t <= curve.t[-1] + slack)
        means[row, inside] = np.interp(t[inside], curve.t, curve.mean)
        for rows, band in ((lows, curve.low), (highs, curve.high)):
            rows[row, inside] = np.interp(t[inside], curve.t, curve.mean if band is None else band)
        for number in np.flatnonzero(curve.breaks):
            missing = (t > curve.t[number] + slack) & (t < curve.t[number + 1] - slack)
            means[row, missing] = lows[row, missing] = highs[row, missing] = np.nan
            if how is Join.TOTAL:
                known &= ~missing
    is_there = known & ~np.all(np.isnan(means), axis=0)
    t, means, lows, highs = t[is_there], means[:, is_there], lows[:, is_there], highs[:, is_there]
    with np.errstate(over="ignore"):
        if how is Join.TOTAL:
            line, low, high = np.nansum(means, axis=0), None, None
        elif how is Join.AVERAGE:
            line, low, high = np.nanmean(means, axis=0), np.nanmin(lows, axis=0), np.nanmax(highs, axis=0)
        else:
            line, low, high = np.nanmax(highs, axis=0), None, None
    is_dense, is_event = any(curve.is_dense for curve in curves), all(curve.is_event for curve in curves)
    breaks = np.zeros(max(0, len(t) - 1), dtype=np.bool_) if is_event else np.diff(t) > 1.75 * max(reach, _usual(t))
    return Curve(
        t,
        line,
        low,
        high,
        breaks,
        is_dense,
        float(np.mean(line)) if is_event and len(line) else mean_over_time(t, line, np.ones_like(t), breaks),
        float(np.max(line)) if len(line) else 0.0,
        is_peak_of_means=is_dense and how is not Join.HIGHEST,
        is_event=is_event,
    )


def coarser(curve: Curve, most: int) -> Curve:
    """Return a line of at most about ``most`` points, with all its peaks in the band."""
    factor = -(-len(curve.t) // most)
    if factor < 2:
        return curve
    # A piece ends where a gap begins, so that no piece lies on both sides of it.
    piece = np.concatenate([[0], np.cumsum(curve.breaks)])
    starts = np.flatnonzero(np.diff(piece, prepend=-1))
    inside = np.arange(len(curve.t)) - starts[piece]
    begins = np.flatnonzero(inside % factor == 0)
    lengths = np.diff(begins, append=len(curve.t))
    return curve._replace(
        t=np.add.reduceat(curve.t, begins) / lengths,
        mean=np.add.reduceat(curve.mean, begins) / lengths,
        low=np.minimum.reduceat(curve.mean if curve.low is None else curve.low, begins),
        high=np.maximum.reduceat(curve.mean if curve.high is None else curve.high, begins),
        breaks=np.diff(piece[begins]) > 0,
    )


def _usual(t: Floats) -> float:
    return float(np.median(np.diff(t))) if len(t) > 1 else 0.0


def _moments(curves: Sequence[Curve], width_s: float) -> Floats:
    """Return the moments of the curve with the most, and those of the others where it has none."""
    ordered = sorted(curves, key=lambda curve: -len(curve.t))
    found = ordered[0].t
    for curve in ordered[1:]:
        near = _APART * max(width_s, _usual(ordered[0].t), _usual(curve.t))
        after = np.searchsorted(found, curve.t)
        left = np.abs(curve.t - found[np.clip(after - 1, 0, len(found) - 1)])
        right = np.abs(curve.t - found[np.clip(after, 0, len(found) - 1)])
        found = np.sort(np.concatenate([found, curve.t[np.minimum(left, right) > near]]))
    return found
