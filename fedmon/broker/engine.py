"""Brokers that we start: mosquitto when it is installed, else the embedded one.

``choose_engine("auto")(port=0)`` makes one that listens on a free port of the loopback address.
"""

from __future__ import annotations

import abc
import contextlib
import importlib.util
import os
import pathlib
import pwd
import shutil
import sys
import tempfile
from typing import ClassVar, Literal, Self, get_args

from fedmon.broker import ports, probe
from fedmon.broker.configuration import Configuration, Listener, render_mosquitto
from fedmon.broker.errors import BrokerStartError, EngineMissingError, PortInUseError, UnsafeListenerError
from fedmon.broker.kept_process import KeptProcess
from fedmon.common.clock import Deadline

EngineName = Literal["auto", "mosquitto", "embedded"]

_START_S = 15.0
_STOP_S = 5.0
_PROBE_S = 1.0
_RETRY_S = 0.005
_PORT_TRIES = 5


class Engine(abc.ABC):
    """A broker that runs as our child and ends with us, also when we are killed.

    ``folder`` keeps its configuration, log and what it persists; without one a temporary folder is made and removed
    by ``stop``. ``port`` 0 picks a free port at the first start and keeps it. A context manager; its methods may be
    called from any thread, one at a time.
    """

    name: ClassVar[str]
    limits: ClassVar[str]

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, folder: pathlib.Path | None = None) -> None:
        if not ports.is_loopback(host):
            raise UnsafeListenerError(
                f"{host} can be reached from the network, and this broker has no users; add users with "
                f"`fedmon broker user add` or listen on 127.0.0.1"
            )
        self.host, self._port = host, port
        self._given_folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._process: KeptProcess | None = None
        self._log_start = 0

    # --- what to connect to ---------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port that the broker listens on; 0 before the first start when a free one was asked for."""
        return self._port

    @property
    def url(self) -> str:
        """The URL that nodes and researchers connect to."""
        return f"mqtt://{ports.in_url(ports.reachable_host(self.host))}:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id of the broker itself, or None when it does not run."""
        return self._process.pid if self._process and self._process.alive() else None

    @property
    def log_file(self) -> pathlib.Path:
        """What the broker writes about itself."""
        return self._folder / f"{self.name}.log"

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
        if self._port:
            ports.require_free(self.host, self._port)
            self._start_once()
            return
        for attempt in range(_PORT_TRIES):
            self._port = ports.free_port(self.host)
            try:
                return self._start_once()
            except BrokerStartError:
                # Another process may have taken the port since we looked; then it is in use now.
                lost = self._port
                self._port = 0
                if attempt == _PORT_TRIES - 1 or not self._is_taken(lost):
                    raise

    def stop(self) -> None:
        """Stop the broker, giving it time to save; safe to call twice."""
        if self._process is not None:
            self._process.end(timeout_s=_STOP_S)
            self._process = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def kill(self) -> None:
        """Kill the broker, as a crash would; ``start`` brings it back on the same port."""
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

    @property
    def _folder(self) -> pathlib.Path:
        if self._given_folder is not None:
            return self._given_folder
        if self._temporary is None:
            raise BrokerStartError("this broker was not started, so it has no folder yet; call start() first")
        return pathlib.Path(self._temporary.name)

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
        self._process = KeptProcess(command, output=self.log_file)
        try:
            self._await_ready(self._process)
        except BaseException:
            self._process.end(timeout_s=0.0)
            self._process = None
            raise

    def _await_ready(self, process: KeptProcess) -> None:
        deadline = Deadline(_START_S)
        host = ports.reachable_host(self.host)
        answer = probe.Answer.SILENT
        while not deadline.passed():
            # The broker's own word comes first: only then is it our child that answers on this port.
            if " running" in self._new_log():
                answer = probe.ask(host, self._port, timeout_s=_PROBE_S)
            if process.wait(_RETRY_S) is not None:
                break
            if answer in (probe.Answer.ACCEPTED, probe.Answer.REFUSED):
                return
        what = "ended" if not process.alive() else f"did not answer within {_START_S:.0f} s ({answer.value})"
        raise BrokerStartError(
            f"the {self.name} broker on {self.host}:{self._port} {what}; its log says: "
            f"{' | '.join(self._new_log().splitlines()[-3:]) or 'nothing'}"
        )

    def _is_taken(self, port: int) -> bool:
        try:
            ports.require_free(self.host, port)
        except PortInUseError:
            return True
        return False


class MosquittoEngine(Engine):
    """Eclipse mosquitto from PATH or /usr/sbin, with a configuration of ours in its own folder."""

    name = "mosquitto"
    limits = "keeps retained messages and queues on disk every 60 s; messages up to 1 MiB"

    @staticmethod
    def program() -> str | None:
        """Return the path of mosquitto; Debian keeps it in /usr/sbin, which is not on every user's PATH."""
        return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")

    @classmethod
    def available(cls) -> bool:
        """Tell whether mosquitto is installed."""
        return cls.program() is not None

    def reload(self) -> None:
        """Make a running mosquitto read its configuration, users and access lists again."""
        if self._process is not None:
            self._process.hang_up()

    def _command(self) -> list[str]:
        program = self.program()
        if program is None:
            raise EngineMissingError(
                "mosquitto is not on PATH; install it (Debian: apt install mosquitto) or use the engine 'embedded'"
            )
        data = self._folder / "data"
        data.mkdir(mode=0o700, exist_ok=True)
        file = self._folder / "mosquitto.conf"
        file.touch(mode=0o600)
        file.write_text(
            render_mosquitto(
                Configuration(
                    heading="Written by fedmon at each start; changes here are lost.",
                    listeners=(Listener(host=self.host, port=self._port),),
                    data_folder=data,
                    log_file=self.log_file,
                    # Started by root, mosquitto would become a user that cannot read this folder.
                    process_user=pwd.getpwuid(0).pw_name if os.geteuid() == 0 else None,
                )
            ),
            encoding="utf-8",
        )
        return [program, "-c", str(file)]


class EmbeddedEngine(Engine):
    """The broker rumqttd from the package iotcore, in a process of ours."""

    name = "embedded"
    limits = (
        "memory only, no users and no access lists, about 100 retained messages: for demos, tests and a single machine"
    )

    @classmethod
    def available(cls) -> bool:
        """Tell whether the package iotcore is installed."""
        return importlib.util.find_spec("iotcore") is not None

    def _command(self) -> list[str]:
        if not self.available():
            raise EngineMissingError("the embedded broker needs the package iotcore; pip install 'fedmon[broker]'")
        script = pathlib.Path(__file__).with_name("embedded.py")
        # -P: the modules beside the script must not shadow others.
        return [sys.executable, "-P", str(script), ports.reachable_host(self.host), str(self._port)]


_ENGINES: dict[str, type[Engine]] = {"mosquitto": MosquittoEngine, "embedded": EmbeddedEngine}


def choose_engine(name: EngineName = "auto") -> type[Engine]:
    """Return the class of the named engine; "auto" takes mosquitto when it is installed, else the embedded one.

    Raises EngineMissingError saying what to install.
    """
    if name not in get_args(EngineName):
        raise EngineMissingError(f"engine {name!r} is not one of {', '.join(get_args(EngineName))}")
    if name != "auto":
        return _ENGINES[name]
    for engine in _ENGINES.values():
        if engine.available():
            return engine
    raise EngineMissingError(
        "no broker is installed; pip install 'fedmon[broker]' brings the embedded one, or install mosquitto "
        "(Debian: apt install mosquitto)"
    )
