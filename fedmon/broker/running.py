"""What every engine shares: a broker that runs as our child, is ready when it says so, and ends with us."""

from __future__ import annotations

import abc
import contextlib
import pathlib
import tempfile
from collections.abc import Sequence
from typing import ClassVar, Self

from fedmon.broker import ports, probe
from fedmon.broker.errors import BrokerStartError, PortInUseError, UnsafeListenerError
from fedmon.broker.roles import Role
from fedmon.common.clock import Deadline
from fedmon.common.process import ChildProcess

_START_S = 15.0
_STOP_S = 5.0
_PROBE_S = 1.0
_RETRY_S = 0.005
_PORT_TRIES = 5
# A broker has an open file for each connection, and shells allow 1,024 unless asked.
_OPEN_FILES = 65_536


class Engine(abc.ABC):
    """A broker that runs as our child and ends with us, also when we are killed.

    ``folder`` keeps its configuration, log and what it persists; without one a temporary folder is made and removed
    by `stop`. ``port`` 0 picks free ports at the first start and keeps them. A context manager; its methods may be
    called from any thread, one at a time.
    """

    name: ClassVar[str]
    limits: ClassVar[str]

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        folder: pathlib.Path | None = None,
        roles: Sequence[Role] = (),
        tls: bool = False,
    ) -> None:
        if not roles and not ports.is_loopback(host):
            raise UnsafeListenerError(
                f"{host or 'every address'} can be reached from the network, and this broker would have no users; add "
                f"users with `fedmon broker user add`, or listen on 127.0.0.1"
            )
        self.host = host
        self._tls = tls
        self._roles: tuple[Role | None, ...] = tuple(roles) or (None,)
        self.ports: dict[Role | None, int] = {role: port + i if port else 0 for i, role in enumerate(self._roles)}
        self._free_ports = port == 0
        self._given_folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._process: ChildProcess | None = None
        self._log_start = 0

    # --- what to connect to ---------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The first port that the broker listens on; 0 before the first start when a free one was asked for."""
        return self.ports[self._roles[0]]

    @property
    def url(self) -> str:
        """The URL that nodes connect to; on a broker without users, everybody."""
        return self.url_for(Role.NODE)

    def url_for(self, role: Role) -> str:
        """Return the URL that parties of a role connect to."""
        port = self.ports.get(role, self.port)
        return f"{'mqtts' if self._tls else 'mqtt'}://{ports.in_url(ports.reachable_host(self.host_of(role)))}:{port}"

    def host_of(self, role: Role | None) -> str:
        """Return the address that a role's listener is bound to; admins come from this machine only."""
        return "127.0.0.1" if role is Role.ADMIN and role in self.ports else self.host

    @property
    def has_users(self) -> bool:
        """Whether parties must log in."""
        return self._roles != (None,)

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self._tls

    @property
    def pid(self) -> int | None:
        """Process id of the broker itself, or None when it does not run."""
        return self._process.pid if self._process and self._process.alive() else None

    @property
    def folder(self) -> pathlib.Path:
        """Where the broker keeps what is its own. Raises BrokerStartError before a temporary one was made."""
        if self._given_folder is not None:
            return self._given_folder
        if self._temporary is None:
            raise BrokerStartError("this broker was not started, so it has no folder yet; call start() first")
        return pathlib.Path(self._temporary.name)

    @property
    def log_file(self) -> pathlib.Path:
        """What the broker writes about itself."""
        return self.folder / f"{self.name}.log"

    def alive(self) -> bool:
        """Tell whether the broker runs."""
        return self._process is not None and self._process.alive()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the broker has ended; returns whether it has."""
        return self._process is None or self._process.wait(timeout_s) is not None

    # --- life -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker and return when it has answered a CONNECT; does nothing when it runs.

        Raises PortInUseError, EngineMissingError, or BrokerStartError with the end of the broker's log.
        """
        if self.alive():
            return
        self._make_folder()
        tries = _PORT_TRIES if self._free_ports else 1
        while True:
            tries -= 1
            if self._free_ports:
                self.ports = dict(zip(self._roles, ports.free_ports(self.host, len(self._roles)), strict=True))
            else:
                self._require_free_ports()
            try:
                self._start_once()
            except BrokerStartError:
                # Another process may have taken a free port since we looked; then it is in use now.
                if not tries or not self._a_port_is_taken():
                    raise
            else:
                self._free_ports = False
                return

    def stop(self) -> None:
        """Stop the broker, giving it time to save; safe to call twice."""
        if self._process is not None:
            self._process.end(timeout_s=_STOP_S)
            self._process = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def kill(self) -> None:
        """Kill the broker, as a crash would; `start` brings it back on the same port."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    # --- for the engines ------------------------------------------------------------------------------------------

    @classmethod
    @abc.abstractmethod
    def available(cls) -> bool:
        """Tell whether this engine is installed."""

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """Write what the broker needs into the folder and return its command line."""

    def _make_folder(self) -> None:
        if self._given_folder is not None:
            self._given_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fedmon-broker-")

    def _new_log(self) -> str:
        """Return what was logged since the last start."""
        with contextlib.suppress(FileNotFoundError):
            return self.log_file.read_bytes()[self._log_start :].decode(errors="replace")
        return ""

    def _start_once(self) -> None:
        command = self._command()
        self.log_file.touch(mode=0o600)
        self._log_start = self.log_file.stat().st_size
        try:
            self._process = ChildProcess(command, folder=self.folder, output=self.log_file, open_files=_OPEN_FILES)
        except OSError as error:
            raise BrokerStartError(f"cannot run {command[0]}: {error.strerror}") from None
        try:
            self._await_ready(self._process)
        except BaseException:
            self._process.end(timeout_s=0.0)
            self._process = None
            raise

    def _await_ready(self, process: ChildProcess) -> None:
        deadline = Deadline(_START_S)
        # Listeners are opened in order, so the last one answers when all are there.
        last_role = self._roles[-1]
        host, port = ports.reachable_host(self.host_of(last_role)), self.ports[last_role]
        answer = probe.Answer.SILENT
        while not deadline.passed():
            # The broker's own word comes first: only then is it our child that answers on this port.
            if " running" in self._new_log():
                answer = probe.ask(host, port, timeout_s=_PROBE_S, tls=self._tls)
            if process.wait(_RETRY_S) is not None:
                break
            if answer in (probe.Answer.ACCEPTED, probe.Answer.REFUSED):
                return
        what = "ended" if not process.alive() else f"did not answer within {_START_S:.0f} s ({answer.value})"
        raise BrokerStartError(
            f"the {self.name} broker on {self.host}:{self.port} {what}; its log says: "
            f"{' | '.join(self._new_log().splitlines()[-3:]) or 'nothing'}"
        )

    def _require_free_ports(self) -> None:
        for role, port in self.ports.items():
            ports.require_free(self.host_of(role), port)

    def _a_port_is_taken(self) -> bool:
        try:
            self._require_free_ports()
        except PortInUseError:
            return True
        return False
