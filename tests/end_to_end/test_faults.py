"""A node whose line goes dead comes back, and one that its owner is tired of waiting for ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from fedmon.researcher.roster import NodeState
from tests.support.brokers import Broker
from tests.support.node_process import NodeProcess, write_node_folder
from tests.support.proxy import Proxy
from tests.support.raw_researcher import RawResearcher
from tests.support.waiting import pause, wait_until


def test_a_node_behind_a_dead_line_is_seen_offline_and_comes_back_when_it_heals(
    mosquitto: Broker, tmp_path: Path
) -> None:
    with Proxy(mosquitto.port) as line, mosquitto.researcher(tmp_path) as fed:
        keys = {"keepalive_s": 5, "connect_timeout_s": 1.0}
        folder = write_node_folder(tmp_path / "far", url=line.url, broker=keys)
        with NodeProcess(folder):
            wait_until(lambda: "far" in fed.ping(timeout_s=0.5).ok, what="the node to answer")

            line.freeze()
            wait_until(lambda: fed.nodes()["far"].state is NodeState.OFFLINE, what="far offline")
            line.heal()

            wait_until(lambda: "far" in fed.ping(timeout_s=0.5).ok, what="the node to answer again")


def test_a_second_sigterm_ends_a_node_at_once(mosquitto: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "n", url=mosquitto.url)
    with NodeProcess(folder) as node, RawResearcher(mosquitto) as raw:
        wait_until(raw.answered, what="the node to answer")
        assert mosquitto.pid is not None
        # A broker that takes no farewell keeps a node that stops in order for a second, which then ends with code 0.
        pause(mosquitto.pid)
        try:
            node.signal(signal.SIGTERM)
            wait_until(lambda: _ended_by_another_sigterm(node), what="the node to end")
            code = node.wait(1)
        finally:
            os.kill(mosquitto.pid, signal.SIGCONT)

    assert code == 128 + signal.SIGTERM


def _ended_by_another_sigterm(node: NodeProcess) -> bool:
    if node.alive():
        node.signal(signal.SIGTERM)
    return not node.alive()
