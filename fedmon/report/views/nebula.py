"""Recordings in the words of NEBULA's reporter: its tags as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedmon.common.metrics import nebula_tags as tags
from fedmon.report.blocks import labels_of
from fedmon.report.export import VIEW, Table
from fedmon.report.frames import WideTable
from fedmon.report.source import Source
from fedmon.report.training import VALUE
from fedmon.report.views.perfmon import gpus
from fedmon.report.views.view_table import (
    Computed,
    Counted,
    Growth,
    Instants,
    Names,
    ViewColumn,
    ViewQuantity,
    ViewSection,
    ViewTable,
    section,
    survey,
)

if TYPE_CHECKING:
    import pyarrow as pa

NAMES = Names(host="host", time="time", job="job")

_CPU = ("job_cpu_user_seconds_total", "job_cpu_system_seconds_total")
_METRICS = ("host_temperature_celsius", "host_memory_total_bytes", "host_memory_available_bytes", *_CPU,
            "job_memory_rss_bytes", "host_cpu_busy_ratio", "host_network_*", "host_filesystem_*", "gpu_*")  # fmt: skip


def tables(source: Source, job: str | None = None, *, generation: str = "1.0.0") -> list[Table]:
    """Return a table of NEBULA's tags, and one of the values that programs reported, if there are any.

    ``generation`` is ``old`` for the tags of 2024. Raises NotFoundError when there is nothing of the job.
    """
    sections: list[ViewSection] = []
    for place in survey(source, job, metrics=_METRICS):
        at = place.instants(source)
        sections += section(place.host.name, place, _columns(at, generation), at)
    found: list[Table] = [ViewTable("nebula", NAMES, source, sections)] if sections else []
    reported = UserTable("nebula_user", source, job)
    return [*found, reported] if reported.rows else found


def _columns(at: Instants, generation: str) -> Sequence[ViewColumn]:
    sent, received, divisor = tags.VOLUMES[generation]
    sensors = tags.processor_sensors(filter(labels_of, at.host))
    cpu, *others = map(_computed, tags.MACHINE)
    found: list[tuple[str, ViewQuantity]] = [
        cpu,
        (tags.CPU_PROCESS, Growth(series=_CPU, per_second=True, times=100)),
        *(
            [(tags.CPU_TEMPERATURE, Computed(series=sensors, compute=lambda *rows: np.fmax.reduce(rows)))]
            if sensors
            else []
        ),
        *others,
        *(
            (tag, Counted(metric=f"host_network_{way}_total", times=1 / per, from_zero=True))
            for tag, way, per in (
                (sent, "transmit_bytes", divisor),
                (received, "receive_bytes", divisor),
                (tags.PACKETS_SENT, "transmit_packets", 1),
                (tags.PACKETS_RECEIVED, "receive_packets", 1),
            )
        ),
        *(_computed(formula) for gpu in gpus(at) for formula in tags.gpu_formulas(gpu)),
    ]
    return [ViewColumn(path=(tag,), header=tag, quantity=quantity) for tag, quantity in found]


def _computed(formula: tags.TagFormula) -> tuple[str, ViewQuantity]:
    return formula.tag, Computed(series=formula.names, compute=formula.compute)


class UserTable:
    """A Table (see `fedmon.report.frames`) with a row for each moment at which a program reported something."""

    def __init__(self, name: str, source: Source, job: str | None) -> None:
        self.name = name
        self._wide = WideTable(source, metrics=[VALUE], job=job, rates=False)
        # One name may come from several jobs, never in one sample.
        self._columns: dict[str, list[str]] = {}
        for column in self._wide.plan.columns:
            self._columns.setdefault(labels_of(column.series).get("name", ""), []).append(column.name)
        self.rows = self._wide.rows if self._columns else 0

    @property
    def schema(self) -> pa.Schema:
        """The columns: where, when, and a value of each name."""
        import pyarrow as pa

        fields = [self._wide.schema.field(name) for name in ("host", "time")]
        # Where and when have columns already; a value of the same name is told apart by what it is.
        headers = (f"user {name}" if name in ("host", "time") else name for name in sorted(self._columns))
        return pa.schema([*fields, *(pa.field(header, pa.float64()) for header in headers)], metadata={VIEW: self.name})

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the rows, by host and time."""
        import pyarrow as pa
        import pyarrow.compute as pc

        schema = self.schema
        for batch in self._wide.batches():
            columns = [pc.coalesce(*map(batch.column, names)) for _, names in sorted(self._columns.items())]
            yield pa.record_batch([batch.column("host"), batch.column("time"), *columns], schema=schema)
