"""What arrives: put on the network thread, read, checked and handed on by a thread of its own."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from fedmon.common.errors import InvalidMessageError
from fedmon.common.ids import NodeId
from fedmon.common.wire import topics
from fedmon.common.wire.codec import decode_log, decode_presence, decode_reply, decode_telemetry, recover_envelope
from fedmon.common.wire.connection import Link
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import LogRecord, PlanDecision, Presence
from fedmon.common.wire.runs import JobOutcome, RunScalars
from fedmon.common.wire.samples import AddScalar, SampleBatch
from fedmon.common.wire.topics import Address, Channel
from fedmon.researcher.session.dialect import Dialect
from fedmon.researcher.session.lanes import Lanes
from fedmon.researcher.session.tally import Tally

logger = logging.getLogger(__name__)

STOP_WAITS_S = 2.0
RETRY_S: float | None = 1.0

T = TypeVar("T")

_parsed = functools.lru_cache(maxsize=8_192)(topics.parse)


class Arrivals(Protocol):
    """What happens with what arrived; called on the inbox's thread, with messages whose sender is as the topic says."""

    def on_link(self, link: Link) -> None:
        """Hear that the connection came up or was lost."""

    def on_marker(self, payload: bytes) -> None:
        """Hear that our own marker came back."""

    def on_reply(self, reply: Reply) -> None:
        """Take what a node answered."""

    def on_decision(self, decision: PlanDecision) -> None:
        """Take what an owner decided about a plan."""

    def on_job_outcome(self, outcome: JobOutcome) -> None:
        """Take how a job ended."""

    def on_unreadable_reply(self, node_id: NodeId, request_id: str, error: InvalidMessageError) -> None:
        """Hear that a node sent a reply to this request that we cannot read."""

    def on_presence(self, presence: Presence, *, retained: bool) -> None:
        """Take what a node, or its last will, says of it."""

    def on_cleared(self, node_id: NodeId) -> None:
        """Hear that the retained presence of a node was deleted."""

    def on_telemetry(self, telemetry: SampleBatch | AddScalar, *, size_bytes: int) -> None:
        """Take samples or scalars of a node."""

    def on_log(self, record: LogRecord) -> None:
        """Take a log record of a node."""

    def on_tick(self) -> float | None:
        """Do what time asks for; return in how many seconds to call again, null for never."""


class Inbox:
    """Bounded, in two lanes, so that no flood of samples displaces a reply. `put` is safe from any thread."""

    def __init__(
        self,
        arrivals: Arrivals,
        tally: Tally,
        *,
        dialect: Dialect,
        researcher_id: str,
        instance: str,
        strict_identity: bool,
    ) -> None:
        self._arrivals, self._tally, self._dialect = arrivals, tally, dialect
        self._researcher_id, self._instance, self._strict = researcher_id, instance, strict_identity
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

    def put(self, topic: str, payload: bytes, *, retained: bool) -> None:
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
        next_tick_at: float | None = 0.0
        while not self._stopping:
            timeout_s = None if next_tick_at is None else max(0.0, next_tick_at - time.monotonic())
            urgent, bulk = self._lanes.take(timeout_s=timeout_s)
            for entry in (*urgent, *bulk):
                self._one(entry)
            pause_s = self._guarded(self._arrivals.on_tick, RETRY_S)
            next_tick_at = None if pause_s is None else time.monotonic() + pause_s

    def _guarded(self, step: Callable[[], T], otherwise: T) -> T:
        """Run one step of ours; a failing one must not make us deaf."""
        try:
            return step()
        except Exception:
            self._tally.count("steps that failed", "inbox", quiet=True)
            logger.exception("a step of the inbox failed")
            return otherwise

    def _one(self, entry: tuple[str, bytes, bool] | Link) -> None:
        if isinstance(entry, Link):
            self._guarded(functools.partial(self._arrivals.on_link, entry), None)
            return
        topic, payload, retained = entry
        address = _parsed(topic)
        try:
            self._read(topic, address, payload, retained=retained)
        except InvalidMessageError as error:
            self._tally.count(f"unreadable messages ({address.channel.value})", f"{topic}: {error.reason}")
            self._tell_who_waits(address, payload, error)
        except Exception:
            # One message that we handle wrongly must not make us deaf to all others.
            self._tally.count("messages that we failed on", topic, quiet=True)
            logger.exception("handling a message on %s failed", topic)

    def _read(self, topic: str, address: Address, payload: bytes, *, retained: bool) -> None:
        if self._dialect.hears(topic):
            self._read_foreign(topic, payload, retained=retained)
            return
        match address.channel:
            case Channel.STATUS:
                self._status(address, payload, retained=retained)
            case Channel.REPLY | Channel.METRICS | Channel.LOG if retained:
                # Only presence is ever retained; anything else is a trap for whoever comes later.
                self._tally.count(f"retained messages refused ({address.channel.value})", topic)
            case Channel.REPLY:
                self._reply(address, payload)
            case Channel.METRICS:
                telemetry = decode_telemetry(payload)
                if self._sender_fits(address, telemetry.node_id):
                    self._arrivals.on_telemetry(telemetry, size_bytes=len(payload))
            case Channel.LOG:
                record = decode_log(payload)
                if self._sender_fits(address, record.node_id):
                    self._arrivals.on_log(record)
            case _:
                self._tally.count("messages on a foreign topic", topic)

    def _read_foreign(self, topic: str, payload: bytes, *, retained: bool) -> None:
        if retained:
            self._tally.count("retained messages refused", topic)
            return
        for told in self._dialect.read(topic, payload):
            if isinstance(told, AddScalar):
                self._arrivals.on_telemetry(told, size_bytes=len(payload))
            elif isinstance(told, LogRecord):
                self._arrivals.on_log(told)
            else:
                self._arrivals.on_reply(told)

    def _tell_who_waits(self, address: Address, payload: bytes, error: InvalidMessageError) -> None:
        if address.channel is Channel.REPLY and address.node_id is not None:
            request_id = recover_envelope(payload).get("id")
            if isinstance(request_id, str):
                self._arrivals.on_unreadable_reply(address.node_id, request_id, error)

    def _reply(self, address: Address, payload: bytes) -> None:
        if address.node_id == self._researcher_id and address.instance == self._instance:
            self._arrivals.on_marker(payload)
            return
        message = decode_reply(payload)
        if message.node_id != address.node_id:
            self._tally.count("messages naming another sender", f"{address.node_id} says to be {message.node_id}")
        elif message.researcher_id != self._researcher_id:
            self._tally.count("replies for another researcher", f"from {address.node_id}")
        elif isinstance(message, RunScalars):
            for told in message.telemetry():
                self._arrivals.on_telemetry(told, size_bytes=len(payload) // (2 * len(message.scalars)))
        elif isinstance(message, PlanDecision):
            self._arrivals.on_decision(message)
        elif isinstance(message, JobOutcome):
            self._arrivals.on_job_outcome(message)
        else:
            self._arrivals.on_reply(message)

    def _status(self, address: Address, payload: bytes, *, retained: bool) -> None:
        if address.node_id is not None and not payload:
            self._arrivals.on_cleared(address.node_id)
            return
        presence = decode_presence(payload)
        if self._sender_fits(address, presence.node_id):
            self._arrivals.on_presence(presence, retained=retained)

    def _sender_fits(self, address: Address, node_id: str) -> bool:
        if address.node_id is None:
            if self._strict:
                self._tally.count("messages without a sender in their topic", node_id)
            return not self._strict
        if address.node_id != node_id:
            self._tally.count("messages naming another sender", f"{address.node_id} says to be {node_id}")
            return False
        return True
