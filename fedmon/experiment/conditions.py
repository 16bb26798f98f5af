"""Conditions: what others must have come to before a resource is deployed, started, stopped or set."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

import msgspec

from fedmon.experiment.errors import InvalidConditionError
from fedmon.experiment.states import ResourceAction, ResourceState

Comparison = Literal[">", ">=", "<", "<=", "==", "!="]
COMPARE: Mapping[Comparison, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


class Metric(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A scalar or a metric of a resource, and what it has to be for ``samples`` values in a row."""

    name: str
    comparison: Comparison
    value: float
    samples: int = 1

    def holds(self, value: float | None) -> bool:
        """Tell whether one value is as wanted; what is no number, None, never is."""
        return value is not None and COMPARE[self.comparison](value, self.value)

    def __str__(self) -> str:
        rows = f" for {self.samples} samples" if self.samples > 1 else ""
        return f"{self.name} {self.comparison} {self.value:g}{rows}"


def is_text(name: object) -> bool:
    """Tell whether a name is a text that can be written down."""
    try:
        return type(name) is str and bool(name.encode())
    except UnicodeEncodeError:  # half a character
        return False


def number_of(value: object, what: str) -> float | None:
    """Return a value as the journal can hold it: None for NaN, and the largest number for more than that.

    Raises InvalidConditionError where it is no number; ``what`` names it.
    """
    try:
        number = float("" if isinstance(value, str) else value)  # type: ignore[arg-type] # what does not fit raises
    except (TypeError, ValueError, OverflowError):
        raise InvalidConditionError(f"{what} is {value!r:.80}, and must be a number") from None
    if math.isnan(number):
        return None
    return max(-sys.float_info.max, min(sys.float_info.max, number))


class Condition(msgspec.Struct, frozen=True, kw_only=True, tag_field="on", omit_defaults=True, gc=False):
    """One of the conditions of an action; all of an action's must hold.

    It asks something of the members of ``group``: of ``at_least`` so many of them, or of all where that is None.
    ``timeout_s`` counts from when the action began to wait. ``number`` is the order of registration.
    """

    number: int
    group: tuple[int, ...]
    at_least: int | None = None
    timeout_s: float | None = None

    @property
    def needed(self) -> int:
        """How many of the group it takes."""
        return len(self.group) if self.at_least is None else min(self.at_least, len(self.group))


class StateCondition(Condition, frozen=True, kw_only=True, tag="state", omit_defaults=True, gc=False):
    """The members must have come to ``state`` at least, ``delay_s`` seconds ago."""

    state: ResourceState
    delay_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.state.name}{f' for {self.delay_s:g} s' if self.delay_s else ''}"


class MetricCondition(Condition, frozen=True, kw_only=True, tag="metric", omit_defaults=True, gc=False):
    """``metric`` must have held for the members."""

    metric: Metric

    def __str__(self) -> str:
        return str(self.metric)


AnyCondition = StateCondition | MetricCondition

_Named = TypeVar("_Named", ResourceState, ResourceAction)


def state_of(value: object) -> ResourceState:
    """Return the state that a value or a name means. Raises InvalidConditionError."""
    return _member(ResourceState, value, "state")


def action_of(value: object) -> ResourceAction:
    """Return the action that a value or a name means. Raises InvalidConditionError."""
    return _member(ResourceAction, value, "action")


def _member(kind: type[_Named], value: object, what: str) -> _Named:
    for one in kind:
        if (one == value and not isinstance(value, bool)) or (isinstance(value, str) and one.name == value.upper()):
            return one
    raise InvalidConditionError(f"{value!r:.80} is no {what}: take one of {', '.join(kind.__members__)}")


def check_condition(condition: AnyCondition) -> None:
    """Raise InvalidConditionError for what the machine could not judge, or a journal could not hold."""
    group, at_least, timeout_s = condition.group, condition.at_least, condition.timeout_s
    if at_least is not None and (type(at_least) is not int or not 1 <= at_least <= len(group)):
        raise InvalidConditionError(f"at_least={at_least!r} of {len(group)} resources: take 1 to {len(group)}")
    if timeout_s is not None and not 0 <= timeout_s < math.inf:
        raise InvalidConditionError(f"a timeout is 0 s or more, not {timeout_s!r}")
    if isinstance(condition, MetricCondition):
        _check_metric(condition.metric)


def _check_metric(metric: object) -> None:
    """Raise InvalidConditionError for what the machine could not judge, or nobody read back from the journal."""
    hint = 'take Metric(name="accuracy", comparison=">", value=0.9, samples=3)'
    value: object = metric.value if isinstance(metric, Metric) else None
    if not isinstance(metric, Metric) or not is_text(metric.name):
        raise InvalidConditionError(f"{metric!r:.80} is no metric of a condition: {hint}")
    if metric.comparison not in COMPARE:
        raise InvalidConditionError(f"{metric.comparison!r} compares nothing: take one of {', '.join(COMPARE)}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidConditionError(f"a metric is compared with a finite number, not with {value!r}: {hint}")
    if type(metric.samples) is not int or metric.samples < 1:
        raise InvalidConditionError(f"a metric holds for 1 sample or more, not for {metric.samples!r}: {hint}")
