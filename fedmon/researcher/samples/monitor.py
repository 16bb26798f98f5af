"""Watching live metrics: every sample is handed on, pending, or known to be lost."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from fedmon.common.ids import NodeId
from fedmon.common.metrics.batch import Batch
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.samples import MonitorReply
from fedmon.researcher.samples.consumer import Consumer
from fedmon.researcher.samples.leases import Wish
from fedmon.researcher.samples.live_sample import LiveSample, WantedSeries, samples_of
from fedmon.researcher.samples.refill_follower import Follower
from fedmon.researcher.samples.refill_line import Want
from fedmon.researcher.session.callbacks import Dispatcher, Subscription

__all__ = ["HELD_SAMPLES", "LiveSample", "Watch"]

HELD_SAMPLES = 5_000
HELD_BYTES = 16 * 1024 * 1024


class Watch(Consumer):
    """One watcher of live metrics: a context manager, and an iterator when no callback was given.

    Iterating waits for the next sample and ends when the watch is closed. Of samples that nobody takes the newest
    5,000 are held, at most 16 MiB of them, and ``dropped`` counts the rest; an ordered watch drops none but asks the
    nodes again when there is room. Safe from any thread.
    """

    def __init__(
        self,
        callback: Callable[[LiveSample], object] | None,
        *,
        wish: Wish,
        metrics: Sequence[str] | None,
        ordered: bool,
        dispatcher: Dispatcher,
        on_closed: Callable[[Watch], None],
        inquire: Callable[[NodeId], None],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(wish)
        self.capabilities: dict[NodeId, MonitorReply] = {}
        self.delivered = 0
        self.dropped = 0
        self.follower = Follower(self, nodes=wish.nodes, ordered=ordered, start=None, inquire=inquire)
        self._ordered, self._dispatcher, self._on_closed, self._wake = ordered, dispatcher, on_closed, wake
        self._subscription = Subscription(callback, lambda _: self.close()) if callback is not None else None
        self._held: deque[tuple[Iterator[LiveSample], int, int]] = deque()
        self._head: Iterator[LiveSample] = iter(())
        self._left = self._held_samples = self._held_bytes = 0
        self._was_full = False
        self._arrived = threading.Condition()
        self._wanted = None if metrics is None else WantedSeries(metrics)

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
        """How many samples arrived more than once; each was handed on once."""
        return self.follower.repeated

    def next(self, timeout_s: float | None = None) -> LiveSample | None:
        """Return the next sample, or null when none came within ``timeout_s`` or the watch was closed."""
        if self._subscription is not None:
            raise TypeError("this watch has a callback; call monitor() without one to iterate")
        with self._arrived:
            self._arrived.wait_for(lambda: self._held_samples or self.closed, timeout=timeout_s)
            if not self._held_samples:
                return None
            sample = self._pop()
            room_again = self._was_full and self._has_room(0.5)
            self._was_full = self._was_full and not room_again
        if room_again:
            self._wake()
        return sample

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

    # --- called on the thread of the inbox ---------------------------------------------------------------------------

    def answered(self, reply: Reply) -> None:
        """Note what a node said about the lease, and what it keeps."""
        granted = self._granted(reply)
        if granted is not None:
            self.capabilities[NodeId(granted.node_id)] = granted
        self.follower.answered(reply, time.monotonic())

    def has_room(self) -> bool:
        """Tell whether samples may be put; see `Sink`."""
        if self._subscription is not None:
            return self._dispatcher.has_room(self._subscription)
        if not self._ordered:
            return True
        with self._arrived:
            self._was_full = not self._has_room(0.5 if self._was_full else 1.0)
            return not self._was_full

    def put(self, batch: Batch, *, size_bytes: int, late: bool) -> None:
        """Hand samples on; see `Sink`."""
        samples, count = samples_of(batch, self._wanted, late=late), len(batch.t)
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

    def lost_for_good(self, want: Want, reason: str) -> None:
        """Hear that samples will not come; the follower has counted them."""

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
