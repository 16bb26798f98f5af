"""Waits for many: whoever waits for a large group looks at all of it before he goes on, and at little of it before."""

from __future__ import annotations

import pytest

from fedmon.experiment import events
from fedmon.experiment.conditions import StateCondition
from fedmon.experiment.events import AnyEvent, Call
from fedmon.experiment.machine import step
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceAction, ResourceState

STOPPED, STARTED, READY = ResourceState.STOPPED, ResourceState.STARTED, ResourceState.READY


class World:
    """The last resource is to start when all before it are STOPPED."""

    def __init__(self, members: int) -> None:
        self.state, self.calls = State(), list[tuple[int, str]]()
        self.members, self.last = tuple(range(1, members + 1)), members + 1
        for guid in (*self.members, self.last):
            self.tell(events.Registered(t=1.0, guid=guid, rtype="t"))
        condition = StateCondition(number=1, group=self.members, state=STOPPED)
        self.tell(
            events.ConditionAdded(t=1.0, guids=(self.last,), action=ResourceAction.START, condition=condition),
            events.DeployAsked(t=1.0, guids=(*self.members, self.last), group=1),
        )
        self.became(READY, *self.members, self.last)
        self.became(STARTED, *self.members)

    def tell(self, *happened: AnyEvent) -> None:
        for event in happened:
            self.state, asked = step(self.state, event)
            self.calls += [(one.guid, one.verb) for one in asked if isinstance(one, Call)]

    def became(self, state: ResourceState, *guids: int) -> None:
        for guid in guids:
            self.tell(events.Became(t=2.0, guids=(guid,), state=state))
            calling = self.state.resources[guid].calling
            if calling is not None:
                self.tell(events.VerbReturned(t=2.0, guid=guid, verb=calling))

    @property
    def is_called(self) -> bool:
        return (self.last, "start") in self.calls


def test_who_waits_for_all_goes_on_when_the_last_has_come_in_whatever_order() -> None:
    for order in ((1, 2, 3, 4, 5), (5, 4, 3, 2, 1), (3, 1, 5, 2, 4)):
        world = World(5)
        for guid in order:
            assert not world.is_called
            world.became(STOPPED, guid)

        assert world.is_called


def test_one_that_went_back_after_it_was_seen_is_waited_for_again() -> None:
    world = World(4)
    world.became(STOPPED, 1, 2, 3)
    world.became(STARTED, 1)

    world.became(STOPPED, 4)
    assert not world.is_called
    assert world.state.wants[world.last, "start"].watching == (1,)

    world.became(STOPPED, 1)
    assert world.is_called


def test_a_group_that_grows_smaller_meanwhile_is_looked_at_as_it_is() -> None:
    world = World(4)
    world.became(STOPPED, 1, 2, 3)
    world.tell(events.ConditionsRemoved(t=3.0, guids=(world.last,), group=(1, 4)))

    assert world.is_called


@pytest.mark.parametrize("order", [1, -1])
def test_who_waits_for_many_is_judged_a_few_times_in_whatever_order_they_come(order: int) -> None:
    world = World(512)
    watched = set()
    for guid in world.members[::order]:
        watched.add(world.state.wants[world.last, "start"].watching)
        world.became(STOPPED, guid)

    assert world.is_called
    assert len(watched) <= 10
    assert not world.state.watchers
