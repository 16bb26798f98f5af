"""Recordings as perfmon wrote them: its groups of metrics as tables, and its JSON files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fedmon.common.metrics.series import metric_name, split_series
from fedmon.report.source import Source
from fedmon.report.table import Table
from fedmon.report.views.perfmon_columns import cpu_columns, gpu_columns
from fedmon.report.views.perfmon_events import perf_columns, shared_events
from fedmon.report.views.perfmon_json import write_group, write_meta_data
from fedmon.report.views.survey import Place, survey
from fedmon.report.views.view_table import Column, Names, Section, ViewTable, measured

CPU_METRICS, PERF_METRICS, GPU_METRICS, META_DATA = "cpu_metrics", "perf_metrics", "nv_gpu_metrics", "meta_data"
NAMES = Names(host="Host", seconds="Timestamps", time="Time", job="Job")

_PREFIXES = ("job_", "perf_", "gpu_", "infiniband_", "rapl_", "host_network_")
_SINGLE = frozenset({"host_cpu_busy_ratio", "host_memory_total_bytes"})


def tables(source: Source, job: str | None = None) -> list[Table]:
    """Return a table for each of perfmon's groups of which anything was measured.

    Rows are those of one job, or of all, by job, host and time; a GPU N is a host ``gpu-N.<host>``. Raises
    NotFoundError when there is nothing of the job.
    """
    return [*_views(source, _places(source, job))]


def write_json(source: Source, folder: Path, job: str | None = None, *, name_job: bool = False) -> list[Path]:
    """Write a file for each of perfmon's groups into a folder, and return them.

    They are called ``cpu_metrics.json`` and so on; with several jobs in the recordings, or with ``name_job``,
    ``cpu_metrics_<job>.json``. Each file appears whole or not at all. Raises NotFoundError when there is nothing of the
    job, InvalidInputError when something else is in a file's place, and StorageError.
    """
    places = _places(source, job)
    jobs = list(dict.fromkeys(place.job for place in places))
    written = []
    for one in jobs:
        of_job = [place for place in places if place.job == one]
        ending = f"_{one}.json" if one is not None and (name_job or len(jobs) > 1) else ".json"
        path = folder / f"{META_DATA}{ending}"
        write_meta_data(path, of_job)
        written.append(path)
        for view in _views(source, of_job):
            path = folder / f"{view.name}{ending}"
            write_group(path, source, view)
            written.append(path)
    return written


def _places(source: Source, job: str | None) -> list[Place]:
    return survey(source, job, metrics=lambda name: name in _SINGLE or name.startswith(_PREFIXES))


def _views(source: Source, places: Sequence[Place]) -> Iterator[ViewTable]:
    shared = shared_events(places)
    groups: tuple[tuple[str, Callable[[Place], Iterator[Section]]], ...] = (
        (CPU_METRICS, lambda place: _section(place, measured(cpu_columns(place), place))),
        (PERF_METRICS, lambda place: _section(place, measured(perf_columns(place, shared), place))),
        (GPU_METRICS, _gpus),
    )
    for name, sections_of in groups:
        sections = [section for place in places for section in sections_of(place)]
        if sections:
            yield ViewTable(name, NAMES, source, sections)


def _section(place: Place, columns: Sequence[Column]) -> Iterator[Section]:
    if columns:
        yield Section(name=place.host.name, place=place, columns=tuple(columns))


def _gpus(place: Place) -> Iterator[Section]:
    names = [name for name in place.of_host if metric_name(name).startswith("gpu_")]
    numbers = {split_series(name)[1].get("gpu", "") for name in names}
    for gpu in sorted(numbers, key=lambda number: (len(number), number)):
        columns = measured(gpu_columns(gpu), place)
        if columns:
            yield Section(name=f"gpu-{gpu}.{place.host.name}", place=place, columns=columns)
