"""How a researcher says requests and hears replies: which topics, which bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.wire import codec, topics
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import LogRecord
from fedmon.common.wire.samples import AddScalar, SampleBatch

_LONGEST_ID = "n" * 64


class Dialect(Protocol):
    """One wire, as a researcher speaks it.

    ``announced`` tells whether nodes say by themselves that they are there, ``plans_inline`` whether a plan travels
    inside a message.
    """

    announced: bool
    plans_inline: bool

    def subscriptions(self) -> list[tuple[str, int]]:
        """Return the filters and QoS that are always heard."""

    def encode(self, request: Request) -> tuple[bytes, ...]:
        """Write a request, as messages that follow each other; none where this wire has no word for it.

        Raises InvalidMessageError for what does not fit into a message.
        """

    def addressed(
        self, request: Request, payloads: Sequence[bytes], nodes: Sequence[NodeId] | None
    ) -> Iterator[tuple[str, bytes, int]]:
        """Return topic, bytes and QoS of each message that asks these nodes, or all; ``payloads`` are from `encode`."""

    def finds_nodes_by(self, request: Request) -> bool:
        """Tell whether asking everybody this is how nodes are found, so that the time for it is always taken."""

    def metrics_filter(self, node_id: NodeId | None) -> str:
        """Return the filter that brings the metrics of one node, or of all."""

    def logs_filter(self, node_id: NodeId | None) -> str:
        """Return the filter that brings the log of one node, or of all."""

    def hears(self, topic: str) -> bool:
        """Tell whether `read` reads this topic; the inbox reads those of our own wire."""

    def read(self, topic: str, payload: bytes) -> Iterable[Reply | AddScalar | LogRecord]:
        """Read a message: what it says, in our words. Raises InvalidMessageError."""

    def samples_of(self, scalar: AddScalar) -> SampleBatch | None:
        """Return scalars as samples for who watches metrics; None where they are not shown among those."""


class FedmonDialect:
    """The wire "fedmon/1"."""

    announced = True
    plans_inline = True

    def __init__(self, *, researcher_id: str, instance: str) -> None:
        self._researcher_id, self._instance = researcher_id, instance

    def subscriptions(self) -> list[tuple[str, int]]:
        """Return the filters and QoS that are always heard."""
        replies = topics.reply_filters(self._researcher_id, self._instance)
        return [*((name, 1) for name in replies), (topics.ALL_STATUS, 0)]

    def encode(self, request: Request) -> tuple[bytes, ...]:
        """Write a request. Raises InvalidMessageError for what does not fit into a message."""
        payload = codec.encode(request)
        if len(payload) > codec.MAX_PAYLOAD_BYTES - 2 * len(_LONGEST_ID):
            # A copy that names its node must fit as well.
            codec.encode(msgspec.structs.replace(request, node_id=_LONGEST_ID))
        return (payload,)

    def addressed(
        self, request: Request, payloads: Sequence[bytes], nodes: Sequence[NodeId] | None
    ) -> Iterator[tuple[str, bytes, int]]:
        """Return topic, bytes and QoS of each message that asks these nodes, or all; one to a node names it."""
        if nodes is None:
            yield from ((topics.broadcast(self._researcher_id), payload, 0) for payload in payloads)
        for node in nodes or ():
            directed = codec.encode(msgspec.structs.replace(request, node_id=node))
            yield topics.command(self._researcher_id, node), directed, 1

    def finds_nodes_by(self, _request: Request) -> bool:
        """Tell that nodes announce themselves."""
        return False

    def metrics_filter(self, node_id: NodeId | None) -> str:
        """Return the filter that brings the metrics of one node, or of all."""
        return topics.ALL_MONITORING if node_id is None else topics.monitoring(node_id)

    def logs_filter(self, node_id: NodeId | None) -> str:
        """Return the filter that brings the log of one node, or of all."""
        return topics.ALL_LOGS if node_id is None else topics.log(node_id)

    def hears(self, _topic: str) -> bool:
        """Tell that the inbox reads every topic of this wire."""
        return False

    def read(self, _topic: str, _payload: bytes) -> Iterable[Reply | AddScalar | LogRecord]:
        """Read nothing: see `hears`."""
        return ()

    def samples_of(self, _scalar: AddScalar) -> SampleBatch | None:
        """Tell that scalars are no samples on this wire."""
        return None
