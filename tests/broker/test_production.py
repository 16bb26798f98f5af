"""The files in ``broker/``: rendered, valid, private, and alive when a real mosquitto reads them."""

from __future__ import annotations

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

import jsonschema
import pytest
import yaml

from fedmon.broker.configuration import MAX_PACKET_BYTES
from fedmon.broker.folder import BrokerFolder
from fedmon.broker.ports import free_ports
from fedmon.broker.production import FIRST_PORT, REPOSITORY_PORT, production_files
from fedmon.broker.roles import Role
from fedmon.broker.users import Users
from tests.broker.certificates import make_client_certificate
from tests.broker.party import Party, RefusedError
from tests.broker.production import PASSWORD, RENDERED, Production, mosquitto_client
from tests.broker.shell import foreground
from tests.support.requirements import require

SCHEMA = Path(__file__).parents[1] / "data" / "compose" / "compose_spec.json"


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    users = {"hospital-a": Role.NODE, "alice": Role.RESEARCHER}
    with Production(tmp_path_factory.mktemp("production") / "broker", users) as running:
        yield running


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(production_files()["compose.yaml"])
    return document


def test_the_committed_files_are_what_this_version_renders() -> None:
    committed = {name: (RENDERED / name).read_text() for name in production_files()}

    assert committed == production_files(), "run: fedmon broker config write broker"


def test_the_compose_file_is_valid(compose: dict[str, Any]) -> None:
    schema = json.loads(SCHEMA.read_text())

    jsonschema.Draft201909Validator(schema).validate(compose)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft201909Validator(schema).validate({"services": {"mosquitto": {"prots": []}}})


def test_the_compose_file_publishes_the_ports_of_the_configuration(compose: dict[str, Any]) -> None:
    listeners = re.findall(r"^listener (\d+)$", production_files()["mosquitto.conf"], re.MULTILINE)

    published = [port.rsplit(":", 1)[1] for port in compose["services"]["mosquitto"]["ports"]]
    assert published == listeners == [str(FIRST_PORT + role.port_offset) for role in Role]
    assert compose["services"]["repository"]["ports"] == [f"{REPOSITORY_PORT}:{REPOSITORY_PORT}"]


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


@pytest.mark.parametrize(
    "line",
    [
        f"max_packet_size {MAX_PACKET_BYTES}",
        "set_tcp_nodelay true",
        "max_queued_messages 10000",
        "max_queued_bytes 33554432",
        "max_inflight_messages 200",
        "max_keepalive 300",
        "per_listener_settings true",
    ],
)
def test_the_configuration_states_its_limits(line: str) -> None:
    assert production_files()["mosquitto.conf"].splitlines().count(line) == 1


@pytest.mark.parametrize("certificates", [False, True])
def test_every_listener_is_encrypted_closed_to_strangers_and_bounded(*, certificates: bool) -> None:
    text = production_files(client_certificates=certificates)["mosquitto.conf"]
    listeners = text.split("\nlistener ")[1:]

    for listener, role in zip(listeners, Role, strict=True):
        assert "allow_anonymous false" in listener
        assert "tls_version tlsv1.3" in listener
        assert f"acl_file acl/{role.file_name}" in listener
        assert re.search(r"^max_connections \d+$", listener, re.MULTILINE)
        assert ("use_username_as_clientid true" in listener) == (role is Role.NODE)
        assert ("password_file" in listener) != ("require_certificate true" in listener)


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
            timeout=20,
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
    port = str(free_ports("127.0.0.1", 1)[0])
    substitutes = {
        str(REPOSITORY_PORT): port,
        "/run/secrets": str(folder / "secrets"),
        "/fedmon/": f"{folder}/",
        "${FEDMON_REPOSITORY_URL:?set it in .env, see README.md}": f"https://localhost:{port}",
    }
    for placeholder, value in substitutes.items():
        service = json.loads(json.dumps(service).replace(placeholder, value))
    program, health = service["command"][1:], service["healthcheck"]["test"]

    with foreground(*program) as running:
        alive = subprocess.run([sys.executable, *health[2:]], cwd=folder, capture_output=True, text=True, timeout=20)
    gone = subprocess.run([sys.executable, *health[2:]], cwd=folder, capture_output=True, text=True, timeout=20)

    assert (health[:2], service["command"][0]) == (["CMD", "python"], "broker")
    assert running.facts["url"] == f"https://localhost:{port}"
    assert (alive.returncode, alive.stderr) == (0, "")
    assert gone.returncode == 1


@pytest.mark.parametrize("role", Role)
def test_nothing_below_tls_1_3_is_spoken(production: Production, role: Role) -> None:
    context = ssl.create_default_context(cafile=production.ca_file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", production.ports[role]), timeout=5.0) as connection,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(connection, server_hostname="localhost")
    with pytest.raises(RefusedError):
        _enter(Party(production.ports[role], client_id="x", credentials=("hospital-a", PASSWORD)))


def test_a_reload_lets_new_users_in_and_removed_ones_out_and_disturbs_nobody_else(production: Production) -> None:
    def login(name: str, password: str) -> Party:
        port = production.ports[Role.NODE]
        return Party(port, client_id=name, credentials=(name, password), ca_file=production.ca_file)

    users = Users(production.folder)
    with login("hospital-a", PASSWORD) as connected:
        users.add("hospital-c", Role.NODE, "another good password")
        production.reload()
        with login("hospital-c", "another good password") as newcomer:
            users.add("hospital-c", Role.NODE, "a third good password", replace=True)
            production.reload()
            newcomer.wait(lambda: newcomer.connections_lost == 1)
            with pytest.raises(RefusedError):
                _enter(login("hospital-c", "another good password"))
        with login("hospital-c", "a third good password") as removed:
            users.remove("hospital-c")
            production.reload()
            removed.wait(lambda: removed.connections_lost == 1)
            with pytest.raises(RefusedError):
                _enter(login("hospital-c", "a third good password"))

        assert connected.connections_lost == 0


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
            Party(production.ports[Role.MONITOR], client_id="m", credentials=("grafana", PASSWORD), ca_file=ca_file),
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
            with pytest.raises(RefusedError):
                _enter(Party(port, client_id="x", certificate=certificate, ca_file=ca_file))


def test_the_admins_line_of_the_readme_clears_a_presence(production: Production) -> None:
    program = mosquitto_client("mosquitto_pub")
    require(shutil.which("sh"), "sh is not on PATH")
    line = re.search(r"^mosquitto_pub (.*)$", production_files()["README.md"], re.MULTILINE)
    assert line is not None
    Users(production.folder).add("operator", Role.ADMIN, PASSWORD)
    production.reload()
    with Party(production.observer_port, client_id="observer") as everything:
        everything.publish("general/status/hospital-b", b"online", retain=True)

        arguments = line[1].replace("8886", str(production.ports[Role.ADMIN])).split()
        finished = subprocess.run(
            [program, "-u", "operator", "-P", PASSWORD, *arguments],
            cwd=production.folder.path,
            capture_output=True,
            text=True,
            timeout=20,
        )

        assert (finished.returncode, finished.stderr) == (0, "")
        everything.subscribe("general/status/+")
        everything.publish("general/status/end", b"")
        everything.wait_for("general/status/end")
        assert everything.topics() == {"general/status/end"}


def _enter(party: Party) -> None:
    with party:
        pass
