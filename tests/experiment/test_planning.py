"""A dry run tells what can never happen, with the path, and lets pass what can."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.experiment import events
from fedmon.experiment.conditions import AnyCondition, Metric, MetricCondition, StateCondition
from fedmon.experiment.machine import step
from fedmon.experiment.plan_problems import Facts, ImpossiblePlanError, Problem
from fedmon.experiment.planning import Plan, plan, refuse_circles, refuse_impossible
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceAction, ResourceState

DEPLOY, START, STOP = ResourceAction
READY, STARTED, STOPPED = ResourceState.READY, ResourceState.STARTED, ResourceState.STOPPED
Wish = tuple[int, ResourceAction, int | tuple[int, ...], ResourceState | Metric]


def after(state: State, *happened: events.AnyEvent) -> State:
    for event in happened:
        state, _ = step(state, event)
    return state


def experiment(count: int, *wishes: Wish, at_least: int | None = None, rtype: str = "t") -> State:
    state = after(State(), *(events.Registered(t=0, guid=guid, rtype=rtype) for guid in range(1, count + 1)))
    for number, (guid, action, whom, wanted) in enumerate(wishes, 1):
        group = whom if isinstance(whom, tuple) else (whom,)
        condition: AnyCondition
        if isinstance(wanted, Metric):
            condition = MetricCondition(number=number, group=group, at_least=at_least, metric=wanted)
        else:
            condition = StateCondition(number=number, group=group, at_least=at_least, state=wanted)
        state = after(state, events.ConditionAdded(t=0, guids=(guid,), action=action, condition=condition))
    return state


def kinds(found: Plan) -> list[str]:
    return [problem.kind for problem in found.problems]


@pytest.mark.parametrize(
    ("count", "wishes", "path"),
    [
        (2, [(1, START, 2, STARTED), (2, START, 1, STARTED)], (1, 2, 1)),
        (1, [(1, START, 1, STARTED)], (1, 1)),
        (1, [(1, DEPLOY, 1, READY)], (1, 1)),
        (1, [(1, DEPLOY, 1, STARTED)], (1, 1)),
        (3, [(1, START, 2, STARTED), (2, START, 3, STOPPED), (3, START, 1, STARTED)], (1, 2, 3, 1)),
        (2, [(1, DEPLOY, 2, READY), (2, DEPLOY, 1, READY)], (1, 2, 1)),
        (2, [(1, STOP, 2, STOPPED), (2, STOP, 1, STOPPED)], (1, 2, 1)),
        (5, [(4, START, 2, STARTED), (2, START, 4, STARTED), (5, START, 4, STARTED)], (2, 4, 2)),
    ],
)
def test_a_circle_of_conditions_is_found_with_its_path(count: int, wishes: list[Wish], path: tuple[int, ...]) -> None:
    found = plan(experiment(count, *wishes), wait_all_ready=False)

    assert [(problem.kind, problem.guids) for problem in found.errors] == [("condition-cycle", path)]
    with pytest.raises(ImpossiblePlanError) as raised:
        refuse_circles(found.state, deploying=path, wait_all_ready=False)
    assert raised.value.problems == found.errors
    with pytest.raises(ImpossiblePlanError, match=f"resource {path[0]}"):
        found.check()


def test_a_circle_is_told_in_words() -> None:
    found = plan(experiment(2, (1, START, 2, STARTED), (2, START, 1, STOPPED)), Facts(names={1: "a"}))

    assert found.errors[0].text == (
        "start of resource 1 (a) waits for resource 2 to be STARTED, "
        "start of resource 2 waits for resource 1 (a) to be STOPPED, stop of resource 1 (a) comes after its start"
    )
    assert found.stuck == (1, 2)


@pytest.mark.parametrize(
    "wishes",
    [
        [(2, DEPLOY, 1, STARTED)],
        [(2, DEPLOY, 1, STOPPED)],
        [(2, DEPLOY, 3, READY), (3, DEPLOY, 1, STARTED)],
    ],
)
def test_a_member_that_is_deployed_after_another_one_started_is_a_deadlock_of_the_group(wishes: list[Wish]) -> None:
    state = experiment(3, *wishes)

    (problem,) = plan(state).errors
    assert problem.kind == "group-deadlock"
    assert (problem.guids[0], problem.guids[-1]) == (1, 1)
    assert "its whole group" in problem.text
    assert plan(state, wait_all_ready=False).is_possible
    with pytest.raises(ImpossiblePlanError, match="its whole group"):
        refuse_circles(state, deploying=(1, 2, 3))
    refuse_circles(state, deploying=(1, 2, 3), wait_all_ready=False)
    with pytest.raises(ImpossiblePlanError, match="its whole group"):
        refuse_circles(after(state, events.DeployAsked(t=0, guids=(1, 2, 3), group=5)), deploying=(2,))
    assert not plan(after(state, events.DeployAsked(t=0, guids=(1, 2, 3), group=5))).is_possible
    assert plan(after(state, events.DeployAsked(t=0, guids=(1, 2, 3), group=5, wait_all_ready=False))).is_possible


def test_members_of_two_groups_are_no_deadlock() -> None:
    state = experiment(2, (2, DEPLOY, 1, STARTED))
    state = after(state, events.DeployAsked(t=0, guids=(1,), group=1), events.DeployAsked(t=0, guids=(2,), group=2))

    assert plan(state).is_possible


@pytest.mark.parametrize(
    "wishes",
    [
        [(1, START, 2, STARTED), (2, START, 3, STARTED), (1, STOP, 3, STOPPED)],
        [(1, START, 2, READY), (2, START, 1, STARTED)],
        [(1, STOP, 1, STARTED)],
        [(1, STOP, 2, STARTED), (2, START, 1, STARTED)],
        [(1, START, 2, STARTED), (1, START, 2, STARTED), (3, START, (1, 2), STARTED)],
    ],
)
def test_what_can_come_is_let_pass(wishes: list[Wish]) -> None:
    state = experiment(3, *wishes)

    assert plan(state).problems == ()
    refuse_circles(state, deploying=(1, 2, 3))


def test_a_wait_for_a_failure_is_let_pass_with_a_hint() -> None:
    state = experiment(2, (1, START, 2, ResourceState.FAILED))

    found = plan(state)

    assert (found.is_possible, found.warnings) == (True, ())
    assert [(one.kind, one.severity, one.guids) for one in found.problems] == [("not-failed", "hint", (1, 2))]
    refuse_impossible(state, deploying=(1, 2))


def test_a_quorum_needs_no_more_than_its_number() -> None:
    wishes: list[Wish] = [(1, START, (2, 3), STARTED), (2, START, 1, STARTED)]

    assert plan(experiment(3, *wishes, at_least=1)).is_possible
    assert kinds(plan(experiment(3, *wishes))) == ["condition-cycle"]
    both: list[Wish] = [*wishes, (3, START, 1, STARTED)]
    (problem,) = plan(experiment(3, *both, at_least=1)).errors
    assert (problem.kind, problem.guids[0], problem.guids[-1]) == ("condition-cycle", 1, 1)


def test_a_metric_comes_only_from_what_runs_unless_its_type_tells_it_earlier() -> None:
    metric = Metric(name="accuracy", comparison=">", value=0.9)
    wishes: list[Wish] = [(1, START, 2, metric), (2, START, 1, STARTED)]

    assert kinds(plan(experiment(2, *wishes))) == ["condition-cycle"]
    assert plan(experiment(2, *wishes, rtype="fedmon::Node")).is_possible


def test_what_ends_by_itself_need_not_be_stopped() -> None:
    wishes: list[Wish] = [(1, START, 2, STOPPED), (2, STOP, 1, STARTED)]

    assert kinds(plan(experiment(2, *wishes))) == ["condition-cycle"]
    assert plan(experiment(2, *wishes, rtype="fedmon::Job")).is_possible


def test_what_has_come_already_holds_nothing_back() -> None:
    state = experiment(2, (1, START, 2, STARTED), (2, START, 1, STARTED))
    state = after(state, events.Became(t=1, guids=(2,), state=STARTED))

    assert plan(state).is_possible


def test_a_resource_that_is_not_deployed_now_is_a_warning() -> None:
    state = experiment(3, (1, START, 2, STARTED))

    found = plan(state, deploying=[1])
    assert found.is_possible
    assert [(problem.kind, problem.guids) for problem in found.warnings] == [("not-deployed", (1, 2))]
    assert plan(state, deploying=[1, 2]).problems == ()


def test_who_failed_or_is_not_there_is_named() -> None:
    state = experiment(3, (1, START, 2, STARTED), (1, START, 99, STARTED), (3, START, (2, 1), STARTED))
    state = after(state, events.Became(t=1, guids=(2,), state=ResourceState.FAILED))

    assert [(problem.kind, problem.guids) for problem in plan(state).errors] == [
        ("failed-resource", (1, 2)),
        ("unknown-resource", (1, 99)),
        ("failed-resource", (3, 2)),
    ]
    some = experiment(3, (1, START, (2, 3), STARTED), at_least=2)
    assert kinds(plan(after(some, events.Became(t=1, guids=(2,), state=ResourceState.FAILED)))) == ["impossible-quorum"]
    optional = after(state, events.AttributeSet(t=2, guid=2, name="critical", value=False))
    assert kinds(plan(optional)) == ["unknown-resource"]


def test_connections_are_asked_of_both_sides() -> None:
    state = after(experiment(3), events.Connected(t=0, guid=1, other=2), events.Connected(t=0, guid=2, other=3))

    def one_side(one: int, other: int) -> bool:
        return one < other

    found = plan(state, Facts(accepts=one_side))
    assert [(problem.kind, problem.guids) for problem in found.errors] == [
        ("one-sided-connection", (1, 2)),
        ("one-sided-connection", (2, 3)),
    ]
    assert "resource 1 (t) takes a connection to resource 2 (t), but resource 2 (t) takes none" in found.errors[0].text
    assert kinds(plan(state, Facts(accepts=lambda _one, _other: False))) == ["refused-connection"] * 2
    assert plan(state, Facts(accepts=lambda _one, _other: True)).problems == ()


def test_types_collectors_and_skipped_states_are_looked_at() -> None:
    state = experiment(1, (1, START, 1, ResourceState.RESERVED), rtype="fedmon::Collector")
    facts = Facts(
        rtypes={"other"},
        attributes={1: {"traceName": ""}},
        problems=(Problem(kind="offline-node", guids=(1,), text="node x is offline"),),
    )

    found = plan(state, facts)
    assert kinds(found) == ["unknown-type", "collector-without-trace", "offline-node", "skipped-state"]
    assert [problem.severity for problem in found.problems] == ["error", "error", "error", "warning"]
    fine = Facts(rtypes={"fedmon::Collector"}, attributes={1: {"traceName": "stdout"}})
    assert kinds(plan(state, fine)) == ["skipped-state"]


def test_the_text_tells_the_order_and_what_is_wrong() -> None:
    state = experiment(3, (2, START, 1, STOPPED), (1, STOP, 3, STARTED))
    text = plan(state, Facts(names={1: "first"})).text()

    assert text.splitlines() == [
        "3 resources, 2 conditions",
        "   1. deploy 1 first, 2 t, 3 t",
        "   2. start 1 first, 3 t",
        "   3. stop 1 first when 3 STARTED",
        "   4. start 2 t when 1 first STOPPED",
        "nothing is known that keeps it from working",
    ]
    wrong = str(plan(experiment(2, (1, START, 2, STARTED), (2, START, 1, STARTED))))
    assert "never comes to its end: 1, 2" in wrong
    assert "error: condition-cycle: start of resource 1" in wrong
    assert wrong.endswith("it cannot work: 1 error")


WISHES = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from(ResourceAction),
        st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True).map(tuple),
        st.sampled_from([READY, STARTED, STOPPED]),
    ),
    max_size=6,
)
"""Conditions between four resources, whatever they are."""


@given(WISHES, st.none() | st.just(1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_quick_refusal_and_the_whole_plan_agree(wishes: list[Wish], at_least: int | None, together: bool) -> None:
    state = experiment(4, *wishes, at_least=at_least)

    refused: tuple[Problem, ...] = ()
    try:
        refuse_circles(state, deploying=(1, 2, 3, 4), wait_all_ready=together)
    except ImpossiblePlanError as error:
        refused = error.problems
    assert refused == plan(state, deploying=(1, 2, 3, 4), wait_all_ready=together).errors


@given(WISHES, st.none() | st.just(1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_machine_comes_to_its_end_exactly_when_the_plan_says_so(
    wishes: list[Wish], at_least: int | None, together: bool
) -> None:
    state = experiment(4, *wishes, at_least=at_least)
    planned = plan(state, wait_all_ready=together)
    stopping = {guid for guid, action, *_ in wishes if action is STOP}

    state, actions = step(state, events.DeployAsked(t=0, guids=(1, 2, 3, 4), group=1, wait_all_ready=together))
    waiting = list(actions)
    reached = {"deploy": READY, "start": STARTED, "stop": STOPPED}
    while waiting:
        action = waiting.pop(0)
        if isinstance(action, events.Call) and action.verb in reached:
            state, more = step(state, events.Became(t=0, guids=(action.guid,), state=reached[action.verb]))
            state, then = step(state, events.VerbReturned(t=0, guid=action.guid, verb=action.verb))
            more += then
            waiting += more
            if action.verb == "start" and action.guid not in stopping:
                state, more = step(state, events.Became(t=0, guids=(action.guid,), state=STOPPED))
                waiting += more

    assert planned.is_possible == all(one.state is STOPPED for one in state.resources.values())


def chain(count: int) -> Iterable[Wish]:
    return ((guid, START, guid + 1, STARTED) for guid in range(1, count))


def test_a_long_chain_and_a_large_circle_are_planned_in_time() -> None:
    state = experiment(2000, *chain(2000))
    circle = after(
        state,
        events.ConditionAdded(
            t=0, guids=(2000,), action=START, condition=StateCondition(number=1, group=(1,), state=STARTED)
        ),
    )
    began = time.process_time()

    assert plan(state).is_possible
    (problem,) = plan(circle).errors
    assert len(problem.guids) == 2001
    assert time.process_time() - began < 2
