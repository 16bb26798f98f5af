"""Conditions: the states or metrics of other resources that an action waits for."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec.structs import replace

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
    """A scalar or a metric of a resource, and the comparison that must hold for ``samples`` values in a row."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    comparison: Comparison
    value: float
    samples: Annotated[int, msgspec.Meta(ge=1)] = 1

    def holds(self, value: float | None) -> bool:
        """Tell whether the comparison holds for one value; for None it never does."""
        return value is not None and COMPARE[self.comparison](value, self.value)

    def __str__(self) -> str:
        rows = f" for {self.samples} samples" if self.samples > 1 else ""
        return f"{self.name} {self.comparison} {self.value:g}{rows}"


def is_text(name: object) -> bool:
    """Tell whether a name is a text that a file can hold."""
    try:
        return type(name) is str and bool(name.encode())
    except UnicodeEncodeError:  # half a character
        return False


def number_of(value: object, what: str) -> float | None:
    """Return a value as the journal can hold it: None for NaN, the largest number for infinity.

    Raises InvalidConditionError, with ``what`` as its name, if it is not a number.
    """
    try:
        number = float("" if isinstance(value, str) else value)  # type: ignore[arg-type] # what does not fit raises
    except (TypeError, ValueError, OverflowError):
        raise InvalidConditionError(f"{what} is {value!r:.80}, which is not a number") from None
    return None if math.isnan(number) else max(-sys.float_info.max, min(sys.float_info.max, number))


class Condition(msgspec.Struct, frozen=True, kw_only=True, tag_field="on", omit_defaults=True, gc=False):
    """A condition of an action; an action waits until all of its conditions hold.

    ``at_least`` members of ``group`` must fulfil it; None: all. ``timeout_s`` counts from the start of the wait.
    ``number`` is the order of registration.
    """

    number: int
    group: tuple[int, ...]
    at_least: Annotated[int, msgspec.Meta(ge=1)] | None = None
    timeout_s: Annotated[float, msgspec.Meta(ge=0)] | None = None

    @property
    def needed(self) -> int:
        """The number of members that must fulfil it."""
        return len(self.group) if self.at_least is None else min(self.at_least, len(self.group))

    @property
    def aim(self) -> str:
        """Its content after its members: "to be STOPPED for 2 s", "to report loss < 0.5"."""
        return f"to {'report' if isinstance(self, MetricCondition) else 'be'} {self}"


class StateCondition(Condition, frozen=True, kw_only=True, tag="state"):
    """The members reached ``state``, or a later one, at least ``delay_s`` seconds ago."""

    state: ResourceState
    delay_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0

    def __str__(self) -> str:
        return f"{self.state.name}{f' for {self.delay_s:g} s' if self.delay_s else ''}"


class MetricCondition(Condition, frozen=True, kw_only=True, tag="metric"):
    """``metric`` has held for the members."""

    metric: Metric

    def __str__(self) -> str:
        return str(self.metric)


AnyCondition = StateCondition | MetricCondition
_DECODER = msgspec.json.Decoder(AnyCondition)
_Named = TypeVar("_Named", ResourceState, ResourceAction)


def state_of(value: object) -> ResourceState:
    """Return the state of a value or a name. Raises InvalidConditionError."""
    return _member(ResourceState, value, "state")


def action_of(value: object) -> ResourceAction:
    """Return the action of a value or a name. Raises InvalidConditionError."""
    return _member(ResourceAction, value, "action")


def _member(kind: type[_Named], value: object, what: str) -> _Named:
    for one in kind:
        if (one == value and not isinstance(value, bool)) or (isinstance(value, str) and one.name == value.upper()):
            return one
    raise InvalidConditionError(f"{what} {value!r:.80} not found: use one of {', '.join(kind.__members__)}")


def checked_condition(condition: AnyCondition) -> AnyCondition:
    """Return a condition with each member of its group once.

    Raises InvalidConditionError for one that names no resource, or does not come back from a journal as it is.
    """
    condition = replace(condition, group=tuple(dict.fromkeys(condition.group)))
    members = len(condition.group)
    if not members:
        raise InvalidConditionError("a condition names no resource: name one or more")
    if condition.at_least is not None and not 1 <= condition.at_least <= members:
        raise InvalidConditionError(f"at_least={condition.at_least} of {members} resources: take 1 to {members}")
    try:
        read = _DECODER.decode(msgspec.json.encode(condition))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise InvalidConditionError(f"a condition is not valid: {error}") from None
    if read != condition:
        raise InvalidConditionError("a condition is not valid: its numbers must be finite")
    return condition
