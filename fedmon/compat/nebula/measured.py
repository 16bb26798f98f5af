"""From the sampler's thread into the event loop: each tick once, in order, and never waited for by the sampler."""

from __future__ import annotations

import asyncio
import collections
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fedmon.common.metrics.sample import Sample
from fedmon.common.metrics.series import metric_name
from fedmon.node.collectors.agent import AgentCollector
from fedmon.node.collectors.base import Collector, Lane
from fedmon.node.measure.publisher import HOST_STREAM
from fedmon.node.measure.sampler import Sampler

logger = logging.getLogger(__name__)

MAX_WAITING = 256
"""Ticks that a busy event loop may lag behind before the oldest is dropped."""

_SLOWLY_READ = frozenset(
    {
        "host_filesystem_size_bytes",
        "host_filesystem_free_bytes",
        "host_filesystem_available_bytes",
        "host_temperature_celsius",
    }
)
_HOLDS_S = 2.5 * Lane.MEDIUM.value
"""A reading of a slow lane is shown until two further ones did not come."""


class Tick(NamedTuple):
    """What all streams measured at one instant, with what slow lanes measured last."""

    t: float
    mono: float
    values: Mapping[str, float | None]


class Measured:
    """One run of the sampler; made anew for each start.

    ``publish(stream, sample)`` gets every sample, on the sampler's thread. ``on_orphaned()`` is called, on a thread of
    its own, when the event loop was closed before the end. `prime` comes first and gives shares (of
    CPU time) something to begin from; `begin` is called on the event loop that then awaits `next`; `stop` from any
    other thread.
    """

    def __init__(
        self,
        streams: Mapping[str, Sequence[Collector]],
        *,
        interval_s: float,
        publish: Callable[[str, Sample], None],
        on_orphaned: Callable[[], object] = lambda: None,
    ) -> None:
        self._publish, self._on_orphaned = publish, on_orphaned
        # The host's comes last: it has values at every tick, and so ends each.
        ordered = {name: streams[name] for name in streams if name != HOST_STREAM} | {
            HOST_STREAM: _with_own_cost(streams.get(HOST_STREAM, ()))
        }
        self.sampler = Sampler(ordered, interval_s=interval_s, on_sample=self._on_sample)
        self._gathered: dict[str, float | None] = {}
        self._gathered_at = 0.0
        self._held: dict[str, tuple[float, float]] = {}
        self._waiting: collections.deque[Tick] = collections.deque()
        self._arrived = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ended = False
        self.first: Tick | None = None
        self.dropped = 0

    def prime(self) -> None:
        """Read everything once; the values are not reported."""
        values: dict[str, float | None] = {}
        for sample in self.sampler.sample().values():
            values.update(sample.values)
            self._hold(sample)
            self.first = Tick(sample.t, sample.mono, values)

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the sampler; its first tick is now."""
        self._loop = loop
        self.sampler.start()

    async def next(self) -> Tick | None:
        """Return the next tick; None once `end` was called."""
        while True:
            # Cleared before looking: what comes after the look sets it again.
            self._arrived.clear()
            if self._is_ended:
                return None
            if self._waiting:
                return self._waiting.popleft()
            await self._arrived.wait()

    def end(self) -> None:
        """Let `next` return; on the event loop."""
        self._is_ended = True
        self._arrived.set()

    def stop(self) -> None:
        """End the sampler's thread."""
        self._is_ended = True
        self.sampler.stop()

    def _end_orphaned(self) -> None:
        self.stop()
        self._on_orphaned()

    # --- on the sampler's thread -------------------------------------------------------------------------------------

    def _on_sample(self, stream: str, sample: Sample) -> None:
        self._publish(stream, sample)
        if sample.mono != self._gathered_at:
            self._gathered, self._gathered_at = {}, sample.mono
        self._gathered.update(sample.values)
        self._hold(sample)
        if stream == HOST_STREAM:
            held = {key: value for key, (value, mono) in self._held.items() if sample.mono - mono <= _HOLDS_S}
            self._hand_over(Tick(sample.t, sample.mono, {**held, **self._gathered}))

    def _hold(self, sample: Sample) -> None:
        for key, value in sample.values.items():
            if metric_name(key) in _SLOWLY_READ:
                if value is None:
                    self._held.pop(key, None)
                else:
                    self._held[key] = (value, sample.mono)

    def _hand_over(self, tick: Tick) -> None:
        self._waiting.append(tick)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        # A loop that lags behind is told once, not once a tick.
        if self._arrived.is_set() or self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:
            if not self._is_ended:
                self._is_ended = True
                logger.warning("the event loop of the reporter was closed before its stop(): sampling ends")
                # The sampler cannot wait for its own end.
                threading.Thread(target=self._end_orphaned, name="fedmon-reporter-end").start()


def _with_own_cost(collectors: Sequence[Collector]) -> list[Collector]:
    """Add the cost of measuring where it is missing: it can always be read, so that no tick is without a value."""
    own = AgentCollector()
    return [*collectors, *([] if any(each.name == own.name for each in collectors) else [own])]
