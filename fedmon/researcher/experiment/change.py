"""One step of the machine under way: the maps of the next state, and what is to be done and to be looked at again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from immutables import Map
from msgspec.structs import replace

from fedmon.researcher.experiment.conditions import AnyCondition
from fedmon.researcher.experiment.events import Action, Alarm, Timer
from fedmon.researcher.experiment.situation import Resource, State, Want, WantKey
from fedmon.researcher.experiment.verdicts import Blocked

_VERBS = ("deploy", "start", "stop")
_NOBODY: Map[WantKey, None] = Map()


class Change:
    """Collects what a step changes; the state that it began with stays as it was. `finish` returns the next one."""

    def __init__(self, state: State, now: float) -> None:
        self.now = now
        self._before = state
        self.resources = state.resources.mutate()
        self.wants = state.wants.mutate()
        self.watchers = state.watchers.mutate()
        self.groups = state.groups.mutate()
        self.level, self.level_reason, self.numbers = state.level, state.level_reason, state.numbers
        self.actions: list[Action] = []
        self.awake: deque[WantKey] = deque()
        """Wants that are to be judged before the step is over."""

    def finish(self) -> State:
        """Return the state after the step."""
        return State(
            resources=self.resources.finish(),
            wants=self.wants.finish(),
            watchers=self.watchers.finish(),
            groups=self.groups.finish(),
            level=self.level,
            level_reason=self.level_reason,
            numbers=self.numbers,
        )

    def add_want(self, want: Want) -> None:
        """Take a want, and have its conditions end in time."""
        self.wants[want.key] = want
        if want.attribute is not None:
            resource = self.resources[want.key.guid]
            self.resources[want.key.guid] = replace(resource, sets=(*resource.sets, want.key.name))
        self.set_condition_alarms(want.key, want.conditions, since=want.since)

    def set_condition_alarms(self, key: WantKey, conditions: Iterable[AnyCondition], *, since: float) -> None:
        """Have those conditions that may not last for ever end in time."""
        for condition in conditions:
            if condition.timeout_s is not None:
                timer = Timer(guid=key.guid, purpose="condition-timeout", want=key.name, number=condition.number)
                self.actions.append(Alarm(timer=timer, at=since + condition.timeout_s))

    def block(self, want: Want, found: Blocked) -> None:
        """Note what a want waits for."""
        self._watch(want.key, want.watching, found.guids)
        if found.due != want.due:
            self._set_delay(want.key, found.due)
        if found.guids != want.watching or found.due != want.due:
            self.wants[want.key] = replace(want, watching=found.guids, held_up_at=found.at, due=found.due)

    def end_want(self, want: Want) -> None:
        """Take a want out: it is done, or given up."""
        del self.wants[want.key]
        resource = self.resources.get(want.key.guid)
        if want.attribute is not None and resource is not None:
            left = tuple(name for name in resource.sets if name != want.key.name)
            self.resources[want.key.guid] = replace(resource, sets=left)
        self._watch(want.key, want.watching, ())
        if want.due is not None:
            self._set_delay(want.key, None)
        for condition in want.conditions:
            if condition.timeout_s is not None:
                timer = Timer(
                    guid=want.key.guid, purpose="condition-timeout", want=want.key.name, number=condition.number
                )
                self.actions.append(Alarm(timer=timer, at=None))

    def drop_wants(self, resource: Resource) -> None:
        """Give up everything that a resource is still to do."""
        for name in (*_VERBS, *resource.sets) if self.wants else ():
            want = self.wants.get(WantKey(resource.guid, name))
            if want is not None:
                self.end_want(want)

    def drop_all_wants(self) -> None:
        """Give up everything that anybody is still to do; the first thing in a step."""
        for want in self._before.wants.values():
            self.end_want(want)

    def wake_watchers(self, guid: int) -> None:
        """Have those who wait for a resource judged again."""
        watchers = self.watchers.get(guid)
        if watchers:
            self.awake.extend(sorted(watchers))

    def _set_delay(self, key: WantKey, due: float | None) -> None:
        self.actions.append(Alarm(timer=Timer(guid=key.guid, purpose="delay", want=key.name), at=due))

    def _watch(self, key: WantKey, before: tuple[int, ...], now: tuple[int, ...]) -> None:
        gone, come = (
            (before, now) if not (before and now) else (set(before).difference(now), set(now).difference(before))
        )
        for guid in gone:
            left = self.watchers[guid].delete(key)
            if left:
                self.watchers[guid] = left
            else:
                del self.watchers[guid]
        for guid in come:
            self.watchers[guid] = self.watchers.get(guid, _NOBODY).set(key, None)
