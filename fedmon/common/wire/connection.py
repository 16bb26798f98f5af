"""The kept connection to the first broker that answers: attempts, back-off, rotation of hosts, and news of all that.

Each attempt is a fresh client of the MQTT library: a message that made a broker drop us is not sent again for ever,
nothing waits unseen in a client's memory, and the last will can change from one connection to the next. What is not
delivered is asked for again by the application, which alone can know that it was not.

A broker of one host keeps nothing of us. In a cluster RabbitMQ ties a clean session to one host, so there the session
is kept, as long as the broker's settings allow (with MQTT 5 for `SESSION_EXPIRES_S`). After an absence of more than
`RESUME_WITHIN_S` the broker drops it, with the commands that it queued: their senders no longer wait for them.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from fedmon.common.backoff import Backoff
from fedmon.common.clock import Deadline
from fedmon.common.errors import ConnectionFailedError, FedmonError, InvalidMessageError
from fedmon.common.settings import BrokerSettings, Host
from fedmon.common.wire import topics
from fedmon.common.wire.transport import LOST, MqttClient, Session, Will, is_permanent

__all__ = ["BrokerConnection", "Link", "Will"]

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
RESUME_WITHIN_S = 30.0
QUICK_ANSWER_S, QUICK_ROUNDS = 1.0, 3
"""A cluster that lost a host chooses a new leader (NATS) and loses the logins that it got until then."""
TAKEN_OVER = "Session taken over"
"""MQTT 5, reason code 0x8E: another client connected with our client id."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the connection, as told to `on_link`."""

    up: bool
    host: Host
    cause: str = ""


class BrokerConnection:
    """One connection to the first broker that answers, kept until `stop`. Every method is safe from any thread.

    ``on_message(topic, payload, retained)`` and ``on_link(link)`` run on network threads: they put and return.
    ``will()`` is called before each attempt. ``id_is_contested()`` tells whether another client was seen with our
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
        self._client: MqttClient | None = None
        self._granted_until = -math.inf
        self._tries = 0
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
        client = self._client
        if client is None or not client.publish(topic, payload, qos=qos, retain=retain):
            self.dropped += 1
            return False
        return True

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Add a subscription, now and on every later connection."""
        with self._changed:
            self._subscriptions[topic_filter] = qos
            self._held.add(topic_filter)
            if self._up and self._client is not None:
                self._client.subscribe({topic_filter: qos})

    def unsubscribe(self, topic_filter: str) -> None:
        """Take a subscription back."""
        with self._changed:
            if self._subscriptions.pop(topic_filter, None) is not None and self._up and self._client is not None:
                self._client.unsubscribe(topic_filter)

    def stop(self, timeout_s: float = 2.0, farewell: Will | None = None) -> None:
        """Say farewell, disconnect in order and end the threads, within about ``timeout_s``."""
        deadline = Deadline(timeout_s)
        client = self._client
        if farewell is not None and self._up and client is not None:
            client.publish_and_wait(farewell, deadline.left_s())
        if (client := self._stop_trying()) is not None:
            client.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(deadline.left_s() + 0.1)
        self._up = False

    def abort(self) -> None:
        """Vanish without a word, as a crash would, so that the broker publishes our last will."""
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
        backoff = Backoff(FIRST_RETRY_S * factor, longest_s=LAST_RETRY_S, factor=factor, jitter=0.5)
        while True:
            host = hosts[backoff.attempts % len(hosts)]
            lasted_s, cause = self._connect_once(host)
            if self._stopping:
                return
            contested = TAKEN_OVER in cause or self._id_is_contested()
            if lasted_s is not None and self._was_long(lasted_s, cause, contested=contested):
                backoff.reset()
            is_taken_over = contested and self._quick_losses >= QUICK_LOSSES
            backoff.longest_s = LAST_CONTESTED_RETRY_S if is_taken_over else LAST_RETRY_S
            delay_s = backoff.next_s()
            self._failed(ConnectionFailedError(host.host, host.port, cause), host)
            if lasted_s is None and backoff.attempts >= DOWN_AFTER_ROUNDS * len(hosts):
                self._quick_losses = 0
            with self._changed:
                if self._changed.wait_for(lambda: self._stopping, timeout=delay_s):
                    return

    def _connect_once(self, host: Host) -> tuple[float | None, str]:
        """Hold one connection until it ends; return how many seconds it was up, or None, and why it ended."""
        connected_at: float | None = None
        client: MqttClient | None = None
        try:
            client = self._new_client(self._will())
            with self._changed:
                if self._stopping:
                    return None, "we are stopping"
                self._client = client
                wanted = dict(self._subscriptions)
            if client.open(host, wanted):
                connected_at = time.monotonic()
                self._came_up(client, wanted, host)
                client.closed.wait()
            cause = client.cause
        except (OSError, FedmonError, RuntimeError, ValueError) as error:  # such as too many open files, or threads
            cause = str(error)
        finally:
            self._up = False
            self._up_since = math.inf
            if client is not None:
                client.close()
                if client.granted:
                    self._granted_until, self._tries = client.ended_at, 0
        return None if connected_at is None else time.monotonic() - connected_at, cause

    def _new_client(self, will: Will | None) -> MqttClient:
        broker, client_id, session = self._broker, self._client_id, Session.CLEAN
        self._tries += 1
        away_s = time.monotonic() - self._granted_until
        if self._keeps_session:
            session = Session.RESUMED if away_s < RESUME_WITHIN_S else Session.NEW
        elif len(broker.hosts) > 1:
            client_id += f"-{secrets.token_hex(2)}"  # the queue of the former id may be on a host that is down
        if len(broker.hosts) > 1 and away_s < math.inf and self._tries < QUICK_ROUNDS * len(broker.hosts):
            timeout_s = min(QUICK_ANSWER_S, broker.connect_timeout_s)
            broker = msgspec.structs.replace(broker, connect_timeout_s=timeout_s)
        return MqttClient(broker, client_id, will, self._on_message, session=session)

    def _was_long(self, lasted_s: float, cause: str, *, contested: bool) -> bool:
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

    def _came_up(self, client: MqttClient, wanted: dict[str, int], host: Host) -> None:
        with self._changed:
            if self._stopping:
                return
            added = {name: qos for name, qos in self._subscriptions.items() if name not in wanted}
            if added:
                client.subscribe(added)
            for name in (self._held | wanted.keys()) - self._subscriptions.keys():
                client.unsubscribe(name)
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
