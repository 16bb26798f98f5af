from __future__ import annotations

import math

import pytest

from fedmon.common.metrics.table import format_rate, format_value, is_counter


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("host_cpu_busy_ratio", 0.37, "37 %"),
        ("host_cpu_busy_ratio", 0.0042, "0.4 %"),
        ("host_cpu_busy_ratio", 0.0, "0 %"),
        ("host_cpu_busy_ratio", 0.0999, "10 %"),
        ("host_memory_free_bytes", 0, "0 B"),
        ("host_memory_free_bytes", 1023, "1023 B"),
        ("host_memory_free_bytes", 1024, "1.0 KiB"),
        ("host_memory_free_bytes", 1_288_490_188, "1.2 GiB"),
        ("host_memory_free_bytes", 1_048_575, "1.0 MiB"),
        ("host_memory_free_bytes", 250 * 2**30, "250 GiB"),
        ('host_disk_read_bytes_total{device="sda"}', 2**20, "1.0 MiB"),
        ("gpu_pcie_receive_bytes_per_second", 3 * 2**20, "3.0 MiB/s"),
        ("host_uptime_seconds", 0, "0 s"),
        ("agent_collect_seconds", 0.00042, "0.4 ms"),
        ("host_uptime_seconds", 59.94, "59.9 s"),
        ("host_uptime_seconds", 125, "2 min 5 s"),
        ("host_uptime_seconds", 3 * 3600 + 61, "3 h 1 min"),
        ("host_uptime_seconds", 2 * 86_400 + 4 * 3600, "2 d 4 h"),
        ("host_load1", 0.5, "0.5"),
        ("user_value", 0.98765, "0.988"),
        ("host_cpu_count", 2, "2"),
        ("host_disk_reads_total", 1_234_567, "1.2 M"),
        ("host_disk_reads_total", 9_999, "9999"),
        ("some_plugin_metric", 3.14159, "3.14"),
        ("host_load1", None, "-"),
        ("host_load1", math.nan, "-"),
    ],
)
def test_a_value_is_shown_in_a_unit_that_people_read(metric: str, value: float | None, expected: str) -> None:
    assert format_value(metric, value) == expected


@pytest.mark.parametrize(
    ("metric", "per_second", "expected"),
    [
        ("host_cpu_seconds_total", 0.25, "25 %"),
        ("host_network_receive_bytes_total", 1_500_000, "1.4 MiB/s"),
        ("host_disk_reads_total", 12, "12/s"),
        ("host_disk_reads_total", None, "-"),
    ],
)
def test_growth_is_shown_per_second(metric: str, per_second: float | None, expected: str) -> None:
    assert format_rate(metric, per_second) == expected


def test_only_counters_are_shown_by_their_growth() -> None:
    assert is_counter('host_disk_reads_total{device="sda"}')
    assert not is_counter("host_load1")
    assert not is_counter("some_plugin_metric")
