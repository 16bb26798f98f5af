"""Every figure there can be, and what is deliberately in none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import METRICS, Kind
from fedmon.report.plots.catalogue import devices, energy, gpu, host, job, own, perf
from fedmon.report.plots.figure import Figure, Group

FIGURES: Sequence[Figure] = (
    *job.FIGURES,
    *own.USER,
    *host.FIGURES,
    *devices.FIGURES,
    *energy.FIGURES,
    *gpu.FIGURES,
    *perf.FIGURES,
    *own.AGENT,
)
"""Every figure of a metric of the table."""

NOT_SHOWN: Mapping[str, str] = MappingProxyType(
    {
        **{name: "a description, not a quantity" for name, metric in METRICS.items() if metric.kind is Kind.INFO},
        "host_cpu_core_seconds_total": "eight lines a core; the busy share of each core is shown",
        "host_uptime_seconds": "grows by a second a second",
        "node_energy_kilowatt_hours_total": "the energy in joules is shown, as power",
        "job_energy_kilowatt_hours_total": "the energy in joules is shown, as power",
        "perf_counted_seconds_total": "grows by a second a second: the clock of what perf counts",
        "user_scenario_finished": "a moment: shown as a mark in every figure",
    }
)
"""Metrics of the table without a figure, and why."""

SCENARIO_FINISHED = "user_scenario_finished"


def is_shown(series: str) -> bool:
    """Tell whether plots need a series: every one that is not deliberately left out."""
    name = metric_name(series)
    return name not in NOT_SHOWN or name == SCENARIO_FINISHED


def unlisted(names: Sequence[str]) -> list[Figure]:
    """Return figures for metrics that no figure lists: those of collectors that others wrote."""
    known = {metric for figure in FIGURES for metric in figure.metrics} | set(NOT_SHOWN)
    return [
        Figure(name=f"other_{name.replace(':', '_')}", group=Group.OTHER, title=name, lines={name: name}, split=True)
        for name in dict.fromkeys(names)
        if name not in known
    ]
