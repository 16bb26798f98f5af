"""Failure managers decide what a failed resource means; one that fails itself does not change that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedmon.experiment import ExperimentController, FailureManager, OptionalFailures, QuorumFailures
from fedmon.experiment.errors import ExperimentAbortedError, ExperimentOverError, InvalidPolicyError
from fedmon.experiment.journal import NAME
from fedmon.experiment.resource import ResourceManager
from fedmon.experiment.states import ECState, FailureLevel
from tests.experiment.own_types import added, experiment, plain
from tests.support.waiting import wait_until


class Node(ResourceManager):
    _rtype = "test::Node"


class Server(Node):
    _rtype = "test::Server"


class Tool(ResourceManager):
    _rtype = "test::Tool"


def failing(ec: ExperimentController, *guids: int) -> list[bool]:
    """Have resources fail one after the other; return whether the experiment had ended after each."""
    found = []
    for guid in guids:
        ec.get_resource(guid).fail("lost")
        wait_until(lambda guid=guid: _is_judged(ec, guid))  # type: ignore[misc]
        ec.wait(guid, "FAILED", timeout=60)  # an event is written down before it counts
        found.append(ec.snapshot.is_aborted)
    return found


def _is_judged(ec: ExperimentController, guid: int) -> bool:
    events = map(json.loads, Path(ec.run_dir, NAME).read_text().splitlines())
    return any(each.get("event") == "level" and each.get("guid") == guid for each in events)


class Own(FailureManager):
    """As in NEPI: it sets what it decides, without calling its parent's constructor."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def eval_failure(self, guid: int) -> None:
        self.seen.append(guid)
        if len(self.seen) == 2:
            self._failure_level = FailureLevel.RM_FAILURE
            self._abort = True


class Strict(FailureManager):
    def eval_failure(self, guid: int) -> None:  # noqa: ARG002
        self._abort = True


class Broken(FailureManager):
    def eval_failure(self, guid: int) -> None:  # noqa: ARG002
        raise ZeroDivisionError


class Unread(FailureManager):
    @property
    def failure_level(self) -> FailureLevel:
        raise ZeroDivisionError


class Wordless(FailureManager):
    def eval_failure(self, guid: int) -> None:  # noqa: ARG002
        self._abort, self._reason = True, object  # type: ignore[assignment]


NODE, MINOR = (Node, True), (Node, False)
LOST = "resource 2 (test::Node), which is critical, failed: lost"


@pytest.mark.parametrize(
    ("fm", "types", "guids", "ended", "reason"),
    [
        (None, [MINOR, NODE, NODE], [1, 2, 3], [False, True, True], LOST),
        (OptionalFailures(), [NODE], [1], [False], ""),
        (QuorumFailures(2, [1, 2, 3]), [NODE] * 4, [1, 2], [False, True],
         "resource 2 (test::Node) failed, and 1 of 3 are left, but 2 must be"),
        (QuorumFailures(1, rtype="test::Node"), [NODE, (Server, True), (Tool, False), (Tool, True)], [1, 3, 4],
         [False, False, True], "resource 4 (test::Tool), which is critical, failed: lost"),
        (Own(), [NODE] * 2, [1, 2], [False, True], "Own aborts"),
        (Strict(), [MINOR], [1], [True], "Strict aborts"),
        (Broken(), [MINOR, NODE], [1, 2], [False, True], LOST),
        (Unread(), [MINOR, NODE], [1, 2], [False, True], LOST),
        (Wordless(), [MINOR], [1], [True], "<class 'object'>"),
    ],
)  # fmt: skip
def test_a_failure_manager_says_when_the_experiment_ends_and_why(
    tmp_path: Path, fm: FailureManager | None, types: list[Any], guids: list[int], ended: list[bool], reason: str
) -> None:
    with experiment(tmp_path, fm=fm) as ec:
        for rclass, critical in types:
            added(ec, rclass, critical=critical)
        assert failing(ec, *guids) == ended
        assert (ec.fm.abort, ec.abort, ec.snapshot.level_reason) == (ended[-1], ended[-1], reason)
        assert ec.failure_level is (FailureLevel.RM_FAILURE if ended[-1] else FailureLevel.OK)
        assert ec.ecstate is ECState.RUNNING
        assert ec.release().reached == tuple(ec.resources)


def test_a_resource_that_did_not_fail_ends_nothing(ec: ExperimentController) -> None:
    plain(ec, 1)

    ec.inform_failure(1)

    assert ec.failure_level is FailureLevel.OK


def test_a_quorum_may_be_added_when_the_guids_are_known(tmp_path: Path) -> None:
    manager = QuorumFailures()
    with experiment(tmp_path, fm=manager) as ec:
        plain(ec, 3)
        assert ec.describe().failures is None  # it is none to save
        manager.add(2, ec.resources)

        assert failing(ec, 1, 2) == [False, True]
        ec.fm.give_up("as well")  # the first one counts
        assert "2 must be" in ec.snapshot.level_reason
        with pytest.raises(ExperimentAbortedError, match="nothing more is deployed: resource 2"):
            ec.deploy()
        for guid in ec.resources:
            ec.remove_resource(guid)
        assert ec.describe().failures is None


def test_a_member_that_failed_is_missing_from_its_quorum_though_it_was_released(tmp_path: Path) -> None:
    with experiment(tmp_path, fm=QuorumFailures(2, [1, 2, 3])) as ec:
        plain(ec, 3)
        assert failing(ec, 1) == [False]
        assert ec.release(1)

        assert failing(ec, 2) == [True]


@pytest.mark.parametrize(
    ("at_least", "options"),
    [(0, {"guids": [1]}), (3, {"guids": [1, 2]}), (1, {}), (1, {"guids": [1], "rtype": "x"})],
)
def test_a_quorum_that_cannot_be_is_refused_by_name(at_least: int, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicyError):
        QuorumFailures(at_least, **options)


def test_a_failure_of_the_controller_is_worse_and_heard_at_once(ec: ExperimentController) -> None:
    failing(ec, *plain(ec, 1))

    ec.fm.set_ec_failure("the disk is full")

    assert (ec.snapshot.level, ec.fm.reason) == (FailureLevel.EC_FAILURE, "the disk is full")


def test_a_failure_manager_begins_anew_with_another_experiment(ec: ExperimentController, tmp_path: Path) -> None:
    failing(ec, *plain(ec, 1))

    with experiment(tmp_path, fm=ec.fm) as second:
        assert (ec.fm.abort, ec.fm.failure_level, ec.fm.ec) == (False, FailureLevel.OK, second)
    assert ec.abort
    assert repr(ec).endswith(": RUNNING, aborted>")  # in a notebook


def test_a_failure_manager_without_experiment_says_so_and_ends_none() -> None:
    manager = FailureManager()

    manager.give_up("too early")
    manager.set_ec_failure("too early")

    assert (manager.abort, manager.failure_level) == (False, FailureLevel.OK)
    with pytest.raises(ExperimentOverError):
        manager.eval_failure(1)


def test_a_subclass_hears_of_each_failure_and_may_pass_over_it(tmp_path: Path) -> None:
    class Lenient(ExperimentController):
        heard: ClassVar[list[int | str]] = []

        def inform_failure(self, guid: int | str) -> None:
            self.heard.append(guid)

    with Lenient("failing", tmp_path) as ec:
        added(ec, Node).fail("lost")

        wait_until(lambda: ec.heard == [1])
        assert not ec.abort


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_failure_is_judged_though_a_subclass_raises(error: type[BaseException], tmp_path: Path) -> None:
    class Raising(ExperimentController):
        def inform_failure(self, guid: int | str) -> None:  # noqa: ARG002
            raise error

    with Raising("failing", tmp_path) as ec:
        added(ec, Node, critical=True)

        assert failing(ec, 1) == [True]
