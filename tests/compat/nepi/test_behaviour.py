"""Scripts of NEPI behave as its users expect, also where NEPI itself failed or hung."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import networkx
import pytest

from fedmon.experiment import (
    ECState,
    ExperimentController,
    FailureManager,
    ResourceAction,
    ResourceFactory,
    ResourceManager,
    ResourceState,
    TaskStatus,
    clsinit_copy,
)
from fedmon.experiment.durations import MOMENT
from tests.support.waiting import wait_until

START, STOP = ResourceAction.START, ResourceAction.STOP
READY, STARTED, STOPPED, FAILED = (ResourceState[name] for name in ("READY", "STARTED", "STOPPED", "FAILED"))


@clsinit_copy
class Simple(ResourceManager):
    _rtype = "test::Simple"


@clsinit_copy
class Failing(ResourceManager):
    _rtype = "test::Failing"

    def do_start(self) -> None:
        raise RuntimeError("on purpose")


@pytest.fixture(autouse=True)
def types() -> Iterator[None]:
    kept = ResourceFactory._resource_types
    for rclass in (Simple, Failing):
        ResourceFactory.register_type(rclass)
    yield
    ResourceFactory._resource_types = kept


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ExperimentController]:
    with ExperimentController("trial", tmp_path) as made:
        yield made


def test_a_controller_calls_back_for_its_topology(tmp_path: Path) -> None:
    seen: list[object] = []
    with ExperimentController(
        "trial",
        tmp_path,
        add_node_callback=lambda _ec, nid: seen.append(nid),
        add_edge_callback=lambda _ec, *ends: seen.append(ends),
        topology=networkx.path_graph(2),
        assign_ips=True,
    ) as ec:
        assert seen == [0, 1, (0, 1)]
        assert ec.netgraph is not None
        assert ec.netgraph.get_p2p_info(0, 1)[:2] == ("10.0.0.1", "10.0.0.2")
        path = ec.save()
    with ExperimentController.load(path, local_dir=tmp_path) as again:
        assert again.netgraph is not None
        assert again.netgraph.node_ip_annotations(1) == ["10.0.0.2"]
    with ExperimentController("trial", tmp_path) as other:
        assert other.netgraph is None
    with pytest.raises(TypeError, match="nthread"):
        ExperimentController("trial", tmp_path, nthread=3)


def test_a_wait_ends_when_the_callers_function_is_true(ec: ExperimentController) -> None:
    guid = ec.register_resource("test::Simple")
    asked: list[None] = []

    def enough() -> bool:
        asked.append(None)
        return len(asked) > 1

    found = ec.wait(guid, STARTED, enough)
    late = ec.wait(guid, STARTED, lambda: False, timeout=0.01)

    assert (found.reached, found.left, found.aborted, bool(found)) == ((), (guid,), False, False)
    assert late.timed_out == (guid,)


def test_a_single_action_of_a_resource_waits_for_its_conditions(ec: ExperimentController) -> None:
    one, other = (ec.get_resource(ec.register_resource("test::Simple")) for _ in "12")
    ec.register_condition(one.guid, START, other.guid, STARTED)
    ec.register_condition(one.guid, STOP, other.guid, STOPPED)

    one.start_with_conditions()
    one.stop_with_conditions()
    one.deploy_with_conditions()
    assert ec.wait(one.guid, READY, timeout=10)
    assert ec.state(one.guid) is READY

    other.deploy_with_conditions()
    other.start_with_conditions()
    assert ec.wait_started([one.guid, other.guid], timeout=10)

    other.stop()
    assert ec.wait_finished([one.guid, other.guid], timeout=10)


def test_a_task_runs_at_an_absolute_time(ec: ExperimentController) -> None:
    now = datetime.datetime.now(datetime.UTC)
    past, soon = ((now + datetime.timedelta(seconds=seconds)).astimezone().strftime(MOMENT) for seconds in (-5, 0.1))

    late, early = (ec.schedule(at, time.time, track=True) for at in (soon, past))

    second, first = ec.get_task(late), ec.get_task(early)
    assert second is not None
    assert first is not None
    wait_until(lambda: second.status is TaskStatus.DONE)
    assert first.result < second.result
    assert second.result >= second.due


def test_a_delay_after_a_failure_counts_from_the_failure(ec: ExperimentController) -> None:
    failing = ec.register_resource("test::Failing", critical=False)
    rescue = ec.register_resource("test::Simple")
    ec.register_condition(rescue, START, failing, FAILED, "200ms")

    ec.deploy()

    assert ec.wait_started([rescue], timeout=10)
    began, failed = ec.get_start_time(rescue), ec.get_failed_time(failing)
    assert began is not None
    assert failed is not None
    assert (began - failed).total_seconds() >= 0.2


def test_a_controller_that_failed_is_shut_down_all_the_same(tmp_path: Path) -> None:
    class Severe(FailureManager):
        def eval_failure(self, guid: int) -> None:
            self.set_ec_failure(f"resource {guid} took the controller with it")

    with ExperimentController("trial", tmp_path, fm=Severe()) as ec:
        simple, failing = ec.register_resource("test::Simple"), ec.register_resource("test::Failing")
        ec.deploy()
        wait_until(lambda: ec.ecstate is ECState.FAILED)
        assert ec.wait_finished([simple], timeout=10).aborted

    assert ec.ecstate is ECState.TERMINATED
    assert {ec.state(guid) for guid in (simple, failing)} == {ResourceState.RELEASED}


def test_ids_and_guids_are_given_once_whichever_thread_asks(ec: ExperimentController, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ec.register_resource("test::Simple"), range(200)))

    assert sorted(found) == sorted(ec.resources) == list(range(1, 201))
    with ExperimentController(local_dir=tmp_path) as one, ExperimentController(local_dir=tmp_path) as other:
        assert one.exp_id != other.exp_id
