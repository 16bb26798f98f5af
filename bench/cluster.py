"""The loss of one broker of a cluster under load: the data lost or doubled, and how soon all nodes answer again.

``python -m bench.cluster [rabbitmq] [nats] [--nodes 9] [--seconds 40]``. Three brokers of each kind run on loopback,
from the files in ``broker/clusters``: RabbitMQ (apt `rabbitmq-server`) with quorum queues, NATS (the extra ``bench``)
with JetStream in three replicas; users, TLS and limits are theirs. Real nodes have all three in their url, a third of
them each broker first; the researcher sits on the first. Under pings, approvals with owners who decide, runs, and
samples that are recorded, the first broker is killed (-9). Cases: ``lost`` and ``doubled`` decisions, outcomes and
samples (goal 0), and ``back``, the time until every node answers a ping that was sent after the kill (goal 2 s on
RabbitMQ, 7 s on NATS).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench.line import print_line
from bench.outage import Order, holes, wait
from fedmon.broker.users import Role
from fedmon.common.errors import FedmonError
from fedmon.node.owner.control import call_daemon
from fedmon.researcher.federation import Federation
from fedmon.researcher.runs.handle import RunHandle
from tests.support.clusters import CLUSTERS, Cluster
from tests.support.node_process import NodeProcess, write_node_folder

READY_S = 120.0
DRAIN_S = 60.0
PLAN = """
import time

from fedmon import TrainingPlan


class Plan{number}(TrainingPlan):
    def run(self, context):
        time.sleep(1)
        return {{"number": {number}}}
"""


class Outcome(msgspec.Struct, kw_only=True):
    """The result of one measurement; ``back_s`` is null where the nodes never were complete again."""

    back_s: float | None
    decisions: int
    decisions_lost: int
    decisions_doubled: int
    outcomes: int
    outcomes_lost: int
    outcomes_doubled: int
    samples: int
    samples_lost: int
    samples_doubled: int
    pings: int
    pings_whole: int
    approvals: int
    approvals_whole: int


class Load:
    """A researcher who pings, has plans approved and run, and owners who decide, until `stop`."""

    def __init__(self, federation: Federation, nodes: Sequence[NodeProcess], folder: Path) -> None:
        self._federation, self._nodes, self._folder = federation, nodes, folder
        self._ending = threading.Event()
        self.pings: list[tuple[float, float, bool]] = []
        self.approvals: list[bool] = []
        self.decided: Counter[tuple[str, str]] = Counter()
        self.heard: Counter[tuple[str, str]] = Counter()
        self.runs: list[RunHandle] = []
        federation.on("decision", lambda one: self.heard.update([(str(one.node_id), one.sha256)]))
        works = (self._ping, self._approve, self._decide, self._run_plans)
        self._threads = [threading.Thread(target=work, name=f"load{work.__name__}") for work in works]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End when the work under way is done."""
        self._ending.set()
        for thread in self._threads:
            thread.join(60)

    def _every(self, period_s: float) -> Iterator[int]:
        for number in itertools.count():
            yield number
            if self._ending.wait(period_s):
                return

    def _ping(self) -> None:
        for _ in self._every(0.2):
            started, whole = time.monotonic(), False
            with contextlib.suppress(FedmonError):
                whole = len(self._federation.ping(timeout_s=1.0).ok) == len(self._nodes)
            self.pings.append((started, time.monotonic(), whole))

    def _approve(self) -> None:
        for number in self._every(2.0):
            plan = self._folder / f"plan{number}.py"
            plan.write_text(PLAN.format(number=number))
            whole = False
            with contextlib.suppress(FedmonError):
                whole = len(self._federation.approve(plan, timeout_s=10.0).ok) == len(self._nodes)
            self.approvals.append(whole)

    def _decide(self) -> None:
        for _ in self._every(0.5):
            for node in self._nodes:
                for plan in call_daemon(node.folder, "plan-list")["plans"]:
                    if plan["status"] == "pending":
                        sha256 = plan["sha256"]
                        call_daemon(node.folder, "plan-decide", plan=sha256, status="approved")
                        self.decided[node.folder.name, sha256] += 1

    def _run_plans(self) -> None:
        plan = self._folder / "plan0.py"
        ready = {node.folder.name for node in self._nodes}
        for _ in self._every(4.0):
            if not ready <= {node for node, _ in list(self.heard)}:
                continue
            with contextlib.suppress(FedmonError):
                self.runs.append(self._federation.run(plan, timeout_s=10.0))


def _outcomes(nodes: Sequence[NodeProcess]) -> Counter[tuple[str, str]]:
    """Return how often each job ended, by node and job, as the nodes' audits have it."""
    ended: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        lines = map(json.loads, (node.folder / "audit.jsonl").read_text().splitlines())
        ended.update((node.folder.name, line["job"]) for line in lines if line["event"] == "run-outcome")
    return ended


def measure(kind: type[Cluster], *, count: int, seconds: float, settled_s: float = 12.0) -> Outcome:
    """Kill one member of a cluster after ``settled_s`` of load, and go on for ``seconds``."""
    order = Order()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        names = [f"node{number}" for number in range(count)]
        users = dict.fromkeys(names, Role.NODE) | {"bench": Role.RESEARCHER}
        cluster = stack.enter_context(kind(folder / "cluster", users))
        nodes = []
        for number, node_id in enumerate(names):
            made = write_node_folder(
                folder / node_id,
                url=cluster.url(number),
                broker=cluster.broker_settings(node_id),
                runs={},
                metrics={"interval_s": 1.0},
            )
            nodes.append(stack.enter_context(NodeProcess(made)))
        federation = stack.enter_context(
            Federation(
                cluster.url(0),
                researcher_id="bench",
                folder=folder / "bench",
                username="bench",
                password_file=cluster.password_file,
                ca_file=cluster.ca_file,
            )
        )
        wait(lambda: len(federation.ping(timeout_s=2.0).ok) == count, READY_S, f"{count} nodes being there")
        stack.enter_context(federation.monitor(order.take, interval_s=1.0, ordered=True))
        record = stack.enter_context(federation.record(folder / "store.fedmon", interval_s=1.0))
        load = Load(federation, nodes, folder)
        load.start()
        stack.callback(load.stop)
        threading.Event().wait(settled_s)

        killed_at = time.monotonic()
        cluster.kill(0)
        threading.Event().wait(seconds)
        load.stop()
        ended_t = time.time()

        with contextlib.suppress(TimeoutError):
            wait(lambda: load.decided.keys() <= load.heard.keys(), DRAIN_S, "every decision")
        for run in load.runs:
            run.wait(DRAIN_S)
        with contextlib.suppress(TimeoutError):
            wait(lambda: min(order.newest_t.values()) > ended_t and not record.counts.pending, DRAIN_S, "every sample")
        record.stop()
        ended = _outcomes(nodes)
        known = {
            (str(node), run.job_id)
            for run in load.runs
            for node, state in run.states().items()
            if state.job is not None and state.is_over
        }
        after = [(end, whole) for start, end, whole in load.pings if start > killed_at]
        whole_at = [end for end, whole in after if whole]
        return Outcome(
            back_s=min(whole_at) - killed_at if whole_at else None,
            decisions=len(load.decided),
            decisions_lost=len(load.decided.keys() - load.heard.keys()),
            decisions_doubled=sum(times - 1 for times in load.heard.values()),
            outcomes=len(ended),
            outcomes_lost=len(ended.keys() - known),
            outcomes_doubled=sum(times - 1 for times in ended.values()),
            samples=record.counts.stored,
            samples_lost=record.lost + holes(folder / "store.fedmon") + order.skipped,
            samples_doubled=order.duplicated,
            pings=len(load.pings),
            pings_whole=sum(whole for _, _, whole in load.pings),
            approvals=len(load.approvals),
            approvals_whole=sum(load.approvals),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clusters", nargs="*", metavar="{rabbitmq,nats}", help="default: both")
    parser.add_argument("--nodes", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=40.0)
    options = parser.parse_args()
    if unknown := set(options.clusters) - set(CLUSTERS):
        parser.error(f"no such cluster: {', '.join(sorted(unknown))}; use rabbitmq or nats")
    for name in options.clusters or CLUSTERS:
        kind = CLUSTERS[name]
        if not kind.available():
            sys.exit(f"{name} is not installed; see the first lines of {__file__}")
        found = measure(kind, count=options.nodes, seconds=options.seconds)
        print_line("cluster", f"{name}-back", ours=found.back_s or float("inf"), peer=kind.goal_s, unit="s")
        for what in ("decisions", "outcomes", "samples"):
            for how in ("lost", "doubled"):
                of = getattr(found, what)
                ours = getattr(found, f"{what}_{how}")
                print_line("cluster", f"{name}-{what}-{how}", ours=ours, peer=None, unit=f"of {of}")
        for what in ("pings", "approvals"):
            of = getattr(found, what)
            print_line(
                "cluster", f"{name}-{what}-whole", ours=getattr(found, f"{what}_whole"), peer=None, unit=f"of {of}"
            )


if __name__ == "__main__":
    main()
