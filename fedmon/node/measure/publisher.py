"""Numbered batches of samples: all are kept, and the metrics that the owner's policy lets leave are sent."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable

import msgspec

from fedmon.common.errors import InvalidMessageError
from fedmon.common.metrics.sample import Batch, Sample
from fedmon.common.metrics.series import metric_name
from fedmon.common.wire import codec
from fedmon.common.wire.samples import as_message

logger = logging.getLogger(__name__)

HOST_STREAM = "host"
SAMPLES_PUBLISHED = "agent_samples_published_total"
SAMPLES_DROPPED = "agent_samples_dropped_total"

MAX_SAMPLES = 10
MAX_AGE_S = 10.0
MAX_BYTES = 65_536
MAX_SAMPLE_BYTES = 90_000
"""What the series of one sample may take, so that it fits into a message whatever else that carries."""

_FRAME_BYTES = 256
_NUMBER_BYTES = 25
_LONE_NUMBER_BYTES = 32
"""Of a batch of one sample, where each number has brackets around it."""
_MAX_REMEMBERED = 64


class Publisher:
    """Numbers the samples of each stream, gathers them, and hands each batch to ``keep`` and to ``send``.

    The first sample of a stream has seq 0, and each sample one more than the one before, whether it was sent or not: a
    receiver sees what it missed. A batch is closed with 10 samples, before it is 10 s or 64 KiB large, and with each
    sample while ``live``. ``keep(batch)`` is given everything that was measured. ``send(payload)`` is given what may
    leave and returns False when there is no connection. Neither ever waits. ``leaves(name)`` tells whether a metric
    leaves this node. ``on_sent(names, samples)`` is told which metrics left, and how often.

    Samples and batches that were handed to the connection are counted in ``published`` and ``batches``. ``dropped``
    counts samples that were not sent because there was no connection, and ``withheld`` those of which the policy lets
    no metric leave. Every method is safe from any thread.
    """

    def __init__(
        self,
        *,
        node_id: str,
        boot: int,
        send: Callable[[bytes], bool],
        leaves: Callable[[str], bool],
        interval_s: float,
        keep: Callable[[Batch], object] = lambda _batch: None,
        on_sent: Callable[[Iterable[str], int], None] = lambda _names, _samples: None,
    ) -> None:
        self._node_id, self._boot = node_id, boot
        self._keep, self._send, self._on_sent = keep, send, on_sent
        self.set_leaves(leaves)
        self._interval_s, self._live = interval_s, False
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}
        self.published = self.batches = self.dropped = self.withheld = 0

    def publish(self, stream: str, sample: Sample, *, is_private: bool = False) -> int:
        """Take the next sample of a stream, close the batch when it is complete, and return the sample's number.

        A private sample is kept and not sent. For ``Sampler.on_sample``.
        """
        with self._lock:
            state = self._streams.get(stream)
            if state is None:
                state = self._streams[stream] = _Stream(self._node_id, self._boot, stream, is_private=is_private)
            if not state.fits(sample):
                self._close(state)
            state.add(sample)
            if (self._live and not is_private) or state.is_complete(self._interval_s):
                self._close(state)
            return state.next_seq - 1

    def set_pace(self, *, interval_s: float, live: bool) -> None:
        """Set when the next sample comes, and whether a lease wants each at once."""
        with self._lock:
            self._interval_s, self._live = interval_s, live
            for state in self._streams.values():
                if (live and not state.is_private) or state.is_complete(interval_s):
                    self._close(state)

    def close_older(self, mono: float) -> None:
        """Close batches whose first sample is 10 s old at ``mono``: a stream may have fallen silent.

        A sample with a time in the future, as a program may report it, does not keep its batch open until then.
        """
        with self._lock:
            for state in self._streams.values():
                if state.samples and abs(mono - state.samples[0].mono) >= MAX_AGE_S:
                    self._close(state)

    def set_leaves(self, leaves: Callable[[str], bool]) -> None:
        """Obey another policy from the next batch on."""

        @functools.lru_cache(maxsize=_MAX_REMEMBERED)
        def leaving(among: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
            """Choose among series: those that leave, and the names of their metrics, each once."""
            series = [key for key in among if leaves(metric_name(key))]
            return series, tuple(dict.fromkeys(map(metric_name, series)))

        self._leaving = leaving

    def flush(self, stream: str | None = None) -> None:
        """Close what was gathered, complete or not, of one stream or of all."""
        with self._lock:
            for name, state in self._streams.items():
                if stream in (None, name):
                    self._close(state)

    def counts(self) -> dict[str, float | None]:
        """Return the ``agent_`` metrics that the publisher keeps, for AgentCollector."""
        return {SAMPLES_PUBLISHED: self.published, SAMPLES_DROPPED: self.dropped}

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
        return sum(len(state.samples) for state in list(self._streams.values()))

    def _close(self, state: _Stream) -> None:
        if state.samples:
            batch = state.close()
            self._keep(batch)
            if not state.is_private:
                self._deliver(batch)

    def _deliver(self, batch: Batch) -> None:
        """Send the part of a closed batch that may leave."""
        series, names = self._leaving(tuple(batch.columns))
        if not series:
            self.withheld += len(batch.t)
            return
        leaving = batch if len(series) == len(batch.columns) else batch.only(series)
        try:
            payload = codec.encode(as_message(leaving))
        except InvalidMessageError as error:
            self._shrink(batch, leaving, error)
            return
        if self._send(payload):
            self.published += len(batch.t)
            self.batches += 1
            self._on_sent(names, len(batch.t))
        else:
            self.dropped += len(batch.t)

    def _shrink(self, batch: Batch, leaving: Batch, error: InvalidMessageError) -> None:
        """Send a batch that is too large for one message in parts."""
        if len(batch.t) > 1:
            middle = batch.seq + len(batch.t) // 2
            self._deliver(batch.part(batch.seq, middle - 1))
            self._deliver(batch.part(middle, batch.last_seq))
            return
        part = fitting(leaving, MAX_SAMPLE_BYTES)
        left_out = len(batch.columns) - len(part.columns)
        logger.error("a sample of stream %s goes without %d series: %s; let fewer leave", batch.stream, left_out, error)
        self._deliver(part)


class _Stream:
    """One stream: the number of its next sample, and the ``samples`` of the batch that is still open.

    Samples need not have the same series: what one lacks is null in the batch, without a reason.
    """

    def __init__(self, node_id: str, boot: int, name: str, *, is_private: bool) -> None:
        self._node_id, self._boot, self._name, self.is_private = node_id, boot, name, is_private
        self.next_seq = 0
        self._open()

    def _open(self) -> None:
        self.samples: list[Sample] = []
        self._series: dict[str, None] = {}
        self._keys: tuple[str, ...] = ()
        self._is_even = True
        self._reasons: dict[str, str] = {}
        self._size = _FRAME_BYTES

    def fits(self, sample: Sample) -> bool:
        """Tell whether a sample finds room; the first one always does."""
        return not self.samples or self._size + self._added(sample) <= MAX_BYTES

    def add(self, sample: Sample) -> None:
        """Take a sample that fits."""
        self._size += self._added(sample)
        keys = tuple(sample.values)
        if keys != self._keys:
            self._is_even = not self.samples
            self._keys = keys
            self._series.update(sample.values)  # type: ignore[arg-type]  # only the keys count
        self.samples.append(sample)
        self.next_seq += 1
        if sample.reasons:
            self._reasons.update(sample.reasons)

    def is_complete(self, next_in_s: float) -> bool:
        """Tell whether the batch goes out now: it is full, or would be too old when the next sample comes."""
        if not self.samples:
            return False
        age_s = self.samples[-1].mono - self.samples[0].mono
        # A tenth of a tick of tolerance: ticks are a little late, and none of them is early.
        return len(self.samples) >= MAX_SAMPLES or age_s + 0.9 * next_in_s > MAX_AGE_S

    def close(self) -> Batch:
        """Return what was gathered, and begin the next batch."""
        batch = Batch(
            node_id=self._node_id,
            boot=self._boot,
            stream=self._name,
            seq=self.next_seq - len(self.samples),
            t=[round(sample.t, 3) for sample in self.samples],
            mono=[round(sample.mono, 6) for sample in self.samples],
            columns=self._columns(),
            reasons=self._reasons,
        )
        self._open()
        return batch

    def _columns(self) -> dict[str, list[float | None]]:
        if self._is_even:
            rows = [sample.values.values() for sample in self.samples]
            return {key: list(column) for key, column in zip(self._keys, zip(*rows, strict=True), strict=True)}
        return {key: [sample.values.get(key) for sample in self.samples] for key in self._series}

    def _added(self, sample: Sample) -> int:
        # Upper bounds, so that nothing has to be encoded twice: numbers of at most 24 characters, and each name once.
        names = 0
        if len(sample.values) != len(self._keys) or tuple(sample.values) != self._keys:
            new = [key for key in sample.values if key not in self._series]
            # A series that is new has an entry for each sample that lacks it.
            names = sum(map(_text_bytes, new)) + (8 + 5 * len(self.samples)) * len(new)
        reasons = sum(
            _text_bytes(key) + _text_bytes(text) + 8
            for key, text in sample.reasons.items()
            if self._reasons.get(key) != text
        )
        return (max(len(self._series), len(sample.values)) + 2) * _NUMBER_BYTES + names + reasons


def fitting(batch: Batch, max_bytes: int) -> Batch:
    """Return a batch of one sample with as many series as ``max_bytes`` of JSON are sure to hold, in their order.

    What is left out stays in the recording; a sample has no other way out than one message.
    """
    series: list[str] = []
    size = 0
    for key in batch.columns:
        why, name_bytes = batch.reasons.get(key), _text_bytes(key)
        size += name_bytes + _LONE_NUMBER_BYTES + (name_bytes + _text_bytes(why) + 2 if why else 0)
        if size > max_bytes:
            break
        series.append(key)
    return batch.only(series)


def _text_bytes(text: str) -> int:
    """Return how many bytes a text takes in JSON, where one character may take six: names may be users' own."""
    return len(msgspec.json.encode(text))
