"""The same experiment again and again, until its metric has converged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.compat.nepi.runner import RunnerError
from fedmon.experiment import (
    Attribute,
    ECState,
    ExperimentController,
    ExperimentRunner,
    FailureManager,
    Flags,
    ResourceManager,
)
from fedmon.experiment.errors import UnknownGuidError
from tests.experiment.own_types import experiment
from tests.support.waiting import wait_until

FAILS: dict[int, str] = {}
"""By number of the run."""


class Short(ResourceManager):
    """Ends at once, and fails as `FAILS` says."""

    _rtype = "runs::Short"
    starts = 0

    own_attributes = (
        Attribute("password", "help", flags=Flags.Credential, set_hook=lambda _, new: f"{new}!"),
        Attribute("unread", "help", flags=Flags.NoRead),
    )

    def do_start(self) -> None:
        Short.starts += 1
        if Short.starts in FAILS:
            raise RuntimeError(FAILS[Short.starts])
        super().do_start()
        self.stop()


class Own(FailureManager):
    """A failure manager that takes an argument, and fails nothing."""

    def __init__(self, count: int) -> None:
        self.count = count

    def eval_failure(self, guid: int) -> None:
        self.count += guid


class Special(ExperimentController):
    pass


@pytest.fixture
def ec(tmp_path: Path) -> Iterator[ExperimentController]:
    FAILS.clear()
    Short.starts = 0
    with experiment(tmp_path, Short, journal=False) as made:
        made.register_resource("runs::Short")
        yield made


def giving(*values: Any) -> Callable[[Any, int], Any]:
    return lambda _ec, run: values[min(run, len(values)) - 1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_runs": 2}, 2),
        ({"min_runs": 3, "max_runs": 2}, 3),
        ({"compute_metric_callback": giving(10)}, 2),
        ({"compute_metric_callback": giving(10), "min_runs": 4}, 4),
        ({"compute_metric_callback": giving(10), "max_runs": 1}, 1),
        ({"compute_metric_callback": giving(None, None, 10)}, 4),
        ({"compute_metric_callback": giving(-1, 1, -1), "max_runs": 3}, 3),
        ({"compute_metric_callback": giving("x"), "evaluate_convergence_callback": lambda _ec, run, _all: run == 3}, 3),
    ],
)
def test_it_ends_at_its_limit_or_when_the_metric_has_converged(
    ec: ExperimentController, options: dict[str, Any], expected: int
) -> None:
    assert ExperimentRunner().run(ec, wait_guids=[1], **options) == expected
    assert Short.starts == expected
    assert ec.ecstate is ECState.RUNNING


@pytest.mark.parametrize(
    "options", [{}, {"max_runs": None}, {"min_runs": 3}, {"evaluate_convergence_callback": lambda *_: True}]
)
def test_a_runner_that_would_never_end_is_refused(ec: ExperimentController, options: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="never end"):
        ExperimentRunner().run(ec, **options)

    assert Short.starts == 0


def test_runs_that_fail_are_named_and_give_no_sample(ec: ExperimentController) -> None:
    FAILS[2] = "no luck"
    runner = ExperimentRunner()

    found = runner.run(ec, max_runs=3, min_runs=3, wait_guids=1, compute_metric_callback=lambda _ec, run: run)

    assert (found, runner.failed_runs, runner.samples) == (3, [2], [1, 3])
    assert "no luck" in runner.failures[2]
    runner.run(ec, max_runs=1)
    assert runner.failed_runs == []
    ec.register_condition(1, "START", ec.register_resource("runs::Short"), "STOPPED")
    ec.register_condition(2, "START", 1, "STOPPED")
    assert runner.run(ec, max_runs=2) == 2
    assert "condition-cycle" in runner.failures[1]
    assert runner.failed_runs == [1, 2]


def test_an_error_of_a_callback_reaches_the_caller_and_the_run_is_shut_down(ec: ExperimentController) -> None:
    runs: list[ExperimentController] = []

    def broken(run: ExperimentController, _number: int) -> float:
        runs.append(run)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ExperimentRunner().run(ec, max_runs=3, compute_metric_callback=broken)

    assert [run.ecstate for run in runs] == [ECState.TERMINATED]


def stopped_once(runner: ExperimentRunner, condition: Callable[[], object]) -> None:
    """Have a runner stopped when something is true."""

    def stop() -> None:
        wait_until(condition)
        runner.stop()

    threading.Thread(target=stop).start()


def test_a_runner_can_be_stopped_while_it_waits(ec: ExperimentController) -> None:
    runner = ExperimentRunner()
    stopped_once(runner, lambda: Short.starts)

    assert runner.run(ec, max_runs=1000, wait_time=30) == 1


def test_a_runner_can_be_stopped_while_its_resources_run(ec: ExperimentController, tmp_path: Path) -> None:
    runner, marker = ExperimentRunner(), tmp_path / "runs"
    endless = ec.register_resource("local::Process", command=["sh", "-c", f"touch '{marker}'; exec sleep 60"])
    stopped_once(runner, marker.exists)

    ran = runner.run(ec, max_runs=1000, wait_guids=endless, compute_metric_callback=giving(1.0))

    assert (ran, runner.failures, runner.samples) == (1, {1: "it was stopped before its end"}, [])


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], False),
        ([5], False),
        ([0, 0], True),
        ([-100, -101, -99, -100], True),
        ([100, 150], False),
        ([1, -1], False),
        ([1e308, 1e308, 1e308], True),
        # std 10, n 16: 2 * 10 / 4 = 5, just 5 % of 100; with n 12 it is more.
        ([90, 110] * 8, True),
        ([90, 110] * 6, False),
    ],
)
def test_the_default_rule(samples: list[Any], expected: bool) -> None:
    assert ExperimentRunner().evaluate_normal_convergence(None, 1, samples) is expected


@pytest.mark.parametrize("bad", ["1", float("nan"), None, [1, "2"], 10**400])
def test_the_default_rule_refuses_what_is_not_a_number(bad: Any) -> None:
    with pytest.raises(RunnerError, match="not a finite number"):
        ExperimentRunner().evaluate_normal_convergence(None, 1, [bad, bad])


def test_each_run_has_credentials_failure_manager_federation_and_options(
    ec: ExperimentController, tmp_path: Path
) -> None:
    # given
    federation: Any = object()
    seen: list[Any] = []

    def look(run: Special, _number: int) -> float:
        run.fm.eval_failure(1)
        changed = {each.name: each.value for each in run.get_resource(1).changed_attributes()}
        values = [changed[name] for name in ("password", "unread")]
        seen.append((type(run), run.federation, run.persist, values, getattr(run.fm, "count", None), run.fm.ec is run))
        return 1.0

    own = Own(count=0)
    # when
    with Special("special", tmp_path, persist=True, fm=own, federation=federation, journal=False) as special:
        special.register_resource("runs::Short", password="hunter2", unread="unsaid")
        assert ExperimentRunner().run(special, max_runs=2, min_runs=2, wait_guids=1, compute_metric_callback=look) == 2
        assert (own.ec is special, own.count) == (True, 0)

    # then
    assert seen == [(Special, federation, True, ["hunter2!", "unsaid"], 1, True)] * 2
    written = [path.read_text() for path in (tmp_path / "special").rglob("*") if path.is_file()]
    assert written
    assert not [text for text in written if "hunter2" in text or "unsaid" in text]


def test_an_unknown_resource_is_refused_before_the_first_run(ec: ExperimentController) -> None:
    with pytest.raises(UnknownGuidError, match="99"):
        ExperimentRunner().run(ec, max_runs=2, wait_guids=[99])

    assert Short.starts == 0
