"""Watching live metrics: every sample is delivered, or counted as lost."""

from __future__ import annotations

import fnmatch
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.metrics.series import metric_name
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Error
from fedmon.common.wire.samples import MonitorReply, SampleBatch
from fedmon.researcher.dispatcher import Dispatcher, Subscription
from fedmon.researcher.gaps import Arrival, GapAccount
from fedmon.researcher.leases import Wish

HELD_SAMPLES = 5_000
KNOWN_SERIES = 10_000
MAX_STREAMS = 20_000

Stream = tuple[NodeId, int, str]


class LiveSample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of one node: ``t`` is its Unix time and ``mono`` its monotonic time, in seconds.

    ``values`` maps a series to its value, null where a reading was missed, and ``reasons`` says why a null is one.
    ``late`` marks a sample that arrived after newer ones.
    """

    node_id: NodeId
    boot: int
    stream: str
    seq: int
    t: float
    mono: float
    values: Mapping[str, float | None]
    reasons: Mapping[str, str] = {}
    late: bool = False


class Watch:
    """One watcher of live metrics: a context manager, and an iterator when no callback was given.

    Iterating waits for the next sample and ends when the watch is closed. Of samples that nobody takes the newest
    5,000 are held; ``dropped`` counts the rest. Safe from any thread.
    """

    def __init__(
        self,
        callback: Callable[[LiveSample], object] | None,
        *,
        nodes: frozenset[NodeId] | None,
        interval_s: float | None,
        metrics: Sequence[str] | None,
        ordered: bool,
        dispatcher: Dispatcher,
        on_closed: Callable[[Watch], None],
    ) -> None:
        self.wish = Wish(nodes=nodes, interval_s=interval_s)
        self.capabilities: dict[NodeId, MonitorReply] = {}
        self.refusals: dict[NodeId, str] = {}
        self.delivered = 0
        self.dropped = 0
        self.closed = False
        self._ordered, self._dispatcher, self._on_closed = ordered, dispatcher, on_closed
        self._subscription = Subscription(callback, lambda _: self.close()) if callback is not None else None
        self._accounts: dict[Stream, GapAccount] = {}
        self._held: deque[LiveSample] = deque()
        self._arrived = threading.Condition()
        self._wanted = None if metrics is None else _Wanted(tuple(metrics))

    @property
    def lost(self) -> int:
        """How many samples were sent by the nodes and did not arrive."""
        return sum(account.lost for account in list(self._accounts.values()))

    @property
    def repeated(self) -> int:
        """How many samples arrived more than once."""
        return sum(account.repeated for account in list(self._accounts.values()))

    def next(self, timeout_s: float | None = None) -> LiveSample | None:
        """Return the next sample, or null when none came within ``timeout_s`` or the watch was closed."""
        if self._subscription is not None:
            raise TypeError("this watch has a callback; call monitor() without one to iterate")
        with self._arrived:
            self._arrived.wait_for(lambda: self._held or self.closed, timeout=timeout_s)
            return self._held.popleft() if self._held else None

    def __iter__(self) -> Iterator[LiveSample]:
        while (sample := self.next()) is not None:
            yield sample

    def close(self) -> None:
        """End the watch; its leases are given back unless somebody else watches."""
        with self._arrived:
            if self.closed:
                return
            self.closed = True
            self._arrived.notify_all()
        if self._subscription is not None:
            self._subscription.removed = True
        self._on_closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- called on the thread of the inbox ---------------------------------------------------------------------------

    def take(self, batch: SampleBatch, size_bytes: int) -> None:
        """Account for a batch, and hand its samples on."""
        node_id = NodeId(batch.node_id)
        if self.closed or (self.wish.nodes is not None and node_id not in self.wish.nodes):
            return
        stream = (node_id, batch.boot, batch.stream)
        account = self._accounts.get(stream)
        if account is None:
            if len(self._accounts) >= MAX_STREAMS:
                self._accounts.pop(next(iter(self._accounts)))
            account = self._accounts[stream] = GapAccount()
        for offset, count, arrival in account.arrived(batch.seq, len(batch.t)):
            if arrival is Arrival.NEXT or (arrival is Arrival.LATE and not self._ordered):
                self._hand_on(batch, offset, count, late=arrival is Arrival.LATE, size_bytes=size_bytes)
            elif arrival is Arrival.LATE:
                self.dropped += count

    def answered(self, reply: Reply) -> None:
        """Note what a node said about the lease."""
        node_id = NodeId(reply.node_id)
        if isinstance(reply, MonitorReply) and reply.success:
            self.capabilities[node_id] = reply
            self.refusals.pop(node_id, None)
        elif isinstance(reply, Error | MonitorReply):
            self.refusals[node_id] = reply.reason

    def _hand_on(self, batch: SampleBatch, offset: int, count: int, *, late: bool, size_bytes: int) -> None:
        samples = self._samples(batch, offset, count, late=late)
        if self._subscription is None:
            with self._arrived:
                self._held.extend(samples)
                while len(self._held) > HELD_SAMPLES:
                    self._held.popleft()
                    self.dropped += 1
                self._arrived.notify_all()
            self.delivered += count
        elif self._dispatcher.call(self._subscription, samples, urgent=False, size_bytes=size_bytes):
            self.delivered += count
        else:
            self.dropped += count

    def _samples(self, batch: SampleBatch, offset: int, count: int, *, late: bool) -> Iterator[LiveSample]:
        """Take the batch apart, on the thread that uses the samples: columns need a tenth of their memory."""
        columns = self._wanted.of(batch.m) if self._wanted is not None else batch.m
        names, node_id = tuple(columns), NodeId(batch.node_id)
        rows = list(zip(*columns.values(), strict=True))
        for number in range(offset, offset + count):
            values = dict(zip(names, rows[number], strict=True)) if rows else {}
            yield LiveSample(
                node_id=node_id,
                boot=batch.boot,
                stream=batch.stream,
                seq=batch.seq + number,
                t=batch.t[number],
                mono=batch.mono[number],
                values=values,
                reasons={
                    name: batch.reasons[name] for name in batch.reasons if name in values and values[name] is None
                },
                late=late,
            )


class _Wanted:
    """Chooses series by the name of their metric, or by their whole name with labels, with ``*`` and ``?``."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = patterns
        self._known: dict[str, bool] = {}

    def of(self, columns: Mapping[str, list[float | None]]) -> dict[str, list[float | None]]:
        return {series: column for series, column in columns.items() if self._is_wanted(series)}

    def _is_wanted(self, series: str) -> bool:
        known = self._known.get(series)
        if known is None:
            if len(self._known) > KNOWN_SERIES:
                self._known.clear()
            names = (series, metric_name(series))
            known = any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self._patterns)
            self._known[series] = known
        return known
