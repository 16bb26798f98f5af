"""A plan says who waits for an end that does not come by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fedmon.experiment import events
from fedmon.experiment.conditions import StateCondition
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.machine import step
from fedmon.experiment.planning import Plan, plan
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceAction, ResourceState
from tests.support.waiting import wait_until

START, STOP = ResourceAction.START, ResourceAction.STOP
STARTED, STOPPED = ResourceState.STARTED, ResourceState.STOPPED


def experiment(
    *rtypes: str, conditions: Sequence[StateCondition] = (), action: ResourceAction = START, guid: int = 1
) -> State:
    state = State()
    for number, rtype in enumerate(rtypes, 1):
        state, _ = step(state, events.Registered(t=0, guid=number, rtype=rtype))
    for condition in conditions:
        state, _ = step(state, events.ConditionAdded(t=0, guids=(guid,), action=action, condition=condition))
    return state


def waiting(*group: int, at_least: int | None = None, state: ResourceState = STOPPED) -> StateCondition:
    return StateCondition(number=1, group=group, at_least=at_least, state=state)


def warned(found: Plan) -> list[tuple[int, ...]]:
    assert found.is_possible
    return [one.guids for one in found.warnings if one.kind == "not-stopped"]


def test_a_collector_that_is_started_stays_so_and_the_plan_says_who_waits_in_vain(tmp_path: Path) -> None:
    with ExperimentController("endings", tmp_path) as ec:
        process = ec.register_resource("local::Process", command=["true"])
        collector = ec.register_resource("fedmon::Collector", traceName="stdout", connectedTo=process)
        after = ec.register_resource("local::Process", command=["true"])
        ec.register_condition(after, START, collector, STOPPED)

        found = ec.plan()
        ec.deploy()
        assert ec.wait_finished(process, timeout=10)
        assert ec.wait_started(collector, timeout=10)

        assert warned(found) == [(after, collector)]
        assert f"start of resource {after} (local::Process) waits for resource {collector}" in found.warnings[0].text
        assert ec.get_resource(collector).state is STARTED
        assert ec.get_resource(after).state is ResourceState.READY
        ec.stop(collector)
        wait_until(lambda: ec.get_resource(after).state is STOPPED)


@pytest.mark.parametrize("rtype", ["fedmon::Collector", "Collector", "fedmon::Node", "fedmon::Monitor"])
def test_who_waits_for_the_stop_of_what_does_not_end_is_told(rtype: str) -> None:
    state = experiment("t", rtype, conditions=[waiting(2)])

    assert warned(plan(state)) == [(1, 2)]


@pytest.mark.parametrize("rtype", ["fedmon::Job", "fedmon::Aggregator", "local::Process", "somebody::Else"])
def test_nothing_is_said_of_what_ends_or_may_end(rtype: str) -> None:
    assert plan(experiment("t", rtype, conditions=[waiting(2)])).problems == ()


def test_a_monitor_of_jobs_ends_with_them() -> None:
    state = experiment("t", "fedmon::Monitor", "fedmon::Job", conditions=[waiting(2)])
    for one, other in ((2, 3), (3, 2)):
        state, _ = step(state, events.Connected(t=0, guid=one, other=other))

    assert plan(state).problems == ()


def test_a_quorum_that_others_can_fill_and_other_states_are_let_pass() -> None:
    kinds = ("t", "fedmon::Job", "Collector")

    assert warned(plan(experiment(*kinds, conditions=[waiting(2, 3, at_least=1)]))) == []
    assert warned(plan(experiment(*kinds, conditions=[waiting(2, 3, at_least=2)]))) == [(1, 3)]
    assert warned(plan(experiment(*kinds, conditions=[waiting(2, 3, state=STARTED)]))) == []


def test_what_a_condition_stops_and_what_was_stopped_is_let_pass() -> None:
    state = experiment("t", "Collector", conditions=[waiting(2)])
    later = StateCondition(number=2, group=(2,), state=STARTED, delay_s=1)
    held, _ = step(state, events.ConditionAdded(t=0, guids=(2,), action=STOP, condition=later))
    stopped, _ = step(state, events.Became(t=1, guids=(2,), state=STOPPED))

    assert warned(plan(held)) == []
    assert warned(plan(stopped)) == []


def test_a_collector_that_is_stopped_by_who_waits_for_its_stop_is_a_circle() -> None:
    state = experiment("t", "fedmon::Collector", conditions=[waiting(2)])
    state, _ = step(state, events.ConditionAdded(t=0, guids=(2,), action=STOP, condition=waiting(1, state=STARTED)))

    assert [one.kind for one in plan(state).problems] == ["condition-cycle"]


def test_an_attribute_that_waits_for_such_an_end_is_told() -> None:
    state = experiment("t", "Collector")
    state, _ = step(state, events.SetWanted(t=0, guids=(1,), name="critical", value=False, condition=waiting(2)))

    found = plan(state)

    assert warned(found) == [(1, 2)]
    assert found.warnings[0].text.startswith("setting critical of resource 1 (t) waits for resource 2 (Collector)")
