"""MQTT connections; the only file that knows the MQTT library.

Each connection is a fresh client of the library: a message that made a broker drop us is not sent again for ever,
nothing waits unseen in a client's memory, and the last will can change from one connection to the next. What is not
delivered is asked for again by the application, which alone can know that it was not.

A broker of one host keeps nothing of us. In a cluster RabbitMQ ties a clean session to one host, so there the session
is kept, as long as the broker's settings allow (with MQTT 5 for `SESSION_EXPIRES_S`). After an absence of more than
`RESUME_WITHIN_S` the broker drops it, with the commands that it queued: their senders no longer wait for them.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import math
import secrets
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
from fedmon.common.wire.causes import explained, refusal
from fedmon.common.wire.keeping import LOST, Connection, KeptConnection, Link, Will

__all__ = ["Link", "Transport", "Will"]

logger = logging.getLogger(__name__)

MAX_OUTSTANDING = 5_000
SESSION_EXPIRES_S = 3600
RESUME_WITHIN_S = 30.0
QUICK_ANSWER_S, QUICK_ROUNDS = 1.0, 3
"""A cluster that lost a host chooses a new leader (NATS) and loses the logins that it got until then."""


class Transport(KeptConnection):
    """An MQTT connection that heals itself; see KeptConnection for its methods."""

    _here_until = -math.inf
    _tries = 0

    def _new_connection(self, will: Will | None) -> Connection:
        last, broker, client_id, session = self._connection, self._broker, self._client_id, Session.CLEAN
        self._tries += 1
        if isinstance(last, _Connection) and last.granted:
            self._here_until, self._tries = last.ended_at, 0
        away_s = time.monotonic() - self._here_until
        if self._keeps_session:
            session = Session.RESUMED if away_s < RESUME_WITHIN_S else Session.NEW
        elif len(broker.hosts) > 1:
            client_id += f"-{secrets.token_hex(2)}"  # the queue of the former id may be on a host that is down
        if len(broker.hosts) > 1 and away_s < math.inf and self._tries < QUICK_ROUNDS * len(broker.hosts):
            timeout_s = min(QUICK_ANSWER_S, broker.connect_timeout_s)
            broker = msgspec.structs.replace(broker, connect_timeout_s=timeout_s)
        return _Connection(broker, client_id, will, self._on_message, session=session)


class Session(enum.Enum):
    """What the broker keeps of a client: nothing after its end, or what it has and gets from now on."""

    CLEAN = enum.auto()
    NEW = enum.auto()
    RESUMED = enum.auto()


class _Connection:
    """One client of the library, from connect to the end of its connection."""

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
            self._end(explained(error, host, self._broker.connect_timeout_s))
            return False
        self._client.loop_start()
        if not self._answered.wait(max(0.5, deadline.left_s())):
            waited = f"{self._broker.connect_timeout_s:g} s"
            self._end(f"it accepts connections but did not answer as an MQTT broker within {waited}")
        return self.granted and not self.closed.is_set()

    def _forgotten(self, host: Host) -> bool:
        """Have the broker drop what it keeps of us: a clean session of the same id replaces it, and ends."""
        clean = _Connection(self._broker, self._client_id, None, self._deliver)
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
        if not self._may_publish or self.closed.is_set() or self._sent - self._done > MAX_OUTSTANDING:
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
            self._end(refusal(str(reason), self._broker.username))
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
