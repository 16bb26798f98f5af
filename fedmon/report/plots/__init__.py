"""Plots of everything that was measured: for each node, and for all nodes together."""

from __future__ import annotations

import datetime
import fnmatch
from collections.abc import Callable, Sequence
from pathlib import Path

from fedmon.common.errors import StorageError
from fedmon.common.metrics.series import metric_name
from fedmon.report.bins import Bins
from fedmon.report.plots.catalogue import is_shown
from fedmon.report.plots.figure import Group
from fedmon.report.plots.library import seldom_collected
from fedmon.report.plots.making import Choice, Maker
from fedmon.report.plots.plot import Plot, as_pdf, as_png, as_svg, maker_of
from fedmon.report.rates import PERF_CLOCK
from fedmon.report.source import JOB, Source
from fedmon.report.subject import Subject, choose

__all__ = [
    "Choice",
    "Group",
    "Plot",
    "as_pdf",
    "as_png",
    "as_svg",
    "figures",
    "is_shown",
    "read_bins",
    "write",
    "write_plots",
]


def read_bins(subject: Subject, *, progress: Callable[[float], object] | None = None) -> Bins:
    """Read what plots need of a subject, in one pass; ``progress`` is told the share that is done."""
    bins = Bins(subject.span, wanted=is_shown)
    for number, host in enumerate(subject.hosts):
        for block in subject.source.blocks(
            node_id=host.node_id,
            series=lambda name: is_shown(name) or name == PERF_CLOCK,
            since_t=subject.since_t,
            until_t=subject.until_t,
        ):
            if is_of(block.stream, subject.job):
                bins.add(block)
        if progress is not None:
            progress((number + 1) / len(subject.hosts))
    return bins


def is_of(stream: str, job: str | None) -> bool:
    """Tell whether a stream has to do with a job: its own, and what is measured beside it; all have with None."""
    return job is None or not stream.startswith(JOB) or stream == f"{JOB}{job}"


def figures(
    bins: Bins,
    source: Source,
    *,
    job: str | None = None,
    groups: Sequence[Group] | None = None,
    metrics: Sequence[str] | None = None,
    per_node: bool = True,
    combined: bool = True,
    zeros: bool = False,
    zone: datetime.tzinfo = datetime.UTC,
) -> list[Plot]:
    """Return the plots of what was measured, in the order of reading; none is drawn yet.

    ``job`` leaves out other jobs, ``metrics`` are names or globs, of which a figure shows at least one. Figures of
    events that are normally absent, such as errors, are there only when there were some, unless ``zeros``. Plots
    combined over nodes need more than one node. Times are shown in ``zone``.
    """
    patterns = None if metrics is None else [metric_name(text) for text in metrics]
    choice = Choice(
        groups=None if groups is None else frozenset(groups),
        metric=None if patterns is None else _matcher(patterns),
        per_node=per_node,
        combined=combined,
        zeros=zeros,
        zone=zone,
    )
    names = {host.node_id: host.name for host in source.hosts}
    several = len(names) > 1
    marks = [
        (mark.t, f"{names.get(mark.node_id, mark.node_id)}: {mark.text}" if several else mark.text)
        for mark in source.marks()
        if bins.start <= mark.t <= bins.end
    ]

    return Maker(bins, names, list(dict.fromkeys(marks)), lambda stream: is_of(stream, job), choice).plots()


def write(
    source: Source,
    folder: Path,
    *,
    job: str | None = None,
    per_node: bool = True,
    combined: bool = True,
    kind: str = "png",
    progress: Callable[[float], object] | None = None,
) -> list[Path]:
    """Write the plots of a recording as files of one kind (png, svg, pdf); returns them in the order of reading.

    Raises NotFoundError for a job that is not there, InvalidInputError for another kind, StorageError when a file
    cannot be written.
    """
    subject = choose(source, job=job)
    plots = figures(read_bins(subject), source, job=subject.job, per_node=per_node, combined=combined)
    return write_plots(plots, folder, kind=kind, progress=progress)


def write_plots(
    plots: Sequence[Plot], folder: Path, *, kind: str = "png", progress: Callable[[float], object] | None = None
) -> list[Path]:
    """Write plots into a folder, which is made; see `write`."""
    make, found = maker_of(kind), []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with seldom_collected():
            for number, plot in enumerate(plots):
                path = folder / f"{plot.name}.{kind}"
                path.write_bytes(make(plot))
                found.append(path)
                if progress is not None:
                    progress((number + 1) / len(plots))
    except OSError as error:
        raise StorageError(f"cannot write plots to {folder}: {error.strerror or error}") from error
    return found


def _matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    return lambda name: any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
