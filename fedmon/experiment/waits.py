"""Who waits for resources to come to a state, and what he is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from fedmon.common.clock import Deadline
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import ResourceState

_LOOK_S = 3600.0
_QUIT_S = 0.1
"""How often a caller's own function is asked: nobody can tell when it would say otherwise."""


class WaitResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a wait ended, by guids: who came to the state, who failed, who had not when the time was over.

    ``aborted`` says that a failure ended the experiment, or its shutdown, and ``reason`` which one. ``left`` are those
    who were still on their way when that, or the caller's own function, ended the wait.
    """

    reached: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    timed_out: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    aborted: bool = False
    reason: str = ""

    def __bool__(self) -> bool:
        """Tell whether all came to the state."""
        return not (self.failed or self.timed_out or self.left)


class Wait:
    """One wait: for resources that are not at a state yet."""

    def __init__(self, guids: Iterable[int], state: ResourceState, *, heeds_abort: bool) -> None:
        self.guids = tuple(guids)
        self.state, self.heeds_abort = state, heeds_abort
        self.left: set[int] = set()
        self.over = threading.Event()

    def begin(self, resources: Mapping[int, Resource]) -> None:
        """Look at how things stand."""
        self.left = {guid for guid in self.guids if guid in resources and resources[guid].state < self.state}
        if not self.left:
            self.over.set()

    def moved(self, guid: int, state: ResourceState) -> None:
        """Look at a resource that came to another state; a removed one counts as released."""
        if state >= self.state:
            self.left.discard(guid)
            if not self.left:
                self.over.set()


class Waits:
    """All waits of an experiment. `moved` and `wake` are called under the engine's lock, as `add` and `remove` are."""

    def __init__(self) -> None:
        self._by_guid: dict[int, list[Wait]] = {}
        self._all: set[Wait] = set()

    def add(self, wait: Wait, state: State) -> None:
        """Take a wait."""
        wait.begin(state.resources)
        if wait.heeds_abort and state.is_aborted:
            wait.over.set()
        self._all.add(wait)
        for guid in wait.left:
            self._by_guid.setdefault(guid, []).append(wait)

    def remove(self, wait: Wait) -> None:
        """Let a wait go."""
        self._all.discard(wait)
        for guid in wait.left:
            self._by_guid[guid].remove(wait)
            if not self._by_guid[guid]:
                del self._by_guid[guid]

    def moved(self, guids: Iterable[int], state: ResourceState) -> None:
        """Tell those who wait for resources."""
        if not self._by_guid:
            return
        for guid in guids:
            waiting = self._by_guid.get(guid, [])
            for wait in waiting:
                wait.moved(guid, state)
            left = [wait for wait in waiting if guid in wait.left]
            if left:
                self._by_guid[guid] = left
            elif waiting:
                del self._by_guid[guid]

    def wake(self, *, is_abort: bool) -> None:
        """End those waits that heed an abort, or all."""
        for wait in self._all:
            if wait.heeds_abort or not is_abort:
                wait.over.set()


Ending = Literal["over", "late", "quit"]


def waited(wait: Wait, timeout_s: float | None, quit_asked: Callable[[], object] | None = None) -> Ending:
    """Wait until it is over, or late, or the caller's function ends it."""
    deadline = None if timeout_s is None else Deadline(timeout_s)
    look_s = _LOOK_S if quit_asked is None else _QUIT_S
    while quit_asked is None or not quit_asked():
        if wait.over.wait(look_s if deadline is None else min(look_s, deadline.left_s())):
            return "over"
        if deadline is not None and deadline.left_s() <= 0:
            return "late"
    return "quit"


def result_of(wait: Wait, state: State, ending: Ending) -> WaitResult:
    """Say how a wait ended."""
    reached, failed, left = [], [], []
    for guid in wait.guids:
        resource = state.resources.get(guid)
        if resource is None or (resource.state >= wait.state and resource.state is not ResourceState.FAILED):
            reached.append(guid)
        elif resource.state is ResourceState.FAILED and wait.state is not ResourceState.FAILED:
            failed.append(guid)
        elif resource.state >= wait.state:
            reached.append(guid)
        else:
            left.append(guid)
    return WaitResult(
        reached=tuple(reached),
        failed=tuple(failed),
        timed_out=tuple(left) if ending == "late" else (),
        left=() if ending == "late" else tuple(left),
        aborted=(state.is_aborted and wait.heeds_abort) or (ending == "over" and bool(left)),
        reason=state.level_reason,
    )
