"""The machine of experiments as a table: events, the actions that answer them, and the state after them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmon.experiment.conditions import AnyCondition, Metric, MetricCondition, StateCondition
from fedmon.experiment.events import (
    COMES_TO,
    Action,
    Alarm,
    AnyEvent,
    AttributeSet,
    Became,
    Call,
    ConditionAdded,
    ConditionsRemoved,
    DeployAsked,
    Fired,
    Inform,
    Leveled,
    Measured,
    Recoded,
    Registered,
    ReleaseAsked,
    Removed,
    Retry,
    SetWanted,
    Timer,
    VerbFailed,
    VerbReturned,
)
from fedmon.experiment.machine import due_at, step
from fedmon.experiment.situation import State
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState
from tests.experiment.own_types import DISCOVERED, FAILED, READY, RELEASED, START, STARTED, STOPPED

ACCURATE = Metric(name="accuracy", comparison=">", value=0.9, samples=3)


class World:
    """A state, its time, and the actions of the last event."""

    def __init__(self, *guids: int, **options: object) -> None:
        self.state, self.t, self.asked = State(), 100.0, list[Action]()
        for guid in guids:
            self.tell(Registered(t=self.t, guid=guid, rtype="app", **options))  # type: ignore[arg-type] # as the test says

    def tell(self, event: AnyEvent) -> list[Action]:
        self.state, asked = step(self.state, event)
        self.asked = list(asked)
        return self.asked

    def start_after(self, guid: int, *conditions: AnyCondition, action: ResourceAction = START) -> World:
        """Have an action of a resource wait for conditions."""
        for condition in conditions:
            self.tell(ConditionAdded(t=self.t, guids=(guid,), action=action, condition=condition))
        return self

    def deploy(self, *guids: int, group: int = 1) -> list[Action]:
        return self.tell(DeployAsked(t=self.t, guids=guids, group=group))

    def became(self, state: ResourceState, *guids: int, reason: str = "") -> list[Action]:
        """Have resources reach a state, by hooks that return then."""
        asked = self.tell(Became(t=self.t, guids=guids, state=state, reason=reason))
        for guid in guids:
            seen = self.state.resources.get(guid)
            if seen is not None and seen.calling is not None and COMES_TO[seen.calling] is state:
                asked = asked + self.tell(VerbReturned(t=self.t, guid=guid, verb=seen.calling))
        self.asked = asked
        return asked

    def calls(self) -> list[tuple[str, int]]:
        return [(action.verb, action.guid) for action in self.asked if isinstance(action, Call)]

    def alarms(self) -> list[tuple[str, float]]:
        return [(action.timer.purpose, action.at) for action in self.asked if isinstance(action, Alarm)]

    def fire(self, t: float, want: str, purpose: str = "delay", guid: int = 1) -> list[Action]:
        return self.tell(Fired(t=t, timer=Timer(guid=guid, purpose=purpose, want=want)))  # type: ignore[arg-type] # as above

    def ready(self, *guids: int, group: int = 1) -> World:
        self.deploy(*guids, group=group)
        self.became(READY, *guids)
        return self

    def started(self, *guids: int) -> World:
        self.ready(*guids).became(STARTED, *guids)
        return self


def after(number: int, *group: int, state: ResourceState = STARTED, **options: object) -> StateCondition:
    return StateCondition(number=number, group=group, state=state, **options)  # type: ignore[arg-type] # as the test says


def test_a_member_that_fails_or_is_removed_does_not_hold_its_group() -> None:
    world = World(1, 2, 3, critical=False)
    world.deploy(1, 2, 3)
    world.became(READY, 1)
    world.became(FAILED, 2)
    assert world.calls() == []

    world.tell(Removed(t=100.0, guids=(3,)))

    assert world.calls() == [("start", 1)]


def test_a_delay_counts_from_when_the_last_member_reached_the_state() -> None:
    world = World(1, 2, 3).start_after(1, after(1, 2, 3, delay_s=5.0)).ready(1)
    world.became(STARTED, 3)
    world.t = 110.0
    world.became(STARTED, 2)
    assert (world.alarms(), world.calls()) == ([("delay", 115.0)], [])

    world.fire(115.0, "start")

    assert world.calls() == [("start", 1)]


def test_a_delay_after_a_state_that_was_passed_over_counts_from_the_next_one() -> None:
    condition = after(1, 2, state=DISCOVERED, delay_s=1.0)
    world = World(1, 2).start_after(1, condition, action=ResourceAction.DEPLOY)
    world.deploy(1)

    world.became(READY, 2)

    assert world.alarms() == [("delay", 101.0)]


@pytest.mark.parametrize("critical", [True, False])
def test_a_critical_failure_is_handed_on_and_another_one_is_passed_over(critical: bool) -> None:
    world = World(1)
    world.tell(Registered(t=1.0, guid=2, rtype="app", critical=critical))
    world.start_after(1, after(1, 2)).ready(1)

    world.became(FAILED, 2, reason="the disk is full")

    assert Inform(guid=2) in world.asked
    (call,) = (action for action in world.asked if isinstance(action, Call))
    assert (call.verb, call.guid) == ("fail" if critical else "start", 1)
    assert not critical or call.reason.endswith("resource 2 (app), which is critical, failed: the disk is full")


def test_critical_may_be_taken_back_while_others_wait() -> None:
    world = World(1, 2).start_after(1, after(1, 2)).ready(1)
    world.tell(AttributeSet(t=1.0, guid=2, name="critical", value=False))

    world.became(FAILED, 2)

    assert world.calls() == [("start", 1)]


@pytest.mark.parametrize(("then", "called"), [(STARTED, "start"), (FAILED, "fail")])
def test_a_quorum_takes_so_many_and_fails_when_too_few_are_left(then: ResourceState, called: str) -> None:
    world = World(1, 2, 3, 4, 5).start_after(1, after(1, 2, 3, 4, 5, at_least=2)).ready(1)
    world.became(FAILED, 2)
    world.became(STARTED, 3)
    world.became(then, 4)
    if then is FAILED:
        assert world.calls() == []
        world.became(then, 5)

    assert world.calls() == [(called, 1)]


@pytest.mark.parametrize("waits_for_another", [False, True])
def test_a_metric_must_hold_so_often_in_a_row_and_then_has_held(waits_for_another: bool) -> None:
    world = World(1, 2, 3).started(2).start_after(1, MetricCondition(number=1, group=(2,), metric=ACCURATE))
    if waits_for_another:
        world.start_after(1, after(2, 3))
    world.ready(1, group=2)

    for name, value in [("accuracy", v) for v in (0.95, 0.95, 0.5, 0.95, 0.95, None, 0.91, 0.92)] + [("loss", 1.0)]:
        world.tell(Measured(t=1.0, guid=2, name=name, value=value))
        assert world.calls() == []
    world.tell(Measured(t=1.0, guid=2, name="accuracy", value=0.93))
    if waits_for_another:
        world.tell(Measured(t=1.0, guid=2, name="accuracy", value=0.1))
        assert world.calls() == []
        world.became(STARTED, 3)

    assert world.calls() == [("start", 1)]


def test_a_quorum_counts_a_member_that_was_started_again() -> None:
    world = World(1, 2, 3).started(2, 3)
    world.start_after(1, MetricCondition(number=1, group=(2, 3), at_least=1, metric=ACCURATE))
    world.became(STOPPED, 2)
    world.ready(1, group=2)

    world.became(STARTED, 2)
    for _ in range(3):
        world.tell(Measured(t=1.0, guid=2, name="accuracy", value=0.95))

    assert world.calls() == [("start", 1)]


def test_a_condition_that_takes_too_long_fails_the_resource_and_says_why() -> None:
    world = World(1, 2).start_after(1, after(7, 2, timeout_s=30.0)).ready(1)
    assert due_at(world.state, Timer(guid=1, purpose="delay", want="start")) == 130.0

    world.fire(130.0, "start")

    (call,) = (action for action in world.asked if isinstance(action, Call))
    assert (call.verb, call.reason) == (
        "fail",
        "start cannot be done: waited 30 s for resource 2 (app) to be STARTED",
    )
    many = World(*range(1, 1001)).start_after(1, after(7, *range(2, 1001), timeout_s=30.0)).ready(1)
    many.became(STARTED, 3)
    many.fire(130.0, "start")
    (call,) = (action for action in many.asked if isinstance(action, Call))
    assert call.reason.endswith("resource 2 (app), resource 4 (app), resource 5 (app) and 995 more to be STARTED")
    second = World(1, 2, 3).start_after(1, after(1, 3), after(7, 2, timeout_s=30.0)).ready(1)
    second.became(FAILED, 2)
    second.fire(130.0, "start")
    (call,) = (action for action in second.asked if isinstance(action, Call))
    assert call.reason.endswith("waited 30 s for resource 2 (app) to be STARTED")


def test_the_timeout_of_a_condition_that_is_added_later_counts_from_then() -> None:
    world = World(1, 2).start_after(1, after(7, 2)).ready(1)
    world.t = 500.0

    world.start_after(1, after(8, 2, timeout_s=30.0))

    assert world.alarms() == [("delay", 530.0)]
    assert world.state.resources[1].state is READY


def test_the_timeout_of_a_stop_counts_from_the_start_of_its_group() -> None:
    world = World(1, 2)
    world.deploy(1, 2)

    world.start_after(1, after(1, 2, timeout_s=30.0), action=ResourceAction.STOP)
    assert not world.state.wants
    world.t = 200.0
    world.became(READY, 1, 2)

    assert world.state.wants[1, "stop"].due == 230.0


def test_a_condition_that_holds_in_time_has_no_timer_any_more() -> None:
    world = World(1, 2).start_after(1, after(7, 2, timeout_s=30.0)).ready(1)

    world.became(STARTED, 2)

    assert world.calls() == [("start", 1)]
    assert due_at(world.state, Timer(guid=1, purpose="delay", want="start")) is None


def test_conditions_may_be_taken_back() -> None:
    world = World(1, 2, 3).start_after(1, after(1, 2, 3)).ready(1)
    world.tell(ConditionsRemoved(t=1.0, guids=(1,), group=(2, 3), action=ResourceAction.STOP))
    world.tell(ConditionsRemoved(t=1.0, guids=(1,), group=(2,)))
    assert world.calls() == []

    world.tell(ConditionsRemoved(t=1.0, guids=(1,), group=(3,), action=START))

    assert world.calls() == [("start", 1)]


def test_a_verb_that_fails_is_tried_again_with_growing_pauses_and_then_fails_the_resource() -> None:
    endless = Retry(times=9999, delay_s=1.0, factor=1e18, max_delay_s=9.0)
    assert [endless.delay_before_s(attempt) for attempt in (1, 2, 9999)] == [1.0, 9.0, 9.0]
    world = World(1, retry={"start": Retry(times=2, delay_s=1.0, factor=3.0)}).ready(1)
    for pause_s in (1.0, 3.0):
        world.tell(VerbFailed(t=100.0, guid=1, verb="start", reason="busy"))
        assert world.alarms() == [("retry", 100.0 + pause_s)]
        world.fire(100.0 + pause_s, "start", "retry")
        assert world.calls() == [("start", 1)]

    world.tell(VerbFailed(t=100.0, guid=1, verb="start", reason="busy"))

    assert world.asked == [Call(guid=1, verb="fail", reason="start failed (3 times): busy"), Inform(guid=1)]


def test_a_released_or_failed_resource_stays_so() -> None:
    world = World(1).started(1)
    world.became(FAILED, 1)
    world.became(STARTED, 1)
    assert world.state.resources[1].state is FAILED
    assert world.tell(ReleaseAsked(t=1.0, guids=(1,))) == [Call(guid=1, verb="release")]
    world.became(RELEASED, 1)
    assert world.tell(ReleaseAsked(t=1.0, guids=(1,))) == []
    for state in ResourceState:
        world.became(state, 1)
        assert world.state.resources[1].state is RELEASED


def test_verbs_without_code_are_done_within_the_step_that_makes_them_due() -> None:
    world = World(1, plain=("deploy", "start"))
    world.tell(Registered(t=100.0, guid=2, rtype="app", plain=("deploy",)))
    world.start_after(2, after(1, 1))

    asked = world.deploy(1, 2)

    assert asked == [Call(guid=2, verb="start")]
    assert [state for state, _ in world.state.resources[1].times] == [READY, STARTED]
    assert world.state.resources[2].state is READY
    assert world.tell(Recoded(t=1.0, guid=1, plain=("deploy",))) == []
    assert world.tell(ReleaseAsked(t=1.0, guids=(1,))) == [Call(guid=1, verb="release")]


def test_a_member_that_went_back_after_it_was_seen_is_waited_for_again() -> None:
    world = World(1, 2, 3, 4, 5).start_after(5, after(1, 1, 2, 3, 4, state=STOPPED)).ready(1, 2, 3, 4, 5)
    world.became(STARTED, 1, 2, 3, 4)
    world.became(STOPPED, 1, 2, 3)
    world.became(STARTED, 1)

    world.became(STOPPED, 4)
    assert world.calls() == []

    world.became(STOPPED, 1)
    assert world.calls() == [("start", 5)]


GUID, GUIDS = st.integers(1, 4), st.tuples(st.integers(1, 4))
T = st.just(1.0)
CONDITIONS = st.builds(
    StateCondition,
    number=st.integers(1, 99),
    group=st.lists(st.integers(1, 5), min_size=1, unique=True).map(tuple),
    state=st.sampled_from(ResourceState),
    delay_s=st.sampled_from([0.0, 1.0]),
    at_least=st.sampled_from([None, 1, 2]),
    timeout_s=st.sampled_from([None, 0.0, 2.0]),
)
EVENTS = st.one_of(
    st.builds(Became, t=T, guids=GUIDS, state=st.sampled_from(ResourceState)),
    st.builds(
        DeployAsked,
        t=T,
        guids=st.lists(GUID, unique=True).map(tuple),
        group=st.integers(1, 2),
        wait_all_ready=st.booleans(),
    ),
    st.builds(ConditionAdded, t=T, guids=GUIDS, action=st.sampled_from(ResourceAction), condition=CONDITIONS),
    st.builds(ConditionsRemoved, t=T, guids=GUIDS, group=st.tuples(st.integers(1, 5))),
    st.builds(ReleaseAsked, t=T, guids=GUIDS),
    st.builds(VerbFailed, t=T, guid=GUID, verb=st.just("start"), reason=st.just("no")),
    st.builds(Leveled, t=T, level=st.sampled_from(FailureLevel)),
    st.builds(SetWanted, t=T, guids=GUIDS, name=st.just("a"), value=st.just(1)),
)


@given(st.lists(EVENTS, max_size=30))
def test_the_parts_of_the_state_agree_after_any_events(happened: Iterable[AnyEvent]) -> None:
    world = World(1, 2)
    for guid in (3, 4):
        world.tell(Registered(t=1.0, guid=guid, rtype="app", plain=("deploy", "start", "fail")))
    for event in happened:
        world.tell(event)
        state = world.state
        watching = {key for keys in state.watchers.values() for key in keys}
        assert all(key in watching or want.due is not None for key, want in state.wants.items())
        assert all(state.resources[guid].state < FAILED for guid, _ in state.wants)
        for number, group in state.groups.items():
            members = [state.resources[guid] for guid in group.members]
            assert group.unready == sum(member.state < READY for member in members)
            assert all(member.group == number for member in members)
        assert not (state.is_aborted and state.wants)
