"""One step of the machine under way: the maps of the next state, and what is to be done and to be looked at again."""

from __future__ import annotations

from collections import deque

from immutables import Map
from msgspec.structs import replace

from fedmon.experiment.alarms import condition_alarms, delay_of, limit_of
from fedmon.experiment.events import Action, Alarm
from fedmon.experiment.situation import Resource, State, Times, Want, WantKey
from fedmon.experiment.states import ResourceState
from fedmon.experiment.verdicts import Blocked

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
        self._woken: set[int] = set()
        self._histories: dict[tuple[Times, ResourceState], Times] = {}
        self.actions: list[Action] = []
        self.awake: deque[WantKey] = deque()
        """Wants that are to be judged before the step is over."""
        self.due: list[tuple[int, ResourceState, str]] = []
        """Who comes to a state, and why, before the step is over, for nothing has to be called for that."""
        self.to_stop: list[int] = []
        """Who is to be stopped as conditions say, once all have come to their states."""

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

    def history(self, before: Times, state: ResourceState) -> Times:
        """Return when a resource came to each state, now that it came to one; many of them share theirs."""
        found = self._histories.get((before, state))
        if found is None:
            kept = [each for each in before if each[0] is not state]  # it may have come to it before
            found = self._histories[before, state] = (*kept, (state, self.now))
        return found

    def add_want(self, want: Want, found: Blocked | None = None) -> None:
        """Take a want that waits for what was ``found``, or was not looked at; have its conditions end in time."""
        if want.attribute is not None:
            resource = self.resources[want.guid]
            self.resources[want.guid] = replace(resource, sets=(*resource.sets, want.name))
        self.actions.extend(condition_alarms(want.key, want.conditions, since=want.since))
        if found is None or not self.block(want, found):
            self.wants[want.key] = want

    def block(self, want: Want, found: Blocked) -> bool:
        """Note what a want waits for; false where it is as it was."""
        is_due = found.due == want.due
        if not is_due:
            self.actions.append(Alarm(timer=delay_of(want.key), at=found.due))
        self._watch(want.key, want.watching, found.guids)
        if is_due and found.guids == want.watching:
            return False
        self.wants[want.key] = replace(want, watching=found.guids, held_up_at=found.at, due=found.due)
        return True

    def end_want(self, want: Want) -> None:
        """Take a want out: it is done, or given up."""
        del self.wants[want.key]
        resource = None if want.attribute is None else self.resources.get(want.guid)
        if resource is not None:
            left = tuple(name for name in resource.sets if name != want.name)
            self.resources[want.guid] = replace(resource, sets=left)
        self._watch(want.key, want.watching, ())
        if want.due is not None:
            self.actions.append(Alarm(timer=delay_of(want.key), at=None))
        for condition in want.conditions:
            if condition.timeout_s is not None:
                self.actions.append(Alarm(timer=limit_of(want.key, condition.number), at=None))

    def drop_wants(self, resource: Resource) -> None:
        """Give up everything that a resource is still to do."""
        for name in (*_VERBS, *resource.sets) if self.wants else ():
            want = self.wants.get((resource.guid, name))
            if want is not None:
                self.end_want(want)

    def drop_all_wants(self) -> None:
        """Give up everything that anybody is still to do; the first thing in a step."""
        for want in self._before.wants.values():
            self.end_want(want)

    def wake_watchers(self, guid: int) -> None:
        """Have those who wait for a resource judged again; who still waits for it then is put down again."""
        watchers = self.watchers.pop(guid, None)
        if watchers is not None:
            self._woken.add(guid)
            self.awake.extend(sorted(watchers))

    def _watch(self, key: WantKey, before: tuple[int, ...], now: tuple[int, ...]) -> None:
        for guid in set(before).difference(now) if now else before:
            watchers = self.watchers.get(guid)
            if watchers is None or key not in watchers:  # `wake_watchers` was faster
                continue
            left = watchers.delete(key)
            if left:
                self.watchers[guid] = left
            else:
                del self.watchers[guid]
        for guid in [*set(now).difference(before), *self._woken.intersection(now)] if before else now:
            watchers = self.watchers.get(guid, _NOBODY)
            if key not in watchers:
                self.watchers[guid] = watchers.set(key, None)
