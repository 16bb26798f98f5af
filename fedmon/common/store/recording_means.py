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

from fedmon.common.store.recording_body import written_columns
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
        steps: list[_Step] = []
        for first, last, body in raw_rows(file, source, selection):
            try:
                _add_row(steps, body, last - first + 1, series, step_s, selection)
            except (zlib.error, msgspec.DecodeError, ValueError, TypeError, ArithmeticError) as error:
                logger.warning(
                    "left out: samples %d to %d of stream %s of node %s are damaged: %s",
                    *(first, last, stream, node_id, error),
                )
        if steps:
            yield Means(
                node_id=node_id,
                boot=boot,
                stream=stream,
                t=[number * step_s for number, _, _ in steps],
                values=[total / count for _, total, count in steps],
                counts=[count for _, _, count in steps],
            )


_Step = tuple[int, float, int]
"""The number of a step since 1970, the sum of its values, and how many they are."""


def _add_row(steps: list[_Step], body: bytes, length: int, series: str, step_s: float, selection: Selection) -> None:
    clock, column = written_columns(body, (series,))
    if clock is None or column is None:
        return
    (t, t_unit), (values, unit) = _numbers(clock, length), _numbers(column, length)
    step = step_s / t_unit
    if selection.since_t is not None or selection.until_t is not None:
        since = -math.inf if selection.since_t is None else selection.since_t / t_unit
        until = math.inf if selection.until_t is None else selection.until_t / t_unit
        inside = [since <= moment <= until for moment in t]
        t, values = list(itertools.compress(t, inside)), list(itertools.compress(values, inside))
    low, rises = 0, all(map(operator.le, t, itertools.islice(t, 1, None)))
    while low < len(t):
        number = int(t[low] // step)
        high = bisect.bisect_left(t, (number + 1) * step, low) if rises else low + 1
        part = values[low:high]
        low = high
        if None in part:
            part = [value for value in part if value is not None]
        if not part:
            continue
        total, count = sum(part) * unit, len(part)
        if steps and steps[-1][0] == number:
            _, before, others = steps.pop()
            total, count = total + before, count + others
        steps.append((number, total, count))


def _numbers(column: list[Any], length: int) -> tuple[list[Any], float]:
    """Return the numbers of a column and what one of them stands for: dividing each would cost the most of all."""
    decimals, numbers, unit = checked(column, length)
    if decimals == VERBATIM or numbers is None or (isinstance(numbers, list) and None in numbers):
        return restored(column, length), 1
    whole = list(itertools.accumulate(numbers)) if isinstance(numbers, list) else [numbers] * length
    return whole, unit / 10**decimals
