"""From recordings to files in one call, for notebooks and scripts: a table, or plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedmon.report.export import write
from fedmon.report.frames import TidyTable, WideTable
from fedmon.report.source import Source
from fedmon.report.subject import choose


def save(
    source: Source,
    path: Path | str,
    *,
    format: str | None = None,  # noqa: A002 - what everybody calls it
    metrics: Sequence[str] | None = None,
    job: str | None = None,
    rates: bool = True,
    since_t: float | None = None,
    until_t: float | None = None,
    tidy: bool = False,
    key: str | None = None,
    replace: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Path:
    """Write what was recorded to a file and return its path; the ending of the file says the format.

    See `WideTable` for what is selected, and `fedmon.report.export.write` for how it is written. In an HDF5 file the
    table lies under ``wide_<key>`` or ``tidy_<key>``; the key is the job's where there is one. Raises NotFoundError,
    InvalidInputError, ConflictError, StorageError and MissingExtraError.
    """
    kind = TidyTable if tidy else WideTable
    table = kind(source, metrics=metrics, job=job, rates=rates, since_t=since_t, until_t=until_t)
    return write(table, path, format=format, key=key or key_of(source, job), replace=replace, progress=progress)


def key_of(source: Source, job: str | None) -> str:
    """Return under which key a table of a source is stored: that of its job, "all" where there is not one."""
    if job is not None:
        from fedmon.report.selection import find_job

        return find_job(source, job)
    return source.job_ids[0] if len(source.job_ids) == 1 else "all"


def plot(
    source: Source,
    folder: Path | str,
    *,
    job: str | None = None,
    nodes: Sequence[str] = (),
    metrics: Sequence[str] | None = None,
    since_t: float | None = None,
    until_t: float | None = None,
    per_node: bool = True,
    combined: bool = True,
    kind: str = "png",
    progress: Callable[[float], object] | None = None,
) -> list[Path]:
    """Draw what was measured into a folder, a file for each figure; returns the files, in the order of reading.

    ``job``, ``nodes`` (ids or names), ``metrics`` (names or globs) and Unix times choose a part. ``per_node`` and
    ``combined`` say which of both kinds of plots are made, ``kind`` is png, svg or pdf. Raises NotFoundError for a job
    or node that is not there, InvalidInputError for another kind, MissingExtraError without matplotlib, StorageError.
    """
    from fedmon.report.extra import report_extra

    with report_extra("a plot"):
        from fedmon.report import plots

        subject = choose(source, job=job, nodes=nodes, since_t=since_t, until_t=until_t)
        chosen = plots.figures(
            plots.read_bins(subject), source, job=subject.job, metrics=metrics, per_node=per_node, combined=combined
        )
        return plots.write_plots(chosen, Path(folder), kind=kind, progress=progress)
