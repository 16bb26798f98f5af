"""Watching live metrics: every sample is delivered, pending, or known to be lost."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.metrics.sample import Batch
from fedmon.common.wire.samples import MonitorReply
from fedmon.researcher.samples.consumers import Consumers, SampleConsumer, Wish
from fedmon.researcher.samples.resend import MissingSamples, StreamFollower
from fedmon.researcher.session.callbacks import Dispatcher, Subscription

HELD_SAMPLES = 5_000
HELD_BYTES = 16 * 1024 * 1024


class LiveSample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of one node: ``t`` is its Unix time and ``mono`` its monotonic time, in seconds.

    ``values`` maps a series to its value, None for a missed reading, and ``reasons`` says why it is None. A series
    that was not read for this sample is absent. ``late`` marks a sample that was missed at first and asked for again,
    or that arrived after newer ones.
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


class Watch(SampleConsumer):
    """One watcher of live metrics: a context manager, and an iterator if no callback was given.

    Iterating waits for the next sample and ends when the watch is closed. The newest 5,000 samples that were not taken
    are held, at most 16 MiB, and ``dropped`` counts the rest; an ordered watch drops none but asks the nodes again
    when there is room. Safe from any thread.
    """

    def __init__(
        self,
        callback: Callable[[LiveSample], object] | None,
        *,
        consumers: Consumers,
        wish: Wish,
        metrics: Sequence[str] | None,
        ordered: bool,
        dispatcher: Dispatcher,
    ) -> None:
        super().__init__(consumers, wish, metrics)
        self._capabilities: dict[NodeId, MonitorReply] = {}
        self.delivered = self.dropped = 0
        self.follower = StreamFollower(self, nodes=wish.nodes, ordered=ordered, start=None, inquire=consumers.inquire)
        self._ordered, self._dispatcher = ordered, dispatcher
        self._subscription = Subscription(callback, lambda _: self.close()) if callback is not None else None
        self._held: deque[tuple[Iterator[LiveSample], int, int]] = deque()
        self._head: Iterator[LiveSample] = iter(())
        self._left = self._held_samples = self._held_bytes = 0
        self._arrived = threading.Condition()

    def __repr__(self) -> str:
        errors = f"; callback errors: {number}" if (number := self._subscription and self._subscription.errors) else ""
        return f"<Watch: {self.delivered} samples, {self.pending} missing, {self.lost} lost{errors}>"

    @property
    def capabilities(self) -> dict[NodeId, MonitorReply]:
        """The last answer of each node that grants a lease."""
        return dict(self._capabilities)

    @property
    def pending(self) -> int:
        """How many samples are known to exist and have not come yet."""
        return self.follower.pending

    @property
    def refilled(self) -> int:
        """How many samples were missed at first and asked for again."""
        return self.follower.refilled

    @property
    def repeated(self) -> int:
        """How many samples arrived more than once; each was delivered once."""
        return self.follower.repeated

    def next(self, timeout_s: float | None = None) -> LiveSample | None:
        """Return the next sample, or None if none came within ``timeout_s`` or the watch was closed."""
        if self._subscription is not None:
            raise TypeError("this watch has a callback; call monitor() without one to iterate")
        with self._arrived:
            self._arrived.wait_for(lambda: self._held_samples or self.closed, timeout=timeout_s)
            if not self._held_samples:
                return None
            return self._pop()

    def __iter__(self) -> Iterator[LiveSample]:
        while (sample := self.next()) is not None:
            yield sample

    def close(self) -> None:
        """End the watch; its leases are given back unless another consumer needs them."""
        with self._arrived:
            if self.closed:
                return
            self.closed = True
            self._arrived.notify_all()
        if self._subscription is not None:
            self._subscription.removed = True
        self._consumers.remove(self)
        self._tell_unmatched()

    # --- called on the inbox thread ----------------------------------------------------------------------------------

    def _granted(self, node_id: NodeId, reply: MonitorReply) -> None:
        self._capabilities[node_id] = reply

    def has_room(self, share: float) -> bool:
        """Tell whether samples may be put; see `Sink`."""
        if self._subscription is not None:
            return self._dispatcher.has_room(self._subscription, share)
        with self._arrived:
            return not self._ordered or self._has_room(share)

    def put(self, batch: Batch, *, size_bytes: int, late: bool) -> None:
        """Deliver samples; see `Sink`."""
        samples, count = _samples_of(self._chosen(batch), late=late), len(batch.t)
        if self._subscription is not None:
            self._dispatcher.call(self._subscription, samples, urgent=False, size_bytes=size_bytes)
            self.delivered += count
            return
        with self._arrived:
            self._held.append((samples, count, size_bytes))
            self._held_samples += count
            self._held_bytes += size_bytes
            self.delivered += count
            while not self._ordered and not self._has_room(1.0) and self._held_samples > count:
                self._pop()
                self.dropped += 1
                self.delivered -= 1
            self._arrived.notify_all()

    def lost_for_good(self, want: MissingSamples, reason: str) -> None:
        """Do nothing: the follower has counted them."""

    def _has_room(self, share: float) -> bool:
        return self._held_samples <= share * HELD_SAMPLES and self._held_bytes <= share * HELD_BYTES

    def _pop(self) -> LiveSample:
        """Take the oldest sample, of which there is one."""
        if not self._left:
            self._head, self._left, size_bytes = self._held.popleft()
            self._held_bytes -= size_bytes
        self._left -= 1
        self._held_samples -= 1
        return next(self._head)


def _samples_of(batch: Batch, *, late: bool) -> Iterator[LiveSample]:
    """Take a batch apart, on the thread that uses the samples: columns need a tenth of their memory."""
    columns, reasons = batch.columns, batch.reasons
    names, node_id = tuple(columns), NodeId(batch.node_id)
    rows = zip(*columns.values(), strict=True) if columns else iter(() for _ in batch.t)
    gaps = [name for name, column in columns.items() if None in column]
    not_due = [name for name in gaps if name not in reasons]
    missed = [name for name in gaps if name in reasons]
    for number, row in enumerate(rows):
        values = dict(zip(names, row, strict=False))  # as many as there are columns, and this is most of the time
        for name in not_due:
            if values[name] is None:
                del values[name]
        yield LiveSample(
            node_id=node_id,
            boot=batch.boot,
            stream=batch.stream,
            seq=batch.seq + number,
            t=batch.t[number],
            mono=batch.mono[number],
            values=values,
            reasons={name: reasons[name] for name in missed if values[name] is None} if missed else {},
            late=late,
        )
