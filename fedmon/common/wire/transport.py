"""One MQTT connection that heals itself; the only file that knows the MQTT library.

Each connection is a fresh client of the library: a message that made a broker drop us is not sent again for ever,
nothing waits unseen in a client's memory, and the last will can change from one connection to the next. What is not
delivered is asked for again by the application, which alone can know that it was not.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion

from fedmon.common.clock import Deadline
from fedmon.common.errors import ConnectionFailedError, FedmonError, IdInUseError, InvalidMessageError
from fedmon.common.settings import BrokerSettings, Host
from fedmon.common.wire import topics

logger = logging.getLogger(__name__)

MAX_PACKET_BYTES = 1_000_000
FIRST_RETRY_S = 0.1
LAST_RETRY_S = 2.0
QUICK_LOSS_S = 2.0
QUICK_LOSSES = 3
MAX_OUTSTANDING = 5_000

_REFUSED_AT_ONCE = ("Not authorized", "Bad user name or password", "Unsupported protocol version", "Client identifier")


class Will(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker publishes for us when we vanish."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = True


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the connection, as told to `on_link`; `final` means that no further attempt is made."""

    up: bool
    host: Host
    cause: str = ""
    final: bool = False


class Transport:
    """Keeps one connection to the first broker that answers. Every method is safe from any thread.

    ``on_message(topic, payload, retained)`` and ``on_link(link)`` run on network threads: they put and return.
    ``will()`` is called before each connection.
    """

    def __init__(
        self,
        broker: BrokerSettings,
        *,
        client_id: str,
        subscriptions: Sequence[tuple[str, int]],
        on_message: Callable[[str, bytes, bool], None],
        on_link: Callable[[Link], None] = lambda _link: None,
        will: Callable[[], Will | None] = lambda: None,
    ) -> None:
        self._broker, self._client_id = broker, client_id
        self._subscriptions = dict(subscriptions)
        self._on_message, self._on_link, self._will = on_message, on_link, will
        self._changed = threading.Condition()
        self._connection: _Connection | None = None
        self._stopping = False
        self._up = False
        self._error: ConnectionFailedError | None = None
        self._permanent = False
        self._final: ConnectionFailedError | None = None
        self.dropped = 0
        self._thread = threading.Thread(target=self._keep_connected, name=f"fedmon-link-{client_id}", daemon=True)

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._thread.start()

    def wait_connected(self, timeout_s: float) -> None:
        """Wait until the connection stands and its subscriptions are granted.

        Raises IdInUseError or ConnectionFailedError when the time is over, or at once when waiting cannot help (wrong
        password, certificate not trusted).
        """
        with self._changed:
            self._changed.wait_for(lambda: self._up or self._stopping or self._permanent, timeout=timeout_s)
            if self._up:
                return
            host = self._broker.hosts[0]
            raise self._error or ConnectionFailedError(host.host, host.port, f"no answer within {timeout_s:g} s")

    @property
    def is_connected(self) -> bool:
        """Tell whether messages can be sent at this moment."""
        return self._up

    @property
    def last_error(self) -> ConnectionFailedError | None:
        """The cause of the last failure, also after the connection came back."""
        return self._error

    @property
    def failed(self) -> ConnectionFailedError | None:
        """The error after which no further attempt is made; null while we go on."""
        return self._final

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:
        """Send a message, or return False when there is no connection or too much is on its way already.

        Raises InvalidMessageError for a topic or size that a broker might answer by dropping us.
        """
        if not topics.is_portable(topic):
            raise InvalidMessageError(
                f"topic {topic!r} is not portable: letters, digits, '_' and '-', at most 6 levels"
            )
        if len(payload) > MAX_PACKET_BYTES:
            raise InvalidMessageError(f"{len(payload)} bytes for {topic} are over the limit of {MAX_PACKET_BYTES}")
        connection = self._connection
        if not self._up or connection is None or not connection.publish(topic, payload, qos, retain):
            self.dropped += 1
            return False
        return True

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Add a subscription, now and on every later connection."""
        with self._changed:
            self._subscriptions[topic_filter] = qos
            if self._up and self._connection is not None:
                self._connection.subscribe({topic_filter: qos})

    def unsubscribe(self, topic_filter: str) -> None:
        """Take a subscription back."""
        with self._changed:
            if self._subscriptions.pop(topic_filter, None) is not None and self._up and self._connection is not None:
                self._connection.unsubscribe(topic_filter)

    def stop(self, timeout_s: float = 2.0, farewell: Will | None = None) -> None:
        """Say farewell, disconnect in order and end the threads, within about ``timeout_s``."""
        deadline = Deadline(timeout_s)
        connection = self._connection
        if farewell is not None and self._up and connection is not None:
            connection.publish_and_wait(farewell, deadline.left_s())
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if connection is not None:
            connection.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(deadline.left_s() + 0.1)
        self._up = False

    def abort(self) -> None:
        """Vanish without a word, as a crash would, so that the broker publishes our last will."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        connection = self._connection
        if connection is not None:
            connection.cut()

    # --- the supervising thread -----------------------------------------------------------------------------------

    def _keep_connected(self) -> None:
        attempt = quick_losses = 0
        while not self._stopping:
            host = self._broker.hosts[attempt % len(self._broker.hosts)]
            connected_at, cause = self._connect_once(host)
            if self._is_stopping():
                return
            lasted_s = time.monotonic() - connected_at if connected_at is not None else None
            attempt = attempt + 1 if lasted_s is None or lasted_s < QUICK_LOSS_S else 1
            quick_losses = quick_losses + 1 if lasted_s is not None and lasted_s < QUICK_LOSS_S else 0
            error = ConnectionFailedError(host.host, host.port, cause)
            if quick_losses >= QUICK_LOSSES:
                error = self._final = IdInUseError(
                    host.host,
                    host.port,
                    f"the broker dropped us {QUICK_LOSSES} times just after connecting; another process uses the id "
                    f"{self._client_id!r}: stop it, or choose another id",
                )
            self._failed(error, host)
            if self._final is not None:
                return
            delay_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(attempt, 10)) * random.uniform(0.5, 1.0)  # noqa: S311
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, timeout=delay_s)

    def _is_stopping(self) -> bool:
        return self._stopping

    def _connect_once(self, host: Host) -> tuple[float | None, str]:
        """Hold one connection until it ends; return when it came up, or null, and why it ended."""
        connected_at: float | None = None
        try:
            connection = _Connection(self._broker, self._client_id, self._will(), self._on_message)
        except (OSError, FedmonError, ssl.SSLError) as error:
            return None, str(error)
        self._connection = connection
        try:
            with self._changed:
                wanted = dict(self._subscriptions)
            if connection.open(host, wanted):
                connected_at = time.monotonic()
                self._came_up(connection, wanted, host)
                connection.closed.wait()
        finally:
            self._up = False
            connection.close()
        return connected_at, connection.cause

    def _came_up(self, connection: _Connection, wanted: dict[str, int], host: Host) -> None:
        with self._changed:
            added = {name: qos for name, qos in self._subscriptions.items() if name not in wanted}
            if added:
                connection.subscribe(added)
            self._permanent = False
            self._up = True
            self._changed.notify_all()
        logger.info("connected to the broker at %s:%d as %s", host.host, host.port, self._client_id)
        self._tell(Link(up=True, host=host))

    def _failed(self, error: ConnectionFailedError, host: Host) -> None:
        first = self._error is None or str(self._error) != str(error)
        with self._changed:
            self._error = error
            self._permanent = self._final is not None or _is_permanent(error.cause)
            self._changed.notify_all()
        logger.log(logging.WARNING if first else logging.DEBUG, "%s", error)
        self._tell(Link(up=False, host=host, cause=error.cause, final=self._final is not None))

    def _tell(self, link: Link) -> None:
        try:
            self._on_link(link)
        except Exception:
            logger.exception("the link callback failed")


def _is_permanent(cause: str) -> bool:
    return any(words in cause for words in (*_REFUSED_AT_ONCE, "certificate", "CERTIFICATE"))


class _Connection:
    """One client of the library, from connect to the end of its connection."""

    def __init__(
        self, broker: BrokerSettings, client_id: str, will: Will | None, on_message: Callable[[str, bytes, bool], None]
    ) -> None:
        self._broker, self._deliver = broker, on_message
        self.closed = threading.Event()
        self.cause = ""
        self._answered = threading.Event()
        self._granted = False
        self._sent = self._done = 0
        self._socket: Any = None
        self._wanted: dict[str, int] = {}
        version = MQTTProtocolVersion.MQTTv5 if broker.mqtt_version == "5" else MQTTProtocolVersion.MQTTv311
        clean = None if broker.mqtt_version == "5" else True
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id, clean_session=clean, protocol=version, reconnect_on_failure=False
        )
        client.connect_timeout = broker.connect_timeout_s
        client.max_inflight_messages_set(200)
        client.max_queued_messages_set(MAX_OUTSTANDING)
        client.on_socket_open = self._on_socket_open
        client.on_connect, client.on_subscribe = self._on_connect, self._on_subscribe
        client.on_disconnect, client.on_message, client.on_publish = (
            self._on_disconnect,
            self._on_message,
            self._on_publish,
        )
        if broker.username is not None:
            client.username_pw_set(broker.username, broker.password())
        if broker.tls:
            client.tls_set_context(_tls_context(broker))
        if will is not None:
            client.will_set(will.topic, will.payload, qos=will.qos, retain=will.retain)
        self._client = client
        self._network_thread = f"paho-mqtt-client-{client_id}"

    def open(self, host: Host, wanted: dict[str, int]) -> bool:
        """Connect and subscribe; return False, with the cause noted, when the broker did not let us."""
        self._wanted = wanted
        deadline = Deadline(self._broker.connect_timeout_s)
        try:
            self._client.connect(host.host, host.port, keepalive=self._broker.keepalive_s)
        except (OSError, ValueError, UnicodeError) as error:
            self._end(_explained(error, host, self._broker.connect_timeout_s))
            return False
        self._client.loop_start()
        if not self._answered.wait(max(0.5, deadline.left_s())):
            waited = f"{self._broker.connect_timeout_s:g} s"
            self._end(f"it accepts connections but did not answer as an MQTT broker within {waited}")
        return self._granted and not self.closed.is_set()

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool) -> bool:  # noqa: FBT001
        if self._sent - self._done > MAX_OUTSTANDING:
            return False
        self._sent += 1
        return self._client.publish(topic, payload, qos=qos, retain=retain).rc == MQTTErrorCode.MQTT_ERR_SUCCESS

    def publish_and_wait(self, will: Will, timeout_s: float) -> None:
        info = self._client.publish(will.topic, will.payload, qos=will.qos, retain=will.retain)
        with contextlib.suppress(ValueError, RuntimeError):
            info.wait_for_publish(min(1.0, timeout_s))

    def subscribe(self, wanted: dict[str, int]) -> None:
        self._client.subscribe(list(wanted.items()))

    def unsubscribe(self, topic_filter: str) -> None:
        self._client.unsubscribe(topic_filter)

    def cut(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Disconnect in order and end the library's thread."""
        self._client.disconnect()
        self._end("we disconnected")
        if threading.current_thread().name != self._network_thread:
            self._client.loop_stop()

    # --- callbacks, on the library's network thread: they put and return ---------------------------------------------

    def _on_socket_open(self, _client: Any, _userdata: Any, sock: Any) -> None:
        # Nagle's algorithm and a delayed ACK together cost 44 ms a QoS 1 round trip.
        self._socket = sock
        with contextlib.suppress(OSError, AttributeError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._acknowledge_quickly()

    def _acknowledge_quickly(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _on_connect(self, client: mqtt.Client, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self._end(_refusal(str(reason), self._broker.username))
        elif self._wanted:
            client.subscribe(list(self._wanted.items()))
        else:
            self._granted = True
            self._answered.set()

    def _on_subscribe(self, _client: Any, _userdata: Any, _mid: Any, reasons: Any, _properties: Any) -> None:
        for name, reason in zip(self._wanted, reasons, strict=False):
            if reason.is_failure and not self._answered.is_set():
                self._end(f"it refused our subscription to {name}; ask its operator to check the access list")
                return
        self._granted = True
        self._answered.set()

    def _on_disconnect(self, _client: Any, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._end("connection lost" if "Unspecified" in str(reason) else f"connection lost ({reason})")

    def _on_message(self, _client: Any, _userdata: Any, message: mqtt.MQTTMessage) -> None:
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
            self.cause = cause
            self.closed.set()
            self._answered.set()


def _tls_context(broker: BrokerSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(broker.ca_file) if broker.ca_file else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if broker.cert_file is not None:
        context.load_cert_chain(str(broker.cert_file), str(broker.key_file) if broker.key_file else None)
    return context


def _explained(error: Exception, host: Host, timeout_s: float) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name {host.host!r} cannot be resolved ({error.strerror}); check the spelling and the name server"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; is the broker running, and is the port right?"
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s; a firewall may be in the way"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}; name the right ca_file"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}; is this a TLS port?"
    if isinstance(error, ConnectionResetError):
        return "it broke off the connection; does this port speak TLS (mqtts://), or not (mqtt://), as the URL says?"
    if isinstance(error, UnicodeError):
        return f"{host.host!r} is not a host name"
    return str(error)


def _refusal(reason: str, username: str | None) -> str:
    if any(words in reason for words in ("Not authorized", "Bad user name or password")):
        who = f"user {username!r}" if username else "a client without a user name"
        return f"it refused {who} ({reason}); check user name and password file"
    return f"it refused the connection ({reason})"
