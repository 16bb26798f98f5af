"""What no experiment takes of a condition, said where it stands in a document."""

from __future__ import annotations

import math

from msgspec.structs import replace

from fedmon.experiment.conditions import COMPARE, AnyCondition, Metric, MetricCondition
from fedmon.experiment.document.errors import ConditionTextError


def checked_condition(condition: AnyCondition, *, where: str) -> AnyCondition:
    """Return a condition with each of its group once. Raises ConditionTextError, naming ``where``."""
    group = tuple(dict.fromkeys(condition.group))
    if not group:
        raise ConditionTextError(f"{where}: a condition waits for one resource or more, and this one names none")
    if condition.at_least is not None and not 1 <= condition.at_least <= len(group):
        raise ConditionTextError(
            f"{where}: a condition asks for {condition.at_least} of {len(group)} resources; take 1 to {len(group)}"
        )
    for name in ("timeout_s", "delay_s"):
        seconds = getattr(condition, name, None)
        if seconds is not None and not 0 <= seconds < math.inf:
            raise ConditionTextError(f"{where}: {name} of a condition is {seconds}, and must be 0 or more seconds")
    if isinstance(condition, MetricCondition):
        _check_metric(condition.metric, where)
    return replace(condition, group=group)


def _check_metric(metric: Metric, where: str) -> None:
    if metric.comparison not in COMPARE:
        raise ConditionTextError(f"{where}: no comparison {metric.comparison!r}; one of: {' '.join(COMPARE)}")
    if not math.isfinite(metric.value):
        raise ConditionTextError(f"{where}: a metric is compared with a finite number, not with {metric.value}")
    if metric.samples < 1:
        raise ConditionTextError(f"{where}: a metric holds for 1 sample or more, not for {metric.samples}")
