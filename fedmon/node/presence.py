"""The retained presence of a node or of a party that only tells: its boot, its state, and its last will."""

from __future__ import annotations

import collections
import datetime
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from fedmon.common import __version__
from fedmon.common.clock import utc_now
from fedmon.common.errors import InvalidMessageError, StorageError
from fedmon.common.wire import codec, topics
from fedmon.common.wire.connection import Will
from fedmon.common.wire.messages import CONNECTION_LOST, Presence
from fedmon.node.requests.quotas import Throttle

logger = logging.getLogger(__name__)

REFRESH_S = 30.0
DUPLICATE_HOLDS_S = 150.0
"""Two processes that take the connection from each other are each gone for 60 s, and then there for as long."""
REMEMBERED = 100
SHOWN_WITHIN_S = 5.0


class PresenceKeeper:
    """Raises the boot before each connection and keeps the retained presence true.

    ``boot`` is that of the last connection, ``store(boot)`` has a new one outlive us, and ``publish(topic, payload)``
    hands over to the connection. `will` is called on the connection's thread, everything else on the router's.
    """

    def __init__(
        self,
        *,
        node_id: str,
        boot: int,
        store: Callable[[int], object] = lambda _boot: None,
        capabilities: Callable[[], list[str]],
        streams: Callable[[], list[str]],
        publish: Callable[[str, bytes], bool],
    ) -> None:
        self._node_id, self.boot, self._store = node_id, boot, store
        self._capabilities, self._streams, self._publish = capabilities, streams, publish
        self.is_held = False
        """Whether the broker showed our present state last."""
        self._announced_at = 0.0
        self._first_boot, self._started = self.boot + 1, utc_now()
        self._announced = collections.deque[tuple[int, datetime.datetime]](maxlen=REMEMBERED)
        self._inherited: Presence | None = None
        self._duplicate: tuple[int, datetime.datetime, float] | None = None
        self._state: Presence | None = None
        self._corrections = Throttle(burst=3, per_s=1.0)

    def raise_boot(self) -> None:
        """Raise the boot, on disk first. Raises StorageError."""
        self._store(self.boot + 1)
        self.boot += 1

    def will(self) -> Will:
        """Raise the boot for a new connection; return the presence that the broker publishes if the connection breaks.

        On a full disk the boot is raised in memory only: a node that is measuring must be able to come back.
        """
        try:
            self.raise_boot()
        except StorageError as error:
            logger.warning("the boot of this connection is not on disk: %s", error)
            self.boot += 1
        # Of a will only the boot matters to readers; that all of ours have one time tells them from those of others.
        return self._as_will(msgspec.structs.replace(self._presence("offline", CONNECTION_LOST), since=self._started))

    def announce(self, state: str = "online", reason: str = "") -> None:
        """Publish a newer presence, under the present boot; readers take a party that only tells for restarted."""
        self._state, self.is_held, self._announced_at = self._presence(state, reason), False, time.monotonic()
        self.refresh()

    def refresh(self) -> None:
        """Publish the present state once more, as a sign of life."""
        if self._state is not None:
            self._state = msgspec.structs.replace(
                self._state, capabilities=self._capabilities(), streams=self._streams()
            )
            self._publish(topics.status(self._node_id), codec.encode(self._state))

    def farewell(self, reason: str) -> Will:
        """Return the last presence of an orderly stop."""
        self._state = None
        return self._as_will(self._presence("offline", reason))

    @property
    def is_unheard(self) -> bool:
        """Whether the broker has not shown our state since it was announced, some time ago; safe from any thread."""
        return not self.is_held and time.monotonic() - self._announced_at >= SHOWN_WITHIN_S

    @property
    def duplicate(self) -> dict[str, Any] | None:
        """Boot and last sight of another process that uses our id, while that is seen; safe from any thread."""
        if self._duplicate is None or time.monotonic() - self._duplicate[2] >= DUPLICATE_HOLDS_S:
            return None
        return {"boot": self._duplicate[0], "seen": self._duplicate[1].isoformat(timespec="seconds")}

    def correct(self, payload: bytes, *, retained: bool) -> None:
        """Publish our present state again if our own status topic shows another one."""
        try:
            seen: Presence | None = codec.decode_presence(payload)
        except InvalidMessageError:
            seen = None
        if seen is not None and self._is_foreign(seen, retained=retained):
            self._note_duplicate(seen.boot)
        self.is_held = seen == self._state
        if self._state is not None and not self.is_held and self._corrections.allows("own"):
            self.refresh()

    def _is_foreign(self, seen: Presence, *, retained: bool) -> bool:
        """Tell whether a presence comes from another process that runs beside this one."""
        if seen.since == self._started or (seen.boot, seen.since) in self._announced:
            return False
        if retained:
            # The first may be left from an earlier process of this folder, also if the folder was set back since.
            self._inherited = self._inherited or seen
            return seen != self._inherited and seen.boot >= self._first_boot
        return seen.boot >= self._first_boot or seen.state != "offline"

    def _note_duplicate(self, boot: int) -> None:
        if self.duplicate is None:
            logger.warning(
                "another process uses the id %r: boot %d is on its status topic, and ours is %d; stop it, or give it "
                "another id", self._node_id, boot, self.boot,
            )  # fmt: skip
        self._duplicate = boot, utc_now(), time.monotonic()

    def _presence(self, state: str, reason: str) -> Presence:
        presence = Presence(
            node_id=self._node_id,
            boot=self.boot,
            state=state,  # type: ignore[arg-type]  # one of the three words
            since=utc_now(),
            reason=reason,
            agent_version=__version__,
            capabilities=self._capabilities(),
            streams=self._streams(),
        )
        self._announced.append((presence.boot, presence.since))
        return presence

    def _as_will(self, presence: Presence) -> Will:
        return Will(topic=topics.status(self._node_id), payload=codec.encode(presence))
