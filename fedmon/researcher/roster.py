"""The nodes of a federation: their presence, when they were last heard, and whether all of them are known."""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Collection, Mapping
from datetime import datetime

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.ids import JOB_PREFIX, NodeId
from fedmon.common.wire.messages import CONNECTION_LOST, ONLY_TELLS, OTHER_WIRE, Presence

NEVER_HEARD = "never heard of; check the id, or whether the node was started"

logger = logging.getLogger(__name__)

PRESENCE_EVERY_S = 30.0
STALE_AFTER_S = 3 * PRESENCE_EVERY_S
CONFIRMED_WITHIN_S = 5.0
"""Time for a node to come back with the broker; other nodes are not waited for."""
OFFLINE_HOLDS_S = 1.0
"""The offline presence of a sender may overtake its reply; a reply later than this was sent after it."""
DOUBLES_BEFORE_ID_IN_USE = 2
QUIET_S = 0.3
CAP_S = 2.0


class NodeState(enum.Enum):
    """The believed state of a node; a stale one is said to be online, but silent for three intervals."""

    ONLINE = "online"
    DRAINING = "draining"
    STALE = "stale"
    OFFLINE = "offline"


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One moment on both clocks: durations from ``mono``, timestamps from ``utc``."""

    mono: float
    utc: datetime

    @classmethod
    def now(cls) -> Moment:
        """Read both clocks."""
        return cls(mono=time.monotonic(), utc=utc_now())


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One node as the researcher knows it.

    ``since`` is when its state began: by the node's clock where it told us, else by ours; None for a node that vanished
    before we came. ``last_seen`` is the last sign of life by our clock, None when there was none since we connected.
    """

    node_id: NodeId
    state: NodeState
    since: datetime | None
    last_seen: datetime | None
    reason: str = ""
    boot: int = 0
    agent_version: str = ""
    capabilities: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    id_in_use: bool = False

    @property
    def is_online(self) -> bool:
        """Whether it will answer, as far as we know."""
        return self.state in (NodeState.ONLINE, NodeState.DRAINING)


def only_tells(node_id: str, capabilities: Collection[str]) -> bool:
    """Tell whether a party answers ping and monitor alone.

    A name that begins with ``job-`` is always a batch job's: brokers let jobs choose the rest of it.
    """
    return node_id.startswith(JOB_PREFIX) or ONLY_TELLS in capabilities


class RosterChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change that one message made: the node as it is now, and whether it is new to us or came up again."""

    node: Node
    first_heard: bool = False
    came_up: bool = False


class _Entry:
    def __init__(self, node_id: NodeId, now: Moment, *, stale_after_s: float) -> None:
        self._stale_after_s = stale_after_s
        self.node_id = node_id
        self.state = NodeState.ONLINE
        self.since: datetime | None = None
        self.known_at = now.mono
        self.unconfirmed_since: float | None = None
        self.told_at = float("-inf")
        self.last_seen: Moment | None = None
        self.reason = self.agent_version = ""
        self.boot = -1
        self.capabilities: tuple[str, ...] = ()
        self.streams: tuple[str, ...] = ()
        self.silent = self.said_stale = self.has_left = False
        self.doubles = 0
        self.doubled_at = float("-inf")

    @property
    def is_askable(self) -> bool:
        return not only_tells(self.node_id, self.capabilities) and OTHER_WIRE not in self.capabilities

    def unheard_s(self, now: Moment) -> float:
        return now.mono - max(self.known_at, self.last_seen.mono if self.last_seen else 0.0)

    def is_stale(self, now: Moment) -> bool:
        return self.state is not NodeState.OFFLINE and (
            self.silent or self.unheard_s(now) > self._stale_after_s or self.is_unconfirmed(now)
        )

    def is_unconfirmed(self, now: Moment) -> bool:
        return self.unconfirmed_since is not None and now.mono - self.unconfirmed_since > CONFIRMED_WITHIN_S

    def alive(self, now: Moment) -> None:
        self.last_seen, self.unconfirmed_since = now, None
        self.silent = self.said_stale = False

    def view(self, now: Moment) -> Node:
        state, reason = self.state, self.reason
        if self.is_stale(now):
            state = NodeState.STALE
            if self.last_seen is None:
                reason = "said to be online, but not heard since we connected"
            elif self.is_unconfirmed(now):
                reason = "not heard of since the reconnect"
            elif self.silent:
                reason = "did not answer the last request"
            else:
                reason = f"unheard for {self.unheard_s(now):.0f} s"
        return Node(
            node_id=self.node_id,
            state=state,
            since=self.since,
            last_seen=self.last_seen.utc if self.last_seen else None,
            reason=reason,
            boot=max(0, self.boot),
            agent_version=self.agent_version,
            capabilities=self.capabilities,
            streams=self.streams,
            id_in_use=self.doubles >= DOUBLES_BEFORE_ID_IN_USE and now.mono - self.doubled_at < STALE_AFTER_S,
        )


class Settling:
    """Decides from times alone whether the roster is settled; belongs to one thread, but for ``settled``.

    After connecting, retained presence arrives before the marker that we publish to ourselves; nodes without a retained
    presence answer the first ping. The roster is settled when ``marker_is_back`` and no new node was heard for 300 ms,
    the last at ``news_at``, or 2 s have passed.
    """

    def __init__(self) -> None:
        self._begun_at: float | None = None
        self.news_at = 0.0
        self.marker_is_back = False
        self.settled = threading.Event()

    def begin(self, now: float) -> None:
        """Start over: we are connected, and the marker and the first ping are on their way."""
        self._begun_at = self.news_at = now
        self.marker_is_back = False
        self.settled.clear()

    def interrupt(self) -> None:
        """Note that the connection is lost, and with it the settled state."""
        self._begun_at = None
        self.settled.clear()

    def check(self, now: float) -> bool:
        """Return True once, at the moment when the roster becomes settled."""
        due_at = self.due_at()
        if due_at is None or now < due_at:
            return False
        self.settled.set()
        return True

    def due_at(self) -> float | None:
        """Return when `check` is to be called next, on the monotonic clock; None when there is nothing to wait for."""
        if self._begun_at is None or self.settled.is_set():
            return None
        cap_at = self._begun_at + CAP_S
        return min(cap_at, self.news_at + QUIET_S) if self.marker_is_back else cap_at


class Roster:
    """The nodes of a federation as this process believes them. Safe from any thread.

    A retained presence is a belief, a live message is a sign of life. A presence of an older boot never overrides a
    newer one, unless the newer left in order or told nothing for three intervals (a node whose folder was set back). If
    nodes are not ``announced`` by their presence, silence counts only after an unanswered request. Nodes beyond
    ``max_nodes`` are not kept track of: they are counted, and the first is logged. ``settled`` is set while the roster
    holds every online node.
    """

    def __init__(self, *, announced: bool = True, max_nodes: int = 10_000) -> None:
        self._announced, self.max_nodes = announced, max_nodes
        self._stale_after_s = STALE_AFTER_S if announced else float("inf")
        self.settling = Settling()
        self.settled = self.settling.settled
        self._lock = threading.Lock()
        self._entries: dict[NodeId, _Entry] = {}
        self._beyond: set[NodeId] = set()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def beyond(self) -> int:
        """Number of nodes beyond ``max_nodes``; counted up to ``max_nodes`` more."""
        return len(self._beyond)

    def presence(self, presence: Presence, *, retained: bool, now: Moment) -> RosterChange | None:
        """Take the presence of a node; return the change that it made, or None."""
        node_id = NodeId(presence.node_id)
        with self._lock:
            first_heard = node_id not in self._entries
            entry = self._entries.get(node_id) or self._made(node_id, now)
            if entry is None:
                return None
            if presence.boot < entry.boot and not self._boot_was_set_back(entry, presence, now, retained=retained):
                return None
            before = entry.view(now)
            is_up = not retained and presence.state != "offline"
            # A party that only tells comes up anew within one connection, so that its last will stays valid.
            is_newer = presence.boot != entry.boot or (presence.state == "online" and presence.since != entry.since)
            came_up = is_up and (is_newer or before.state is NodeState.OFFLINE)
            self._take(entry, presence, now, retained=retained)
            after = entry.view(now)
            same = (before.state, before.boot, before.reason) == (after.state, after.boot, after.reason)
            if same and not first_heard and not came_up:
                return None
            return RosterChange(node=after, first_heard=first_heard, came_up=came_up)

    def _made(self, node_id: NodeId, now: Moment) -> _Entry | None:
        """Return the entry of a new node, or None when there are ``max_nodes``."""
        if len(self._entries) < self.max_nodes:
            self._beyond.discard(node_id)
            entry = self._entries[node_id] = _Entry(node_id, now, stale_after_s=self._stale_after_s)
            return entry
        if not self._beyond:
            logger.warning(
                "more than %d nodes: %s and further ones are counted, and not kept track of; raise max_nodes in "
                "[researcher]",
                self.max_nodes, node_id,
            )  # fmt: skip
        if len(self._beyond) < self.max_nodes:
            self._beyond.add(node_id)
        return None

    def _boot_was_set_back(self, entry: _Entry, presence: Presence, now: Moment, *, retained: bool) -> bool:
        if retained or presence.state == "offline":
            return False
        if entry.has_left or now.mono - entry.told_at > STALE_AFTER_S:
            entry.doubles = 0
            return True
        # Only a second process under the same id can say "online" with an older boot while the newer one lives.
        entry.doubles += 1
        entry.doubled_at = now.mono
        return False

    def _take(self, entry: _Entry, presence: Presence, now: Moment, *, retained: bool) -> None:
        state = NodeState(presence.state)
        if state is not entry.state or presence.boot != entry.boot or state is NodeState.ONLINE:
            entry.since = presence.since
            if state is NodeState.OFFLINE and presence.reason == CONNECTION_LOST:
                entry.since = None if retained else now.utc
        entry.state, entry.boot, entry.reason = state, presence.boot, presence.reason
        entry.told_at, entry.unconfirmed_since = now.mono, None
        # One whose connection was lost may have lost it to a second process under the same id.
        entry.has_left = state is NodeState.OFFLINE and presence.reason != CONNECTION_LOST
        entry.agent_version = presence.agent_version
        entry.capabilities, entry.streams = tuple(presence.capabilities), tuple(presence.streams)
        if not retained and state is not NodeState.OFFLINE:
            entry.alive(now)

    def heard(self, node_id: NodeId, *, now: Moment, revives: bool) -> RosterChange | None:
        """Take a live message as a sign of life; ``revives`` when it was certainly sent after the last presence.

        Returns the change: a node unknown so far, or one that was taken for offline or stale.
        """
        with self._lock:
            entry = self._entries.get(node_id)
            if entry is None:
                entry = self._made(node_id, now) if revives else None
                if entry is None:
                    return None
                entry.since, entry.last_seen = now.utc, now
                return RosterChange(node=entry.view(now), first_heard=True)
            if entry.state is NodeState.OFFLINE:
                if not revives or now.mono - entry.told_at < OFFLINE_HOLDS_S:
                    return None
                entry.state, entry.reason, entry.since = NodeState.ONLINE, "", now.utc
                entry.alive(now)
                return RosterChange(node=entry.view(now))
            was_stale = entry.said_stale or entry.silent
            entry.alive(now)
            return RosterChange(node=entry.view(now)) if was_stale else None

    def silent(self, node_id: NodeId) -> None:
        """Note that a node let a request pass unanswered; one that was heard live has its three intervals."""
        with self._lock:
            entry = self._entries.get(node_id)
            if entry is not None and (entry.last_seen is None or not self._announced):
                entry.silent = True

    def newly_stale(self, now: Moment) -> list[Node]:
        """Return the nodes that became stale since the last call."""
        with self._lock:
            found = [entry for entry in self._entries.values() if not entry.said_stale and entry.is_stale(now)]
            for entry in found:
                entry.said_stale = True
            return [entry.view(now) for entry in found]

    def reconnected(self, now: Moment) -> None:
        """Count silence from now on: while we were away, no node could be heard."""
        with self._lock:
            for entry in self._entries.values():
                entry.known_at = entry.unconfirmed_since = now.mono

    def expected(self, now: Moment) -> set[NodeId]:
        """Return the nodes that will answer, as far as we know."""
        with self._lock:
            return {
                node_id
                for node_id, entry in self._entries.items()
                if entry.is_askable and entry.state is not NodeState.OFFLINE and not entry.is_stale(now)
            }

    def askable(self) -> set[NodeId]:
        """Return the nodes that serve more than ping and monitor, those that seem to be gone included."""
        with self._lock:
            return {node_id for node_id, entry in self._entries.items() if entry.is_askable}

    def get(self, node_id: str, now: Moment) -> Node | None:
        """Return one node as it is now, or None."""
        with self._lock:
            entry = self._entries.get(NodeId(node_id))
            return entry.view(now) if entry else None

    def nodes(self, now: Moment) -> Mapping[NodeId, Node]:
        """Return all known nodes, sorted by id."""
        with self._lock:
            return {node_id: self._entries[node_id].view(now) for node_id in sorted(self._entries)}

    def cleared(self, node_id: NodeId, now: Moment) -> None:
        """Take a node out whose retained presence was deleted at the broker, unless it is heard."""
        with self._lock:
            self._beyond.discard(node_id)
            entry = self._entries.get(node_id)
            if entry is not None and (entry.last_seen is None or not entry.view(now).is_online):
                del self._entries[node_id]
