"""What keeps a connection to the first broker that answers: attempts, back-off, rotation of hosts, and who is told."""

from __future__ import annotations

import abc
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import ConnectionFailedError, FedmonError, InvalidMessageError
from fedmon.common.settings import BrokerSettings, Host
from fedmon.common.wire import topics
from fedmon.common.wire.causes import is_permanent

logger = logging.getLogger(__name__)

MAX_PACKET_BYTES = 1_000_000
FIRST_RETRY_S = 0.1
LAST_RETRY_S = 2.0
LAST_CONTESTED_RETRY_S = 60.0
"""The longest back-off while another client has our client id."""
QUICK_LOSS_S = 2.0
QUICK_LOSSES = 3
DOWN_AFTER_ROUNDS = 10
"""After so many rounds without a connection the broker is down, and no longer losing connections."""
LOST = "connection lost"
TAKEN_OVER = "Session taken over"
"""MQTT 5, reason code 0x8E: another client connected with our client id."""


class Will(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker publishes for us when we vanish."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = True


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the connection, as told to `on_link`."""

    up: bool
    host: Host
    cause: str = ""


class Connection(Protocol):
    """One connection, from its opening to its end."""

    closed: threading.Event
    cause: str

    def open(self, host: Host, wanted: dict[str, int]) -> bool:
        """Connect and subscribe; return False, with the cause noted, when the broker did not let us."""
        ...

    def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool) -> bool:
        """Hand a message over; False when the broker did not let us in, or too much is on its way already."""
        ...

    def publish_and_wait(self, will: Will, timeout_s: float) -> None:
        """Send a message and wait until the broker has it, or the time is over."""

    def subscribe(self, wanted: dict[str, int]) -> None:
        """Add subscriptions, by filter and QoS."""

    def unsubscribe(self, topic_filter: str) -> None:
        """Take a subscription back."""

    def cut(self) -> None:
        """End without a word, as a crash would."""

    def close(self) -> None:
        """End in order; may be called twice."""


class KeptConnection(abc.ABC):
    """Keeps one connection to the first broker that answers, until `stop`. Every method is safe from any thread.

    ``on_message(topic, payload, retained)`` and ``on_link(link)`` run on network threads: they put and return.
    ``will()`` is called before each connection. ``id_is_contested()`` tells whether another client was seen with our
    client id. ``quiet_until_up`` is for callers of `wait_connected`, which raises the failure. ``keeps_session`` has a
    broker of several hosts keep subscriptions and QoS 1 messages while we change hosts.
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
        id_is_contested: Callable[[], bool] = lambda: False,
        quiet_until_up: bool = False,
        keeps_session: bool = False,
    ) -> None:
        self._broker, self._client_id = broker, client_id
        self._keeps_session = keeps_session and len(broker.hosts) > 1
        self._subscriptions = dict(subscriptions)
        self._held: set[str] = set()
        self._on_message, self._on_link, self._will = on_message, on_link, will
        self._id_is_contested = id_is_contested
        self._changed = threading.Condition()
        self._connection: Connection | None = None
        self._stopping = False
        self._up = False
        self._error: ConnectionFailedError | None = None
        self._permanent = False
        self._quick_losses = 0
        self._up_since = float("inf")
        self._lasting_s = QUICK_LOSS_S
        self._quick_cause = ""
        self.dropped = 0
        self._quiet = quiet_until_up
        self._thread = threading.Thread(target=self._keep_connected, name="fedmon-link", daemon=True)

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._thread.start()

    def wait_connected(self, timeout_s: float) -> None:
        """Wait until the connection stands and its subscriptions are granted.

        Raises ConnectionFailedError when the time is over, or at once when waiting cannot help (wrong password,
        certificate not trusted).
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
    def flapping(self) -> str:
        """Why the connection keeps getting lost just after it came up; empty once a connection lasts."""
        if self._quick_losses < QUICK_LOSSES or time.monotonic() - self._up_since >= self._lasting_s:
            return ""
        return self._quick_cause

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
        if connection is None or not connection.publish(topic, payload, qos=qos, retain=retain):
            self.dropped += 1
            return False
        return True

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Add a subscription, now and on every later connection."""
        with self._changed:
            self._subscriptions[topic_filter] = qos
            self._held.add(topic_filter)
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
            connection = self._connection
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
            connection = self._connection
            self._changed.notify_all()
        if connection is not None:
            connection.cut()

    @abc.abstractmethod
    def _new_connection(self, will: Will | None) -> Connection:
        """Make a connection that is not opened yet. Raises OSError or FedmonError."""

    # --- the supervising thread -----------------------------------------------------------------------------------

    def _keep_connected(self) -> None:
        attempt = 0
        while not self._stopping:
            host = self._broker.hosts[attempt % len(self._broker.hosts)]
            connected_at, cause = self._connect_once(host)
            if self._is_stopping():
                return
            contested = TAKEN_OVER in cause or self._id_is_contested()
            if connected_at is not None and self._lasted(time.monotonic() - connected_at, cause, contested=contested):
                attempt = 0
            attempt += 1
            self._failed(ConnectionFailedError(host.host, host.port, cause), host)
            is_taken_over = contested and self._quick_losses >= QUICK_LOSSES
            last_s = LAST_CONTESTED_RETRY_S if is_taken_over else LAST_RETRY_S
            rounds = attempt // len(self._broker.hosts)
            if connected_at is None and rounds >= DOWN_AFTER_ROUNDS:
                self._quick_losses = 0
            delay_s = min(last_s, FIRST_RETRY_S * 2 ** min(rounds, 10)) * random.uniform(0.5, 1.0)  # noqa: S311
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, timeout=delay_s)

    def _lasted(self, lasted_s: float, cause: str, *, contested: bool) -> bool:
        """Count a lost connection; return whether it had lasted.

        Two clients with one client id take turns, so each connection lasts as long as the other's back-off.
        """
        self._lasting_s = LAST_CONTESTED_RETRY_S if contested else QUICK_LOSS_S
        if lasted_s >= self._lasting_s:
            self._quick_losses = 0
            return True
        self._quick_losses += 1
        why = (
            "another client uses our client id"
            if contested
            else "the broker keeps restarting, the network drops connections, or another client uses our client id"
        )
        self._quick_cause = (
            f"{self._quick_losses} connections in a row ended within {self._lasting_s:g} s ({cause}): {why}"
        )
        if self._quick_losses == QUICK_LOSSES:
            logger.warning("%s; connecting again, with back-off", self._quick_cause)
        return False

    def _is_stopping(self) -> bool:
        return self._stopping

    def _connect_once(self, host: Host) -> tuple[float | None, str]:
        """Hold one connection until it ends; return when it came up, or null, and why it ended."""
        connected_at: float | None = None
        try:
            connection = self._new_connection(self._will())
        except (OSError, FedmonError, ssl.SSLError, ValueError) as error:
            return None, str(error)
        try:
            with self._changed:
                if self._stopping:
                    return None, "we are stopping"
                self._connection = connection
                wanted = dict(self._subscriptions)
            if connection.open(host, wanted):
                connected_at = time.monotonic()
                self._came_up(connection, wanted, host)
                connection.closed.wait()
        except (OSError, RuntimeError) as error:  # such as too many open files, or threads
            return connected_at, str(error)
        finally:
            self._up = False
            self._up_since = float("inf")
            connection.close()
        return connected_at, connection.cause

    def _came_up(self, connection: Connection, wanted: dict[str, int], host: Host) -> None:
        with self._changed:
            if self._stopping:
                return
            added = {name: qos for name, qos in self._subscriptions.items() if name not in wanted}
            if added:
                connection.subscribe(added)
            for name in (self._held | wanted.keys()) - self._subscriptions.keys():
                connection.unsubscribe(name)
            self._held = set(self._subscriptions)
            self._permanent = self._quiet = False
            self._up_since = time.monotonic()
            self._up = True
            self._changed.notify_all()
        logger.info("connected to the broker at %s:%d", host.host, host.port)
        self._tell(Link(up=True, host=host))

    def _failed(self, error: ConnectionFailedError, host: Host) -> None:
        first = self._error is None or str(self._error) != str(error)
        with self._changed:
            self._error = error
            self._permanent = is_permanent(error.cause)
            self._changed.notify_all()
        level = logging.WARNING if first and not self._quiet and not self.flapping else logging.DEBUG
        if error.cause.startswith(LOST):
            logger.log(level, "%s to the broker at %s:%d; connecting again", error.cause, host.host, host.port)
        else:
            logger.log(level, "%s", error)
        self._tell(Link(up=False, host=host, cause=error.cause))

    def _tell(self, link: Link) -> None:
        try:
            self._on_link(link)
        except Exception:
            logger.exception("the link callback failed")
