"""The machine of experiments, as a table: what it is told, what it asks for, and what it then knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmon.experiment.conditions import AnyCondition, Metric, MetricCondition, StateCondition
from fedmon.experiment.events import (
    COMES_TO,
    Action,
    Alarm,
    AnyEvent,
    Assign,
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
    Reached,
    Recoded,
    Registered,
    ReleaseAsked,
    Removed,
    Retry,
    Returned,
    SetWanted,
    Timer,
    VerbFailed,
    VerbReturned,
)
from fedmon.experiment.machine import step
from fedmon.experiment.situation import State
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState

NEW, READY, STARTED, STOPPED, FAILED, RELEASED = (
    ResourceState.NEW,
    ResourceState.READY,
    ResourceState.STARTED,
    ResourceState.STOPPED,
    ResourceState.FAILED,
    ResourceState.RELEASED,
)


class World:
    """A state, its time, and what was asked for last."""

    def __init__(self, *guids: int, **options: object) -> None:
        self.state, self.t, self.asked = State(), 100.0, list[Action]()
        for guid in guids:
            self.tell(Registered(t=self.t, guid=guid, rtype="app", **options))  # type: ignore[arg-type] # as the test says

    def tell(self, event: AnyEvent) -> list[Action]:
        self.state, asked = step(self.state, event)
        self.reached = [action for action in asked if isinstance(action, Reached)]
        self.asked = [action for action in asked if not isinstance(action, Reached)]
        return self.asked

    def condition(self, guids: Sequence[int], action: ResourceAction, condition: AnyCondition) -> None:
        self.tell(ConditionAdded(t=self.t, guids=tuple(guids), action=action, condition=condition))

    def deploy(self, *guids: int, group: int = 1, wait_all_ready: bool = True) -> list[Action]:
        return self.tell(DeployAsked(t=self.t, guids=guids, group=group, wait_all_ready=wait_all_ready))

    def became(self, state: ResourceState, *guids: int, reason: str = "") -> list[Action]:
        """Have resources come to a state, by hooks that return then."""
        asked = self.tell(Became(t=self.t, guids=guids, state=state, reason=reason))
        for guid in guids:
            seen = self.state.resources.get(guid)
            if seen is not None and seen.calling is not None and COMES_TO[seen.calling] is state:
                asked = asked + self.tell(VerbReturned(t=self.t, guid=guid, verb=seen.calling))
        self.asked = asked
        return asked

    def calls(self) -> list[tuple[str, int]]:
        return [(action.verb, action.guid) for action in self.asked if isinstance(action, Call)]

    def alarms(self) -> list[tuple[str, float | None]]:
        return [(action.timer.purpose, action.at) for action in self.asked if isinstance(action, Alarm)]

    def started(self, *guids: int) -> World:
        self.deploy(*guids)
        self.became(READY, *guids)
        self.became(STARTED, *guids)
        return self


def after(number: int, *group: int, state: ResourceState = STARTED, **options: object) -> StateCondition:
    return StateCondition(number=number, group=group, state=state, **options)  # type: ignore[arg-type] # as the test says


def test_a_group_starts_when_the_last_of_it_is_ready() -> None:
    world = World(1, 2)

    assert [type(action) for action in world.deploy(1, 2)] == [Call, Call]
    world.became(READY, 1)
    assert world.calls() == []
    world.became(READY, 2)

    assert world.calls() == [("start", 1), ("start", 2)]


def test_without_waiting_for_all_each_starts_for_itself() -> None:
    world = World(1, 2)
    world.deploy(1, 2, wait_all_ready=False)

    world.became(READY, 2)

    assert world.calls() == [("start", 2)]


def test_a_member_that_fails_or_is_removed_does_not_hold_its_group() -> None:
    world = World(1, 2, 3, critical=False)
    world.deploy(1, 2, 3)
    world.became(READY, 1)
    world.became(FAILED, 2)
    assert world.calls() == []

    world.tell(Removed(t=100.0, guids=(3,)))

    assert world.calls() == [("start", 1)]


def test_members_that_come_later_start_with_their_group() -> None:
    world = World(1, 2).started(1)

    assert world.deploy(2) == [Call(guid=2, verb="deploy")]
    world.became(READY, 2)

    assert ("start", 2) in world.calls()
    assert ("start", 1) not in world.calls()


@pytest.mark.parametrize("action", list(ResourceAction))
def test_an_action_waits_for_its_conditions_and_for_no_others(action: ResourceAction) -> None:
    world = World(1, 2)
    world.condition([1], action, after(1, 2, state=STARTED))
    world.deploy(1, group=1)
    if action is not ResourceAction.DEPLOY:
        world.became(READY, 1)
    if action is ResourceAction.STOP:
        world.became(STARTED, 1)
    assert (action.name.lower(), 1) not in world.calls()

    world.deploy(2, group=2)
    world.became(READY, 2)
    world.became(STARTED, 2)

    assert (action.name.lower(), 1) in world.calls()


def test_nothing_stops_that_has_no_condition_to_stop() -> None:
    world = World(1).started(1)

    assert not [name for _, name in world.state.wants if name == "stop"]


def test_a_delay_counts_from_when_the_last_member_came_to_the_state() -> None:
    world = World(1, 2, 3)
    world.condition([1], ResourceAction.START, after(1, 2, 3, delay_s=5.0))
    world.deploy(1)
    world.became(READY, 1)
    world.became(STARTED, 3)
    world.t = 110.0
    world.became(STARTED, 2)
    assert world.alarms() == [("delay", 115.0)]
    assert world.calls() == []

    world.tell(Fired(t=115.0, timer=Timer(guid=1, purpose="delay", want="start")))

    assert world.calls() == [("start", 1)]


def test_a_delay_after_a_state_that_was_passed_over_counts_from_the_next_one() -> None:
    world = World(1, 2)
    world.condition([1], ResourceAction.DEPLOY, after(1, 2, state=ResourceState.DISCOVERED, delay_s=1.0))
    world.deploy(1)

    world.became(READY, 2)

    assert world.alarms() == [("delay", 101.0)]


def test_a_critical_failure_is_handed_on_and_another_one_is_passed_over() -> None:
    for critical in (True, False):
        world = World(1)
        world.tell(Registered(t=1.0, guid=2, rtype="app", critical=critical))
        world.condition([1], ResourceAction.START, after(1, 2))
        world.deploy(1)
        world.became(READY, 1)

        world.became(FAILED, 2, reason="the disk is full")

        assert Inform(guid=2) in world.asked
        assert world.calls() == ([("fail", 1)] if critical else [("start", 1)])
        if critical:
            (call,) = (action for action in world.asked if isinstance(action, Call))
            assert call.reason.endswith("resource 2 (app), which is critical, failed: the disk is full")


def test_critical_may_be_taken_back_while_others_wait() -> None:
    world = World(1, 2)
    world.condition([1], ResourceAction.START, after(1, 2))
    world.deploy(1)
    world.became(READY, 1)
    world.tell(AttributeSet(t=1.0, guid=2, name="critical", value=False))

    world.became(FAILED, 2)

    assert world.calls() == [("start", 1)]


def test_one_may_wait_for_a_failure() -> None:
    world = World(1, 2)
    world.condition([1], ResourceAction.START, after(1, 2, state=FAILED))
    world.deploy(1)
    world.became(READY, 1)

    world.became(FAILED, 2)

    assert world.calls() == [("start", 1)]


def test_a_quorum_takes_so_many_and_is_doomed_when_too_few_are_left() -> None:
    world = World(1, 2, 3, 4)
    world.condition([1], ResourceAction.START, after(1, 2, 3, 4, at_least=2))
    world.deploy(1)
    world.became(READY, 1)
    world.became(FAILED, 2)
    assert world.calls() == []
    other = world.state

    world.became(STARTED, 3)
    assert world.calls() == []
    world.became(STARTED, 4)
    assert world.calls() == [("start", 1)]

    world.state = other
    world.became(FAILED, 3)
    assert world.calls() == [("fail", 1)]


def test_a_condition_on_a_metric_wants_so_many_values_in_a_row_and_keeps_what_held() -> None:
    world = World(1, 2).started(2)
    metric = Metric(name="accuracy", comparison=">", value=0.9, samples=3)
    world.condition([1], ResourceAction.START, MetricCondition(number=1, group=(2,), metric=metric))
    world.deploy(1, group=2)
    world.became(READY, 1)

    for value in (0.95, 0.95, 0.5, 0.95, 0.95, float("nan"), 0.91, 0.92):
        world.tell(Measured(t=1.0, guid=2, name="accuracy", value=value))
        assert world.calls() == []
    world.tell(Measured(t=1.0, guid=2, name="loss", value=1.0))
    assert world.calls() == []
    world.tell(Measured(t=1.0, guid=2, name="accuracy", value=0.93))

    assert world.calls() == [("start", 1)]


def test_values_count_while_something_else_is_still_waited_for() -> None:
    world = World(1, 2, 3).started(2)
    metric = Metric(name="accuracy", comparison=">", value=0.9, samples=2)
    world.condition([1], ResourceAction.START, after(1, 3))
    world.condition([1], ResourceAction.START, MetricCondition(number=2, group=(2,), metric=metric))
    world.deploy(1, group=2)

    world.became(READY, 1)
    for _ in range(2):
        world.tell(Measured(t=1.0, guid=2, name="accuracy", value=0.95))
        assert world.calls() == []
    world.became(STARTED, 3)

    assert world.calls() == [("start", 1)]


def test_a_condition_that_takes_too_long_fails_who_waits_and_says_what_for() -> None:
    world = World(1, 2)
    world.condition([1], ResourceAction.START, after(7, 2, timeout_s=30.0))
    world.deploy(1)
    world.became(READY, 1)
    timer = Timer(guid=1, purpose="condition-timeout", want="start", number=7)
    assert Alarm(timer=timer, at=130.0) in world.asked

    world.tell(Fired(t=130.0, timer=timer))

    (call,) = (action for action in world.asked if isinstance(action, Call))
    assert (call.verb, call.reason) == ("fail", "start waited 30 s for resource 2 to be STARTED")


def test_a_condition_that_holds_in_time_is_waited_for_no_longer() -> None:
    world = World(1, 2)
    world.condition([1], ResourceAction.START, after(7, 2, timeout_s=30.0))
    world.deploy(1)
    world.became(READY, 1)

    world.became(STARTED, 2)

    assert world.calls() == [("start", 1)]
    assert world.alarms() == [("condition-timeout", None)]


def test_conditions_may_be_taken_back() -> None:
    world = World(1, 2, 3)
    world.condition([1], ResourceAction.START, after(1, 2, 3))
    world.deploy(1)
    world.became(READY, 1)
    world.tell(ConditionsRemoved(t=1.0, guids=(1,), group=(2,)))
    assert world.calls() == []

    world.tell(ConditionsRemoved(t=1.0, guids=(1,), group=(3,), action=ResourceAction.START))

    assert world.calls() == [("start", 1)]


def test_a_verb_that_fails_is_tried_again_with_growing_pauses_and_then_fails_the_resource() -> None:
    world = World(1, retry={"start": Retry(times=2, delay_s=1.0, factor=3.0)})
    world.deploy(1)
    world.became(READY, 1)
    for pause_s in (1.0, 3.0):
        world.tell(VerbFailed(t=100.0, guid=1, verb="start", reason="busy"))
        assert world.alarms() == [("retry", 100.0 + pause_s)]
        world.tell(Fired(t=100.0 + pause_s, timer=Timer(guid=1, purpose="retry", want="start")))
        assert world.calls() == [("start", 1)]

    world.tell(VerbFailed(t=100.0, guid=1, verb="start", reason="busy"))

    assert world.asked == [Call(guid=1, verb="fail", reason="start failed (3 times): busy"), Inform(guid=1)]


def test_a_verb_that_does_not_end_is_given_up_in_time() -> None:
    world = World(1, timeouts={"deploy": 5.0, "release": 2.0})
    world.deploy(1)
    assert world.alarms() == [("verb-timeout", 105.0)]

    world.tell(Fired(t=105.0, timer=Timer(guid=1, purpose="verb-timeout", want="deploy")))
    assert world.calls() == [("fail", 1)]

    world.tell(ReleaseAsked(t=106.0, guids=(1,)))
    world.tell(Fired(t=108.0, timer=Timer(guid=1, purpose="verb-timeout", want="release")))
    assert world.state.resources[1].state is RELEASED


def test_an_attribute_is_set_when_its_condition_holds_and_the_resource_is_started() -> None:
    world = World(1, 2)
    world.tell(SetWanted(t=1.0, guids=(1,), name="rate", value=5, condition=after(1, 2)))
    world.started(2)
    assert not [action for action in world.asked if isinstance(action, Assign)]
    world.deploy(1, group=2)
    world.became(READY, 1)

    world.became(STARTED, 1)

    assert world.asked == [Assign(guid=1, name="rate", value=5)]
    assert not world.state.wants


def test_a_failure_of_the_experiment_ends_all_waiting() -> None:
    world = World(1, 2)
    world.condition([1], ResourceAction.START, after(1, 2, timeout_s=9.0))
    world.deploy(1)
    world.became(READY, 1)
    world.tell(SetWanted(t=1.0, guids=(1,), name="rate", value=5))

    world.tell(Leveled(t=1.0, level=FailureLevel.RM_FAILURE, reason="resource 9 failed"))

    assert not world.state.wants
    assert not world.state.watchers
    assert world.alarms() == [("condition-timeout", None)]
    world.became(STARTED, 2)
    assert world.calls() == []


def test_what_is_released_or_failed_stays_so() -> None:
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


def test_what_was_lost_may_return_unless_it_was_released() -> None:
    world = World(1, 2, critical=False)
    world.condition([2], ResourceAction.START, after(1, 1, delay_s=5.0))
    world.started(1)
    world.became(FAILED, 1)
    world.tell(Returned(t=101.0, guid=1, state=STARTED))
    assert (world.state.resources[1].state, world.state.resources[1].reason) == (STARTED, "")
    world.deploy(2, group=2)
    world.became(READY, 2)
    ((purpose, at),) = world.alarms()
    assert purpose == "delay"
    assert at == pytest.approx(105.0)

    world.became(RELEASED, 1)
    world.tell(Returned(t=101.0, guid=1, state=STARTED))

    assert world.state.resources[1].state is RELEASED


def test_a_step_leaves_the_state_before_it_as_it_was() -> None:
    world = World(1, 2)
    world.condition([1], ResourceAction.START, after(1, 2))
    before, said = world.state, repr(world.state)

    world.started(1, 2)

    assert repr(before) == said
    assert before.resources[1].state is NEW


def test_verbs_without_code_are_done_within_the_step_that_makes_them_due() -> None:
    world = World(1, plain=("deploy", "start"))
    world.tell(Registered(t=100.0, guid=2, rtype="app", plain=("deploy",)))
    world.condition([2], ResourceAction.START, after(1, 1))

    asked = world.deploy(1, 2)

    assert asked == [Call(guid=2, verb="start")]
    assert world.reached == [Reached(guids=(1, 2), state=READY), Reached(guids=(1,), state=STARTED)]
    assert [state for state, _ in world.state.resources[1].times] == [READY, STARTED]
    assert world.tell(Recoded(t=1.0, guid=1, plain=("deploy",))) == []
    assert world.tell(ReleaseAsked(t=1.0, guids=(1,))) == [Call(guid=1, verb="release")]


def test_a_failure_without_code_keeps_its_reason_and_is_looked_at() -> None:
    world = World(1, 2, plain=("fail",)).started(1)
    world.condition([1], ResourceAction.STOP, after(1, 2, timeout_s=5.0))

    asked = world.tell(Fired(t=110.0, timer=Timer(guid=1, purpose="condition-timeout", want="stop", number=1)))

    assert world.state.resources[1].reason == "stop waited 5 s for resource 2 to be STARTED"
    assert Inform(guid=1) in asked
    assert Reached(guids=(1,), state=FAILED) in world.reached


def test_a_chain_of_conditions_runs_through_from_its_end() -> None:
    world = World(*range(1, 51))
    for guid in range(1, 50):
        world.condition([guid], ResourceAction.START, after(guid, guid + 1))
    world.deploy(*range(1, 51))
    world.became(READY, *range(1, 51))

    order = []
    while world.calls():
        ((_, guid),) = world.calls()
        order.append(guid)
        world.became(STARTED, guid)

    assert order == list(range(50, 0, -1))


EVENTS = st.one_of(
    st.builds(Became, t=st.just(1.0), guids=st.tuples(st.integers(1, 4)), state=st.sampled_from(ResourceState)),
    st.builds(
        DeployAsked,
        t=st.just(1.0),
        guids=st.lists(st.integers(1, 4), unique=True).map(tuple),
        group=st.integers(1, 2),
        wait_all_ready=st.booleans(),
    ),
    st.builds(
        ConditionAdded,
        t=st.just(1.0),
        guids=st.tuples(st.integers(1, 4)),
        action=st.sampled_from(ResourceAction),
        condition=st.builds(
            StateCondition,
            number=st.integers(1, 99),
            group=st.lists(st.integers(1, 5), min_size=1, unique=True).map(tuple),
            state=st.sampled_from(ResourceState),
            delay_s=st.sampled_from([0.0, 1.0]),
            at_least=st.sampled_from([None, 1, 2]),
        ),
    ),
    st.builds(
        ConditionsRemoved, t=st.just(1.0), guids=st.tuples(st.integers(1, 4)), group=st.tuples(st.integers(1, 5))
    ),
    st.builds(ReleaseAsked, t=st.just(1.0), guids=st.tuples(st.integers(1, 4))),
    st.builds(VerbFailed, t=st.just(1.0), guid=st.integers(1, 4), verb=st.just("start"), reason=st.just("no")),
    st.builds(Leveled, t=st.just(1.0), level=st.sampled_from(FailureLevel)),
    st.builds(SetWanted, t=st.just(1.0), guids=st.tuples(st.integers(1, 4)), name=st.just("a"), value=st.just(1)),
)


@given(st.lists(EVENTS, max_size=30))
def test_whatever_happens_the_books_agree(happened: Iterable[AnyEvent]) -> None:
    world = World(1, 2)
    for guid in (3, 4):
        world.tell(Registered(t=1.0, guid=guid, rtype="app", plain=("deploy", "start", "fail")))
    for event in happened:
        world.tell(event)
        state = world.state
        watched = {(guid, key) for key, want in state.wants.items() for guid in want.watching}
        assert {(guid, key) for guid, keys in state.watchers.items() for key in keys} == watched
        assert all(keys for keys in state.watchers.values())
        assert all(want.watching or want.due is not None for want in state.wants.values())
        assert all(state.resources[guid].state < FAILED for guid, _ in state.wants)
        for number, group in state.groups.items():
            members = [state.resources[guid] for guid in group.members]
            assert group.unready == sum(member.state < READY for member in members)
            assert all(member.group == number for member in members)
        assert not (state.is_aborted and state.wants)
