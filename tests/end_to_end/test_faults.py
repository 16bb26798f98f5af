"""Processes that are killed, ids that are used twice, lines that go dead: what was promised still holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from fedmon.researcher.roster import NodeState
from tests.support.brokers import Broker
from tests.support.chance import seeded
from tests.support.node_process import NO_RUNS, NodeProcess, audited, write_node_folder
from tests.support.proxy import Proxy
from tests.support.raw_researcher import RawResearcher, plan_fields
from tests.support.shell import begun
from tests.support.shell_here import document_here
from tests.support.waiting import pause, wait_until


def test_a_node_behind_a_dead_line_is_seen_offline_and_comes_back_when_it_heals(
    mosquitto: Broker, tmp_path: Path
) -> None:
    with Proxy(mosquitto.port) as line, mosquitto.researcher(tmp_path) as fed:
        keys = {"keepalive_s": 5, "connect_timeout_s": 1.0}
        folder = write_node_folder(tmp_path / "far", node_id="far", url=line.url, runs=NO_RUNS, broker=keys)
        with NodeProcess(folder):
            wait_until(lambda: "far" in fed.ping(timeout_s=0.5).ok, what="the node to answer")

            line.freeze()
            wait_until(lambda: fed.nodes()["far"].state is NodeState.OFFLINE, what="far offline")
            line.heal()

            wait_until(lambda: "far" in fed.ping(timeout_s=0.5).ok, what="the node to answer again")


def test_a_second_sigterm_ends_a_node_at_once(mosquitto: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "n", node_id="n", url=mosquitto.url, runs=NO_RUNS)
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


def approved_without_audit(folder: Path) -> list[str]:
    """Return the plans that the register calls approved and that no line of the audit says so of."""
    listed = document_here("node", "plan", "list", "--dir", folder)["plans"]
    said = {line.get("sha256") for line in audited(folder) if "approved" in json.dumps(line)}
    return [plan["sha256"] for plan in listed if plan["status"] == "approved" and plan["sha256"] not in said]


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.soak)])
def test_a_node_killed_during_approvals_loses_nothing_it_acknowledged(
    mosquitto: Broker, tmp_path: Path, kills: int
) -> None:
    folder = write_node_folder(tmp_path / "n", node_id="n", url=mosquitto.url, runs=NO_RUNS)
    chance = seeded()
    acknowledged: dict[str, str] = {}
    with RawResearcher(mosquitto) as raw:
        for round_number in range(kills):
            message = raw.message("approval", **plan_fields(f"number = {round_number}\n"))
            with NodeProcess(folder) as node:
                wait_until(lambda: raw.answered("pong"), what="the node to answer")
                raw.send(message)
                threading.Event().wait(chance.uniform(0, 0.02))
                if chance.random() < 0.5:
                    words = ("node", "plan", "approve", message["sha256"], "--dir", str(folder), "--json")
                    decide = begun(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    threading.Event().wait(chance.uniform(0, 0.6))
                    node.kill()
                    decide.wait(60)
                else:
                    threading.Event().wait(chance.uniform(0, 0.02))
                    node.kill()
            for reply in list(raw.replies):
                if reply["command"] == "approval":
                    acknowledged[reply["id"]] = reply["sha256"]
            raw.replies.clear()
    listed = document_here("node", "plan", "list", "--dir", folder)["plans"]
    kept = [plan["sha256"] for plan in listed]
    assert set(acknowledged.values()) <= set(kept), "an acknowledged effect was lost"
    assert len(kept) == len(set(kept)), "an effect was doubled"
    assert approved_without_audit(folder) == []
    document_here("node", "audit", "verify", "--dir", folder)
