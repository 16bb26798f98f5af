"""An experiment over the pure machine: what is asked for is done in the caller's thread, and time is told to it."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from fedmon.experiment import events
from fedmon.experiment.conditions import StateCondition
from fedmon.experiment.durations import moment_of, seconds
from fedmon.experiment.errors import UnknownGuidError
from fedmon.experiment.events import AnyEvent, Retry, Timer, Verb
from fedmon.experiment.failure import FailureManager, judge, seen
from fedmon.experiment.hook_calls import note_scheduled
from fedmon.experiment.machine import step
from fedmon.experiment.resource import ResourceManager
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState
from fedmon.experiment.verbs import perform
from fedmon.experiment.wiring import connect, disconnect

START = 1_800_000_000.0


class SmallExperiment:
    def __init__(self, fm: FailureManager | None = None, *, run_dir: str = "") -> None:
        self.run_dir = run_dir
        self.fm = fm or FailureManager()
        self.fm.set_ec(self)
        self.now = START
        self.machine = State()
        self.events: list[AnyEvent] = []
        self.timers: dict[Timer, float] = {}
        self.tasks: list[tuple[float, Callable[[], Any]]] = []
        self.on_event: Callable[[AnyEvent], None] = lambda _: None
        self._resources: dict[int, ResourceManager] = {}
        self._queue: deque[AnyEvent] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._lock = threading.RLock()
        self._is_working = False

    # --- what a test does ---

    def add(self, rclass: type[ResourceManager], *, critical: bool = True, **options: Any) -> Any:
        guid = len(self._resources) + 1
        rm = rclass(self, guid)
        self._resources[guid] = rm
        self.post(
            events.Registered(t=self.now, guid=guid, rtype=rm.get_rtype(), critical=bool(rm.get("critical")), **options)
        )
        if not critical:
            rm.set("critical", value=False)
        return rm

    def condition(self, guid: int, action: ResourceAction, other: int, state: ResourceState, time: str = "") -> None:
        made = StateCondition(number=len(self.events) + 1, group=(other,), state=state, delay_s=seconds(time))
        self.post(events.ConditionAdded(t=self.now, guids=(guid,), action=action, condition=made))

    def deploy(self, *guids: int, group: int = 1) -> None:
        self.post(events.DeployAsked(t=self.now, guids=guids or tuple(self.resources), group=group))
        self.work()

    def release(self, *guids: int) -> None:
        self.post(events.ReleaseAsked(t=self.now, guids=guids or tuple(self.resources)))
        self.work()

    def advance(self, seconds_on: float) -> None:
        """Let time pass: what is due by then happens, each at its moment."""
        end = self.now + seconds_on
        while (due := min([*self.timers.values(), *(at for at, _ in self.tasks)], default=end + 1)) <= end:
            self.now = max(self.now, due)
            for timer, at in list(self.timers.items()):
                if at <= self.now:
                    del self.timers[timer]
                    self.post(events.Fired(t=self.now, timer=timer))
            ready = [task for task in self.tasks if task[0] <= self.now]
            self.tasks = [task for task in self.tasks if task not in ready]
            for _, callback in ready:
                self._calls.append(lambda callback=callback: _run(callback))  # type: ignore[misc]
            self.work()
        self.now = end

    def states(self) -> list[str]:
        return [rm.state.name for rm in self._resources.values()]

    # --- what an engine does ---

    def post(self, event: AnyEvent) -> None:
        self.on_event(event)
        with self._lock:
            self.events.append(event)
            self.machine, actions = step(self.machine, event)
            for action in actions:
                match action:
                    case events.Call(guid=guid, verb=verb, reason=reason):
                        rm = self._resources[guid]
                        self._calls.append(lambda rm=rm, verb=verb, reason=reason: perform(rm, verb, reason))  # type: ignore[misc]
                    case events.Alarm(timer=timer, at=None):
                        self.timers.pop(timer, None)
                    case events.Alarm(timer=timer, at=at) if at is not None:
                        self.timers[timer] = at
                    case events.Assign(guid=guid, name=name, value=value):
                        self._resources[guid].set(name, value)
                    case events.Inform(guid=guid):
                        self._calls.append(lambda guid=guid: self._judge(guid))  # type: ignore[misc]

    def work(self) -> None:
        if self._is_working:
            return
        self._is_working = True
        try:
            while self._calls:
                self._calls.popleft()()
        finally:
            self._is_working = False

    def _judge(self, guid: int) -> None:
        judge(self.fm, guid)
        level, reason = seen(self.fm)
        if level is not FailureLevel.OK:
            self.post(events.Leveled(t=self.now, level=level, reason=reason, guid=guid))

    # --- what resources use ---

    @property
    def resources(self) -> list[int]:
        return list(self._resources)

    def get_resource(self, guid: int) -> ResourceManager:
        if guid not in self._resources:
            raise UnknownGuidError(f"no resource {guid}")
        return self._resources[guid]

    def remove(self, *guids: int) -> None:
        self.post(events.Removed(t=self.now, guids=guids))
        for guid in guids:
            del self._resources[guid]

    def register_connection(self, guid1: int, guid2: int) -> None:
        self._connected(connect, guid1, guid2, is_on=True)

    def unregister_connection(self, guid1: int, guid2: int) -> None:
        self._connected(disconnect, guid1, guid2, is_on=False)

    def schedule(self, date: str | None, callback: Callable[[], Any], track: bool = False) -> int:  # noqa: ARG002
        note_scheduled()
        self.tasks.append((moment_of(date, now=self.now), callback))
        return len(self.tasks)

    def register_condition(
        self, guids1: Any, action: ResourceAction, guids2: Any, state: ResourceState, time: str | None = None
    ) -> None:
        self.condition(guids1, action, guids2, state, time or "")

    def unregister_condition(self, guids1: Any, guids2: Any, action: ResourceAction | None = None) -> None:
        self.post(events.ConditionsRemoved(t=self.now, guids=(guids1,), group=(guids2,), action=action))

    def set_with_conditions(
        self, name: str, value: Any, guids1: Any, guids2: Any, state: ResourceState, time: str | None = None
    ) -> None:
        self.get_resource(guids1).check_value(name, value)
        made = StateCondition(number=len(self.events) + 1, group=(guids2,), state=state, delay_s=seconds(time))
        self.post(events.SetWanted(t=self.now, guids=(guids1,), name=name, value=value, condition=made))

    def _connected(self, how: Callable[..., None], one: int, other: int, *, is_on: bool) -> None:
        event = events.Connected(t=self.now, guid=one, other=other, is_on=is_on)
        how(self.get_resource(one), self.get_resource(other), lambda: self.post(event))

    def _became(self, guid: int, state: ResourceState, reason: str = "") -> None:
        self.post(events.Became(t=self.now, guids=(guid,), state=state, reason=reason))
        if state >= ResourceState.FAILED:
            self._resources[guid].turn.dismiss()

    def _verb_failed(self, guid: int, verb: Verb, reason: str) -> None:
        self.post(events.VerbFailed(t=self.now, guid=guid, verb=verb, reason=reason))
        self.work()

    def _failure_judged(self) -> None:
        """Nothing: `_judge` looks."""

    def _seen(self, guid: int) -> Resource:
        return self.machine.resources[guid]

    def _action_wanted(self, guid: int, action: ResourceAction) -> None:
        self.post(events.ActionWanted(t=self.now, guid=guid, action=action))

    def _returned(self, guid: int, state: ResourceState) -> None:
        self.post(events.Returned(t=self.now, guid=guid, state=state))

    def _trace_enabled(self, guid: int, name: str) -> None:
        self.post(events.TraceEnabled(t=self.now, guid=guid, name=name))

    def _attribute_set(self, guid: int, name: str, value: Any) -> None:
        self.post(events.AttributeSet(t=self.now, guid=guid, name=name, value=value))


def _run(callback: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):  # a task's own failure is its result
        callback()


def retries(times: int, verb: Verb = "deploy") -> dict[Verb, Retry]:
    return {verb: Retry(times=times, delay_s=1.0)}


def names(resources: Iterable[ResourceManager]) -> list[int]:
    return [rm.guid for rm in resources]
