"""`fedmon record` as a process: killed, ended, on a full disk; the store stays whole and loses nothing."""

from __future__ import annotations

import json
import resource
from pathlib import Path

from fedmon.common.store.recording import Recording
from tests.researcher.samples.test_record import rows, stored
from tests.support.brokers import Broker
from tests.support.databases import fill_up
from tests.support.environment import researcher_environment
from tests.support.record_process import RecordProcess
from tests.support.recording_node import RecordingNode
from tests.support.shell import fedmon, limit_files
from tests.support.waiting import wait_until


def test_a_record_killed_at_any_moment_goes_on_with_nothing_lost_or_doubled(mosquitto: Broker, tmp_path: Path) -> None:
    path = tmp_path / "alice.fedmon"
    with RecordingNode(mosquitto.port, "a", page=20) as node:
        for turn in range(2):
            with RecordProcess(mosquitto, tmp_path):
                node.received.clear()
                node.wait(lambda: node.leased)
                for _ in range(10):
                    node.sample(5, live=turn != 1)
                wait_until(lambda: path.exists() and stored(path))
            node.sample(7)
            node.restart()
            node.sample(1)
        with RecordProcess(mosquitto, tmp_path) as record:
            sent = [(boot, seq) for (boot, _), kept in sorted(node.kept.items()) for seq in sorted(kept)]
            wait_until(lambda: len(stored(path)) == len(sent))
            code = record.stop()

    assert stored(path) == rows(*sent)
    assert code == 0


def test_sigterm_ends_a_record_with_a_summary_and_everything_written(mosquitto: Broker, tmp_path: Path) -> None:
    with RecordingNode(mosquitto.port, "a") as node, RecordProcess(mosquitto, tmp_path) as record:
        node.wait(lambda: node.leased)
        node.sample(5)
        wait_until(lambda: record.told().get("stored") == 5)
        node.sample(5)
        node.sample(3, live=False)
        node.sample(1)
        wait_until(lambda: node.resends)
        code = record.stop()
        told = record.told()

    assert (code, told["ended"], told["lost"]) == (0, True, 0)
    assert [seq for _, _, seq, _ in stored(tmp_path / "alice.fedmon")] == list(range(int(str(told["stored"]))))


def test_a_full_disk_is_said_once_and_what_did_not_fit_is_pulled_when_there_is_space(
    mosquitto: Broker, tmp_path: Path
) -> None:
    with (
        RecordingNode(mosquitto.port, "a", page=200) as node,
        RecordProcess(mosquitto, tmp_path) as record,
    ):
        node.wait(lambda: node.leased)
        node.sample(1)
        wait_until(lambda: record.told().get("stored") == 1)
        limit_files(record.process.pid, 200_000)
        for number in range(300):
            node.sample(1, width=1500)
            if number % 10 == 0 and record.told().get("error"):
                break
        error = wait_until(lambda: record.told().get("error"))
        node.sample(10)
        limit_files(record.process.pid, resource.RLIM_INFINITY)
        count = node.next_seq[1, "host"]
        wait_until(lambda: record.told().get("stored") == count)
        assert record.stop() == 0

    assert stored(tmp_path / "alice.fedmon") == rows(*((1, seq) for seq in range(count)))
    assert str(tmp_path) in str(error)
    said = record.errors()
    assert said.count("wait in memory") == 1
    assert "is written again" in said


def test_a_disk_that_is_full_to_the_end_is_said_at_the_end(mosquitto: Broker, tmp_path: Path) -> None:
    Recording(tmp_path / "alice.fedmon").close()
    fill_up(tmp_path / "alice.fedmon", "batch")
    with RecordingNode(mosquitto.port, "a") as node, RecordProcess(mosquitto, tmp_path) as record:
        node.wait(lambda: node.leased)
        node.sample(1)
        wait_until(lambda: record.told().get("error"))
        code = record.stop()

    assert (code, "not everything was written: " in json.dumps(record.told())) == (1, True)
    assert "is not complete; recording into it again asks for the rest" in record.errors()


def test_where_nobody_measures_a_record_ends_by_itself_and_says_why(mosquitto: Broker, tmp_path: Path) -> None:
    environ = researcher_environment(mosquitto.url, tmp_path / "alice")

    done = fedmon("record", str(tmp_path / "s"), "--for", "0.5", environ=environ)

    assert done.returncode == 6
    assert "no sample came" in done.stderr
