"""The production folder, running: its very files and modes, with other ports and one listener that sees everything."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
from typing import Any, Self

import jsonschema
import psutil
import yaml

from fedmon.broker.configuration import FIRST_PORT, production_files, write_production
from fedmon.broker.engine import MosquittoEngine
from fedmon.broker.folder import BrokerFolder
from fedmon.broker.ports import is_open
from fedmon.broker.users import Role, Users
from fedmon.common.clock import Deadline
from fedmon.researcher.federation import Federation
from tests.broker.certificates import make_broker_certificate, make_client_authority
from tests.broker.party import Party
from tests.support.passwords import PASSWORD, secret_file
from tests.support.ports import free_ports
from tests.support.requirements import require

RENDERED = pathlib.Path(__file__).parents[2] / "broker"
SCHEMA = pathlib.Path(__file__).parents[1] / "data" / "compose" / "compose_spec.json"
_NOBODY = 65_534


class Production:
    """A copy of ``broker/`` in a folder of the test, as the README's steps leave it; a context manager."""

    name = "mosquitto"

    def __init__(
        self,
        folder: pathlib.Path,
        users: dict[str, Role],
        *,
        client_certificates: bool = False,
        memory_limit_bytes: int | None = None,
        appended: str = "",
    ) -> None:
        require(MosquittoEngine.available(), "mosquitto is not on PATH")
        self.folder = BrokerFolder(folder)
        write_production(self.folder, production_files(client_certificates=client_certificates))
        self.ca_file = folder / "certificates" / "ca.crt"
        make_broker_certificate(folder)
        if client_certificates:
            for role in (Role.NODE, Role.RESEARCHER):
                make_client_authority(folder / "certificates", role.file_name)
        for name, role in users.items():
            Users(self.folder).add(name, role, PASSWORD)
        self.password_file = secret_file(folder.parent / "password")
        self._users = users
        self._memory_limit_bytes, self._appended = memory_limit_bytes, appended
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        free = free_ports(len(Role) + 1)
        self.ports = dict(zip(Role, free, strict=False))
        self.observer_port = free[-1]
        folder = self.folder.path
        text = (folder / "mosquitto.conf").read_text()
        for role, port in self.ports.items():
            text, count = re.subn(
                rf"^listener {FIRST_PORT + role.port_offset}( 127.0.0.1)?$",
                f"listener {port} 127.0.0.1",
                text,
                flags=re.MULTILINE,
            )
            assert count == 1
        if self._memory_limit_bytes is not None:
            text, count = re.subn(r"(?m)^memory_limit \d+$", f"memory_limit {self._memory_limit_bytes}", text)
            assert count == 1
        # Settings are per listener, so this one changes nothing for the others; it has no access list.
        text += f"\nlistener {self.observer_port} 127.0.0.1\nallow_anonymous true\n" + self._appended
        self.folder.replace("mosquitto.conf", text)
        self._start(folder)
        return self

    def _start(self, folder: pathlib.Path) -> None:
        owner: dict[str, int | list[int]] = {}
        if os.geteuid() == 0:
            # As in the container: an ordinary user, who owns the files.
            for path in [folder, *folder.rglob("*")]:
                os.chown(path, _NOBODY, _NOBODY)
            owner = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
        with (folder / "mosquitto.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(MosquittoEngine.program()), "-c", "mosquitto.conf"],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                **owner,  # type: ignore[call-overload]  # the three of them as keywords
            )
        deadline = Deadline(60.0)
        while not is_open("127.0.0.1", self.observer_port, timeout_s=1.0):
            assert self._process.poll() is None, self.log()
            assert not deadline.passed(), self.log()

    def url(self, user: str) -> str:
        """Return the URL that one of its users connects to."""
        return f"mqtts://localhost:{self.ports[self._users[user]]}"

    def broker_settings(self, user: str) -> dict[str, str]:
        """Return the keys that a party's section ``broker`` needs beside the url."""
        return {"username": user, "password_file": str(self.password_file), "ca_file": str(self.ca_file)}

    def researcher(self, folder: pathlib.Path, name: str = "alice", **options: Any) -> Federation:
        """Return the federation of a researcher, not started; the folder of that name holds its state."""
        given: dict[str, Any] = {"folder": folder / name, "timeout_s": 30.0, **self.broker_settings(name)}
        return Federation(self.url(name), **(given | options))

    def party(self, name: str, client_id: str = "", **more: Any) -> Party:
        """Return a connection of one of its users; ``more`` is whatever Party takes."""
        port, credentials = self.ports[self._users[name]], (name, PASSWORD)
        return Party(port, client_id=client_id or name, credentials=credentials, ca_file=self.ca_file, **more)

    def observer(self) -> Party:
        """Return a connection that sees everything and may write everything."""
        return Party(self.observer_port, client_id="observer")

    @property
    def memory_bytes(self) -> int:
        """How much memory mosquitto has at the moment."""
        assert self._process is not None
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def restart(self) -> None:
        """Stop it and start it again, as an operator does."""
        self.__exit__()
        self._start(self.folder.path)

    def log(self) -> str:
        return (self.folder.path / "mosquitto.log").read_text(errors="replace")

    def __exit__(self, *_exception: object) -> None:
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(60) == 0, self.log()


def compose_document(text: str) -> dict[str, Any]:
    """Return a compose file, which must be valid."""
    document: dict[str, Any] = yaml.safe_load(text)
    jsonschema.Draft201909Validator(json.loads(SCHEMA.read_text())).validate(document)
    return document


def require_names_of_jobs() -> None:
    """Skip the test from mosquitto 2.1 on, whose access lists cannot name jobs, as the page on the broker says."""
    told = subprocess.run(["mosquitto", "-h"], capture_output=True, text=True, check=False).stdout
    require("mosquitto version 2.0." in told, "only mosquitto 2.0 takes part of a name from the client id")


def mosquitto_client(name: str) -> str:
    """Return the path of one of mosquitto's client programs."""
    program = shutil.which(name)
    require(program, f"{name} is not on PATH")
    return str(program)
