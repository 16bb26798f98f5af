"""A plan knows what types wait for, how they end, and what they lack; a deployment that must fail is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.experiment import ExperimentController, ResourceFactory, ResourceManager
from fedmon.experiment.check.graph import ImpossiblePlanError, refuse_circles
from fedmon.experiment.check.plan import plan
from fedmon.experiment.conditions import Metric
from fedmon.experiment.errors import ExperimentError
from fedmon.experiment.failure import OptionalFailures
from fedmon.experiment.natures import Need
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types.local_process import LocalProcess
from tests.experiment.check.planned import found
from tests.experiment.own_types import DEPLOY, READY, START, STARTED, STOP, STOPPED, added, own, plain, raising, started
from tests.support.ports import free_port

Broken = own("planned::Broken", do_start=raising(ExperimentError, "no power"))
Server = own("planned::Server")
Client = own("planned::Client", _needs=(Need(verb="deploy", of="planned::Server", state=STARTED),))


class SubServer(Server):  # type: ignore[misc,valid-type] # made above
    """Is a server, too."""

    _rtype = "planned::SubServer"


class MyProcess(LocalProcess):
    """A process under another name."""

    _rtype = "planned::Process"


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ExperimentController]:
    for rclass in (Broken, Server, SubServer, Client, MyProcess):
        ResourceFactory.register_type(rclass)
    with ExperimentController("planned", tmp_path, fm=OptionalFailures(), journal=False) as made:
        yield made


# --- circles through connections --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rtypes", "connections", "wished"),
    [
        (["fedmon::Job", "fedmon::Aggregator"], [(1, 2)], (1, START, 2, STOPPED)),
        (["fedmon::Job", "fedmon::Monitor"], [(1, 2)], (1, START, 2, STOPPED)),
        (["fedmon::Node", "fedmon::TrainingPlan", "fedmon::Job"], [(1, 3), (2, 3)], (1, DEPLOY, 2, READY)),
        (["planned::SubServer", "planned::Client"], [(1, 2)], (1, START, 2, READY)),
    ],
)
def test_a_circle_through_a_connection_is_refused_with_its_path(
    ec: ExperimentController, rtypes: list[str], connections: list[tuple[int, int]], wished: Any
) -> None:
    for rtype in rtypes:
        ec.register_resource(rtype)
    for one, other in connections:
        ec.register_connection(one, other)
    ec.register_condition(*wished)

    circles = [one for one in plan(ec.snapshot, wait_all_ready=False).problems if one.kind == "condition-cycle"]
    assert [(one.severity, one.guids) for one in circles] == [("error", (1, 2, 1))]
    with pytest.raises(ImpossiblePlanError, match=r"resource 2.*resource 1"):
        refuse_circles(ec.snapshot, deploying=ec.resources, wait_all_ready=False)


def test_a_circle_that_only_the_second_deployment_closes_is_refused_then(ec: ExperimentController) -> None:
    server = ec.register_resource("planned::Server")
    client = ec.register_resource("planned::Client", connectedTo=server)
    ec.register_condition(server, START, client, READY)
    ec.register_condition(client, DEPLOY, server, READY)
    ec.deploy(client)

    with pytest.raises(ImpossiblePlanError, match="condition-cycle"):
        ec.deploy(server)


def test_a_member_whose_type_needs_a_started_one_is_a_deadlock_of_its_group(ec: ExperimentController) -> None:
    server = ec.register_resource("planned::Server")
    client = ec.register_resource("planned::Client", connectedTo=server)

    with pytest.raises(ImpossiblePlanError, match="group-deadlock"):
        ec.deploy()
    group = ec.deploy(server)
    assert ec.wait_started(server, timeout=60)
    ec.deploy(client, group=group)
    assert ec.wait_started(client, timeout=60)


@pytest.mark.parametrize("who_waits", ["the new one", "an old one"])
def test_a_resource_that_joins_a_group_in_which_it_would_deadlock_is_refused(
    ec: ExperimentController, who_waits: str
) -> None:
    one, held, late, gate = plain(ec, 4)
    waiting, other = (late, one) if who_waits == "the new one" else (held, late)
    ec.register_condition(waiting, DEPLOY, other, STARTED)
    ec.register_condition(held, DEPLOY, gate, STARTED)
    group = ec.deploy([one, held])

    with pytest.raises(ImpossiblePlanError, match="group-deadlock"):
        ec.deploy(late, group=group)
    ec.deploy(late)


@pytest.mark.parametrize("rtype", ["local::Process", "planned::Process"])
def test_processes_that_stop_each_other_are_no_circle(ec: ExperimentController, rtype: str) -> None:
    quick = ec.register_resource(rtype, command=["true"])
    long = ec.register_resource(rtype, command=["sleep", "60"])
    ec.register_condition(quick, STOP, long, STOPPED)
    ec.register_condition(long, STOP, quick, STOPPED)

    assert ec.plan().warnings == ()
    ec.deploy()
    assert ec.wait_finished([quick, long], timeout=60)


def test_what_ends_with_its_jobs_or_by_a_condition_is_no_circle_of_both(ec: ExperimentController) -> None:
    job = ec.register_resource("fedmon::Job")
    monitor, (then,) = ec.register_resource("fedmon::Monitor", connectedTo=job), plain(ec, 1)
    ec.register_condition(then, START, monitor, STOPPED)
    ec.register_condition(monitor, STOP, then, STARTED)

    assert "condition-cycle" not in str(ec.plan())


def test_the_federation_is_asked_once_if_it_is_not_there(
    ec: ExperimentController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMON_BROKER_URL", f"mqtt://127.0.0.1:{free_port()}")
    monkeypatch.setenv("FEDMON_RESEARCHER_TIMEOUT_S", "1")
    monkeypatch.setenv("FEDMON_RESEARCHER_FOLDER", str(tmp_path / "bob"))
    nodes = tuple(ec.register_resource("fedmon::Node", nodeId=f"n{number}") for number in range(20))
    began = time.monotonic()

    (problem,) = ec.plan().problems

    assert time.monotonic() - began < 60
    assert (problem.kind, problem.severity, problem.guids) == ("not-asked", "warning", nodes)
    assert problem.text.startswith("cannot ask the federation: ")


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rtype", "lacks"),
    [
        ("Collector", "traceName"),
        ("fedmon::Job", "fedmon::TrainingPlan"),
        ("fedmon::Aggregator", "fedmon::Job"),
        ("fedmon::Monitor", "fedmon::Node or fedmon::Job"),
        ("fedmon::Node", "nodeId"),
        ("fedmon::Dataset", "tags"),
        ("fedmon::TrainingPlan", "plan"),
        ("local::Process", "command"),
    ],
)
def test_a_resource_that_lacks_a_part_is_refused(ec: ExperimentController, rtype: str, lacks: str) -> None:
    guid, kind = ec.register_resource(rtype), "missing-part"

    with pytest.raises(ImpossiblePlanError, match=rf"{kind}: resource {guid} \({rtype}\) has no {lacks}") as raised:
        ec.deploy()

    assert [(one.kind, one.guids) for one in raised.value.problems] == [(kind, (guid,))]
    assert found(ec.plan()) == [("error", kind, (guid,))]
    assert ec.state(guid) is ResourceState.NEW


def test_a_resource_that_deploys_itself_and_lacks_a_part_is_not_registered(ec: ExperimentController) -> None:
    with pytest.raises(ImpossiblePlanError, match="has no command"):
        ec.register_resource("local::Process", autoDeploy=True)

    assert ec.resources == []


def test_a_type_without_an_attribute_that_its_parent_needs_is_deployed(ec: ExperimentController) -> None:
    class Fixed(LocalProcess):
        _rtype = "test::Fixed"

        @classmethod
        def _register_attributes(cls) -> None:
            cls._remove_attribute("command")

        do_deploy, do_start = ResourceManager.do_deploy, ResourceManager.do_start

    fixed = added(ec, Fixed)
    ec.deploy()

    assert ec.wait_started(fixed.guid, timeout=60).reasons == {}


def test_a_verb_called_by_hand_names_the_part_that_lacks(ec: ExperimentController) -> None:
    process, monitor = ec.register_resource("local::Process"), ec.register_resource("fedmon::Monitor")

    with pytest.raises(ExperimentError, match=r'has no command: set it to a list of texts, such as \["ls", "-l"\]'):
        ec.get_resource(process).deploy()
    with pytest.raises(ExperimentError, match="has no fedmon::Node or fedmon::Job: connect it to one"):
        ec.get_resource(monitor).deploy()


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"state": STOPPED, "at_least": 2}, "impossible-quorum"),
        ({"state": STARTED}, "failed-resource"),
        ({"metric": Metric(name="x", comparison=">", value=1)}, "may-not-come"),
    ],
)
def test_a_wait_for_a_lost_resource_is_refused(ec: ExperimentController, asked: dict[str, Any], kind: str) -> None:
    (lost,), (running,) = plain(ec, 1, "planned::Broken"), plain(ec, 1)
    ec.deploy()
    assert ec.wait(lost, "FAILED", timeout=60)
    (waiting,) = plain(ec, 1)
    ec.register_condition(waiting, START, [lost, running], **asked)

    with pytest.raises(ImpossiblePlanError, match=kind):
        ec.deploy()

    assert ec.state(waiting) is ResourceState.NEW
    ec.unregister_condition(waiting, lost)
    ec.register_condition(waiting, "STOP", lost, "RELEASED")
    assert ec.plan().is_possible


def test_a_removed_resource_is_not_waited_for(ec: ExperimentController) -> None:
    gone, waiting = plain(ec, 2)
    ec.register_condition(waiting, START, gone, STARTED)
    ec.remove_resource(gone)

    planned = ec.plan()
    assert planned.problems == ()
    assert f"   2. start {waiting} test::Plain\n" in str(planned)
    started(ec, waiting)


def test_a_quorum_of_which_too_many_were_removed_is_refused(ec: ExperimentController) -> None:
    gone, left, waiting = plain(ec, 3)
    ec.register_condition(waiting, START, [gone, left], STARTED, at_least=2)
    ec.remove_resource(gone)

    assert [one.kind for one in ec.plan().errors] == ["impossible-quorum"]
    with pytest.raises(ImpossiblePlanError, match="impossible-quorum"):
        ec.deploy()


def test_a_plan_after_an_abort_says_so(tmp_path: Path) -> None:
    with ExperimentController("planned", tmp_path, journal=False) as ec:
        guid = added(ec, Broken).guid
        ec.deploy()
        assert ec.wait_started(guid, timeout=60).aborted

        planned = ec.plan()

    assert (planned.errors[0].kind, planned.waves) == ("aborted", ())
    assert "no power" in planned.errors[0].text


def test_a_chain_that_is_deployed_one_by_one_takes_no_longer_with_each(ec: ExperimentController) -> None:
    (last,) = plain(ec, 1)
    began = time.process_time()

    for _ in range(1000):
        (guid,) = plain(ec, 1)
        ec.register_condition(guid, START, last, STARTED)
        ec.deploy(guid)
        last = guid

    assert time.process_time() - began < 5
