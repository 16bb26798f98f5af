"""The files in ``broker/``: rendered, valid, private, and alive when a real mosquitto reads them."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from fedmon.broker.configuration import FIRST_PORT, production_files, template
from fedmon.broker.engine import MosquittoEngine
from fedmon.broker.folder import BrokerFolder
from fedmon.broker.users import Role, Users
from fedmon.common.clock import utc_now
from fedmon.common.wire.messages import Presence
from tests.broker.certificates import make_client_certificate, revoke
from tests.broker.party import Party
from tests.broker.production import RENDERED, Production, compose_document, mosquitto_client
from tests.broker.shell import answer, fedmon_broker, foreground
from tests.support.node_process import plain_environment
from tests.support.passwords import PASSWORD
from tests.support.ports import free_port
from tests.support.requirements import require


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    users = {"hospital-a": Role.NODE, "alice": Role.RESEARCHER, "operator": Role.ADMIN}
    with Production(tmp_path_factory.mktemp("production") / "broker", users) as running:
        yield running


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return compose_document(production_files()["compose.yaml"])


def test_the_committed_files_are_what_this_version_renders() -> None:
    committed = {name: (RENDERED / name).read_text() for name in production_files()}

    assert committed == production_files(), "run: fedmon broker config write broker"


def test_the_compose_file_is_valid_and_publishes_the_ports_of_the_configuration(compose: dict[str, Any]) -> None:
    listeners = re.findall(r"^listener (\d+)$", production_files()["mosquitto-container.conf"], re.MULTILINE)

    published = [port.rsplit(":", 1)[1] for port in compose["services"]["mosquitto"]["ports"]]
    assert published == listeners == [str(FIRST_PORT + role.port_offset) for role in Role]


def test_admins_and_the_repository_are_reached_from_this_machine_only_unless_the_operator_says_otherwise(
    compose: dict[str, Any],
) -> None:
    files = production_files()
    of_the_system, of_the_container = files["mosquitto.conf"], files["mosquitto-container.conf"]
    admins, repository = FIRST_PORT + Role.ADMIN.port_offset, 8890

    assert re.findall(r"^listener \d+ .*$", of_the_system, re.MULTILINE) == [f"listener {admins} 127.0.0.1"]
    assert of_the_container == of_the_system.replace(f"listener {admins} 127.0.0.1", f"listener {admins}")
    assert f"127.0.0.1:{admins}:{admins}" in compose["services"]["mosquitto"]["ports"]
    assert compose["services"]["repository"]["ports"] == [
        f"${{FEDMON_REPOSITORY_ADDRESS:-127.0.0.1}}:{repository}:{repository}"
    ]


def test_what_the_containers_may_use_is_enough_for_every_connection(compose: dict[str, Any]) -> None:
    text = production_files()["mosquitto.conf"]
    connections = sum(int(number) for number in re.findall(r"^max_connections (\d+)$", text, re.MULTILINE))
    counted = re.search(r"^memory_limit (\d+)$", text, re.MULTILINE)
    assert counted is not None
    limits = {name: service["mem_limit"] for name, service in compose["services"].items()}

    assert [service["ulimits"]["nofile"] for service in compose["services"].values()] == [65_536, 65_536]
    assert connections < 65_536
    assert limits == {"mosquitto": "3g", "repository": "512m"}
    # An idle connection over TLS has 41 KB, which mosquitto does not count.
    assert int(counted[1]) + connections * 41_984 < 3 * 2**30


def test_the_configuration_bounds_packets_sessions_and_queues() -> None:
    lines = production_files()["mosquitto.conf"].splitlines()
    bounds = {"max_packet_size 262144", "persistent_client_expiration 1h", "max_queued_bytes 33554432"}

    assert bounds <= set(lines)


def test_what_the_compose_file_mounts_is_what_config_write_makes(
    production: Production, compose: dict[str, Any]
) -> None:
    sources = [mount["source"] for service in compose["services"].values() for mount in service["volumes"]]

    assert [source for source in sources if not (production.folder.path / source).exists()] == []


def test_containers_run_without_root_and_without_rights(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert service["user"].startswith("${FEDMON_UID:?")
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_everything_in_the_folder_is_closed_to_other_users(production: Production) -> None:
    modes = {
        path: path.stat().st_mode & 0o077 for path in production.folder.path.rglob("*") if path.name != "mosquitto.log"
    }

    assert [str(path) for path, others in modes.items() if others] == []


def test_the_health_check_sees_a_broker_that_lives_and_one_that_does_not(
    production: Production, compose: dict[str, Any]
) -> None:
    mosquitto_client("mosquitto_sub")
    kind, command = compose["services"]["mosquitto"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    command = command.replace("$$", "$")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead_port = listener.getsockname()[1]

    codes = [
        subprocess.run(
            ["sh", "-c", command.replace(str(FIRST_PORT + Role.MONITOR.port_offset), str(port))],
            cwd=production.folder.path,
            capture_output=True,
            timeout=60,
        ).returncode
        for port in (production.ports[Role.MONITOR], dead_port)
    ]

    assert codes == [0, 1]


def test_the_repository_of_the_compose_file_starts_and_its_health_check_sees_it(
    production: Production, compose: dict[str, Any]
) -> None:
    folder = production.folder.path
    BrokerFolder(folder / "secrets").replace("repository-token", "a token of the test\n")
    service = compose["services"]["repository"]
    port = str(free_port())
    substitutes = {
        "8890": port,
        "/fedmon/": f"{folder}/",
        "${FEDMON_REPOSITORY_URL:?set it in .env, see README.md}": f"https://localhost:{port}",
    }
    for placeholder, value in substitutes.items():
        service = json.loads(json.dumps(service).replace(placeholder, value))
    program, health = service["command"][1:], service["healthcheck"]["test"]

    with foreground(*program) as running:
        alive = subprocess.run([sys.executable, *health[2:]], cwd=folder, capture_output=True, text=True, timeout=60)
    gone = subprocess.run([sys.executable, *health[2:]], cwd=folder, capture_output=True, text=True, timeout=60)

    assert (health[:2], service["command"][0]) == (["CMD", "python"], "broker")
    assert running.facts["url"] == f"https://localhost:{port}"
    assert (alive.returncode, alive.stderr) == (0, "")
    assert gone.returncode == 1


@pytest.mark.parametrize("role", Role)
def test_nothing_below_tls_1_3_is_spoken(production: Production, role: Role) -> None:
    context = ssl.create_default_context(cafile=production.ca_file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", production.ports[role]), timeout=60.0) as connection,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(connection, server_hostname="localhost")
    assert not Party(production.ports[role], client_id="x", credentials=("hospital-a", PASSWORD)).is_let_in()


def test_with_client_certificates_the_common_name_is_the_user(tmp_path: Path) -> None:
    with Production(tmp_path / "broker", {"grafana": Role.MONITOR}, client_certificates=True) as production:
        folder = production.folder.path / "certificates"
        node = make_client_certificate(folder, "nodes", "hospital-a")
        researcher = make_client_certificate(folder, "researchers", "alice")
        ca_file, ports = production.ca_file, production.ports

        with (
            Party(
                production.ports[Role.RESEARCHER], client_id="alice-main", certificate=researcher, ca_file=ca_file
            ) as alice,
            Party(production.ports[Role.NODE], client_id="whatever", certificate=node, ca_file=ca_file) as hospital,
            production.party("grafana"),
        ):
            alice.subscribe("general/status/+")
            hospital.publish("general/status/hospital-b", b"forged")
            hospital.publish("general/status/hospital-a", b"online")
            alice.wait_for("general/status/hospital-a")

            assert alice.topics() == {"general/status/hospital-a"}
        for port, certificate in [
            (ports[Role.RESEARCHER], node),
            (ports[Role.NODE], researcher),
            (ports[Role.NODE], None),
        ]:
            assert not Party(port, client_id="x", certificate=certificate, ca_file=ca_file).is_let_in()


def test_a_revoked_certificate_stays_revoked_when_the_files_are_written_again(tmp_path: Path) -> None:
    production = Production(tmp_path / "broker", {}, client_certificates=True)
    folder = production.folder.path / "certificates"
    valid, revoked = (make_client_certificate(folder, "nodes", name) for name in ("hospital-a", "hospital-b"))
    revoke(folder, "nodes", revoked[0])

    written = production.folder.path / "mosquitto.conf"
    answer("config", "write", production.folder.path, "--client-certificates")
    lines = written.read_text()
    written.write_text(lines.replace("crlfile certificates/nodes", "  crlfile  certificates/old"))
    renamed = fedmon_broker("config", "write", production.folder.path, "--client-certificates")
    written.write_text(lines.replace("crlfile certificates/nodes.crl", "  crlfile  certificates/nodes.crl "))
    answer("config", "write", production.folder.path, "--client-certificates")
    refused = fedmon_broker("config", "write", production.folder.path)
    with production:
        node: dict[str, Any] = {"client_id": "x", "ca_file": production.ca_file}
        let_in = [Party(production.ports[Role.NODE], certificate=one, **node).is_let_in() for one in (valid, revoked)]

    assert let_in == [True, False]
    assert (refused.returncode, renamed.returncode) == (4, 4)
    assert "would lack the line 'crlfile certificates/nodes.crl'" in refused.stderr
    assert "would lack the line 'crlfile certificates/old.crl'" in renamed.stderr


def test_a_flood_of_one_party_stays_within_the_memory_limit_and_the_others_are_served(tmp_path: Path) -> None:
    users = {"hospital-a": Role.NODE, "hospital-b": Role.NODE, "alice": Role.RESEARCHER, "bob": Role.RESEARCHER}
    limit_bytes = 40 * 2**20
    with Production(tmp_path / "broker", users, memory_limit_bytes=limit_bytes) as production:

        def serves() -> None:
            """Check that a message between two parties passes, and that a third one can still log in and hear it."""
            presence = f"{production.memory_bytes}".encode()
            hospital.publish("general/status/hospital-b", presence, retain=True)
            alice.wait_for("general/status/hospital-b", presence)
            with production.party("alice", "alice-second") as second:
                second.subscribe("general/status/+")
                second.wait_for("general/status/hospital-b", presence)

        begun_bytes = production.memory_bytes
        with production.party("hospital-b") as hospital, production.party("alice") as alice:
            alice.subscribe("general/status/+")
            with production.party("hospital-a") as flooder:
                kept = flooder.flood(lambda number: f"general/researcher/x/{number}/hospital-a", retain=True)
            retained_bytes = production.memory_bytes
            serves()
        production.restart()
        with production.party("hospital-b") as hospital, production.party("alice") as alice:
            alice.subscribe("general/status/+")
            for number in range(20):
                with production.party("bob", f"bob-{number}", clean=False) as leaving:
                    leaving.subscribe(f"general/researcher/bob/{number}/bob")
            with production.party("bob") as flooder:
                queued = flooder.flood(lambda number: f"general/researcher/bob/{number % 20}/bob", retain=False)
            queued_bytes = production.memory_bytes
            serves()

        assert kept < 250 > queued
        assert max(retained_bytes, queued_bytes) < begun_bytes + limit_bytes + 20 * 2**20


def test_config_write_renders_another_packet_limit_for_the_wire_fedbiomed4(tmp_path: Path) -> None:
    answer("config", "write", tmp_path / "broker", "--max-packet-kib", "1024")

    for name in ("mosquitto.conf", "mosquitto-container.conf"):
        assert "max_packet_size 1048576" in (tmp_path / "broker" / name).read_text().splitlines()


@pytest.mark.parametrize(("role", "name"), [(Role.RESEARCHER, "alice"), (Role.ADMIN, "operator")])
def test_500_idle_sockets_lock_nobody_out(production: Production, role: Role, name: str) -> None:
    with contextlib.ExitStack() as idle:
        for _ in range(500):
            idle.enter_context(socket.create_connection(("127.0.0.1", production.ports[role]), timeout=10.0))

        with production.party(name) as party:
            party.subscribe("general/status/+")


def test_with_users_admins_come_from_this_machine_and_the_others_from_everywhere(tmp_path: Path) -> None:
    require(MosquittoEngine.available(), "mosquitto is not on PATH")
    folder = tmp_path / "broker"
    Users(BrokerFolder(folder)).add("operator", Role.ADMIN, PASSWORD)
    with foreground("start", "--host", "0.0.0.0", "--port", "0", "--data-dir", folder) as running:
        ports = {role: int(running.facts["urls"][role.value].rpartition(":")[2]) for role in Role}
        listening = {
            connection.laddr.port: connection.laddr.ip
            for connection in psutil.Process(running.facts["pid"]).net_connections("tcp4")
            if connection.status == psutil.CONN_LISTEN
        }

    assert "no TLS" in running.facts["warnings"][0]
    assert {role: listening[ports[role]] for role in Role} == dict.fromkeys(Role, "0.0.0.0") | {Role.ADMIN: "127.0.0.1"}


def test_the_firewall_rule_counts_the_connections_of_each_address(tmp_path: Path) -> None:
    require(shutil.which("nft") and shutil.which("unshare") and shutil.which("ip"), "nft, unshare or ip is not on PATH")
    namespace = ["unshare", "--map-root-user", "--net"]
    probed = subprocess.run([*namespace, "nft", "list", "ruleset"], capture_output=True, text=True)
    require(probed.returncode == 0, f"no network namespace with a firewall here: {probed.stderr.strip()}")
    rules = tmp_path / "nftables.conf"
    rules.write_text(production_files()["nftables.conf"])
    program = """
import socket, sys
server = socket.create_server(("127.0.0.1", 8883), backlog=600)
held = [socket.create_connection(("127.0.0.1", 8883), timeout=30) for _ in range(500)]
try:
    socket.create_connection(("127.0.0.1", 8883), timeout=0.5)
except TimeoutError:
    socket.create_connection(("127.0.0.1", 8883), timeout=30, source_address=("127.0.0.2", 0))
    print("the 501st is refused, another address is not")
"""
    script = f'ip link set lo up && nft -f {rules} && nft -f {rules} && exec {sys.executable} -c "$1"'

    finished = subprocess.run([*namespace, "sh", "-c", script, "sh", program], capture_output=True, text=True)

    assert (finished.stdout, finished.stderr) == ("the 501st is refused, another address is not\n", "")


def test_the_admins_line_of_the_readme_clears_a_presence(production: Production) -> None:
    line = re.search(r"^FEDMON_BROKER_URL=.*\\\n.* fedmon nodes forget .*$", template("README.md"), re.MULTILINE)
    assert line is not None
    script = line[0].replace("8886", str(production.ports[Role.ADMIN])).replace(" fedmon ", ' "$0" -m fedmon ')
    script = script.replace("operator.password", str(production.password_file))
    gone = Presence(node_id="hospital-b", boot=1, state="online", since=utc_now(), agent_version="0.2.0")
    with production.observer() as everything:
        everything.publish("general/status/hospital-b", msgspec.json.encode(gone), retain=True)

        folder = production.folder.path
        finished = subprocess.run(
            ["sh", "-c", script, sys.executable],
            cwd=folder,
            env=plain_environment(HOME=str(folder)),
            capture_output=True,
            text=True,
            timeout=60,
        )

        assert finished.returncode == 0, finished.stderr
        everything.subscribe("general/status/+")
        everything.publish("general/status/end", b"")
        everything.wait_for("general/status/end")
        assert everything.topics() == {"general/status/end"}
