"""Scripts of NEPI behave as its users expect, also where NEPI itself failed or hung."""

from __future__ import annotations

import datetime
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedmon.experiment import ExperimentController, Metric, TaskStatus
from fedmon.experiment.errors import InvalidStateError
from tests.experiment.conftest import ec
from tests.experiment.own_types import FAILED, READY, START, STARTED, STOP, STOPPED
from tests.support.waiting import wait_until

__all__ = ["ec"]  # the fixture


def test_a_single_action_of_a_resource_waits_for_its_conditions(ec: ExperimentController) -> None:
    one, other = (ec.get_resource(ec.register_resource("test::Plain")) for _ in "12")
    ec.register_condition(one.guid, START, other.guid, STARTED)
    ec.register_condition(one.guid, STOP, other.guid, STOPPED)

    one.start_with_conditions()
    one.stop_with_conditions()
    one.deploy_with_conditions()
    assert ec.wait(one.guid, READY, timeout=60)
    assert ec.state(one.guid) is READY

    other.deploy_with_conditions()
    other.start_with_conditions()
    assert ec.wait_started([one.guid, other.guid], timeout=60)
    other.stop()
    assert ec.wait_finished([one.guid, other.guid], timeout=60)


def test_a_resource_has_the_methods_of_nepi(ec: ExperimentController) -> None:
    one, other = (ec.get_resource(ec.register_resource("local::Process", critical=False)) for _ in "12")
    loss = Metric(name="loss", comparison="<", value=1.0)
    one.register_condition(START, other.guid, STARTED, "500ms")
    ec.register_condition(one.guid, STOP, other.guid, metric=loss)
    assert one.conditions == {START: [([2], STARTED, "0.5s")], STOP: [([2], loss, None)]}
    one.unregister_condition(other.guid, START)
    assert list(one.conditions) == [STOP]
    one.set_with_conditions("grace", "1s", other.guid, STARTED)
    assert [want.attribute for want in ec.snapshot.wants.values()] == [("grace", "1s")]

    one.set_state_time(READY, "ready_time", datetime.datetime.now(datetime.UTC))
    with pytest.raises(InvalidStateError, match="state 99 not found"):
        one.set_state(99)  # type: ignore[arg-type] # as scripts may
    assert (one.state, one.reschedule_delay) == (READY, "0.5s")
    for rm, reason in ((one, None), (other, datetime.datetime.now(datetime.UTC))):
        rm.set_failed(reason)
        assert (rm.state, rm.reason) == (FAILED, "")


def test_a_task_runs_at_an_absolute_time(ec: ExperimentController) -> None:
    def scheduled(in_s: float) -> Any:
        at = datetime.datetime.now().astimezone() + datetime.timedelta(seconds=in_s)
        task = ec.get_task(ec.schedule(at.strftime("%Y%m%d%H%M%S%f"), time.time, track=True))
        assert task is not None
        wait_until(lambda: task.status is TaskStatus.DONE)
        return task

    early, late = scheduled(-5), scheduled(0.1)

    assert early.result < late.result
    assert late.result >= late.due


def test_ids_and_guids_are_given_once_whichever_thread_asks(ec: ExperimentController, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ec.register_resource("test::Plain"), range(200)))

    assert sorted(found) == sorted(ec.resources) == list(range(1, 201))
    with ExperimentController(local_dir=tmp_path) as one, ExperimentController(local_dir=tmp_path) as other:
        assert one.exp_id != other.exp_id
