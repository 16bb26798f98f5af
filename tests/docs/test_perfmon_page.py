"""The page for those who come from perfmon shows the columns that the view has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import METRICS
from fedmon.report.views.perfmon import CPU, DERIVED, gpu_columns
from tests.docs.perfmon_columns import cpu_rows, gpu_rows, made_of, perf_rows

PAGE = Path(__file__).parents[2] / "docs/howtos/migrating-from-perfmon.md"


@pytest.mark.parametrize("rows", [cpu_rows, perf_rows, gpu_rows])
def test_each_column_is_on_the_page_with_what_it_is_made_of(rows: Callable[[], str]) -> None:
    assert rows() in PAGE.read_text(), "print the tables with: python -m tests.docs.perfmon_columns"


def test_each_column_is_made_of_metrics_that_there_are() -> None:
    made = [name for column in (*CPU, *gpu_columns("0")) for name in made_of(column.quantity)]

    assert {name for name in made if name not in METRICS} == set()
    assert {name for _, _, _, name, _ in DERIVED if metric_name(name) not in METRICS} == set()
