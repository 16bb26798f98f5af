"""The controller as NEPI's scripts use it: register, connect, condition, deploy, wait, release."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.errors import FedmonError, InvalidInputError
from fedmon.experiment import ExperimentController, Metric, Retry
from fedmon.experiment.errors import (
    DuplicateGuidError,
    ExperimentOverError,
    InvalidConditionError,
    InvalidExperimentError,
    InvalidPolicyError,
    InvalidTimeError,
    UnknownGuidError,
    UnknownTypeError,
)
from fedmon.experiment.journal import Follower
from fedmon.experiment.states import FailureLevel, TaskStatus
from tests.experiment.own_types import READY, RELEASED, START, STARTED, STOPPED, added, flaky, own, plain, started
from tests.support.waiting import wait_until

METRIC = Metric(name="loss", comparison="<", value=1.0)


def test_a_script_runs_from_registration_to_release(ec: ExperimentController, tmp_path: Path) -> None:
    first, second = ec.register_resource("test::Short"), ec.register_resource("test::Short")
    ec.register_connection(first, second)
    ec.register_condition(second, START, first, STOPPED, time="20ms")

    ec.deploy()
    found = ec.wait_finished([first, second], timeout=60)

    assert found
    assert (ec.state(second), ec.state(second, hr=True)) == (STOPPED, "STOPPED")
    begun, ended = ec.get_start_time(second), ec.get_stop_time(first)
    assert begun is not None
    assert ended is not None
    assert (begun - ended).total_seconds() >= 0.02
    assert ec.release().reached == (first, second)
    assert ec.ecstate.name == "RELEASED"
    ec.shutdown()
    ec.shutdown()
    assert ec.ecstate.name == "TERMINATED"
    assert ec.run_dir == str(tmp_path / "test" / ec.run_id)
    assert len(ec.run_id) == 20
    assert repr(ec) == f"<experiment test, run {ec.run_id}: TERMINATED>"  # at the end of a notebook's cell
    assert repr(ec.get_resource(first)) == "<resource 1 (test::Short)>"


def test_everything_is_in_the_journal(ec: ExperimentController) -> None:
    guids = [ec.register_resource("test::Short") for _ in range(3)]
    ec.register_condition(guids[1:], START, guids[0], STOPPED)
    ec.set(guids[0], "critical", value=False)
    ec.deploy()
    assert ec.wait_finished(guids, timeout=60)
    ec.shutdown()

    follower = Follower(ec.run_dir)
    follower.look()

    assert follower.run.state == ec.snapshot


def test_guids_are_given_or_the_next_and_never_replaced(ec: ExperimentController) -> None:
    assert [ec.register_resource("test::Plain", guid) for guid in (None, 10, None, 4, None)] == [1, 10, 11, 4, 12]

    with pytest.raises(DuplicateGuidError, match="guid 10 is taken"):
        ec.register_resource("test::Short", 10)
    for wrong in (0, -1, 2**63):
        with pytest.raises(InvalidExperimentError, match="not a positive whole number"):
            ec.register_resource("test::Plain", wrong)
    for nameless in ("two\nlines", "\ud800", "my step", "After", "a" * 65):  # no document can hold them
        with pytest.raises(InvalidExperimentError, match="is not usable: use 1 to 64 letters"):
            ec.register_resource("test::Plain", name=nameless)
    with pytest.raises(UnknownTypeError, match="test::Plain"):
        ec.register_resource("test::Plane")
    for unknown in (99, "typo"):
        with pytest.raises(UnknownGuidError, match=r"known: 1, 4, 10-12$"):
            ec.state(unknown)

    assert ec.resources == [1, 10, 11, 4, 12]


def test_what_is_connected_and_deployed_at_registration_is(ec: ExperimentController) -> None:
    node = ec.register_resource("test::Plain")
    ec.deploy(node)

    app = ec.register_resource("test::Plain", connectedTo=node, autoDeploy=True)

    assert ec.get_resource(node).connections == {app}
    assert ec.state(app) is STARTED


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([1], START, [2], 99), InvalidConditionError),
        (([1], 7, [2], STARTED), InvalidConditionError),
        (([], START, [2], STARTED), InvalidConditionError),
        (([1], START, [], STARTED), InvalidConditionError),
        (([1], START, [2], STARTED, "soon"), InvalidTimeError),
        (([1], START, [3], STARTED), UnknownGuidError),
        (([9], START, [2], STARTED), UnknownGuidError),
        (([1], START, [2], STARTED, None, METRIC), InvalidConditionError),
    ],
)
def test_a_condition_that_cannot_be_is_refused_at_once(
    ec: ExperimentController, arguments: tuple[object, ...], error: type[Exception]
) -> None:
    plain(ec, 2)

    with pytest.raises(error) as raised:
        ec.register_condition(*arguments[:5], metric=next(iter(arguments[5:]), None))  # type: ignore[arg-type] # what scripts may do

    assert isinstance(raised.value, FedmonError)
    started(ec, [1, 2])


@pytest.mark.parametrize(
    "options",
    [
        {"timeouts": {"jump": 1.0}}, {"timeouts": {"start": 0}}, {"timeouts": {"start": "soon"}},
        {"retry": {"start": 3}}, {"retry": {"start": Retry(times=-1)}},
        {"retry": {"start": Retry(times=1, delay_s=1e999)}},
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_is_refused(ec: ExperimentController, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicyError):
        ec.register_resource("test::Plain", **options)

    assert ec.resources == []


def test_a_limit_is_a_number_and_that_of_the_environment_may_be_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NEPI_NTHREADS", "")

    with ExperimentController("limited", tmp_path) as ec:
        assert ec.max_running is None
    for where, wrong in (("max_running", -1), ("nthreads", "many")):
        with pytest.raises(InvalidExperimentError, match=f"{where} is {wrong}: take a whole number"):
            ExperimentController("limited", tmp_path, **{where: wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="~nobody-at-all/x: Could not determine home directory"):
        ExperimentController("limited", "~nobody-at-all/x")


def test_groups_may_be_named_and_joined(ec: ExperimentController) -> None:
    first, second = plain(ec, 2)
    assert ec.deploy([first, second], group=7) == 7
    assert ec.wait_started([first, second], timeout=60)

    third = ec.register_resource("test::Plain")
    ec.deploy(third, group=7)

    assert ec.state(third) is STARTED
    assert ec.get_resource(third).deployment_group == 7


def test_releasing_some_leaves_the_others_and_hard_releases_go(ec: ExperimentController) -> None:
    one, hard, other = plain(ec, 3)
    ec.set(hard, "hardRelease", value=True)
    ec.deploy()

    ec.release([one, hard])

    assert (ec.resources, ec.state(one), ec.state(other)) == ([one, other], RELEASED, STARTED)
    assert ec.ecstate.name == "RUNNING"
    ec.release()
    assert ec.ecstate.name == "RELEASED"


def test_tasks_run_when_they_are_to_and_keep_what_came_of_them(ec: ExperimentController) -> None:
    good, bad = ec.schedule("10ms", lambda: 42, track=True), ec.schedule(None, lambda: 1 / 0, track=True)

    tasks = [task for task in map(ec.get_task, (good, bad)) if task is not None]
    wait_until(lambda: [task.status for task in tasks] == [TaskStatus.DONE, TaskStatus.ERROR])

    assert (tasks[0].result, "ZeroDivisionError" in str(tasks[1].result)) == (42, True)
    assert ec.get_task(ec.schedule(None, lambda: None)) is None
    with pytest.raises(InvalidTimeError):
        ec.schedule("tomorrow", lambda: None)
    assert ec.failure_level is FailureLevel.OK


def test_after_the_end_nothing_begins(ec: ExperimentController) -> None:
    ec.register_resource("test::Plain")
    ec.shutdown()

    with pytest.raises(ExperimentOverError):
        ec.register_resource("test::Plain")
    with pytest.raises(ExperimentOverError):
        ec.deploy()


@pytest.mark.parametrize(
    "exp_id",
    [
        "../up", "a/b", "/etc", "a\\b", "", " ", ".", "..", "a\x00b", "a\nb", "a\n", " a", "my exp", "-x", "é",
        "x" * 101,
    ],
)  # fmt: skip
def test_an_experiment_id_that_cannot_name_a_folder_is_refused(exp_id: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidExperimentError, match="cannot name a folder"):
        ExperimentController(exp_id, tmp_path)

    assert not list(tmp_path.iterdir())


def test_a_thousand_blocked_resources_take_no_thread(ec: ExperimentController) -> None:
    gate = ec.register_resource("test::Plain")
    blocked = plain(ec, 1000)
    ec.register_condition(blocked, START, gate, STARTED)
    before = threading.active_count()
    ec.deploy(blocked)
    assert {ec.state(guid) for guid in blocked} == {READY}
    assert threading.active_count() <= before + 1

    ec.deploy(gate)

    assert ec.wait_started(blocked, timeout=60)


def test_a_type_says_how_often_it_is_tried_again_and_a_resource_over_it(ec: ExperimentController) -> None:
    rules = {"type_retry": {"deploy": Retry(times=1, delay_s=0.01)}, "type_timeouts": {"start": 9.0}}
    stubborn = own("test::Stubborn", do_deploy=flaky("deploy", itertools.count(), 1), **rules)
    guid = added(ec, stubborn, timeouts={"deploy": 5.0}).guid
    ec.deploy()

    assert ec.wait_started(guid, timeout=60)
    assert ec.snapshot.resources[guid].timeouts == {"start": 9.0, "deploy": 5.0}


def test_reports_that_conditions_know_are_known_after_a_reconnect(ec: ExperimentController) -> None:
    one, other = plain(ec, 2)
    for nth in range(3):
        ec.measured(one, "loss", 0.5, "a", nth=nth)
    ec.measured(other, "loss", 0.5, "a")
    ec.give_up()
    values = {"loss": 0.5, "accuracy": 0.9}

    with ExperimentController.reconnect(ec.run_dir) as again:
        # The journal was cut off within the last report of the first.
        found = [again.reports(one).take("a", nth, values) for nth in range(4)]
        assert found == [{}, {}, {"accuracy": 0.9}, values]
        assert again.reports(one).take("a", 2, values) == {}
        assert again.reports(other).take("a", 0, values) == values
        known = [again.reports(other).take("a", nth, values) == {} for nth in (7, 9, 9, 8, 9)]
        assert known == [False, False, True, False, True]
