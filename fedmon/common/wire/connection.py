"""The connection to the first broker that answers: attempts, back-off, rotation of hosts, and the MQTT client.

Each attempt is a new client of the MQTT library: a message that made a broker drop us is not sent for ever, no
message waits unseen in a client's memory, and the last will can change from one connection to the next. Only the
application can know that a message was not delivered, and asks for it again.

A broker of one host keeps nothing of us. In a cluster RabbitMQ ties a clean session to one host, so there the session
is kept, as long as the broker's settings allow (with MQTT 5 for `SESSION_EXPIRES_S`). After an absence of more than
`RESUME_WITHIN_S` the broker drops it, with the commands that it queued: their senders no longer wait for them.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import logging
import math
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from fedmon.common.backoff import Backoff
from fedmon.common.clock import Deadline
from fedmon.common.errors import ConnectionFailedError, FedmonError, InvalidMessageError, SettingsError, untrusted
from fedmon.common.settings.broker import BrokerHost, BrokerSettings
from fedmon.common.wire import topics

logger = logging.getLogger(__name__)

MAX_PACKET_BYTES = 1_000_000
FIRST_RETRY_S = 0.5
"""So that we are back within a second after a broker that was started again."""
LAST_RETRY_S = 2.0
"""The longest back-off from a broker that stays down, refuses us, or loses `QUICK_LOSSES` connections in a row."""
LAST_CONTESTED_RETRY_S = 60.0
"""The longest back-off while another client has our client id."""
QUICK_LOSS_S = 2.0
QUICK_LOSSES = 3
DOWN_AFTER_ROUNDS = 10
"""After this number of rounds without a connection the broker counts as down, not as losing connections."""
LONG_DOWN_AFTER_ROUNDS = 100
"""About half a minute, in which a broker that is started again is back."""
RESUME_WITHIN_S = 30.0
QUICK_ANSWER_S, QUICK_ROUNDS = 1.0, 3
"""A cluster that lost a host chooses a new leader (NATS) and loses the logins that it got until then."""
MAX_OUTSTANDING = 5_000
SESSION_EXPIRES_S = 3600
LOST = "connection lost"
BROKEN_OFF = "it broke off the connection; does this port speak TLS (mqtts://), or not (mqtt://), as the URL says?"
SHUT_OUT = "it broke off the connection after the start of TLS; does it ask for a cert_file, or refuse yours?"
_PERMANENT = (
    "Not authorized", "Bad user name or password", "Unsupported protocol version", "Client identifier", "certificate",
    "CERTIFICATE",
)  # fmt: skip
TAKEN_OVER = "Session taken over"
"""MQTT 5, reason code 0x8E: another client connected with our client id."""


class Will(msgspec.Struct, frozen=True, kw_only=True):
    """The last will, which the broker publishes when we vanish."""

    topic: str
    payload: bytes
    retain: bool = True


class SessionKind(enum.Enum):
    """The state that the broker keeps of a client after its end: none, a new one, or the former one."""

    CLEAN = enum.auto()
    NEW = enum.auto()
    RESUMED = enum.auto()


class BrokerConnection:
    """One connection to the first broker that answers, kept until `stop`. Every method is safe from any thread.

    ``on_message(topic, payload, retained)`` and ``on_link(host)`` run on network threads: they put and return. The host
    is the one that we are connected to, None at a loss and a failed attempt.
    ``will()`` is called at each attempt that reaches a broker. ``id_is_contested()`` tells whether another client was
    seen with our client id. ``quiet_until_up`` is for callers of `wait_connected`, which raises the failure.
    ``keeps_session`` has a broker of several hosts keep subscriptions and QoS 1 messages while we change hosts. A
    broker must grant all ``subscriptions``; those that `resubscribe` adds may be refused, which is logged.
    """

    def __init__(
        self,
        broker: BrokerSettings,
        *,
        client_id: str,
        subscriptions: Sequence[tuple[str, int]],
        on_message: Callable[[str, bytes, bool], None],
        on_link: Callable[[BrokerHost | None], object] = lambda _host: None,
        will: Callable[[], Will | None] = lambda: None,
        id_is_contested: Callable[[], bool] = lambda: False,
        quiet_until_up: bool = False,
        keeps_session: bool = False,
    ) -> None:
        self._broker, self._client_id = broker, client_id
        self._keeps_session = keeps_session and len(broker.hosts) > 1
        self._subscriptions = dict(subscriptions)
        self._needed = frozenset(self._subscriptions)
        self._held: set[str] = set()
        self._on_message, self._on_link, self._will = on_message, on_link, will
        self._id_is_contested = id_is_contested
        self._changed = threading.Condition()
        self._client: MqttClient | None = None
        self._granted_until = -math.inf
        self._tries = self._quick_losses = 0
        self._stopping = False
        self._was_up = False
        self._error: ConnectionFailedError | None = None
        self._told = dict[BrokerHost, str]()
        self._permanent = False
        self._up_since = math.inf
        self._lasting_s = QUICK_LOSS_S
        self._quick_cause = ""
        self.dropped = 0
        self._quiet = quiet_until_up
        self._thread = threading.Thread(target=self._keep_connected, name="fedmon-link", daemon=True)

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._thread.start()

    def wait_connected(self, timeout_s: float) -> None:
        """Wait until the connection stood for the first time and its subscriptions were granted.

        Raises ConnectionFailedError when the time is over, or at once when waiting cannot help (wrong password,
        certificate not trusted).
        """
        with self._changed:
            self._changed.wait_for(lambda: self._was_up or self._stopping or self._permanent, timeout=timeout_s)
            if self._was_up:
                return
            raise self._error or ConnectionFailedError(str(self._broker.hosts[0]), f"no answer within {timeout_s:g} s")

    @property
    def is_connected(self) -> bool:
        """Tell whether messages can be sent at this moment."""
        return self._up_since < math.inf

    @property
    def last_error(self) -> ConnectionFailedError | None:
        """The cause of the last failure, also after the connection came back."""
        return self._error

    @property
    def flapping(self) -> str:
        """Why the connection keeps getting lost just after it came up; empty once a connection lasts."""
        if self._quick_losses < QUICK_LOSSES or time.monotonic() - self._up_since >= self._lasting_s:
            return ""
        return self._quick_cause

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:
        """Send a message; return False if there is no connection, or too many messages are unconfirmed.

        Raises InvalidMessageError for a topic or size that a broker might answer by dropping us.
        """
        if not topics.is_portable(topic):
            raise InvalidMessageError(
                f"topic {topic!r} is not portable: letters, digits, '_' and '-', at most 6 levels"
            )
        if len(payload) > MAX_PACKET_BYTES:
            raise InvalidMessageError(f"{len(payload)} bytes for {topic} are over the limit of {MAX_PACKET_BYTES}")
        client = self._client
        if client is None or not client.publish(topic, payload, qos=qos, retain=retain):
            self.dropped += 1
            return False
        return True

    def resubscribe(self, subscriptions: Sequence[tuple[str, int]]) -> None:
        """Replace all subscriptions, now and on every later connection; new ones are added before others go."""
        with self._changed:
            before, self._subscriptions = self._subscriptions, dict(subscriptions)
            self._held.update(self._subscriptions)
            if self.is_connected and self._client is not None:
                self._client.adjust(self._subscriptions, granted=before, held=before)

    def stop(self, timeout_s: float = 2.0, farewell: Will | None = None) -> None:
        """Publish the farewell, disconnect in order and end the threads, within about ``timeout_s``."""
        deadline = Deadline(timeout_s)
        client = self._client
        if farewell is not None and self.is_connected and client is not None:
            client.publish_and_wait(farewell, deadline.left_s())
        if (client := self._stop_trying()) is not None:
            client.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(deadline.left_s() + 0.1)
        self._up_since = math.inf

    def abort(self) -> None:
        """Cut the connection, as a crash would, so that the broker publishes our last will."""
        if (client := self._stop_trying()) is not None:
            client.cut()

    def _stop_trying(self) -> MqttClient | None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            return self._client

    # --- the supervising thread -----------------------------------------------------------------------------------

    def _keep_connected(self) -> None:
        hosts = self._broker.hosts
        factor = 2 ** (1 / len(hosts))  # doubles with each round of all hosts
        backoff = Backoff(FIRST_RETRY_S / len(hosts), longest_s=LAST_RETRY_S, factor=factor, jitter=0.8)
        for host in itertools.cycle(hosts):
            lasted_s, cause = self._connect_once(host)
            if self._stopping:
                return
            contested = TAKEN_OVER in cause or self._id_is_contested()
            if lasted_s is not None:
                self._count_loss(lasted_s, cause, contested=contested)
            elif self._tries >= DOWN_AFTER_ROUNDS * len(hosts):
                self._quick_losses = 0
            self._failed(ConnectionFailedError(str(host), cause), host)
            is_losing = self._quick_losses >= QUICK_LOSSES
            if not (is_losing or self._permanent or self._tries >= LONG_DOWN_AFTER_ROUNDS * len(hosts)):
                backoff.reset()
            backoff.longest_s = LAST_CONTESTED_RETRY_S if is_losing and contested else LAST_RETRY_S
            with self._changed:
                if self._changed.wait_for(lambda: self._stopping, timeout=backoff.next_s()):
                    return

    def _connect_once(self, host: BrokerHost) -> tuple[float | None, str]:
        """Hold one connection until it ends; return how many seconds it was up, or None, and why it ended."""
        client: MqttClient | None = None
        try:
            client = self._new_client()
            with self._changed:
                if self._stopping:
                    return None, "we are stopping"
                self._client = client
                wanted = dict(self._subscriptions)
            if client.open(host, wanted):
                self._came_up(client, wanted, host)
                if self.flapping and not client.closed.wait(self._lasting_s):
                    logger.warning("the connection to the broker at %s lasts again", host)
                client.closed.wait()
            cause = client.cause
        except (OSError, FedmonError, RuntimeError, ValueError) as error:  # such as too many open files, or threads
            cause = str(error)
        finally:
            lasted_s = time.monotonic() - self._up_since
            self._up_since = math.inf
            if client is not None:
                client.close()
                if client.granted:
                    self._granted_until, self._tries = client.ended_at, 0
        return None if lasted_s < 0 else lasted_s, cause

    def _new_client(self) -> MqttClient:
        broker, client_id, session = self._broker, self._client_id, SessionKind.CLEAN
        self._tries += 1
        away_s = time.monotonic() - self._granted_until
        if self._keeps_session:
            session = SessionKind.RESUMED if away_s < RESUME_WITHIN_S else SessionKind.NEW
        elif len(broker.hosts) > 1:
            client_id += f"-{secrets.token_hex(2)}"  # the queue of the former id may be on a host that is down
        if len(broker.hosts) > 1 and away_s < math.inf and self._tries < QUICK_ROUNDS * len(broker.hosts):
            timeout_s = min(QUICK_ANSWER_S, broker.connect_timeout_s)
            broker = msgspec.structs.replace(broker, connect_timeout_s=timeout_s)
        return MqttClient(broker, client_id, self._will, self._on_message, session=session, needed=self._needed)

    def _count_loss(self, lasted_s: float, cause: str, *, contested: bool) -> None:
        """Count a lost connection that had not lasted.

        Two clients with one client id take turns, so each connection lasts as long as the other's back-off.
        """
        self._lasting_s = LAST_CONTESTED_RETRY_S if contested else QUICK_LOSS_S
        if lasted_s >= self._lasting_s:
            self._quick_losses = 0
            return
        self._quick_losses += 1
        why = "another client uses our client id"
        if not contested:
            why = f"the broker keeps restarting, the network drops connections, or {why}"
        self._quick_cause = (
            f"{self._quick_losses} connections in a row ended within {self._lasting_s:g} s ({cause}): {why}"
        )
        if self._quick_losses == QUICK_LOSSES:
            logger.warning("%s; connecting again, with back-off", self._quick_cause)

    def _came_up(self, client: MqttClient, wanted: dict[str, int], host: BrokerHost) -> None:
        with self._changed:
            if self._stopping:
                return
            client.adjust(self._subscriptions, granted=wanted, held=self._held | wanted.keys())
            self._held = set(self._subscriptions)
            was_told = self._told and not self._quiet and not self.flapping
            self._told = {}
            self._permanent = self._quiet = False
            self._up_since, self._was_up = time.monotonic(), True
            self._changed.notify_all()
        logger.log(logging.WARNING if was_told else logging.INFO, "connected to the broker at %s", host)
        self._tell(host)

    def _failed(self, error: ConnectionFailedError, host: BrokerHost) -> None:
        first = self._told.get(host) != error.cause
        with self._changed:
            self._error, self._told[host] = error, error.cause
            # Waiting cannot help: someone must change a password, a certificate or an id.
            self._permanent = any(words in error.cause for words in _PERMANENT)
            self._changed.notify_all()
        level = logging.WARNING if first and not self._quiet and not self.flapping else logging.DEBUG
        if error.cause.startswith(LOST):
            logger.log(level, "%s to the broker at %s; connecting again", error.cause, host)
        else:
            logger.log(level, "%s", error)
        self._tell(None)

    def _tell(self, host: BrokerHost | None) -> None:
        try:
            self._on_link(host)
        except Exception:
            # A raise here would end the thread that connects again.
            logger.exception("the link callback failed")


class MqttClient:
    """One connection; ``closed`` is set at its end, and ``cause`` says why. Every method is safe from any thread.

    ``on_message(topic, payload, retained)`` runs on the library's thread: it puts and returns.
    """

    def __init__(
        self,
        broker: BrokerSettings,
        client_id: str,
        will: Callable[[], Will | None],
        on_message: Callable[[str, bytes, bool], None],
        *,
        session: SessionKind = SessionKind.CLEAN,
        needed: Collection[str] = (),
    ) -> None:
        self._broker, self._client_id, self._deliver, self._session = broker, client_id, on_message, session
        self._will, self._needed = will, needed
        self.granted, self.ended_at, self._may_publish = False, 0.0, False
        self.closed = threading.Event()
        self.cause, self._unexplained = "", SHUT_OUT if broker.tls else BROKEN_OFF
        self._answered = threading.Event()
        self._sent = self._done = 0
        self._socket: Any = None
        self._wanted: dict[str, int] = {}
        self._asked: dict[int | None, list[str]] = {}
        version = MQTTProtocolVersion.MQTTv5 if broker.mqtt_version == "5" else MQTTProtocolVersion.MQTTv311
        clean = None if broker.mqtt_version == "5" else session is SessionKind.CLEAN
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id, clean_session=clean, protocol=version, reconnect_on_failure=False
        )
        client.connect_timeout = broker.connect_timeout_s
        client.max_inflight_messages_set(200)
        client.max_queued_messages_set(MAX_OUTSTANDING)
        client.on_socket_open = self._on_socket_open
        client.on_connect, client.on_subscribe = self._on_connect, self._on_subscribe
        client.on_disconnect, client.on_message = self._on_disconnect, self._on_message
        client.on_publish = self._on_publish
        if broker.username is not None:
            client.username_pw_set(broker.username, broker.password())
        if broker.tls:
            client.tls_set_context(tls_context(broker))
        self._client = client

    def open(self, host: BrokerHost, wanted: dict[str, int]) -> bool:
        """Connect and subscribe; return whether the broker granted it, even if the connection has ended since."""
        if self._session is SessionKind.NEW and not self._forgotten(host):
            return False
        self._wanted = wanted
        deadline = Deadline(self._broker.connect_timeout_s)
        try:
            self._client.connect(host.host, host.port, keepalive=self._broker.keepalive_s, **self._kept())
        except (OSError, ValueError, UnicodeError) as error:
            self._end(_explained(error, host, self._broker.connect_timeout_s))
            return False
        self._client.loop_start()
        if not self._answered.wait(max(0.5, deadline.left_s())):
            self._end(f"it accepts connections but did not speak MQTT within {self._broker.connect_timeout_s:g} s")
        return self.granted

    def _forgotten(self, host: BrokerHost) -> bool:
        """Have the broker drop our session: a clean session of the same id replaces it, and ends."""
        clean = MqttClient(self._broker, self._client_id, lambda: None, self._deliver)
        is_done = clean.open(host, {})
        clean.close()
        if not is_done:
            self._end(clean.cause)
        return is_done

    def _kept(self) -> dict[str, Any]:
        if self._session is SessionKind.CLEAN or self._broker.mqtt_version != "5":
            return {}
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # of the library
        properties.SessionExpiryInterval = SESSION_EXPIRES_S
        return {"clean_start": False, "properties": properties}

    def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool) -> bool:
        """Hand a message over; return False if the broker did not let us in, or too many are unconfirmed."""
        if not self._may_publish or self.closed.is_set() or self._sent - self._done > MAX_OUTSTANDING:
            return False
        is_sent = self._client.publish(topic, payload, qos=qos, retain=retain).rc == MQTTErrorCode.MQTT_ERR_SUCCESS
        self._sent += is_sent  # a refused message is never confirmed, and must not count as outstanding
        return is_sent

    def publish_and_wait(self, will: Will, timeout_s: float) -> None:
        """Send a message and wait until the broker has it, or ``timeout_s`` has passed."""
        info = self._client.publish(will.topic, will.payload, qos=1, retain=will.retain)
        with contextlib.suppress(ValueError, RuntimeError):
            info.wait_for_publish(min(1.0, timeout_s))

    def adjust(self, wanted: Mapping[str, int], *, granted: Collection[str], held: Collection[str]) -> None:
        """Add wanted subscriptions, by filter and QoS, that are not granted; then take back held ones."""
        added = [(name, qos) for name, qos in wanted.items() if name not in granted]
        if added:
            self._subscribe(added)
        for name in held:
            if name not in wanted:
                self._client.unsubscribe(name)

    def _subscribe(self, filters: list[tuple[str, int]]) -> None:
        _, number = self._client.subscribe(filters)
        self._asked[number] = [name for name, _ in filters]

    def cut(self) -> None:
        """Cut the connection, as a crash would."""
        with contextlib.suppress(OSError, AttributeError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Disconnect in order and end the library's thread; may be called twice."""
        self._client.disconnect()
        self._end("we disconnected")
        # The library's thread may be on its way to its start, or be ended by another caller meanwhile.
        with contextlib.suppress(RuntimeError, AttributeError):
            self._client.loop_stop()

    # --- callbacks, on the library's network thread: they put and return ---------------------------------------------

    def _on_socket_open(self, _client: Any, _userdata: Any, sock: Any) -> None:
        # Nagle's algorithm and a delayed ACK together cost 44 ms a QoS 1 round trip.
        self._socket = sock
        with contextlib.suppress(OSError, AttributeError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._acknowledge_quickly()
        # Not before: while a broker is down, no attempt costs a node a write of its boot.
        if (will := self._will()) is not None:
            self._client.will_set(will.topic, will.payload, qos=1, retain=will.retain)

    def _acknowledge_quickly(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _on_connect(self, _client: Any, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self._end(_refusal(str(reason), self._broker.username))
            return
        self._unexplained = LOST
        # A session that goes on brings commands before our subscriptions are confirmed; they are answered.
        self._may_publish = self._session is SessionKind.RESUMED
        if self._wanted:
            self._subscribe(list(self._wanted.items()))
        else:
            self._grant()

    def _on_subscribe(self, _client: Any, _userdata: Any, number: int, reasons: Any, _properties: Any) -> None:
        names = self._asked.pop(number, ())
        for name in (name for name, reason in zip(names, reasons, strict=False) if reason.is_failure):
            refused = (
                f"it refused our subscription to {name}; ask its operator to check the access list, and the limit "
                "on subscriptions (of NATS: max_consumers)"
            )
            if name in self._needed:
                self._end(refused)
                return
            logger.warning("no message comes from the broker on %s: %s", name, refused)
        self._grant()

    def _grant(self) -> None:
        self.granted = self._may_publish = True
        self._answered.set()

    def _on_disconnect(self, _client: Any, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._end(self._unexplained + ("" if "Unspecified" in str(reason) else f" ({reason})"))

    def _on_message(self, _client: Any, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        if not message.qos:  # the receipt of any other carries the ACK
            self._acknowledge_quickly()
        try:
            self._deliver(message.topic, bytes(message.payload), message.retain)
        except Exception:
            # A raise here would end the library's thread while it still says that it is connected.
            logger.exception("the message callback failed")

    def _on_publish(self, _client: Any, _userdata: Any, _mid: Any, _reason: Any, _properties: Any) -> None:
        self._done += 1
        self._acknowledge_quickly()

    def _end(self, cause: str) -> None:
        if not self.closed.is_set():
            self.cause, self.ended_at = cause, time.monotonic()
            self.closed.set()
            self._answered.set()


def tls_context(broker: BrokerSettings) -> ssl.SSLContext:
    """Return the TLS of a broker's settings. Raises SettingsError for a certificate or key that cannot be used."""
    files = f"certificate file {broker.ca_file}" if broker.ca_file else "TLS"
    try:
        context = ssl.create_default_context(cafile=broker.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if broker.cert_file is not None:
            files = f"certificate file {broker.cert_file} with key file {broker.key_file or broker.cert_file}"
            context.load_cert_chain(broker.cert_file, broker.key_file)
    except OSError as error:
        raise SettingsError(f"cannot use {files}: {error.strerror or error}") from None
    return context


def _explained(error: Exception, host: BrokerHost, timeout_s: float) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name {host.host!r} cannot be resolved ({error.strerror}); check the spelling and the name server"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; is the broker running, and is the port right?"
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s; a firewall may be in the way"
    if isinstance(error, ssl.SSLCertVerificationError):
        return untrusted(error.verify_code, error.verify_message, "name the right ca_file")
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}; is this a TLS port?"
    if isinstance(error, ConnectionResetError):
        return BROKEN_OFF
    if isinstance(error, UnicodeError):
        return f"{host.host!r} is not a host name"
    return str(error)


def _refusal(reason: str, username: str | None) -> str:
    if any(words in reason for words in ("Not authorized", "Bad user name or password")):
        who = f"user {username!r}" if username else "a client without a user name"
        return f"it refused {who} ({reason}); check user name, password file, and the port of this role"
    return f"it refused the connection ({reason})"
