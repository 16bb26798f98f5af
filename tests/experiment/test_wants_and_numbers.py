"""A want ends when its state was reached otherwise, and numbers count from when they are reported."""

from __future__ import annotations

from typing import Any

import pytest

from fedmon.experiment import ExperimentController, Metric, ResourceManager, Retry
from fedmon.experiment.check.graph import ImpossiblePlanError
from fedmon.experiment.errors import InvalidConditionError, UnknownGuidError
from tests.experiment.own_types import FAILED, READY, START, STARTED, STOP, STOPPED, added, killed_now, plain, started
from tests.support.waiting import wait_until

GOOD = Metric(name="accuracy", comparison=">", value=0.9)


class Counted(ResourceManager):
    """Counts its starts; the first ``failing`` of them raise."""

    _rtype = "wants::Counted"
    failing = starts = 0

    def do_start(self) -> None:
        self.starts += 1
        if self.starts <= self.failing:
            raise RuntimeError("not yet")
        super().do_start()


class Failing(Counted):
    _rtype = "wants::Failing"
    failing = 1


def is_left_alone(ec: ExperimentController, guid: int, timeout_s: float) -> bool:
    return not ec.wait(guid, FAILED, timeout=timeout_s) and not ec.abort


def test_a_resource_that_stopped_by_itself_has_no_timeout_of_its_stop_any_more(ec: ExperimentController) -> None:
    first, second = plain(ec, 2)
    ec.register_condition(first, STOP, second, STOPPED, timeout="10m")
    started(ec, [first, second])

    assert ec.snapshot.wants

    ec.get_resource(first).set_stopped()

    assert not ec.snapshot.wants
    assert not ec.abort
    assert ec.state(first) is STOPPED


def test_a_resource_that_was_started_by_hand_is_not_started_again(ec: ExperimentController) -> None:
    (first,), counted = plain(ec, 1), added(ec, Counted)
    second = counted.guid
    ec.register_condition(second, START, first, STOPPED)
    started(ec, first)
    ec.start(second)
    ec.stop(second)

    ec.stop(first)

    assert not ec.snapshot.wants
    assert is_left_alone(ec, second, 0.1)
    assert (counted.starts, counted.state) == (1, STOPPED)


def test_a_verb_that_succeeded_meanwhile_is_not_tried_again(ec: ExperimentController) -> None:
    failing = added(ec, Failing, retry={"start": Retry(times=3, delay_s=6.0)})
    guid = failing.guid
    ec.deploy()
    wait_until(lambda: ec.snapshot.resources[guid].retrying)

    ec.start(guid)
    ec.stop(guid)

    assert (ec.snapshot.resources[guid].retrying, failing.reason) == (None, "")
    assert is_left_alone(ec, guid, 6.5)
    assert (failing.starts, failing.state) == (2, STOPPED)


def test_a_failed_resource_counts_for_no_quorum_after_its_release(ec: ExperimentController) -> None:
    one, two, three = plain(ec, 3, critical=False)
    ec.register_condition(one, START, [two, three], STARTED, at_least=1)
    ec.get_resource(two).fail("lost")
    assert ec.release([two])

    ec.deploy(one)

    wait_until(lambda: ec.explain(one).waits_for == (three,))
    ec.deploy(three)
    assert ec.wait_started(one, timeout=60)


def test_numbers_that_were_reported_before_a_condition_count_for_it(ec: ExperimentController) -> None:
    (source,) = plain(ec, 1)
    started(ec, source)
    for value in (0.5, 0.95, 0.96, 0.4, 0.97):
        ec.measured(source, "accuracy", value)
    ec.measured(source, "loss", 2.0)
    later, patient = plain(ec, 2)

    for guid, samples in ((later, 2), (patient, 3)):  # two in a row have held, for good
        metric = Metric(name="accuracy", comparison=">", value=0.9, samples=samples)
        ec.register_condition(guid, START, source, metric=metric)
    ec.deploy([later, patient], wait_all_ready=False)

    assert ec.wait_started(later, timeout=60)
    assert ec.state(patient) is READY
    for value in (0.98, 0.99):
        ec.measured(source, "accuracy", value)
    assert ec.wait_started(patient, timeout=60)


def test_numbers_of_several_sources_are_counted_each_for_itself(ec: ExperimentController) -> None:
    source, waiting = plain(ec, 2)
    ec.register_condition(waiting, START, source, metric=Metric(name="loss", comparison="<", value=1.0, samples=2))
    ec.deploy(wait_all_ready=False)
    assert ec.wait_started(source, timeout=60)

    for node in ("a", "b", "a"):
        ec.measured(source, "loss", 0.1, node)
    assert ec.state(waiting) is READY
    ec.measured(source, "loss", 0.2, "b")

    assert ec.wait_started(waiting, timeout=60)


@pytest.mark.parametrize(
    ("end", "reason"), [("stop", "(test::Plain) is STOPPED"), ("remove_resource", "all its resources were removed")]
)
def test_a_number_that_cannot_come_any_more_fails_a_start(ec: ExperimentController, end: str, reason: str) -> None:
    source, waiting = plain(ec, 2, critical=False)
    ec.register_condition(waiting, START, source, metric=GOOD)
    ec.deploy(wait_all_ready=False)
    assert ec.wait_started(source, timeout=60)

    getattr(ec, end)(source)

    assert ec.wait(waiting, FAILED, timeout=60).reached == (waiting,)
    assert reason in ec.snapshot.resources[waiting].reason


def test_a_number_that_cannot_come_any_more_fails_no_stop(ec: ExperimentController) -> None:
    source, running = plain(ec, 2)
    ec.register_condition(running, STOP, source, metric=GOOD)
    started(ec, [source, running])

    ec.stop(source)

    assert ec.state(running) is STARTED


def test_a_run_counts_on_from_the_numbers_it_had(ec: ExperimentController) -> None:
    source, waiting = plain(ec, 2)
    ec.register_condition(waiting, START, source, metric=Metric(name="loss", comparison="<", value=1.0, samples=2))
    started(ec, source)
    ec.measured(source, "loss", 0.5, "a")

    with ExperimentController.reconnect(killed_now(ec)) as again:
        again.measured(source, "loss", 0.4, "a")
        assert again.wait_started(waiting, timeout=60)


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
def test_a_number_that_the_journal_cannot_hold_is_refused(
    ec: ExperimentController, guid: Any, name: Any, value: Any, error: type[Exception]
) -> None:
    plain(ec, 1)

    with pytest.raises(error):
        ec.measured(guid, name, value)


def test_a_member_that_is_named_twice_counts_once(ec: ExperimentController) -> None:
    one, two, three = plain(ec, 3)

    ec.register_condition([one, two], STOP, [two, three, two], STARTED, at_least=2)

    assert ec.get_resource(one).conditions == {STOP: [([two, three], STARTED, None)]}


def test_a_condition_that_would_close_a_circle_is_refused_with_its_path(ec: ExperimentController) -> None:
    a, b, c = plain(ec, 3)
    ec.register_condition(a, START, c, STOPPED)
    ec.register_condition(b, START, a, STARTED)
    ec.deploy()

    with pytest.raises(ImpossiblePlanError, match=f"{a}"):
        ec.register_condition(a, START, b, STARTED)

    assert ec.wait_started(c, timeout=60)
    ec.stop(c)
    assert ec.wait_started([a, b], timeout=60)
