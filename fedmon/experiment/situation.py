"""What the machine knows of an experiment, and whether something that is wanted may be done now.

The values never change, so that a step leaves the old ones alone.

None of them leads back to itself, so the garbage collector, which would look at all of them again and again while
thousands of resources come and go, is told to leave them out; those of events and conditions, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from immutables import Map, MapMutation

from fedmon.experiment.conditions import AnyCondition, MetricCondition, StateCondition
from fedmon.experiment.events import COMES_TO, VERB_OF, Retry, Verb
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState

Guids = int | str | Iterable[int | str]
"""Resources as callers give them: a guid or a name, or several."""
Times = tuple[tuple[ResourceState, float], ...]
"""When something came to which state, in the order of coming."""


class Resource(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One resource. ``times`` holds when it came to each state, in seconds as events count them.

    ``plain`` are the verbs for which its type has no code. ``calling`` is the verb under way: until its hook has
    returned and its state was reached. ``returned`` tells that the hook has returned before that, and ``scheduled``
    that it has put something off. ``retrying`` is the verb that waits to be tried again, ``alarm_at`` when that is, or
    when the one under way is given up, and ``attempt`` how often it has failed before. ``left_alone`` tells that it was
    STARTED when another process took the run up, and its type does not say how to take it up.
    ``attributes`` are those that were set, ``traces`` those that are kept; ``sets`` names the wants of attributes that
    are still to be set.
    ``told`` holds the last values that it told, by name and source; ``asked`` are the conditions on them, and ``met``
    counts, by the number of a condition and then by source, values in a row that were as wanted.
    """

    guid: int
    rtype: str
    state: ResourceState = ResourceState.NEW
    times: Times = ()
    critical: bool = True
    conditions: tuple[tuple[ResourceAction, AnyCondition], ...] = ()
    connections: frozenset[int] = frozenset()
    group: int | None = None
    sets: tuple[str, ...] = ()
    calling: Verb | None = None
    returned: bool = False
    scheduled: bool = False
    left_alone: bool = False
    retrying: Verb | None = None
    alarm_at: float | None = None
    attempt: int = 0
    attributes: Map[str, Any] = Map()
    traces: tuple[str, ...] = ()
    timeouts: dict[Verb, float] = {}
    retry: dict[Verb, Retry] = {}
    plain: tuple[Verb, ...] = ()
    told: Map[tuple[str, str], tuple[float | None, ...]] = Map()
    asked: tuple[MetricCondition, ...] = ()
    met: Map[int, Map[str, int]] = Map()
    reason: str = ""

    @property
    def is_busy(self) -> bool:
        """Whether a hook of it runs, or is to be tried again."""
        return self.retrying is not None or (self.calling is not None and not self.returned)

    def since(self, state: ResourceState) -> float | None:
        """Return when it came to a state or passed it; None as long as it has not."""
        return min((t for other, t in self.times if other >= state), default=None)


class Need(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a verb of a type waits for by itself: those of type ``of`` that it is connected to are to be at ``state``.

    For "stop" it is its own end that comes only then. ``through`` leads there over types in between, and counts where
    none is connected to it itself. With ``attribute`` it is the resource whose guid that attribute holds: it has to be
    there by then, and a condition is to wait for it.
    """

    verb: Literal["deploy", "start", "stop"]
    of: str = ""
    state: ResourceState = ResourceState.READY
    through: tuple[str, ...] = ()
    attribute: str = ""


WantKey = tuple[int, str]
"""Whose want it is, by guid, and which: ``deploy``, ``start``, ``stop``, or ``set:`` with a number.

A plain tuple: an experiment looks some up at each of its many steps.
"""


class Want(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that is to be done as soon as its conditions hold.

    ``watching`` is who it waits for now; ``due`` is when a delay ends, None where none runs.
    """

    key: WantKey
    since: float
    conditions: tuple[AnyCondition, ...] = ()
    attribute: tuple[str, Any] | None = None
    watching: tuple[int, ...] = ()
    due: float | None = None

    @property
    def guid(self) -> int:
        """Whose it is."""
        return self.key[0]

    @property
    def name(self) -> str:
        """Which it is."""
        return self.key[1]


class Group(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A deployment group: how many of its members are below READY, and who starts when none is any more."""

    members: tuple[int, ...]
    unready: int
    wait_all_ready: bool


class State(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An experiment at a moment.

    ``watchers`` says whose wants look at a resource. ``numbers`` counts what was numbered so far, and
    ``latest`` is the last moment at which anything came to a state.
    """

    resources: Map[int, Resource] = Map()
    wants: Map[WantKey, Want] = Map()
    watchers: Map[int, Map[WantKey, None]] = Map()
    groups: Map[int, Group] = Map()
    level: FailureLevel = FailureLevel.OK
    level_reason: str = ""
    numbers: int = 0
    latest: float = 0.0

    @property
    def is_aborted(self) -> bool:
        """Whether a failure ended all waiting."""
        return self.level is not FailureLevel.OK


# --- whether something that is wanted may be done now ------------------------------------------------------------

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
"""The states in which each verb does something, whoever calls it; "set" is the setting of an attribute."""
_REACHED: Mapping[str, ResourceState] = {str(verb): state for verb, state in COMES_TO.items()}
Resources = Mapping[int, Resource] | MapMutation[int, Resource]


class Met(msgspec.Struct, frozen=True, gc=False):
    """It may be done now."""


class Moot(msgspec.Struct, frozen=True, gc=False):
    """It can never be done: the resource is past it."""


class Doomed(msgspec.Struct, frozen=True, gc=False):
    """It can never be done, for what a condition asks for cannot come."""

    reason: str


class Blocked(msgspec.Struct, frozen=True, gc=False):
    """It waits: for one of ``guids`` to change, or until ``due``."""

    guids: tuple[int, ...]
    due: float | None = None


Verdict = Met | Moot | Doomed | Blocked
MET, MOOT = Met(), Moot()


def waits_in_vain(guid: int, action: ResourceAction, condition: StateCondition) -> bool:
    """Tell whether an action would wait for its resource itself to be where only that action brings it."""
    return guid in condition.group and condition.state >= COMES_TO[VERB_OF[action]]


def verdict_on(want: Want, resources: Resources, now: float) -> Verdict:
    """Judge a want as things stand at ``now``."""
    kind = want.name if want.attribute is None else "set"
    resource = resources.get(want.guid)
    if resource is None:
        return MOOT
    state = resource.state
    if state not in MAY[kind] or state is _REACHED.get(kind):
        is_early = state < min(MAY[kind]) or (kind == "set" and state is ResourceState.STOPPED)
        return Blocked((want.guid,)) if is_early else MOOT
    if kind != "set" and (resource.is_busy or resource.calling == kind):
        return Blocked((want.guid,))
    for condition in want.conditions:
        found = verdict_on_condition(condition, want, resources, now)
        if found is not MET:
            return found
    return MET


def verdict_on_condition(condition: AnyCondition, want: Want, resources: Resources, now: float) -> Verdict:
    """Judge one condition of a want. Who was taken out of the experiment is passed over."""
    members = list(filter(None, map(resources.get, condition.group)))
    if isinstance(condition, MetricCondition):
        return _on_metric(condition, want, members)
    wanted, needed = condition.state, condition.needed
    missing = [one.guid for one in members if one.state < wanted]
    lost = [one for one in members if one.state is ResourceState.FAILED and wanted is not ResourceState.FAILED]
    there = [one for one in members if one.state >= wanted and (not lost or one.state is not ResourceState.FAILED)]
    if condition.at_least is None:
        for one in lost:
            if one.critical:
                return Doomed(f"resource {one.guid} ({one.rtype}), which is critical, failed: {one.reason}")
        if missing:
            # Whoever waits for thousands is woken a few times, in whatever order they come, if it watches the middle.
            return Blocked((missing[len(missing) // 2],))
    elif len(there) + len(missing) < needed:
        failed = f"resource {', '.join(str(one.guid) for one in lost)}" if lost else "nobody"
        return Doomed(f"{needed} of {len(condition.group)} resources must be {wanted.name}, and {failed} failed")
    elif len(there) < needed:
        return Blocked(tuple(missing))
    return _after(condition, there, now) if condition.delay_s and there else MET


def _after(condition: StateCondition, there: list[Resource], now: float) -> Verdict:
    moments = sorted(one.since(condition.state) or 0.0 for one in there)
    due = moments[-1 if condition.at_least is None else condition.needed - 1] + condition.delay_s
    return Blocked((), due) if due > now else MET


def has_held(condition: MetricCondition, resource: Resource) -> bool:
    """Tell whether a resource's values were as wanted, and often enough; those of each source, where it has several."""
    counts = resource.met.get(condition.number)
    return counts is not None and min(counts.values()) >= condition.metric.samples


def _on_metric(condition: MetricCondition, want: Want, members: list[Resource]) -> Verdict:
    """Who was taken out tells nothing any more; nor does who STOPPED, though nothing has to be stopped for that."""
    needed = len(members) or 1 if condition.at_least is None else condition.at_least
    unmet = [one for one in members if not has_held(condition, one)]
    if len(members) - len(unmet) >= needed:
        return MET
    end = ResourceState.FAILED if want.name == "stop" else ResourceState.STOPPED
    over = [one for one in unmet if one.state >= end]
    if len(members) - len(over) < needed:
        said = "; ".join(f"resource {one.guid} ({one.rtype}) is {one.state.name}" for one in over)
        return Doomed(f"{condition.metric} cannot come any more: {said or 'nobody is left who would tell'}")
    return Blocked(tuple(one.guid for one in unmet))
