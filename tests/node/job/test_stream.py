"""A job streamed to a broker: researchers get every sample, and the job never waits for a broker."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

import pytest

from fedmon.common.settings.broker import BrokerHost, BrokerSettings
from fedmon.common.settings.values import MetricsSettings, RecordingSettings
from fedmon.common.store.recording import Recording
from fedmon.node.job import monitor
from fedmon.node.job.hosts import Membership
from fedmon.node.job.layout import JobFolder, file_name
from fedmon.node.job.monitor import JobStream
from fedmon.researcher.samples.watch import LiveSample
from tests.node.job.tool_runs import numbers, start
from tests.node.measure.pipelines import pipeline_of
from tests.support.brokers import Broker
from tests.support.environment import plain_environment
from tests.support.listener import Listener
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.raw_researcher import RawResearcher
from tests.support.stubborn import silent_peer
from tests.support.waiting import elapse, pause, wait_until

NODE = "job-4711-n1"
PERIOD_S = 0.2


class Run:
    """One run of the tool as far as it measures and streams; a context manager."""

    def __init__(self, broker: BrokerSettings, folder: Path) -> None:
        self.recording = folder / "n1.fmr"
        self.measuring = pipeline_of(
            self.recording,
            boot=1_700_000_000,
            send=lambda payload: self.stream.send(payload),  # noqa: PLW0108 - there is no stream yet
            id=NODE,
            broker=broker,
            metrics=MetricsSettings(interval_s=PERIOD_S),
            recording=RecordingSettings(max_bytes=2**40, max_age_s=1e8),
        )
        self.stream = JobStream(broker, self.measuring, NODE)
        self.stop_s: float | None = None

    def __enter__(self) -> Self:
        self.measuring.start()
        self.stream.start()
        self.measuring.follow(PERIOD_S, live=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def taken(self) -> int:
        return self.measuring.publisher.taken

    def stop(self) -> None:
        """End as the tool does; the time that the broker cost is in ``stop_s``."""
        if self.stop_s is None:
            self.measuring.stop(10.0, last_sample=True)
            begin = time.monotonic()
            self.stream.complete()
            self.stream.stop()
            self.stop_s = time.monotonic() - begin

    def recorded(self) -> list[int]:
        return numbers(self.recording, NODE)


def test_a_researcher_watches_and_records_a_job_also_when_the_broker_was_killed_in_between(tmp_path: Path) -> None:
    broker = Broker("mosquitto", tmp_path)
    seen: list[LiveSample] = []
    try:
        with Run(broker.settings, tmp_path) as run, broker.researcher(tmp_path) as federation:
            record = federation.record(tmp_path / "store.fmr")
            with federation.monitor(seen.append, ordered=True, nodes=[NODE]):
                wait_until(lambda: len(seen) >= 3, what="live samples")
                assert federation.ping(nodes=[NODE])[NODE].ok
                broker.kill()
                count = run.taken
                wait_until(lambda: run.taken >= count + 5, what="samples while the broker is away")
                broker.start()
                back = len(seen)
                wait_until(lambda: len(seen) >= back + 7, what="samples after the broker came back")
                run.stop()
                last = run.recorded()[-1]
                wait_until(lambda: seen[-1].seq == last, what="the last sample")
                wait_until(lambda: federation.nodes()[NODE].state.value == "offline", what="the farewell")
                wait_until(lambda: record.counts.stored > last, what="the record of every sample")
                assert federation.nodes()[NODE].reason == "the run of the job ended"
            record.stop()
    finally:
        broker.stop()
    assert run.recorded() == list(range(last + 1))
    found = [sample.seq for sample in seen]
    assert found == list(range(found[0], last + 1))
    assert numbers(tmp_path / "store.fmr", NODE) == run.recorded()
    assert run.stop_s is not None
    assert run.stop_s < 30


COMES_UP_AGAIN = """
import sys
from fedmon.common.settings.broker import broker_from_url
from fedmon.node.broker_link import BrokerLink
link = BrokerLink(broker_from_url(sys.argv[1]), node_id=sys.argv[2], boot=1_700_000_000, streams=lambda: ["host"])
link.start()
for _ in sys.stdin:
    link.announce()
"""


def test_a_job_that_is_killed_while_researchers_pull_its_last_samples_is_offline_at_once(
    mosquitto: Broker, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", COMES_UP_AGAIN, mosquitto.url, NODE]
    with mosquitto.researcher(tmp_path) as federation:
        with subprocess.Popen(words, stdin=subprocess.PIPE) as job:
            assert job.stdin is not None
            wait_until(lambda: NODE in federation.nodes(), what="the job")
            before = federation.nodes()[NODE].since
            job.stdin.write(b"again\n")
            job.stdin.flush()
            wait_until(lambda: federation.nodes()[NODE].since != before, what="a newer presence")
            job.kill()
        wait_until(lambda: federation.nodes()[NODE].state.value == "offline", what="the last will to be believed")
        assert federation.nodes()[NODE].reason == "connection lost"


def last_seq(slow: RawResearcher, node: str = NODE) -> int:
    """Renew a lease, and return the number of the last sample of the host that the job tells of."""
    extents = slow.ask("monitor", action="start", node_id=node)["extents"]
    return max((one["last_seq"] for one in extents if one["stream"] == "host"), default=-1)


def test_a_researcher_with_a_lease_who_pauses_for_a_second_gets_the_last_samples(
    mosquitto: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert monitor._QUIET_S > 1.0  # that pause, with the time that a message takes
    monkeypatch.setattr("fedmon.node.job.monitor._QUIET_S", 60.0)
    monkeypatch.setattr("fedmon.node.job.monitor._PULL_WITHIN_S", 60.0)
    with Run(mosquitto.settings, tmp_path) as run, Listener(mosquitto) as listener, RawResearcher(mosquitto) as slow:
        wait_until(lambda: listener.presences(NODE), what="the job")
        wait_until(lambda: run.taken >= 1, what="the first sample")
        wait_until(lambda: last_seq(slow) >= 0, what="the first sample in the job's recording")
        before = len(listener.presences(NODE))
        ending = threading.Thread(target=run.stop)
        ending.start()
        wait_until(lambda: len(listener.presences(NODE)) > before, what="a presence that has researchers ask again")
        last = last_seq(slow)
        elapse(1.0)  # the pause of a researcher before it asks for samples that did not come
        asked = {"node_id": NODE, "stream": "host", "first_seq": last, "last_seq": last}
        pages = [slow.ask("monitor", action="resend", **asked) for _ in range(2)]
        slow.ask("monitor", action="stop", node_id=NODE)
        ending.join()
    assert last == run.recorded()[-1]
    assert [page["batches"][0]["seq"] for page in pages] == [last, last]


def test_a_host_that_could_not_merge_and_still_streams_keeps_no_other_from_merging(
    mosquitto: Broker, tmp_path: Path
) -> None:
    folder = JobFolder(tmp_path, None, "4711")
    node = f"job-4711-{file_name(os.uname().nodename)}"
    environ = plain_environment(FEDMON_JOB_ID="4711")
    words = ("-i", "0.2", "--broker", mosquitto.url)
    with (
        start(tmp_path, *words, command=["cat"], environ=environ, stdin=subprocess.PIPE) as tool,
        Listener(mosquitto) as listener,
        RawResearcher(mosquitto) as slow,
    ):
        assert tool.stdin is not None
        assert tool.stderr is not None
        wait_until(lambda: listener.presences(node), what="the job")
        last_seq(slow, node)
        folder.merged.mkdir()
        tool.stdin.close()
        assert b"cannot merge into" in tool.stderr.readline()
        pause(tool.pid)
        with Membership(folder, host="late") as late:
            late.begin()
            assert late.end() is True
        assert tool.poll() is None
        tool.send_signal(signal.SIGCONT)
        tool.wait(60)


def test_a_lease_that_is_asked_for_before_the_recording_is_open_is_answered_with_its_samples(
    mosquitto: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmon.node.job.monitor._OPEN_WITHIN_S", 60.0)
    with Recording(tmp_path / "n1.fmr"):
        pass
    other = sqlite3.connect(tmp_path / "n1.fmr", check_same_thread=False)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with Run(mosquitto.settings, tmp_path) as run, Listener(mosquitto) as listener, RawResearcher(mosquitto) as slow:
        wait_until(lambda: listener.presences(NODE), what="the job")
        assert run.measuring.recorder is not None
        assert not run.measuring.recorder.ready
        wait_until(lambda: run.taken >= 1, what="the first sample")
        release = threading.Timer(0.3, other.close)
        release.start()
        assert last_seq(slow) >= 0


def test_only_samples_and_what_is_measured_leave(mosquitto: Broker, tmp_path: Path) -> None:
    secret = "s3cret-argument"
    with subprocess.Popen([sys.executable, "-c", "input()", secret], stdin=subprocess.PIPE) as process:
        with Listener(mosquitto) as listener, Run(mosquitto.settings, tmp_path) as run:
            run.measuring.jobs.add("4711", pids=[process.pid])
            wait_until(lambda: len(listener.batches("job-4711")) >= 2, what="samples of the job")
            run.stop()
            wait_until(lambda: listener.presences(NODE)[-1]["state"] == "offline", what="the farewell")
            run.measuring.jobs.remove("4711")
        process.kill()
    ours = [each for each in listener.heard if NODE in each.topic]
    assert {each.topic for each in ours} == {f"general/status/{NODE}", f"general/monitoring/{NODE}"}
    assert not any(secret in str(each.message) for each in ours)


@pytest.mark.parametrize("broker", ["refuses", "silent", "unknown host", "frozen"])
def test_a_broker_that_does_not_work_costs_the_job_no_time(mosquitto: Broker, tmp_path: Path, broker: str) -> None:
    with contextlib.ExitStack() as peers:
        host, line = "127.0.0.1", None
        match broker:
            case "refuses":
                port = free_port()
            case "silent":
                port = peers.enter_context(silent_peer())
            case "unknown host":
                host, port = "no-such-host.invalid", 1883
            case _:
                line = peers.enter_context(Proxy(mosquitto.port))
                port = line.port
        begin = time.monotonic()
        run = Run(BrokerSettings(hosts=(BrokerHost(host=host, port=port),)), tmp_path)
        with run:
            assert time.monotonic() - begin < 20
            if line is not None:
                with Listener(mosquitto) as listener:
                    wait_until(lambda: listener.batches("host"), what="samples through the line")
                line.freeze()
            count = run.taken
            wait_until(lambda: run.taken >= count + 3, what="samples without a broker")
        assert run.stop_s is not None
        assert run.stop_s < 20
    found = run.recorded()
    assert found == list(range(len(found)))
    assert len(found) >= 3
