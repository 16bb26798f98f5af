"""The drawings of a report, by what they are about."""

from __future__ import annotations

import functools

from fedmon.report import plots
from fedmon.report.bins import Bins
from fedmon.report.document.model import Picture
from fedmon.report.source import Source

_TITLES = {"job": "The job over time", "user": "What the program reported, over time", "gpu": "GPUs over time",
           "cpu": "CPUs over time", "infiniband": "InfiniBand over time", "numa": "NUMA over time",
           "agent": "The tool itself over time"}  # fmt: skip


def pictures(bins: Bins, source: Source, job: str | None) -> list[tuple[str, list[Picture]]]:
    """Return the drawings of everything that was measured, each group under its heading; drawn when asked for."""
    groups: dict[str, list[Picture]] = {}
    for plot in plots.figures(bins, source, job=job):
        groups.setdefault(plot.group.value, []).append(
            Picture(title=plot.title, png=functools.cache(functools.partial(plots.as_png, plot)))
        )
    return [(_TITLES.get(group, f"{group.capitalize()} over time"), drawn) for group, drawn in groups.items()]
