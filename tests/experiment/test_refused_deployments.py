"""A deployment that is known to be in vain is refused with what is wrong; one whose missing part may come is not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.experiment.conditions import Metric
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.errors import ExperimentError
from fedmon.experiment.events import Retry
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.failure import OptionalFailures
from fedmon.experiment.plan_problems import ImpossiblePlanError
from fedmon.experiment.resource import ResourceManager, clsinit_copy
from fedmon.experiment.standing import standings
from fedmon.experiment.states import ResourceAction, ResourceState
from tests.support.ports import free_port
from tests.support.waiting import wait_until

DEPLOY, START, STOP = ResourceAction
READY, STARTED, STOPPED, FAILED = (
    ResourceState.READY,
    ResourceState.STARTED,
    ResourceState.STOPPED,
    ResourceState.FAILED,
)


@clsinit_copy
class Plain(ResourceManager):
    """Has no code of its own."""

    _rtype = "refused::Plain"


@clsinit_copy
class Broken(ResourceManager):
    """Never starts."""

    _rtype = "refused::Broken"

    def do_start(self) -> None:
        raise ExperimentError("no power")


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ExperimentController]:
    for rclass in (Plain, Broken):
        ResourceFactory.register_type(rclass)
    with ExperimentController("refused", tmp_path, fm=OptionalFailures(), journal=False) as made:
        yield made


@pytest.mark.parametrize(
    ("rtype", "kind", "lacks"),
    [
        ("fedmon::Collector", "collector-without-trace", "traceName"),
        ("Collector", "collector-without-trace", "traceName"),
        ("fedmon::Job", "missing-part", "fedmon::TrainingPlan"),
        ("fedmon::Aggregator", "missing-part", "fedmon::Job"),
        ("fedmon::Monitor", "missing-part", "fedmon::Node or fedmon::Job"),
        ("fedmon::Node", "missing-part", "nodeId"),
        ("fedmon::Dataset", "missing-part", "tags"),
        ("fedmon::TrainingPlan", "missing-part", "plan"),
        ("local::Process", "missing-part", "command"),
    ],
)
def test_what_lacks_a_part_that_its_type_cannot_do_without_is_named(
    ec: ExperimentController, rtype: str, kind: str, lacks: str
) -> None:
    guid = ec.register_resource(rtype)

    with pytest.raises(ImpossiblePlanError, match=rf"{kind}: resource {guid} \({rtype}\) has no {lacks}") as raised:
        ec.deploy()

    assert [(one.kind, one.guids) for one in raised.value.problems] == [(kind, (guid,))]
    assert [(one.kind, one.guids) for one in ec.plan().errors] == [(kind, (guid,))]
    assert ec.state(guid) is ResourceState.NEW
    if rtype == "local::Process":
        ec.set(guid, "command", ["true"])
        ec.deploy()
        assert ec.wait_finished(guid, timeout=10)


def test_what_deploys_itself_and_lacks_a_part_is_not_registered(ec: ExperimentController) -> None:
    with pytest.raises(ImpossiblePlanError, match="has no command"):
        ec.register_resource("local::Process", autoDeploy=True)

    assert ec.resources == []


def test_a_part_may_come_until_its_deploy_begins(ec: ExperimentController) -> None:
    gate, process = ec.register_resource("refused::Plain"), ec.register_resource("local::Process")
    ec.register_condition(process, DEPLOY, gate, STARTED)

    assert [(one.kind, one.severity) for one in ec.plan().problems if one.kind == "missing-part"] == [
        ("missing-part", "warning")
    ]
    ec.deploy(process)
    ec.set(process, "command", ["true"])
    ec.deploy(gate)
    assert ec.wait_finished(process, timeout=10)


def test_whom_nobody_has_deployed_yet_may_be_waited_for(ec: ExperimentController) -> None:
    later, first = (ec.register_resource("refused::Plain") for _ in range(2))
    lacking = ec.register_resource("local::Process")
    ec.register_condition(first, START, [later, lacking], STARTED, at_least=1)

    ec.deploy(first)
    ec.deploy(later)

    assert ec.wait_started([first, later], timeout=10)


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"state": STOPPED, "at_least": 2}, "impossible-quorum"),
        ({"state": STARTED}, "failed-resource"),
        ({"metric": Metric(name="x", comparison=">", value=1)}, "may-not-come"),
    ],
)
def test_who_waits_for_those_that_are_lost_is_refused(
    ec: ExperimentController, asked: dict[str, Any], kind: str
) -> None:
    lost = ec.register_resource("refused::Broken")
    running = ec.register_resource("refused::Plain")
    ec.deploy()
    assert ec.wait(lost, FAILED, timeout=10)
    after = ec.register_resource("refused::Plain")
    ec.register_condition(after, START, [lost, running], **asked)

    with pytest.raises(ImpossiblePlanError, match=kind):
        ec.deploy()

    assert ec.state(after) is ResourceState.NEW
    ec.unregister_condition(after, lost)
    assert ec.plan().is_possible


def test_the_federation_is_asked_for_once_where_it_is_not_there(
    ec: ExperimentController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMON_BROKER_URL", f"mqtt://127.0.0.1:{free_port()}")
    monkeypatch.setenv("FEDMON_RESEARCHER_TIMEOUT_S", "1")
    monkeypatch.setenv("FEDMON_RESEARCHER_FOLDER", str(tmp_path / "bob"))
    nodes = tuple(ec.register_resource("fedmon::Node", nodeId=f"n{number}") for number in range(8))
    (tmp_path / "p.py").write_text("class P: ...\n")
    training = ec.register_resource("fedmon::TrainingPlan", plan=str(tmp_path / "p.py"), connectedTo=nodes)
    began = time.monotonic()

    found = ec.plan()

    assert time.monotonic() - began < 6.5
    (problem,) = found.problems
    assert (problem.kind, problem.severity, problem.guids) == ("not-asked", "warning", (*nodes, training))
    assert problem.text.startswith("cannot ask the federation: ")


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_chain_that_is_deployed_one_by_one_takes_no_longer_with_each(
    ec: ExperimentController, *, is_begun: bool
) -> None:
    last = ec.register_resource("refused::Plain")
    if is_begun:
        ec.deploy(last)
    began = time.process_time()

    for _ in range(1500):
        guid = ec.register_resource("refused::Plain")
        ec.register_condition(guid, START, last, STARTED)
        ec.deploy(guid)
        last = guid

    assert time.process_time() - began < 3


# --- what is explained ------------------------------------------------------------------------------------------------


def test_an_aggregator_that_runs_says_for_which_job_it_waits(ec: ExperimentController) -> None:
    training = ec.register_resource("fedmon::TrainingPlan", plan="p.py")
    job = ec.register_resource("fedmon::Job", connectedTo=training)
    together = ec.register_resource("fedmon::Aggregator", connectedTo=job)
    ec.deploy(together)
    assert ec.wait_started(together, timeout=10)

    found = ec.explain(together)

    assert (found.reason, found.waits_for) == ("it runs until what it is connected to came to its end", (job,))
    assert found.chain == (together, job)


def test_what_ends_by_itself_says_so(ec: ExperimentController) -> None:
    guid = ec.register_resource("local::Process", command=["sleep", "60"])
    ec.deploy()
    assert ec.wait_started(guid, timeout=10)

    assert ec.explain(guid).reason == "it runs, and comes to its end by itself"


def test_what_is_tried_again_says_when_and_after_an_abort_that_it_is_not(tmp_path: Path) -> None:
    ResourceFactory.register_type(Broken)
    with ExperimentController("refused", tmp_path, journal=False) as ec:
        guid = ec.register_resource("refused::Broken", retry={"start": Retry(times=3, delay_s=60)})
        other = ec.register_resource("refused::Broken")
        ec.deploy(guid)
        wait_until(lambda: ec.snapshot.resources[guid].retrying is not None)

        found = ec.explain(guid)
        (waiting,) = found.waiting
        assert found.reason == "its start failed once and is tried again: no power"
        assert waiting.action == "start"
        assert waiting.left_s is not None
        assert 50 < waiting.left_s <= 60
        assert "is tried again in" in waiting.text

        ec.deploy(other)
        wait_until(lambda: ec.abort)
        aborted = ec.explain(guid)
        assert aborted.waiting == ()
        assert (
            aborted.reason == "its start failed once and is not tried again, for the experiment was aborted: no power"
        )


def test_a_verb_that_is_given_up_at_a_time_says_when(ec: ExperimentController) -> None:
    @clsinit_copy
    class Pending(ResourceManager):
        _rtype = "refused::Pending"

        def do_deploy(self) -> None:
            self.set_reserved()

    ResourceFactory.register_type(Pending)
    guid = ec.register_resource("refused::Pending", timeouts={"deploy": 300})
    ec.deploy()
    wait_until(lambda: ec.state(guid) is ResourceState.RESERVED)

    (waiting,) = ec.explain(guid).waiting

    assert waiting.action == "deploy"
    assert waiting.gives_up_in_s is not None
    assert 290 < waiting.gives_up_in_s <= 300
    assert "gives up in" in waiting.text
    (shown,) = standings(ec.snapshot, {}, ec.engine.now())
    assert shown.waiting.startswith("its deploy is running; deploy runs, for ")
