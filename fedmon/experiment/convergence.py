"""Whether runs of an experiment have told enough: the default rule of a runner."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from fedmon.experiment.errors import ExperimentError

SHARE = 0.05


class InvalidMetricError(ExperimentError, ValueError):
    """What was computed of a run is no number, or not as many numbers as of the runs before."""


def has_converged(samples: Sequence[object]) -> bool:
    """Tell whether the 95 % confidence interval of the mean is at most 5 % of it: 2 * std / sqrt(n) <= 0.05 * |mean|.

    ``std`` is that of the population. One sample alone tells nothing of how samples differ, so it takes two. Samples of
    several numbers have converged when each of these has. Raises InvalidMetricError.
    """
    if len(samples) < 2:
        return False
    rows = [numbers_of(sample) for sample in samples]
    if len({len(row) for row in rows}) != 1:
        raise InvalidMetricError("the metrics of the runs have different numbers of values; each run must give as many")
    return all(_is_narrow(column) for column in zip(*rows, strict=True))


def numbers_of(sample: object) -> tuple[float, ...]:
    """Return the numbers that a metric consists of. Raises InvalidMetricError."""
    parts: list[Any] = (
        list(sample) if hasattr(sample, "__iter__") and not isinstance(sample, (str, bytes, dict)) else [sample]
    )
    try:
        if any(isinstance(part, (str, bytes)) for part in parts):
            raise TypeError  # "1" is no measurement
        found = tuple(float(part) for part in parts)
    except (TypeError, ValueError, OverflowError):
        found = ()
    if not found or not all(map(math.isfinite, found)):
        shown = repr(sample)[:80]
        raise InvalidMetricError(
            f"the metric {shown} is no finite number and no list of them; give evaluate_convergence_callback for "
            "others, and return None for a run without one"
        )
    return found


def _is_narrow(values: Sequence[float]) -> bool:
    # The values of statistics are exact sums, so equal samples have a deviation of 0 and not of a rounding error.
    largest = max(map(abs, values))
    if not largest:
        return True
    scaled = [value / largest for value in values]  # squares of very small and large numbers are no numbers any more
    spread = 2 * statistics.pstdev(scaled) / math.sqrt(len(scaled))
    return spread <= SHARE * abs(statistics.fmean(scaled))
