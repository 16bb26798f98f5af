"""The connection of one researcher process: what it subscribes to, and what went wrong when it cannot send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import msgspec

from fedmon.common.errors import NotConnectedError
from fedmon.common.settings import BrokerSettings
from fedmon.common.wire.connection import BrokerConnection, Link, Will

CONNECT_SHARE = 0.9
"""Part of the caller's timeout after which the transport gives up, so that it can say why before the caller must."""


class Connection:
    """Keeps one client connected. Safe from any thread."""

    def __init__(
        self,
        broker: BrokerSettings,
        *,
        client_id: str,
        subscriptions: Sequence[tuple[str, int]],
        timeout_s: float,
        on_message: Callable[[str, bytes, bool], None],
        on_link: Callable[[Link], None],
        keeps_session: bool,
    ) -> None:
        connect_timeout_s = min(broker.connect_timeout_s, CONNECT_SHARE * timeout_s)
        self._broker = msgspec.structs.replace(broker, connect_timeout_s=connect_timeout_s)
        self._timeout_s = timeout_s
        self._transport = BrokerConnection(
            self._broker,
            client_id=client_id,
            subscriptions=subscriptions,
            on_message=on_message,
            on_link=on_link,
            quiet_until_up=True,
            keeps_session=keeps_session,
        )
        self._lock = threading.Lock()
        self._wanted: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        """Where the broker is, as host:port."""
        return ", ".join(f"{host.host}:{host.port}" for host in self._broker.hosts)

    @property
    def is_connected(self) -> bool:
        """Tell whether messages can be sent at this moment."""
        return self._transport.is_connected

    @property
    def last_error(self) -> str:
        """What went wrong last, also when all is well again; empty when nothing did."""
        return self.flapping or str(self._transport.last_error or "")

    @property
    def flapping(self) -> str:
        """Why the connection keeps getting lost just after it came up; empty once a connection lasts."""
        return self._transport.flapping

    def open(self) -> None:
        """Connect, or raise ConnectionFailedError within the timeout; names host, port and cause."""
        self._transport.start()
        try:
            self._transport.wait_connected(self._timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self, farewell: Will | None = None) -> None:
        """Send a last message where there is one, and disconnect in order."""
        self._transport.stop(farewell=farewell)

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:
        """Send a message, or return False when there is no connection."""
        return self._transport.publish(topic, payload, qos=qos, retain=retain)

    def want(self, filters: Iterable[str]) -> None:
        """Subscribe, at QoS 0, to these filters beside those that are always there, and to no others."""
        with self._lock:
            wanted = frozenset(filters)
            for topic_filter in wanted - self._wanted:
                self._transport.subscribe(topic_filter, 0)
            for topic_filter in self._wanted - wanted:
                self._transport.unsubscribe(topic_filter)
            self._wanted = wanted

    def lost_error(self) -> NotConnectedError:
        """Return the error that says why nothing can be sent now."""
        if flapping := self.flapping:
            return NotConnectedError(f"no reply from {self.place}: {flapping}; it is tried again by itself")
        cause = self.last_error or f"no connection to the broker at {self.place}"
        return NotConnectedError(f"nothing was sent: {cause}; it is tried again by itself")
