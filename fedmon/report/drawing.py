"""Plots as files, for notebooks and scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedmon.report.source import Source
from fedmon.report.subject import choose


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
