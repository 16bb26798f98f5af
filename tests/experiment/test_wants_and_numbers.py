"""What is wanted ends when it has come otherwise, and numbers count from when they were told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.experiment import (
    ExperimentController,
    Metric,
    ResourceAction,
    ResourceFactory,
    ResourceManager,
    ResourceState,
    Retry,
    clsinit_copy,
)
from fedmon.experiment.check.problems import ImpossiblePlanError
from fedmon.experiment.conditions import MetricCondition, StateCondition
from fedmon.experiment.errors import InvalidConditionError, UnknownGuidError

START, STOP = ResourceAction.START, ResourceAction.STOP
READY, STARTED, STOPPED, FAILED = (
    ResourceState.READY,
    ResourceState.STARTED,
    ResourceState.STOPPED,
    ResourceState.FAILED,
)
GOOD = Metric(name="accuracy", comparison=">", value=0.9)


@clsinit_copy
class Counted(ResourceManager):
    """Counts its starts; the first ``failing`` of them raise."""

    _rtype = "wants::Counted"
    failing = 0

    def __init__(self, ec: Any, guid: int) -> None:
        super().__init__(ec, guid)
        self.starts = 0

    def do_start(self) -> None:
        self.starts += 1
        if self.starts <= self.failing:
            raise RuntimeError("not yet")
        super().do_start()


@clsinit_copy
class Failing(Counted):
    """Fails once."""

    _rtype = "wants::Failing"
    failing = 1


ResourceFactory.register_type(Counted)
ResourceFactory.register_type(Failing)


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ExperimentController]:
    with ExperimentController("wants", tmp_path) as made:
        yield made


def starts_of(ec: ExperimentController, guid: int) -> int:
    resource = ec.get_resource(guid)
    assert isinstance(resource, Counted)
    return resource.starts


def resources(ec: ExperimentController, count: int, **options: Any) -> list[int]:
    return [ec.register_resource("wants::Counted", **options) for _ in range(count)]


def test_who_stopped_by_itself_is_waited_for_no_longer_by_the_timeout_of_its_stop(ec: ExperimentController) -> None:
    first, second = resources(ec, 2)
    ec.register_condition(first, STOP, second, STOPPED, timeout="1s")
    ec.deploy()
    assert ec.wait_started([first, second], timeout=5)

    ec.get_resource(first).set_stopped()

    assert not ec.wait(first, FAILED, timeout=1.2)
    assert (ec.state(first), ec.abort) == (STOPPED, False)


def test_who_was_started_by_hand_is_not_started_again(ec: ExperimentController) -> None:
    first, second = resources(ec, 2)
    ec.register_condition(second, START, first, STOPPED)
    ec.deploy()
    assert ec.wait_started(first, timeout=5)
    ec.start(second)
    ec.stop(second)

    ec.stop(first)

    assert not ec.snapshot.wants
    assert not ec.wait(second, FAILED, timeout=0.1)
    assert (starts_of(ec, second), ec.state(second)) == (1, STOPPED)


def test_what_came_meanwhile_is_not_tried_again(ec: ExperimentController) -> None:
    guid = ec.register_resource("wants::Failing", retry={"start": Retry(times=3, delay_s=0.3)})
    ec.deploy()
    assert ec.wait_deployed(guid, timeout=5)
    while ec.snapshot.resources[guid].retrying is None:
        assert not ec.wait(guid, STARTED, timeout=0.01)

    ec.start(guid)
    ec.stop(guid)

    assert ec.snapshot.resources[guid].retrying is None
    assert not ec.wait(guid, FAILED, timeout=0.5)
    assert (starts_of(ec, guid), ec.state(guid)) == (2, STOPPED)


def test_numbers_told_before_anybody_waits_for_them_count(ec: ExperimentController) -> None:
    (told,) = resources(ec, 1)
    ec.deploy()
    assert ec.wait_started(told, timeout=5)
    for value in (0.5, 0.95, 0.96):
        ec.measured(told, "accuracy", value)
    later, patient = resources(ec, 2)

    ec.register_condition(later, START, told, metric=Metric(name="accuracy", comparison=">", value=0.9, samples=2))
    ec.register_condition(patient, START, told, metric=Metric(name="accuracy", comparison=">", value=0.9, samples=3))
    ec.deploy([later, patient], wait_all_ready=False)

    assert ec.wait_started(later, timeout=5)
    assert ec.state(patient) is READY
    ec.measured(told, "accuracy", 0.97)
    assert ec.wait_started(patient, timeout=5)


def test_numbers_of_several_sources_are_counted_each_for_itself(ec: ExperimentController) -> None:
    told, waiting = resources(ec, 2)
    ec.register_condition(waiting, START, told, metric=Metric(name="loss", comparison="<", value=1.0, samples=2))
    ec.deploy(wait_all_ready=False)
    assert ec.wait_started(told, timeout=5)

    for node, value in (("a", 0.1), ("b", 0.1), ("a", 0.1)):
        ec.measured(told, "loss", value, node)
    assert ec.state(waiting) is READY
    ec.measured(told, "loss", 0.2, "b")

    assert ec.wait_started(waiting, timeout=5)


def test_a_number_that_cannot_come_any_more_fails_who_waits_to_start_and_says_so(ec: ExperimentController) -> None:
    told, waiting = resources(ec, 2, critical=False)
    ec.register_condition(waiting, START, told, metric=GOOD)
    ec.deploy(wait_all_ready=False)
    assert ec.wait_started(told, timeout=5)

    ec.stop(told)

    assert ec.wait(waiting, FAILED, timeout=5).reached == (waiting,)
    assert f"resource {told} (wants::Counted) is STOPPED" in ec.snapshot.resources[waiting].reason


def test_who_is_to_be_stopped_by_a_number_goes_on_when_that_cannot_come(ec: ExperimentController) -> None:
    told, running = resources(ec, 2)
    ec.register_condition(running, STOP, told, metric=GOOD)
    ec.deploy()
    assert ec.wait_started([told, running], timeout=5)

    ec.stop(told)

    assert ec.state(running) is STARTED


def test_a_number_of_who_was_taken_out_never_comes(ec: ExperimentController) -> None:
    told, waiting = resources(ec, 2, critical=False)
    ec.register_condition(waiting, START, told, metric=GOOD)
    ec.deploy(waiting)

    ec.remove_resource(told)

    assert ec.wait(waiting, FAILED, timeout=5)
    assert "nobody is left who would tell" in ec.snapshot.resources[waiting].reason


def test_a_run_counts_on_from_the_numbers_it_had(ec: ExperimentController, tmp_path: Path) -> None:
    told, waiting = resources(ec, 2)
    ec.register_condition(waiting, START, told, metric=Metric(name="loss", comparison="<", value=1.0, samples=2))
    ec.deploy()
    assert ec.wait_started(told, timeout=5)
    ec.measured(told, "loss", 0.5, "a")
    copy = tmp_path / "elsewhere" / "wants" / ec.run_id
    shutil.copytree(ec.run_dir, copy)

    with ExperimentController.reconnect(copy) as again:
        seen, before = again.snapshot.resources[told], ec.snapshot.resources[told]
        assert (seen.told, seen.met) == (before.told, before.met)
        again.measured(told, "loss", 0.4, "a")
        assert again.wait_started(waiting, timeout=5)


@pytest.mark.parametrize(
    ("guid", "name", "value", "error"),
    [
        (99, "loss", 1.0, UnknownGuidError),
        ("1", "loss", 1.0, UnknownGuidError),
        (1, 5, 1.0, InvalidConditionError),
        (1, "\udc80", 1.0, InvalidConditionError),
        (1, "loss", "much", InvalidConditionError),
    ],
)
def test_a_number_that_nobody_could_read_back_is_refused(
    ec: ExperimentController, guid: Any, name: Any, value: Any, error: type[Exception]
) -> None:
    resources(ec, 1)

    with pytest.raises(error):
        ec.measured(guid, name, value)


def test_conditions_made_elsewhere_are_checked_as_those_of_calls(ec: ExperimentController) -> None:
    one, two, three = resources(ec, 3)
    ec.register_condition([one, two], STOP, [two, three, two], STARTED, at_least=2)
    (_, twice), *_ = ec.snapshot.resources[one].conditions
    assert twice.group == (two, three)
    for wrong in (
        StateCondition(number=1, group=(two, two), state=STOPPED, at_least=2),
        StateCondition(number=1, group=(two,), state=STOPPED, at_least=0),
        StateCondition(number=1, group=(two,), state=STOPPED, timeout_s=-1.0),
        StateCondition(number=1, group=(one,), state=STARTED),
        MetricCondition(number=1, group=(two,), metric=Metric(name="x", comparison=">", value=float("inf"))),
        MetricCondition(number=1, group=(two,), metric=Metric(name="x", comparison=">", value=1.0, samples=0)),
    ):
        with pytest.raises(InvalidConditionError):
            ec.registry.add_condition(one, START, wrong)


def test_one_may_wait_for_itself_to_be_where_the_action_begins(ec: ExperimentController) -> None:
    (guid,) = resources(ec, 1)
    ec.register_condition(guid, STOP, guid, STARTED, "0.1s")

    ec.deploy()

    assert ec.wait_finished(guid, timeout=5)


def test_a_condition_that_would_close_a_circle_among_the_deployed_is_refused_with_its_path(
    ec: ExperimentController,
) -> None:
    a, b, c = resources(ec, 3)
    ec.register_condition(a, START, c, STOPPED)
    ec.register_condition(b, START, a, STARTED)
    ec.deploy()

    with pytest.raises(ImpossiblePlanError, match=f"{a}"):
        ec.register_condition(a, START, b, STARTED)

    ec.stop(c) if ec.wait_started(c, timeout=5) else None
    assert ec.wait_started([a, b], timeout=5)
