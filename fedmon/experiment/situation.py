"""The state of an experiment, and the verdict on whether a want may be done now.

The values are immutable, so that a step leaves the old state alone. They hold no cycles, so ``gc=False`` keeps
thousands of them out of the garbage collector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec
from rpds import HashTrieMap, HashTrieSet

from fedmon.experiment.conditions import AnyCondition, MetricCondition, StateCondition
from fedmon.experiment.events import COMES_TO, ActionVerb, Retry, Verb
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState

Guids = int | str | Iterable[int | str]
"""Resources as callers give them: a guid or a name, or several."""
_SLACK_S = 1e-6
"""A timer may fire earlier than its moment by the rounding of a clock."""


class Resource(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One resource.

    ``times`` holds when it reached each state. ``plain`` are the verbs for which its type has no code. ``calling`` is
    the verb under way: until its hook has returned and its state is reached; states reached after ``called`` are of it.
    ``returned``: the hook has returned before that; ``scheduled``: it scheduled a task; ``waits_for``: the cause of its
    wait. ``retrying`` is the verb that waits for its next attempt, ``attempt`` the number of failed ones, ``alarm_at``
    the moment of the next attempt or of the timeout. ``left_alone``: it was STARTED when another process reconnected,
    and its type cannot do so. ``sets`` names its wants of attributes. ``values`` holds the last values of each metric
    by name and source, ``metric_conditions`` the conditions on them, and ``streaks`` by condition and source how many
    values in a row fulfilled it.
    """

    guid: int
    rtype: str
    name: str = ""
    state: ResourceState = ResourceState.NEW
    times: tuple[tuple[ResourceState, float], ...] = ()
    critical: bool = True
    conditions: tuple[tuple[ResourceAction, AnyCondition], ...] = ()
    connections: frozenset[int] = frozenset()
    group: int | None = None
    sets: tuple[str, ...] = ()
    calling: Verb | None = None
    called: float = 0.0
    returned: bool = False
    scheduled: bool = False
    waits_for: str = ""
    left_alone: bool = False
    retrying: Verb | None = None
    alarm_at: float | None = None
    attempt: int = 0
    attributes: HashTrieMap[str, Any] = HashTrieMap()
    traces: tuple[str, ...] = ()
    timeouts: dict[Verb, float] = {}
    retry: dict[Verb, Retry] = {}
    plain: tuple[Verb, ...] = ()
    values: HashTrieMap[tuple[str, str], tuple[float | None, ...]] = HashTrieMap()
    metric_conditions: tuple[MetricCondition, ...] = ()
    streaks: HashTrieMap[int, HashTrieMap[str, int]] = HashTrieMap()
    reason: str = ""

    @property
    def title(self) -> str:
        """How messages name it: by guid, with its name or else its type."""
        return f"resource {self.guid} ({self.name or self.rtype})"

    @property
    def is_busy(self) -> bool:
        """Whether a hook of it runs, or waits for its next attempt."""
        return self.retrying is not None or (self.calling is not None and not self.returned)

    @property
    def has_failed(self) -> bool:
        """Whether it FAILED, released or not."""
        return any(state is ResourceState.FAILED for state, _ in self.times)

    @property
    def has_ended(self) -> bool:
        """Whether it was STOPPED since its verb was called, even if the hook has not returned yet."""
        return any(state is ResourceState.STOPPED and t > self.called for state, t in self.times)

    def since(self, state: ResourceState) -> float | None:
        """Return when it reached or passed a state; None if it has not."""
        return min((t for other, t in self.times if other >= state), default=None)


class Need(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A wait that is part of a type: a verb of it waits for its connected resources of type ``of`` to be at ``state``.

    For "stop" it is the resource's own end that waits. ``through`` names the types of resources in between, for a
    resource that is not connected to any itself.
    """

    verb: ActionVerb
    of: str
    state: ResourceState = ResourceState.READY
    through: tuple[str, ...] = ()


WantKey = tuple[int, str]
"""A guid and the name of its want: ``deploy``, ``start``, ``stop``, or ``set:`` with a number."""


class Want(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An action, or an ``attribute`` to set, that is done as soon as its conditions hold.

    ``due`` is when its next delay or timeout ends. Timeouts of conditions that were added later count from ``added``,
    by the number of the condition.
    """

    key: WantKey
    since: float
    conditions: tuple[AnyCondition, ...] = ()
    attribute: tuple[str, Any] | None = None
    due: float | None = None
    added: dict[int, float] = {}

    @property
    def guid(self) -> int:
        """The resource that it belongs to."""
        return self.key[0]

    @property
    def name(self) -> str:
        """The verb, or ``set:`` with a number."""
        return self.key[1]

    @property
    def words(self) -> str:
        """The verb, or ``set`` with the name of the attribute."""
        return self.name if self.attribute is None else f"set {self.attribute[0]}"


class Group(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A deployment group; ``unready`` counts its members below READY."""

    members: tuple[int, ...]
    unready: int
    wait_all_ready: bool


class State(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An experiment at a moment.

    ``watchers`` holds the wants to judge again when a resource changes, some of which may be over. ``numbers`` is the
    last number of a want, ``latest`` the last moment at which a resource reached a state, or a verb was called.
    """

    resources: HashTrieMap[int, Resource] = HashTrieMap()
    wants: HashTrieMap[WantKey, Want] = HashTrieMap()
    watchers: HashTrieMap[int, HashTrieSet[WantKey]] = HashTrieMap()
    groups: HashTrieMap[int, Group] = HashTrieMap()
    level: FailureLevel = FailureLevel.OK
    level_reason: str = ""
    numbers: int = 0
    latest: float = 0.0

    @property
    def is_aborted(self) -> bool:
        """Whether a failure ended all waiting."""
        return self.level is not FailureLevel.OK


# --- verdicts -----------------------------------------------------------------------------------------------------

_BELOW_READY = frozenset(state for state in ResourceState if state < ResourceState.READY)
_BELOW_FAILED = frozenset(state for state in ResourceState if state < ResourceState.FAILED)
MAY: Mapping[str, frozenset[ResourceState]] = {
    "discover": _BELOW_FAILED,
    "reserve": _BELOW_FAILED,
    "provision": _BELOW_FAILED,
    "configure": _BELOW_FAILED,
    "deploy": _BELOW_READY | {ResourceState.READY},
    "start": frozenset({ResourceState.READY, ResourceState.STOPPED}),
    "stop": frozenset({ResourceState.STARTED}),
    "set": frozenset({ResourceState.STARTED}),
    "fail": _BELOW_FAILED,
    "release": _BELOW_FAILED | {ResourceState.FAILED},
}
"""The states in which each verb may run; "set" is the setting of an attribute."""


class Settled(Enum):
    """It may be done now, or it is dropped: the resource is past it."""

    MET, OBSOLETE = "met", "obsolete"


class Impossible(msgspec.Struct, frozen=True, gc=False):
    """It can never be done."""

    reason: str


class Blocked(msgspec.Struct, frozen=True, gc=False):
    """It waits for a change of one of ``guids``, or until ``due``."""

    guids: tuple[int, ...]
    due: float | None = None


MET, OBSOLETE = Settled
Verdict = Settled | Impossible | Blocked


def verdict_on(want: Want, resources: Mapping[int, Resource], now: float) -> Verdict:
    """Return the verdict on a want at ``now``."""
    found = _verdict(want, resources, now)
    if not isinstance(found, Blocked):
        return found
    due = found.due
    for condition in want.conditions:
        if condition.timeout_s is None or verdict_on_condition(condition, want, resources, now) is MET:
            continue
        ends_at = want.added.get(condition.number, want.since) + condition.timeout_s
        if ends_at <= now + _SLACK_S:
            titles = _titles(awaited(condition, want, resources, now))
            return Impossible(f"waited {condition.timeout_s:g} s for {titles} {condition.aim}")
        due = ends_at if due is None else min(due, ends_at)
    return found if due == found.due else Blocked(found.guids, due)


def _verdict(want: Want, resources: Mapping[int, Resource], now: float) -> Verdict:
    """Return the verdict on a want without the timeouts of its conditions."""
    kind = want.name if want.attribute is None else "set"
    resource = resources[want.guid]
    state = resource.state
    if state not in MAY[kind] or state is COMES_TO.get(kind):
        is_early = state < min(MAY[kind]) or (kind == "set" and state is ResourceState.STOPPED)
        return Blocked((want.guid,)) if is_early else OBSOLETE
    if kind != "set" and (resource.is_busy or resource.calling == kind):
        return Blocked((want.guid,))
    for condition in want.conditions:
        found = verdict_on_condition(condition, want, resources, now)
        if found is not MET:
            return found
    return MET


def verdict_on_condition(condition: AnyCondition, want: Want, resources: Mapping[int, Resource], now: float) -> Verdict:
    """Return the verdict on one condition of a want, without its timeout; removed resources are passed over."""
    there, missing, lost = members_of(condition, want, resources)
    if condition.at_least is None and isinstance(condition, StateCondition):
        for one in lost:
            if one.critical:
                return Impossible(f"{one.title}, which is critical, failed: {one.reason}")
        if missing:
            # By watching the middle, a want that waits for thousands wakes a few times, in any order of arrival.
            return Blocked((missing[len(missing) // 2].guid,))
    else:
        needed = condition.needed if condition.at_least is not None else len(there) + len(missing) + len(lost) or 1
        if len(there) + len(missing) < needed:
            if isinstance(condition, MetricCondition):
                ended = "; ".join(f"{one.title} is {one.state.name}" for one in lost)
                return Impossible(f"{condition} can no longer come: {ended or 'all its resources were removed'}")
            must = f"{needed} of {len(condition.group)} resources must be {condition}"
            return Impossible(f"{must}, and {_titles(lost) or 'none'} failed")
        if len(there) < needed:
            # A lost one that is started again reports values again.
            return Blocked(tuple(one.guid for one in (*missing, *lost)))
    return _after(condition, there, now)


def members_of(
    condition: AnyCondition, want: Want, resources: Mapping[int, Resource]
) -> tuple[list[Resource], list[Resource], list[Resource]]:
    """Return the members that are as a condition wants them, those that may still be, and those that no longer can."""
    there, missing, lost = list[Resource](), list[Resource](), list[Resource]()
    for one in filter(None, map(resources.get, condition.group)):
        (there if is_met(condition, one) else lost if _is_lost(condition, want, one) else missing).append(one)
    return there, missing, lost


def awaited(condition: AnyCondition, want: Want, resources: Mapping[int, Resource], now: float) -> list[Resource]:
    """Return the members that an unmet condition waits for, after those by which it can never be met."""
    there, missing, lost = members_of(condition, want, resources)
    if isinstance(condition, StateCondition) and condition.delay_s:
        missing += [one for one in there if (one.since(condition.state) or 0.0) + condition.delay_s > now]
    is_lost = isinstance(verdict_on_condition(condition, want, resources, now), Impossible)
    return [*lost, *missing] if is_lost else missing


def is_met(condition: AnyCondition, resource: Resource) -> bool:
    """Tell whether a resource is as a condition wants it, but for a delay; one that FAILED on its way is not."""
    if isinstance(condition, StateCondition):
        is_failed = condition.state < ResourceState.FAILED <= resource.state and resource.has_failed
        return resource.state >= condition.state and not is_failed
    streaks = resource.streaks.get(condition.number)  # enough values in a row of each of its sources
    return streaks is not None and min(streaks.values()) >= condition.metric.samples


def _is_lost(condition: AnyCondition, want: Want, resource: Resource) -> bool:
    """Tell whether a resource that is not as a condition wants it can no longer be."""
    if isinstance(condition, StateCondition):
        return condition.state < ResourceState.FAILED <= resource.state
    # A STOPPED resource reports no more values; nothing has to be stopped for that reason.
    return resource.state >= (ResourceState.FAILED if want.name == "stop" else ResourceState.STOPPED)


def _titles(those: list[Resource]) -> str:
    return ", ".join(one.title for one in those[:3]) + (f" and {len(those) - 3} more" if len(those) > 3 else "")


def _after(condition: AnyCondition, there: list[Resource], now: float) -> Verdict:
    if isinstance(condition, MetricCondition) or not (condition.delay_s and there):
        return MET
    moments = sorted(one.since(condition.state) or 0.0 for one in there)
    due = moments[-1 if condition.at_least is None else condition.needed - 1] + condition.delay_s
    return Blocked((), due) if due > now + _SLACK_S else MET
