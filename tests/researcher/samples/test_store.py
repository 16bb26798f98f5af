"""Samples in a metrics store: a real VictoriaMetrics gets all of them, also after outages and kills of either side."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedmon.common.errors import InvalidInputError, SettingsError
from fedmon.common.metrics.sample import Batch
from fedmon.common.settings import StoreSettings
from fedmon.common.store.recording import Recording
from fedmon.researcher.samples.store import StorePush, import_url
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


class ClosingStore(ThreadingHTTPServer):
    """Takes everything, and closes each connection as a proxy may; ``lines`` are what it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Closing)
        self.lines: list[dict[str, Any]] = []


class _Closing(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, ClosingStore)
        self.server.lines += [msgspec.json.decode(line) for line in body.splitlines()]
        self.send_response(204)
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_a_store_that_closes_connections_gets_each_sample_once_and_one_bad_batch_stops_no_other(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.fmr"
    with Recording(path) as recording:
        for node_id, series, first_t in (("bad", "bad name{", 0.0), ("late", CPU, 1e300), ("good", CPU, 100.0)):
            times = [first_t + seq for seq in range(30)]
            for seq in range(0, 30, 10):
                columns: dict[str, list[float | None]] = {series: [float(seq)] * 10}
                batch = Batch(
                    node_id=node_id,
                    boot=1,
                    stream="host",
                    seq=seq,
                    t=times[seq:][:10],
                    mono=times[:10],
                    columns=columns,
                )
                recording.append([batch])
    with ClosingStore() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = import_url(f"http://127.0.0.1:{server.server_port}")
        assert StorePush(path, url, StoreSettings(), is_online=dict).stop()
        server.shutdown()
        thread.join()

    sent = [t for line in server.lines if line["metric"]["__name__"] == CPU for t in line["timestamps"]]
    assert sent == [1000 * t for t in range(100, 130)]
    assert {line["metric"]["node"] for line in server.lines if line["metric"]["__name__"] == CPU} == {"good"}


def test_samples_that_a_bound_dropped_before_they_were_sent_are_counted_once(tmp_path: Path) -> None:
    path, url = tmp_path / "store.fmr", f"http://127.0.0.1:{free_port()}"
    Path(f"{path}.sent").write_bytes(msgspec.json.encode({"url": import_url(url), "sent": [("a", "host", 1, 9)]}))
    times = [100.0 + seq for seq in range(60, 70)]
    with Recording(path) as recording:
        columns: dict[str, list[float | None]] = {CPU: [0.5] * 10}
        recording.append([Batch(node_id="a", boot=1, stream="host", seq=60, t=times, mono=times, columns=columns)])
    push = StorePush(path, import_url(url), StoreSettings(), is_online=dict)
    wait_until(lambda: push.counts.error)
    assert not push.stop()

    assert (push.counts.dropped, push.counts.waiting) == (50, 10)


def test_a_token_that_cannot_be_sent_is_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("geheim-ü-€")
    token.chmod(0o600)

    with pytest.raises(SettingsError, match="cannot carry"):
        StorePush(tmp_path / "store.fmr", "http://host", StoreSettings(token_file=token), is_online=dict)


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


@pytest.mark.parametrize(
    "url",
    [
        "victoria:8428",
        "ftp://host",
        "http://",
        "http://me@host",
        "http://host/?a=1",
        "",
        f"http://{'a' * 70}.org",
        "http://höst/",
    ],
)
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
