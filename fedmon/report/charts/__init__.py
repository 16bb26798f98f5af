"""Charts of metrics: as data for pages, and drawn as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.common.files import at_home, storage_errors
from fedmon.report.bins import Bins
from fedmon.report.charts.catalogue import Group, is_shown
from fedmon.report.charts.chart import Chart, Charts, Choice, charts_of
from fedmon.report.rates import PERF_CLOCK
from fedmon.report.subject import Subject
from fedmon.report.totals import TICKS_SKIPPED

__all__ = ["Chart", "Charts", "Choice", "Group", "charts_of", "is_shown", "plot_charts", "read_bins", "write_charts"]

_OF_THE_TIME = (PERF_CLOCK, TICKS_SKIPPED, "job_processes")
"""Series that tell which samples are missing, and by which clock counters grew."""


def read_bins(subject: Subject, *, wanted: Callable[[str], bool] = is_shown) -> Bins:
    """Read the series that charts need of a subject, in one pass."""
    bins = Bins(subject.span, wanted=wanted)
    for block in subject.blocks(series=lambda name: wanted(name) or name in _OF_THE_TIME):
        bins.add(block)
    return bins


def plot_charts(
    subject: Subject, choice: Choice, folder: Path | str, *, everything: bool = True, kind: str = "png"
) -> list[tuple[Path, Chart]]:
    """Write the charts of a choice, or only the main ones, as `write_charts`. Raises NotFoundError if there is none."""
    found = charts_of(read_bins(subject, wanted=choice.wanted), subject, choice=choice)
    chosen = (*found.first, *found.rest) if everything else found.first
    if not chosen:
        several = "" if choice.per_node else "; charts of all nodes together need several nodes"
        what = "only constant values: `fedmon plot --zeros` draws them" if found.constant else "no recorded value"
        raise NotFoundError(f"nothing to plot: the selection has {what}{several}")
    return list(zip(write_charts(found, chosen, at_home(folder), kind=kind), chosen, strict=True))


def write_charts(found: Charts, chosen: Sequence[Chart], folder: Path, *, kind: str = "png") -> list[Path]:
    """Write some charts into a folder, which is made, as files of one kind (png, svg, pdf), in this order.

    Raises InvalidInputError for another kind, StorageError when a file cannot be written.
    """
    from fedmon.report.charts.draw import KINDS, drawn

    if kind not in KINDS:
        raise InvalidInputError(f"no plots of the kind {kind!r}; one of: {', '.join(KINDS)}")
    written = []
    with storage_errors(folder, "write plots to"):
        folder.mkdir(parents=True, exist_ok=True)
        for chart in chosen:
            path = folder / f"{chart.name}.{kind}"
            path.write_bytes(drawn(chart, found, kind))
            written.append(path)
    return written
