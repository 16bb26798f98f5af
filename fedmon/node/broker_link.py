"""A party that only publishes measurements, at the broker: its presence, its samples, and its answers."""

from __future__ import annotations

import collections
import secrets
import threading
import time
from collections.abc import Callable

from fedmon.common import __version__
from fedmon.common.actor import Actor, Bound
from fedmon.common.clock import Deadline, utc_now
from fedmon.common.errors import InvalidMessageError
from fedmon.common.settings.broker import BrokerHost, BrokerSettings
from fedmon.common.wire import codec, topics
from fedmon.common.wire.connection import BrokerConnection
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import ONLY_TELLS, ErrorCode, LogRecord, Monitor, Ping, Pong
from fedmon.node.presence import REFRESH_S, PresenceKeeper
from fedmon.node.requests.dialect import echo, error
from fedmon.node.requests.quotas import Throttle

BACKLOG = 600
"""Batches that wait for the broker: 100 minutes of ten samples each at 1 Hz."""
QUESTIONS = Bound(4_000, 32 * 2**20)
"""Requests that may wait for their answer."""
REFUSAL = "this job or reporter only answers questions about its measurements; a reporter keeps none to send again"
ASK_AGAIN_S = 0.5
RETURN_S = 3.0
"""How long batches still wait after a lost connection is back: researchers are back that late, and cannot ask again."""


class BrokerLink:
    """Keeps the retained presence of one party true, sends its batches in their order, and answers requests.

    Batches wait while there is no connection, at most ``backlog``; the oldest goes first and is counted. ``boot``
    numbers this run, and with ``connections`` (how many there were) its presence. ``streams()`` names its streams.
    ``monitor(request)`` answers `monitor`, on a dedicated thread, and `ping` is answered here; a researcher that asks
    this party alone for something else is refused. ``client_id`` is its name at the broker (default: node id and 128
    random bits). Safe from any thread.
    """

    def __init__(
        self,
        broker: BrokerSettings,
        *,
        node_id: str,
        boot: int,
        streams: Callable[[], list[str]],
        monitor: Callable[[Monitor], Reply | None] = lambda _request: None,
        connections: int = 0,
        backlog: int = BACKLOG,
        client_id: str | None = None,
    ) -> None:
        self._node_id, self._boot, self._monitor = node_id, boot, monitor
        self._throttle = Throttle(burst=50, per_s=10.0)
        self._actor = Actor("fedmon-answers", urgent=QUESTIONS)
        self._actor.every(REFRESH_S, self._refresh)
        self._presence = PresenceKeeper(
            node_id=node_id,
            boot=boot + connections,
            capabilities=lambda: [ONLY_TELLS],
            streams=streams,
            publish=lambda topic, payload: self._transport.publish(topic, payload, qos=1, retain=True),
        )
        self._topic, self._changed = topics.status(node_id), threading.Condition()
        self._backlog, self._limit = collections.deque[bytes](), backlog
        self._state = ("online", "")
        self._send_from = 0.0
        self.dropped = 0
        self._transport = BrokerConnection(
            broker,
            client_id=client_id or f"{node_id}-{secrets.token_hex(16)}",
            subscriptions=[(self._topic, 0), (topics.BROADCAST_FILTER, 0), (topics.command_filter(node_id), 1)],
            on_message=self._on_message,
            on_link=self._on_link,
            will=self._presence.will,
            keeps_session=True,
        )

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._actor.start()
        self._transport.start()

    @property
    def connections(self) -> int:
        """How many connections there were, those before this link included."""
        return self._presence.boot - self._boot

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

    def announce(self) -> None:
        """Publish a newer presence; readers take this party for restarted, and ask again for their leases."""
        with self._changed:
            self._presence.announce(*self._state)

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
                if self._changed.wait_for(lambda: self._presence.is_held, timeout_left_s):
                    return True
            self._refresh()
        return self._presence.is_held

    def stop(self, timeout_s: float, *, reason: str = "stopped") -> None:
        """Say farewell, and why, and end the connection."""
        with self._changed:
            self._send_from = 0.0
            self._send_backlog()
            self.dropped += len(self._backlog)
            self._backlog.clear()
            farewell = self._presence.farewell(self._state[1] or reason)
        self._actor.close(timeout_s=timeout_s)
        self._transport.stop(timeout_s, farewell=farewell)

    def _refresh(self) -> None:
        with self._changed:
            self._presence.refresh()

    def _send_backlog(self) -> None:
        topic = topics.monitoring(self._node_id)
        with self._changed:
            may_send = time.monotonic() >= self._send_from and self._transport.is_connected
            while may_send and self._backlog and self._transport.publish(topic, self._backlog[0]):
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

    def _seen(self, payload: bytes, *, retained: bool) -> None:
        """Correct the presence if the broker shows something else, such as an old will."""
        with self._changed:
            self._presence.correct(payload, retained=retained)
            self._changed.notify_all()

    def _reply(self, request: Request, *, is_asked_alone: bool) -> Reply | None:
        if isinstance(request, Ping):
            return Pong(time=utc_now(), boot=self._boot, agent_version=__version__, **echo(request, self._node_id))
        reply = self._monitor(request) if isinstance(request, Monitor) else None
        if reply is None and is_asked_alone:
            return error(request, self._node_id, ErrorCode.UNSUPPORTED, REFUSAL)
        return reply

    # --- on the connection's threads: they put and return ------------------------------------------------------------

    def _on_link(self, host: BrokerHost | None) -> None:
        if host is not None:
            self.announce()
            self._send_from = time.monotonic() + RETURN_S if self._send_from else 0.0
            self._actor.at(self._send_from, self._send_backlog)
        else:
            self._send_from = float("inf")

    def _on_message(self, topic: str, payload: bytes, retained: bool) -> None:  # noqa: FBT001  # the transport's shape
        if topic == self._topic:
            self._actor.post(lambda: self._seen(payload, retained=retained))
        elif not retained and len(payload) <= codec.MAX_PAYLOAD_BYTES:
            self._actor.post(lambda: self._answer(topic, payload), size_bytes=len(payload))
