"""The connection of one researcher process to its broker, and the wire that it speaks: topics and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from fedmon.common.errors import NotConnectedError
from fedmon.common.ids import NodeId
from fedmon.common.metrics.sample import Batch
from fedmon.common.settings.broker import BrokerHost, BrokerSettings
from fedmon.common.wire import codec, topics
from fedmon.common.wire.connection import BrokerConnection
from fedmon.common.wire.envelope import Reply, Request
from fedmon.common.wire.messages import LogRecord
from fedmon.common.wire.samples import AddScalar

CONNECT_SHARE = 0.9
"""Part of the caller's timeout after which the transport gives up, so that the caller hears the reason in time."""
MAX_REQUEST_BYTES = codec.MAX_PAYLOAD_BYTES - 100
"""So that a copy that names its node fits into a message as well."""


class Connection(BrokerConnection):
    """The connection of one researcher process, with subscriptions that change."""

    def __init__(
        self,
        broker: BrokerSettings,
        *,
        client_id: str,
        subscriptions: Sequence[tuple[str, int]],
        timeout_s: float,
        on_message: Callable[[str, bytes, bool], None],
        on_link: Callable[[BrokerHost | None], object],
        keeps_session: bool,
    ) -> None:
        connect_timeout_s = min(broker.connect_timeout_s, CONNECT_SHARE * timeout_s)
        super().__init__(
            msgspec.structs.replace(broker, connect_timeout_s=connect_timeout_s),
            client_id=client_id,
            subscriptions=subscriptions,
            on_message=on_message,
            on_link=on_link,
            quiet_until_up=True,
            keeps_session=keeps_session,
        )
        self.place = ", ".join(map(str, broker.hosts))
        self._timeout_s = timeout_s
        self._always = subscriptions

    @property
    def problem(self) -> str:
        """The present error of the connection; empty while it lasts."""
        return self.flapping or ("" if self.is_connected else str(self.last_error or ""))

    def open(self) -> None:
        """Connect, or raise ConnectionFailedError within the timeout; names host, port and cause."""
        self.start()
        try:
            self.wait_connected(self._timeout_s)
        except BaseException:
            self.stop()
            raise

    def want(self, filters: Iterable[str]) -> None:
        """Subscribe, at QoS 0, to these filters beside those that are always there, and to no others."""
        self.resubscribe([*self._always, *((name, 0) for name in filters)])

    def lost_error(self) -> NotConnectedError:
        """Return the error that says why nothing can be sent now."""
        if flapping := self.flapping:
            return NotConnectedError(f"no reply from {self.place}: {flapping}; retrying automatically")
        cause = self.problem or f"no connection to the broker at {self.place}"
        return NotConnectedError(f"nothing was sent: {cause}; retrying automatically")


class Dialect:
    """One wire, as a researcher speaks it: here "fedmon/1"; a subclass speaks another.

    ``announced`` tells whether nodes say by themselves that they are there, ``plans_inline`` whether a plan travels
    inside a message.
    """

    announced = True
    plans_inline = True

    def __init__(self, *, researcher_id: str, instance: str) -> None:
        self.researcher_id, self.instance = researcher_id, instance

    def subscriptions(self) -> list[tuple[str, int]]:
        """Return the filters and QoS that are always heard."""
        replies = topics.reply_filters(self.researcher_id, self.instance)
        return [*((name, 1) for name in replies), (topics.ALL_STATUS, 0)]

    def encode(self, request: Request) -> tuple[bytes, ...]:
        """Write a request, as messages that follow each other; none where this wire has no word for it.

        Raises InvalidMessageError for a request that does not fit into a message.
        """
        return (codec.encode(request, max_bytes=MAX_REQUEST_BYTES),)

    def addressed(
        self, request: Request, payloads: Sequence[bytes], nodes: Sequence[NodeId] | None
    ) -> Iterator[tuple[str, bytes, int]]:
        """Return topic, bytes and QoS of each message that asks these nodes, or all; ``payloads`` are from `encode`."""
        if nodes is None:
            yield from ((topics.broadcast(self.researcher_id), payload, 0) for payload in payloads)
        for node in nodes or ():
            directed = codec.encode(msgspec.structs.replace(request, node_id=node))
            yield topics.command(self.researcher_id, node), directed, 1

    def metrics_filters(self, node_id: NodeId | None) -> set[str]:
        """Return the filters that bring the metrics of one node, on either of its topics, or of all."""
        return {topics.ALL_MONITORING} if node_id is None else {topics.monitoring(node_id), topics.MONITORING_FLAT}

    def logs_filters(self, node_id: NodeId | None) -> set[str]:
        """Return the filters that bring the log of one node, or of all."""
        return {topics.ALL_LOGS if node_id is None else topics.log(node_id)}

    def hears(self, _topic: str) -> bool:
        """Tell whether `read` reads this topic; the inbox reads those of fedmon's wire."""
        return False

    def read(self, _topic: str, _payload: bytes) -> Iterable[Reply | AddScalar | LogRecord]:
        """Read a message into ours. Raises InvalidMessageError."""
        return ()

    def samples_of(self, _scalar: AddScalar) -> Batch | None:
        """Return scalars as samples for watchers of metrics; None if they are not shown among those."""
        return None
