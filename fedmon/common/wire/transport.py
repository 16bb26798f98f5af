"""One client of the MQTT library, from its opening to its end; the only file that knows the library."""

from __future__ import annotations

import contextlib
import enum
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from fedmon.common.clock import Deadline
from fedmon.common.settings import BrokerSettings, Host

logger = logging.getLogger(__name__)

MAX_OUTSTANDING = 5_000
SESSION_EXPIRES_S = 3600
LOST = "connection lost"
_REFUSED_AT_ONCE = ("Not authorized", "Bad user name or password", "Unsupported protocol version", "Client identifier")


class Will(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker publishes for us when we vanish."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = True


class Session(enum.Enum):
    """What the broker keeps of a client: nothing after its end, or what it has and gets from now on."""

    CLEAN = enum.auto()
    NEW = enum.auto()
    RESUMED = enum.auto()


class MqttClient:
    """One connection; ``closed`` is set at its end, and ``cause`` says why. Every method is safe from any thread.

    ``on_message(topic, payload, retained)`` runs on the library's thread: it puts and returns.
    """

    def __init__(
        self,
        broker: BrokerSettings,
        client_id: str,
        will: Will | None,
        on_message: Callable[[str, bytes, bool], None],
        *,
        session: Session = Session.CLEAN,
    ) -> None:
        self._broker, self._client_id, self._deliver, self._session = broker, client_id, on_message, session
        self.granted, self.ended_at, self._may_publish = False, 0.0, False
        self.closed = threading.Event()
        self.cause = ""
        self._answered = threading.Event()
        self._sent = self._done = 0
        self._socket: Any = None
        self._wanted: dict[str, int] = {}
        version = MQTTProtocolVersion.MQTTv5 if broker.mqtt_version == "5" else MQTTProtocolVersion.MQTTv311
        clean = None if broker.mqtt_version == "5" else session is Session.CLEAN
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
        if self._session is Session.NEW and not self._forgotten(host):
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
            waited = f"{self._broker.connect_timeout_s:g} s"
            self._end(f"it accepts connections but did not answer as an MQTT broker within {waited}")
        return self.granted and not self.closed.is_set()

    def _forgotten(self, host: Host) -> bool:
        """Have the broker drop what it keeps of us: a clean session of the same id replaces it, and ends."""
        clean = MqttClient(self._broker, self._client_id, None, self._deliver)
        is_done = clean.open(host, {})
        clean.close()
        if not is_done:
            self._end(clean.cause)
        return is_done

    def _kept(self) -> dict[str, Any]:
        if self._session is Session.CLEAN or self._broker.mqtt_version != "5":
            return {}
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # of the library
        properties.SessionExpiryInterval = SESSION_EXPIRES_S
        return {"clean_start": False, "properties": properties}

    def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool) -> bool:
        """Hand a message over; False when the broker did not let us in, or too much is on its way already."""
        if not self._may_publish or self.closed.is_set() or self._sent - self._done > MAX_OUTSTANDING:
            return False
        self._sent += 1
        return self._client.publish(topic, payload, qos=qos, retain=retain).rc == MQTTErrorCode.MQTT_ERR_SUCCESS

    def publish_and_wait(self, will: Will, timeout_s: float) -> None:
        """Send a message and wait until the broker has it, or the time is over."""
        info = self._client.publish(will.topic, will.payload, qos=will.qos, retain=will.retain)
        with contextlib.suppress(ValueError, RuntimeError):
            info.wait_for_publish(min(1.0, timeout_s))

    def subscribe(self, wanted: dict[str, int]) -> None:
        """Add subscriptions, by filter and QoS."""
        self._client.subscribe(list(wanted.items()))

    def unsubscribe(self, topic_filter: str) -> None:
        """Take a subscription back."""
        self._client.unsubscribe(topic_filter)

    def cut(self) -> None:
        """End without a word, as a crash would."""
        with contextlib.suppress(OSError, AttributeError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Disconnect in order and end the library's thread; may be called twice."""
        self._client.disconnect()
        self._end("we disconnected")
        if threading.current_thread().name != self._network_thread:
            # The library's thread may be on its way to its start.
            with contextlib.suppress(RuntimeError):
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
            return
        # A session that goes on brings commands before our subscriptions are confirmed; they are answered.
        self._may_publish = self._session is Session.RESUMED
        if self._wanted:
            client.subscribe(list(self._wanted.items()))
        else:
            self._grant()

    def _on_subscribe(self, _client: Any, _userdata: Any, _mid: Any, reasons: Any, _properties: Any) -> None:
        for name, reason in zip(self._wanted, reasons, strict=False):
            if reason.is_failure and not self._answered.is_set():
                self._end(
                    f"it refused our subscription to {name}; ask its operator to check the access list, and the limit "
                    "on subscriptions (of NATS: max_consumers)"
                )
                return
        self._grant()

    def _grant(self) -> None:
        self.granted = self._may_publish = True
        self._answered.set()

    def _on_disconnect(self, _client: Any, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._end(LOST if "Unspecified" in str(reason) else f"{LOST} ({reason})")

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
            self.cause, self.ended_at = cause, time.monotonic()
            self.closed.set()
            self._answered.set()


def _tls_context(broker: BrokerSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(broker.ca_file) if broker.ca_file else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if broker.cert_file is not None:
        context.load_cert_chain(str(broker.cert_file), str(broker.key_file) if broker.key_file else None)
    return context


def is_permanent(cause: str) -> bool:
    """Tell whether waiting cannot help, because someone must change a password, a certificate or an id."""
    return any(words in cause for words in (*_REFUSED_AT_ONCE, "certificate", "CERTIFICATE"))


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
