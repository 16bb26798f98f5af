"""The same experiment again and again, until what it tells is sure enough."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedmon.experiment.errors import ExperimentError
from fedmon.experiment.runner import (
    MAX_FRUITLESS_RUNS,
    ExperimentRunner,
    FruitlessRunsError,
    InvalidMetricError,
    NoStopCriterionError,
    has_converged,
)
from fedmon.experiment.states import FailureLevel


class Rehearsal:
    """An experiment without resources, of which ``fails`` says in which run it fails and how."""

    done: ClassVar[list[str]] = []
    fails: ClassVar[dict[int, str]] = {}
    exp_dir = "exp"

    def __init__(self) -> None:
        self.failure_level = FailureLevel.OK

    def save(self, dirpath: Any = None) -> Path:
        self.done.append(f"save {dirpath}")
        return Path("saved.xml")

    def repeats(self) -> Callable[[], Rehearsal]:
        def make() -> Rehearsal:
            self.done.append("make")
            return Rehearsal()

        return make

    def get_resource(self, guid: int) -> int:
        return guid

    def deploy(self) -> None:
        self.done.append("deploy")
        how = self.fails.get(self.done.count("deploy"), "")
        if how == "raise":
            raise ExperimentError("cannot be deployed")
        if how == "fail":
            self.failure_level = FailureLevel.RM_FAILURE

    def wait_finished(self, guids: Any) -> None:
        self.done.append(f"wait {guids}")

    def release(self) -> None:
        self.done.append("release")

    def shutdown(self) -> None:
        self.done.append("shutdown")


@pytest.fixture
def ec() -> Iterator[Rehearsal]:
    Rehearsal.done.clear()
    Rehearsal.fails.clear()
    yield Rehearsal()
    Rehearsal.fails.clear()


def giving(*values: Any) -> Callable[[Any, int], Any]:
    return lambda _ec, run: values[min(run, len(values)) - 1]


def test_each_run_is_made_deployed_awaited_released_and_shut_down(ec: Rehearsal) -> None:
    assert ExperimentRunner().run(ec, max_runs=2, wait_guids=[4]) == 2

    one = ["make", "deploy", "wait [4]", "release", "shutdown"]
    assert ec.done == ["save exp", *one, *one]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"min_runs": 3, "max_runs": 3}, 3),
        ({"min_runs": 5, "max_runs": 3}, 5),
        ({"compute_metric_callback": giving(10)}, 2),
        ({"compute_metric_callback": giving(0)}, 2),
        ({"compute_metric_callback": giving(-10)}, 2),
        ({"compute_metric_callback": giving(10), "min_runs": 6}, 6),
        ({"compute_metric_callback": giving(10), "max_runs": 1}, 1),
        ({"compute_metric_callback": giving(None, None, 10)}, 4),
        ({"compute_metric_callback": giving(-1, 1, -1, 1), "max_runs": 7}, 7),
        ({"compute_metric_callback": giving((1, 5), (1, 9), (1, 5)), "max_runs": 4}, 4),
        ({"compute_metric_callback": giving("x"), "evaluate_convergence_callback": lambda _ec, run, _all: run == 4}, 4),
    ],
)
def test_it_ends_when_it_was_told_to_or_when_the_metric_has_converged(
    ec: Rehearsal, options: dict[str, Any], expected: int
) -> None:
    assert ExperimentRunner().run(ec, **options) == expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_runs": 0},
        {"max_runs": None},
        {"min_runs": 3},
        {"evaluate_convergence_callback": lambda *_: True},
        {"max_runs": 1, "wait_time": -1},
        {"max_runs": 1, "wait_time": float("nan")},
    ],
)
def test_a_runner_that_would_never_end_is_refused_before_it_begins(ec: Rehearsal, options: dict[str, Any]) -> None:
    with pytest.raises(NoStopCriterionError) as raised:
        ExperimentRunner().run(ec, **options)

    assert isinstance(raised.value, RuntimeError)
    assert ec.done == []


def test_runs_that_fail_are_named_and_give_no_sample(ec: Rehearsal) -> None:
    Rehearsal.fails.update({2: "raise", 3: "fail"})
    runner = ExperimentRunner()

    assert runner.run(ec, max_runs=4, min_runs=4, compute_metric_callback=lambda _ec, run: run) == 4
    assert runner.failed_runs == [2, 3]
    assert runner.failures[2] == "cannot be deployed"
    assert runner.samples == [1, 4]
    assert ec.done.count("shutdown") == 4
    runner.run(ec, max_runs=1)
    assert runner.failed_runs == []


@pytest.mark.parametrize("how", ["fail", "none"])
def test_runs_that_give_nothing_do_not_go_on_for_ever(ec: Rehearsal, how: str) -> None:
    Rehearsal.fails.update(dict.fromkeys(range(100), how))

    with pytest.raises(FruitlessRunsError, match=str(MAX_FRUITLESS_RUNS)):
        ExperimentRunner().run(ec, compute_metric_callback=giving(None))


def test_an_error_of_a_callback_reaches_its_caller_and_all_is_shut_down(ec: Rehearsal) -> None:
    def broken(_ec: Any, _run: int) -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ExperimentRunner().run(ec, max_runs=3, compute_metric_callback=broken)

    assert ec.done[-1] == "shutdown"


def test_a_runner_can_be_stopped_while_it_waits(ec: Rehearsal) -> None:
    runner = ExperimentRunner()
    threading.Timer(0.05, runner.stop).start()

    assert runner.run(ec, max_runs=1000, wait_time=30) == 1


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], False),
        ([5], False),
        ([5, 5], True),
        ([0, 0], True),
        ([-5, -5], True),
        ([-100, -101, -99, -100], True),
        ([100, 101, 99, 100], True),
        ([100, 150], False),
        ([-100, -150], False),
        ([1, -1], False),
        ([0, 1e-300], False),
        ([1e308, 1e308, 1e308], True),
        ([5e-324, 5e-324], True),
        ([0.1] * 10, True),
        # std 10, n 16: 2 * 10 / 4 = 5, just 5 % of 100; 3 of them less are too few.
        ([90, 110] * 8, True),
        ([90, 110] * 6, False),
        ([(1, 5), (1, 5)], True),
        ([(1, 5), (1, 9)], False),
        ([True, True], True),
    ],
)
def test_the_default_rule(samples: list[Any], expected: bool) -> None:
    assert has_converged(samples) is expected


@pytest.mark.parametrize(
    "bad", ["1", float("nan"), float("inf"), None, [], {"a": 1}, object(), [1, "2"], b"1", 10**400]
)
def test_what_is_no_number_is_refused_by_the_default_rule(bad: Any) -> None:
    with pytest.raises(InvalidMetricError):
        has_converged([bad, bad])


def test_samples_of_different_length_are_refused() -> None:
    with pytest.raises(InvalidMetricError, match="different"):
        has_converged(list(itertools.chain([(1, 2)], [(1,)])))
