"""The loss of one broker of a cluster under load: what is lost or doubled, and how soon all nodes answer again.

``python -m bench.cluster [rabbitmq] [nats] [--nodes 9] [--seconds 40]``. Three brokers of each kind run on loopback:
RabbitMQ (apt `rabbitmq-server`) with quorum queues, NATS (the extra ``bench``) with JetStream in three replicas. Real
nodes have all three in their url, a third of them each broker first; the researcher sits on the first. Under pings,
approvals with owners who decide, runs and samples that are recorded, the first broker is killed (-9). Cases: ``lost``
and ``doubled`` decisions, outcomes and samples (goal 0), and ``back``, the time until every node answers a ping that
was sent after the kill (goal 2 s on RabbitMQ, 7 s on NATS).
"""

from __future__ import annotations

import abc
import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from bench.line import print_line
from bench.outage import Order, holes, wait
from fedmon.common.errors import FedmonError
from fedmon.node.owner.control import ControlClient
from fedmon.researcher.federation import Federation
from fedmon.researcher.runs.handle import RunHandle
from tests.support.brokers import takes_messages
from tests.support.node_process import NodeProcess, plain_environment, write_node_folder
from tests.support.ports import free_port

MEMBERS = 3
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


class Cluster(abc.ABC):
    """Three brokers on loopback, each with a folder of its own; a context manager."""

    name: str
    goal_s: float

    @classmethod
    @abc.abstractmethod
    def available(cls) -> bool:
        """Tell whether it is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = [free_port() for _ in range(MEMBERS)]
        self._children: dict[object, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._stop()

    def url(self, first: int) -> str:
        """Return the url of all members, one of them first."""
        ports = [self.ports[(first + step) % MEMBERS] for step in range(MEMBERS)]
        return "mqtt://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    def kill(self, member: int) -> None:
        """End a member as a crash would."""
        self._signal(self._children.pop(member), signal.SIGKILL)

    @abc.abstractmethod
    def _start(self) -> None:
        """Start the members, and return when all of them let clients in."""

    def _run(self, key: object, words: Sequence[str | Path], environ: Mapping[str, str]) -> None:
        with (self.folder / f"{key}.out").open("ab") as output:
            self._children[key] = subprocess.Popen(
                [str(word) for word in words],
                env=environ,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _wait_ready(self, member: int) -> None:
        def ready() -> bool:
            if self._children[member].poll() is not None:
                sys.exit(f"{self.name} {member} did not start:\n{(self.folder / f'{member}.out').read_text()[-3000:]}")
            return takes_messages(self.ports[member])

        wait(ready, READY_S, f"member {member} of {self.name} being ready")

    def _stop(self) -> None:
        for child in self._children.values():
            self._signal(child, signal.SIGKILL)
        self._children.clear()

    def _signal(self, child: subprocess.Popen[bytes], number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        child.wait(10)


class RabbitMQ(Cluster):
    """RabbitMQ: sessions in quorum queues, which need two of the three members."""

    name, goal_s = "rabbitmq", 2.0
    PROGRAMS = Path("/usr/lib/rabbitmq/bin")  # those on PATH change to another user
    SETTINGS = """
listeners.tcp = none
mqtt.allow_anonymous = true
mqtt.durable_queue_type = quorum
mqtt.subscription_ttl = 3600000
cluster_formation.peer_discovery_backend = classic_config
"""

    @classmethod
    def available(cls) -> bool:
        """Tell whether it is installed."""
        return (cls.PROGRAMS / "rabbitmq-server").exists()

    def _start(self) -> None:
        names = [f"fedmon{member}@localhost" for member in range(MEMBERS)]
        distribution = [free_port() for _ in names]
        epmd = str(free_port())
        (self.folder / ".erlang.cookie").write_text("fedmon")
        (self.folder / ".erlang.cookie").chmod(0o400)
        (self.folder / "plugins").write_text("[rabbitmq_mqtt].\n")
        common = {
            **plain_environment(),
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": epmd,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none",
        }
        self._run("epmd", ["epmd", "-address", "127.0.0.1", "-port", epmd], common)
        for member, name in enumerate(names):
            home = self.folder / f"member{member}"
            home.mkdir()
            listener = f"mqtt.listeners.tcp.1 = 127.0.0.1:{self.ports[member]}\n"
            others = [f"cluster_formation.classic_config.nodes.{at + 1} = {one}\n" for at, one in enumerate(names)]
            (home / "rabbitmq.conf").write_text(self.SETTINGS + listener + "".join(others))
            environ = common | {
                "RABBITMQ_NODENAME": name,
                "RABBITMQ_DIST_PORT": str(distribution[member]),
                "RABBITMQ_MNESIA_BASE": str(home),
                "RABBITMQ_LOG_BASE": str(home),
                "RABBITMQ_GENERATED_CONFIG_DIR": str(home / "generated"),
                "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
                "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
                "RABBITMQ_PID_FILE": str(home / "pid"),
            }
            self._run(member, [self.PROGRAMS / "rabbitmq-server"], environ)
            self._wait_ready(member)
        for words in (["enable_feature_flag", "all"], ["cluster_status", "--formatter", "json"]):
            done = subprocess.run(
                [self.PROGRAMS / "rabbitmqctl", "-n", names[0], "--quiet", *words],
                env=common,
                capture_output=True,
                text=True,
                check=True,
                timeout=READY_S,
            )
        running = json.loads(done.stdout)["running_nodes"]
        if len(running) != MEMBERS:
            sys.exit(f"the cluster of RabbitMQ has {running}, not {names}")


class Nats(Cluster):
    """NATS: sessions in JetStream, three replicas; needs two of the three members."""

    name, goal_s = "nats", 7.0
    PROGRAM = Path(sys.executable).with_name("nats-server")
    SETTINGS = """
server_name: fedmon{member}
listen: "127.0.0.1:{client}"
jetstream {{ store_dir: "{folder}/jetstream{member}" }}
mqtt {{ listen: "127.0.0.1:{mqtt}", stream_replicas: 3, consumer_inactive_threshold: "1h", js_api_timeout: "2s" }}
cluster {{ name: fedmon, listen: "127.0.0.1:{route}", routes: [{routes}] }}
accounts {{ FEDMON: {{ jetstream: {{ max_consumers: 100000 }}, users: [{{ user: fedmon, password: fedmon }}] }} }}
no_auth_user: fedmon
"""

    @classmethod
    def available(cls) -> bool:
        """Tell whether it is installed."""
        return cls.PROGRAM.exists()

    def _start(self) -> None:
        routes = [free_port() for _ in self.ports]
        for member, port in enumerate(self.ports):
            file = self.folder / f"{member}.conf"
            file.write_text(
                self.SETTINGS.format(
                    member=member,
                    folder=self.folder,
                    client=free_port(),
                    mqtt=port,
                    route=routes[member],
                    routes=", ".join(f'"nats://127.0.0.1:{one}"' for one in routes),
                )
            )
            self._run(member, [self.PROGRAM, "-c", file], plain_environment())
        for member in range(MEMBERS):
            self._wait_ready(member)


CLUSTERS: dict[str, type[Cluster]] = {kind.name: kind for kind in (RabbitMQ, Nats)}


class Outcome(msgspec.Struct, kw_only=True):
    """What one measurement found; ``back_s`` is null where the nodes never were complete again."""

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
        """End, when what is under way is done."""
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
                with ControlClient(node.folder) as owner:
                    for plan in owner.call("plan-list")["plans"]:
                        if plan["status"] == "pending":
                            owner.call("plan-decide", plan=plan["sha256"], sha256=plan["sha256"], status="approved")
                            self.decided[node.folder.name, plan["sha256"]] += 1

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
        cluster = stack.enter_context(kind(folder))
        nodes = []
        for number in range(count):
            made = write_node_folder(
                folder / f"node{number}",
                node_id=f"node{number}",
                url=cluster.url(number),
                metrics={"interval_s": 1.0},
            )
            nodes.append(stack.enter_context(NodeProcess(made)))
        federation = stack.enter_context(Federation(cluster.url(0), researcher_id="bench", folder=folder / "bench"))
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
