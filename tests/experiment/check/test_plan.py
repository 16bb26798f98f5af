"""A dry run finds all that can never happen, with the path, and accepts all else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.experiment import events
from fedmon.experiment.check.graph import ImpossiblePlanError, Problem, refuse_circles
from fedmon.experiment.check.plan import plan
from fedmon.experiment.conditions import Metric
from fedmon.experiment.machine import step
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceAction, ResourceState
from tests.experiment.check.planned import Wish, after, experiment, found, wish
from tests.experiment.own_types import DEPLOY, FAILED, READY, START, STARTED, STOP, STOPPED

ACCURACY = Metric(name="accuracy", comparison=">", value=0.9)
CIRCLE: list[Wish] = [(1, START, 2, STARTED), (2, START, 1, STARTED)]


def told(state: State) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return the problems of a plan but for the parts that these resources lack."""
    return [one for one in found(plan(state)) if one[1] != "missing-part"]


@pytest.mark.parametrize(
    ("count", "wishes", "path"),
    [
        (2, CIRCLE, (1, 2, 1)),
        (1, [(1, START, 1, STARTED)], (1, 1)),
        (1, [(1, DEPLOY, 1, STARTED)], (1, 1)),
        (3, [(1, START, 2, STARTED), (2, START, 3, STOPPED), (3, START, 1, STARTED)], (1, 2, 3, 1)),
        (2, [(1, DEPLOY, 2, READY), (2, DEPLOY, 1, READY)], (1, 2, 1)),
        (2, [(1, STOP, 2, STOPPED), (2, STOP, 1, STOPPED)], (1, 2, 1)),
        (5, [(4, START, 2, STARTED), (2, START, 4, STARTED), (5, START, 4, STARTED)], (2, 4, 2)),
        (2, [(1, START, 2, ACCURACY), (2, START, 1, STARTED)], (1, 2, 1)),
    ],
)
def test_a_circle_is_found_and_refused_with_its_path(count: int, wishes: list[Wish], path: tuple[int, ...]) -> None:
    planned = plan(experiment(count, *wishes), wait_all_ready=False)

    assert [(problem.kind, problem.guids) for problem in planned.errors] == [("condition-cycle", path)]
    with pytest.raises(ImpossiblePlanError) as raised:
        refuse_circles(planned.state, deploying=path, wait_all_ready=False)
    assert raised.value.problems == planned.errors
    assert f"resource {path[0]}" in str(raised.value)


def test_a_circle_is_told_in_words() -> None:
    planned = plan(experiment(2, (1, START, 2, STARTED), (2, START, 1, STOPPED), name="a"))

    assert planned.errors[0].text == (
        "start of resource 1 (a) waits for resource 2 (t) to be STARTED, "
        "start of resource 2 (t) waits for resource 1 (a) to be STOPPED, stop of resource 1 (a) comes after its start"
    )
    assert planned.stuck == (1, 2)
    assert plan(after(planned.state, events.Became(t=1, guids=(2,), state=STARTED))).is_possible


@pytest.mark.parametrize(
    "wishes",
    [[(2, DEPLOY, 1, STARTED)], [(2, DEPLOY, 1, STOPPED)], [(2, DEPLOY, 3, READY), (3, DEPLOY, 1, STARTED)]],
)
def test_a_member_that_is_deployed_after_another_one_started_is_a_deadlock_of_the_group(wishes: list[Wish]) -> None:
    state = experiment(3, *wishes)
    together = after(state, events.DeployAsked(t=0, guids=(1, 2, 3), group=5))

    (problem,) = plan(state).errors
    assert (problem.kind, problem.guids[0], problem.guids[-1]) == ("group-deadlock", 1, 1)
    assert "its whole group" in problem.text
    for deployed in (state, together):
        with pytest.raises(ImpossiblePlanError, match="its whole group"):
            refuse_circles(deployed, deploying=(1, 2, 3))
    assert not plan(together).is_possible
    assert plan(state, wait_all_ready=False).is_possible
    refuse_circles(state, deploying=(1, 2, 3), wait_all_ready=False)
    assert plan(after(state, events.DeployAsked(t=0, guids=(1, 2, 3), group=5, wait_all_ready=False))).is_possible
    assert plan(after(state, *(events.DeployAsked(t=0, guids=(one,), group=one) for one in (1, 2, 3)))).is_possible


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
def test_a_possible_plan_has_no_problems(wishes: list[Wish]) -> None:
    state = experiment(3, *wishes)

    assert plan(state).problems == ()
    refuse_circles(state, deploying=(1, 2, 3))


def test_a_quorum_needs_no_more_than_its_number() -> None:
    wishes: list[Wish] = [(1, START, (2, 3), STARTED), (2, START, 1, STARTED)]

    assert plan(experiment(3, *wishes, at_least=1)).is_possible
    assert [one.kind for one in plan(experiment(3, *wishes)).errors] == ["condition-cycle"]
    (problem,) = plan(experiment(3, *wishes, (3, START, 1, STARTED), at_least=1)).errors
    assert (problem.kind, problem.guids[0], problem.guids[-1]) == ("condition-cycle", 1, 1)


@pytest.mark.parametrize(
    ("wanted", "rtype"),
    [(Metric(name="host_cpu_busy_ratio", comparison=">", value=0.9), "fedmon::Node"), (STOPPED, "fedmon::Job")],
)
def test_a_type_that_tells_its_numbers_early_or_ends_by_itself_breaks_a_circle(
    wanted: ResourceState | Metric, rtype: str
) -> None:
    wishes: list[Wish] = [(1, START, 2, wanted), (2, STOP if wanted is STOPPED else START, 1, STARTED)]

    assert [one.kind for one in plan(experiment(2, *wishes)).errors] == ["condition-cycle"]
    assert "condition-cycle" not in [kind for _, kind, _ in told(experiment([rtype] * 2, *wishes))]


@pytest.mark.parametrize(("rtype", "count"), [("test::Short", 0), ("test::Plain", 1)])
def test_a_circle_of_stops_is_an_error_only_if_no_member_may_end_by_itself(rtype: str, count: int) -> None:
    state = experiment([rtype] * 2, (1, STOP, 2, STOPPED), (2, STOP, 1, STOPPED))

    assert told(state) == [("error", "condition-cycle", (1, 2, 1))] * count


def test_an_aggregator_with_a_quorum_needs_no_more_jobs_than_that() -> None:
    state = experiment(["fedmon::Job", "fedmon::Job", "fedmon::Aggregator"], (2, START, 3, STOPPED))
    for job in (1, 2):
        state = after(state, events.Connected(t=0, guid=3, other=job))

    assert [kind for _, kind, _ in told(state)] == ["condition-cycle"]
    assert told(after(state, events.AttributeSet(t=0, guid=3, name="atLeast", value=1))) == []


def test_lost_resources_are_named() -> None:
    state = experiment(3, (1, START, 2, STARTED), (3, START, (2, 1), STARTED))
    lost = events.Became(t=1, guids=(2,), state=FAILED)

    known = Problem(kind="offline-node", severity="warning", guids=(3,), text="node x is offline")
    assert [(problem.kind, problem.guids) for problem in plan(after(state, lost), problems=[known]).problems] == [
        ("failed-resource", (1, 2)),
        ("failed-resource", (3, 2)),
        ("offline-node", (3,)),
    ]
    optional = after(state, lost, events.AttributeSet(t=2, guid=2, name="critical", value=False))
    assert plan(optional).is_possible
    some = experiment(3, (1, START, (2, 3), STARTED), at_least=2)
    assert [one.kind for one in plan(after(some, lost)).errors] == ["impossible-quorum"]
    both = experiment(4, (1, START, (2, 3, 4), STARTED), (3, START, 1, STARTED), at_least=2)
    released = after(both, lost, events.Became(t=2, guids=(2,), state=ResourceState.RELEASED))
    assert [one.kind for one in plan(released).errors] == ["condition-cycle"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("host_memory_used_ratoi", "; did you mean 'host_memory_used_ratio'?"),
        ("loss", "; see docs/metrics.md"),
        ("host_memory_used_ratio", None),
        ('gpu_power_watts{gpu="0"}', None),
    ],
)
def test_a_metric_that_is_not_in_the_table_is_named_with_a_similar_one(name: str, said: str | None) -> None:
    state = experiment(["t", "fedmon::Monitor"], (1, START, 2, Metric(name=name, comparison=">", value=0.9)))

    texts = [one.text for one in plan(state).warnings if one.kind == "unknown-metric"]

    assert [text.endswith(said or "") for text in texts] == ([] if said is None else [True])


# --- ends that do not come --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rtypes", "wishes", "at_least", "expected"),
    [
        *((["t", rtype], [(1, START, 2, STOPPED)], None, [(1, 2)])
          for rtype in ("fedmon::Collector", "Collector", "fedmon::Node", "fedmon::Monitor", "test::Plain")),
        *((["t", rtype], [(1, START, 2, STOPPED)], None, [])
          for rtype in ("fedmon::Job", "fedmon::Aggregator", "local::Process", "unknown::Type", "test::Short")),
        (["t", "fedmon::Job", "Collector"], [(1, START, (2, 3), STOPPED)], 1, []),
        (["t", "fedmon::Job", "Collector"], [(1, START, (2, 3), STOPPED)], 2, [(1, 3)]),
        (["t", "fedmon::Job", "Collector"], [(1, START, (2, 3), STARTED)], 2, []),
        (["t", "Collector"], [(1, START, 2, STOPPED), (2, STOP, 2, STARTED)], None, []),
    ],
)  # fmt: skip
def test_a_wait_for_the_stop_of_what_does_not_end_is_a_warning(
    rtypes: list[str], wishes: list[Wish], at_least: int | None, expected: list[Any]
) -> None:
    assert told(experiment(rtypes, *wishes, at_least=at_least)) == [
        ("warning", "not-stopped", guids) for guids in expected
    ]


def test_an_attribute_that_waits_for_such_an_end_is_a_warning_and_a_circle_is_told_once() -> None:
    state = experiment(["t", "Collector"])
    waits = events.SetWanted(t=0, guids=(1,), name="critical", value=False, condition=wish(1, 2, STOPPED, None))

    (warning,) = plan(after(state, waits)).warnings
    assert (warning.kind, warning.guids) == ("not-stopped", (1, 2))
    assert warning.text.startswith("set critical of resource 1 (t) waits for resource 2 (Collector)")
    circle = experiment(["t", "Collector"], (1, START, 2, STOPPED), (2, STOP, 1, STARTED))
    assert [kind for _, kind, _ in told(circle)] == ["condition-cycle"]


# --- the text ---------------------------------------------------------------------------------------------------------


def test_the_text_tells_the_order_and_its_last_line_the_verdict() -> None:
    state = experiment(3, (2, START, 1, STOPPED), (1, STOP, 3, STARTED), name="first")

    assert str(plan(state)).splitlines() == [
        "3 resources, 2 conditions",
        "   1. deploy 1 first, 2 t, 3 t",
        "   2. start 1 first, 3 t",
        "   3. stop 1 first when 3 STARTED",
        "   4. start 2 t when 1 first STOPPED",
        "no problems found",
    ]
    refused = str(ImpossiblePlanError([Problem(kind="missing-part", text=f"part {number}") for number in range(5)]))
    assert refused.partition("part 2; ")[2] == "2 more: see ec.plan() or `fedmon experiment check FILE`"
    wrong = str(plan(experiment(2, *CIRCLE)))
    assert "never completed: 1, 2" in wrong
    assert "error: condition-cycle: start of resource 1" in wrong
    assert wrong.endswith("1 error: the experiment cannot work")

    lasting = after(experiment(2, (1, START, 2, STOPPED)), events.Registered(t=0, guid=2, rtype="fedmon::Node"))
    named = after(lasting, events.AttributeSet(t=0, guid=2, name="nodeId", value="n"))
    assert str(plan(named)).endswith("no errors, 1 warning")
    assert str(plan(experiment(100))).splitlines()[1].endswith("12 t and 88 more")


# --- any experiment ---------------------------------------------------------------------------------------------------

WISHES = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from(ResourceAction),
        st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True).map(tuple),
        st.sampled_from([READY, STARTED, STOPPED]),
    ),
    max_size=6,
)


@given(WISHES, st.none() | st.just(1), st.booleans())
@settings(max_examples=100)
def test_the_refusal_and_the_plan_agree(wishes: list[Wish], at_least: int | None, together: bool) -> None:
    state = experiment(4, *wishes, at_least=at_least)

    is_refused = False
    try:
        refuse_circles(state, deploying=(1, 2, 3, 4), wait_all_ready=together)
    except ImpossiblePlanError:
        is_refused = True
    assert is_refused is not plan(state, wait_all_ready=together).is_possible


@given(WISHES, st.none() | st.just(1), st.booleans())
@settings(max_examples=100)
def test_the_machine_finishes_exactly_when_the_plan_is_possible(
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
            for happened in (
                events.Became(t=0, guids=(action.guid,), state=reached[action.verb]),
                events.VerbReturned(t=0, guid=action.guid, verb=action.verb),
            ):
                state, more = step(state, happened)
                waiting += more
            if action.verb == "start" and action.guid not in stopping:
                state, more = step(state, events.Became(t=0, guids=(action.guid,), state=STOPPED))
                waiting += more

    assert planned.is_possible == all(one.state is STOPPED for one in state.resources.values())
