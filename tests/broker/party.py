"""A bare MQTT client for tests of the broker's access lists."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from bench.echo_nodes import without_delay

WAIT_S = 60.0


class RefusedError(Exception):
    """The broker did not let this party in."""


class Party:
    """One connection; a context manager that raises RefusedError when it does not come about."""

    def __init__(
        self,
        port: int,
        *,
        client_id: str,
        credentials: tuple[str, str] | None = None,
        ca_file: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
        will: tuple[str, bytes] | None = None,
        clean: bool = True,
    ) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self._port = port
        self._changed = threading.Condition()
        self._answer: Any = None
        self._answer_topic = ""
        self._done: set[int] = set()
        self._refused: set[int] = set()
        self.connections_lost, self.found_session = 0, False
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id, clean_session=clean, reconnect_on_failure=False
        )
        if credentials:
            self._client.username_pw_set(*credentials)
        if ca_file:
            context = ssl.create_default_context(cafile=ca_file)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            if certificate:
                context.load_cert_chain(*certificate)
            self._client.tls_set_context(context)
        if will:
            self._client.will_set(will[0], will[1], qos=1)
        self._client.on_socket_open = without_delay
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._client.on_publish = lambda _c, _u, mid, _r, _p: self._note(mid)
        self._client.on_subscribe = self._on_subscribe

    def __enter__(self) -> Self:
        try:
            self._client.connect("127.0.0.1", self._port)
        except (OSError, ssl.SSLError) as error:
            raise RefusedError(str(error)) from error
        self._client.loop_start()
        with self._changed:
            self._changed.wait_for(lambda: self._answer is not None, WAIT_S)
        if self._answer != 0:
            self.__exit__()
            raise RefusedError(str(self._answer))
        return self

    def __exit__(self, *_exception: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def is_let_in(self) -> bool:
        """Connect, leave again, and tell whether the broker let us in."""
        with contextlib.suppress(RefusedError), self:
            return True
        return False

    def die(self) -> None:
        """Vanish without a word, so that the broker sends the will."""
        sock: Any = self._client.socket()
        sock.shutdown(2)
        self.wait(lambda: self.connections_lost > 0)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Publish at QoS 1 and wait for the broker's word that it is done with it; False if it cut us off instead."""
        mid = self._client.publish(topic, payload, qos=1, retain=retain).mid
        self.wait(lambda: mid in self._done or self.connections_lost > 0)
        return mid in self._done

    def publish_raw(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 0 and wait for nothing."""
        self._client.publish(topic, payload)

    def flood(self, topic: Callable[[int], str], *, retain: bool) -> int:
        """Publish 250 messages of 200 KB, or as many as the broker takes before it drops us; returns how many."""
        for number in range(250):
            mid = self._client.publish(topic(number), bytes(200_000), qos=1, retain=retain).mid
            self.wait(lambda mid=mid: mid in self._done or self.connections_lost > 0)  # type: ignore[misc]
            if self.connections_lost:
                return number
        return 250

    def answer_on(self, topic: str) -> None:
        """From now on publish every payload that is heard on a topic, at QoS 1."""
        self._answer_topic = topic

    def subscribe(self, *filters: str, qos: int = 1) -> bool:
        """Subscribe and wait for the broker's answer; False if it refused a filter, or cut us off."""
        mid = self._client.subscribe([(name, qos) for name in filters])[1]
        self.wait(lambda: mid in self._done or self.connections_lost > 0)
        return mid in self._done and mid not in self._refused

    def topics(self) -> set[str]:
        """Return the topics that were heard."""
        return {topic for topic, _payload in list(self.heard)}

    def wait_for(self, topic: str, payload: bytes | None = None) -> None:
        """Wait until a message was heard."""
        self.wait(lambda: any(t == topic and payload in (None, p) for t, p in self.heard))

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that messages change. Fails after a minute."""
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_S), f"not within {WAIT_S} s; heard {self.heard[-5:]}"

    def _on_connect(self, _client: object, _userdata: object, flags: Any, reason: Any, _properties: object) -> None:
        with self._changed:
            self.found_session = flags.session_present
            self._answer = 0 if not reason.is_failure else reason
            self._changed.notify_all()

    def _on_disconnect(self, _client: object, _userdata: object, _flags: object, reason: Any, _p: object) -> None:
        with self._changed:
            self.connections_lost += 1
            if self._answer is None:
                self._answer = reason
            self._changed.notify_all()

    def _on_subscribe(self, _client: object, _userdata: object, mid: int, reasons: Any, _properties: object) -> None:
        if any(reason.is_failure for reason in reasons):
            self._refused.add(mid)
        self._note(mid)

    def _on_message(self, _client: object, _userdata: object, message: mqtt.MQTTMessage) -> None:
        if self._answer_topic:
            self._client.publish(self._answer_topic, message.payload, qos=1)
        with self._changed:
            self.heard.append((message.topic, bytes(message.payload)))
            self._changed.notify_all()

    def _note(self, mid: int) -> None:
        with self._changed:
            self._done.add(mid)
            self._changed.notify_all()
