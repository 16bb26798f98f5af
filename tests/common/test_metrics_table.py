from __future__ import annotations

import re

from fedmon.common.metrics.table import GROUPS, METRICS, Kind, Metric, Unit


def ending(metric: Metric) -> str:
    suffix = "" if metric.unit in (Unit.COUNT, Unit.NONE) else f"_{metric.unit.value}"
    return suffix + {Kind.COUNTER: "_total", Kind.INFO: "_info", Kind.GAUGE: ""}[metric.kind]


def test_a_metric_is_named_after_its_unit_and_kind() -> None:
    metrics = METRICS.values()

    assert len(metrics) == sum(len(group.ROWS) for group in GROUPS)
    assert [one.name for one in metrics if not re.fullmatch(r"[a-z][a-z0-9_]*", one.name)] == []
    assert [one.name for one in metrics if not one.name.endswith(ending(one))] == []
    assert [one.name for one in metrics if not one.name.startswith(f"{one.scope.value}_")] == []
    assert [one.name for one in metrics if not one.help.endswith(".")] == []
    assert [one.name for one in metrics if not one.source] == []
