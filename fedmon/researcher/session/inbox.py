"""Messages that arrive: queued on the network thread, read and checked by a thread of their own."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from fedmon.common.actor import Actor, Priority
from fedmon.common.errors import InvalidMessageError
from fedmon.common.ids import NodeId
from fedmon.common.log import escape_control
from fedmon.common.wire import topics
from fedmon.common.wire.codec import decode_log, decode_presence, decode_reply, decode_telemetry, recover_envelope
from fedmon.common.wire.connection import Link
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import LogRecord, PlanDecision, Presence
from fedmon.common.wire.runs import JobOutcome, RunScalars
from fedmon.common.wire.samples import AddScalar, SampleBatch
from fedmon.common.wire.topics import Address, Channel
from fedmon.researcher.session.connection import Dialect

logger = logging.getLogger(__name__)

STOP_WAITS_S = 2.0
RETRY_S = 1.0
MAX_DETAIL = 300
TALLY_EVERY_S = 10.0
MESSAGES_A_TICK = 16
"""While many messages wait, ``on_tick`` is called after so many of them."""

T = TypeVar("T", SampleBatch | AddScalar, LogRecord, Presence)

_parsed = functools.lru_cache(maxsize=8_192)(topics.parse)


class Tally:
    """Counters of dropped and refused messages, by kind. Safe from any thread.

    The first event of a kind is logged at warning, then at most one line each 10 s with the count so far.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._said_at: dict[str, float] = {}

    def count(self, kind: str, detail: str = "", *, number: int = 1, quiet: bool = False) -> None:
        """Add to a counter; ``detail`` is escaped and shown in the log line, ``quiet`` counts only."""
        with self._lock:
            self._counts[kind] += number
            total, now = self._counts[kind], time.monotonic()
            if quiet or now - self._said_at.get(kind, -math.inf) < TALLY_EVERY_S:
                return
            self._said_at[kind] = now
        logger.warning("%s: %d so far; the latest: %s", kind, total, escape_control(detail[:MAX_DETAIL]) or "-")

    def __getitem__(self, kind: str) -> int:
        return self._counts[kind]

    def as_dict(self) -> dict[str, int]:
        """Return a copy of all counters that are not zero, sorted by name."""
        with self._lock:
            return dict(sorted(self._counts.items()))


class PresenceNews(NamedTuple):
    """What a node, or its last will, says of it."""

    presence: Presence
    retained: bool


class Cleared(NamedTuple):
    """The retained presence of a node was deleted."""

    node_id: NodeId


class Marker(NamedTuple):
    """A marker that we published to ourselves came back."""

    payload: bytes


class Unreadable(NamedTuple):
    """A reply to this request that cannot be read."""

    node_id: NodeId
    request_id: str
    error: InvalidMessageError


Arrived = (
    SampleBatch | AddScalar | RunScalars | PlanDecision | JobOutcome | Reply | LogRecord
    | PresenceNews | Cleared | Marker | Unreadable | Link
)  # fmt: skip
"""Messages whose sender is as their topic says, and news of the connection."""


class Inbox:
    """Reads and checks arriving messages on a thread of its own; a flood of samples displaces no reply.

    `put`, `put_link` and `wake` are safe from any thread. ``on_arrival`` gets each message with its size in bytes.
    ``on_tick`` is called after messages came, at `wake`, and when the seconds are over that it returned. Both run on
    the inbox's thread.
    """

    def __init__(
        self,
        tally: Tally,
        *,
        dialect: Dialect,
        researcher_id: str,
        instance: str,
        strict_identity: bool,
        on_arrival: Callable[[Arrived, int], None],
        on_tick: Callable[[], float],
    ) -> None:
        self._tally, self._dialect = tally, dialect
        self._researcher_id, self._instance, self._strict = researcher_id, instance, strict_identity
        self._on_arrival, self._on_tick = on_arrival, on_tick
        self._actor = Actor("fedmon-inbox")
        self._since_tick = 0
        self._timer_at = float("inf")

    def start(self) -> None:
        """Start the thread."""
        self._actor.start()
        self.wake()

    def stop(self) -> None:
        """End the thread; messages that were not read yet are dropped."""
        self._actor.close(timeout_s=STOP_WAITS_S, drop=True)

    def put(self, topic: str, payload: bytes, retained: bool = False) -> None:  # noqa: FBT001, FBT002 - the transport's order
        """Take a message from the network thread."""
        urgent = topic.startswith(("general/researcher", "general/status/"))
        self._actor.post(
            lambda: self._arrived(topic, payload, retained=retained),
            priority=Priority.URGENT if urgent else Priority.BULK,
            size_bytes=len(payload),
        )

    def put_link(self, link: Link) -> None:
        """Take news of the connection from the network thread."""
        self._actor.post(lambda: self._on_arrival(link, 0))
        self.wake()

    def wake(self) -> None:
        """Call ``on_tick`` soon."""
        self._actor.post(self._tick)

    @property
    def backlog(self) -> int:
        """How many messages wait."""
        return self._actor.backlog

    @property
    def dropped(self) -> Sequence[int]:
        """How many messages were dropped because too many waited: replies and presence, then samples and logs."""
        return self._actor.dropped

    def _tick(self) -> None:
        self._since_tick = 0
        pause_s = RETRY_S
        try:
            pause_s = self._on_tick()
        finally:
            due_at = time.monotonic() + pause_s
            if due_at < self._timer_at:
                self._timer_at = due_at
                self._actor.at(due_at, lambda: self._timer(due_at))

    def _timer(self, due_at: float) -> None:
        if due_at == self._timer_at:
            self._timer_at = float("inf")
            self._tick()

    def _arrived(self, topic: str, payload: bytes, *, retained: bool) -> None:
        try:
            self._message(topic, payload, retained=retained)
        except Exception:
            # One message that is handled wrongly must not make us deaf to all others.
            self._tally.count("messages that we failed on", topic, quiet=True)
            logger.exception("handling a message on %s failed", topic)
        self._since_tick += 1
        if self._since_tick >= MESSAGES_A_TICK or not self._actor.backlog:
            self._tick()

    def _message(self, topic: str, payload: bytes, *, retained: bool) -> None:
        address = _parsed(topic)
        try:
            for message in self._read(topic, address, payload, retained=retained):
                self._on_arrival(message, len(payload))
        except InvalidMessageError as error:
            self._tally.count(f"unreadable messages ({address.channel.value})", f"{topic}: {error.reason}")
            if address.channel is Channel.REPLY and address.node_id is not None:
                request_id = recover_envelope(payload).get("id")
                if isinstance(request_id, str):
                    self._on_arrival(Unreadable(address.node_id, request_id, error), len(payload))

    def _read(self, topic: str, address: Address, payload: bytes, *, retained: bool) -> Iterable[Arrived]:
        """Read a message, and check that its sender is as its topic says. Raises InvalidMessageError."""
        channel = address.channel
        is_foreign = self._dialect.hears(topic)
        if retained and (is_foreign or channel in (Channel.REPLY, Channel.METRICS, Channel.LOG)):
            # Only presence is ever retained; anything else is a trap for later subscribers.
            name = "" if is_foreign else f" ({channel.value})"
            self._tally.count(f"retained messages refused{name}", topic)
            return ()
        if is_foreign:
            return self._dialect.read(topic, payload)
        match channel:
            case Channel.STATUS:
                return self._status(address, payload, retained=retained)
            case Channel.REPLY:
                return self._reply(address, payload)
            case Channel.METRICS:
                return self._from_sender(address, decode_telemetry(payload))
            case Channel.LOG:
                return self._from_sender(address, decode_log(payload))
            case _:
                self._tally.count("messages on a foreign topic", topic)
                return ()

    def _reply(self, address: Address, payload: bytes) -> Iterable[Arrived]:
        if address.node_id == self._researcher_id and address.instance == self._instance:
            return (Marker(payload),)
        message = decode_reply(payload)
        if message.node_id != address.node_id:
            self._tally.count("messages naming another sender", f"{address.node_id} says to be {message.node_id}")
        elif message.researcher_id != self._researcher_id:
            self._tally.count("replies for another researcher", f"from {address.node_id}")
        else:
            return (message,)
        return ()

    def _status(self, address: Address, payload: bytes, *, retained: bool) -> Iterable[Arrived]:
        if address.node_id is not None and not payload:
            return (Cleared(address.node_id),)
        return [PresenceNews(presence, retained) for presence in self._from_sender(address, decode_presence(payload))]

    def _from_sender(self, address: Address, message: T) -> tuple[T, ...]:
        """Return the message if its topic names its sender, or need not; else count it."""
        if address.node_id is None and self._strict:
            self._tally.count("messages without a sender in their topic", message.node_id)
            return ()
        if address.node_id not in (None, message.node_id):
            self._tally.count("messages naming another sender", f"{address.node_id} says to be {message.node_id}")
            return ()
        return (message,)
