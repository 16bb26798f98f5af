"""Means of one series at steps of time, read from a recording without building the samples."""

from __future__ import annotations

import bisect
import itertools
import logging
import math
import operator
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec

from fedmon.common.store.recording_body import STEP_S, written_column
from fedmon.common.store.recording_columns import VERBATIM, checked, restored
from fedmon.common.store.recording_file import RecordingFile
from fedmon.common.store.recording_reader import Selection, raw_rows, sources

logger = logging.getLogger(__name__)


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """The means of one series on one stream of one boot of one node.

    ``t`` is when each step begins, in Unix seconds, and ``counts`` how many values its mean is made of. A step without
    a value is absent. Where the node's clock was set back, a step comes twice.
    """

    node_id: str
    boot: int
    stream: str
    t: list[float]
    values: list[float]
    counts: list[int]


def read_means(file: RecordingFile, selection: Selection, series: str, step_s: float) -> Iterator[Means]:
    """Return means by node, stream and boot, of each that has a value. Raises StorageError."""
    for source, node_id, stream, boot in sources(file, selection):
        steps = _Steps(step_s)
        for first, last, body in raw_rows(file, source, selection):
            try:
                _add_row(steps, body, last - first + 1, series, selection)
            except (zlib.error, msgspec.DecodeError, ValueError, TypeError, ArithmeticError) as error:
                logger.warning(
                    "left out: samples %d to %d of stream %s of node %s are damaged: %s",
                    *(first, last, stream, node_id, error),
                )
        if steps.numbers:
            yield Means(
                node_id=node_id,
                boot=boot,
                stream=stream,
                t=[number * step_s for number in steps.numbers],
                values=list(map(operator.truediv, steps.totals, steps.counts)),
                counts=steps.counts,
            )


class _Steps:
    """Steps of time, by their number since 1970, with the sum of their values and how many they are."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.numbers: list[int] = []
        self.totals: list[float] = []
        self.counts: list[int] = []

    def add_counted(self, first: int, counts: list[int], values: list[Any], unit: float) -> None:
        """Add values of which ``counts`` says how many fall into each step of 10 s from step ``first`` on."""
        if sum(counts) != len(values):
            raise ValueError(f"its steps are of {sum(counts)} samples instead of {len(values)}")
        tens, low, has_nulls = int(self.step_s // STEP_S), 0, None in values
        for number, count in enumerate(counts, start=first):
            part = values[low : low + count]
            low += count
            if has_nulls:
                part = [value for value in part if value is not None]
            if not part:
                continue
            number //= tens  # noqa: PLW2901
            if self.numbers and self.numbers[-1] == number:
                self.totals[-1] += sum(part) * unit
                self.counts[-1] += len(part)
            else:
                self.numbers.append(number)
                self.totals.append(sum(part) * unit)
                self.counts.append(len(part))

    def add_row(self, t: list[Any], t_unit: float, values: list[Any], unit: float) -> None:
        """Add values; ``t`` counts in ``t_unit`` seconds."""
        if None in values:
            known = [value is not None for value in values]
            t, values = list(itertools.compress(t, known)), list(itertools.compress(values, known))
        step = self.step_s / t_unit
        if step.is_integer():
            step = int(step)
        rises, low, end = all(map(operator.le, t, itertools.islice(t, 1, None))), 0, len(t)
        while low < end:
            number = int(t[low] // step)
            high = bisect.bisect_left(t, (number + 1) * step, low) if rises else low + 1
            total = sum(values[low:high]) * unit
            if (low and rises) or not self.numbers or self.numbers[-1] != number:
                self.numbers.append(number)
                self.totals.append(total)
                self.counts.append(high - low)
            else:
                self.totals[-1] += total
                self.counts[-1] += high - low
            low = high


def _add_row(steps: _Steps, body: bytes, length: int, series: str, selection: Selection) -> None:
    is_whole = selection.since_t is None and selection.until_t is None
    column, times = written_column(body, series, by_steps=is_whole and steps.step_s % STEP_S == 0)
    if column is None or times is None:
        return
    values, unit = _numbers(column, length)
    if len(times) == 2:
        steps.add_counted(times[0], times[1], values, unit)
        return
    t, t_unit = _numbers(times, length)
    if not is_whole:
        since = -math.inf if selection.since_t is None else selection.since_t / t_unit
        until = math.inf if selection.until_t is None else selection.until_t / t_unit
        inside = [since <= moment <= until for moment in t]
        t, values = list(itertools.compress(t, inside)), list(itertools.compress(values, inside))
    steps.add_row(t, t_unit, values, unit)


def _numbers(column: list[Any], length: int) -> tuple[list[Any], float]:
    """Return the numbers of a column and what one of them stands for: dividing each would cost the most of all."""
    decimals, numbers, unit = checked(column, length)
    if decimals == VERBATIM or numbers is None or (isinstance(numbers, list) and None in numbers):
        return restored(column, length), 1
    whole = list(itertools.accumulate(numbers)) if isinstance(numbers, list) else [numbers] * length
    return whole, unit / 10**decimals
