"""Nothing that a broker or another client does ends a node: it says what is wrong, tries again, and recovers."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

import pytest

from bench.echo_nodes import presence
from fedmon.common.clock import Deadline
from tests.support.brokers import Broker, answering
from tests.support.listener import Listener
from tests.support.node_process import NodeProcess, write_node_folder
from tests.support.proxy import Proxy
from tests.support.raw_researcher import RawResearcher
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until


def screen(node: NodeProcess) -> str:
    """Return what `fedmon node status` shows."""
    return fedmon_here("node", "status", "--dir", str(node.folder)).stdout


@pytest.mark.soak
def test_a_broker_that_crashes_for_a_minute_ends_no_node(mosquitto: Broker, tmp_path: Path) -> None:
    names = {"north", "south", "west"}
    with contextlib.ExitStack() as running:
        nodes = [
            running.enter_context(NodeProcess(write_node_folder(tmp_path / name, url=mosquitto.url)))
            for name in sorted(names)
        ]
        federation = running.enter_context(mosquitto.researcher(tmp_path))
        wait_until(lambda: answering(federation) == names, what="every node to answer")

        for _ in range(75):
            next_crash = Deadline(0.8)
            mosquitto.kill()
            mosquitto.start()
            wait_until(next_crash.passed)
        wait_until(lambda: answering(federation) == names, 5, what="every node to answer again")

        assert [node.alive() for node in nodes] == [True] * 3


def test_a_node_reports_that_its_connection_keeps_getting_lost_until_one_lasts(
    mosquitto: Broker, tmp_path: Path
) -> None:
    with (
        Proxy(mosquitto.port) as link,
        RawResearcher(mosquitto) as raw,
        Listener(mosquitto, "general/logger/#") as told,
    ):
        with NodeProcess(write_node_folder(tmp_path / "far", url=link.url)) as node:

            def reported_after_a_cut() -> str:
                link.heal()
                node.wait_online()
                link.cut()
                wait_until(lambda: not node.live()["connected"], what="the loss")
                return str(node.live()["flapping"] or "")

            reported, shown = wait_until(reported_after_a_cut, what="the report"), screen(node)
            link.heal()
            wait_until(lambda: not node.live()["flapping"], what="a connection that lasts")
            wait_until(lambda: "lasts again" in node.log(), what="a warning that it lasts")
            raw.replies.clear()
            wait_until(raw.answered, what="the node to answer")

        assert re.search(r"([3-9]|\d\d) connections in a row ended within 2 s", reported)
        assert "FLAPPING" in shown
        assert node.log().count("connections in a row ended within 2 s") == 1
        assert told.logs("far") == []


def test_two_nodes_with_one_id_go_on_and_report_each_other(mosquitto: Broker, tmp_path: Path) -> None:
    with RawResearcher(mosquitto) as raw, contextlib.ExitStack() as running:
        twins = [
            running.enter_context(NodeProcess(write_node_folder(tmp_path / name, node_id="twin", url=mosquitto.url)))
            for name in ("one", "two")
        ]
        wait_until(lambda: all(twin.live().get("duplicate") for twin in twins), what="both to report the other")
        ping = raw.message("ping")
        raw.send(ping)
        wait_until(lambda: [reply["id"] for reply in list(raw.replies)].count(ping["id"]) == 2, what="both to answer")

        for twin in twins:
            assert "another process uses the id 'twin'" in screen(twin)
            assert twin.log().count("another process uses the id 'twin'") == 1
            assert twin.live()["connected"]


def test_a_node_and_a_copy_of_its_folder_go_on_and_one_serves_when_the_other_ends(
    mosquitto: Broker, tmp_path: Path
) -> None:
    folder = write_node_folder(tmp_path / "one", node_id="twin", url=mosquitto.url)
    with NodeProcess(folder) as first:
        first.wait_online()
        first.stop()
    shutil.copytree(folder, tmp_path / "two")
    with RawResearcher(mosquitto) as raw, NodeProcess(folder) as first, NodeProcess(tmp_path / "two") as second:
        wait_until(
            lambda: all(twin.live().get("duplicate") for twin in (first, second)), what="both to report the other"
        )
        assert first.alive()
        second.stop()
        raw.replies.clear()
        wait_until(raw.answered, 90, what="the other one to answer")

        assert first.alive()


def test_one_presence_of_a_foreign_boot_is_reported_and_ones_own_older_ones_are_not(
    mosquitto: Broker, tmp_path: Path
) -> None:
    folder = write_node_folder(tmp_path / "ward", url=mosquitto.url)
    with RawResearcher(mosquitto) as raw, NodeProcess(folder) as node:
        wait_until(raw.answered, what="the node to answer")
        for _ in range(2):
            node.kill()
            node.start()
            node.wait_online()
        mosquitto.restart()
        node.wait_online()
        before = node.live()["duplicate"]

        raw.send(presence("ward", 1_000), topic="general/status/ward", retain=True)
        duplicate = wait_until(lambda: node.live()["duplicate"], what="the report")

    assert (before, duplicate["boot"]) == (None, 1_000)
    assert node.log().count("another process uses the id 'ward': boot 1000") == 1


def test_client_ids_end_in_128_random_bits_that_a_private_file_keeps(mosquitto: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "ward", url=mosquitto.url, policy={"log_level": "DEBUG"})
    for _ in range(2):
        with NodeProcess(folder) as node, mosquitto.researcher(tmp_path) as federation:
            wait_until(lambda: answering(federation) == {"ward"}, what="the node to answer")
            with mosquitto.researcher(tmp_path) as second:
                assert second.instance != "main"

    log = mosquitto.log()
    bits = [(tmp_path / name / "client_id").read_text().strip() for name in ("ward", "alice")]
    assert set(re.findall(r" as (ward\S*) ", log)) == {f"ward-{bits[0]}"}
    assert set(re.findall(r" as (alice-main\S*) ", log)) == {f"alice-main-{bits[1]}"}
    assert all(re.fullmatch(r"alice-\w+-[0-9a-f]{32}", one) for one in re.findall(r" as (alice\S*) ", log))
    assert [(tmp_path / name / "client_id").stat().st_mode & 0o777 for name in ("ward", "alice")] == [0o600] * 2
    assert bits[0] not in node.log()
