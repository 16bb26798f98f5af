"""Samples in a metrics store: a real VictoriaMetrics gets all of them, also after outages and kills of either side."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fedmon.common.errors import InvalidInputError
from fedmon.researcher.samples.store import import_url
from tests.researcher.conftest import Open
from tests.support.brokers import Broker
from tests.support.environment import plain_environment
from tests.support.ports import free_port
from tests.support.recording_node import CPU, RecordingNode
from tests.support.store import Store
from tests.support.waiting import wait_until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    running = Store(tmp_path / "victoria")
    yield running
    running.kill()


def own_environment(folder: Path) -> dict[str, str]:
    return {**plain_environment(), "FEDMON_RESEARCHER_FOLDER": str(folder / "researcher")}


def expected(node: RecordingNode) -> dict[int, float]:
    """Return each sample that the node measured, by Unix time in milliseconds."""
    return {round(t * 1000): float(seq) for (_, _), kept in sorted(node.kept.items()) for seq, t in kept.items()}


def test_all_samples_reach_the_store_beside_the_file(
    mosquitto: Broker, federate: Open, tmp_path: Path, store: Store
) -> None:
    with RecordingNode(mosquitto.port, "a") as node:
        node.sample(5, live=False)
        with federate().record(tmp_path / "store.fmr", to=store.url) as record:
            node.wait(lambda: node.leased)
            node.sample(3)
            wait_until(lambda: record.store is not None and record.store.counts.sent == 8)
            wait_until(lambda: store.series("fedmon_node_online"))

    assert store.values(f'{CPU}{{node="a",stream="host"}}') == expected(node)
    assert store.series("fedmon_node_online") == [{"__name__": "fedmon_node_online", "node": "a"}]
    assert set(store.values("fedmon_samples_lost_total").values()) == {0}
    assert record.store is not None
    assert (record.store.counts.waiting, record.store.counts.dropped, record.store.counts.error) == (0, 0, "")


def test_an_outage_of_the_store_costs_no_sample(
    mosquitto: Broker, federate: Open, tmp_path: Path, store: Store
) -> None:
    with RecordingNode(mosquitto.port, "a") as node, federate().record(to=store.url) as record:
        assert record.store is not None
        push = record.store
        node.wait(lambda: node.leased)
        node.sample(4)
        wait_until(lambda: push.counts.sent == 4)
        store.kill()
        node.sample(6)
        wait_until(lambda: push.counts.error)
        assert "not reached" in push.counts.error
        store.start()
        wait_until(lambda: not push.counts.error and not push.counts.waiting, 60.0)

    assert store.values(CPU) == expected(node)


def test_a_killed_record_goes_on_and_the_store_holds_each_sample_once(
    mosquitto: Broker, tmp_path: Path, store: Store
) -> None:
    file, environ = tmp_path / "store.fmr", own_environment(tmp_path)
    command = [sys.executable, "-m", "fedmon", "record", str(file), "--to", store.url, "--json", "--broker"]
    with RecordingNode(mosquitto.port, "a") as node:
        node.sample(20, live=False)
        for _ in range(3):
            count = len(store.values(CPU))
            with subprocess.Popen([*command, mosquitto.url], env=environ, stdout=subprocess.DEVNULL) as running:
                node.sample(20, live=False)
                wait_until(lambda count=count: len(store.values(CPU)) > count, 60.0)  # type: ignore[misc]  # bound now
                running.kill()
        with subprocess.Popen([*command, mosquitto.url], env=environ, stdout=subprocess.PIPE) as running:
            wait_until(lambda: len(store.values(CPU)) == 80, 60.0)
            assert running.stdout is not None
            assert running.stdout.readline()
            running.send_signal(signal.SIGINT)
            output, _ = running.communicate(timeout=60)

    assert store.values(CPU) == expected(node)
    assert msgspec.json.decode(output.splitlines()[-1])["store"]["waiting"] == 0


def test_a_store_that_is_away_is_named_at_the_end_and_nothing_is_lost(mosquitto: Broker, tmp_path: Path) -> None:
    file = tmp_path / "store.fmr"
    url = f"http://127.0.0.1:{free_port()}"
    with RecordingNode(mosquitto.port, "a") as node:
        node.sample(3, live=False)
        command = [sys.executable, "-m", "fedmon", "record", str(file), "--to", url, "--for", "3"]
        done = subprocess.run(
            [*command, "--broker", mosquitto.url],
            env=own_environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == 1
    assert f"3 samples not sent to {url}/api/v1/import yet; {file} keeps them" in done.stderr


@pytest.mark.parametrize("url", ["victoria:8428", "ftp://host", "http://", "http://me@host", "http://host/?a=1", ""])
def test_a_url_that_is_none_is_refused(federate: Open, tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidInputError, match="not the URL of a store"):
        federate().record(tmp_path / "store.fmr", to=url)

    assert list(tmp_path.glob("*.fmr")) == []


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://host:8428", "http://host:8428/api/v1/import"),
        ("http://host:8428/", "http://host:8428/api/v1/import"),
        ("https://host:8480/insert/7/prometheus", "https://host:8480/insert/7/prometheus/api/v1/import"),
        ("http://host:8428/api/v1/import", "http://host:8428/api/v1/import"),
    ],
)
def test_a_single_store_and_a_cluster_are_addressed(url: str, address: str) -> None:
    assert import_url(url) == address
