"""Failure managers decide what a failed resource means; one that fails itself does not change that."""

from __future__ import annotations

from typing import Any

import pytest

from fedmon.experiment.errors import ExperimentOverError, InvalidPolicyError
from fedmon.experiment.failure import FailureManager, OptionalFailures, QuorumFailures, judge
from fedmon.experiment.resource import ResourceManager
from fedmon.experiment.states import FailureLevel
from tests.experiment.small_experiment import SmallExperiment


class Node(ResourceManager):
    _rtype = "test::Node"


class Server(Node):
    _rtype = "test::Server"


class Tool(ResourceManager):
    _rtype = "test::Tool"


def failing(ec: SmallExperiment, *guids: int) -> list[bool]:
    """Have resources fail one after the other; return whether the experiment had ended after each."""
    found = []
    for guid in guids:
        ec.get_resource(guid).fail("lost")
        ec.work()
        found.append(ec.machine.is_aborted)
    return found


def test_a_critical_failure_ends_the_experiment_and_says_why() -> None:
    ec = SmallExperiment()
    ec.add(Node, critical=False)
    ec.add(Node)

    assert failing(ec, 1, 2) == [False, True]
    assert (ec.fm.failure_level, ec.fm.abort) == (FailureLevel.RM_FAILURE, True)
    assert ec.machine.level_reason == "resource 2 (test::Node), which is critical, failed: lost"


def test_only_the_first_failure_counts() -> None:
    ec = SmallExperiment()
    ec.add(Node)
    ec.add(Node)

    failing(ec, 1, 2)

    assert "resource 1" in ec.fm.reason


def test_a_resource_that_did_not_fail_or_is_gone_ends_nothing() -> None:
    ec = SmallExperiment()
    ec.add(Node)

    for guid in (1, 77):
        judge(ec.fm, ec.engine, guid)

    assert ec.failure_level is FailureLevel.OK


def test_optional_failures_end_nothing() -> None:
    ec = SmallExperiment(OptionalFailures())
    ec.add(Node)

    assert failing(ec, 1) == [False]


def test_an_experiment_goes_on_while_its_quorum_is_there() -> None:
    ec = SmallExperiment(QuorumFailures(2, [1, 2, 3]))
    for _ in range(4):
        ec.add(Node)

    assert failing(ec, 1, 2) == [False, True]
    assert ec.fm.reason.endswith("failed, and 1 of 3 are left, where 2 must be")


def test_a_quorum_may_be_of_a_type_and_the_rest_is_critical_or_not() -> None:
    ec = SmallExperiment(QuorumFailures(1, rtype="test::Node"))
    ec.add(Node)
    ec.add(Server)
    ec.add(Tool, critical=False)
    ec.add(Tool)

    assert failing(ec, 1, 3, 4) == [False, False, True]
    assert "resource 4 (test::Tool), which is critical" in ec.fm.reason


def test_a_quorum_may_be_added_when_the_guids_are_known() -> None:
    manager = QuorumFailures()
    ec = SmallExperiment(manager)
    guids = [ec.add(Node).guid for _ in range(3)]
    manager.add(2, guids)

    assert failing(ec, 1, 2) == [False, True]


@pytest.mark.parametrize(
    ("at_least", "options"),
    [(0, {"guids": [1]}), (3, {"guids": [1, 2]}), (1, {}), (1, {"guids": [1], "rtype": "x"}), (True, {"guids": [1]})],
)
def test_a_quorum_that_cannot_be_is_refused_by_name(at_least: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicyError):
        QuorumFailures(at_least, **options)


class Own(FailureManager):
    """As in NEPI: it sets what it decides, without calling its parent's constructor."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def eval_failure(self, guid: int) -> None:
        self.seen.append(guid)
        if len(self.seen) == 2:
            self._failure_level = FailureLevel.RM_FAILURE
            self._abort = True


def test_a_custom_failure_manager_works() -> None:
    manager = Own()
    ec = SmallExperiment(manager)
    ec.add(Node)
    ec.add(Node)

    assert failing(ec, 1, 2) == [False, True]
    assert manager.seen == [1, 2]


def test_a_custom_failure_manager_that_only_aborts_ends_the_experiment_too() -> None:
    class Strict(FailureManager):
        def eval_failure(self, guid: int) -> None:  # noqa: ARG002
            self._abort = True

    ec = SmallExperiment(Strict())
    ec.add(Node, critical=False)

    assert failing(ec, 1) == [True]
    assert (ec.machine.level, ec.machine.level_reason) == (FailureLevel.RM_FAILURE, "Strict aborts")


def test_a_failure_manager_that_raises_is_logged_and_the_failure_judged_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(FailureManager):
        def eval_failure(self, guid: int) -> None:  # noqa: ARG002
            raise ZeroDivisionError

    ec = SmallExperiment(Broken())
    ec.add(Node, critical=False)
    ec.add(Node)

    assert failing(ec, 1, 2) == [False, True]
    assert "the failure manager Broken failed" in caplog.text


def test_a_failure_of_the_controller_is_worse() -> None:
    ec = SmallExperiment()
    ec.add(Node)
    failing(ec, 1)

    ec.fm.set_ec_failure("the disk is full")

    assert (ec.fm.failure_level, ec.fm.reason) == (FailureLevel.EC_FAILURE, "the disk is full")


def test_a_failure_manager_begins_anew_with_another_experiment() -> None:
    first = SmallExperiment()
    first.add(Node)
    failing(first, 1)
    manager = first.fm

    second = SmallExperiment(manager)

    assert (manager.abort, manager.failure_level, manager.ec) == (False, FailureLevel.OK, second)


def test_a_failure_manager_without_experiment_says_so() -> None:
    with pytest.raises(ExperimentOverError):
        FailureManager().eval_failure(1)
