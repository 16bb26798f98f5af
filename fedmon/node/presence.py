"""A node's retained presence: which boot this is, what it says of itself, and its last will."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fedmon.common.clock import utc_now
from fedmon.common.errors import InvalidMessageError, StorageError
from fedmon.common.wire import codec, topics
from fedmon.common.wire.messages import CONNECTION_LOST, Presence
from fedmon.common.wire.transport import Will
from fedmon.node.boot import read_boot
from fedmon.node.folder import NodeFolder
from fedmon.node.throttle import Throttle

logger = logging.getLogger(__name__)

REFRESH_S = 30.0


class PresenceKeeper:
    """Raises the boot before each connection and keeps the retained presence true.

    ``publish(topic, payload, retain)`` hands over to the connection. `will` is called on the connection's thread,
    everything else on the router's.
    """

    def __init__(
        self,
        folder: NodeFolder,
        *,
        node_id: str,
        agent_version: str,
        capabilities: Callable[[], list[str]],
        streams: Callable[[], list[str]],
        publish: Callable[[str, bytes], bool],
    ) -> None:
        self._folder, self._node_id, self._version = folder, node_id, agent_version
        self._capabilities, self._streams, self._publish = capabilities, streams, publish
        self.boot = read_boot(folder.boot_file)
        self._state: Presence | None = None
        self._corrections = Throttle(burst=3, per_s=1.0)

    def raise_boot(self) -> int:
        """Raise the boot on disk and return it. Raises StorageError."""
        boot = self.boot + 1
        self._folder.write_private(self._folder.boot_file, f"{boot}\n".encode())
        self.boot = boot
        return boot

    def will(self) -> Will:
        """Raise the boot for a new connection, and return what the broker says of us when we vanish.

        On a full disk the boot is raised in memory only: a node that is measuring must be able to come back.
        """
        try:
            self.raise_boot()
        except StorageError as error:
            logger.warning("the boot of this connection is not on disk: %s", error)
            self.boot += 1
        return self._as_will(self._presence("offline", CONNECTION_LOST))

    def announce(self) -> None:
        """Say that we are online under the present boot."""
        self._state = self._presence("online", "")
        self.refresh()

    def refresh(self) -> None:
        """Say it once more, as a sign of life."""
        if self._state is not None:
            self._publish(topics.status(self._node_id), codec.encode(self._state))

    def farewell(self, reason: str) -> Will:
        """Return what we say last of all when we stop in order."""
        self._state = None
        return self._as_will(self._presence("offline", reason))

    def correct(self, payload: bytes) -> None:
        """Look at what stands on our own status topic, and publish again when it is not our present state."""
        if self._state is None:
            return
        try:
            seen: Presence | None = codec.decode_presence(payload) if payload else None
        except InvalidMessageError:
            seen = None
        if seen != self._state and self._corrections.allows("own"):
            self.refresh()

    def _presence(self, state: str, reason: str) -> Presence:
        return Presence(
            node_id=self._node_id,
            boot=self.boot,
            state=state,  # type: ignore[arg-type]  # one of the three words
            since=utc_now(),
            reason=reason,
            agent_version=self._version,
            capabilities=self._capabilities(),
            streams=self._streams(),
        )

    def _as_will(self, presence: Presence) -> Will:
        return Will(topic=topics.status(self._node_id), payload=codec.encode(presence))
