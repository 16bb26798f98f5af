"""Why a resource is not started: whom it waits for, since when, how long left."""

from __future__ import annotations

import pytest

from fedmon.experiment import events
from fedmon.experiment.conditions import AnyCondition, Metric, MetricCondition, StateCondition
from fedmon.experiment.errors import UnknownGuidError
from fedmon.experiment.explaining import explain
from fedmon.experiment.machine import step
from fedmon.experiment.situation import State
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState

READY, STARTED, STOPPED, FAILED = (
    ResourceState.READY,
    ResourceState.STARTED,
    ResourceState.STOPPED,
    ResourceState.FAILED,
)


def after(state: State, *happened: events.AnyEvent) -> State:
    for event in happened:
        state, _ = step(state, event)
    return state


def deployed(
    *conditions: tuple[int, AnyCondition], wait_all_ready: bool = False, ready: tuple[int, ...] = (1, 2, 3)
) -> State:
    """Return three resources that were deployed at 10 and are ready at 11."""
    state = after(State(), *(events.Registered(t=0, guid=guid, rtype="app") for guid in (1, 2, 3)))
    for guid, condition in conditions:
        added = events.ConditionAdded(t=0, guids=(guid,), action=ResourceAction.START, condition=condition)
        state = after(state, added)
    state = after(state, events.DeployAsked(t=10, guids=(1, 2, 3), group=1, wait_all_ready=wait_all_ready))
    state = after(state, events.Became(t=11, guids=ready, state=READY))
    return after(state, *(events.VerbReturned(t=11, guid=guid, verb="deploy") for guid in ready))


def test_it_says_whom_a_resource_waits_for_and_since_when() -> None:
    state = deployed((1, StateCondition(number=1, group=(2, 3), state=STARTED, timeout_s=60)))
    state = after(state, events.Became(t=12, guids=(3,), state=STARTED))

    found = explain(state, 1, 30)
    (waiting,) = found.waiting
    assert (waiting.action, waiting.guids, waiting.since, waiting.left_s) == ("start", (2,), 10, None)
    assert waiting.gives_up_in_s == 40
    assert found.waits_for == (2,)
    assert str(found) == (
        "resource 1 (app) is READY: its start waits\n"
        "  start waits, for 20.0 s, for resource 2 (app, READY) to be STARTED; gives up in 40.0 s"
    )


def test_it_says_how_long_a_delay_still_runs() -> None:
    state = deployed((1, StateCondition(number=1, group=(2,), state=STARTED, delay_s=5)))
    state = after(state, events.Became(t=12, guids=(2,), state=STARTED))

    (waiting,) = explain(state, 1, 14.5).waiting
    assert (waiting.guids, waiting.left_s) == ((2,), 2.5)
    assert "2.5 s left" in waiting.text


def test_it_follows_who_waits_for_whom_to_the_end() -> None:
    state = deployed(
        (1, StateCondition(number=1, group=(2,), state=STARTED)),
        (2, StateCondition(number=2, group=(3,), state=STOPPED)),
    )

    found = explain(state, 1, 12)
    assert found.chain == (1, 2, 3)
    assert "held up by: 1 <- 2 <- 3" in found.text()
    assert explain(state, 3, 12).reason == "its start is running"


def test_it_ends_where_resources_wait_for_each_other() -> None:
    state = deployed(
        (1, StateCondition(number=1, group=(2,), state=STARTED)),
        (2, StateCondition(number=2, group=(1,), state=STARTED)),
    )

    assert explain(state, 1, 12).chain == (1, 2, 1)


def test_it_names_the_members_that_keep_a_group_from_starting() -> None:
    state = deployed(wait_all_ready=True, ready=(1, 2))

    (waiting,) = explain(state, 1, 13).waiting
    assert (waiting.guids, waiting.since) == ((3,), 11)
    assert "for its group to be READY: resource 3 (app, NEW)" in waiting.text


def test_it_names_quorums_and_metrics() -> None:
    state = deployed(
        (1, StateCondition(number=1, group=(2, 3), at_least=1, state=STOPPED)),
        (2, MetricCondition(number=2, group=(3,), metric=Metric(name="loss", comparison="<", value=0.5, samples=3))),
    )

    assert "for 1 of 2: resource 2 (app, READY), resource 3 (app, READY) to be STOPPED" in explain(state, 1, 12).text()
    assert "resource 3 (app, READY) to tell loss < 0.5 for 3 samples" in explain(state, 2, 12).text()


def test_it_says_what_else_there_is_to_say() -> None:
    new = after(State(), events.Registered(t=0, guid=1, rtype="app"))
    failed = after(new, events.Became(t=1, guids=(1,), state=FAILED, reason="no disk"))
    running = after(new, events.DeployAsked(t=1, guids=(1,), group=1))
    aborted = after(running, events.Leveled(t=2, level=FailureLevel.EC_FAILURE, reason="broken"))

    assert explain(new, 1, 2).reason == "nobody asked for it to be deployed"
    assert explain(failed, 1, 2).reason == "it failed: no disk"
    assert explain(running, 1, 2).reason == "its deploy is running"
    assert explain(aborted, 1, 2).reason.startswith(("its deploy", "the experiment was aborted"))
    with pytest.raises(UnknownGuidError, match="9"):
        explain(new, 9, 2)


def test_it_explains_an_attribute_that_is_still_to_be_set() -> None:
    state = after(
        deployed(),
        events.SetWanted(
            t=12, guids=(1,), name="rate", value=2, condition=StateCondition(number=1, group=(2,), state=STOPPED)
        ),
    )

    assert "setting of rate waits" in explain(state, 1, 13).text()


def test_a_part_of_a_federation_says_which_others_its_deploy_waits_for() -> None:
    state = after(
        State(),
        events.Registered(t=0, guid=1, rtype="fedmon::TrainingPlan"),
        events.Registered(t=0, guid=2, rtype="fedmon::Job"),
        events.Connected(t=0, guid=1, other=2),
        events.DeployAsked(t=1, guids=(1, 2), group=1),
        events.Became(t=2, guids=(1,), state=ResourceState.RESERVED),
    )

    assert explain(state, 1, 3).reason == "owners have not decided on it yet"
    job = explain(state, 2, 3)
    assert (job.reason, job.waits_for, job.chain) == ("its deploy waits for what it is connected to", (1,), (2, 1))
    assert "resource 1 (fedmon::TrainingPlan, RESERVED)" in str(job)
