"""What happens with each thing that arrives, and with the passing of time: the parts of a researcher, put together."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from fedmon.common.errors import InvalidMessageError
from fedmon.common.ids import NodeId, new_id
from fedmon.common.wire import topics
from fedmon.common.wire.connection import Link, Will
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Error, ErrorCode, LogRecord, Ping, PlanDecision, Presence
from fedmon.common.wire.runs import JobOutcome, JobsReply
from fedmon.common.wire.samples import AddScalar, MonitorReply, SampleBatch, SamplesReply
from fedmon.researcher.asking.pending import Pending, Verdict, Waiting
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.replies.announcements import Announcements
from fedmon.researcher.replies.replies import Replies
from fedmon.researcher.roster import Change, Instant, NodeState, Roster, only_tells
from fedmon.researcher.runs.book import RunBook
from fedmon.researcher.samples.consumer import Consumer
from fedmon.researcher.samples.logs import Logs, LogStream
from fedmon.researcher.samples.refill_consumers import Consumers
from fedmon.researcher.samples.refill_weight import memory_bytes
from fedmon.researcher.samples.wanted import wanted_filters
from fedmon.researcher.session.connection import Connection
from fedmon.researcher.session.dialect import Dialect
from fedmon.researcher.session.dispatcher import Dispatcher, Subscription
from fedmon.researcher.session.settling import Settling
from fedmon.researcher.session.tally import Tally

logger = logging.getLogger(__name__)

LOOK_FOR_STALE_EVERY_S = 5.0
EVENTS = ("presence", "telemetry")


class Machinery:
    """Takes what arrives, on the thread of the inbox; `watch`, `listen` and `on` are safe from any thread."""

    def __init__(
        self,
        *,
        researcher_id: str,
        instance: str,
        connection: Connection,
        asker: Asker,
        dialect: Dialect,
        pending: Pending,
        roster: Roster,
        replies: Replies,
        decisions: Announcements[PlanDecision],
        job_outcomes: Announcements[JobOutcome],
        runs: RunBook,
        dispatcher: Dispatcher,
        tally: Tally,
        wake: Callable[[], None],
    ) -> None:
        self._marker_topic = topics.reply(researcher_id, instance, researcher_id)
        self._connection, self._asker, self._pending, self._roster = connection, asker, pending, roster
        self._replies, self._dispatcher = replies, dispatcher
        self._decisions, self._job_outcomes, self._runs = decisions, job_outcomes, runs
        self._tally, self._wake, self._dialect = tally, wake, dialect
        self._settling = Settling()
        self.settled = threading.Event()
        self._marker = b""
        self._greeting: Waiting | None = None
        self._was_connected = False
        self.consumers = Consumers(asker, pending)
        self._logs = Logs(dispatcher)
        self._lock = threading.Lock()
        self._subscriptions: dict[str, tuple[Subscription, ...]] = dict.fromkeys(EVENTS, ())
        self._stale_at = 0.0
        self._clearing: dict[NodeId, threading.Event] = {}

    # --- what users listen to ----------------------------------------------------------------------------------------

    def on(self, event: str, callback: Callable[[Any], object]) -> Subscription:
        """Call back at each event of a kind, until the subscription is removed."""

        def removed(subscription: Subscription) -> None:
            with self._lock:
                kept = tuple(one for one in self._subscriptions[event] if one is not subscription)
                self._subscriptions[event] = kept
            self._want()

        subscription = Subscription(callback, removed)
        with self._lock:
            self._subscriptions[event] += (subscription,)
        self._want()
        return subscription

    def tell(self, event: str, value: object) -> None:
        """Call back everybody who wants to know of this event."""
        for subscription in self._subscriptions[event]:
            self._dispatcher.call(subscription, (value,), urgent=True)

    def add_consumer(self, consumer: Consumer) -> None:
        """Begin to hand samples to a watch or a record, and to hold leases for it."""
        self.consumers.add(consumer)
        self._want()
        self._wake()

    def remove_consumer(self, consumer: Consumer) -> None:
        """End what `add_consumer` began."""
        self.consumers.remove(consumer)
        self._want()
        self._wake()

    def add_logs(self, stream: LogStream) -> None:
        """Begin to hand log records to a listener."""
        with self._lock:
            self._logs.streams += (stream,)
        self._want()

    def remove_logs(self, stream: Subscription) -> None:
        """End what `add_logs` began."""
        with self._lock:
            self._logs.streams = tuple(one for one in self._logs.streams if one is not stream)
        self._want()

    def close_all(self) -> None:
        """End every watch, every record, every listener and every wait."""
        for event in (self.settled, *self._clearing.values()):
            event.set()
        for consumer in self.consumers.all:
            consumer.close()
        for stream in self._logs.streams:
            stream.remove()
        self._runs.close()

    def farewell(self) -> Will | None:
        """Give the leases back, after the thread of the inbox has ended; return the last message to send.

        It goes to ourselves, and the broker's word that it has it means that it has everything before it too: a socket
        that is closed with something unread in it makes the broker forget what it has not read yet.
        """
        if not self._connection.is_connected:
            return None
        self.consumers.farewell(time.monotonic())
        return Will(topic=self._marker_topic, payload=b"end", qos=1, retain=False)

    def runs_changed(self) -> None:
        """Ask for what is missing of the runs that are followed now."""
        self._wake()

    def _want(self) -> None:
        with self._lock:
            metrics = [consumer.wish.nodes for consumer in self.consumers.all]
            if self._subscriptions["telemetry"]:
                metrics.append(None)
            logs = [stream.nodes for stream in self._logs.streams]
            self._connection.want(wanted_filters(self._dialect, metrics=metrics, logs=logs))

    # --- what arrives ------------------------------------------------------------------------------------------------

    def on_link(self, link: Link) -> None:
        """Find out anew who is there, or note that nobody can be asked."""
        if link.up:
            now = time.monotonic()
            self._settling.begin(now)
            self._roster.reconnected(Instant.now())
            self._marker = new_id().encode()
            self._connection.publish(self._marker_topic, self._marker)
            if self._greeting is not None:
                self._pending.close(self._greeting, taken=True)
            self._greeting = self._asker.tell(self._asker.request(Ping), None)
            self._runs.may_have_missed(None)
        else:
            self._settling.interrupt()
            self.settled.clear()
        self.consumers.link(up=link.up)
        if self._was_connected or not link.up:
            for waiting in self._pending.all_open():
                waiting.ask_all_again()
        self._was_connected = True

    def on_marker(self, payload: bytes) -> None:
        """Note that everything retained was heard."""
        if payload == self._marker:
            self._settling.marker_back()

    def on_reply(self, reply: Reply) -> None:
        """Give a reply to who waits for it, or keep it."""
        verdict, waiting = self._pending.match(reply)
        match verdict:
            case _ if waiting is None and isinstance(reply, MonitorReply | SamplesReply | JobsReply):
                # Nobody takes up these later: what is missing is asked for anew.
                self._tally.count("late answers about metrics and jobs", quiet=True)
            case Verdict.MATCHED if waiting is not None and waiting.kept:
                self._replies.watch(waiting)
            case Verdict.LATE | Verdict.UNKNOWN if waiting is None or waiting.kept:
                self._tally.count(f"{verdict.value} replies", quiet=True)
                if isinstance(reply, Error):
                    self._tally.count("errors from nodes", f"{reply.node_id}: {reply.code.value}: {reply.reason}")
                self._replies.keep(reply)
            case Verdict.REPEATED:
                self._tally.count("repeated replies", quiet=True)
            case Verdict.STALE:
                self._tally.count(
                    "replies of a wrong session, sequence or kind", f"{type(reply).__name__} of {reply.node_id}"
                )
        self._heard(NodeId(reply.node_id), revives=True)

    def on_decision(self, decision: PlanDecision) -> None:
        """Keep a decision and tell who wants to know."""
        self._decisions.arrived(decision)
        self._heard(NodeId(decision.node_id), revives=True)

    def on_job_outcome(self, outcome: JobOutcome) -> None:
        """Keep how a job ended and tell who wants to know."""
        self._job_outcomes.arrived(outcome, taken=self._runs.outcome(outcome))
        self._heard(NodeId(outcome.node_id), revives=True)

    def on_unreadable_reply(self, node_id: NodeId, request_id: str, error: InvalidMessageError) -> None:
        """Let a caller know that a reply of this node could not be read."""
        waiting = self._pending.expects(node_id, request_id)
        if waiting is not None:
            code = ErrorCode.VERSION if error.code == ErrorCode.VERSION.value else ErrorCode.FAILED
            waiting.unreadable(node_id, code, error.reason)

    def on_presence(self, presence: Presence, *, retained: bool) -> None:
        """Note how a node says it is."""
        change = self._roster.presence(presence, retained=retained, now=Instant.now())
        if change is not None:
            self._changed(change)

    def on_cleared(self, node_id: NodeId) -> None:
        """Take out a node whose retained presence was deleted."""
        self._roster.cleared(node_id)
        waiting = self._clearing.get(node_id)
        if waiting is not None:
            waiting.set()

    def on_telemetry(self, telemetry: SampleBatch | AddScalar, *, size_bytes: int) -> None:
        """Hand samples to who watches."""
        self._heard(NodeId(telemetry.node_id), revives=False)
        batch = telemetry if isinstance(telemetry, SampleBatch) else self._dialect.samples_of(telemetry)
        columns = telemetry.m if isinstance(telemetry, SampleBatch) else telemetry.metric
        samples = len(telemetry.t) if isinstance(telemetry, SampleBatch) else 1
        weight = memory_bytes(samples=samples, columns=columns, payload_bytes=size_bytes)
        if batch is not None:
            self.consumers.heard(batch, weight)
        if isinstance(telemetry, AddScalar):
            self._runs.heard(telemetry)
        for subscription in self._subscriptions["telemetry"]:
            self._dispatcher.call(subscription, (telemetry,), urgent=False, size_bytes=weight)

    def on_log(self, record: LogRecord) -> None:
        """Hand a log record to who listens."""
        self._heard(NodeId(record.node_id), revives=False)
        self._logs.take(record)

    def on_tick(self) -> float | None:
        """Do what time asks for."""
        now = time.monotonic()
        if self._settling.check(now):
            self.settled.set()
            for waiting in self._pending.all_open():
                waiting.wake()
        self.consumers.tick(now)
        self._runs.tick(now)
        if now >= self._stale_at:
            self._stale_at = now + LOOK_FOR_STALE_EVERY_S
            for node in self._roster.newly_stale(Instant.now()):
                self.tell("presence", node)
        dues = [self._stale_at, self._settling.due_at(), self.consumers.due_at(), self._runs.due_at()]
        return max(0.0, min(due for due in dues if due is not None) - now)

    # --- what follows ------------------------------------------------------------------------------------------------

    def clearing(self, node_id: NodeId) -> threading.Event:
        """Return what is set when the retained presence of a node is gone."""
        return self._clearing.setdefault(node_id, threading.Event())

    def cleared(self, node_id: NodeId) -> None:
        """End what `clearing` began."""
        self._clearing.pop(node_id, None)

    def _heard(self, node_id: NodeId, *, revives: bool) -> None:
        self.consumers.node_heard(node_id)
        change = self._roster.heard(node_id, now=Instant.now(), revives=revives)
        if change is not None:
            self._changed(change)

    def _changed(self, change: Change) -> None:
        if change.first_heard and not only_tells(change.node.node_id, change.node.capabilities):
            self._settling.heard_new(time.monotonic())
        offline = change.node.state is NodeState.OFFLINE
        for waiting in self._pending.all_open():
            waiting.node_changed(change.node.node_id, offline=offline, came_up=change.came_up)
        if change.came_up:
            self.consumers.node_came_up(change.node.node_id)
            self._runs.may_have_missed(change.node.node_id)
        self.tell("presence", change.node)
