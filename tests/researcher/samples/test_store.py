"""Samples in a metrics store: a real VictoriaMetrics gets all of them, also after outages and kills of either side."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedmon.broker.ports import is_open
from fedmon.common.errors import InvalidInputError, SettingsError, StorageError
from fedmon.common.metrics.sample import Batch
from fedmon.common.settings.sources import load_researcher
from fedmon.common.settings.values import StoreSettings
from fedmon.common.store.recording import Recording
from fedmon.common.store.recording_file import DROPPED_BY_SIZE
from fedmon.common.store.recording_reader import chooser
from fedmon.researcher.samples.store import StorePush, import_url
from tests.broker.certificates import make_broker_certificate
from tests.researcher.conftest import Open
from tests.support.brokers import Broker
from tests.support.environment import researcher_environment
from tests.support.http_server import Answers, LoopbackServer
from tests.support.node_process import NodeProcess, write_node_folder
from tests.support.passwords import secret_file
from tests.support.ports import free_port
from tests.support.recording_node import CPU, RecordingNode
from tests.support.requirements import require
from tests.support.shell import begun, fedmon
from tests.support.store import Store
from tests.support.waiting import elapse, wait_until

LONG_OUTAGE = pytest.param(60.0, marks=[pytest.mark.soak, pytest.mark.timeout(240)])
TOKEN = "correct-horse-battery"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    running = Store(tmp_path / "victoria")
    yield running
    running.kill()


CPU_HALF_BUSY = {CPU: 0.5}


def append(
    recording: Recording,
    node_id: str,
    t: list[float],
    values: Mapping[str, float] = CPU_HALF_BUSY,
    *,
    seq: int = 0,
    stream: str = "host",
) -> None:
    """Record samples of equal values."""
    columns: dict[str, list[float | None]] = {name: [value] * len(t) for name, value in values.items()}
    recording.append([Batch(node_id=node_id, boot=1, stream=stream, seq=seq, t=t, mono=t, columns=columns)])


def expected(node: RecordingNode) -> dict[int, float]:
    """Return each sample that the node measured, by Unix time in milliseconds."""
    return {round(t * 1000): float(seq) for (_, _), kept in sorted(node.kept.items()) for seq, t in kept.items()}


def test_all_samples_reach_the_store_beside_the_file(
    mosquitto: Broker, federate: Open, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with RecordingNode(mosquitto.port, "a") as node:
        node.sample(5, live=False)
        with federate().record("~/store.fmr", to=store.url) as record:
            node.wait(lambda: node.leased)
            node.sample(3)
            wait_until(lambda: record.store is not None and record.store.counts.sent == 8)
            wait_until(lambda: store.series("fedmon_node_online"))

    assert store.values(f'{CPU}{{node="a",stream="host"}}') == expected(node)
    assert store.series("fedmon_node_online") == [{"__name__": "fedmon_node_online", "node": "a"}]
    assert set(store.values("fedmon_samples_lost_total").values()) == {0}
    assert record.store is not None
    assert (record.store.counts.waiting, record.store.counts.dropped, record.store.counts.error) == (0, 0, "")


def test_lost_samples_and_absence_are_series_of_the_store(
    mosquitto: Broker, federate: Open, tmp_path: Path, store: Store
) -> None:
    federation = federate()
    with RecordingNode(mosquitto.port, "a") as node, federation.record(tmp_path / "store.fmr", to=store.url) as record:
        node.wait(lambda: node.leased)
        node.sample(1)
        wait_until(lambda: record.counts.stored == 1)
        node.sample(3, live=False)
        node.forget(4)
        node.sample(1)
        wait_until(lambda: record.lost == 3)
        node.say("offline", "stopped by its owner")
        wait_until(lambda: not federation.nodes().online)

    assert max(store.values('fedmon_samples_lost_total{node="a",stream="host"}').values()) == 3
    online = store.values('fedmon_node_online{node="a"}')
    assert online[max(online)] == 0


@pytest.mark.parametrize("outage_s", [0.0, LONG_OUTAGE])
def test_an_outage_of_the_store_costs_no_sample(
    mosquitto: Broker, federate: Open, tmp_path: Path, store: Store, outage_s: float
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
        elapse(outage_s)
        node.sample(3, live=False)
        node.sample(2)
        store.start()
        wait_until(lambda: not push.counts.error and not push.counts.waiting)

    assert store.values(CPU) == expected(node)


@pytest.mark.parametrize("outage_s", [1.0, LONG_OUTAGE])
def test_an_outage_of_the_broker_costs_no_sample_in_the_store(
    mosquitto: Broker, federate: Open, tmp_path: Path, store: Store, outage_s: float
) -> None:
    path, metrics = tmp_path / "store.fmr", {"interval_s": 0.2, "min_interval_s": 0.2}
    ward = write_node_folder(tmp_path / "ward", url=mosquitto.url, metrics=metrics)
    with NodeProcess(ward), federate().record(path, to=store.url, interval_s=0.2) as record:
        wait_until(lambda: record.store is not None and record.store.counts.sent >= 5)
        mosquitto.stop()
        elapse(outage_s)
        mosquitto.start()
        back_t = time.time()

        def refilled() -> bool:
            newest = max(one.t for streams in record.positions.values() for one in streams.values())
            return newest > back_t + 1 and not record.counts.pending

        wait_until(refilled)

    with Recording(path, read_only=True) as recording:
        batches = list(recording.read("ward", stream="host", series=chooser(["host_load1"])))
    seqs = [seq for batch in batches for seq in range(batch.seq, batch.last_seq + 1)]
    kept = {round(t * 1000): batch.columns["host_load1"][at] for batch in batches for at, t in enumerate(batch.t)}
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    assert store.values('host_load1{node="ward",stream="host"}') == kept
    assert set(store.values('fedmon_samples_lost_total{stream="host"}').values()) == {0}


def test_a_killed_record_goes_on_and_the_store_holds_each_sample_once(
    mosquitto: Broker, tmp_path: Path, store: Store
) -> None:
    environ = researcher_environment(mosquitto.url, tmp_path / "researcher")
    words = ("record", str(tmp_path / "store.fmr"), "--to", store.url, "--json")
    with RecordingNode(mosquitto.port, "a") as node:
        node.sample(20, live=False)
        for _ in range(3):
            count = len(store.values(CPU))
            with begun(*words, environ=environ, stdout=subprocess.DEVNULL) as running:
                node.sample(20, live=False)
                wait_until(lambda count=count: len(store.values(CPU)) > count)  # type: ignore[misc]  # bound now
                running.kill()
        with begun(*words, environ=environ, stdout=subprocess.PIPE) as running:
            wait_until(lambda: len(store.values(CPU)) == 80)
            assert running.stdout is not None
            assert running.stdout.readline()
            running.send_signal(signal.SIGINT)
            output, _ = running.communicate(timeout=60)

    assert store.values(CPU) == expected(node)
    assert msgspec.json.decode(output.splitlines()[-1])["store"]["waiting"] == 0


@contextmanager
def guarded(store: Store, folder: Path) -> Iterator[str]:
    """Run vmauth in front of a store: HTTPS, and one token; gives its URL."""
    program, port, config = shutil.which("vmauth"), free_port(), folder / "auth.yml"
    require(program, "vmauth is not installed")
    make_broker_certificate(folder)
    config.write_text(f"users: [{{bearer_token: {TOKEN}, url_prefix: 'http://127.0.0.1:{store.port}'}}]")
    certificates = folder / "certificates"
    command = [
        str(program),
        f"-auth.config={config}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-tls",
        f"-tlsCertFile={certificates / 'broker.crt'}",
        f"-tlsKeyFile={certificates / 'broker.key'}",
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        try:
            wait_until(lambda: is_open("127.0.0.1", port, timeout_s=1.0), what="vmauth")
            yield f"https://localhost:{port}"
        finally:
            running.kill()


def test_certificates_token_and_tenant_come_from_the_settings(
    mosquitto: Broker, federate: Open, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = tmp_path / "researcher.toml"
    file.write_text('[store]\ntoken_file = "token"\nca_file = "certificates/ca.crt"\ntenant = "7"\n')
    secret_file(tmp_path / "token", TOKEN)
    store = Store(tmp_path / "victoria", prefix="/insert/7/prometheus")
    request.addfinalizer(store.kill)
    with RecordingNode(mosquitto.port, "a") as node, guarded(store, tmp_path) as url:
        node.sample(3, live=False)
        chosen = load_researcher(file, {"FEDMON_RESEARCHER_FOLDER": str(tmp_path)}).store
        settings = msgspec.structs.replace(federate(instance="first").settings, store=chosen)
        with federate(settings=settings).record(tmp_path / "store.fmr", to=url) as record:
            wait_until(lambda: record.store is not None and record.store.counts.sent == 3)

    assert store.values(CPU) == expected(node)
    assert record.store is not None
    assert record.store.url == f"{url}/insert/7/prometheus/api/v1/import"


def filled(path: Path) -> list[float]:
    """Make a recording with a few samples, and return their times."""
    now = int(time.time())
    times = [float(now - 20 + seq) for seq in range(10)]
    with Recording(path) as recording:
        append(recording, "a", times)
    return times


def test_refusals_come_with_a_remedy(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "store.fmr"
    filled(path)

    def refusal(url: str, **settings: Any) -> str:
        push = StorePush(path, import_url(url), StoreSettings(**settings), is_online=dict)
        error = wait_until(lambda: push.counts.error)
        assert not push.stop()
        return error

    with guarded(store, tmp_path) as url:
        ca_file = tmp_path / "certificates" / "ca.crt"
        assert "name a file with its token in [store] token_file" in refusal(url, ca_file=ca_file)
        assert "name the right ca_file in [store]" in refusal(url)
    assert "is the URL right?" in refusal(store.url.replace("http", "https"))
    assert "give the URL of VictoriaMetrics, or of a cluster's vminsert" in refusal(f"{store.url}/nowhere")


def test_a_full_disk_of_the_store_is_said_once_and_costs_no_sample(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.fmr"
    times = filled(path)
    store.kill()
    store.options = ["-storage.minFreeDiskSpaceBytes=1000000GB"]
    store.start()
    push = StorePush(path, import_url(store.url), StoreSettings(), is_online=dict)
    wait_until(lambda: push.counts.error and store.imports() >= 3)
    store.kill()
    store.options = []
    store.start()
    wait_until(lambda: push.counts.sent == 10 and not push.counts.error)
    assert push.stop()

    (said,) = [one.getMessage() for one in caplog.records if "samples wait in" in one.getMessage()]
    assert str(path) in said
    assert "read-only" in said
    assert said.endswith("look at its disk and its log")
    assert store.values(CPU) == {round(1000 * t): 0.5 for t in times}


class ClosingStore(LoopbackServer):
    """Takes everything, and closes each connection as a proxy may; ``lines`` came in bodies of ``sizes`` bytes.

    With ``refused_every`` it takes 50 ms for each request, and every one at this distance is refused.
    """

    def __init__(self, refused_every: int | None = None) -> None:
        super().__init__(_Closing)
        self.refused_every = refused_every
        self.lines: list[dict[str, Any]] = []
        self.sizes: list[int] = []


class _Closing(Answers):
    def do_POST(self) -> None:  # noqa: N802  # as http.server has it
        body = self.body()
        self.server.sizes.append(len(body))
        every = self.server.refused_every
        is_refused = every is not None and len(self.server.sizes) % every == 0
        if every is not None:
            threading.Event().wait(0.05)
        if not is_refused:
            self.server.lines += [msgspec.json.decode(line) for line in body.splitlines()]
        self.reply(503 if is_refused else 204, headers={"Connection": "close"})


def test_a_store_that_closes_connections_gets_each_sample_once_and_one_bad_batch_stops_no_other(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.fmr"
    with Recording(path) as recording:
        for node_id, series, first_t in (("bad", "bad name{", 0.0), ("late", CPU, 1e300), ("good", CPU, 100.0)):
            for seq in range(0, 30, 10):
                times = [first_t + at for at in range(seq, seq + 10)]
                append(recording, node_id, times, {series: float(seq)}, seq=seq)
    with ClosingStore() as server:
        url = import_url(server.url)
        assert StorePush(path, url, StoreSettings(), is_online=dict).stop()

    sent = [t for line in server.lines if line["metric"]["__name__"] == CPU for t in line["timestamps"]]
    assert sent == [1000 * t for t in range(100, 130)]
    assert {line["metric"]["node"] for line in server.lines if line["metric"]["__name__"] == CPU} == {"good"}


def test_a_long_recording_is_sent_in_bodies_of_a_few_mib(tmp_path: Path) -> None:
    path, values = tmp_path / "store.fmr", {f"metric_{number}": 0.123456 for number in range(100)}
    with Recording(path) as recording:
        for name in ("a", "b", "c", "d", "e", "f"):
            for seq in range(0, 1000, 100):
                t = [1_700_000_000.0 + at for at in range(seq, seq + 100)]
                append(recording, name, t, values, seq=seq)
    with ClosingStore() as server:
        url = import_url(server.url)
        assert StorePush(path, url, StoreSettings(), is_online=dict).stop()

    sent = sum(len(line["values"]) for line in server.lines if line["metric"]["__name__"].startswith("metric_"))
    assert sent == 600_000
    assert sum(server.sizes) > 3 * 2**22
    assert max(server.sizes) <= 2 * 2**22


def test_a_backlog_passes_a_store_that_fails_on_the_way_and_tells_positions_and_presence_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.fmr"
    constants = {"BODY_BYTES": 1, "SETTLED_S": 0.1, "LOOK_EVERY_S": 0.3, "FIRST_RETRY_S": 0.05, "LONGEST_RETRY_S": 0.05}
    names = [f"node-{number:02}" for number in range(30)]
    t = [1_700_000_000.0 + at for at in range(100)]
    with Recording(path) as recording:
        for name in names:
            append(recording, name, t)
    for constant, value in constants.items():
        monkeypatch.setattr(f"fedmon.researcher.samples.store.{constant}", value)
    reached: list[int] = []

    def is_online() -> dict[str, bool]:
        """Note at each report how many streams the file of positions has as sent."""
        sent = msgspec.json.decode(Path(f"{path}.sent").read_bytes())["sent"]
        reached.append(sum(seq == 99 for *_, seq in sent))
        return {"node-00": True}

    with ClosingStore(refused_every=8) as server:
        url = import_url(server.url)
        push = StorePush(path, url, StoreSettings(), is_online=is_online)
        wait_until(lambda: reached and not push.counts.error and not push.counts.waiting, what="the end of the backlog")
        push.stop()

    series = [(line["metric"]["__name__"], line["metric"]["node"]) for line in server.lines]
    first_online, last_sample = series.index(("fedmon_node_online", "node-00")), series.index((CPU, names[-1]))
    assert {node for name, node in series if name == CPU} == set(names)
    assert first_online < last_sample
    assert [settled for settled in reached if 0 < settled < len(names)]


def test_samples_that_a_bound_dropped_while_the_store_was_never_there_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, url = tmp_path / "store.fmr", f"http://127.0.0.1:{free_port()}"

    def noisy(stream: str, seq: int) -> None:
        chance = random.Random(seq)
        values = {f"user_{at}": chance.random() for at in range(600)}
        append(recording, "a", [1000.0 + seq / 1e6] * 10, values, seq=seq, stream=stream)
        recording.maintain()

    for constant in ("FIRST_RETRY_S", "LONGEST_RETRY_S"):
        monkeypatch.setattr(f"fedmon.researcher.samples.store.{constant}", 0.05)
    with Recording(path, max_bytes=2**20) as recording:
        noisy("job", 0)
        noisy("host", 0)
        push = StorePush(path, import_url(url), StoreSettings(), is_online=dict)
        wait_until(lambda: push.counts.waiting == 20)
        for seq in range(10, 2000, 10):
            noisy("host", seq)
        assert [one.stream for one in recording.extents()] == ["host"]
        dropped = recording.counts()[DROPPED_BY_SIZE]
        wait_until(lambda: push.counts.waiting == 2010 - dropped, what="a look at what is left")
        assert not push.stop()

    assert push.counts.dropped == dropped > 10


def test_samples_that_a_bound_dropped_before_they_were_sent_are_counted_once(tmp_path: Path) -> None:
    path, url = tmp_path / "store.fmr", f"http://127.0.0.1:{free_port()}"
    Path(f"{path}.sent").write_bytes(msgspec.json.encode({"url": import_url(url), "sent": [("a", "host", 1, 9)]}))
    times = [100.0 + seq for seq in range(60, 70)]
    with Recording(path) as recording:
        append(recording, "a", times, seq=60)
    push = StorePush(path, import_url(url), StoreSettings(), is_online=dict)
    wait_until(lambda: push.counts.error)
    assert not push.stop()

    assert (push.counts.dropped, push.counts.waiting) == (50, 10)


def test_a_token_that_cannot_be_sent_is_refused_before_anything_is_recorded(federate: Open, tmp_path: Path) -> None:
    token = secret_file(tmp_path / "token", "geheim-ü-€")
    settings = msgspec.structs.replace(federate(instance="first").settings, store=StoreSettings(token_file=token))

    with pytest.raises(SettingsError, match="cannot carry"):
        federate(settings=settings).record(tmp_path / "store.fmr", to="http://host")

    assert not [thread for thread in threading.enumerate() if thread.name == "fedmon-record"]


def test_positions_that_are_damaged_have_all_sent_again_and_those_that_cannot_be_read_are_an_error(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.fmr"
    filled(path)
    positions = Path(f"{path}.sent")
    positions.write_text("{")
    with ClosingStore() as server:
        url = import_url(server.url)
        push = StorePush(path, url, StoreSettings(), is_online=dict)
        assert push.stop()
    positions.unlink()
    positions.mkdir()

    assert push.counts.sent == 10
    with pytest.raises(StorageError, match=r"cannot read .*\.sent: Is a directory"):
        StorePush(path, url, StoreSettings(), is_online=dict)


def test_a_file_without_certificates_and_a_tenant_that_is_none_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "ca.crt"
    empty.touch()

    for ca_file in (empty, tmp_path / "missing.crt"):
        with pytest.raises(SettingsError, match=rf"ca_file .*{ca_file.name} in \[store\] cannot be used"):
            StorePush(tmp_path / "store.fmr", "https://host", StoreSettings(ca_file=ca_file), is_online=dict)
    for tenant in ("seven", "7/8", "7:"):
        with pytest.raises(SettingsError, match="STORE_TENANT"):
            load_researcher(None, {"FEDMON_RESEARCHER_FOLDER": str(tmp_path), "FEDMON_STORE_TENANT": tenant})
    with pytest.raises(InvalidInputError, match="remove one of the two"):
        import_url("https://host:8480/insert/0/prometheus", tenant="7")


def test_a_store_that_is_away_is_named_at_the_end_and_nothing_is_lost(mosquitto: Broker, tmp_path: Path) -> None:
    file = tmp_path / "store.fmr"
    url = f"http://127.0.0.1:{free_port()}"
    with RecordingNode(mosquitto.port, "a") as node:
        node.sample(3, live=False)
        environ = researcher_environment(mosquitto.url, tmp_path / "researcher")
        done = fedmon("record", str(file), "--to", url, "--for", "8", environ=environ)

    assert done.returncode == 1
    assert f"3 samples not sent to {url}/api/v1/import yet; {file} keeps them" in done.stderr
    assert f"{file}: 3 samples (3 backfilled), 1 node, 0 lost, 0 pending" in done.stdout


def test_a_url_that_is_none_is_refused(federate: Open, tmp_path: Path) -> None:
    hosts = ("http://", "http://me@host", "http://host/?a=1", f"http://{'a' * 70}.org", "http://höst/")
    federation = federate()
    reasons = {}

    for url in ("", "victoria:8428", "ftp://host", *hosts):
        try:
            reasons[url] = str(federation.record(tmp_path / "store.fmr", to=url))
        except InvalidInputError as error:
            reasons[url] = str(error)

    assert {url: reason for url, reason in reasons.items() if "not the URL of a store" not in reason} == {}
    assert list(tmp_path.glob("*.fmr")) == []


@pytest.mark.parametrize(
    ("url", "tenant", "address"),
    [
        ("http://host:8428", None, "http://host:8428/api/v1/import"),
        ("http://host:8428/", None, "http://host:8428/api/v1/import"),
        ("https://host:8480/insert/7/prometheus", None, "https://host:8480/insert/7/prometheus/api/v1/import"),
        ("https://host:8480/", "7:1", "https://host:8480/insert/7:1/prometheus/api/v1/import"),
        ("https://host/vm", "0", "https://host/vm/insert/0/prometheus/api/v1/import"),
        ("http://host:8428/api/v1/import", None, "http://host:8428/api/v1/import"),
    ],
)
def test_a_single_store_and_a_cluster_are_addressed(url: str, tenant: str | None, address: str) -> None:
    assert import_url(url, tenant=tenant) == address
