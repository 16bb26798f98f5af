"""Two regions: a broker each, three nodes each, joined by the bridge of ``broker/regions``, which is cut."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.outage import Order, holes
from fedmon.broker.users import Role
from fedmon.common.wire import topics
from fedmon.node.owner.control import call_daemon
from fedmon.researcher.roster import NodeState
from tests.broker.party import Party
from tests.broker.production import RENDERED, Production, mosquitto_client
from tests.support.brokers import answering
from tests.support.node_process import NodeProcess, write_node_folder
from tests.support.passwords import PASSWORD
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.waiting import stays, wait_until

FILES = RENDERED / "regions"
NORTH, SOUTH = ("n1", "n2", "n3"), ("s1", "s2", "s3")
PLAN = """
from fedmon import TrainingPlan


class Plan(TrainingPlan):
    def run(self, context):
        return {"number": NUMBER}
"""


class Regions:
    """The centre with the nodes of the north and a researcher, and the south behind a bridge that can be cut."""

    def __init__(self, folder: Path, running: contextlib.ExitStack) -> None:
        self.folder = folder
        self.bridge_port = free_port()
        listener = (FILES / "centre.conf").read_text()
        listener = listener.replace("listener 8888", f"listener {self.bridge_port} 127.0.0.1")
        self.centre = Production(
            folder / "centre", dict.fromkeys(NORTH, Role.NODE) | {"alice": Role.RESEARCHER}, appended=listener
        )
        shutil.copy(FILES / "acl/bridges", folder / "centre/acl/bridges")
        words = ["-b", "-c", str(folder / "centre/passwords/bridges"), "region-south", PASSWORD]
        subprocess.run([mosquitto_client("mosquitto_passwd"), *words], check=True, capture_output=True)
        running.enter_context(self.centre)
        self.bridge = running.enter_context(Proxy(self.bridge_port))

        text = (FILES / "region.conf").read_text()
        for placeholder, value in {
            "centre.example.org:8888": f"127.0.0.1:{self.bridge.port}",
            "remote_password CHANGE-ME": f"remote_password {PASSWORD}",
            "region-north-CHANGE-ME": "region-south-0123456789abcdef",
            "region-north": "region-south",
        }.items():
            assert placeholder in text
            text = text.replace(placeholder, value)
        self.region = Production(folder / "region", dict.fromkeys(SOUTH, Role.NODE), appended=text)
        shutil.copy(self.centre.ca_file, folder / "region/certificates/centre-ca.crt")
        running.enter_context(self.region)

    def node(self, node_id: str) -> NodeProcess:
        """Return a node of its region's broker, not started."""
        broker = self.centre if node_id in NORTH else self.region
        return NodeProcess(
            write_node_folder(
                self.folder / node_id,
                url=broker.url(node_id),
                researchers=["alice"],
                broker=broker.broker_settings(node_id),
                metrics={"interval_s": 1.0},
            )
        )


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Regions]:
    with contextlib.ExitStack() as running:
        yield Regions(tmp_path, running)


def approve(nodes: dict[str, NodeProcess], *names: str) -> None:
    """Have owners approve what waits for them."""
    for name in names:
        folder = nodes[name].folder
        for plan in call_daemon(folder, "plan-list")["plans"]:
            if plan["status"] == "pending":
                call_daemon(folder, "plan-decide", plan=plan["sha256"], status="approved")


@pytest.mark.parametrize(
    "cut_s",
    [pytest.param(3.0, marks=pytest.mark.timeout(300)), pytest.param(30.0, marks=[pytest.mark.soak])],
)
def test_a_cut_between_regions_costs_no_decision_and_no_sample(regions: Regions, tmp_path: Path, cut_s: float) -> None:
    plans = [tmp_path / f"plan{number}.py" for number in range(2)]
    for number, plan in enumerate(plans):
        plan.write_text(PLAN.replace("NUMBER", str(number)))
    order, heard = Order(), Counter[tuple[str, str]]()
    with contextlib.ExitStack() as running:
        at_centre = running.enter_context(Party(regions.centre.observer_port, client_id="at-centre"))
        in_region = running.enter_context(Party(regions.region.observer_port, client_id="in-region"))
        at_centre.subscribe("#", "$SYS/broker/connection/#")
        in_region.subscribe("#")
        nodes = {name: running.enter_context(regions.node(name)) for name in NORTH + SOUTH}
        federation = running.enter_context(regions.centre.researcher(tmp_path))
        federation.on("decision", lambda one: heard.update([(str(one.node_id), one.sha256)]))
        wait_until(lambda: answering(federation, timeout_s=5.0) == set(nodes), what="six nodes answering")
        running.enter_context(federation.monitor(order.take, interval_s=1.0, ordered=True))
        record = running.enter_context(federation.record(tmp_path / "store.fedmon", interval_s=1.0))
        assert set(federation.search(["mri"]).ok) == set(nodes)
        assert [set(federation.approve(plan).ok) for plan in plans] == [set(nodes), set(nodes)]
        wait_until(lambda: order.newest_t.keys() == set(nodes), what="a sample of each node")

        regions.bridge.refuse()
        approve(nodes, *nodes)
        wait_until(lambda: {name for name, _ in heard} == set(NORTH), what="the decisions of the north")
        nodes["s1"].kill()
        assert stays(lambda: answering(federation, timeout_s=5.0) == set(NORTH), cut_s)
        # Nobody told the centre that the south is gone.
        assert federation.nodes()["s1"].state is NodeState.ONLINE

        regions.bridge.heal()
        wait_until(lambda: answering(federation, timeout_s=5.0) == set(nodes) - {"s1"}, what="five nodes answering")
        wait_until(lambda: federation.nodes()["s1"].state is NodeState.OFFLINE, what="the presence of the killed node")
        nodes["s1"].start()
        wait_until(lambda: answering(federation, timeout_s=5.0) == set(nodes), what="six nodes answering again")
        back_t = time.time()
        wait_until(lambda: len(heard) == len(nodes) * len(plans), what="every decision")
        wait_until(lambda: min(order.newest_t.values()) > back_t and not record.counts.pending, what="every sample")
        record.stop()

    assert set(heard.values()) == {1}
    assert (record.lost, holes(tmp_path / "store.fedmon"), order.skipped, order.duplicated) == (0, 0, 0, 0)
    of_north = {topic for topic in in_region.topics() if topic.rpartition("/")[2] in NORTH}
    assert {topic.split("/")[1] for topic in of_north} <= {"nodes"}
    channels = {topic.split("/")[1] for topic in in_region.topics()}
    assert channels <= {"nodes", "researcher", "status", "monitoring", "logger"}
    assert "alice" not in {topic.rpartition("/")[2] for topic in in_region.topics() if "/researcher/" in topic}
    assert [topic for topic in at_centre.topics() if topic.startswith("$SYS")] == []
    samples = Counter(payload for topic, payload in at_centre.heard if topic == topics.monitoring("s2"))
    assert set(samples.values()) == {1}


def test_a_bridge_speaks_and_forgets_for_nodes_and_never_speaks_for_a_researcher(regions: Regions) -> None:
    refused = [topics.broadcast("alice"), topics.command("alice", "n1"), topics.broadcast("region-south"), "other/x"]
    with (
        Party(regions.centre.observer_port, client_id="everything") as everything,
        regions.region.observer() as admin,
        Party(
            regions.bridge_port,
            client_id="x",
            credentials=("region-south", PASSWORD),
            ca_file=regions.centre.ca_file,
        ) as bridge,
    ):
        everything.subscribe("#")
        bridge.subscribe("#")
        for payload in (b"online", b""):  # the second as `fedmon nodes forget` clears a presence
            admin.publish(topics.status("s8"), payload, retain=True)
            everything.wait_for(topics.status("s8"), payload)
        everything.subscribe(topics.ALL_STATUS)  # brings it again if it is still retained
        for topic in refused:
            bridge.publish(topic, b"forged")
        bridge.publish(topics.status("s9"), b"here")
        everything.publish(topics.status("n9"), b"not for regions")
        everything.publish(topics.monitoring("n9"), b"not for regions")
        everything.publish(topics.broadcast("end"), b"")
        bridge.wait_for(topics.broadcast("end"))
        everything.wait_for(topics.broadcast("end"))

        assert [topic for topic, payload in everything.heard if payload == b"forged"] == []
        assert topics.status("s9") in everything.topics()
        assert [payload for topic, payload in everything.heard if topic == topics.status("s8")][-1] == b""
        assert {topic.split("/")[1] for topic in bridge.topics()} == {"nodes"}
