"""``fedmon broker start``: says what it is, obeys signals, refuses what is unsafe."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from fedmon.broker.engine import MosquittoEngine
from fedmon.broker.folder import BrokerFolder
from fedmon.broker.users import Role, Users
from tests.broker.certificates import make_broker_certificate, make_client_authority, make_client_certificate, revoke
from tests.broker.party import Party
from tests.broker.shell import FEDMON, answer, fedmon_broker, foreground
from tests.support.brokers import takes_messages
from tests.support.passwords import PASSWORD
from tests.support.requirements import require
from tests.support.shell import fedmon
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until


def require_engine(name: str) -> None:
    require(name == "embedded" or MosquittoEngine.available(), "mosquitto is not on PATH")


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def with_one_user(folder: Path) -> None:
    Users(BrokerFolder(folder)).add("hospital-a", Role.NODE, PASSWORD)


@pytest.mark.parametrize(("engine", "number"), [("mosquitto", signal.SIGTERM), ("embedded", signal.SIGINT)])
def test_it_answers_when_it_says_so_and_stops_cleanly(engine: str, number: int, tmp_path: Path) -> None:
    require_engine(engine)
    with foreground("start", "--port", "0", "--engine", engine, "--data-dir", tmp_path) as running:
        facts = running.facts
        reached = takes_messages(port_of(facts["url"]))
        code = running.stop(number)

    assert reached
    assert (facts["engine"], facts["users"], facts["tls"], code) == (engine, False, False, 0)
    assert "no users" in facts["warnings"][0]
    assert not psutil.pid_exists(facts["pid"])


def test_a_port_in_use_is_refused_by_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        finished = fedmon("broker", "start", "--port", str(port), "--data-dir", tmp_path)

    assert finished.returncode == 4
    assert f"port {port} of 127.0.0.1 is in use" in finished.stderr
    assert "--port" in finished.stderr
    assert len(finished.stderr.splitlines()) == 1


def test_a_second_broker_in_one_folder_is_refused(tmp_path: Path) -> None:
    with foreground("start", "--port", "0", "--engine", "embedded", "--data-dir", tmp_path) as first:
        finished = fedmon("broker", "start", "--port", "0", "--engine", "embedded", "--data-dir", tmp_path, "--json")

    assert finished.returncode == 4
    assert str(first.process.pid) in json.loads(finished.stdout)["error"]["message"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_without_users_the_network_is_refused(host: str, tmp_path: Path) -> None:
    finished = fedmon("broker", "start", "--host", host, "--port", "0", "--data-dir", tmp_path)

    assert finished.returncode == 4
    assert "fedmon broker user add" in finished.stderr


def test_the_embedded_engine_refuses_a_folder_with_users(tmp_path: Path) -> None:
    with_one_user(tmp_path)

    finished = fedmon("broker", "start", "--engine", "embedded", "--port", "0", "--data-dir", tmp_path)

    assert finished.returncode == 1
    assert "install mosquitto" in finished.stderr


def test_a_broker_that_dies_ends_the_verb_with_its_log(tmp_path: Path) -> None:
    with foreground("start", "--port", "0", "--engine", "embedded", "--data-dir", tmp_path) as running:
        os.kill(running.facts["pid"], signal.SIGKILL)
        code = running.process.wait(60)
        assert running.process.stderr is not None
        message = running.process.stderr.read()
        assert running.process.stdout is not None
        message += running.process.stdout.read()

    assert code == 1
    assert "ended by itself" in message
    assert running.facts["log_file"] in message


def test_with_users_it_has_a_listener_a_role_and_knows_new_changed_and_removed_users_at_once(tmp_path: Path) -> None:
    require_engine("mosquitto")
    with_one_user(tmp_path)
    with foreground("start", "--port", "0", "--data-dir", tmp_path) as running:
        urls = running.facts["urls"]
        nodes, researchers = port_of(urls["node"]), port_of(urls["researcher"])
        with Party(nodes, client_id="x", credentials=("hospital-a", PASSWORD)) as node:
            added = answer("user", "add", "alice", "--role", "researcher", "--data-dir", tmp_path)
            credentials = ("alice", added["password"])
            _wait_until_let_in(researchers, credentials)
            assert not Party(nodes, client_id="alice-main", credentials=credentials).is_let_in()
            with Party(researchers, client_id="alice", credentials=credentials) as alice:
                replaced = answer("user", "add", "alice", "--role", "researcher", "--replace", "--data-dir", tmp_path)
                alice.wait(lambda: alice.connections_lost == 1)
            with Party(researchers, client_id="alice", credentials=("alice", replaced["password"])) as alice:
                answer("user", "remove", "alice", "--data-dir", tmp_path)
                alice.wait(lambda: alice.connections_lost == 1)
            assert node.connections_lost == 0
        code = running.stop()

    assert (running.facts["users"], added["reload"], code) == (True, "done", 0)
    assert running.facts["limits"].startswith("packets up to 256 KiB, ")


def test_the_next_command_of_a_broker_with_users_is_that_for_the_next_user(tmp_path: Path) -> None:
    require_engine("mosquitto")
    with_one_user(tmp_path)
    command = [*FEDMON, "start", "--port", "0", "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        following = next(line for line in running.stdout if line.startswith("next: "))
        running.terminate()

    assert following == f"next: fedmon broker user add NAME --role ROLE --data-dir {tmp_path}\n"


def test_the_first_user_of_an_open_broker_needs_a_restart_and_says_so(tmp_path: Path) -> None:
    with foreground("start", "--port", "0", "--engine", "embedded", "--data-dir", tmp_path) as running:
        running.process.send_signal(signal.SIGHUP)
        added = fedmon_broker("user", "add", "hospital-a", "--role", "node", "--data-dir", tmp_path)

        assert takes_messages(port_of(running.facts["url"]))
    assert "still open: restart it now" in added.stdout


def test_with_a_certificate_and_its_key_it_speaks_tls_and_takes_a_renewed_one_at_a_signal(tmp_path: Path) -> None:
    require_engine("mosquitto")
    with_one_user(tmp_path)
    certificates = tmp_path / "certificates"
    certificates.mkdir()
    certificates.joinpath("broker.key").touch()

    refused = fedmon("broker", "start", "--port", "0", "--data-dir", tmp_path)
    make_broker_certificate(tmp_path)
    with foreground("start", "--port", "0", "--data-dir", tmp_path) as running:
        facts = running.facts
        port, credentials = port_of(facts["url"]), ("hospital-a", PASSWORD)
        assert Party(port, client_id="x", credentials=credentials, ca_file=certificates / "ca.crt").is_let_in()
        assert not Party(port, client_id="x", credentials=credentials).is_let_in()
        make_broker_certificate(tmp_path)
        running.process.send_signal(signal.SIGHUP)
        _wait_until_let_in(port, credentials, certificates / "ca.crt")

    assert refused.returncode == 1
    assert "broker.crt is missing" in refused.stderr
    assert facts["url"].startswith("mqtts://127.0.0.1:")
    assert (facts["tls"], facts["warnings"]) == (True, [])


def test_with_client_certificates_it_needs_the_authorities_and_no_password_and_takes_revocations(
    tmp_path: Path,
) -> None:
    require_engine("mosquitto")
    make_broker_certificate(tmp_path)
    certificates = tmp_path / "certificates"
    start = ("start", "--port", "0", "--data-dir", tmp_path, "--client-certificates")

    refused = fedmon("broker", *start)
    for name in ("nodes", "researchers"):
        make_client_authority(certificates, name)
    certificate = make_client_certificate(certificates, "nodes", "hospital-a")
    revoked = make_client_certificate(certificates, "nodes", "hospital-b")
    revoke(certificates, "nodes", revoked[0])
    with foreground(*start) as running:
        port, ca_file = port_of(running.facts["url"]), certificates / "ca.crt"
        with Party(port, client_id="x", certificate=certificate, ca_file=ca_file) as node:
            node.subscribe("general/status/hospital-a")
            node.publish("general/status/hospital-a", b"online")
            node.wait_for("general/status/hospital-a")
        assert not Party(port, client_id="y", certificate=revoked, ca_file=ca_file).is_let_in()

    assert refused.returncode == 1
    assert "nodes-ca.crt is missing" in refused.stderr


def test_presence_survives_a_restart_of_mosquitto(tmp_path: Path) -> None:
    require_engine("mosquitto")
    arguments = ("start", "--port", "0", "--engine", "mosquitto", "--data-dir", tmp_path)
    with foreground(*arguments) as running:
        with Party(port_of(running.facts["url"]), client_id="a") as node:
            node.publish("general/status/a", b"online", retain=True)
        running.stop()

    with foreground(*arguments) as running, Party(port_of(running.facts["url"]), client_id="b") as researcher:
        researcher.subscribe("general/status/+")
        researcher.wait_for("general/status/a", b"online")


def test_closing_the_terminal_stops_the_broker(tmp_path: Path) -> None:
    words = ("start", "--port", "0", "--engine", "embedded", "--data-dir", str(tmp_path), "--print-url")
    with Terminal("broker", *words) as terminal:
        url = terminal.read_until("\n")
        # The shell that guards it, and the broker itself.
        children = psutil.Process(terminal.process.pid).children(recursive=True)
        terminal.close()
        code = terminal.process.wait(60)

    assert url.startswith("mqtt://")
    assert code == 0
    assert len(children) == 2
    assert psutil.wait_procs(children, timeout=60.0)[1] == []


def _wait_until_let_in(port: int, credentials: tuple[str, str], ca_file: Path | None = None) -> None:
    """Wait until mosquitto has obeyed the signal, of which it says nothing to the one who sent it."""
    given = {"client_id": "alice-main", "credentials": credentials, "ca_file": ca_file}
    wait_until(lambda: Party(port, **given).is_let_in(), what="the new user to be let in")  # type: ignore[arg-type]
