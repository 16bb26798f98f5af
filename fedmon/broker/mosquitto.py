"""Eclipse mosquitto as a child of ours, with a configuration of ours in its own folder."""

from __future__ import annotations

import os
import pathlib
import pwd
import shutil
import signal

from fedmon.broker import ports
from fedmon.broker.configuration import Access, Configuration, Listener, render_acl, render_mosquitto
from fedmon.broker.errors import BrokerError, EngineMissingError
from fedmon.broker.roles import Role
from fedmon.broker.running import Engine

CONFIGURATION_FILE = "running.conf"


class MosquittoEngine(Engine):
    """Eclipse mosquitto from PATH or /usr/sbin.

    With ``access`` it has one listener a role, on ``port`` and the ports above it; see `fedmon.broker.users`.
    """

    name = "mosquitto"
    limits = "packets up to 1 MiB; with users 256 KiB, and all messages within 512 MiB of memory"

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        folder: pathlib.Path | None = None,
        access: Access | None = None,
    ) -> None:
        self._access = access
        super().__init__(
            host=host,
            port=port,
            folder=folder,
            roles=tuple(Role) if access else (),
            tls=access is not None and access.tls,
        )

    @staticmethod
    def program() -> str | None:
        """Return the path of mosquitto; Debian keeps it in /usr/sbin, which is not on every user's PATH."""
        return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")

    @classmethod
    def available(cls) -> bool:
        """Tell whether mosquitto is installed."""
        return cls.program() is not None

    def reload(self) -> None:
        """Make a running mosquitto read its users and access lists again."""
        if self._process is not None:
            self._process.send(signal.SIGHUP)

    def _command(self) -> list[str]:
        program = self.program()
        if program is None:
            raise EngineMissingError(
                "mosquitto is not on PATH; install it (Debian: apt install mosquitto) or use the engine 'embedded'"
            )
        folder = self.folder
        if self._access is None:
            (folder / "data").mkdir(mode=0o700, exist_ok=True)
        else:
            _lay_out(folder, self._access)
        configuration = folder / CONFIGURATION_FILE
        configuration.touch(mode=0o600)
        configuration.write_text(
            render_mosquitto(
                Configuration(
                    heading="Written by fedmon at each start; changes here are lost.",
                    listeners=tuple(
                        Listener(host=ports.numeric_host(self.host_of(role)), port=port, role=role)
                        for role, port in self.ports.items()
                    ),
                    access=self._access or Access(),
                    log_destination=f"file {self.log_file.name}",
                    # Started by root, mosquitto would become a user that cannot read this folder.
                    process_user=pwd.getpwuid(0).pw_name if os.geteuid() == 0 else None,
                )
            ),
            encoding="utf-8",
        )
        return [program, "-c", CONFIGURATION_FILE]


def _lay_out(folder: pathlib.Path, access: Access) -> None:
    """Make the files that a configuration with users names; access lists that are there stay as they are."""
    for name in ("acl", "passwords"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    for role in Role:
        (folder / "passwords" / role.file_name).touch(mode=0o600)
        acl = folder / "acl" / role.file_name
        if not acl.exists():
            acl.touch(mode=0o600)
            acl.write_text(render_acl(role), encoding="utf-8")
    for name in certificate_files(access):
        if not (folder / "certificates" / name).is_file():
            raise BrokerError(
                f"{folder / 'certificates' / name} is missing; put it there (broker.crt and broker.key make TLS, "
                f"<role>s-ca.crt the authorities for client certificates)"
            )


def certificate_files(access: Access) -> list[str]:
    """Return the names of the files that must lie in ``certificates/``."""
    names = ["broker.crt", "broker.key"] if access.tls else []
    return [*names, "nodes-ca.crt", "researchers-ca.crt"] if access.client_certificates else names
