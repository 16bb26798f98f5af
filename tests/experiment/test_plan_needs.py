"""A plan knows what types wait for by themselves, how they end, what they pass and who tells their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.experiment.conditions import Metric
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.events import Leveled
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.natures import Need, nature_of
from fedmon.experiment.plan_problems import ImpossiblePlanError
from fedmon.experiment.planning import Plan, plan
from fedmon.experiment.resource import ResourceManager, clsinit_copy
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState
from fedmon.experiment.types.local_process import LocalProcess

DEPLOY, START, STOP = ResourceAction
READY, STARTED, STOPPED, FAILED = (
    ResourceState.READY,
    ResourceState.STARTED,
    ResourceState.STOPPED,
    ResourceState.FAILED,
)
ACCURACY = Metric(name="accuracy", comparison=">", value=0.9)


@clsinit_copy
class Plain(ResourceManager):
    """Has no code of its own."""

    _rtype = "needs::Plain"


@clsinit_copy
class Own(ResourceManager):
    """May end whenever it likes."""

    _rtype = "needs::Own"

    def do_deploy(self) -> None:
        super().do_deploy()

    def do_start(self) -> None:
        super().do_start()


@clsinit_copy
class Server(ResourceManager):
    """Needs nobody."""

    _rtype = "needs::Server"


@clsinit_copy
class SubServer(Server):
    """Is a server, too."""

    _rtype = "needs::SubServer"


@clsinit_copy
class Client(ResourceManager):
    """Is deployed when its server is started."""

    _rtype = "needs::Client"
    _needs = (Need(verb="deploy", of="needs::Server", state=STARTED),)


@clsinit_copy
class MyProcess(LocalProcess):
    """A process with a name of its own."""

    _rtype = "needs::Process"


@clsinit_copy
class SelfMade(LocalProcess):
    """Sets its command when it is deployed."""

    _rtype = "needs::SelfMade"

    def do_deploy(self) -> None:
        self.set("command", ["true"])
        super().do_deploy()


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ExperimentController]:
    for rclass in (Plain, Own, Server, SubServer, Client, MyProcess, SelfMade):
        ResourceFactory.register_type(rclass)
    with ExperimentController("needs", tmp_path, journal=False) as made:
        yield made


def paths(found: Plan) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.kind, one.guids) for one in found.errors if one.kind in ("condition-cycle", "group-deadlock")]


def said(found: Plan, kind: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.severity, one.guids) for one in found.problems if one.kind == kind]


def job_on(ec: ExperimentController, *others: int) -> tuple[int, int]:
    training = ec.register_resource("fedmon::TrainingPlan", plan="p.py")
    return training, ec.register_resource("fedmon::Job", connectedTo=[training, *others])


# --- circles through connections --------------------------------------------------------------------------------------


def before_its_aggregator(ec: ExperimentController) -> tuple[int, ...]:
    _, job = job_on(ec)
    together = ec.register_resource("fedmon::Aggregator", connectedTo=job)
    ec.register_condition(job, START, together, STOPPED)
    return job, together, job


def before_its_monitor(ec: ExperimentController) -> tuple[int, ...]:
    _, job = job_on(ec)
    monitor = ec.register_resource("fedmon::Monitor", connectedTo=job)
    ec.register_condition(job, START, monitor, STOPPED)
    return job, monitor, job


def node_after_its_job(ec: ExperimentController) -> tuple[int, ...]:
    node = ec.register_resource("fedmon::Node", nodeId="n")
    _, job = job_on(ec, node)
    ec.register_condition(node, DEPLOY, job, READY)
    return node, job, node


def node_of_a_job_after_its_plan(ec: ExperimentController) -> tuple[int, ...]:
    node = ec.register_resource("fedmon::Node", nodeId="n")
    training, _ = job_on(ec, node)
    ec.register_condition(node, DEPLOY, training, READY)
    return node, training, node


def from_its_own_result(ec: ExperimentController) -> tuple[int, ...]:
    _, job = job_on(ec)
    together = ec.register_resource("fedmon::Aggregator", connectedTo=job)
    ec.set(job, "inputsFrom", together)
    return job, together, job


def server_after_its_client(ec: ExperimentController) -> tuple[int, ...]:
    server = ec.register_resource("needs::SubServer")
    client = ec.register_resource("needs::Client", connectedTo=server)
    ec.register_condition(server, START, client, READY)
    return server, client, server


@pytest.mark.parametrize(
    "made",
    [
        before_its_aggregator,
        before_its_monitor,
        node_after_its_job,
        node_of_a_job_after_its_plan,
        from_its_own_result,
        server_after_its_client,
    ],
)
def test_a_circle_through_a_connection_is_found_and_refused_with_its_path(
    ec: ExperimentController, made: Callable[[ExperimentController], tuple[int, ...]]
) -> None:
    path = made(ec)

    assert paths(plan(ec.snapshot, wait_all_ready=False)) == [("condition-cycle", path)]
    with pytest.raises(ImpossiblePlanError, match=f"resource {path[1]}.*resource {path[0]}"):
        ec.deploy(wait_all_ready=False)
    assert {ec.state(guid) for guid in ec.resources} == {ResourceState.NEW}


def test_a_circle_that_only_the_second_deployment_closes_is_refused_then(ec: ExperimentController) -> None:
    server = ec.register_resource("needs::Server")
    client = ec.register_resource("needs::Client", connectedTo=server)
    ec.register_condition(server, START, client, READY)
    ec.register_condition(client, DEPLOY, server, READY)
    ec.deploy(client)

    with pytest.raises(ImpossiblePlanError, match="condition-cycle"):
        ec.deploy(server)


def test_a_member_whose_type_needs_one_that_started_is_a_deadlock_of_its_group(ec: ExperimentController) -> None:
    server = ec.register_resource("needs::Server")
    client = ec.register_resource("needs::Client", connectedTo=server)

    with pytest.raises(ImpossiblePlanError, match="group-deadlock"):
        ec.deploy()
    group = ec.deploy(server)
    assert ec.wait_started(server, timeout=10)
    ec.deploy(client, group=group)
    assert ec.wait_started(client, timeout=10)


def test_who_joins_a_group_that_waits_for_him_is_refused(ec: ExperimentController) -> None:
    one, held, late = (ec.register_resource("needs::Plain") for _ in range(3))
    ec.register_condition(late, DEPLOY, one, STARTED)
    gate = ec.register_resource("needs::Plain")
    ec.register_condition(held, DEPLOY, gate, STARTED)
    group = ec.deploy([one, held])

    with pytest.raises(ImpossiblePlanError, match="group-deadlock"):
        ec.deploy(late, group=group)
    ec.deploy(late)


def test_what_ends_by_a_condition_too_is_no_circle(ec: ExperimentController) -> None:
    _, job = job_on(ec)
    together = ec.register_resource("fedmon::Aggregator", connectedTo=job)
    other = ec.register_resource("needs::Plain")
    ec.register_condition(job, START, together, STOPPED)
    ec.register_condition(together, STOP, other, STARTED)

    assert paths(plan(ec.snapshot)) == []


def test_who_takes_a_result_that_nothing_has_him_wait_for_is_told(ec: ExperimentController) -> None:
    training, first = job_on(ec)
    together = ec.register_resource("fedmon::Aggregator", connectedTo=first)
    second = ec.register_resource("fedmon::Job", connectedTo=training, inputsFrom=together)

    assert said(plan(ec.snapshot), "missing-part") == [("warning", (second, together))]
    ec.register_condition(second, START, together, STOPPED)
    assert plan(ec.snapshot).problems == ()


def test_who_needs_one_that_is_lost_or_that_nobody_deployed_is_told(ec: ExperimentController) -> None:
    server, late = (ec.register_resource("needs::Server") for _ in range(2))
    client = ec.register_resource("needs::Client", connectedTo=[server, late])
    ec.get_resource(server).set_released()

    found = plan(ec.snapshot, deploying=[client])

    assert said(found, "failed-resource") == [("warning", (client, server))]
    assert said(found, "not-deployed") == [("warning", (client, late))]


# --- types of one's own -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rtype", ["local::Process", "needs::Process"])
def test_whoever_ends_first_may_stop_the_other_also_where_the_type_is_derived(
    ec: ExperimentController, rtype: str
) -> None:
    quick = ec.register_resource(rtype, command=["true"])
    long = ec.register_resource(rtype, command=["sleep", "60"])
    ec.register_condition(quick, STOP, long, STOPPED)
    ec.register_condition(long, STOP, quick, STOPPED)

    assert ec.plan().warnings == ()
    ec.deploy()
    assert ec.wait_finished([quick, long], timeout=10)


def test_a_circle_of_those_that_may_end_by_themselves_is_a_warning(ec: ExperimentController) -> None:
    one, two = (ec.register_resource("needs::Own") for _ in range(2))
    ec.register_condition(one, STOP, two, STOPPED)
    ec.register_condition(two, STOP, one, STOPPED)

    found = ec.plan()

    assert said(found, "condition-cycle") == [("warning", (one, two, one))]
    assert "only an end that comes by itself" in found.warnings[0].text
    ec.deploy()


def test_a_circle_of_those_without_code_is_refused(ec: ExperimentController) -> None:
    one, two = (ec.register_resource("needs::Plain") for _ in range(2))
    ec.register_condition(one, STOP, two, STOPPED)
    ec.register_condition(two, STOP, one, STOPPED)

    with pytest.raises(ImpossiblePlanError, match="condition-cycle"):
        ec.deploy()


@pytest.mark.parametrize(("rtype", "expected"), [("needs::Plain", [("warning", (2, 1))]), ("needs::Own", [])])
def test_who_waits_for_the_end_of_what_has_no_code_is_told(
    ec: ExperimentController, rtype: str, expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    lasting = ec.register_resource(rtype)
    after = ec.register_resource("needs::Plain")
    ec.register_condition(after, START, lasting, STOPPED)

    assert said(ec.plan(), "not-stopped") == expected


@pytest.mark.parametrize(
    ("rtype", "attributes", "skipped", "passed"),
    [
        ("needs::Plain", {}, ResourceState.DISCOVERED, None),
        ("fedmon::Node", {"nodeId": "n"}, ResourceState.RESERVED, ResourceState.DISCOVERED),
        ("fedmon::TrainingPlan", {"plan": "p.py"}, ResourceState.PROVISIONED, ResourceState.RESERVED),
        ("local::Process", {"command": ["true"]}, ResourceState.PROVISIONED, None),
        ("needs::Own", {}, None, ResourceState.DISCOVERED),
    ],
)
def test_a_wait_for_a_state_that_the_type_skips_is_told(
    ec: ExperimentController,
    rtype: str,
    attributes: dict[str, Any],
    skipped: ResourceState | None,
    passed: ResourceState | None,
) -> None:
    one = ec.register_resource(rtype, **attributes)
    after = ec.register_resource("needs::Plain")
    for state in (skipped, passed):
        if state is not None:
            ec.register_condition(after, START, one, state)

    found = plan(ec.snapshot)

    assert said(found, "skipped-state") == ([("warning", (after, one))] if skipped else [])
    assert not skipped or f"{skipped.name}, which its type skips" in found.warnings[0].text


def test_a_type_that_brings_its_own_parts_is_not_asked_for_them(ec: ExperimentController) -> None:
    guid = ec.register_resource("needs::SelfMade")

    assert nature_of(SelfMade).attributes == ()
    ec.deploy()
    assert ec.wait_finished(guid, timeout=10)


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_a_number_of_a_node_that_no_monitor_measures_is_told(ec: ExperimentController) -> None:
    node, seen = (ec.register_resource("fedmon::Node", nodeId=node_id) for node_id in ("a", "b"))
    ec.register_resource("fedmon::Monitor", connectedTo=seen)
    after = ec.register_resource("needs::Plain")
    ec.register_condition(after, START, [node, seen], metric=ACCURACY)

    found = plan(ec.snapshot)

    assert said(found, "not-measured") == [("warning", (after, node))]
    assert "connect it to a fedmon::Monitor" in found.warnings[0].text


def test_a_number_of_what_ends_by_itself_is_a_hint_alone(ec: ExperimentController) -> None:
    _, job = job_on(ec)
    process = ec.register_resource("local::Process", command=["true"])
    after = ec.register_resource("needs::Plain")
    ec.register_condition(after, START, [job, process], metric=ACCURACY)

    found = plan(ec.snapshot)

    assert (found.is_possible, found.warnings) == (True, ())
    assert said(found, "may-not-come") == [("hint", (after, job))]
    assert said(found, "not-measured") == [("hint", (after, process))]


# --- what came meanwhile ----------------------------------------------------------------------------------------------


def test_who_was_taken_out_is_waited_for_no_longer_in_the_plan_as_in_the_run(ec: ExperimentController) -> None:
    gone, after = ec.register_resource("needs::Plain"), ec.register_resource("needs::Plain")
    ec.register_condition(after, START, gone, STARTED)
    ec.remove_resource(gone)

    found = ec.plan()
    assert found.problems == ()
    assert f"   2. start {after} needs::Plain\n" in found.text()
    ec.deploy()
    assert ec.wait_started(after, timeout=10)


def test_a_quorum_of_which_too_many_were_taken_out_is_refused(ec: ExperimentController) -> None:
    gone, left = (ec.register_resource("needs::Own") for _ in range(2))
    after = ec.register_resource("needs::Plain")
    ec.register_condition(after, START, [gone, left], STARTED, at_least=2)
    ec.remove_resource(gone)

    assert [one.kind for one in ec.plan().errors] == ["impossible-quorum"]
    with pytest.raises(ImpossiblePlanError, match="impossible-quorum"):
        ec.deploy()


def test_a_condition_of_what_was_done_is_looked_at_no_longer(ec: ExperimentController) -> None:
    first = ec.register_resource("needs::Own", critical=True)
    after = ec.register_resource("needs::Plain")
    ec.register_condition(after, START, first, STARTED)
    ec.deploy()
    assert ec.wait_started(after, timeout=10)
    ec.get_resource(first).set_failed("broken")

    assert said(ec.plan(), "failed-resource") == []


def test_a_plan_after_an_abort_says_so(ec: ExperimentController) -> None:
    ec.register_resource("needs::Plain")
    ec.engine.post(Leveled(t=0, level=FailureLevel.RM_FAILURE, reason="resource 7 failed"))

    found = ec.plan()

    assert [(one.kind, one.text) for one in found.errors] == [
        ("aborted", "the experiment was aborted, and nothing more comes of what waits: resource 7 failed")
    ]
    assert found.waves == ()


# --- the quick look at deployments ------------------------------------------------------------------------------------


def test_a_circle_through_one_of_several_is_refused_where_the_others_come_freely(ec: ExperimentController) -> None:
    node = ec.register_resource("fedmon::Node", nodeId="n")
    one, two = (ec.register_resource("needs::Plain") for _ in range(2))
    ec.register_condition(one, START, [node, two], metric=ACCURACY)
    ec.register_condition(two, START, one, STARTED)

    with pytest.raises(ImpossiblePlanError, match="condition-cycle"):
        ec.deploy(wait_all_ready=False)


def test_who_waits_for_one_that_runs_or_for_one_that_never_comes_is_not_refused(ec: ExperimentController) -> None:
    running, waiting, never = (ec.register_resource("needs::Plain") for _ in range(3))
    ec.deploy(running)
    assert ec.wait_started(running, timeout=10)
    ec.register_condition(waiting, DEPLOY, [running, never], STOPPED, at_least=1)

    ec.deploy([waiting, never])
    ec.stop(running)

    assert ec.wait_started([waiting, never], timeout=10)
