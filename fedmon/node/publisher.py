"""Samples become numbered batches, and go out as far as the owner's policy lets them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from fedmon.common.errors import InvalidMessageError
from fedmon.common.metrics.sample import Sample
from fedmon.common.metrics.series import metric_name
from fedmon.common.wire import codec
from fedmon.common.wire.samples import SampleBatch
from fedmon.node.batch import Batch, OpenBatch

logger = logging.getLogger(__name__)

HOST_STREAM = "host"
SAMPLES_PUBLISHED = "agent_samples_published_total"
SAMPLES_DROPPED = "agent_samples_dropped_total"


class Publisher:
    """Numbers the samples of one stream, gathers them, and hands each batch to ``send``.

    The first sample of a boot has seq 0, and each sample one more than the one before, whether it was sent or not: a
    receiver sees what it missed. A batch goes out with 10 samples, before it is 10 s or 64 KiB large, when the series
    change, and with each sample while ``live``. ``send(payload)`` never waits and returns False when there is no
    connection: those samples are counted as dropped. ``leaves(name)`` tells whether a metric leaves this node; only
    the columns of those that do are sent. ``on_sent(names, samples)`` is told which metrics left, and how often. Every
    method is safe from any thread.
    """

    def __init__(
        self,
        *,
        node_id: str,
        boot: int,
        send: Callable[[bytes], bool],
        leaves: Callable[[str], bool],
        interval_s: float,
        stream: str = HOST_STREAM,
        on_sent: Callable[[Iterable[str], int], None] = lambda _names, _samples: None,
    ) -> None:
        self._node_id, self._boot, self._stream = node_id, boot, stream
        self._send, self._leaves, self._on_sent = send, leaves, on_sent
        self._chosen = _Chosen((), leaves)
        self._interval_s, self._live = interval_s, False
        self._lock = threading.Lock()
        self._open: OpenBatch | None = None
        self._next_seq = 0
        self._published = self._batches = self._dropped = self._withheld = 0

    def publish(self, sample: Sample) -> None:
        """Take the next sample, and send the batch when it is complete; for ``Sampler.on_sample``."""
        with self._lock:
            if self._open is not None and self._open.fits(sample):
                self._open.add(sample)
            else:
                self._close()
                self._open = OpenBatch(boot=self._boot, stream=self._stream, seq=self._next_seq, first=sample)
            self._next_seq += 1
            self._close_when_complete()

    def set_pace(self, *, interval_s: float, live: bool) -> None:
        """Learn when the next sample comes, and whether somebody wants each at once."""
        with self._lock:
            self._interval_s, self._live = interval_s, live
            self._close_when_complete()

    def set_boot(self, boot: int) -> None:
        """Start again at seq 0 under another boot; what was gathered goes out under the old one."""
        with self._lock:
            if boot != self._boot:
                self._close()
                self._boot, self._next_seq = boot, 0

    def set_leaves(self, leaves: Callable[[str], bool]) -> None:
        """Obey another policy from the next batch on."""
        with self._lock:
            self._leaves, self._chosen = leaves, _Chosen((), leaves)

    def flush(self) -> None:
        """Send what was gathered, complete or not."""
        with self._lock:
            self._close()

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
        """Return how many samples were dropped because there was no connection."""
        return self._dropped

    @property
    def withheld(self) -> int:
        """Return how many samples stayed here whole because the policy lets none of their metrics leave."""
        return self._withheld

    @property
    def last_seq(self) -> int | None:
        """Return the number of the newest sample of this boot; None before the first."""
        return self._next_seq - 1 if self._next_seq else None

    def _close_when_complete(self) -> None:
        if self._open is not None and (self._live or self._open.complete(self._interval_s)):
            self._close()

    def _close(self) -> None:
        if self._open is not None:
            batch, self._open = self._open.close(), None
            self._deliver(batch)

    def _deliver(self, batch: Batch) -> None:
        """Send the part of a closed batch that may leave; a recording of everything belongs before this."""
        if self._chosen.among != tuple(batch.columns):
            self._chosen = _Chosen(tuple(batch.columns), self._leaves)
        columns = {key: batch.columns[key] for key in self._chosen.series}
        if not columns:
            self._withheld += len(batch.t)
            return
        message = SampleBatch(
            node_id=self._node_id,
            boot=batch.boot,
            stream=batch.stream,
            seq=batch.seq,
            t=batch.t,
            mono=batch.mono,
            m=columns,
            reasons={key: reason for key, reason in batch.reasons.items() if key in columns},
        )
        try:
            payload = codec.encode(message)
        except InvalidMessageError as error:
            self._too_large(batch, error)
            return
        if self._send(payload):
            self._published += len(batch.t)
            self._batches += 1
            self._on_sent(self._chosen.names, len(batch.t))
        else:
            self._dropped += len(batch.t)

    def _too_large(self, batch: Batch, error: InvalidMessageError) -> None:
        if len(batch.t) == 1:
            self._dropped += 1
            logger.error("sample %d of stream %s dropped: %s; let fewer metrics leave", batch.seq, batch.stream, error)
            return
        for half in batch.halves():
            self._deliver(half)


class _Chosen:
    """Which of some series leave the node, and the names of their metrics; the same from batch to batch."""

    def __init__(self, among: tuple[str, ...], leaves: Callable[[str], bool]) -> None:
        self.among = among
        self.series = tuple(key for key in among if leaves(metric_name(key)))
        self.names = tuple(dict.fromkeys(map(metric_name, self.series)))
