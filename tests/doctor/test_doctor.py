"""`fedmon doctor`: what it checks, and what it says to do where something is wrong."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fedmon.broker.engine import MosquittoEngine
from fedmon.node.owner.control import ControlServer
from tests.broker.shell import foreground
from tests.support.brokers import Broker, takes_messages
from tests.support.echo_node import EchoNode
from tests.support.full_disk import files_of_at_most
from tests.support.node_process import NodeProcess, plain_environment, write_node_folder, write_node_with_cells
from tests.support.passwords import secret_file
from tests.support.ports import free_port
from tests.support.requirements import require
from tests.support.shell_here import fedmon_here
from tests.support.stubborn import greeter
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a folder of its own."""
    monkeypatch.chdir(tmp_path)


def diagnosed(*words: str | Path, **environ: str) -> tuple[int, dict[str, Mapping[str, Any]]]:
    """Run the doctor of a new researcher, and return its exit code and its checks by name."""
    environ = plain_environment(**{"FEDMON_RESEARCHER_FOLDER": "researcher", **environ})
    done = fedmon_here("doctor", *words, "--json", environ=environ)
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def other_loopback() -> str:
    """Return an address of this machine on whose usual ports no other program or test listens."""
    return f"127.{random.randrange(1, 255)}.{random.randrange(255)}.{random.randrange(1, 255)}"


@pytest.mark.parametrize(
    ("offset_s", "nodes", "clocks", "advice"),
    [(0, "ok", "ok", ""), (-120, "ok", "warning", "set the clocks by NTP"), (None, "failed", "skipped", "")],
    ids=["right", "slow", "silent"],
)
def test_a_node_with_a_wrong_clock_or_without_an_answer_is_told(
    offset_s: int | None, nodes: str, clocks: str, advice: str, mosquitto: Broker
) -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any] | None:
        honest = node.honest(request)
        if honest is None or offset_s is None:
            return None
        return honest | {"time": (datetime.now(UTC) + timedelta(seconds=offset_s)).isoformat()}

    with EchoNode(mosquitto.port, "a", answer=answer) as node:
        code, checks = diagnosed("--broker", mosquitto.url, "--timeout", "5" if offset_s is None else "30")

    assert code == (nodes == "failed")
    assert {"connection", "QoS 0", "QoS 1", "payload", "retained", "last will"} <= set(checks)
    assert (checks["nodes"]["verdict"], checks["clock offset"]["verdict"]) == (nodes, clocks)
    assert advice in checks["clock offset"]["advice"]


def test_a_silent_or_refusing_node_is_named_and_no_clock_blamed_for_it(mosquitto: Broker, tmp_path: Path) -> None:
    shy = write_node_folder(tmp_path / "shy", url=mosquitto.url, researchers=["bob"])
    url = mosquitto.url.replace("//", "//alice@")
    with EchoNode(mosquitto.port, "quick"):
        with EchoNode(mosquitto.port, "silent", answer=lambda _request: None):
            _, silent = diagnosed("--broker", url, "--timeout", "6")
        with NodeProcess(shy):
            wait_until(lambda: "refuse" in diagnosed("--broker", url)[1]["nodes"]["found"])
            code, refusing = diagnosed("--broker", url, "--timeout", "30")

    assert silent["settings"]["found"].startswith("researcher alice, ")
    assert (silent["nodes"]["verdict"], silent["clock offset"]["verdict"]) == ("warning", "ok")
    assert "1 of 2 known nodes answer (silent: " in silent["nodes"]["found"]
    assert (code, refusing["nodes"]["verdict"]) == (0, "warning")
    assert "fedmon node policy allow alice" in refusing["nodes"]["advice"]


@pytest.mark.parametrize(
    ("words", "name", "found"),
    [
        ("--broker mqtt://no-such-host.invalid", "connection", "; check the spelling and the name server"),
        ("--broker mqtt://127.0.0.1:{port}", "connection", "127.0.0.1:{port}: connection refused; is the broker runn"),
        ("--settings gone.toml", "settings", "gone.toml"),
        ("--dir gone", "settings", "gone"),
    ],
)
def test_what_is_out_of_reach_is_named_with_what_to_do(words: str, name: str, found: str) -> None:
    port = free_port()
    code, checks = diagnosed(*words.format(port=port).split())

    (bad,) = (check for check in checks.values() if check["verdict"] == "failed")
    assert (code, bad["name"], bool(bad["advice"])) == (1, name, name == "settings")
    assert found.format(port=port) in bad["found"]


RABBITMQ = (
    b"\x01\x00\x00 \x07productS\x00\x00\x00\x08RabbitMQ\x07versionS\x00\x00\x00\x063.10.8\x00\x00\x00\x0ePLAIN \xce"
)
NATS = b'INFO {"server_id":"NCEU5","version":"2.15.1","proto":1,"jetstream":true} \r\n'


@pytest.mark.parametrize(
    ("port", "greeting", "name", "found"),
    [
        (5672, RABBITMQ, "sessions", "RabbitMQ 3.10.8 runs there: in a cluster, name all hosts in the url"),
        (4222, NATS, "limits", "NATS 2.15.1 runs there: each node needs a consumer"),
    ],
    ids=["rabbitmq", "nats"],
)
def test_a_cluster_is_told_what_it_needs(port: int, greeting: bytes, name: str, found: str) -> None:
    address = other_loopback()

    with greeter(greeting, address=address, port=port):
        _, checks = diagnosed("--broker", f"mqtt://{address}:{free_port()}", "--timeout", "1")

    assert checks[name]["verdict"] == "ok"
    assert checks[name]["found"].startswith(found)


@contextlib.contextmanager
def broker_with(line: str, folder: Path) -> Iterator[str]:
    """Run a mosquitto with a line more, such as "acl_file acl": nobody may write. Return its url."""
    program = MosquittoEngine.program()
    require(program, "mosquitto is not installed")
    port = free_port()
    (folder / "acl").write_text("topic read #\n")
    (folder / "conf").write_text(f"user root\nlistener {port} 127.0.0.1\nallow_anonymous true\n{line}\n")
    with subprocess.Popen([str(program), "-c", "conf"], cwd=folder, stderr=subprocess.DEVNULL) as broker:
        try:
            wait_until(lambda: takes_messages(port), what="the broker")
            yield f"mqtt://127.0.0.1:{port}"
        finally:
            broker.terminate()


@pytest.mark.parametrize(
    ("line", "name", "advice"),
    [
        ("acl_file acl", "QoS 0", "its id is the name of its user or certificate, and ask"),
        ("max_packet_size 20000", "payload", "raise the broker's packet size limit"),
        ("retain_available false", "retained", "use another broker"),
    ],
)
def test_a_broker_that_lacks_something_fails_a_check(line: str, name: str, advice: str, tmp_path: Path) -> None:
    with broker_with(line, tmp_path) as url:
        _, checks = diagnosed("--broker", url, "--timeout", "3")

    assert checks[name]["verdict"] == "failed"
    assert advice in checks[name]["advice"]
    assert {"retained", "last will"} & set(checks) == (set() if name == "QoS 0" else {"retained", "last will"})


def test_a_node_says_that_the_broker_drops_its_messages(tmp_path: Path) -> None:
    with broker_with("acl_file acl", tmp_path) as url:
        folder = write_node_folder(tmp_path / "mute", url=url)

        def told() -> str:
            return str(diagnosed("--dir", folder)[1].get("node", {}).get("found"))

        with NodeProcess(folder):
            wait_until(lambda: told().startswith("NOT HEARD: the broker drops all messages of this node; its user"))

            assert told().endswith(" must be 'mute'")


def test_a_party_that_is_not_called_as_its_user_is_told(mosquitto: Broker, tmp_path: Path) -> None:
    url = mosquitto.url.replace("//", "//alice@")
    folder = write_node_folder(tmp_path / "idle", url=url)

    bob = {"FEDMON_BROKER_URL": url, "FEDMON_RESEARCHER_ID": "bob"}
    for words, environ in ((("--dir", folder), {}), ((), bob)):
        code, checks = diagnosed(*words, "--timeout", "30", **environ)
        assert (code, checks["settings"]["verdict"]) == (0, "warning")
        assert checks["settings"]["found"].endswith("; its user at the broker is alice")


def test_the_clock_of_a_node_of_fed_biomed_is_not_known(mosquitto: Broker, tmp_path: Path) -> None:
    wire = {"wire": "fedbiomed4"}
    folder = write_node_folder(tmp_path / "old", url=mosquitto.url, node=wire)
    with NodeProcess(folder):
        environ = {"FEDMON_RESEARCHER_WIRE": "fedbiomed4"}
        wait_until(lambda: diagnosed("--broker", mosquitto.url, **environ)[1]["nodes"]["verdict"] == "ok")
        _, checks = diagnosed("--broker", mosquitto.url, **environ)

    assert checks["clock offset"]["verdict"] == "skipped"


@pytest.mark.parametrize(
    ("status", "token_file", "found"),
    [
        ("503 Service Unavailable", {}, "503 Service Unavailable"),
        ("no HTTP", {}, "failed"),
        ("404 Not Found", {"FEDMON_REPOSITORY_TOKEN_FILE": "gone"}, "token file"),
    ],
)
def test_the_repository_is_looked_at_where_no_node_is_known(
    status: str, token_file: dict[str, str], found: str, mosquitto: Broker
) -> None:
    answer = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with greeter(answer.encode()) as port:
        url = f"http://127.0.0.1:{port}"
        code, checks = diagnosed("--broker", mosquitto.url, FEDMON_REPOSITORY_URL=url, **token_file)

    assert (checks["nodes"]["verdict"], checks["nodes"]["found"]) == ("warning", "no node is known")
    assert "fedmon node start" in checks["nodes"]["advice"]
    assert (code, checks["repository"]["verdict"]) == (1, "failed")
    assert found in checks["repository"]["found"]
    assert "that url, certificate and token_file are right" in checks["repository"]["advice"]


def test_the_repository_is_good_if_this_partys_token_stores_a_file_and_others_could_fetch_it(
    mosquitto: Broker, tmp_path: Path
) -> None:
    folder = write_node_folder(tmp_path / "idle", url=mosquitto.url)
    wrong = secret_file(tmp_path / "wrong", "not-the-token")

    with foreground("repository", "start", "--port", "0", "--data-dir", tmp_path / "files") as running:
        environ = {"FEDMON_REPOSITORY_URL": running.facts["url"]}
        fetching = {"FEDMON_REPOSITORY_ALLOWED_URLS": "https://files.example.org"}  # it sends to another place
        right = environ | {"FEDMON_REPOSITORY_TOKEN_FILE": running.facts["token_file"]}
        told = [
            diagnosed(*words, **environ | token | allowed)
            for words, allowed in ((("--broker", mosquitto.url), {}), (("--dir", folder), fetching))
            for token in (right, {"FEDMON_REPOSITORY_TOKEN_FILE": str(wrong)})
        ]
        _, sending = diagnosed("--dir", folder, **right)

    assert [(code, checks["repository"]["verdict"]) for code, checks in told] == [(0, "ok"), (1, "failed")] * 2
    assert "401 Unauthorized: uploads need a token" in told[1][1]["repository"]["found"]
    assert told[2][1]["repository"]["found"].endswith("; allowed_urls: https://files.example.org")
    found = sending["repository"]
    assert (found["verdict"], found["found"].partition("; ")[2]) == ("ok", "allowed_urls: none")
    # the broker of a node that does not run is tried
    assert [told[2][1][name]["verdict"] for name in ("connection", "node")] == ["ok", "skipped"]


def test_a_node_that_does_not_run_and_obeys_nobody_is_told(tmp_path: Path) -> None:
    url = f"mqtt://127.0.0.1:{free_port()}"
    folder = write_node_with_cells(tmp_path / "idle", url=url, researchers=[])
    (folder / "table.csv").unlink()
    (folder / "state.sqlite").write_bytes(b"damaged")

    done = fedmon_here("doctor", "--dir", folder, "--timeout", 1)

    assert "WARNING  policy: the node accepts no researcher" in done.stdout
    assert f"-> allow one with: fedmon node policy allow RESEARCHER --dir {folder}\n" in done.stdout
    assert f"FAILED   connection: cannot connect to the broker at {url.removeprefix('mqtt://')}" in done.stdout
    assert "skipped  node: the node does not run" in done.stdout
    assert "FAILED   node: no plan gets dataset 'cells': its path leads to nothing here now" in done.stdout
    assert "FAILED   node: DAMAGED and set aside: state.sqlite.damaged-" in done.stdout
    assert done.stdout.endswith("3 of 6 checks failed\n")
    assert done.returncode == 1
    with files_of_at_most(0):
        full = fedmon_here("doctor", "--dir", folder, "--timeout", 1)
    assert "FAILED   node: cannot write" in full.stdout
    assert "FAILED   connection: cannot connect to the broker at" in full.stdout, "which needs no room on the disk"


def test_a_node_that_runs_an_older_fedmon_is_to_be_restarted(tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "old", url=f"mqtt://127.0.0.1:{free_port()}")
    older = ControlServer(folder, lambda *_: {"datasets": [], "live": None, "policy": {}})
    older.start()
    try:
        doctor = fedmon_here("doctor", "--dir", folder, "--timeout", 1)
        status = fedmon_here("node", "status", "--dir", folder)
    finally:
        older.stop()

    assert "FAILED   node: the daemon does not tell 'researchers'; another fedmon runs here: restart" in doctor.stdout
    assert "FAILED   connection: cannot connect to the broker at" in doctor.stdout
    assert "the daemon does not tell 'set_aside'; another fedmon runs here: restart" in status.stderr


@pytest.mark.parametrize("option", ["--broker", "--settings"])
def test_settings_beside_a_node_that_has_its_own_are_refused(option: str, tmp_path: Path) -> None:
    done = fedmon_here("doctor", "--dir", str(tmp_path), option, "mqtt://127.0.0.1")

    assert (done.returncode, done.stdout) == (2, "")
    assert "leave --broker and --settings away" in done.stderr


def test_a_running_node_says_what_keeps_it_from_its_work(mosquitto: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "patient", url=mosquitto.url)
    double = write_node_folder(tmp_path / "d", node_id="patient", url=mosquitto.url)

    def told() -> str:
        code, checks = diagnosed("--dir", folder)
        assert code or checks["connection"]["verdict"] == "ok"
        return str(checks["connection"]["found"])

    with NodeProcess(folder):
        wait_until(lambda: told().startswith("connected to 127.0.0.1"))
        write_node_folder(folder, url=mosquitto.url, researchers=[])  # read at the next start
        with NodeProcess(double):
            wait_until(lambda: diagnosed("--dir", folder)[0] == 1)
            _, checks = diagnosed("--dir", folder)
            assert (checks["policy"]["found"], checks["node"]["verdict"]) == ("obeys *", "failed")
            assert checks["node"]["found"].startswith("DUPLICATE: another process uses the id 'patient'")
        mosquitto.stop()
        wait_until(lambda: told().startswith("not connected: cannot connect"))
