"""From recordings to a file in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedmon.report.export import write
from fedmon.report.frames import TidyTable, WideTable
from fedmon.report.source import Source


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
