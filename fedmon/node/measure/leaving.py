"""Which part of what was measured leaves the node: live, and when it is asked for again."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fedmon.common.metrics.batch import Batch
from fedmon.common.metrics.series import metric_name
from fedmon.node.measure.batch import text_bytes

_MAX_REMEMBERED = 64
_NUMBER_BYTES = 32
MAX_SAMPLE_BYTES = 90_000
"""What the series of one sample may take, so that it fits into a message whatever else that carries."""


def fitting(batch: Batch, max_bytes: int) -> Batch:
    """Return a batch of one sample with as many series as ``max_bytes`` of JSON are sure to hold, in their order.

    What is left out stays in the recording; a sample has no other way out than one message.
    """
    columns: dict[str, list[float | None]] = {}
    reasons: dict[str, str] = {}
    size = 0
    for key, column in batch.columns.items():
        why = batch.reasons.get(key)
        name_bytes = text_bytes(key)
        size += name_bytes + _NUMBER_BYTES + (name_bytes + text_bytes(why) + 2 if why else 0)
        if size > max_bytes:
            break
        columns[key] = column
        if why is not None:
            reasons[key] = why
    return msgspec.structs.replace(batch, columns=columns, reasons=reasons)


class Leaving:
    """Applies one policy to batches; remembers the choice for sets of series that come again and again.

    ``leaves(name)`` tells whether a metric leaves, by its name. Not safe between threads.
    """

    def __init__(self, leaves: Callable[[str], bool]) -> None:
        self._leaves = leaves
        self._chosen: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def of(self, batch: Batch) -> Batch | None:
        """Return the batch with the columns that leave; None when none does."""
        series, _ = self._choice(tuple(batch.columns))
        if len(series) == len(batch.columns):
            return batch if series else None
        if not series:
            return None
        columns = {key: batch.columns[key] for key in series}
        reasons = {key: reason for key, reason in batch.reasons.items() if key in columns}
        return msgspec.structs.replace(batch, columns=columns, reasons=reasons)

    def names(self, leaving: Batch) -> tuple[str, ...]:
        """Return the names of the metrics of a batch that `of` returned, each once."""
        return self._choice(tuple(leaving.columns))[1]

    def _choice(self, among: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        choice = self._chosen.get(among)
        if choice is None:
            series = tuple(key for key in among if self._leaves(metric_name(key)))
            choice = series, tuple(dict.fromkeys(map(metric_name, series)))
            if len(self._chosen) >= _MAX_REMEMBERED:
                self._chosen.clear()
            self._chosen[among] = choice
        return choice
