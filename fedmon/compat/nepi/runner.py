"""NEPI's `ExperimentRunner`: the same experiment again and again, until its metric has converged."""

from __future__ import annotations

import logging
import math
import statistics
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fedmon.common.errors import FedmonError
from fedmon.experiment.errors import ExperimentError
from fedmon.experiment.states import FailureLevel, ResourceState

if TYPE_CHECKING:
    from fedmon.experiment.controller import ExperimentController

logger = logging.getLogger("fedmon.experiment.runner")  # NEPI_LOGLEVEL sets the levels below fedmon.experiment

SHARE = 0.05

Compute = Callable[[Any, int], Any]
Evaluate = Callable[[Any, int, list[Any]], bool]


class RunnerError(ExperimentError, ValueError, RuntimeError):
    """A runner would never end, or its metric is not a number."""


class ExperimentRunner:
    """Runs an experiment several times, one `run` at a time; `stop` is safe from any thread.

    Of the last `run`, ``failed_runs`` has the numbers of the failed runs, counted from 1, ``failures`` the reasons, and
    ``samples`` the metrics of the others.
    """

    def __init__(self) -> None:
        self.failed_runs: list[int] = []
        self.failures: dict[int, str] = {}
        self.samples: list[Any] = []
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the present run at once, and begin no other; its resources are released."""
        self._stopped.set()

    def wait(self, seconds: float) -> None:
        """Wait some time, or until `stop`."""
        self._stopped.wait(seconds)

    def evaluate_normal_convergence(self, ec: Any, run: int, metrics: Sequence[Any]) -> bool:
        """Tell whether the 95 % confidence interval of the mean is at most 5 % of it.

        That is 2 * std / sqrt(n) <= 0.05 * |mean|, with the std of the population and two samples at least. Raises
        RunnerError for a metric that is not a finite number.
        """
        del ec, run
        try:
            is_finite = all(map(math.isfinite, metrics))
        except (TypeError, OverflowError):
            is_finite = False
        if not is_finite:
            raise RunnerError(
                f"the metric {metrics[-1]!r:.80} is not a finite number; give evaluate_convergence_callback for other "
                "metrics, and return None for a run without one"
            )
        values = [float(metric) for metric in metrics]
        return len(values) > 1 and (
            2 * statistics.pstdev(values) / math.sqrt(len(values)) <= SHARE * abs(statistics.mean(values))
        )

    def run(
        self,
        ec: ExperimentController,
        min_runs: int = 1,
        max_runs: int | None = -1,
        wait_time: float = 0,
        wait_guids: Any = (),
        compute_metric_callback: Compute | None = None,
        evaluate_convergence_callback: Evaluate | None = None,
    ) -> int:
        """Run an experiment at least ``min_runs`` times, and return the number of runs.

        It ends after ``max_runs`` runs (None, 0 or less: no limit), or when ``evaluate_convergence_callback(ec, run,
        samples)`` is true after a run with a metric (default: `evaluate_normal_convergence`).
        ``compute_metric_callback(ec, run)`` returns the metric of a released run, or None. Each run waits for
        ``wait_guids``, and then ``wait_time`` seconds. A run that fails is noted, and the next one begins. ``ec``
        itself is never deployed: each run is a new experiment of its description. Raises RunnerError
        and UnknownGuidError.
        """
        limit = max_runs if max_runs is not None and max_runs > 0 else math.inf
        if limit == math.inf and compute_metric_callback is None:
            raise RunnerError("the runs would never end: give max_runs, or a compute_metric_callback that converges")
        guids = ec.registry.guids_of(wait_guids)
        self._stopped.clear()
        self.failed_runs, self.failures, self.samples = [], {}, []
        make = ec.repeats()
        ec.save(dirpath=ec.exp_dir)
        evaluate = evaluate_convergence_callback or self.evaluate_normal_convergence
        run = 0
        while True:
            run, count = run + 1, len(self.samples)
            with make() as made:
                self._once(made, run, guids, wait_time, compute_metric_callback)
                if len(self.samples) > count and run >= min_runs and evaluate(made, run, self.samples):
                    return run
            if self._stopped.is_set() or run >= max(limit, min_runs):
                return run

    def _once(
        self, ec: ExperimentController, run: int, guids: tuple[int, ...], wait_s: float, compute: Compute | None
    ) -> None:
        """Deploy, wait, release and compute the metric."""
        why = ""
        try:
            ec.deploy()
            found = ec.wait(guids, ResourceState.STOPPED, self._stopped.is_set)
            self.wait(wait_s)
            ec.release()
            if ec.failure_level is not FailureLevel.OK or found.aborted:
                why = found.reason or ec.snapshot.level_reason or f"the failure level is {ec.failure_level.name}"
            elif found.left:
                why = "it was stopped before its end"
        except FedmonError as error:
            why = str(error)
        if why:
            logger.warning("run %d of the experiment failed: %s", run, why)
            self.failed_runs.append(run)
            self.failures[run] = why
        elif compute is not None and (metric := compute(ec, run)) is not None:
            self.samples.append(metric)
