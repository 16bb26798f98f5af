"""What the machine knows of an experiment: values that never change, so that a step leaves the old ones alone.

None of them leads back to itself, so the garbage collector, which would look at all of them again and again while
thousands of resources come and go, is told to leave them out; those of events and conditions, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from immutables import Map

from fedmon.experiment.conditions import AnyCondition, MetricCondition
from fedmon.experiment.events import Retry, Verb
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
