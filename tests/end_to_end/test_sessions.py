"""Sessions at the broker: kept with several hosts in the url, never with one; what they hold does no harm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.cluster import measure
from fedmon.researcher.federation import Federation
from tests.broker.party import Party
from tests.support.brokers import Broker
from tests.support.clusters import CLUSTERS
from tests.support.listener import Listener
from tests.support.node_process import NodeProcess, audited, write_node_folder
from tests.support.proxy import Proxy
from tests.support.raw_researcher import RawResearcher
from tests.support.requirements import require
from tests.support.waiting import wait_until

LOGIN = re.compile(r"New client connected from \S+ as (\S+) \(p(\d), c(\d),")


def logins(broker: Broker, name: str) -> list[tuple[str, str, str]]:
    """Return the logins of a party, oldest first: client id, version of MQTT, and 1 for a clean session."""
    return [(i, p, c) for i, p, c in LOGIN.findall(broker.log()) if i == name or i.startswith(f"{name}-")]


def twice(broker: Broker) -> str:
    """Return a url of two hosts, which are one broker."""
    return f"mqtt://127.0.0.1:{broker.port},localhost:{broker.port}"


def holds_session(broker: Broker, client_id: str) -> bool:
    """Tell whether the broker keeps a session of a client that is not connected; the session stays."""
    with Party(broker.port, client_id=client_id, clean=False) as party:
        return party.found_session


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_a_killed_node_of_a_cluster_has_a_session_and_comes_back_without_old_commands(
    lasting_broker: Broker, tmp_path: Path, version: str
) -> None:
    name = f"kept{version[0]}"
    folder = write_node_folder(tmp_path / name, url=twice(lasting_broker), broker={"mqtt_version": version})
    with RawResearcher(lasting_broker, name) as researcher, NodeProcess(folder) as node:
        wait_until(lambda: researcher.answered("pong"))
        node.kill()
        client_id, *_ = logins(lasting_broker, name)[-1]

        assert holds_session(lasting_broker, client_id)

        stale = researcher.message("list", node_id=name)
        researcher.send(stale, topic=f"general/nodes/{name}/{name}")
        researcher.replies.clear()
        node.start()
        wait_until(lambda: researcher.answered("pong"))
        asked = researcher.message("list", node_id=name)
        researcher.send(asked, topic=f"general/nodes/{name}/{name}")
        researcher.reply_to(asked)

    assert stale["id"] not in {line.get("id") for line in audited(folder)}
    assert stale["id"] not in {reply["id"] for reply in researcher.replies}


def test_a_node_of_one_host_leaves_no_session(lasting_broker: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "clean", url=lasting_broker.url)
    with RawResearcher(lasting_broker, "clean") as researcher, NodeProcess(folder) as node:
        wait_until(lambda: researcher.answered("pong"))
        node.kill()
    client_id, _, clean = logins(lasting_broker, "clean")[-1]

    assert clean == "1"
    assert not holds_session(lasting_broker, client_id)


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_a_command_sent_while_a_node_changes_hosts_reaches_it(
    lasting_broker: Broker, tmp_path: Path, version: str
) -> None:
    name = f"moved{version[0]}"
    with Proxy(lasting_broker.port) as first, Proxy(lasting_broker.port) as second:
        url = f"mqtt://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        folder = write_node_folder(tmp_path / name, url=url, broker={"mqtt_version": version})
        with (
            Listener(lasting_broker) as listener,
            RawResearcher(lasting_broker, name) as researcher,
            NodeProcess(folder),
        ):
            wait_until(lambda: researcher.answered("pong"))
            second.cut()
            first.cut()
            wait_until(lambda: [each["state"] for each in listener.presences(name)[-1:]] == ["offline"])
            meanwhile = researcher.message("list", node_id=name)
            researcher.send(meanwhile, topic=f"general/nodes/{name}/{name}")
            second.heal()

            reply = researcher.reply_to(meanwhile)

    assert reply["command"] == "list"


@pytest.mark.parametrize(("instance", "clean"), [("main", "0"), ("other", "1")])
def test_of_a_researcher_the_instance_main_alone_keeps_a_session(
    lasting_broker: Broker, tmp_path: Path, instance: str, clean: str
) -> None:
    with Federation(twice(lasting_broker), researcher_id=f"r{clean}", folder=tmp_path, instance=instance):
        assert logins(lasting_broker, f"r{clean}")[-1][2] == clean


@pytest.mark.soak
@pytest.mark.parametrize("name", list(CLUSTERS))
def test_a_killed_host_of_a_cluster_costs_no_decision_no_outcome_and_no_sample(name: str) -> None:
    require(CLUSTERS[name].available(), f"{name} is not installed: apt install rabbitmq-server, pip install .[bench]")

    found = measure(CLUSTERS[name], count=3, seconds=30.0)

    assert (found.decisions_lost, found.outcomes_lost, found.samples_lost) == (0, 0, 0)
    assert (found.decisions_doubled, found.outcomes_doubled, found.samples_doubled) == (0, 0, 0)
    assert min(found.decisions, found.outcomes, found.samples) > 0
    assert found.back_s is not None
