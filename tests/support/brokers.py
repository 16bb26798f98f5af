"""Real brokers for tests: each on its own fresh port, in its own folder, and surely ours."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil
from paho.mqtt import MQTTException, publish

from fedmon.broker.engine import BrokerEngine, EmbeddedEngine, MosquittoEngine
from fedmon.common.errors import NotConnectedError
from fedmon.common.settings.broker import BrokerHost, BrokerSettings
from fedmon.researcher.federation import Federation
from tests.support.ports import free_port
from tests.support.requirements import require
from tests.support.waiting import wait_until

ENGINES: dict[str, type[BrokerEngine]] = {"mosquitto": MosquittoEngine, "embedded": EmbeddedEngine}


def takes_messages(port: int) -> bool:
    """Tell whether a broker without users on this machine takes a message, which it does once it let us in."""
    try:
        publish.single("probe", b"", hostname="127.0.0.1", port=port, keepalive=10)
    except (OSError, MQTTException):
        return False
    return True


def answering(federation: Federation, *, timeout_s: float = 1.0) -> set[str]:
    """Return the nodes that answer a ping; none while there is no connection."""
    with contextlib.suppress(NotConnectedError):
        return {str(node_id) for node_id in federation.ping(timeout_s=timeout_s).ok}
    return set()


def crash(engine: BrokerEngine) -> None:
    """Kill a broker; `start` brings it back on the same port."""
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    wait_until(lambda: not engine.alive(), what="the end of the broker")


class Broker:
    """One broker of a test; ``stop``, ``kill`` and ``start`` keep its port."""

    def __init__(self, name: str, folder: Path) -> None:
        engine = ENGINES[name]
        require(engine.available(), f"the {name} broker is not installed")
        self.name = name
        self._engine = engine(folder=folder, port=free_port())
        self.start()

    @property
    def port(self) -> int:
        """The port of the loopback address that it listens on."""
        return self._engine.port

    @property
    def url(self) -> str:
        """The URL that nodes and researchers connect to."""
        return self._engine.url

    @property
    def settings(self) -> BrokerSettings:
        """What a transport needs to connect."""
        return BrokerSettings(hosts=(BrokerHost(host="127.0.0.1", port=self.port),))

    def researcher(self, folder: Path, name: str = "alice", *, timeout_s: float = 30.0) -> Federation:
        """Return the federation of a researcher, not started; the folder of that name holds its state."""
        return Federation(self.url, researcher_id=name, folder=folder / name, timeout_s=timeout_s)

    @property
    def pid(self) -> int | None:
        """Process id of the broker, None while it is down."""
        return self._engine.pid

    def start(self) -> None:
        """Start it, and make sure that what answers on the port is our child and no other broker."""
        self._engine.start()
        assert self.pid is not None
        assert psutil.pid_exists(self.pid)
        assert takes_messages(self.port)

    def stop(self) -> None:
        """Stop it as an operator would."""
        self._engine.stop()

    def kill(self) -> None:
        """Kill it as a crash would."""
        crash(self._engine)

    def restart(self) -> None:
        """Stop it and bring it back on the same port."""
        self.stop()
        self.start()

    def log(self) -> str:
        """Return what it wrote about itself."""
        return self._engine.log_file.read_text(errors="replace")
