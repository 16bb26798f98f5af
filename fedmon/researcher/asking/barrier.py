"""Which request an answer belongs to, on a wire whose answers do not say so."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from typing import Any

import msgspec

from fedmon.common.errors import InvalidMessageError
from fedmon.common.ids import NodeId
from fedmon.common.wire.envelope import Request
from fedmon.common.wire.messages import Dataset
from fedmon.researcher.asking.match import REMEMBERED_REQUESTS

MAX_HELD_BYTES = 32 * 1024 * 1024
HELD_S = 60.0


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """What a node answered to a list (``by_tags`` false) or to a search."""

    by_tags: bool
    success: bool
    datasets: list[Dataset]


class Train(Request, frozen=True, kw_only=True, tag="train"):
    """Ask these nodes, or all, for one round of training; ``fields`` go out as they are."""

    fields: dict[str, Any]
    nodes: list[NodeId] | None


class SentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request, when it went out first, on the monotonic clock, and for a training who answered it."""

    request: Request
    at: float
    trained: set[str] = msgspec.field(default_factory=set)


class Sent:
    """The last requests that went out, each by its sequence. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: OrderedDict[str, SentRequest] = OrderedDict()
        self._ids: dict[int, str] = {}

    def add(self, request: Request) -> None:
        """Remember a request."""
        with self._lock:
            if request.id not in self._requests:
                self._requests[request.id] = SentRequest(request=request, at=time.monotonic())
                self._ids[request.sequence] = request.id
            while len(self._requests) > REMEMBERED_REQUESTS:
                _, oldest = self._requests.popitem(last=False)
                del self._ids[oldest.request.sequence]

    def training(self, node_id: str, *, job_id: str | None) -> Train | None:
        """Return the last training, of one job or of any, that a node has not answered; it counts as answered then."""
        with self._lock:
            for sent in reversed(self._requests.values()):
                request = sent.request
                if (
                    isinstance(request, Train)
                    and job_id in (None, request.fields["job_id"])
                    and (request.nodes is None or node_id in request.nodes)
                    and node_id not in sent.trained
                ):
                    sent.trained.add(node_id)
                    return request
        return None

    def by_id(self, request_id: str) -> Request | None:
        """Return the request with this id, or null."""
        with self._lock:
            found = self._requests.get(request_id)
        return None if found is None else found.request

    def by_number(self, number: int) -> SentRequest | None:
        """Return the request with this number, or null."""
        with self._lock:
            return self._requests.get(self._ids.get(number, ""))


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    node_id: NodeId
    said: Listed | InvalidMessageError
    at: float
    size_bytes: int


class Held:
    """What nodes said and no pong has assigned to a request yet; bounded. Belongs to one thread.

    Another process of the same researcher hears and causes the same: what a node said is held until a pong of ours.
    """

    def __init__(self, *, max_bytes: int = MAX_HELD_BYTES, held_s: float = HELD_S) -> None:
        self._max_bytes, self._held_s = max_bytes, held_s
        self._said: deque[_Said] = deque()
        self._bytes = 0

    def add(self, node_id: NodeId, said: Listed | InvalidMessageError, *, size_bytes: int, at: float) -> None:
        """Hold what a node said; the oldest goes when there is too much, or when it is too old."""
        self._said.append(_Said(node_id=node_id, said=said, at=at, size_bytes=size_bytes))
        self._bytes += size_bytes
        while self._said and (self._bytes > self._max_bytes or at - self._said[0].at > self._held_s):
            self._bytes -= self._said.popleft().size_bytes

    def take(self, node_id: NodeId, *, since: float) -> list[Listed | InvalidMessageError]:
        """Return what a node said since a moment, in order, and forget all that it said."""
        if not self._said:
            return []
        taken = [one.said for one in self._said if one.node_id == node_id and one.at >= since]
        self._said = deque(one for one in self._said if one.node_id != node_id)
        self._bytes = sum(one.size_bytes for one in self._said)
        return taken
