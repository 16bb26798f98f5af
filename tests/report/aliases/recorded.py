"""Recordings for tests, made of what collectors read at given instants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fedmon.common.metrics.sample import Instant
from fedmon.common.store.recording import Recording
from fedmon.node.collectors.base import Collector
from fedmon.report.export.tables import data_frame
from fedmon.report.source import Source
from fedmon.report.views import perfmon
from tests.report import tables

T0 = 1_700_000_000.25
Values = Mapping[str, float | None]


def read_all(collectors: Iterable[Collector], mono: float) -> dict[str, float | None]:
    """Read collectors at one instant."""
    now = Instant(t=T0 + mono, mono=mono)
    values: dict[str, float | None] = {}
    for collector in collectors:
        values.update(collector.collect(now).values)
    return values


def frames(
    paths: Path | list[Path], job: str | None = None, *, view: Any = perfmon, **options: Any
) -> dict[str, pd.DataFrame]:
    """Return the tables of a view by name."""
    with Source(paths) as source:
        return {table.name: data_frame(table) for table in view.tables(source, job, **options)}


class RecordedHost:
    """Samples of one node, kept as a node keeps them; ``offset_s`` is how far its clock is ahead."""

    def __init__(self, node_id: str, *, offset_s: float = 0.0, **description: Any) -> None:
        self.node_id, self._offset_s = node_id, offset_s
        self._description = {"hostname": node_id, **description}
        self._samples: dict[str, list[tuple[float, float, Values]]] = {}

    def add(self, mono: float, values: Values, *, stream: str = "host") -> None:
        """Add one sample."""
        self._samples.setdefault(stream, []).append((T0 + mono + self._offset_s, mono, values))

    def tick(self, mono: float, host: Values, job: Values | None = None) -> None:
        """Add a sample of the machine, and one of job 7 at the same instant."""
        self.add(mono, host)
        if job is not None:
            self.add(mono, job, stream="job-7")

    def write(self, path: Path) -> Path:
        """Append it all to a recording, in batches of two samples."""
        with Recording(path) as store:
            store.describe(self.node_id, 1, self._description)
            for stream, samples in self._samples.items():
                for first in range(0, len(samples), 2):
                    part = samples[first : first + 2]
                    names = dict.fromkeys(name for _, _, values in part for name in values)
                    columns = {name: [values.get(name) for _, _, values in part] for name in names}
                    times, monos = [t for t, _, _ in part], [mono for _, mono, _ in part]
                    one = tables.samples(columns, node=self.node_id, stream=stream, seq=first, t=times, mono=monos)
                    store.append([one])
        return path
