"""Messages that arrive: queued on the network thread, read and checked by a thread of their own."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from fedmon.common.errors import InvalidMessageError
from fedmon.common.ids import NodeId
from fedmon.common.wire import topics
from fedmon.common.wire.codec import decode_log, decode_presence, decode_reply, decode_telemetry, recover_envelope
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import LogRecord, PlanDecision, Presence
from fedmon.common.wire.runs import JobOutcome, RunScalars
from fedmon.common.wire.samples import AddScalar, SampleBatch
from fedmon.common.wire.topics import Address, Channel
from fedmon.common.wire.transport import Link
from fedmon.researcher.session.connection import Dialect
from fedmon.researcher.session.lanes import Lanes
from fedmon.researcher.session.tally import Tally

logger = logging.getLogger(__name__)

STOP_WAITS_S = 2.0
RETRY_S = 1.0

T = TypeVar("T", SampleBatch | AddScalar, LogRecord, Presence)

_parsed = functools.lru_cache(maxsize=8_192)(topics.parse)


class Status(NamedTuple):
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
    | Status | Cleared | Marker | Unreadable | Link
)  # fmt: skip
"""Messages whose sender is as their topic says, and news of the connection."""


class Inbox:
    """Bounded queue of arriving messages, and the thread that reads and checks them; a flood of samples displaces none.

    `put` and `wake` are safe from any thread. ``on_arrival`` gets each message with its size in bytes. ``on_tick`` is
    called after messages came, at `wake`, and when the seconds are over that it returned. Both run on the inbox's
    thread.
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
        self._lanes: Lanes[tuple[str, bytes, bool] | Link] = Lanes()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="fedmon-inbox", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what was not read yet is left."""
        self._stopping = True
        self._lanes.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(STOP_WAITS_S)

    def put(self, topic: str, payload: bytes, retained: bool = False) -> None:  # noqa: FBT001, FBT002 - the transport's order
        """Take a message from the network thread."""
        urgent = topic.startswith(("general/researcher", "general/status/"))
        self._lanes.put((topic, payload, retained), urgent=urgent, size_bytes=len(payload))

    def put_link(self, link: Link) -> None:
        """Take news of the connection from the network thread."""
        self._lanes.put(link, urgent=True)

    def wake(self) -> None:
        """Let the thread ask again what time asks for."""
        self._lanes.wake()

    @property
    def backlog(self) -> int:
        """How many messages wait."""
        return len(self._lanes)

    @property
    def dropped(self) -> tuple[int, int]:
        """How many messages found their lane full: urgent ones, and samples and logs."""
        return self._lanes.dropped_urgent, self._lanes.dropped_bulk

    def _run(self) -> None:
        next_tick_at = 0.0
        while not self._stopping:
            urgent, bulk = self._lanes.take(timeout_s=max(0.0, next_tick_at - time.monotonic()))
            for entry in (*urgent, *bulk):
                self._one(entry)
            try:
                pause_s = self._on_tick()
            except Exception:
                # A failing step must not make us deaf.
                self._tally.count("steps that failed", "inbox", quiet=True)
                logger.exception("a step of the inbox failed")
                pause_s = RETRY_S
            next_tick_at = time.monotonic() + pause_s

    def _one(self, entry: tuple[str, bytes, bool] | Link) -> None:
        """Hand on one message; one that is handled wrongly must not make us deaf to all others."""
        try:
            if isinstance(entry, Link):
                self._on_arrival(entry, 0)
            else:
                topic, payload, retained = entry
                self._message(topic, payload, retained=retained)
        except Exception:
            topic = "" if isinstance(entry, Link) else entry[0]
            self._tally.count("messages that we failed on", topic, quiet=True)
            logger.exception("handling a message on %s failed", topic)

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
        return [Status(presence, retained) for presence in self._from_sender(address, decode_presence(payload))]

    def _from_sender(self, address: Address, message: T) -> tuple[T, ...]:
        """Return the message if its topic names its sender, or need not; else count it."""
        if address.node_id is None and self._strict:
            self._tally.count("messages without a sender in their topic", message.node_id)
            return ()
        if address.node_id not in (None, message.node_id):
            self._tally.count("messages naming another sender", f"{address.node_id} says to be {message.node_id}")
            return ()
        return (message,)
