"""`ExperimentRunner`: the same experiment again and again, until what it tells is sure enough."""

from __future__ import annotations

import logging
import math
import statistics
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, SupportsIndex

from fedmon.common.errors import FedmonError
from fedmon.experiment.errors import ExperimentError, InvalidExperimentError
from fedmon.experiment.states import FailureLevel

logger = logging.getLogger(__name__)


SHARE = 0.05


class InvalidMetricError(ExperimentError, ValueError):
    """What was computed of a run is no number, or not as many numbers as of the runs before."""


def has_converged(samples: Sequence[object]) -> bool:
    """Tell whether the 95 % confidence interval of the mean is at most 5 % of it: 2 * std / sqrt(n) <= 0.05 * |mean|.

    ``std`` is that of the population. One sample alone tells nothing of how samples differ, so it takes two. Samples of
    several numbers have converged when each of these has. Raises InvalidMetricError.
    """
    if len(samples) < 2:
        return False
    rows = [numbers_of(sample) for sample in samples]
    if len({len(row) for row in rows}) != 1:
        raise InvalidMetricError("the metrics of the runs have different numbers of values; each run must give as many")
    return all(_is_narrow(column) for column in zip(*rows, strict=True))


def numbers_of(sample: object) -> tuple[float, ...]:
    """Return the numbers that a metric consists of. Raises InvalidMetricError."""
    parts: list[Any] = (
        list(sample) if hasattr(sample, "__iter__") and not isinstance(sample, (str, bytes, dict)) else [sample]
    )
    try:
        if any(isinstance(part, (str, bytes)) for part in parts):
            raise TypeError  # "1" is no measurement
        found = tuple(float(part) for part in parts)
    except (TypeError, ValueError, OverflowError):
        found = ()
    if not found or not all(map(math.isfinite, found)):
        shown = repr(sample)[:80]
        raise InvalidMetricError(
            f"the metric {shown} is no finite number and no list of them; give evaluate_convergence_callback for "
            "others, and return None for a run without one"
        )
    return found


def _is_narrow(values: Sequence[float]) -> bool:
    # The values of statistics are exact sums, so equal samples have a deviation of 0 and not of a rounding error.
    largest = max(map(abs, values))
    if not largest:
        return True
    scaled = [value / largest for value in values]  # squares of very small and large numbers are no numbers any more
    spread = 2 * statistics.pstdev(scaled) / math.sqrt(len(scaled))
    return spread <= SHARE * abs(statistics.fmean(scaled))


MAX_FRUITLESS_RUNS = 10
"""So many runs in a row that failed, or gave no metric, end a runner that has no greatest number of runs."""


class Controller(Protocol):
    """What a runner needs of an experiment; `ExperimentController` has it."""

    @property
    def exp_dir(self) -> Any:
        """The folder of the experiment."""
        ...

    @property
    def failure_level(self) -> FailureLevel:
        """How bad it is."""
        ...

    def save(self, dirpath: Any = None) -> Any:
        """Write its description and return the path."""
        ...

    def repeats(self) -> Callable[[], Controller]:
        """Return what makes a new one like it for each run."""
        ...

    def get_resource(self, guid: int) -> object:
        """Return a resource. Raises UnknownGuidError."""
        ...

    def deploy(self) -> object:
        """Deploy all resources."""
        ...

    def wait_finished(self, guids: Any) -> object:
        """Wait until resources are STOPPED; what is returned may say ``aborted``, and the ``reason``."""
        ...

    def release(self) -> object:
        """Release all resources."""
        ...

    def shutdown(self) -> None:
        """End it, whatever happened."""
        ...


ComputeMetric = Callable[[Any, int], Any]
EvaluateConvergence = Callable[[Any, int, list[Any]], bool]


class NoStopCriterionError(ExperimentError, RuntimeError):
    """Nothing says when a runner is to end."""


class FruitlessRunsError(ExperimentError, RuntimeError):
    """A runner has no greatest number of runs, and run after run gave it nothing to judge."""


class ExperimentRunner:
    """Runs an experiment several times. Every method is safe from any thread; one runner does one `run` at a time.

    ``failed_runs`` holds the numbers, counted from 1, of those runs of the last `run` that failed, ``failures`` why,
    and ``samples`` the metrics of the others.
    """

    def __init__(self) -> None:
        self.failed_runs: list[int] = []
        self.failures: dict[int, str] = {}
        self.samples: list[Any] = []
        self._running = threading.Lock()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Have the run that goes on be the last one, without waiting any longer in it."""
        self._stopped.set()

    def run(
        self,
        ec: Controller,
        min_runs: int = 1,
        max_runs: int | None = -1,
        wait_time: float = 0,
        wait_guids: int | Iterable[int] = (),
        compute_metric_callback: ComputeMetric | None = None,
        evaluate_convergence_callback: EvaluateConvergence | None = None,
    ) -> int:
        """Run an experiment at least ``min_runs`` times and return how many runs there were.

        It ends when ``max_runs`` were done (none, 0 or less: no limit), or when ``evaluate_convergence_callback(ec,
        run, samples)`` is true, asked after each run that gave a metric; without that callback `has_converged` decides.
        ``compute_metric_callback(ec, run)`` gives the metric of a run that was released, or None for none. In each run
        ``wait_guids`` are waited for, as in NEPI nobody where there are none, and then ``wait_time`` seconds. A run
        that fails is noted and the next one begins. ``ec`` itself is never deployed: each run is a new experiment of
        its description, which is saved in ``ec.exp_dir``, with its federation, its credentials and a copy of its
        failure manager. Raises NoStopCriterionError, UnknownGuidError, InvalidPolicyError and InvalidExperimentError
        at once, and FruitlessRunsError.
        """
        numbers: tuple[tuple[str, object], ...] = (("min_runs", min_runs), ("max_runs", max_runs or 0))
        for name, value in numbers:
            if not isinstance(value, SupportsIndex):
                raise InvalidExperimentError(f"{name} is {value!r:.80}, and must be a whole number")
        given: object = wait_time
        if not isinstance(given, int | float) or not 0 <= given < threading.TIMEOUT_MAX:
            raise NoStopCriterionError(f"wait_time is {given!r}, and must be a number of seconds, 0 or more")
        for name, callback in (
            ("compute_metric_callback", compute_metric_callback),
            ("evaluate_convergence_callback", evaluate_convergence_callback),
        ):
            if callback is not None and not callable(callback):
                raise InvalidExperimentError(f"{name} is {callback!r:.80}, which cannot be called")
        wait_guids = tuple(wait_guids) if isinstance(wait_guids, Iterable) else (wait_guids,)
        for guid in wait_guids:
            ec.get_resource(guid)
        limit = max_runs if max_runs is not None and max_runs > 0 else None
        if limit is None and compute_metric_callback is None:
            raise NoStopCriterionError(
                "nothing says when the runs are to end: give max_runs, or a compute_metric_callback with a metric "
                "that converges"
            )
        if not self._running.acquire(blocking=False):
            raise ExperimentError("this runner is running already; make another one")
        try:
            self._stopped.clear()
            self.failed_runs, self.failures, self.samples = [], {}, []
            ec.save(dirpath=ec.exp_dir)
            one = _Run(self, ec.repeats(), wait_time, wait_guids, compute_metric_callback)
            return self._repeat(one, max(1, min_runs), limit, evaluate_convergence_callback)
        finally:
            self._running.release()

    def evaluate_normal_convergence(self, ec: Any, run: int, metrics: Sequence[Any]) -> bool:
        """Tell whether metrics have converged, by the default rule; see `has_converged`."""
        del ec, run
        return has_converged(metrics)

    def _repeat(self, one: _Run, min_runs: int, limit: int | None, converges: EvaluateConvergence | None) -> int:
        evaluate = self.evaluate_normal_convergence if converges is None else converges
        fruitless = run = 0
        while True:
            run += 1
            count = len(self.samples)
            is_enough = one.done(run, evaluate if run >= min_runs else None)
            if is_enough or self._stopped.is_set() or (limit is not None and run >= max(limit, min_runs)):
                return run
            fruitless = 0 if len(self.samples) > count else fruitless + 1
            if limit is None and fruitless >= MAX_FRUITLESS_RUNS:
                why = f"; run {run} failed: {self.failures[run]}" if run in self.failures else ""
                raise FruitlessRunsError(
                    f"the last {fruitless} of {run} runs gave no metric, and no max_runs ends them{why}"
                )

    def wait(self, seconds: float) -> None:
        """Wait some time, or until `stop`."""
        self._stopped.wait(seconds)

    def note_failure(self, run: int, reason: str) -> None:
        """Note a run that failed."""
        logger.warning("run %d of the experiment failed: %s", run, reason)
        self.failed_runs.append(run)
        self.failures[run] = reason


class _Run:
    """One run after the other of the same experiment."""

    def __init__(
        self,
        runner: ExperimentRunner,
        make: Callable[[], Controller],
        wait_time: float,
        wait_guids: Iterable[int],
        compute: ComputeMetric | None,
    ) -> None:
        self._runner, self._make, self._compute = runner, make, compute
        self._wait_time, self._wait_guids = wait_time, list(wait_guids)

    def done(self, run: int, evaluate: EvaluateConvergence | None) -> bool:
        """Run it once; returns whether that was enough, which nobody is asked where ``evaluate`` is null.

        Whatever happens, what the run holds is released.
        """
        ec = self._make()
        try:
            failure = self._through(ec)
            if failure:
                self._runner.note_failure(run, failure)
                return False
            metric = None if self._compute is None else self._compute(ec, run)
            if metric is None:
                return False
            self._runner.samples.append(metric)
            return evaluate is not None and bool(evaluate(ec, run, self._runner.samples))
        finally:
            ec.shutdown()

    def _through(self, ec: Controller) -> str:
        """Deploy, wait and release; returns why it failed, "" where it did not."""
        try:
            ec.deploy()
            found = ec.wait_finished(self._wait_guids)
            self._runner.wait(self._wait_time)
            ec.release()
        except FedmonError as error:
            return str(error)
        if ec.failure_level is not FailureLevel.OK:
            why = getattr(found, "reason", "") or getattr(getattr(ec, "snapshot", None), "level_reason", "")
            return str(why) or f"the failure level is {ec.failure_level.name}"
        return "the wait for its end was aborted" if getattr(found, "aborted", False) else ""
