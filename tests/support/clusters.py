"""The clusters of ``broker/clusters`` on the loopback address: their very files, with other hosts, ports and paths."""

from __future__ import annotations

import abc
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from fedmon.broker.users import Role
from tests.broker.certificates import make_broker_certificate
from tests.broker.party import Party, RefusedError
from tests.support.environment import plain_environment
from tests.support.passwords import PASSWORD, secret_file
from tests.support.ports import free_port, free_ports
from tests.support.waiting import wait_until

FILES = Path(__file__).parents[2] / "broker" / "clusters"
HOSTS = ("b1.example.org", "b2.example.org", "b3.example.org")
PORT = 8883
OBSERVER = "observer"
READY_S = 240.0


class Cluster(abc.ABC):
    """Brokers on loopback, each with a folder of its own, and users with their roles; a context manager.

    ``members`` is how many of the three hosts run. The user "observer", who may do everything, is there too.
    """

    name: str
    goal_s: float
    """The time after the loss of a host within which all nodes answer."""

    def __init__(self, folder: Path, users: Mapping[str, Role], *, members: int = len(HOSTS)) -> None:
        self.folder = folder
        self.ports = free_ports(members)
        self.ca_file = folder / "files" / "certificates" / "ca.crt"
        self.password_file = folder / "password"
        self._users = users
        self._children: dict[object, subprocess.Popen[bytes]] = {}

    @classmethod
    @abc.abstractmethod
    def available(cls) -> bool:
        """Tell whether it is installed."""

    def __enter__(self) -> Self:
        try:
            self._write()
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._stop()

    def url(self, first: int) -> str:
        """Return the url of all members, one of them first."""
        count = len(self.ports)
        ports = [self.ports[(first + step) % count] for step in range(count)]
        return "mqtts://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    def broker_settings(self, user: str) -> dict[str, str]:
        """Return the keys that a party's section ``broker`` needs beside the url."""
        return {"username": user, "password_file": str(self.password_file), "ca_file": str(self.ca_file)}

    def observer(self, member: int = 0) -> Party:
        """Return a connection that sees everything and may write everything."""
        return self.party(OBSERVER, f"{OBSERVER}-{member}", member=member)

    def party(self, name: str, client_id: str, *, member: int = 0, **more: Any) -> Party:
        """Return a connection of one of its users; ``more`` is whatever Party takes."""
        credentials = (name, PASSWORD)
        return Party(self.ports[member], client_id=client_id, credentials=credentials, ca_file=self.ca_file, **more)

    def kill(self, member: int) -> None:
        """End a member as a crash would."""
        self._signal(self._children.pop(member), signal.SIGKILL)

    def log(self) -> str:
        """Return what the members printed."""
        return "\n".join(file.read_text(errors="replace") for file in sorted(self.folder.glob("*.out")))

    # --- files -----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Do what the page tells an operator, and copy the folder to each host."""
        self.folder.mkdir(parents=True, exist_ok=True)
        secret_file(self.password_file)
        files = self.folder / "files"
        shutil.copytree(FILES / self.name, files)
        make_broker_certificate(files)
        for user, role in {**self._users, OBSERVER: Role.ADMIN}.items():
            with self.password_file.open() as password:
                words = ["./user", user, role.value]
                subprocess.run(words, cwd=files, stdin=password, check=True, timeout=60)
        self._free(files)
        for member in range(len(self.ports)):
            home = self.folder / f"member{member}"
            shutil.copytree(files, home)
            (home / "data").mkdir(mode=0o700)

    @abc.abstractmethod
    def _free(self, files: Path) -> None:
        """Let the observer do everything."""

    def _service(self, member: int) -> tuple[list[str], dict[str, str]]:
        """Return the command and the environment that the compose file gives a host."""
        home = self.folder / f"member{member}"
        service: dict[str, Any] = yaml.safe_load((home / "compose.yaml").read_text())["services"][self.name]

        def here(text: str) -> str:
            return re.sub(r"^\$\{FEDMON_HOST:\?.*\}$", HOSTS[member], text).replace("/fedmon/", f"{home}/")

        return [here(word) for word in service["command"]], {k: here(v) for k, v in service["environment"].items()}

    # --- processes ---------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _start(self) -> None:
        """Start the members, and return when all of them let clients in."""

    def _run(self, key: object, words: list[str], environ: Mapping[str, str]) -> None:
        with (self.folder / f"{key}.out").open("ab") as output:
            self._children[key] = subprocess.Popen(
                words,
                env=plain_environment() | dict(environ),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _wait_ready(self, member: int) -> None:
        def ready() -> bool:
            assert self._children[member].poll() is None, f"{self.name} {member} did not start:\n{self.log()[-3000:]}"
            with contextlib.suppress(RefusedError), self.observer(member) as party:
                return party.publish("probe", b"")
            return False

        wait_until(ready, READY_S, what=f"member {member} of {self.name} letting a party in")

    def _stop(self) -> None:
        for child in self._children.values():
            self._signal(child, signal.SIGKILL)
        self._children.clear()

    def _signal(self, child: subprocess.Popen[bytes], number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        child.wait(60)


class RabbitMQ(Cluster):
    """RabbitMQ: sessions in quorum queues, which need two of the three members."""

    name, goal_s = "rabbitmq", 2.0
    PROGRAMS = Path("/usr/lib/rabbitmq/bin")  # those on PATH change to another user

    @classmethod
    def available(cls) -> bool:
        """Tell whether it is installed."""
        return (cls.PROGRAMS / "rabbitmq-server").exists()

    def _free(self, files: Path) -> None:
        file = files / "users" / f"{OBSERVER}.json"
        document = json.loads(file.read_text())
        document["permissions"][0].update(configure=".*", write=".*", read=".*")
        document["topic_permissions"] = []
        file.write_text(json.dumps(document))

    def _start(self) -> None:
        count = len(self.ports)
        names = {f"rabbit@{host}": f"fedmon{at}@localhost" for at, host in enumerate(HOSTS)}
        epmd, distribution = free_port(), free_ports(count)
        loopback = {
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_FLAGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none",
        }
        self._run("epmd", ["epmd", "-address", "127.0.0.1", "-port", str(epmd)], loopback)
        environments = []
        for member, port in enumerate(self.ports):
            home = self.folder / f"member{member}"
            (home / "data" / ".erlang.cookie").write_text("fedmon")
            (home / "data" / ".erlang.cookie").chmod(0o400)
            listener = {"mqtt.listeners.ssl.default = 8883": f"mqtt.listeners.ssl.1 = 127.0.0.1:{port}"}
            absent = {f"cluster_formation.classic_config.nodes.{at + 1} = ": "# " for at in range(count, len(HOSTS))}
            _replace(home / "rabbitmq.conf", {"/fedmon/": f"{home}/"} | names | listener | absent)
            _replace(home / "rabbitmq-env.conf", {"/fedmon/": f"{home}/", "USE_LONGNAME=true": "USE_LONGNAME=false"})
            _replace(home / "inter_node_tls.config", {"/fedmon/": f"{home}/"})
            command, environ = self._service(member)
            named = {
                "RABBITMQ_NODENAME": names[f"rabbit@{HOSTS[member]}"],
                "RABBITMQ_DIST_PORT": str(distribution[member]),
            }
            environments.append(environ | loopback | named)
            self._run(member, command, environments[-1])
            self._wait_ready(member)
        if count > 1:
            self._control(environments[0], "enable_feature_flag", "all")
            found = json.loads(self._control(environments[0], "cluster_status", "--formatter", "json"))
            assert len(found["running_nodes"]) == count, found

    def _control(self, environ: Mapping[str, str], *words: str) -> str:
        done = subprocess.run(
            [self.PROGRAMS / "rabbitmqctl", "--quiet", *words],
            env=plain_environment() | dict(environ),
            capture_output=True,
            text=True,
            timeout=READY_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


class Nats(Cluster):
    """NATS: sessions in JetStream, three replicas; needs two of the three members."""

    name, goal_s = "nats", 7.0
    PROGRAM = Path(sys.executable).with_name("nats-server")

    @classmethod
    def available(cls) -> bool:
        """Tell whether it is installed."""
        return cls.PROGRAM.exists()

    def _free(self, files: Path) -> None:
        file = files / "users.conf"
        text, count = re.subn(
            rf'(user: "{OBSERVER}",.*), permissions: .* }}$', r"\1 }", file.read_text(), flags=re.MULTILINE
        )
        assert count == 1
        file.write_text(text)

    def _start(self) -> None:
        routes = free_ports(len(self.ports))
        for member, port in enumerate(self.ports):
            home = self.folder / f"member{member}"
            hosts = {f"{host}:6222": f"127.0.0.1:{route}" for host, route in zip(HOSTS, routes, strict=True)}
            ports = {
                "127.0.0.1:4222": f"127.0.0.1:{free_port()}",
                "0.0.0.0:8883": f"127.0.0.1:{port}",
                "0.0.0.0:6222": f"127.0.0.1:{routes[member]}",
            }
            _replace(home / "nats.conf", {"/fedmon/": f"{home}/"} | hosts | ports)
            command, environ = self._service(member)
            self._run(member, [str(self.PROGRAM), *command], environ)
        for member in range(len(self.ports)):
            self._wait_ready(member)


CLUSTERS: dict[str, type[Cluster]] = {kind.name: kind for kind in (RabbitMQ, Nats)}


def _replace(file: Path, changes: Mapping[str, str]) -> None:
    """Replace texts of a file, each of which must be there."""
    text = file.read_text()
    for old, new in changes.items():
        assert old in text, f"{file} has no {old}"
        text = text.replace(old, new)
    file.write_text(text)
