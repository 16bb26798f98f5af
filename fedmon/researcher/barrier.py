"""Which request an answer belongs to, on a wire whose answers do not say so."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque

import msgspec

from fedmon.common.errors import InvalidMessageError
from fedmon.common.ids import NodeId
from fedmon.common.wire.messages import Dataset, Request
from fedmon.researcher.pending import REMEMBERED_REQUESTS

MAX_HELD_BYTES = 32 * 1024 * 1024


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """What a node answered to a list (``by_tags`` false) or to a search."""

    by_tags: bool
    success: bool
    datasets: list[Dataset]


class Sent:
    """The last requests that went out, each by its number on the wire. Safe from any thread.

    Numbers begin anywhere, so that another process of the same researcher, which hears the same replies, has others.
    """

    def __init__(self) -> None:
        self._first = secrets.randbelow(2**31)
        self._lock = threading.Lock()
        self._requests: OrderedDict[str, Request] = OrderedDict()
        self._ids: dict[int, str] = {}

    def add(self, request: Request) -> int:
        """Remember a request, and return its number."""
        number = self._first + request.sequence
        with self._lock:
            self._requests[request.id] = request
            self._ids[number] = request.id
            while len(self._requests) > REMEMBERED_REQUESTS:
                _, oldest = self._requests.popitem(last=False)
                del self._ids[self._first + oldest.sequence]
        return number

    def by_id(self, request_id: str) -> Request | None:
        """Return the request with this id, or null."""
        with self._lock:
            return self._requests.get(request_id)

    def by_number(self, number: int) -> Request | None:
        """Return the request with this number, or null."""
        with self._lock:
            return self._requests.get(self._ids.get(number, ""))


class Held:
    """What nodes said and no pong has assigned to a request yet; bounded. Belongs to one thread."""

    def __init__(self, *, max_bytes: int = MAX_HELD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._said: deque[tuple[NodeId, Listed | InvalidMessageError, int]] = deque()
        self._bytes = 0

    def add(self, node_id: NodeId, said: Listed | InvalidMessageError, *, size_bytes: int) -> None:
        """Hold what a node said until its next pong; the oldest goes when there is too much."""
        self._said.append((node_id, said, size_bytes))
        self._bytes += size_bytes
        while self._bytes > self._max_bytes:
            self._bytes -= self._said.popleft()[2]

    def take(self, node_id: NodeId) -> list[Listed | InvalidMessageError]:
        """Return, and forget, what a node said, in order."""
        if not self._said:
            return []
        taken = [said for node, said, _ in self._said if node == node_id]
        self._said = deque(entry for entry in self._said if entry[0] != node_id)
        self._bytes = sum(entry[2] for entry in self._said)
        return taken
