"""Checks of a broker: resolved, reached, let in, delivered, retained, and its last wills."""

from __future__ import annotations

import enum
import re
import secrets
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import msgspec

from fedmon.common.errors import ConnectionFailedError
from fedmon.common.settings import BrokerSettings
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.common.wire.connection import BrokerConnection, Will

ROUND_TRIPS = 20
SLOW_S = 0.04
PRODUCT_WITHIN_S = 1.0
VERSION_TOPIC = "$SYS/broker/version"
AMQP_PORT, NATS_PORT = 5672, 4222
AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
# Sources: AMQP 0-9-1, section 1.4.2.1 (server-properties of Connection.Start); the INFO message of NATS.
_RABBITMQ = re.compile(rb"\x07productS\x00\x00\x00\x08RabbitMQ\x07versionS\x00\x00\x00.([\w.+-]{1,32})", re.DOTALL)
_NATS = re.compile(rb'^INFO \{.*"version":"([\w.+-]{1,32})"')
RIGHTS_ADVICE = "ask the broker's operator whether the access list lets this party read and write its own topics"


class CheckStatus(enum.Enum):
    """How a check ended; a skipped one could not be made, or does not apply."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check: what was found, and what to do about it."""

    name: str
    verdict: CheckStatus
    found: str
    advice: str = ""


def ok(name: str, found: str) -> Check:
    """Return a passed check."""
    return Check(name=name, verdict=CheckStatus.OK, found=found)


def warning(name: str, found: str, advice: str) -> Check:
    """Return a check with a warning."""
    return Check(name=name, verdict=CheckStatus.WARNING, found=found, advice=advice)


def failed(name: str, found: str, advice: str) -> Check:
    """Return a failed check."""
    return Check(name=name, verdict=CheckStatus.FAILED, found=found, advice=advice)


def skipped(name: str, found: str) -> Check:
    """Return a check that was not made, with the reason."""
    return Check(name=name, verdict=CheckStatus.SKIPPED, found=found)


class EchoClient:
    """A client that sends messages to itself on ``topic`` and waits for them; a context manager.

    Raises ConnectionFailedError on entering.
    """

    def __init__(
        self, broker: BrokerSettings, *, client_id: str, topic: str, timeout_s: float, will: bytes | None = None
    ) -> None:
        self._topic, self._timeout_s = topic, timeout_s
        self._arrived = threading.Condition()
        self._messages: list[tuple[bytes, bool, float]] = []
        self.transport = BrokerConnection(
            broker,
            client_id=client_id,
            subscriptions=[(topic, 1)],
            on_message=self._on_message,
            quiet_until_up=True,
            will=lambda: None if will is None else Will(topic=topic, payload=will, retain=False),
        )

    def __enter__(self) -> Self:
        self.transport.start()
        try:
            self.transport.wait_connected(self._timeout_s)
        except BaseException:
            self.transport.stop(1.0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.transport.stop(1.0)

    def send(self, payload: bytes, *, qos: int = 0, retain: bool = False) -> float | None:
        """Send to ourselves; return the seconds of the round trip, or None after the timeout."""
        started = time.monotonic()
        self.transport.publish(self._topic, payload, qos=qos, retain=retain)
        if not payload:
            return None
        seen = self.wait(payload)
        return None if seen is None else seen[1] - started

    def wait(self, start: bytes) -> tuple[bool, float] | None:
        """Wait for a payload that begins so; return whether it was retained and its time, None after the timeout."""

        def found() -> tuple[bool, float] | None:
            return next(((retained, when) for text, retained, when in self._messages if text.startswith(start)), None)

        with self._arrived:
            self._arrived.wait_for(found, timeout=self._timeout_s)
            return found()

    def _on_message(self, _topic: str, payload: bytes, retained: bool) -> None:  # noqa: FBT001
        with self._arrived:
            self._messages.append((payload, retained, time.monotonic()))
            del self._messages[:-100]
            self._arrived.notify_all()


def reach(broker: BrokerSettings) -> Iterator[Check]:
    """Resolve and reach each of the broker's hosts."""
    for host in broker.hosts:
        try:
            found = socket.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            yield failed(
                "name resolution", f"{host.host} cannot be resolved: {error}", "check the spelling, or the name server"
            )
            continue
        addresses = sorted({str(entry[4][0]) for entry in found})
        yield ok("name resolution", f"{host.host} is {', '.join(addresses)}")
        where = f"{host.host}:{host.port}"
        try:
            socket.create_connection((host.host, host.port), timeout=broker.connect_timeout_s).close()
        except OSError as error:
            advice = "start the broker (`fedmon broker start`), or check port and firewall"
            yield failed("network", f"{where} does not accept connections: {error}", advice)
        else:
            yield ok("network", f"{where} accepts connections")


def is_mosquitto(broker: BrokerSettings, *, client_id: str, timeout_s: float) -> bool:
    """Tell whether the broker publishes its version as mosquitto does; a party may lack the right to read it."""
    client_id, timeout_s = f"{client_id}-doctor-v{secrets.token_hex(16)}", min(PRODUCT_WITHIN_S, timeout_s)
    try:
        with EchoClient(broker, client_id=client_id, topic=VERSION_TOPIC, timeout_s=timeout_s) as client:
            return client.wait(b"mosquitto") is not None
    except ConnectionFailedError:
        return False


def products(broker: BrokerSettings) -> Iterator[Check]:
    """Check the needs of RabbitMQ or NATS, where one greets at the port of its own protocol beside MQTT."""
    for host in broker.hosts:
        rabbitmq = _RABBITMQ.search(_greeting(host.host, AMQP_PORT, AMQP_HEADER, broker.connect_timeout_s))
        nats = _NATS.search(_greeting(host.host, NATS_PORT, b"", broker.connect_timeout_s))
        if rabbitmq and len(broker.hosts) == 1:
            yield warning(
                "sessions",
                f"RabbitMQ {rabbitmq[1].decode()} with one host in the url: sessions are clean and end with that host",
                "if the host is part of a cluster, name all of its hosts in the url",
            )
        elif rabbitmq:
            yield ok(
                "sessions",
                f"RabbitMQ {rabbitmq[1].decode()}; sessions survive a host if mqtt.durable_queue_type is quorum",
            )
        if nats:
            yield warning(
                "limits",
                f"NATS {nats[1].decode()} lets in about 1000 nodes by default: each has a consumer of QoS 1",
                "for more nodes raise jetstream max_consumers of the account",
            )
        if rabbitmq or nats:
            return


def _greeting(host: str, port: int, opening: bytes, timeout_s: float) -> bytes:
    """Return the first bytes that a port sends, empty where nothing answers."""
    try:
        with socket.create_connection((host, port), timeout=min(PRODUCT_WITHIN_S, timeout_s)) as client:
            client.sendall(opening)
            return client.recv(4096)
    except (OSError, UnicodeError):
        return b""


def talk(broker: BrokerSettings, *, client_id: str, topic: str, timeout_s: float) -> Iterator[Check]:
    """Connect as this party, and try on its own topic what the wire needs."""
    mark = secrets.token_hex(16)

    def connection(kind: str, will: bytes | None = None) -> EchoClient:
        name = f"{client_id}-doctor-{kind}{mark}"
        return EchoClient(broker, client_id=name, topic=topic, timeout_s=timeout_s, will=will)

    try:
        with connection("") as client:
            yield ok("credentials", _identity(broker))
            yield from _deliveries(client, mark)
            yield _retained(client, connection("r"), f"retained-{mark}".encode())
            will = f"will-{mark}".encode()
            yield _last_will(client, connection("w", will), will)
    except ConnectionFailedError as error:
        yield failed("credentials", error.cause, "check user name, password file and certificates in your settings")


def _identity(broker: BrokerSettings) -> str:
    who = f"user {broker.username}" if broker.username else "no user name"
    certificate = ", with a client certificate" if broker.cert_file else ""
    return f"let in with {who}{certificate}, {'TLS' if broker.tls else 'no TLS'}, MQTT {broker.mqtt_version}"


def _deliveries(client: EchoClient, mark: str) -> Iterator[Check]:
    for qos in (0, 1):
        took_s = client.send(f"qos{qos}-{mark}".encode(), qos=qos)
        if took_s is None:
            yield failed(f"QoS {qos}", "a message to our own topic did not come back", RIGHTS_ADVICE)
            return
        yield ok(f"QoS {qos}", f"delivered in {took_s * 1000:.1f} ms")
    times = [client.send(f"{number}-{mark}".encode(), qos=1) for number in range(ROUND_TRIPS)]
    known = [took_s for took_s in times if took_s is not None]
    if len(known) < ROUND_TRIPS:
        yield warning("round trip", f"{ROUND_TRIPS - len(known)} of {ROUND_TRIPS} were lost", "check the network")
    elif statistics.median(known) >= SLOW_S:
        yield warning(
            "round trip",
            f"{statistics.median(known) * 1000:.1f} ms, median of {ROUND_TRIPS} at QoS 1",
            "when the broker is near, set `set_tcp_nodelay true` in mosquitto.conf: without it each takes 44 ms",
        )
    else:
        yield ok("round trip", f"{statistics.median(known) * 1000:.1f} ms, median of {ROUND_TRIPS} at QoS 1")
    large = f"large-{mark}-".encode().ljust(MAX_PAYLOAD_BYTES, b".")
    if client.send(large, qos=1) is None:
        yield failed(
            "payload", f"{MAX_PAYLOAD_BYTES} bytes did not come back", "raise the broker's packet size limit to 256 KiB"
        )
    else:
        yield ok("payload", f"{MAX_PAYLOAD_BYTES} bytes are carried")


def _retained(client: EchoClient, other: EchoClient, payload: bytes) -> Check:
    client.send(payload, qos=1, retain=True)
    try:
        with other:
            seen = other.wait(payload)
    except ConnectionFailedError as error:
        return skipped("retained", f"a second connection was not let in: {error.cause}")
    finally:
        client.send(b"", qos=1, retain=True)
    if seen is None or not seen[0]:
        return failed(
            "retained", "the broker does not keep retained messages", "presence needs them: use another broker"
        )
    return ok("retained", "kept for those who come later")


def _last_will(client: EchoClient, other: EchoClient, will: bytes) -> Check:
    try:
        with other:
            other.transport.abort()
            seen = client.wait(will)
    except ConnectionFailedError as error:
        return skipped("last will", f"a second connection was not let in: {error.cause}")
    if seen is None:
        return failed(
            "last will", "the broker did not publish a last will", "nodes that vanish are not noticed: use another"
        )
    return ok("last will", "published when a client vanishes")
