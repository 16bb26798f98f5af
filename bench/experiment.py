"""The cost of experiments: the controller's own time, beside asynciojobs where that does the same.

``python -m bench.experiment [--rounds 5] [--only CASE] [--journal on|off]``. Every case runs in a separate process,
with the journal and without. Times are medians; ``-cpu`` is the processor time of the same runs, which shows more on a
machine that others use. Cases:

- ``1000-independent``: 1000 resources from deploy to the end of release; ``-jobs`` is the same, up to STARTED, against
  1000 jobs of asynciojobs.
- ``start-chain-100``: each starts when the next one has, registered in reverse, from deploy to all STARTED.
- ``start-chain-1000``: the same with 1000, against a chain of asynciojobs; ``-hooks``: each with its own hook;
  ``-in-all``: with making them, for both.
- ``functions-20``: a DAG of 20 functions that do nothing, in layers of 4 of which each waits for all of the one before,
  from making them to the last result, against coroutines in asynciojobs. ``-in-all``: with the experiment's folder, and
  its end. ``-of-10-ms``: each takes 10 ms, and asynciojobs calls the same functions in threads.
- ``condition-reaction-p95``: from a stop to the return of the wait for the one that starts then.
- ``trivial``: an experiment of one resource, from the constructor to the end of `shutdown`.
- ``nepi-12001``: NEPI's layout of 1000 nodes with an interface and 10 applications each, and one link: register,
  connect, deploy, finish and release; with the memory at its most, in all. ``-hooks``: with hooks as NEPI's types have.
- ``blocked-1000``: 1000 resources that wait for an event that does not come: % of a core, and threads.
- ``sim-1000-apps``: 1000 applications on a node that take 1 s to deploy and 1.5 s to run, deploy to finished, with
  hooks that block; ``-scheduled``: with hooks that have themselves called again.
- ``runner-empty``: one run of an ExperimentRunner, 17 resources without work.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from asynciojobs import Job, Scheduler

from bench import experiment_types as types
from bench.line import print_line
from bench.taken import MEGABYTE, Taken, peak_bytes
from fedmon.compat.nepi.runner import ExperimentRunner
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.resource import ResourceManager
from fedmon.experiment.states import ResourceAction, ResourceState

BENCH = "experiment"
NODES, APPLICATIONS = 1000, 10
LAYERS, LAYER = 5, 4
BLOCKED_S = 10.0
TRIALS = 200
RUNS = 10
_DEADLINE_S = 300.0


class Bench:
    """Runs cases, each several times, and prints the results."""

    def __init__(self, *, journal: bool, rounds: int) -> None:
        self._journal, self._rounds = journal, rounds

    @contextlib.contextmanager
    def experiment(self) -> Iterator[ExperimentController]:
        """Make an experiment whose files are taken away at the end."""
        with (
            tempfile.TemporaryDirectory() as folder,
            ExperimentController("bench", folder, journal=self._journal) as ec,
        ):
            yield ec

    def tell(self, case: str, ours: float, peer: float | None, unit: str = "s") -> None:
        """Print a result."""
        print_line(BENCH, f"{case}-journal" if self._journal else case, ours=ours, peer=peer, unit=unit)

    def time(self, case: str, once: Callable[[], Taken], *, budget_s: float) -> None:
        """Run a case several times, and compare it with a budget."""
        taken = [once() for _ in range(self._rounds)]
        self.tell(case, statistics.median(each.wall_s for each in taken), budget_s)
        self.tell(f"{case}-cpu", statistics.median(each.cpu_s for each in taken), None)

    def compare(self, case: str, once: Callable[[], Taken], peer: Callable[[], Taken]) -> None:
        """Run a case in turns with a peer."""
        pairs = [(once(), peer()) for _ in range(self._rounds)]
        for name, seconds in (("", lambda taken: taken.wall_s), ("-cpu", lambda taken: taken.cpu_s)):
            ours, theirs = (statistics.median(map(seconds, each)) for each in zip(*pairs, strict=True))
            self.tell(case + name, ours, theirs)

    # --- cases --------------------------------------------------------------------------------------------------------

    def independent(self) -> None:
        """1000 resources that wait for no other."""

        def through() -> Taken:
            with self.experiment() as ec:
                guids = [ec.register_resource("bench::Plain") for _ in range(1000)]
                with Taken() as taken:
                    ec.deploy()
                    assert ec.wait_started(guids, timeout=_DEADLINE_S)
                    ec.release()
            return taken

        def started() -> Taken:
            with self.experiment() as ec:
                guids = [ec.register_resource("bench::Plain") for _ in range(1000)]
                with Taken() as taken:
                    ec.deploy()
                    assert ec.wait_started(guids, timeout=_DEADLINE_S)
            return taken

        self.time("1000-independent", through, budget_s=0.2)
        self.compare("1000-independent-jobs", started, lambda: jobs(1000, is_chain=False)[1])

    def chains(self) -> None:
        """Each waits for another to start."""
        self.time("start-chain-100", lambda: self._chain(100, "bench::Plain")[1], budget_s=0.1)
        self.time("start-chain-100-hooks", lambda: self._chain(100, "bench::Hooked")[1], budget_s=0.1)
        chain = "start-chain-1000"
        self.compare(chain, lambda: self._chain(1000, "bench::Plain")[1], lambda: jobs(1000, is_chain=True)[1])
        self.compare(
            f"{chain}-hooks", lambda: self._chain(1000, "bench::Hooked")[1], lambda: jobs(1000, is_chain=True)[1]
        )
        self.compare(
            f"{chain}-in-all", lambda: self._chain(1000, "bench::Plain")[0], lambda: jobs(1000, is_chain=True)[0]
        )

    def _chain(self, count: int, rtype: str) -> tuple[Taken, Taken]:
        with self.experiment() as ec:
            with Taken() as in_all:
                guids = [ec.register_resource(rtype) for _ in range(count)]
                for guid in guids[:-1]:
                    ec.register_condition(guid, ResourceAction.START, guid + 1, ResourceState.STARTED)
                with Taken() as running:
                    ec.deploy()
                    assert ec.wait_started(guids, timeout=_DEADLINE_S)
            return in_all, running

    def functions(self) -> None:
        """A small DAG of functions."""
        self.compare("functions-20", lambda: self._layers(int)[1], lambda: _layers_of_jobs(_nothing))
        self.compare("functions-20-in-all", lambda: self._layers(int)[0], lambda: _layers_of_jobs(_nothing))
        in_thread = functools.partial(asyncio.to_thread, _short)
        self.compare("functions-20-of-10-ms", lambda: self._layers(_short)[1], lambda: _layers_of_jobs(in_thread))

    def _layers(self, function: Callable[[], int]) -> tuple[Taken, Taken]:
        with Taken() as in_all, self.experiment() as ec, Taken() as running:
            layer: list[int] = []
            for _ in range(LAYERS):
                layer = [ec.call(function, after=layer) for _ in range(LAYER)]
            ec.deploy()
            assert ec.wait_finished(layer, timeout=_DEADLINE_S)
            assert [ec.result(guid) for guid in layer] == [0] * LAYER
        return in_all, running

    def reaction(self) -> None:
        """How soon something happens that waited for something else."""
        taken = [1000 * self._reaction_s() for _ in range(TRIALS)]
        self.tell("condition-reaction-p50", statistics.median(taken), None, "ms")
        self.tell("condition-reaction-p95", statistics.quantiles(taken, n=20)[-1], 10.0, "ms")

    def _reaction_s(self) -> float:
        with self.experiment() as ec:
            first, second = ec.register_resource("bench::Plain"), ec.register_resource("bench::Hooked")
            ec.register_condition(second, ResourceAction.START, first, ResourceState.STOPPED)
            ec.deploy()
            assert ec.wait_started(first, timeout=_DEADLINE_S)
            began = []

            def stop() -> None:
                began.append(time.perf_counter())
                ec.stop(first)

            stopper = threading.Timer(0.01, stop)  # when the wait is under way
            stopper.start()
            assert ec.wait_started(second, timeout=_DEADLINE_S)
            lasted_s = time.perf_counter() - began[0]
            stopper.join()
        return lasted_s

    def trivial(self) -> None:
        """The smallest experiment there is."""

        def once() -> Taken:
            with Taken() as taken, self.experiment() as ec:
                guid = ec.register_resource("bench::Hooked")
                ec.deploy()
                assert ec.wait_started(guid, timeout=_DEADLINE_S)
            return taken

        self.time("trivial", once, budget_s=0.05)

    def nepi(self) -> None:
        """NEPI's scalability layout; alone in its process, for the memory."""
        for name, hooks in (("nepi-12001", False), ("nepi-12001-hooks", True)):
            self.time(name, functools.partial(self._nepi, hooks=hooks), budget_s=3.0)
            if not hooks:
                self.tell(f"{name}-memory", peak_bytes() / MEGABYTE, 120.0, "MB")

    def _nepi(self, *, hooks: bool) -> Taken:
        node, part, application = (
            ("bench::Node", "bench::OnNode", "bench::Application") if hooks else ("bench::Plain",) * 3
        )
        with Taken() as taken, self.experiment() as ec:
            link = ec.register_resource(part)
            finished = []
            for _ in range(NODES):
                host = ec.register_resource(node)
                interface = ec.register_resource(part, connectedTo=host)
                ec.register_connection(interface, link)
                own = [ec.register_resource(application, connectedTo=host) for _ in range(APPLICATIONS)]
                if not hooks:
                    ec.register_condition([interface, *own], ResourceAction.DEPLOY, host, ResourceState.READY)
                    ec.register_condition(own, ResourceAction.STOP, link, ResourceState.STARTED)
                finished += own
            ec.deploy()
            assert ec.wait_finished(finished, timeout=_DEADLINE_S)
            ec.release()
        return taken

    def blocked(self) -> None:
        """1000 resources for which nothing happens."""
        with self.experiment() as ec:
            never = ec.register_resource("bench::Hooked")  # which is never deployed
            guids = [ec.register_resource("bench::Hooked") for _ in range(1000)]
            ec.register_condition(guids, ResourceAction.START, never, ResourceState.STARTED)
            ec.deploy(guids)
            assert ec.wait_deployed(guids, timeout=_DEADLINE_S)
            ec.wait_started(guids, timeout=3.0)  # until threads that have nothing to do are gone
            with Taken() as taken:
                ec.wait_started(guids, timeout=BLOCKED_S)
            threads = threading.active_count()
        self.tell("blocked-1000", 100 * taken.cpu_s / taken.wall_s, None, "% of a core")
        self.tell("blocked-1000-threads", threads, 6, "threads")

    def simulated(self) -> None:
        """1000 applications that take time, on one node."""
        for name, application in (
            ("sim-1000-apps", types.BlockingApplication),
            ("sim-1000-apps-scheduled", types.ScheduledApplication),
        ):
            taken = self._simulated(application)
            self.tell(name, taken.wall_s, 8.0)
            self.tell(f"{name}-cpu", taken.cpu_s, None)

    def _simulated(self, application: type[ResourceManager]) -> Taken:
        with self.experiment() as ec:
            node = ec.register_resource("bench::Node")
            guids = [ec.register_resource(application.get_rtype(), connectedTo=node) for _ in range(1000)]
            ec.register_condition(guids, ResourceAction.DEPLOY, node, ResourceState.READY)
            with Taken() as taken:
                ec.deploy()
                assert ec.wait_finished(guids, timeout=_DEADLINE_S)
        return taken

    def runner(self) -> None:
        """Run after run of an experiment without work."""

        def once() -> Taken:
            with self.experiment() as ec:
                guids = [ec.register_resource("bench::Application") for _ in range(17)]
                with Taken() as taken:
                    assert ExperimentRunner().run(ec, min_runs=RUNS, max_runs=RUNS, wait_guids=guids) == RUNS
            taken.wall_s, taken.cpu_s = taken.wall_s / RUNS, taken.cpu_s / RUNS
            return taken

        self.time("runner-empty", once, budget_s=0.1)


def jobs(count: int, *, is_chain: bool) -> tuple[Taken, Taken]:
    """Run as many jobs of asynciojobs that do nothing; return the time in all, and that of running them."""

    async def nothing() -> None:
        pass

    with Taken() as in_all:
        scheduler, last = Scheduler(), None
        for _ in range(count):
            last = Job(nothing(), required=last if is_chain else None, scheduler=scheduler)
        with Taken() as running:
            assert scheduler.run()
    return in_all, running


async def _nothing() -> int:
    return 0


def _short() -> int:
    time.sleep(0.01)
    return 0


def _layers_of_jobs(work: Callable[[], Coroutine[Any, Any, int]]) -> Taken:
    with Taken() as taken:
        scheduler = Scheduler()
        layer: list[Job] = []
        for _ in range(LAYERS):
            layer = [Job(work(), required=layer, scheduler=scheduler) for _ in range(LAYER)]
        assert scheduler.run()
        assert [job.result() for job in layer] == [0] * LAYER
    return taken


CASES: dict[str, Callable[[Bench], None]] = {
    "independent": Bench.independent,
    "chains": Bench.chains,
    "functions": Bench.functions,
    "reaction": Bench.reaction,
    "trivial": Bench.trivial,
    "nepi": Bench.nepi,
    "blocked": Bench.blocked,
    "simulated": Bench.simulated,
    "runner": Bench.runner,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=CASES, help="one case, in this process")
    parser.add_argument("--journal", choices=("on", "off"), help="for --only (default: off)")
    arguments = parser.parse_args()
    if arguments.only:
        CASES[arguments.only](Bench(journal=arguments.journal == "on", rounds=arguments.rounds))
        return
    for name in CASES:
        for journal in (arguments.journal,) if arguments.journal else ("off", "on"):
            words = ["--only", name, "--journal", journal, "--rounds", str(arguments.rounds)]
            subprocess.run([sys.executable, "-m", "bench.experiment", *words], check=True)


if __name__ == "__main__":
    main()
