"""Nothing that is measured is forgotten in charts, and what follows from the metric table reads well."""

from __future__ import annotations

from collections import Counter

from fedmon.common.metrics.table import METRICS, Kind
from fedmon.report.charts.catalogue import (
    EXCEPTIONS,
    FIRST_OF_JOB,
    FIRST_OF_NODES,
    NOT_SHOWN,
    TROUBLE,
    Quantity,
    figures,
    quantity_of,
)

ALL = figures(METRICS)


def test_every_metric_of_the_table_is_in_one_chart_or_in_the_list_of_those_that_are_not() -> None:
    shown = Counter(metric for figure in ALL for metric in figure.lines)
    drawn = {metric for figure in ALL for metric in (*figure.lines, *figure.limits)}
    complements = {"host_numa_memory_free_bytes", "gpu_memory_free_bytes", "gpu_bar1_free_bytes",
                   "gpu_mig_memory_free_bytes"}  # fmt: skip
    limits = {"host_numa_memory_total_bytes", "gpu_memory_total_bytes", "gpu_bar1_total_bytes",
              "gpu_mig_memory_total_bytes", "gpu_clock_max_hertz", "gpu_pcie_link_generation_max",
              "gpu_pcie_link_lanes_max", "gpu_power_limit_watts", "infiniband_rate_bytes_per_second"}  # fmt: skip

    assert {name for name in METRICS if name not in drawn | set(NOT_SHOWN)} == complements | limits
    assert [name for name, count in shown.items() if count > 1] == []
    assert sorted(drawn & set(NOT_SHOWN)) == []
    assert [name for name in NOT_SHOWN if METRICS[name].kind is not Kind.INFO and not NOT_SHOWN[name]] == []


def test_names_and_titles_are_those_of_one_chart() -> None:
    for words in ([figure.name for figure in ALL], [figure.title for figure in ALL]):
        assert [word for word, count in Counter(words).items() if count > 1] == []


def test_a_chart_has_one_unit_and_no_errors_beside_what_is_normal() -> None:
    for figure in ALL:
        quantities = {quantity_of(METRICS[name]) for name in figure.lines}

        assert len(quantities) == 1 or figure.quantity is Quantity.CPUS, figure
        if "errors" in figure.title.lower():
            assert all(TROUBLE & set(name.split("_")) for name in figure.lines), figure


def test_what_is_read_first_exists() -> None:
    names = {figure.name for figure in ALL}

    assert names.issuperset(FIRST_OF_JOB)
    assert names.issuperset(FIRST_OF_NODES)
    assert {figure.name for figure in EXCEPTIONS} <= names


def test_families_follow_from_the_table() -> None:
    by_name = {figure.name: (figure.title, dict(figure.lines), figure.quantity) for figure in ALL}

    assert by_name["disk_traffic"] == (
        "Disk traffic",
        {"host_disk_read_bytes_total": "read", "host_disk_written_bytes_total": "written"},
        Quantity.BYTE_RATE,
    )
    assert by_name["job_context_rate"][0] == "Job: context switches"
    assert by_name["gpu_fan_share"][0] == "GPU: fan speed"
    assert by_name["agent_cpu_share"][2] is Quantity.CPUS
    assert by_name["gpu_bar1_bytes"][0] == "GPU: BAR1 used"
    assert "infiniband_rate_bytes_per_second" not in by_name["infiniband_traffic"][1]


def test_a_metric_that_the_table_does_not_know_gets_a_chart_of_its_own() -> None:
    found = figures(["sockets_open", "gpu_info"])

    assert [(figure.name, figure.title, dict(figure.lines)) for figure in found] == [
        ("other_sockets_open", "sockets_open", {"sockets_open": "sockets_open"})
    ]
