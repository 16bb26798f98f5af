"""One sample as a watcher gets it, and how batches are taken apart into such."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.metrics.batch import Batch
from fedmon.common.metrics.series import metric_name

KNOWN_SERIES = 10_000


class LiveSample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of one node: ``t`` is its Unix time and ``mono`` its monotonic time, in seconds.

    ``values`` maps a series to its value, null where a reading was missed, and ``reasons`` says why a null is one. A
    series that was not read for this sample is not there. ``late`` marks a sample that was missed at first and asked
    for again, or that arrived after newer ones.
    """

    node_id: NodeId
    boot: int
    stream: str
    seq: int
    t: float
    mono: float
    values: Mapping[str, float | None]
    reasons: Mapping[str, str] = {}
    late: bool = False


class WantedSeries:
    """Chooses series by the name of their metric, or by their whole name with labels, with ``*`` and ``?``."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._known: dict[str, bool] = {}

    def of(self, columns: Mapping[str, list[float | None]]) -> dict[str, list[float | None]]:
        """Return the columns that were chosen."""
        return {series: column for series, column in columns.items() if self.has(series)}

    def batch(self, batch: Batch) -> Batch:
        """Return a batch with the columns that were chosen."""
        reasons = {series: reason for series, reason in batch.reasons.items() if self.has(series)}
        return msgspec.structs.replace(batch, columns=self.of(batch.columns), reasons=reasons)

    def has(self, series: str) -> bool:
        """Tell whether a series was chosen."""
        known = self._known.get(series)
        if known is None:
            if len(self._known) > KNOWN_SERIES:
                self._known.clear()
            names = (series, metric_name(series))
            known = any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self._patterns)
            self._known[series] = known
        return known


def samples_of(batch: Batch, wanted: WantedSeries | None, *, late: bool) -> Iterator[LiveSample]:
    """Take a batch apart, on the thread that uses the samples: columns need a tenth of their memory."""
    columns = wanted.of(batch.columns) if wanted is not None else batch.columns
    names, node_id, reasons = tuple(columns), NodeId(batch.node_id), batch.reasons
    rows = zip(*columns.values(), strict=True) if columns else iter(() for _ in batch.t)
    gaps = [name for name, column in columns.items() if None in column]
    not_due = [name for name in gaps if name not in reasons]
    missed = [name for name in gaps if name in reasons]
    for number, row in enumerate(rows):
        values = dict(zip(names, row, strict=False))  # as many as there are columns, and this is most of the time
        for name in not_due:
            if values[name] is None:
                del values[name]
        yield LiveSample(
            node_id=node_id,
            boot=batch.boot,
            stream=batch.stream,
            seq=batch.seq + number,
            t=batch.t[number],
            mono=batch.mono[number],
            values=values,
            reasons={name: reasons[name] for name in missed if values[name] is None} if missed else {},
            late=late,
        )
