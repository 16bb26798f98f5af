"""A reporter at a broker: who it is, what it measures, and that its scenario is over, for whoever reads."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.clock import utc_now
from fedmon.common.ids import NodeId
from fedmon.common.settings.values import ResearcherSettings
from fedmon.compat.nebula import Reporter
from fedmon.node.broker_link import BrokerLink
from fedmon.node.collectors.base import THIS_MACHINE
from fedmon.node.collectors.hardware import hardware
from fedmon.report import Source
from fedmon.researcher.federation import Federation
from fedmon.researcher.roster import Moment
from fedmon.researcher.samples.watch import LiveSample
from tests.compat.nebula.reporters import HOST, participant, reported, reporter, until
from tests.support.brokers import Broker
from tests.support.listener import Listener
from tests.support.passwords import secret_file
from tests.support.waiting import wait_until


class Unready:
    """A value of a program that cannot be a number yet."""

    def __float__(self) -> float:
        raise KeyError("not computed")


async def test_samples_values_presence_and_the_end_reach_the_broker(mosquitto: Broker) -> None:
    def done() -> Any:
        return [batch for batch in listener.batches("user") if any("finished" in key for key in batch["m"])]

    with Listener(mosquitto) as listener:
        ours = reporter(broker=mosquitto.url, finished_within_s=30.0)
        await ours.start()
        await until(lambda: listener.batches("host"))
        await ours.enqueue_data("accuracy", 0.75)
        await ours.enqueue_data("loss", math.inf)
        await ours.enqueue_data("figure", object())
        await ours.enqueue_data("fails", Unready())
        assert ours.user_values is not None
        ours.user_values.add_scalar("epoch", 3, step=12)
        await until(lambda: len(listener.batches("host")) >= 3 and listener.batches("user"))
        began = time.monotonic()
        assert await ours.report_scenario_finished() is True
        assert time.monotonic() - began < 10
        await until(done)
        await ours.stop()
        await until(lambda: listener.presences("node-3")[-1]["state"] == "offline")
        hosts, users = listener.batches("host"), listener.batches("user")
        presences, logs = listener.presences("node-3"), listener.logs("node-3")

    # 19: each sample says when, where, and which number it has.
    seqs = [batch["seq"] + offset for batch in hosts for offset in range(len(batch["t"]))]
    assert seqs == list(range(len(seqs)))
    assert all(batch["node_id"] == "node-3" and len(batch["t"]) == len(batch["mono"]) for batch in hosts)
    assert hosts[0]["m"]["host_cpu_busy_ratio"][0] == HOST["host_cpu_busy_ratio"]
    values = {key: [v for v in column if v is not None] for batch in users for key, column in batch["m"].items()}
    reasons = {key for batch in users for key in batch["reasons"]}
    assert values['user_value{name="accuracy"}'] == [0.75]
    assert values['user_step{name="epoch"}'] == [12]
    assert reasons == {'user_value{name="loss"}'}
    assert values['user_scenario_finished{scenario="first-run"}'] == [1.0]
    finished = "scenario first-run finished"
    states = [(presence["state"], presence["reason"]) for presence in presences]
    assert list(dict.fromkeys(states)) == [("online", ""), ("draining", finished), ("offline", finished)]
    assert logs[0]["msg"] == finished
    assert presences[0]["capabilities"] == ["reporter"]


async def test_a_researcher_watches_and_records_a_reporter_and_waits_for_nothing_else(
    mosquitto: Broker, tmp_path: Path
) -> None:
    samples: list[LiveSample] = []
    settings = ResearcherSettings(id="alice", broker=mosquitto.settings, folder=tmp_path / "alice")
    config = participant()
    ours = Reporter(config, broker=mosquitto.settings, node_id="node-3")
    await ours.start()
    config["reporter_args"]["report_frequency"] = 0.3
    await until(lambda: ours.frequency == 0.3)
    with Federation(settings=settings) as federation:
        await asyncio.to_thread(wait_until, lambda: "node-3" in federation.nodes(), what="the reporter")
        record = await asyncio.to_thread(federation.record, tmp_path / "store.sqlite")
        with federation.monitor(samples.append, ordered=True) as watch:
            await until(lambda: {"host"} < {sample.stream for sample in samples} and watch.capabilities)
            told = watch.capabilities[NodeId("node-3")]
        await until(lambda: record.counts.stored > 0)
        await asyncio.to_thread(record.stop)
        with Source(tmp_path / "store.sqlite") as source:
            assert source.hosts[0].machine.strip() == hardware(THIS_MACHINE)["boot_id"]
        expected = federation.session.roster.expected(Moment(mono=time.monotonic(), utc=utc_now()))
        pinged = await asyncio.to_thread(federation.ping, nodes=["node-3"])
        listed = await asyncio.to_thread(federation.datasets, nodes=["node-3"])
    await ours.stop()

    assert expected == set()
    assert told.interval_s == 0.3
    assert pinged["node-3"].ok
    assert "job or reporter" in listed["node-3"].reason
    job = next(sample for sample in samples if sample.stream.startswith("job-"))
    assert job.values["job_memory_rss_bytes"]


async def test_who_has_finished_is_known_for_each_scenario_on_its_own(mosquitto: Broker) -> None:
    expected = {"first-run": {"node-0", "node-1"}, "second-run": {"node-2"}}

    def finished(scenario: str) -> set[str]:
        key = f'user_scenario_finished{{scenario="{scenario}"}}'
        return {batch["node_id"] for batch in listener.batches("user") if key in batch["m"]}

    with Listener(mosquitto) as listener:
        reporters = [
            reporter(scenario=scenario, broker=mosquitto.url, node_id=f"node-{number}")
            for number, scenario in enumerate(("first-run", "first-run", "second-run"))
        ]
        await asyncio.gather(*(each.start() for each in reporters))
        await until(lambda: all(listener.presences(each.node_id) for each in reporters))
        assert await reporters[0].report_scenario_finished()
        assert await reporters[2].report_scenario_finished()
        await until(lambda: finished("second-run"))
        assert not finished("first-run") >= expected["first-run"]
        assert await reporters[1].report_scenario_finished()
        await until(lambda: finished("first-run") >= expected["first-run"])
        await asyncio.gather(*(each.stop() for each in reporters))
        assert {name: finished(name) for name in expected} == expected


def test_batches_without_a_connection_wait_and_go_out_in_order_the_oldest_dropped_and_counted(
    mosquitto: Broker,
) -> None:
    link = BrokerLink(mosquitto.settings, node_id="node-3", boot=7, streams=list, backlog=3)
    kept = [link.send(b'{"stream": "host", "seq": %d}' % number) for number in range(1, 6)]
    with Listener(mosquitto) as listener:
        link.start()
        wait_until(lambda: len(listener.batches("host")) >= 3, what="the waiting batches")
        link.send(b'{"stream": "host", "seq": 6}')
        wait_until(lambda: len(listener.batches("host")) >= 4, what="the next batch")
    mosquitto.kill()
    wait_until(lambda: not link.is_connected, what="the end of the connection")
    link.send(b'{"stream": "host", "seq": 7}')
    mosquitto.start()
    wait_until(lambda: link.is_connected, what="the connection")
    link.send(b'{"stream": "host", "seq": 8}')
    with Listener(mosquitto) as late:
        wait_until(lambda: len(late.batches("host")) >= 2, what="the waiting batches")
        link.stop(1.0)

    assert [batch["seq"] for batch in listener.batches("host")] == [3, 4, 5, 6]
    assert [batch["seq"] for batch in late.batches("host")] == [7, 8], "researchers come back a little later"
    assert (kept, link.dropped) == ([True, True, True, False, False], 2)


async def test_without_a_broker_that_answers_the_end_is_not_called_confirmed_and_nothing_waits() -> None:
    ours = reporter(broker="mqtt://127.0.0.1:1", finished_within_s=0.2)
    await ours.start()
    await until(lambda: ours.counter >= 1)
    assert await ours.report_scenario_finished() is False
    await ours.stop()


def test_a_reporter_has_the_name_of_the_user_in_its_url_and_the_password_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMON_BROKER_PASSWORD_FILE", str(secret_file(tmp_path / "password", "of-ward-3")))

    monkeypatch.setenv("FEDMON_BROKER_USERNAME", "shared")

    ours, other = (Reporter(participant(), broker=f"mqtt://{user}127.0.0.1", streams={}) for user in ("ward-3@", ""))

    assert ours._broker is not None
    assert other.node_id == "node-3"
    assert (ours.node_id, ours._broker.password()) == ("ward-3", "of-ward-3")


async def test_a_second_reporter_of_the_same_name_is_told_of_and_a_broker_that_hangs_is_none(
    mosquitto: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    link = BrokerLink(mosquitto.settings, node_id="node-3", boot=7, streams=list)
    with Listener(mosquitto) as listener:
        link.start()
        wait_until(lambda: listener.presences("node-3"), what="its presence")
    assert link.wait_held(30.0, given_up=threading.Event())
    os.kill(mosquitto.pid or 0, signal.SIGSTOP)
    link.announce()
    os.kill(mosquitto.pid or 0, signal.SIGCONT)
    link.stop(30.0)
    assert "another process" not in caplog.text

    both = [reporter(broker=mosquitto.url), reporter(broker=mosquitto.url)]
    await asyncio.gather(*(each.start() for each in both))
    await until(lambda: "another process uses the id 'node-3'" in caplog.text)
    await asyncio.gather(*(each.stop() for each in both))


async def test_after_a_restart_the_presence_goes_on_counting(mosquitto: Broker) -> None:
    with Listener(mosquitto) as listener:
        ours = reporter(broker=mosquitto.url)
        for round_number in (1, 2):
            await reported(
                ours,
                lambda wanted=round_number: len({p["boot"] for p in listener.presences("node-3")}) == wanted,  # type: ignore[misc]  # bound now
            )
        await until(lambda: listener.presences("node-3")[-1]["state"] == "offline")
        boots = [presence["boot"] for presence in listener.presences("node-3")]

    assert boots == sorted(boots)
