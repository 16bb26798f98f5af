"""One connected researcher process: its parts from start to stop, and the handling of each message that arrives."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.clock import seconds_from_now, utc_now
from fedmon.common.errors import ConflictError, FolderInUseError, InvalidMessageError, NotFoundError
from fedmon.common.ids import MAIN_INSTANCE, InstanceId, NodeId, kept_client_id, made_at, new_id
from fedmon.common.metrics.sample import Batch
from fedmon.common.settings.values import ResearcherSettings
from fedmon.common.wire import topics
from fedmon.common.wire.codec import decode_log, decode_presence, decode_reply, decode_telemetry, recover_envelope
from fedmon.common.wire.connection import Will
from fedmon.common.wire.dialect import fedbiomed_dialect
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Error, ErrorCode, LogRecord, Ping, PlanDecision
from fedmon.common.wire.runs import JobOutcome, RunScalars
from fedmon.common.wire.samples import AddScalar
from fedmon.common.wire.topics import Address, Channel
from fedmon.researcher.asking.match import Pending, ReplyMatch
from fedmon.researcher.asking.outcome import Circumstances
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.replies.announcements import Announcements
from fedmon.researcher.replies.queue import Replies
from fedmon.researcher.roster import Moment, NodeState, Roster, RosterChange, only_tells
from fedmon.researcher.runs.handle import RunBook
from fedmon.researcher.samples.consumers import Consumers, union
from fedmon.researcher.samples.logs import Logs
from fedmon.researcher.session.callbacks import Dispatcher, Subscription
from fedmon.researcher.session.connection import Connection, Dialect
from fedmon.researcher.session.inbox import Inbox, Tally, memory_bytes

if TYPE_CHECKING:
    from fedmon.common.store.queue import TasksQueue

logger = logging.getLogger(__name__)

LOOK_FOR_STALE_EVERY_S = 5.0
ANNOUNCES_WITHIN_S = 1.0
"""How long a node whose presence was cleared may take to announce itself again; an admin may not ping it."""
EVENTS = ("presence", "telemetry")
QUEUES_FOLDER = "replies"
_DECODERS: dict[Channel, Callable[[bytes], Any]] = {
    Channel.REPLY: decode_reply,
    Channel.METRICS: decode_telemetry,
    Channel.LOG: decode_log,
}


class FederationStatus(Circumstances, frozen=True, kw_only=True):
    """The state of a researcher's process; ``counters`` counts dropped, refused and odd messages by kind."""

    nodes: int
    kept_replies: int
    backlog: int
    counters: dict[str, int]


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """The result of forgetting a node: the broker no longer retains its presence for anyone."""

    node_id: NodeId
    cleared: bool
    text: str

    def __str__(self) -> str:
        return self.text


class Session:
    """Makes, starts and stops the parts of one `Federation`, and gives them the messages, on the inbox's thread.

    `on`, `forget` and `status` are safe from any thread.
    """

    def __init__(self, settings: ResearcherSettings, *, instance: str | None, timeout_s: float) -> None:
        self.researcher_id, self._begun = settings.id, utc_now()
        self.instance, queue = claim_instance(settings.folder, settings.id, wanted=instance)
        self.tally = Tally()
        is_fedbiomed = settings.wire == "fedbiomed4"
        # On the wire of Fed-BioMed another process of this researcher hears the same replies: it has other numbers.
        self.pending = Pending(new_id(), first_sequence=secrets.randbelow(2**31) if is_fedbiomed else 0)
        self.dialect: Dialect = (
            fedbiomed_dialect("researcher")(
                researcher_id=self.researcher_id, instance=self.instance, pending=self.pending, tally=self.tally
            )
            if is_fedbiomed
            else Dialect(researcher_id=self.researcher_id, instance=self.instance)
        )
        self.roster = Roster(announced=self.dialect.announced, max_nodes=settings.max_nodes)
        self._is_strict = settings.identity_is_strict
        self.inbox = Inbox(on_message=self._message, on_tick=self._tick)
        self.dispatcher = Dispatcher(self.tally)
        self.replies = Replies(queue, tally=self.tally)
        self.connection = Connection(
            settings.broker,
            client_id=kept_client_id(settings.folder, f"{self.researcher_id}-{self.instance}"),
            subscriptions=self.dialect.subscriptions(),
            timeout_s=timeout_s,
            on_message=self.inbox.put,
            on_link=lambda host: self.inbox.post(lambda: self._link(up=host is not None)),
            keeps_session=self.instance == MAIN_INSTANCE,
        )
        self.asker = Asker(
            self.connection,
            dialect=self.dialect,
            pending=self.pending,
            roster=self.roster,
            timeout_s=timeout_s,
            keep=self.replies.keep,
        )
        self.decisions = Announcements(PlanDecision, self.asker, self.replies, self.dispatcher)
        self.job_outcomes = Announcements(JobOutcome, self.asker, self.replies, self.dispatcher)
        self.runs = RunBook(
            self.asker, self.dispatcher, self.tally, repository=settings.repository, wake=self.inbox.wake
        )
        self.consumers = Consumers(self.asker, subscribe=self._subscribe, wake=self.inbox.wake, drain=self.inbox.drain)
        self.logs = Logs(self.dispatcher, on_changed=self._subscribe)
        self._marker_topic = topics.reply(self.researcher_id, self.instance, self.researcher_id)
        self._marker = b""
        self._was_connected = False
        self._stale_at = 0.0
        self._lock = threading.Lock()
        self._subscriptions: dict[str, list[Subscription]] = {event: [] for event in EVENTS}
        self._clearing: dict[NodeId | None, tuple[threading.Event, threading.Event]] = {}

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and begin; on failure nothing is left running."""
        self.replies.start()
        self.inbox.start()
        try:
            self.connection.open()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End in order: consumers, callers that wait, the inbox, the connection, and the writing of replies."""
        for consumer in self.consumers.all:
            consumer.close()
        self.pending.stop()
        self.replies.release()
        for event in (self.roster.settled, *(event for both in list(self._clearing.values()) for event in both)):
            event.set()
        for stream in list(self.logs.streams):
            stream.remove()
        self.runs.close()
        self.inbox.stop()
        self.connection.stop(farewell=self._farewell())
        self.dispatcher.stop()
        self.replies.stop()

    def _farewell(self) -> Will | None:
        """Give the leases back, after the thread of the inbox has ended; return the last message to send.

        It goes to ourselves, and the broker's word that it has it means that it has everything before it too: a socket
        that is closed with unread bytes makes the broker forget messages that it has not read yet.
        """
        if not self.connection.is_connected:
            return None
        self.consumers.farewell(time.monotonic())
        return Will(topic=self._marker_topic, payload=b"end", retain=False)

    def status(self) -> FederationStatus:
        """Return the state of this process."""
        urgent, bulk = self.inbox.dropped
        dropped = {
            "messages dropped: replies and presence": urgent,
            "messages dropped: samples and logs": bulk,
            "nodes beyond max_nodes": self.roster.beyond,
        }
        return FederationStatus(
            nodes=len(self.roster),
            kept_replies=len(self.replies),
            backlog=self.inbox.backlog,
            counters=self.tally.as_dict() | {kind: number for kind, number in dropped.items() if number},
            **msgspec.structs.asdict(self.asker.circumstances()),
        )

    def forget(self, node_id: NodeId, *, timeout_s: float) -> Forgotten:
        """Have the broker clear the retained presence of a node.

        A node that runs announces itself again. Raises NotFoundError for an id never heard of, and ConflictError for a
        node that is alive, or that the broker does not let us clear.
        """
        self.asker.wait_settled()
        node = self.roster.get(node_id, Moment.now())
        if node is None:
            raise NotFoundError(f"node {node_id!r} was never heard of; `fedmon nodes` lists the known ones")
        is_online = ConflictError(f"node {node_id!r} is online; only a node that is gone can be forgotten")
        if node.last_seen is not None and node.is_online:
            raise is_online
        cleared, announced = self._clearing.setdefault(node_id, (threading.Event(), threading.Event()))
        try:
            if not self.connection.publish(topics.status(node_id), b"", qos=1, retain=True):
                raise self.connection.lost_error()
            if cleared.wait(timeout_s) and node.state is not NodeState.OFFLINE:
                announced.wait(ANNOUNCES_WITHIN_S)
        finally:
            self._clearing.pop(node_id, None)
        self.asker.check_open()
        if announced.is_set():
            raise is_online
        if not cleared.is_set():
            raise ConflictError(
                f"the broker did not let {self.researcher_id} clear the retained messages of {node_id!r} within "
                f"{timeout_s:g} s: ask its operator"
            )
        return Forgotten(node_id=node_id, cleared=True, text=f"{node_id}: cleared at the broker, for all parties")

    # --- listeners ---------------------------------------------------------------------------------------------------

    def on(self, event: str, callback: Callable[[Any], object]) -> Subscription:
        """Call back at each event of a kind, until the subscription is removed."""

        def removed(subscription: Subscription) -> None:
            self._subscriptions[event].remove(subscription)
            self._subscribe()

        subscription = Subscription(callback, removed)
        self._subscriptions[event].append(subscription)
        self._subscribe()
        return subscription

    def _tell(self, event: str, value: object) -> None:
        for subscription in list(self._subscriptions[event]):
            self.dispatcher.call(subscription, (value,), urgent=True)

    def _subscribe(self) -> None:
        """Subscribe to the metrics and logs that listeners want, and to no others."""
        with self._lock:
            metrics = [consumer.wish.nodes for consumer in self.consumers.all]
            if self._subscriptions["telemetry"]:
                metrics.append(None)
            logs = [stream.nodes for stream in list(self.logs.streams)]
            names = set[str]()
            for wanted, of in ((metrics, self.dialect.metrics_filters), (logs, self.dialect.logs_filters)):
                nodes = union(wanted)
                names |= of(None) if nodes is None else {name for node in nodes for name in of(node)}
            self.connection.want(names)

    # --- messages, on the inbox's thread -----------------------------------------------------------------------------

    def _message(self, topic: str, payload: bytes, retained: bool) -> None:  # noqa: FBT001 - as `Inbox` hands it over
        address = topics.parse(topic)
        try:
            self._read(topic, address, payload, retained=retained)
        except InvalidMessageError as error:
            self.tally.count(f"unreadable messages ({address.channel.value})", f"{topic}: {error.reason}")
            if address.channel is Channel.REPLY and address.node_id is not None:
                self._unreadable(address.node_id, recover_envelope(payload).get("id"), error)

    def _read(self, topic: str, address: Address, payload: bytes, *, retained: bool) -> None:
        """Read a message, and hand it on if its sender is as its topic says. Raises InvalidMessageError."""
        channel, size_bytes = address.channel, len(payload)
        is_foreign = self.dialect.hears(topic)
        if retained and (is_foreign or channel in (Channel.REPLY, Channel.METRICS, Channel.LOG)):
            # Only presence is ever retained; anything else is a trap for later subscribers.
            name = "" if is_foreign else f" ({channel.value})"
            self.tally.count(f"retained messages refused{name}", topic)
        elif is_foreign:
            for message in self.dialect.read(topic, payload):
                self._take(message, size_bytes)
        elif channel is Channel.STATUS:
            self._status(address, payload, retained=retained)
        elif topic == self._marker_topic:
            if payload == self._marker:
                self.roster.settling.marker_is_back = True
        elif channel in _DECODERS:
            telling = _DECODERS[channel](payload)
            if self._is_from(address, telling):
                self._take(telling, size_bytes)
        else:
            self.tally.count("messages on a foreign topic", topic)

    def _is_from(self, address: Address, message: Any) -> bool:
        """Tell whether a message is from the sender in its topic, and for us; if not it is counted."""
        if address.node_id is None and self._is_strict:
            self.tally.count("messages without a sender in their topic", message.node_id)
        elif address.node_id not in (None, message.node_id):
            self.tally.count("messages naming another sender", f"{address.node_id} says to be {message.node_id}")
        elif address.channel is Channel.REPLY and message.researcher_id != self.researcher_id:
            self.tally.count("replies for another researcher", f"from {address.node_id}")
        else:
            return True
        return False

    def _status(self, address: Address, payload: bytes, *, retained: bool) -> None:
        """Take the presence of a node, or that it was cleared at the broker."""
        cleared, announced = self._clearing.get(address.node_id, (None, None))
        if address.node_id is not None and not payload:
            self.roster.cleared(address.node_id, Moment.now())
            if cleared is not None:
                cleared.set()
            return
        presence = decode_presence(payload)
        if self._is_from(address, presence):
            if announced is not None and not retained and presence.state != "offline":
                announced.set()
            change = self.roster.presence(presence, retained=retained, now=Moment.now())
            if change is not None:
                self._changed(change)

    def _take(self, message: Any, size_bytes: int) -> None:
        match message:
            case Batch() | AddScalar():
                self._telemetry(message, size_bytes)
            case Reply():
                self._reply(message)
            case RunScalars():
                told = list(message.telemetry())
                for one in told:
                    self._telemetry(one, size_bytes // len(told))
            case LogRecord():
                self._heard(NodeId(message.node_id), revives=False)
                self.logs.take(message)
            case PlanDecision():
                self.decisions.arrived(message)
                self._heard(NodeId(message.node_id), revives=True)
            case JobOutcome():
                self.job_outcomes.arrived(message, taken=self.runs.outcome(message))
                self._heard(NodeId(message.node_id), revives=True)

    def _link(self, *, up: bool) -> None:
        """Discover the online nodes again, or note that none can be asked."""
        self.inbox.wake()
        if up:
            self.roster.settling.begin(time.monotonic())
            self.roster.reconnected(Moment.now())
            self._marker = new_id().encode()
            self.connection.publish(self._marker_topic, self._marker)
            self.asker.tell(self.asker.request(Ping), None)
            self.runs.may_have_missed(None)
        else:
            self.roster.settling.interrupt()
        self.consumers.link(up=up)
        if self._was_connected or not up:
            for waiting in self.pending.all_open():
                waiting.wake(ask_all_again=True)
        self._was_connected = True

    def _reply(self, reply: Reply) -> None:
        """Give a reply to the request that it answers, or keep it."""
        verdict = self.pending.match(reply)
        match verdict:
            case ReplyMatch.FORGOTTEN:
                self.tally.count("late answers that no caller waits for", quiet=True)
            case ReplyMatch.LATE | ReplyMatch.UNKNOWN:
                self.tally.count(f"{verdict.value} replies", quiet=True)
                if self._is_of_use(reply):
                    if isinstance(reply, Error):
                        self.tally.count("errors from nodes", f"{reply.node_id}: {reply.code.value}: {reply.reason}")
                    self.replies.keep(reply)
            case ReplyMatch.REPEATED:
                self.tally.count("repeated replies", quiet=True)
            case ReplyMatch.STALE:
                self.tally.count(
                    "replies of a wrong session, sequence or kind", f"{type(reply).__name__} of {reply.node_id}"
                )
        self._heard(NodeId(reply.node_id), revives=True)

    def _is_of_use(self, reply: Reply) -> bool:
        """Tell whether a caller may want a reply later.

        No caller waits for batch jobs and reporters. A request that is younger than we are, and not ours, was sent by
        another machine with the same researcher id; one of the future tells that a clock was set back.
        """
        node, asked = self.roster.get(reply.node_id, Moment.now()), made_at(reply.id)
        is_younger = asked is not None and self._begun < asked < seconds_from_now(60.0)
        is_anothers = is_younger and reply.session != self.pending.session
        return not (is_anothers or only_tells(reply.node_id, node.capabilities if node else ()))

    def _unreadable(self, node_id: NodeId, request_id: object, error: InvalidMessageError) -> None:
        """Let a caller know that a reply of this node could not be read."""
        waiting = self.pending.find(lambda one: one.id == request_id and not one.closed and one.is_owed_by(node_id))
        if waiting is not None:
            code = ErrorCode.VERSION if error.code == ErrorCode.VERSION.value else ErrorCode.FAILED
            waiting.unreadable(node_id, code, error.reason)

    def _telemetry(self, telemetry: Batch | AddScalar, size_bytes: int) -> None:
        """Hand samples to consumers, runs and listeners."""
        self._heard(NodeId(telemetry.node_id), revives=False)
        if isinstance(telemetry, Batch):
            batch: Batch | None = telemetry
            weight = memory_bytes(samples=len(telemetry.t), columns=telemetry.columns, payload_bytes=size_bytes)
        else:
            batch = self.dialect.samples_of(telemetry)
            weight = memory_bytes(samples=1, columns=telemetry.metric, payload_bytes=size_bytes)
            self.runs.heard(telemetry)
        if batch is not None:
            self.consumers.heard(batch, weight)
        for subscription in list(self._subscriptions["telemetry"]):
            self.dispatcher.call(subscription, (telemetry,), urgent=False, size_bytes=weight)

    def _heard(self, node_id: NodeId, *, revives: bool) -> None:
        change = self.roster.heard(node_id, now=Moment.now(), revives=revives)
        if change is not None:
            self._changed(change)

    def _changed(self, change: RosterChange) -> None:
        node = change.node
        if change.first_heard and not only_tells(node.node_id, node.capabilities):
            self.roster.settling.news_at = time.monotonic()
        for waiting in self.pending.all_open():
            waiting.node_changed(node.node_id, offline=node.state is NodeState.OFFLINE, came_up=change.came_up)
        if change.came_up:
            self.consumers.node_changed(node.node_id, is_up=True)
            self.runs.may_have_missed(node.node_id)
        elif node.state is NodeState.OFFLINE:
            self.consumers.node_changed(node.node_id, is_up=False)
        self._tell("presence", node)

    def _tick(self) -> float:
        """Run the jobs that are due; return in how many seconds to be called again."""
        now = time.monotonic()
        if self.roster.settling.check(now):
            for waiting in self.pending.all_open():
                waiting.wake()
        if now >= self._stale_at:
            self._stale_at = now + LOOK_FOR_STALE_EVERY_S
            for node in self.roster.newly_stale(Moment.now()):
                self._tell("presence", node)
        dues = [self._stale_at, self.roster.settling.due_at(), self.runs.tick(now)]
        if self.consumers.all or self.consumers.wishes:
            dues.append(self.consumers.tick(now))
        return max(0.0, min(due for due in dues if due is not None) - now)


def claim_instance(folder: Path, researcher_id: str, *, wanted: str | None) -> tuple[InstanceId, TasksQueue | None]:
    """Return the instance that this process is, and the queue on disk if it is ``main``.

    Unless one is wanted it is ``main`` if no other process is, else a random name. Raises FolderInUseError when
    ``main`` is wanted and taken, StorageError when the folder cannot be used.
    """
    if wanted not in (None, MAIN_INSTANCE):
        return InstanceId(wanted), None
    # Only here: persist-queue brings asyncio, a sixth of what an import of us takes.
    from fedmon.common.store.queue import TasksQueue

    try:
        return MAIN_INSTANCE, TasksQueue(folder / QUEUES_FOLDER / researcher_id)
    except FolderInUseError:
        if wanted is not None:
            raise
        return InstanceId(secrets.token_hex(4)), None
