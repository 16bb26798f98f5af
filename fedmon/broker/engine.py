"""Brokers that we start: mosquitto when it is installed, else the embedded one.

``with choose_engine("auto")() as broker`` runs one on a free port of the loopback address, at ``broker.url``.
"""

from __future__ import annotations

import abc
import contextlib
import importlib.util
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import ClassVar, Literal, Self

from fedmon.broker import ports
from fedmon.broker.configuration import Access, render_mosquitto, template
from fedmon.broker.ports import BrokerStartError, PortInUseError
from fedmon.broker.users import Role
from fedmon.common.clock import Deadline
from fedmon.common.errors import ConflictError, FedmonError, NotFoundError
from fedmon.common.files import write_whole

EngineName = Literal["auto", "mosquitto", "embedded"]

_START_S = 15.0
_STOP_S = 5.0
_PROBE_S = 1.0
_RETRY_S = 0.005
_PORT_TRIES = 5
# Runs the broker, which has an open file for each connection: shells allow 1,024 unless asked.
_RUN = """[ "$(ulimit -S -n)" -ge 65536 ] 2>/dev/null ||
ulimit -S -n 65536 2>/dev/null || ulimit -S -n "$(ulimit -H -n)"
exec "$0" "$@"
"""
# Leads the broker's process group, and ends it when the pipe from us ends, as it does also when we are killed.
_GUARD = "trap '' TERM; read -r _; kill -TERM 0; sleep 3; kill -KILL 0"
_CONFIGURATION_FILE = "running.conf"


class BrokerEngine(abc.ABC):
    """A broker that runs as our child and ends with us, also when we are killed.

    ``folder`` keeps its configuration, log and persistent state; `stop` removes a temporary one, made if none is given.
    ``port`` 0 picks free ports at the first start and keeps them. With ``access`` it has users, and one listener a
    role, on ``port`` and the ports above it; see `fedmon.broker.users`. A context manager; its methods may be called
    from any thread, one at a time.
    """

    name: ClassVar[str]
    limits: str
    remedy: ClassVar[str]
    """How it is installed."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        folder: pathlib.Path | None = None,
        access: Access | None = None,
    ) -> None:
        if access is None and not ports.is_loopback(host):
            raise ConflictError(
                f"{host or 'every address'} can be reached from the network, and this broker would have no users; add "
                f"users with `fedmon broker user add`, or listen on 127.0.0.1"
            )
        self.host = host
        self._access = access
        self.has_users, self.has_tls = access is not None, access is not None and access.tls
        roles = list(Role) if access else [None]
        self.ports: dict[Role | None, int] = {role: port + i if port else 0 for i, role in enumerate(roles)}
        self._temporary = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fedmon-broker-")
            folder = pathlib.Path(self._temporary.name)
        self.folder = folder
        self._guard: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @classmethod
    @abc.abstractmethod
    def available(cls) -> bool:
        """Tell whether this engine is installed."""

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """Write the broker's files into the folder and return its command line."""

    # --- what to connect to ---------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The first port that the broker listens on; 0 before the first start when a free one was asked for."""
        return next(iter(self.ports.values()))

    @property
    def url(self) -> str:
        """The URL that nodes connect to; on a broker without users, all parties."""
        return self.url_for(Role.NODE)

    def url_for(self, role: Role) -> str:
        """Return the URL that parties of a role connect to."""
        host = ports.url_host(self.host_of(role))
        return f"{'mqtts' if self.has_tls else 'mqtt'}://{host}:{self.ports.get(role, self.port)}"

    def host_of(self, role: Role | None) -> str:
        """Return the address that a role's listener is bound to; admins come from this machine only."""
        return "127.0.0.1" if role is Role.ADMIN and role in self.ports else self.host

    @property
    def pid(self) -> int | None:
        """Process id of the broker itself, or None when it does not run."""
        return self._process.pid if self._process and self.alive() else None

    @property
    def log_file(self) -> pathlib.Path:
        """The broker's log."""
        return self.folder / f"{self.name}.log"

    def alive(self) -> bool:
        """Tell whether the broker runs."""
        return self._process is not None and self._process.poll() is None

    # --- life -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker and return when it takes connections.

        Raises PortInUseError, or BrokerStartError with the end of the broker's log.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        picks = not self.port
        for tries_left in reversed(range(_PORT_TRIES if picks else 1)):
            if picks:
                self.ports = dict(zip(self.ports, ports.free_ports(self.host, len(self.ports)), strict=True))
            try:
                self._require_free_ports()
                self._start_once()
                return
            except FedmonError:
                # Another process may have taken a free port since we looked; then it is in use now.
                is_taken = picks and not self._has_free_ports()
                if picks:
                    self.ports = dict.fromkeys(self.ports, 0)
                if not (is_taken and tries_left):
                    raise

    def stop(self) -> None:
        """Stop the broker, giving it time to save; safe to call twice."""
        self._end()
        if self._temporary is not None:
            self._temporary.cleanup()

    def reload(self) -> None:
        """Make a running broker read its users and access lists again."""
        if self.has_users and self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    def _new_log(self) -> str:
        """Return the log since the last start."""
        with contextlib.suppress(FileNotFoundError):  # others may clean this folder, or rotate its logs
            return self.log_file.read_bytes()[self._log_start :].decode(errors="replace")
        return ""

    def _require_free_ports(self) -> None:
        for role, port in self.ports.items():
            ports.listening(self.host_of(role), port).close()

    def _has_free_ports(self) -> bool:
        with contextlib.suppress(PortInUseError):
            self._require_free_ports()
            return True
        return False

    def _start_once(self) -> None:
        command = self._command()
        self.log_file.touch(mode=0o600)
        self._log_start = self.log_file.stat().st_size
        self._end()  # what is left of one that ended by itself
        try:
            with self.log_file.open("ab") as log:
                self._guard = subprocess.Popen(
                    ["sh", "-c", _GUARD],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    process_group=0,
                )
                self._process = subprocess.Popen(
                    ["sh", "-c", _RUN, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    process_group=self._guard.pid,
                )
            self._await_ready(self._process)
        except OSError as error:
            self._end()
            raise BrokerStartError(f"the {self.name} broker cannot be run: {error}") from None
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
            self._process.kill()
            self._process.wait()
        if self._guard is not None:
            with self._guard:
                self._guard.kill()
        self._process = self._guard = None

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = Deadline(_START_S)
        # Listeners are opened in order, so the last one answers when all are there.
        role, port = list(self.ports.items())[-1]
        host = ports.reachable_host(self.host_of(role))
        while not deadline.passed():
            # The broker's own word comes first: only then is it our child that answers on this port. Its line ends so;
            # another one names running.conf.
            is_up = " running\n" in self._new_log() and ports.is_open(host, port, timeout_s=_PROBE_S)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_RETRY_S)
                break
            if is_up:
                return
        what = "ended" if process.poll() is not None else f"did not answer within {_START_S:.0f} s"
        raise BrokerStartError(
            f"the {self.name} broker on {self.host}:{self.port} {what}; its log says: "
            f"{' | '.join(self._new_log().splitlines()[-3:]) or 'nothing'}"
        )


class MosquittoEngine(BrokerEngine):
    """Eclipse mosquitto from PATH or /usr/sbin, with a configuration of ours in its own folder."""

    name = "mosquitto"
    limits = "packets up to 1 MiB"
    remedy = "install mosquitto (Debian: apt install mosquitto)"

    @staticmethod
    def program() -> str | None:
        """Return the path of mosquitto; Debian keeps it in /usr/sbin, which is not on every user's PATH."""
        return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")

    @classmethod
    def available(cls) -> bool:
        """Tell whether mosquitto is installed."""
        return cls.program() is not None

    def _command(self) -> list[str]:
        if self._access is None:
            (self.folder / "data").mkdir(mode=0o700, exist_ok=True)
        else:
            self.limits = "packets up to 256 KiB, all messages within 512 MiB of memory"
            self._make_user_files(self._access)
        configuration = render_mosquitto(
            heading="Written by fedmon at each start; changes here are lost.",
            listeners={role: (port, ports.numeric_host(self.host_of(role))) for role, port in self.ports.items()},
            access=self._access or Access(),
            log_destination=f"file {self.log_file.name}",
            # Started by root, mosquitto would become a user that cannot read this folder.
            process_user=pwd.getpwuid(0).pw_name if os.geteuid() == 0 else None,
        )
        write_whole(self.folder / _CONFIGURATION_FILE, configuration.encode(), mode=0o600)
        return [self.program() or self.name, "-c", _CONFIGURATION_FILE]

    def _make_user_files(self, access: Access) -> None:
        """Make the files that a configuration with users names; existing access lists stay unchanged."""
        for name in ("acl", "passwords"):
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)
        for role in Role:
            (self.folder / "passwords" / role.file_name).touch(mode=0o600)
            acl = self.folder / "acl" / role.file_name
            if not acl.exists():
                write_whole(acl, template(f"acl/{role.file_name}").encode(), mode=0o600)
        needed = ["broker.crt", "broker.key"] if access.tls else []
        if access.client_certificates:
            needed += ["nodes-ca.crt", "researchers-ca.crt"]
        for name in needed:
            if not (self.folder / "certificates" / name).is_file():
                raise BrokerStartError(
                    f"{self.folder / 'certificates' / name} is missing; put it there (broker.crt and broker.key make "
                    f"TLS, <role>s-ca.crt the authorities for client certificates)"
                )


class EmbeddedEngine(BrokerEngine):
    """The broker rumqttd from the package iotcore, in a process of ours."""

    name = "embedded"
    limits = "memory only, no users and no access lists, about 100 retained messages: for demos, tests and one machine"
    remedy = "pip install iotcore"

    @classmethod
    def available(cls) -> bool:
        """Tell whether the package iotcore is installed."""
        return importlib.util.find_spec("iotcore") is not None

    def _command(self) -> list[str]:
        if self._access is not None:
            raise BrokerStartError(
                f"the embedded broker cannot have users: {MosquittoEngine.remedy}, or choose another --data-dir"
            )
        script = pathlib.Path(__file__).resolve().with_name("embedded_server.py")
        # -P: the modules beside the script must not shadow others.
        return [sys.executable, "-P", str(script), ports.numeric_host(self.host), str(self.port)]


def choose_engine(name: EngineName = "auto") -> type[BrokerEngine]:
    """Return the class of the named engine; "auto" takes mosquitto when it is installed, else the embedded one.

    Raises NotFoundError naming the package to install.
    """
    wanted = [engine for engine in (MosquittoEngine, EmbeddedEngine) if name in ("auto", engine.name)]
    for engine in wanted:
        if engine.available():
            return engine
    what = "no broker is installed" if name == "auto" else f"the {name} broker is not installed"
    raise NotFoundError(f"{what}: {' or '.join(engine.remedy for engine in wanted)}")
