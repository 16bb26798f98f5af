"""What must not stop, stall or fool a node: strangers, floods, a start that fails, a boot file that is damaged."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.common.settings import ResearcherSettings
from fedmon.node.folder import read_boot
from fedmon.researcher.federation import Federation
from tests.support.brokers import Broker
from tests.support.node_process import NO_RUNS, NodeProcess, fedmon, write_node_folder
from tests.support.raw_researcher import RawResearcher
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def node(lasting_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that obeys alice."""
    path = tmp_path_factory.mktemp("node") / "n"
    folder = write_node_folder(path, node_id="n", url=lasting_broker.url, runs=NO_RUNS, researchers=["alice"])
    with NodeProcess(folder) as running, RawResearcher(lasting_broker, "alice") as alice:
        wait_until(alice.answered, what="the node to answer")
        yield running


def test_a_stranger_that_floods_a_node_with_costly_json_does_not_delay_others(
    lasting_broker: Broker, node: NodeProcess
) -> None:
    costly = b'{"a":[' + b",".join([b"[" * 30 + b"]" * 30] * 1_500) + b"]}"
    with RawResearcher(lasting_broker, "alice") as alice, RawResearcher(lasting_broker, "mallory") as raw:
        for _ in range(200):
            raw.send(costly)
        started = time.monotonic()
        alice.ask("ping")

        assert time.monotonic() - started < 20


def test_a_command_and_its_reply_have_their_lines(lasting_broker: Broker, node: NodeProcess) -> None:
    with RawResearcher(lasting_broker, "alice") as alice:
        pong = alice.ask("ping")
    lines = [json.loads(line) for line in (node.folder / "audit.jsonl").read_text().splitlines()]

    assert [line["event"] for line in lines if line.get("id") == pong["id"]] == ["command", "reply"]


def test_a_start_that_fails_ends_with_its_reason(tmp_path: Path, lasting_broker: Broker) -> None:
    folder = write_node_folder(tmp_path / "n", node_id="m", url=lasting_broker.url, runs=NO_RUNS)
    (folder / "control.sock").mkdir()

    done = fedmon("node", "start", "--dir", str(folder), timeout_s=60)

    assert done.returncode == 1
    assert "control.sock" in done.stderr


def test_a_node_that_is_told_to_read_its_settings_again_and_again_still_ends_in_order(
    tmp_path: Path, lasting_broker: Broker
) -> None:
    folder = write_node_folder(tmp_path / "n", node_id="m", url=lasting_broker.url, runs=NO_RUNS)
    with NodeProcess(folder) as node:
        wait_until(lambda: "connected to the broker" in node.log())
        node.signal(signal.SIGHUP)
        wait_until(lambda: "settings read again" in node.log())
        node.signal(signal.SIGTERM)
        while node.alive():
            node.signal(signal.SIGHUP)

        assert node.wait(60) == 0, node.log()[-2000:]
        assert "Traceback" not in node.log()


def test_changed_settings_that_wait_for_the_next_start_are_named_in_the_log(tmp_path: Path, mosquitto: Broker) -> None:
    folder = write_node_folder(tmp_path / "n", node_id="m", url=mosquitto.url, runs=NO_RUNS)
    settings = ResearcherSettings(id="alice", broker=mosquitto.settings, folder=tmp_path / "r")
    with NodeProcess(folder) as node, Federation(settings=settings) as fed:
        wait_until(lambda: "m" in fed.nodes())
        write_node_folder(folder, node_id="other", url=mosquitto.url, runs=NO_RUNS, recording={"enabled": False})
        node.signal(signal.SIGHUP)
        wait_until(lambda: "settings read again" in node.log())

        assert "changed settings that wait for the next start: id, recording.enabled\n" in node.log()
        with fed.monitor(interval_s=0.5) as watch:
            sample = watch.next(timeout_s=60)

        assert (sample and sample.node_id, set(fed.nodes())) == ("m", {"m"})
        status = fedmon("node", "status", "--dir", str(folder), "--json", timeout_s=60)
        assert json.loads(status.stdout)["node_id"] == "m"


def test_a_presence_that_is_said_again_holds_what_the_owner_switched_off(tmp_path: Path, mosquitto: Broker) -> None:
    folder = write_node_folder(tmp_path / "n", node_id="m", url=mosquitto.url, runs={"enabled": True})
    settings = ResearcherSettings(id="alice", broker=mosquitto.settings, folder=tmp_path / "r")
    with NodeProcess(folder) as node, RawResearcher(mosquitto) as raw, Federation(settings=settings) as fed:
        wait_until(lambda: "m" in fed.nodes() and "run" in fed.nodes()["m"].capabilities)
        write_node_folder(folder, node_id="m", url=mosquitto.url, runs={"enabled": False})
        node.signal(signal.SIGHUP)
        wait_until(lambda: "settings read again" in node.log())

        raw.send(b"", topic="general/status/m", retain=True)  # the node says its presence again

        wait_until(lambda: "run" not in fed.nodes()["m"].capabilities)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", "²".encode(), b"9" * 5000, b"", b"-4"])
def test_a_damaged_boot_file_is_passed_over_and_the_count_goes_on_above(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "boot"
    file.write_bytes(content)

    assert read_boot(file) >= 1_700_000_000
