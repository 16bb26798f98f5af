"""A party that only publishes measurements, at the broker: its presence, its samples, and its answers."""

from __future__ import annotations

import collections
import logging
import secrets
import threading
import time
from collections.abc import Callable

from fedmon.common import __version__
from fedmon.common.actor import Actor, Bound
from fedmon.common.clock import Deadline, utc_now
from fedmon.common.errors import InvalidMessageError
from fedmon.common.settings.broker import BrokerSettings
from fedmon.common.wire import codec, topics
from fedmon.common.wire.connection import BrokerConnection, Link, Will
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import (
    CONNECTION_LOST,
    ONLY_TELLS,
    ErrorCode,
    LogRecord,
    Monitor,
    Ping,
    Pong,
    Presence,
)
from fedmon.node.requests.dialect import echo, error
from fedmon.node.requests.quotas import Throttle

BACKLOG = 600
"""Batches that wait for the broker: 100 minutes of ten samples each at 1 Hz."""
QUESTIONS = Bound(4_000, 32 * 2**20)
"""Requests that may wait for their answer."""
ASK_AGAIN_S = 0.5
REFRESH_S = 30.0
CORRECT_S = 2.0
"""A presence that was just published takes a while to come back."""

logger = logging.getLogger(__name__)


class BrokerLink:
    """Keeps the retained presence of one party true, sends its batches in their order, and answers requests.

    Batches wait while there is no connection, at most ``backlog``; the oldest goes first and is counted. ``boot``
    numbers this run, and with ``connections`` (how many there were) its presence. ``streams()`` names its streams.
    ``monitor(request)`` answers `monitor`, on a dedicated thread, and `ping` is answered here; a researcher that asks
    this party alone for something else is told ``refusal``. ``client_id`` is its name at the broker (default: node id
    and 128 random bits). Safe from any thread.
    """

    def __init__(
        self,
        broker: BrokerSettings,
        *,
        node_id: str,
        boot: int,
        streams: Callable[[], list[str]],
        monitor: Callable[[Monitor], Reply | None] = lambda _request: None,
        refusal: str = "this party only publishes its measurements",
        connections: int = 0,
        backlog: int = BACKLOG,
        client_id: str | None = None,
    ) -> None:
        self._node_id, self._boot, self.connections = node_id, boot, connections
        self._streams, self._monitor, self._refusal = streams, monitor, refusal
        self._throttle = Throttle(burst=50, per_s=10.0)
        self._actor = Actor("fedmon-answers", urgent=QUESTIONS)
        self._actor.every(CORRECT_S, self.keep)
        self._topic = topics.status(node_id)
        self._changed = threading.Condition()
        self._backlog, self._limit = collections.deque[bytes](), backlog
        self._presence = self._on_broker = b""
        self._state = ("online", "")
        self._refreshed = time.monotonic()
        self.dropped = self._displaced = 0
        self._transport = BrokerConnection(
            broker,
            client_id=client_id or f"{node_id}-{secrets.token_hex(16)}",
            subscriptions=[(self._topic, 0), (topics.BROADCAST_FILTER, 0), (topics.command_filter(node_id), 1)],
            on_message=self._on_message,
            on_link=self._on_link,
            will=self._will,
            keeps_session=True,
        )

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._actor.start()
        self._transport.start()

    @property
    def is_connected(self) -> bool:
        """Tell whether the connection stands."""
        return self._transport.is_connected

    def send(self, payload: bytes) -> bool:
        """Send a batch, or keep it until the connection stands; False when an older one had to go for it."""
        with self._changed:
            self._backlog.append(payload)
            lost = len(self._backlog) > self._limit
            if lost:
                self._backlog.popleft()
                self.dropped += 1
            self._send_backlog()
            return not lost

    def refresh(self) -> None:
        """Repeat the presence; a reader takes a long silence for an end."""
        with self._changed:
            if self._presence:
                self._refreshed = time.monotonic()
                self._transport.publish(self._topic, self._presence, qos=1, retain=True)

    def announce(self) -> None:
        """Publish a newer presence; readers take this party for restarted, and ask again for their leases."""
        with self._changed:
            self._presence, self._displaced = self._made(*self._state), 0
            self.refresh()

    def keep(self) -> None:
        """Refresh the presence when it is time, or when the broker shows something else, such as an old will."""
        with self._changed:
            if self._displaced == 3:  # an old will does it once
                self._displaced += 1
                logger.warning("another process seems to use the id %r: give one of them another", self._node_id)
            period_s = REFRESH_S if self._on_broker == self._presence else CORRECT_S
            if time.monotonic() - self._refreshed >= period_s:
                self.refresh()

    def finish(self, reason: str) -> None:
        """Say that the scenario is over: in the presence, now "draining", and in a log record as an event."""
        self._state = ("draining", reason)
        self.announce()
        record = LogRecord(
            node_id=self._node_id, boot=self._boot, time=utc_now(), level="INFO", logger="fedmon.reporter", msg=reason
        )
        self._transport.publish(topics.log(self._node_id), codec.encode(record))

    def wait_held(self, timeout_s: float, *, given_up: threading.Event) -> bool:
        """Return whether the broker showed us that it holds our present state; meanwhile it is told again."""
        deadline = Deadline(timeout_s)
        while not (deadline.passed() or given_up.is_set()):
            with self._changed:
                timeout_left_s = min(ASK_AGAIN_S, deadline.left_s())
                if self._changed.wait_for(lambda: self._on_broker == self._presence, timeout_left_s):
                    return True
            self.refresh()
        return self._on_broker == self._presence

    def stop(self, timeout_s: float, *, reason: str = "stopped") -> None:
        """Say farewell, and why, and end the connection."""
        with self._changed:
            self._send_backlog()
            self.dropped += len(self._backlog)
            self._backlog.clear()
            self._presence = b""
        self._actor.close(timeout_s=timeout_s)
        farewell = Will(topic=self._topic, payload=self._made("offline", self._state[1] or reason))
        self._transport.stop(timeout_s, farewell=farewell)

    def _made(self, state: str, reason: str) -> bytes:
        return codec.encode(
            Presence(
                node_id=self._node_id,
                boot=self._boot + self.connections,
                state=state,  # type: ignore[arg-type]  # one of the three words
                since=utc_now(),
                reason=reason,
                agent_version=__version__,
                capabilities=[ONLY_TELLS],
                streams=self._streams(),
            )
        )

    def _send_backlog(self) -> None:
        topic = topics.monitoring(self._node_id)
        while self._backlog and self._transport.is_connected and self._transport.publish(topic, self._backlog[0]):
            self._backlog.popleft()

    def _answer(self, topic: str, payload: bytes) -> None:
        address = topics.parse(topic)
        try:
            request = codec.decode_request(payload)
        except InvalidMessageError:
            return
        is_own = request.researcher_id == address.researcher_id and request.node_id in (None, address.node_id)
        if not is_own or request.expires <= utc_now() or not self._throttle.allows(request.researcher_id):
            return
        reply = self._reply(request, is_asked_alone=address.channel is topics.Channel.COMMAND)
        if reply is not None:
            reply_topic = topics.reply(request.researcher_id, request.instance, self._node_id)
            self._transport.publish(reply_topic, codec.encode(reply), qos=1)

    def _reply(self, request: Request, *, is_asked_alone: bool) -> Reply | None:
        if isinstance(request, Ping):
            return Pong(time=utc_now(), boot=self._boot, agent_version=__version__, **echo(request, self._node_id))
        reply = self._monitor(request) if isinstance(request, Monitor) else None
        if reply is None and is_asked_alone:
            return error(request, self._node_id, ErrorCode.UNSUPPORTED, self._refusal)
        return reply

    # --- on the connection's threads: they put and return ------------------------------------------------------------

    def _will(self) -> Will:
        self.connections += 1
        return Will(topic=self._topic, payload=self._made("offline", CONNECTION_LOST))

    def _on_link(self, link: Link) -> None:
        if link.up:
            self.announce()
            with self._changed:
                self._send_backlog()

    def _on_message(self, topic: str, payload: bytes, retained: bool) -> None:  # noqa: FBT001  # the transport's shape
        if topic == self._topic:
            with self._changed:
                self._displaced += payload != self._presence == self._on_broker
                self._on_broker = payload
                self._changed.notify_all()
        elif not retained and len(payload) <= codec.MAX_PAYLOAD_BYTES:
            self._actor.post(lambda: self._answer(topic, payload), size_bytes=len(payload))
