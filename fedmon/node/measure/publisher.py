"""Samples become numbered batches; all of them are kept, and go out as far as the owner's policy lets them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from fedmon.common.errors import InvalidMessageError
from fedmon.common.metrics.batch import Batch
from fedmon.common.metrics.sample import Sample
from fedmon.common.wire import codec
from fedmon.common.wire.samples import as_message
from fedmon.node.measure.batch import MAX_AGE_S, OpenBatch
from fedmon.node.measure.leaving import MAX_SAMPLE_BYTES, Leaving, fitting

logger = logging.getLogger(__name__)

HOST_STREAM = "host"
SAMPLES_PUBLISHED = "agent_samples_published_total"
SAMPLES_DROPPED = "agent_samples_dropped_total"


class Publisher:
    """Numbers the samples of each stream, gathers them, and hands each batch to ``keep`` and to ``send``.

    The first sample of a stream has seq 0, and each sample one more than the one before, whether it was sent or not: a
    receiver sees what it missed. A batch is closed with 10 samples, before it is 10 s or 64 KiB large, and with each
    sample while ``live``. ``keep(batch)`` is given everything that was measured. ``send(payload)`` is given what may
    leave and returns False when there is no connection; those samples are counted. Neither ever waits.
    ``leaves(name)`` tells whether a metric leaves this node. ``on_sent(names, samples)`` is told which metrics left,
    and how often. Every method is safe from any thread.
    """

    def __init__(
        self,
        *,
        node_id: str,
        boot: int,
        send: Callable[[bytes], bool],
        leaves: Callable[[str], bool],
        interval_s: float,
        keep: Callable[[Batch], None] = lambda _batch: None,
        on_sent: Callable[[Iterable[str], int], None] = lambda _names, _samples: None,
    ) -> None:
        self._node_id, self._boot = node_id, boot
        self._keep, self._send, self._on_sent = keep, send, on_sent
        self._leaving = Leaving(leaves)
        self._interval_s, self._live = interval_s, False
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}
        self._published = self._batches = self._dropped = self._withheld = 0

    def publish(self, stream: str, sample: Sample, *, is_private: bool = False) -> int:
        """Take the next sample of a stream, close the batch when it is complete, and return the sample's number.

        What is private is kept and not sent. For ``Sampler.on_sample``.
        """
        with self._lock:
            state = self._streams.get(stream)
            if state is None:
                state = self._streams[stream] = _Stream(is_private=is_private)
            if state.open is not None and not state.open.fits(sample):
                self._close(state)
            if state.open is None:
                state.open = OpenBatch(node_id=self._node_id, boot=self._boot, stream=stream, seq=state.next_seq)
            state.open.add(sample)
            state.next_seq += 1
            if (self._live and not is_private) or state.open.complete(self._interval_s):
                self._close(state)
            return state.next_seq - 1

    def set_pace(self, *, interval_s: float, live: bool) -> None:
        """Learn when the next sample comes, and whether somebody wants each at once."""
        with self._lock:
            self._interval_s, self._live = interval_s, live
            for state in self._streams.values():
                is_wanted_now = live and not state.is_private
                if state.open is not None and (is_wanted_now or state.open.complete(interval_s)):
                    self._close(state)

    def close_older(self, mono: float) -> None:
        """Close batches whose first sample is 10 s old at ``mono``: a stream may have fallen silent.

        A sample of a moment to come, as a program may report it, does not keep its batch open until then.
        """
        with self._lock:
            for state in self._streams.values():
                if state.open is not None and abs(mono - state.open.begun) >= MAX_AGE_S:
                    self._close(state)

    def set_leaves(self, leaves: Callable[[str], bool]) -> None:
        """Obey another policy from the next batch on."""
        with self._lock:
            self._leaving = Leaving(leaves)

    def flush(self, stream: str | None = None) -> None:
        """Close what was gathered, complete or not, of one stream or of all."""
        with self._lock:
            for name, state in self._streams.items():
                if stream in (None, name):
                    self._close(state)

    def counts(self) -> dict[str, float | None]:
        """Return the ``agent_`` metrics that the publisher keeps, for AgentCollector."""
        return {SAMPLES_PUBLISHED: self._published, SAMPLES_DROPPED: self._dropped}

    @property
    def published(self) -> int:
        """Return how many samples were handed to the connection."""
        return self._published

    @property
    def batches(self) -> int:
        """Return how many batches were handed to the connection."""
        return self._batches

    @property
    def dropped(self) -> int:
        """Return how many samples were not sent because there was no connection, or no message could hold them."""
        return self._dropped

    @property
    def withheld(self) -> int:
        """Return how many samples stayed here whole because the policy lets none of their metrics leave."""
        return self._withheld

    def last_seq(self, stream: str = HOST_STREAM) -> int | None:
        """Return the number of the newest sample of a stream; None before the first."""
        state = self._streams.get(stream)
        return None if state is None else state.next_seq - 1

    @property
    def taken(self) -> int:
        """Return how many samples of all streams were taken since the start."""
        return sum(state.next_seq for state in list(self._streams.values()))

    @property
    def open_samples(self) -> int:
        """Return how many samples are in batches that are not closed yet."""
        return sum(len(state.open) for state in list(self._streams.values()) if state.open is not None)

    def _close(self, state: _Stream) -> None:
        if state.open is not None:
            batch, state.open = state.open.close(), None
            self._keep(batch)
            if not state.is_private:
                self._deliver(batch)

    def _deliver(self, batch: Batch) -> None:
        """Send the part of a closed batch that may leave."""
        leaving = self._leaving.of(batch)
        if leaving is None:
            self._withheld += len(batch.t)
            return
        try:
            payload = codec.encode(as_message(leaving))
        except InvalidMessageError as error:
            self._too_large(batch, error)
            return
        if self._send(payload):
            self._published += len(batch.t)
            self._batches += 1
            self._on_sent(self._leaving.names(leaving), len(batch.t))
        else:
            self._dropped += len(batch.t)

    def _too_large(self, batch: Batch, error: InvalidMessageError) -> None:
        if len(batch.t) > 1:
            for half in batch.halves():
                self._deliver(half)
            return
        part = fitting(self._leaving.of(batch) or batch, MAX_SAMPLE_BYTES)
        left_out = len(batch.columns) - len(part.columns)
        logger.error("a sample of stream %s goes without %d series: %s; let fewer leave", batch.stream, left_out, error)
        self._deliver(part)


class _Stream:
    """The numbering of one stream, and its batch that is still open."""

    def __init__(self, *, is_private: bool) -> None:
        self.is_private = is_private
        self.next_seq = 0
        self.open: OpenBatch | None = None
