"""`fedmon doctor`: checks of a broker, a researcher and a node, each in the order in which one needs the other."""

from __future__ import annotations

import enum
import functools
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import msgspec
import typer

from fedmon.common.clock import utc_now
from fedmon.common.errors import ConnectionFailedError, FedmonError, InvalidInputError
from fedmon.common.log import escape_control
from fedmon.common.options import BrokerOption, JsonOption, SettingsOption, TimeoutOption

if TYPE_CHECKING:
    from fedmon.common.settings.broker import BrokerSettings
    from fedmon.common.settings.values import NodeSettings, RepositorySettings, ResearcherSettings
    from fedmon.common.wire.messages import Pong
    from fedmon.researcher.asking.outcome import Outcomes
    from fedmon.researcher.federation import Federation

ROUND_TRIPS = 20
SLOW_S = 0.04
PRODUCT_WITHIN_S = 1.0
# Sources: AMQP 0-9-1, section 1.4.2.1 (server-properties of Connection.Start); the INFO message of NATS.
_RABBITMQ = re.compile(rb"\x07productS\x00\x00\x00\x08RabbitMQ\x07versionS\x00\x00\x00.([\w.+-]{1,32})", re.DOTALL)
_NATS = re.compile(rb'^INFO \{.*"version":"([\w.+-]{1,32})"')
_QUORUM = "RabbitMQ {} runs there: in a cluster, name all hosts in the url and set mqtt.durable_queue_type = quorum"
_CONSUMERS = "NATS {} runs there: each node needs a consumer, and an account has 1000 unless max_consumers is set"
_PRODUCTS = (
    (5672, b"AMQP\x00\x00\x09\x01", _RABBITMQ, "sessions", _QUORUM),
    (4222, b"", _NATS, "limits", _CONSUMERS),
)
"""Port, opening and greeting of a product's main protocol, and the name and text of its check."""
RIGHTS_ADVICE = (
    "check that its id is the name of its user or certificate, and ask the broker's operator whether the access list "
    "lets it read and write its own topics; a monitor or admin may not, and has `fedmon nodes` and `watch`"
)
CLOCK_TOLERANCE_S = 5.0
PROBE = b"a file of fedmon doctor\n"
_MARKS = {"ok": "ok     ", "warning": "WARNING", "failed": "FAILED ", "skipped": "skipped"}


def doctor(
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    directory: Annotated[Path | None, typer.Option("--dir", "-d", help="Look at the node of this folder.")] = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Check settings, broker, rights, delivery, nodes, clocks and repository, and print a remedy for each failure."""
    if directory and (broker or settings):
        raise InvalidInputError("--dir looks at a node, which has its own settings: leave --broker and --settings away")
    checks: list[Check] = []
    for check in _until_error(
        check_node(directory, timeout_s=timeout) if directory else check_researcher(settings, broker, timeout_s=timeout)
    ):
        checks.append(check)
        if not json:
            advice = f"\n         -> {check.advice}" if check.advice else ""
            typer.echo(escape_control(f"{_MARKS[check.verdict.value]}  {check.name}: {check.found}{advice}", keep="\n"))
    bad = sum(check.verdict is CheckStatus.FAILED for check in checks)
    if json:
        sys.stdout.write(msgspec.json.encode({"ok": not bad, "checks": checks}).decode() + "\n")
    else:
        typer.echo("nothing failed" if not bad else f"{bad} of {len(checks)} checks failed")
    raise typer.Exit(1 if bad else 0)


class CheckStatus(enum.Enum):
    """How a check ended; a skipped one could not be made, or does not apply."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class Check(msgspec.Struct, frozen=True):
    """One check: its finding and the advice."""

    name: str
    found: str
    advice: str = ""
    verdict: CheckStatus = CheckStatus.OK


ok = functools.partial(Check, verdict=CheckStatus.OK)
warning = functools.partial(Check, verdict=CheckStatus.WARNING)
failed = functools.partial(Check, verdict=CheckStatus.FAILED)
skipped = functools.partial(Check, verdict=CheckStatus.SKIPPED)


def _until_error(checks: Iterator[Check]) -> Iterator[Check]:
    """Yield checks, and last the error after which no other can be made; one of a connection says what to do."""
    try:
        yield from checks
    except ConnectionFailedError as error:
        yield failed("connection", str(error))
    except FedmonError as error:
        yield failed("settings", str(error), "correct the named file, variable or option")


class EchoClient:
    """A client that sends messages to itself on ``topic`` and waits for them; a context manager.

    Raises ConnectionFailedError on entering.
    """

    def __init__(
        self, broker: BrokerSettings, *, client_id: str, topic: str, timeout_s: float, will: bytes | None = None
    ) -> None:
        from fedmon.common.wire.connection import BrokerConnection, Will

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

    def __exit__(self, *_: object) -> None:
        self.transport.stop(1.0)

    def send(self, payload: bytes, *, qos: int = 0, retain: bool = False) -> float | None:
        """Send to ourselves; return the seconds of the round trip, or None after the timeout."""
        started = time.monotonic()
        self.transport.publish(self._topic, payload, qos=qos, retain=retain)
        arrived = self.wait(payload)
        return None if arrived is None else arrived - started

    def wait(self, payload: bytes, *, kept: bool = False) -> float | None:
        """Wait for a payload that is live, or ``kept`` by the broker; return when it came, None after the timeout."""

        def found() -> float | None:
            return next((when for came, was_kept, when in self._messages if (came, was_kept) == (payload, kept)), None)

        with self._arrived:
            return self._arrived.wait_for(found, timeout=self._timeout_s)

    def _on_message(self, _topic: str, payload: bytes, retained: bool) -> None:
        with self._arrived:
            self._messages.append((payload, retained, time.monotonic()))
            del self._messages[:-100]
            self._arrived.notify_all()


def products(broker: BrokerSettings) -> Iterator[Check]:
    """Tell the needs of RabbitMQ or NATS, where one answers at the port of its main protocol."""
    for host in broker.hosts:
        for port, opening, greeting, name, needs in _PRODUCTS:
            if found := greeting.search(_greeting(host.host, port, opening)):
                yield ok(name, needs.format(found[1].decode()))
                return


def _greeting(host: str, port: int, opening: bytes) -> bytes:
    """Return the first bytes that a port sends, empty if nothing answers."""
    try:
        with socket.create_connection((host, port), timeout=PRODUCT_WITHIN_S) as client:
            client.sendall(opening)
            return client.recv(4096)
    except (OSError, UnicodeError):
        return b""


def talk(
    broker: BrokerSettings, *, client_id: str, topic: str, timeout_s: float, writes: bool = True
) -> Iterator[Check]:
    """Connect as this party, and if it ``writes`` try the wire's needs on its own topic.

    Raises ConnectionFailedError.
    """
    mark = secrets.token_hex(4)

    def connection(will: bytes | None = None) -> EchoClient:
        name = f"{client_id}-doctor-{secrets.token_hex(16)}"
        return EchoClient(broker, client_id=name, topic=topic, timeout_s=timeout_s, will=will)

    with connection() as client:
        yield ok("connection", _identity(broker))
        if writes and (yield from _deliveries(client, mark)):
            will = f"will-{mark}".encode()
            yield from _left_behind(client, connection(will), f"retained-{mark}".encode(), will)


def _identity(broker: BrokerSettings) -> str:
    who = f"user {broker.username}" if broker.username else "no user name"
    certificate = ", with a client certificate" if broker.cert_file else ""
    return f"let in with {who}{certificate}, {'TLS' if broker.tls else 'no TLS'}, MQTT {broker.mqtt_version}"


def _deliveries(client: EchoClient, mark: str) -> Generator[Check, None, bool]:
    import statistics

    from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES

    for qos in (0, 1):
        took_s = client.send(f"qos{qos}-{mark}".encode(), qos=qos)
        if took_s is None:
            yield failed(f"QoS {qos}", "a message to our own topic did not come back", RIGHTS_ADVICE)
            return False
        yield ok(f"QoS {qos}", f"delivered in {took_s * 1000:.1f} ms")
    times = [client.send(f"{number}-{mark}".encode(), qos=1) for number in range(ROUND_TRIPS)]
    known = [took_s for took_s in times if took_s is not None]
    median_s = statistics.median(known or [0.0])
    found = f"{median_s * 1000:.1f} ms, median of {ROUND_TRIPS} at QoS 1"
    if len(known) < ROUND_TRIPS:
        yield warning("round trip", f"{ROUND_TRIPS - len(known)} of {ROUND_TRIPS} were lost", "check the network")
    elif median_s >= SLOW_S:
        yield warning(
            "round trip",
            found,
            "when the broker is near, set `set_tcp_nodelay true` in mosquitto.conf: without it each takes 44 ms",
        )
    else:
        yield ok("round trip", found)
    large = f"large-{mark}-".encode().ljust(MAX_PAYLOAD_BYTES, b".")
    if client.send(large, qos=1) is None:
        yield failed(
            "payload", f"{MAX_PAYLOAD_BYTES} bytes did not come back", "raise the broker's packet size limit to 256 KiB"
        )
    else:
        yield ok("payload", f"{MAX_PAYLOAD_BYTES} bytes are carried")
    return True


def _left_behind(client: EchoClient, other: EchoClient, retained: bytes, will: bytes) -> Iterator[Check]:
    """Check that one who comes later gets a retained message, and that we get their last will."""
    client.send(retained, qos=1, retain=True)
    try:
        with other:
            kept = other.wait(retained, kept=True)
            other.transport.abort()
            left = client.wait(will)
    except ConnectionFailedError as error:
        for name in ("retained", "last will"):
            yield skipped(name, f"a second connection was not let in: {error.cause}")
        return
    finally:
        client.send(b"", qos=1, retain=True)
    yield (
        ok("retained", "kept for those who come later")
        if kept
        else failed("retained", "the broker does not keep retained messages", "presence needs them: use another broker")
    )
    yield (
        ok("last will", "published when a client vanishes")
        if left
        else failed("last will", "the broker did not publish a last will", "vanished nodes stay online: use another")
    )


def check_researcher(settings_file: Path | None, broker_url: str | None, *, timeout_s: float) -> Iterator[Check]:
    """Make every check of a researcher, in the order in which one needs the other."""
    from fedmon.common.wire import topics
    from fedmon.researcher.federation import Federation, opened_settings

    settings = opened_settings(settings_file, url=broker_url, researcher_id=None, folder=None, username=None)
    yield _settings("researcher", settings, settings.folder)
    yield from products(settings.broker)
    instance = f"doctor-{secrets.token_hex(4)}"
    topic = topics.reply(settings.id, instance, settings.id)
    yield from talk(settings.broker, client_id=settings.id, topic=topic, timeout_s=timeout_s)
    try:
        with Federation(settings=settings, instance=instance, timeout_s=timeout_s) as federation:
            yield from _nodes(federation)
    except FedmonError as error:
        yield failed("nodes", str(error), RIGHTS_ADVICE)
    yield _repository(settings.repository, timeout_s)


def _settings(party: str, settings: NodeSettings | ResearcherSettings, folder: Path) -> Check:
    found = f"{party} {settings.id}, broker {settings.broker.url}, folder {folder}"
    if settings.broker.username in (None, settings.id):
        return ok("settings", found)
    advice = "if the broker is one of fedmon, give both the same name: it drops messages under any other id"
    return warning("settings", f"{found}; its user at the broker is {settings.broker.username}", advice)


def _nodes(federation: Federation) -> Iterator[Check]:
    from fedmon.researcher.asking.outcome import OutcomeStatus

    known = federation.nodes()
    if not known:
        yield warning(
            "nodes",
            "no node is known",
            "start one (`fedmon node start`); if one runs, ask the operator whether you may read general/status/+",
        )
        return
    if known.beyond:
        yield warning(
            "max_nodes",
            f"{known.beyond} nodes are not kept track of, beyond max_nodes = {federation.settings.max_nodes}",
            "raise max_nodes in [researcher]",
        )
    outcomes = federation.ping()
    found = f"{len(outcomes.ok)} of {len(known)} known nodes answer"
    reasons = "; ".join(outcomes.reasons())
    refused = [outcome for outcome in outcomes.values() if outcome.status is OutcomeStatus.REFUSED]
    if refused:
        yield warning(
            "nodes",
            f"{found}; {len(refused)} refuse researcher {federation.researcher_id}",
            f"ask their owners to run: fedmon node policy allow {federation.researcher_id}",
        )
    elif reasons or not outcomes.ok:
        yield (warning if outcomes.ok else failed)("nodes", f"{found} ({reasons})", "see each reason")
    else:
        yield ok("nodes", found)
    if federation.settings.wire == "fedbiomed4":
        yield skipped("clock offset", "not known: the wire fedbiomed4 carries no time of nodes")
    else:
        yield _clocks(outcomes)


def _clocks(outcomes: Outcomes[Pong]) -> Check:
    """Compare clocks; a pong was written at most its round trip before it came."""
    if not outcomes.ok:
        return skipped("clock offset", "no node answered")
    offsets = {
        node_id: (pong.time - utc_now()).total_seconds() + outcomes.elapsed_s - (outcomes[node_id].elapsed_s or 0)
        for node_id, pong in outcomes.ok.items()
    }
    worst = max(offsets, key=lambda node_id: abs(offsets[node_id]))
    found = f"{round(offsets[worst], 1) + 0.0:+.1f} s at most ({worst})"  # never -0.0
    if abs(offsets[worst]) > CLOCK_TOLERANCE_S:
        return warning("clock offset", found, "set the clocks by NTP; times of nodes are shown by their own clocks")
    return ok("clock offset", found)


def _repository(repository: RepositorySettings, timeout_s: float) -> Check:
    """Store a small file, and fetch it by the URL that the repository gives to others."""
    if repository.url is None:
        return skipped("repository", "no url is configured; files over 100 KB cannot be sent")
    from fedmon.common.http import download, upload

    try:
        url = upload(PROBE, repository, deadline_s=timeout_s)
        download(url, sha256=None, max_bytes=len(PROBE), deadline_s=timeout_s, allowed_urls=[url])
    except FedmonError as error:
        return failed("repository", str(error), "see its log, and that url, certificate and token_file are right")
    sources = ", ".join(repository.allowed_urls) or "none"
    return ok("repository", f"{repository.url} stored a small file and gave it back; allowed_urls: {sources}")


def check_node(path: Path, *, timeout_s: float) -> Iterator[Check]:
    """Make every check of a node."""
    from fedmon.common.settings import sources
    from fedmon.common.wire import topics
    from fedmon.node.folder import NodeFolder
    from fedmon.node.owner.cli.node import state_of, troubles
    from fedmon.node.owner.cli.shell import Shell, dir_option

    folder = NodeFolder.open(path)
    settings = sources.load_node(folder.path, os.environ)
    settings.broker.password()
    yield _settings("node", settings, folder.path)
    yield from products(settings.broker)
    option, live = dir_option(folder.path), None
    try:
        status = state_of(Shell("doctor", folder, as_json=True))
        live = status["live"]
        if obeyed := status["policy"]["researchers"]:
            yield ok("policy", f"obeys {', '.join(obeyed)}")
        else:
            advice = f"allow one with: fedmon node policy allow RESEARCHER{option}"
            yield warning("policy", "the node accepts no researcher", advice)
        yield from (failed("node", trouble) for trouble in troubles(status))
        if live is None:
            yield skipped("node", f"the node does not run: start it with `fedmon node start{option}`")
    except FedmonError as error:
        yield failed("node", str(error), "look into the node's log")
    if live is None:
        topic = topics.status(settings.id)
        yield from talk(settings.broker, client_id=settings.id, topic=topic, timeout_s=timeout_s, writes=False)
    elif live["connected"]:
        yield ok("connection", f"connected to {live['host']} since {live['since']}, boot {live['boot']}")
    else:
        yield failed("connection", f"not connected: {live['last_error'] or 'no reason known'}; the node keeps trying")
    yield _repository(settings.repository, timeout_s)
