"""What the broker does for a party: resolved, reached, let in, delivered, kept, and noticed when gone."""

from __future__ import annotations

import re
import secrets
import socket
import statistics
from collections.abc import Iterator

from fedmon.common.errors import ConnectionFailedError
from fedmon.common.settings import BrokerSettings, Host
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.doctor.line import Line
from fedmon.doctor.report import Check, failed, ok, skipped, warning

ROUND_TRIPS = 20
SLOW_S = 0.04
PRODUCT_WITHIN_S = 1.0
AMQP_PORT, NATS_PORT = 5672, 4222
AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
# Sources: AMQP 0-9-1, section 1.4.2.1 (server-properties of Connection.Start); the INFO message of NATS.
_RABBITMQ = re.compile(rb"\x07productS\x00\x00\x00\x08RabbitMQ\x07versionS\x00\x00\x00.([\w.+-]{1,32})", re.DOTALL)
_NATS = re.compile(rb'^INFO \{.*"version":"([\w.+-]{1,32})"')
RIGHTS_ADVICE = "ask the broker's operator whether the access list lets this party read and write its own topics"


def reach(broker: BrokerSettings) -> Iterator[Check]:
    """Resolve and reach each of the broker's hosts."""
    for host in broker.hosts:
        where = f"{host.host}:{host.port}"
        try:
            found = socket.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            yield failed(
                "name resolution", f"{host.host} cannot be resolved: {error}", "check the spelling, or the name server"
            )
            continue
        addresses = sorted({str(entry[4][0]) for entry in found})
        yield ok("name resolution", f"{host.host} is {', '.join(addresses)}")
        yield _reached(host, where, broker.connect_timeout_s)
    yield from _product(broker)


def _product(broker: BrokerSettings) -> Iterator[Check]:
    """Say what RabbitMQ or NATS needs, where one greets at the port of its own protocol beside MQTT."""
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
        with socket.create_connection((host, port), timeout=min(PRODUCT_WITHIN_S, timeout_s)) as line:
            line.sendall(opening)
            return line.recv(4096)
    except (OSError, UnicodeError):
        return b""


def _reached(host: Host, where: str, timeout_s: float) -> Check:
    try:
        with socket.create_connection((host.host, host.port), timeout=timeout_s):
            return ok("network", f"{where} accepts connections")
    except OSError as error:
        return failed(
            "network",
            f"{where} does not accept connections: {error}",
            "start the broker (`fedmon broker start`), or check port and firewall",
        )


def talk(broker: BrokerSettings, *, client_id: str, topic: str, timeout_s: float) -> Iterator[Check]:
    """Connect as this party, and try on its own topic what the wire needs."""
    mark = secrets.token_hex(16)
    try:
        with Line(broker, client_id=f"{client_id}-doctor-{mark}", topic=topic, timeout_s=timeout_s) as line:
            yield ok("credentials", _identity(broker))
            yield from _deliveries(line, mark)
            yield from _retained(broker, line, client_id=client_id, topic=topic, mark=mark, timeout_s=timeout_s)
            yield from _will(broker, line, client_id=client_id, topic=topic, mark=mark, timeout_s=timeout_s)
    except ConnectionFailedError as error:
        yield failed("credentials", error.cause, "check user name, password file and certificates in your settings")


def _identity(broker: BrokerSettings) -> str:
    who = f"user {broker.username}" if broker.username else "no user name"
    certificate = ", with a client certificate" if broker.cert_file else ""
    return f"let in with {who}{certificate}, {'TLS' if broker.tls else 'no TLS'}, MQTT {broker.mqtt_version}"


def _deliveries(line: Line, mark: str) -> Iterator[Check]:
    for qos in (0, 1):
        took_s = line.send(f"qos{qos}-{mark}".encode(), qos=qos)
        if took_s is None:
            yield failed(f"QoS {qos}", "a message to our own topic did not come back", RIGHTS_ADVICE)
            return
        yield ok(f"QoS {qos}", f"delivered in {took_s * 1000:.1f} ms")
    times = [line.send(f"{number}-{mark}".encode(), qos=1) for number in range(ROUND_TRIPS)]
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
    if line.send(large, qos=1) is None:
        yield failed(
            "payload", f"{MAX_PAYLOAD_BYTES} bytes did not come back", "raise the broker's packet size limit to 256 KiB"
        )
    else:
        yield ok("payload", f"{MAX_PAYLOAD_BYTES} bytes are carried")


def _retained(
    broker: BrokerSettings, line: Line, *, client_id: str, topic: str, mark: str, timeout_s: float
) -> Iterator[Check]:
    payload = f"retained-{mark}".encode()
    line.send(payload, qos=1, retain=True)
    try:
        with Line(broker, client_id=f"{client_id}-doctor-r{mark}", topic=topic, timeout_s=timeout_s) as second:
            seen = second.wait(payload)
    except ConnectionFailedError as error:
        yield skipped("retained", f"a second connection was not let in: {error.cause}")
        return
    finally:
        line.send(b"", qos=1, retain=True)
    if seen is None or not seen[0]:
        yield failed(
            "retained", "the broker does not keep retained messages", "presence needs them: use another broker"
        )
    else:
        yield ok("retained", "kept for those who come later")


def _will(
    broker: BrokerSettings, line: Line, *, client_id: str, topic: str, mark: str, timeout_s: float
) -> Iterator[Check]:
    will = f"will-{mark}".encode()
    try:
        with Line(
            broker, client_id=f"{client_id}-doctor-w{mark}", topic=topic, timeout_s=timeout_s, will=will
        ) as second:
            second.transport.abort()
            seen = line.wait(will)
    except ConnectionFailedError as error:
        yield skipped("last will", f"a second connection was not let in: {error.cause}")
        return
    if seen is None:
        yield failed(
            "last will", "the broker did not publish a last will", "nodes that vanish are not noticed: use another"
        )
    else:
        yield ok("last will", "published when a client vanishes")
