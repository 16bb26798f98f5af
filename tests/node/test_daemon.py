"""What must not stop, stall or fool a node: strangers, floods, a start that fails, a boot file that is damaged."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.common.store.recording import Recording
from fedmon.node.folder import read_boot
from tests.node.runs.run_desks import bench, digest
from tests.support.brokers import Broker
from tests.support.databases import execute
from tests.support.envelopes import approval
from tests.support.listener import Listener
from tests.support.node_process import NO_RUNS, NodeProcess, fedmon, write_node_folder
from tests.support.raw_researcher import RawResearcher
from tests.support.shell_here import document_here
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def node(lasting_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that obeys alice."""
    path = tmp_path_factory.mktemp("node") / "n"
    folder = write_node_folder(path, url=lasting_broker.url, researchers=["alice"])
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


def test_a_start_that_fails_ends_with_its_reason(tmp_path: Path, lasting_broker: Broker) -> None:
    folder = write_node_folder(tmp_path / "m", url=lasting_broker.url)
    (folder / "control.sock").mkdir()

    done = fedmon("node", "start", "--dir", str(folder), timeout_s=60)

    assert done.returncode == 1
    assert "control.sock" in done.stderr


def test_what_cannot_be_done_at_a_start_is_logged_and_the_rest_is_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # given plans of which one is no Python and another lost its file, and neither defaults nor room for a copy
    folder, lost = tmp_path / "n", b"lost = 1\n"
    with bench(folder, is_ready=False, runs=NO_RUNS, node={"default_plans_dir": str(tmp_path / "none")}) as node:
        for source in (lost, b"def f(:\n"):
            node.ask(approval(source))
        (folder / "plans" / digest(lost)).unlink()
        (folder / "state.sqlite.new").mkdir()

        # when it starts
        node.local.take_up()
        node.local.workers.start()

        (decision,) = node.wait(lambda: [each for each in node.said if "problem" in each], what="the finding")

    assert (decision["command"], decision["problem"]) == ("plan-decision", "line 1: invalid syntax")
    assert f"plan {digest(lost)} cannot be checked: cannot read the plan file" in caplog.text
    assert "the default plans were not taken in: folder" in caplog.text
    assert "the register was not copied: cannot write" in caplog.text


def test_a_message_on_a_topic_that_names_no_sender_is_counted_and_not_answered(tmp_path: Path) -> None:
    with bench(tmp_path / "n", is_ready=False) as node:
        node.local.router.receive("general/nodes/no id", b"{}")

        assert (node.local.counters()["refused malformed"], node.sent) == (1, [])


def test_a_node_whose_recording_is_of_a_newer_fedmon_says_so_and_its_samples_are_recorded(
    tmp_path: Path, mosquitto: Broker
) -> None:
    folder = write_node_folder(tmp_path / "newer", url=mosquitto.url)
    with Recording(folder / "recording.sqlite"):
        pass
    execute(folder / "recording.sqlite", "PRAGMA user_version = 99")
    before = (folder / "recording.sqlite").read_bytes()
    with NodeProcess(folder) as node, mosquitto.researcher(tmp_path) as fed:
        node.wait_online()
        with fed.record(tmp_path / "store", nodes=["newer"], interval_s=0.2) as record:
            wait_until(lambda: record.counts.stored >= 3, what="live samples in the record")
        with RawResearcher(mosquitto, "bob") as bob:
            refused = bob.ask("monitor", action="resend", stream="host")

    assert (folder / "recording.sqlite").read_bytes() == before
    assert (refused["code"], "no recording (recording has version 99 and" in refused["reason"]) == (
        "unsupported",
        True,
    )


def test_a_node_that_is_told_to_read_its_settings_again_and_again_still_ends_in_order(
    tmp_path: Path, lasting_broker: Broker
) -> None:
    folder = write_node_folder(tmp_path / "m", url=lasting_broker.url)
    with NodeProcess(folder) as node:
        wait_until(lambda: "connected to the broker" in node.log())
        node.signal(signal.SIGHUP)
        wait_until(lambda: "settings read again" in node.log())
        blocked = set[int]()
        for thread in Path(f"/proc/{node.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if thread.name != str(node.pid):
                    blocked.add(int((thread / "status").read_text().partition("SigBlk:")[2].split()[0], 16))
        # A thread that takes one of them would end the node while the main thread does not wait for it.
        assert blocked == {sum(1 << number - 1 for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))}
        node.signal(signal.SIGTERM)
        while node.alive():
            node.signal(signal.SIGHUP)

        assert node.wait(60) == 0, node.log()[-2000:]
        assert "Traceback" not in node.log()


def test_changed_settings_that_wait_for_the_next_start_are_named_in_the_log(tmp_path: Path, mosquitto: Broker) -> None:
    folder = write_node_folder(tmp_path / "m", url=mosquitto.url)
    with (
        NodeProcess(folder) as node,
        mosquitto.researcher(tmp_path) as fed,
        Listener(mosquitto, "general/logger/#") as told,
    ):
        wait_until(lambda: "m" in fed.nodes())
        silent = {"log_level": "NONE"}
        write_node_folder(folder, node_id="other", url=mosquitto.url, recording={"enabled": False}, policy=silent)
        node.signal(signal.SIGHUP)
        wait_until(lambda: "settings read again" in node.log())

        assert "changed settings that wait for the next start: id, recording.enabled\n" in node.log()
        with fed.monitor(interval_s=0.5) as watch:
            sample = watch.next(timeout_s=60)

        assert (sample and sample.node_id, set(fed.nodes())) == ("m", {"m"})
        assert document_here("node", "status", "--dir", folder)["node_id"] == "m"

        (folder / "node.toml").chmod(0o644)
        node.signal(signal.SIGHUP)
        wait_until(lambda: f"the settings stay as they were: {folder / 'node.toml'} is open to other" in node.log())
        assert fed.ping(nodes=["m"]).ok
        assert [each["level"] for each in told.logs("m")] == ["WARNING"]  # of before, no error now


def test_a_presence_that_is_said_again_holds_what_the_owner_switched_off(tmp_path: Path, mosquitto: Broker) -> None:
    folder = write_node_folder(tmp_path / "m", url=mosquitto.url, runs={})
    with NodeProcess(folder) as node, RawResearcher(mosquitto) as raw, mosquitto.researcher(tmp_path) as fed:
        wait_until(lambda: "m" in fed.nodes() and "run" in fed.nodes()["m"].capabilities)
        write_node_folder(folder, url=mosquitto.url)
        node.signal(signal.SIGHUP)
        wait_until(lambda: "settings read again" in node.log())

        raw.send(b"", topic="general/status/m", retain=True)  # the node says its presence again

        wait_until(lambda: "run" not in fed.nodes()["m"].capabilities)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", "²".encode(), b"9" * 5000, b"", b"-4"])
def test_a_damaged_boot_file_is_passed_over_and_the_count_goes_on_above(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "boot"
    file.write_bytes(content)

    assert read_boot(file) >= 1_700_000_000
