"""Nothing that is measured is forgotten in plots."""

from __future__ import annotations

from collections import Counter

from fedmon.common.metrics.table import METRICS, Kind
from fedmon.report.plots.catalogue import FIGURES, NOT_SHOWN, unlisted
from fedmon.report.plots.figure import Quantity, quantity_of


def test_every_metric_of_the_table_is_in_a_figure_or_in_the_list_of_those_that_are_not() -> None:
    shown = {metric for figure in FIGURES for metric in figure.metrics}

    assert [name for name in METRICS if name not in shown | set(NOT_SHOWN)] == []
    assert sorted(shown & set(NOT_SHOWN)) == []
    assert sorted((shown | set(NOT_SHOWN)) - set(METRICS)) == []


def test_the_list_of_what_is_not_shown_is_short_and_says_why() -> None:
    quantities = {name: why for name, why in NOT_SHOWN.items() if METRICS[name].kind is not Kind.INFO}

    assert sorted(quantities) == [
        "host_cpu_core_seconds_total",
        "host_uptime_seconds",
        "job_energy_kilowatt_hours_total",
        "node_energy_kilowatt_hours_total",
        "perf_counted_seconds_total",
        "user_scenario_finished",
    ]
    assert all(quantities.values())


def test_a_metric_that_no_figure_lists_gets_one_of_its_own() -> None:
    assert [figure.lines for figure in unlisted(["sockets_open", "host_load1", "gpu_info"])] == [
        {"sockets_open": "sockets_open"}
    ]


def test_figures_have_names_of_their_own() -> None:
    assert [name for name, count in Counter(figure.name for figure in FIGURES).items() if count > 1] == []


def test_a_figure_has_one_unit_and_labels_that_its_metrics_have() -> None:
    for figure in FIGURES:
        quantities = {quantity_of(METRICS[name]) for name in figure.lines}
        labels = {label for name in figure.metrics for label in METRICS[name].labels}

        assert len(quantities) == 1 or figure.quantity is Quantity.CPUS, figure
        assert {*figure.keep, *figure.without, *([figure.each] if figure.each else [])} <= labels, figure
        assert figure.over is None or figure.over.value in ("Total", "Average"), figure
    assert FIGURES
