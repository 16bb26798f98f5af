"""The cost of running an approved plan, on real nodes and a real broker.

``python -m bench.runs [--rounds 50] [--nodes 20] [--megabytes 100]``. Cases: ``noop`` is a plan that does nothing,
from the request to its result (median; budget 150 ms), ``noop-bubblewrap`` the same against ``python -c pass`` under a
bare bubblewrap of the same kind, taken in turns (budget 2.5x). ``noop-N-nodes`` is that plan on many nodes at once.
``arrays`` sends an array in and back, through a file repository; the memory figure is that of each party at its
most, above the memory before. ``round`` is one round of the federated logistic regression of docs/examples over three
nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.line import medians, print_line
from fedmon.common.settings.broker import BrokerHost, BrokerSettings
from fedmon.common.settings.values import RepositorySettings, ResearcherSettings
from fedmon.demo.cli import DATA, HOSPITALS
from fedmon.researcher.federation import Federation
from fedmon.researcher.roster import NodeState
from tests.support.brokers import Broker
from tests.support.node_process import NodeProcess, fedmon, write_node_folder
from tests.support.waiting import wait_until

BENCH = "runs"
NOOP_BUDGET_MS, NOOP_BUDGET_RATIO = 150.0, 2.5
EXAMPLES = Path(__file__).parents[1] / "docs/examples"
NOOP = """
from fedmon import TrainingPlan


class Noop(TrainingPlan):
    def run(self, context):
        return {}
"""
ECHO = """
from fedmon import TrainingPlan


class Echo(TrainingPlan):
    def run(self, context):
        return {"array": context.inputs["array"]}
"""
_MB = 1e6


class Party:
    """A researcher and the nodes that they ask, all of them up."""

    def __init__(self, federation: Federation, nodes: Sequence[NodeProcess]) -> None:
        self.federation, self.nodes = federation, nodes

    def approve(self, plan: Path) -> Path:
        """Have the owner of every node approve a plan."""
        answers = self.federation.approve(plan)
        assert len(answers.ok) == len(self.nodes), str(answers)
        sha256 = next(iter(answers.ok.values())).sha256

        def decide(node: NodeProcess) -> None:
            done = fedmon("node", "plan", "approve", sha256, "--dir", str(node.folder), timeout_s=120)
            assert done.returncode == 0, done.stderr

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(decide, self.nodes))
        return plan

    def run(self, plan: Path, **given: Any) -> dict[str, Any]:
        """Run a plan everywhere and return the result of every node."""
        results = self.federation.run(plan, **given).result(timeout_s=300)
        assert len(results) == len(self.nodes)
        return dict(results)


@contextlib.contextmanager
def party(names: Sequence[str], *, repository: str | None = None, tables: bool = False) -> Iterator[Party]:
    """Start a broker and nodes, with the demo's tables where they are wanted."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        broker = Broker("mosquitto", folder / "broker")
        stack.callback(broker.stop)
        nodes = []
        for node_id in names:
            urls = {"allowed_urls": [repository], "url": repository} if repository else {}
            made = write_node_folder(folder / node_id, url=broker.url, runs={}, repository=urls)
            if tables:
                _offer(made, f"{node_id.replace('hospital-', 'breast_cancer_')}.csv")
            nodes.append(stack.enter_context(NodeProcess(made)))
        settings = ResearcherSettings(
            id="bench",
            broker=BrokerSettings(hosts=(BrokerHost(host="127.0.0.1", port=broker.port),)),
            repository=RepositorySettings(url=repository) if repository else RepositorySettings(),
            folder=folder / "researcher",
            timeout_s=60.0,
        )
        federation = stack.enter_context(Federation(settings=settings))
        wait_until(lambda: _online(federation) >= set(names), 120, what="all nodes online")
        yield Party(federation, nodes)


def _offer(folder: Path, file: str) -> None:
    (folder / file).write_bytes((DATA / file).read_bytes())
    words = ("--name", "breast-cancer", "--tags", "breast-cancer", "--dir", str(folder))
    done = fedmon("node", "dataset", "add", str(folder / file), *words)
    assert done.returncode == 0, done.stderr


def _online(federation: Federation) -> set[str]:
    return {str(name) for name, node in federation.nodes().items() if node.state is NodeState.ONLINE}


def noop(rounds: int) -> None:
    """Measure a plan that does nothing, against a bare bubblewrap."""
    with party(["node"]) as made:
        plan = made.approve(_written(NOOP))

        def ours() -> float:
            return _timed(lambda: made.run(plan)) * 1000

        def bare() -> float:
            return _timed(lambda: subprocess.run(bare_bubblewrap(), check=True, env={})) * 1000

        level = _level(made, plan)
        if level != "bubblewrap":
            sys.exit(f"the node confines at level {level!r}; this measurement needs bubblewrap")
        for _ in range(3):
            ours()
            bare()
        p50, peer = medians(rounds, ours, bare)
        print_line(BENCH, "noop-p50", ours=p50, peer=NOOP_BUDGET_MS, unit="ms")
        print_line(BENCH, "noop-bubblewrap", ours=p50, peer=peer, unit="ms")
        print_line(BENCH, "noop-slowest", ours=max(ours() for _ in range(rounds)), peer=None, unit="ms")


def _level(made: Party, plan: Path) -> str:
    run = made.federation.run(plan)
    run.result(timeout_s=60)
    job = run.states()["node"].job
    return "" if job is None else str(job.sandbox)


def bare_bubblewrap() -> list[str]:
    """Return the command line of a bare bubblewrap with all namespaces separate, around an idle Python."""
    mounts = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    return ["bwrap", "--unshare-all", "--die-with-parent", "--clearenv", *mounts, "--", sys.executable, "-c", "pass"]


def many(count: int, rounds: int) -> None:
    """Measure that plan on many nodes at once."""
    with party([f"node-{number:02d}" for number in range(count)]) as made:
        plan = made.approve(_written(NOOP))
        made.run(plan)
        taken = [_timed(lambda: made.run(plan)) for _ in range(rounds)]
    print_line(BENCH, f"noop-{count}-nodes", ours=statistics.median(taken), peer=None, unit="s")


def arrays(megabytes: int) -> None:
    """Measure an array on its way to a plan and back."""
    array = np.random.default_rng(7).random(megabytes * 125_000)
    with repository(megabytes) as url, party(["node"], repository=url) as made:
        plan = made.approve(_written(ECHO))
        made.run(plan, inputs={"array": array[:1000]})
        pids = {"node": made.nodes[0].pid, "researcher": os.getpid()}
        before = {name: _forget_peak(pid) for name, pid in pids.items()}
        taken_s, results = _timed_with(lambda: made.run(plan, inputs={"array": array}))
        assert np.array_equal(results["node"]["array"], array)
        print_line(
            BENCH, f"arrays-{megabytes}-mb-in-and-out", ours=2 * array.nbytes / _MB / taken_s, peer=None, unit="MB/s"
        )
        for name, pid in pids.items():
            grown = (_status_bytes(pid, "VmHWM") - before[name]) / _MB
            print_line(BENCH, f"arrays-{megabytes}-mb-rss-{name}", ours=grown, peer=None, unit="MB")


@contextlib.contextmanager
def repository(megabytes: int) -> Iterator[str]:
    """Serve a file repository from a separate process."""
    words = ["broker", "repository", "start", "--port", "0", "--open-uploads", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        sizes = ["--max-file-mib", str(megabytes + 16), "--max-total-mib", str(4 * megabytes + 64)]
        command = [sys.executable, "-m", "fedmon", *words, *sizes, "--data-dir", str(Path(folder) / "files")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            try:
                yield json.loads(_document(process.stdout))["url"]
            finally:
                process.terminate()


def _document(lines: Any) -> str:
    text = ""
    for line in lines:
        text += line
        if line.rstrip() == "}" or (line.startswith("{") and line.rstrip().endswith("}")):
            break
    return text


def federated_round(rounds: int) -> None:
    """Measure one round of the example's logistic regression over three nodes."""
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / "federated_logistic_regression.py")
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with party(list(HOSPITALS), tables=True) as made:
        made.approve(example.PLAN)
        taken: list[float] = []
        for _ in range(rounds):
            ends: list[float] = []
            example.train(made.federation, on_round=lambda *_, ends=ends: ends.append(time.monotonic()))
            taken += [later - sooner for sooner, later in pairwise(ends)]
    print_line(BENCH, "round-3-nodes", ours=statistics.median(taken), peer=None, unit="s")


def _written(source: str) -> Path:
    path = Path(tempfile.mkdtemp()) / "plan.py"
    path.write_text(source)
    return path


def _timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _timed_with(run: Callable[[], dict[str, Any]]) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    results = run()
    return time.perf_counter() - began, results


def _forget_peak(pid: int) -> int:
    """Let the kernel count the peak of a process anew, and return its memory now, in bytes."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _status_bytes(pid, "VmRSS")


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=100)
    arguments = parser.parse_args()
    noop(arguments.rounds)
    many(arguments.nodes, max(3, arguments.rounds // 10))
    arrays(arguments.megabytes)
    federated_round(max(1, arguments.rounds // 25))


if __name__ == "__main__":
    main()
