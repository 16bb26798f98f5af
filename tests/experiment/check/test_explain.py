"""An explanation says why a resource is not started: what it waits for, since when, and how long still."""

from __future__ import annotations

from fedmon.experiment import (
    ExperimentController,
    Retry,
    events,
)
from fedmon.experiment.check.explain import explain
from fedmon.experiment.check.status import explanations, standings
from fedmon.experiment.conditions import AnyCondition, Metric, MetricCondition, StateCondition
from fedmon.experiment.errors import ExperimentError
from fedmon.experiment.situation import State
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState
from tests.experiment.check.planned import after, experiment
from tests.experiment.own_types import FAILED, READY, RELEASED, STARTED, STOPPED, added, own, raising, started
from tests.support.waiting import wait_until


def deployed(
    *conditions: tuple[int, AnyCondition], wait_all_ready: bool = False, ready: tuple[int, ...] = (1, 2, 3)
) -> State:
    """Return three resources that were deployed at 10 and are READY at 11."""
    state = experiment(["app"] * 3)
    for guid, condition in conditions:
        added = events.ConditionAdded(t=0, guids=(guid,), action=ResourceAction.START, condition=condition)
        state = after(state, added)
    state = after(state, events.DeployAsked(t=10, guids=(1, 2, 3), group=1, wait_all_ready=wait_all_ready))
    state = after(state, events.Became(t=11, guids=ready, state=READY))
    return after(state, *(events.VerbReturned(t=11, guid=guid, verb="deploy") for guid in ready))


def test_it_names_the_resources_waited_for_and_since_when() -> None:
    state = deployed((1, StateCondition(number=1, group=(2, 3), state=STARTED, timeout_s=60)))
    # Of two states at the same moment, the later one has a time that is a little later.
    state = after(state, *(events.Became(t=30, guids=(3,), state=each) for each in (READY, STARTED)))

    found = explain(state, 1, 30)

    (waiting,) = found.waiting
    assert (waiting.action, waiting.guids, waiting.since, waiting.left_s) == ("start", (2,), 10, None)
    assert (waiting.gives_up_in_s, found.waits_for) == (40, (2,))
    assert str(found) == (
        "resource 1 (app) is READY: waiting to start\n"
        "  start has waited 20.0 s for resource 2 (app, READY) to be STARTED; gives up in 40.0 s"
    )


def test_a_timeout_that_came_later_counts_from_then() -> None:
    condition = StateCondition(number=1, group=(2,), state=STARTED, timeout_s=60)
    other = StateCondition(number=2, group=(3,), state=STARTED)
    added = events.ConditionAdded(t=20, guids=(1,), action=ResourceAction.START, condition=condition)
    state = after(deployed((1, other)), added)

    found = explain(state, 1, 30)

    assert [(each.since, each.gives_up_in_s) for each in found.waiting] == [(10, None), (20, 50)]
    met = after(state, events.Became(t=30, guids=(2,), state=STARTED))
    assert [each.guids for each in explain(met, 1, 30).waiting] == [(3,)]
    both = deployed((1, StateCondition(number=1, group=(2, 3), state=STARTED)))
    gone = after(both, events.Removed(t=20, guids=(2,)))
    optional = after(both, events.AttributeSet(t=0, guid=2, name="critical", value=False))
    failed = after(optional, events.Became(t=20, guids=(2,), state=FAILED))
    assert [each.guids for state in (gone, failed) for each in explain(state, 1, 30).waiting] == [(3,), (3,)]
    critical = after(both, events.Became(t=20, guids=(2,), state=FAILED))
    assert [each.guids for each in explain(critical, 1, 30).waiting] == [(2, 3)]


def test_it_follows_the_waits_to_their_end() -> None:
    state = deployed(
        (1, StateCondition(number=1, group=(2,), state=STARTED)),
        (2, StateCondition(number=2, group=(3,), state=STOPPED)),
    )
    circle = deployed(
        (1, StateCondition(number=1, group=(2,), state=STARTED)),
        (2, StateCondition(number=2, group=(1,), state=STARTED)),
    )

    assert explain(state, 1, 12).chain == (1, 2, 3)
    assert "held up by: 1 <- 2 <- 3" in str(explain(state, 1, 12))
    assert explain(state, 3, 12).reason == "its start is running"
    assert explain(circle, 1, 12).chain == (1, 2, 1)


def test_it_says_how_long_a_delay_still_runs() -> None:
    state = deployed((1, StateCondition(number=1, group=(2,), state=STARTED, delay_s=5)))

    (waiting,) = explain(after(state, events.Became(t=12, guids=(2,), state=STARTED)), 1, 14.5).waiting

    assert (waiting.guids, waiting.left_s) == ((2,), 2.5)
    assert "2.5 s left" in waiting.text


def test_it_names_the_members_that_keep_a_group_from_starting() -> None:
    (waiting,) = explain(deployed(wait_all_ready=True, ready=(1, 2)), 1, 13).waiting

    assert (waiting.guids, waiting.since) == ((3,), 11)
    assert "for its group to be READY: resource 3 (app, NEW)" in waiting.text


def test_it_names_quorums_metrics_and_attributes() -> None:
    state = deployed(
        (1, StateCondition(number=1, group=(2, 3), at_least=1, state=STOPPED)),
        (2, MetricCondition(number=2, group=(3,), metric=Metric(name="loss", comparison="<", value=0.5, samples=3))),
    )
    freed = deployed((1, StateCondition(number=1, group=(2, 3), at_least=1, state=RELEASED)))
    freed = after(freed, events.Became(t=12, guids=(2,), state=FAILED))
    rate = StateCondition(number=3, group=(2,), state=STOPPED)
    state = after(state, events.SetWanted(t=12, guids=(3,), name="rate", value=2, condition=rate))

    assert "for 1 of 2: resource 2 (app, READY), resource 3 (app, READY) to be STOPPED" in str(explain(state, 1, 12))
    assert "for 1 of 2: resource 2 (app, FAILED), resource 3 (app, READY) to be RELEASED" in str(explain(freed, 1, 12))
    assert "resource 3 (app, READY) to report loss < 0.5 for 3 samples" in str(explain(state, 2, 12))
    assert "set rate has waited" in str(explain(state, 3, 13))


def test_it_gives_the_reason_of_each_state() -> None:
    new = experiment(1)
    deploying = after(new, events.DeployAsked(t=1, guids=(1,), group=1))
    started = after(new, events.Became(t=1, guids=(1,), state=STARTED))
    calling = after(new, events.Became(t=1, guids=(1,), state=READY), events.VerbBegan(t=1, guid=1, verb="start"))
    ended = after(calling, *(events.Became(t=1, guids=(1,), state=each) for each in (STARTED, STOPPED)))
    failed = after(new, events.Became(t=1, guids=(1,), state=FAILED, reason="no disk"))
    aborted = after(started, events.Leveled(t=2, level=FailureLevel.EC_FAILURE, reason="broken"))
    released = [after(each, events.Became(t=2, guids=(1,), state=RELEASED)) for each in (started, failed)]

    assert explain(new, 1, 2).reason == "deploy was not called for it"
    assert explain(deploying, 1, 2).reason == "its deploy is running"
    assert explain(started, 1, 2).reason == "it runs, and no condition stops it"
    assert explain(calling, 1, 2).reason == "its start is running"
    assert explain(ended, 1, 2).reason == "it ended"  # though its hook has not returned yet
    assert explain(failed, 1, 2).reason == "it failed: no disk"
    assert explain(aborted, 1, 2).reason == "the experiment was aborted: broken"
    reasons = [explain(each, 1, 2).reason for each in released]
    assert reasons == ["it was released", "it was released after it failed: no disk"]


def test_a_part_of_a_federation_names_the_others_that_its_deploy_waits_for() -> None:
    state = after(
        experiment(["fedmon::TrainingPlan", "fedmon::Job"], name="means"),
        events.Connected(t=0, guid=1, other=2),
        events.DeployAsked(t=1, guids=(1, 2), group=1),
        events.Became(t=2, guids=(1,), state=ResourceState.RESERVED),
        events.WaitsFor(t=2, guid=1, what="the owner of north to approve it"),
    )

    assert explain(state, 1, 3).reason == "its deploy is running; it waits for the owner of north to approve it"
    waiting = after(state, events.VerbReturned(t=2, guid=1, verb="deploy"), events.Reopened(t=3))
    assert explain(waiting, 1, 3).reason == "its deploy is running"  # which may wait for something else by now
    ready = after(state, events.VerbReturned(t=3, guid=1, verb="deploy"), events.Became(t=3, guids=(1,), state=READY))
    assert explain(ready, 1, 3).reason == "waiting to start"
    assert explain(after(ready, events.VerbBegan(t=4, guid=1, verb="start")), 1, 5).reason == "its start is running"
    job = explain(state, 2, 3)
    assert job.reason == "its deploy waits for connected resources"
    assert (job.waits_for, job.chain) == ((1,), (2, 1))
    assert "deploy has waited 2.0 s for resource 1 (means, RESERVED)" in str(job)
    assert str(explain(state, 1, 3)).startswith("resource 1 (means) is RESERVED")


# --- of a controller --------------------------------------------------------------------------------------------------


Broken = own("explained::Broken", do_start=raising(ExperimentError, "no power"))
Pending = own("explained::Pending", do_deploy=lambda self: self.set_reserved())


def test_a_running_aggregator_names_the_job_that_it_waits_for(ec: ExperimentController) -> None:
    training = ec.register_resource("fedmon::TrainingPlan", plan="p.py")
    job = ec.register_resource("fedmon::Job", connectedTo=training)
    together = ec.register_resource("fedmon::Aggregator", connectedTo=job)
    ec.deploy(together)
    assert ec.wait_started(together, timeout=60)
    wait_until(lambda: ec.explain(together).reason == "it runs until the connected resources end", what="its hook")

    found = ec.explain(together)

    assert (found.waits_for, found.chain) == ((job,), (together, job))


def test_a_running_process_ends_by_itself(ec: ExperimentController) -> None:
    guid = ec.register_resource("local::Process", command=["sleep", "60"])
    started(ec, guid)

    wait_until(lambda: ec.explain(guid).reason == "it runs, and ends by itself", what="the return of its hook")


def test_a_retry_says_when_and_after_an_abort_that_it_will_not_come(ec: ExperimentController) -> None:
    guid = added(ec, Broken, retry={"start": Retry(times=3, delay_s=60)}).guid
    other = ec.register_resource("explained::Broken")
    ec.deploy(guid)
    wait_until(lambda: "is retried" in ec.explain(guid).reason)

    found = ec.explain(guid)
    (waiting,) = found.waiting
    assert found.reason == "its start is retried after 1 failed attempt: no power"
    assert (waiting.action, waiting.left_s is not None and 50 < waiting.left_s <= 60) == ("start", True)
    assert "start is retried in" in waiting.text

    ec.deploy(other)
    wait_until(lambda: ec.abort)
    aborted = ec.explain(guid)

    assert aborted.waiting == ()
    assert "is not retried, because the experiment was aborted, after 1 failed attempt: no power" in aborted.reason


def test_a_verb_with_a_timeout_says_when_it_gives_up(ec: ExperimentController) -> None:
    guid = added(ec, Pending, timeouts={"deploy": 300}).guid
    ec.deploy()
    wait_until(lambda: ec.state(guid) is ResourceState.RESERVED)

    (waiting,) = ec.explain(guid).waiting
    state = ec.snapshot
    (shown,) = standings(state, explanations(state, waiting.since + 5))

    assert (waiting.action, waiting.gives_up_in_s is not None and 290 < waiting.gives_up_in_s <= 300) == (
        "deploy",
        True,
    )
    assert shown.waiting.startswith("its deploy is running; ")
    assert "; deploy has run 5.0 s; gives up in " in shown.waiting
