"""The metrics of a real node in a real process, heard by a plain MQTT client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from fedmon.common.metrics.series import metric_name
from tests.support.brokers import Broker
from tests.support.node_process import NO_RUNS, NodeProcess, write_node_folder
from tests.support.raw_researcher import RawResearcher
from tests.support.waiting import wait_until

SLOW_S = 60.0


@pytest.fixture
def batches(mosquitto: Broker) -> Iterator[list[dict[str, Any]]]:
    """Every batch that anybody hears on the broker, as JSON."""
    heard: list[dict[str, Any]] = []
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "listener")
    client.on_message = lambda _client, _userdata, message: heard.append(json.loads(message.payload))
    client.on_connect = lambda client, *_: client.subscribe("general/monitoring/#")
    client.connect("127.0.0.1", mosquitto.port)
    client.loop_start()
    yield heard
    client.disconnect()
    client.loop_stop()


@pytest.fixture
def raw(mosquitto: Broker) -> Iterator[RawResearcher]:
    with RawResearcher(mosquitto, "anna") as researcher:
        yield researcher


def answered(raw: RawResearcher) -> None:
    """Wait until the node answers."""
    ping = raw.message("ping")

    def pong() -> bool:
        raw.send(ping)
        return any(reply["command"] == "pong" for reply in raw.replies)

    wait_until(pong, what="the node to answer")


def test_a_lease_speeds_a_slow_node_up_at_once_and_slows_it_down_when_it_ends(
    mosquitto: Broker, raw: RawResearcher, batches: list[dict[str, Any]], tmp_path: Path
) -> None:
    folder = write_node_folder(
        tmp_path / "ward",
        node_id="ward",
        url=mosquitto.url,
        runs=NO_RUNS,
        metrics={"interval_s": SLOW_S, "min_interval_s": 0.2},
    )
    with NodeProcess(folder):
        answered(raw)
        before = raw.ask("monitor", action="status")

        granted = raw.ask("monitor", action="start", interval_s=0.2, lease_s=3.0)
        wait_until(lambda: sum(len(batch["t"]) for batch in batches) >= 5, what="five samples")
        expired = wait_until(
            lambda: (reply := raw.ask("monitor", action="status"))["interval_s"] == SLOW_S and reply,
            what="the lease to end",
        )

    assert (before["interval_s"], before["lease_s"]) == (SLOW_S, None)
    assert (granted["interval_s"], granted["lease_s"]) == (0.2, 3.0)
    assert expired["streams"] == ["host"]
    of_one_boot = [batch for batch in batches if batch["boot"] == batches[-1]["boot"]]
    numbers = [batch["seq"] + offset for batch in of_one_boot for offset in range(len(batch["t"]))]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    times = [time for batch in of_one_boot for time in batch["mono"]]
    assert times == sorted(times)


def test_what_the_owner_keeps_back_is_neither_sent_nor_told(
    mosquitto: Broker, raw: RawResearcher, batches: list[dict[str, Any]], tmp_path: Path
) -> None:
    folder = write_node_folder(
        tmp_path / "ward",
        node_id="ward",
        url=mosquitto.url,
        runs=NO_RUNS,
        metrics={"interval_s": 0.2},
        policy={"metrics": ["host_load*", "host_cpu_seconds_total"]},
    )
    with NodeProcess(folder):
        answered(raw)
        wait_until(lambda: batches, what="a batch")
        told = raw.ask("monitor", action="status")

    allowed = {"host_load1", "host_load5", "host_load15", "host_cpu_seconds_total"}
    assert {metric_name(key) for batch in batches for key in batch["m"]} == allowed
    assert set(told["metrics"]) == allowed
    assert set(told["capabilities"]) == allowed


def test_a_node_whose_owner_switched_metrics_off_says_so(
    mosquitto: Broker, raw: RawResearcher, batches: list[dict[str, Any]], tmp_path: Path
) -> None:
    folder = write_node_folder(
        tmp_path / "ward", node_id="ward", url=mosquitto.url, runs=NO_RUNS, metrics={"enabled": False}
    )
    with NodeProcess(folder):
        answered(raw)
        refused = raw.ask("monitor", action="start")

    assert (refused["command"], refused["code"]) == ("error", "unsupported")
    assert "switched metrics off" in refused["reason"]
    assert batches == []
