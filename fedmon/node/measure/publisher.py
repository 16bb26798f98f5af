"""Numbered batches of samples, measured or reported by programs: all are kept, and the policy says which leave."""

from __future__ import annotations

import functools
import logging
import math
import operator
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import SupportsFloat, SupportsIndex

import msgspec

from fedmon.common.errors import InvalidInputError, InvalidMessageError
from fedmon.common.metrics.sample import USER_STREAM, Batch, Sample
from fedmon.common.metrics.series import metric_name, series
from fedmon.common.wire import codec
from fedmon.common.wire.runs import NOT_FINITE
from fedmon.node.requests.quotas import Throttle

logger = logging.getLogger(__name__)

HOST_STREAM = "host"
SAMPLES_PUBLISHED = "agent_samples_published_total"
SAMPLES_DROPPED = "agent_samples_dropped_total"

MAX_SAMPLES = 10
MAX_AGE_S = 10.0
MAX_BYTES = 65_536
MAX_SAMPLE_BYTES = 90_000
"""The room of one sample's series in a message, beside everything else that it carries."""
_MAX_REMEMBERED = 64


class Publisher:
    """Numbers the samples of each stream, gathers them, and hands each batch to ``keep`` and to ``send``.

    The first sample of a stream has seq 0, each further one the next number, whether it was sent or not: a receiver
    sees its gaps. A batch closes at 10 samples, at 10 s, before other reasons, and with each sample while ``live``.
    ``keep(batch)`` gets everything. ``send(payload)`` gets the part that may leave, in messages of 64 KiB, and returns
    False without a connection; values of runs are not sent. Neither may wait. ``leaves(name)`` tells whether a metric
    leaves this node, and ``on_sent(names, samples)`` gets the metrics that left and how often.

    ``published`` counts samples handed to the connection, ``dropped`` those not sent without one, and ``withheld``
    those none of whose metrics may leave. Every method is safe from any thread.
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
        self._next_seq: dict[str, int] = {}
        self._open: dict[str, list[Sample]] = {}
        """The samples of each open batch, by stream."""
        self._has_cut = False
        self.published = self.dropped = self.withheld = 0

    def publish(self, stream: str, sample: Sample) -> int:
        """Take the next sample of a stream, close a complete batch, and return the sample's number."""
        with self._lock:
            if stream in self._open and self._open[stream][-1].reasons != sample.reasons:
                self._close(stream)  # the reasons of a batch hold for each of its samples
            self._open.setdefault(stream, []).append(sample)
            seq = self._next_seq.get(stream, 0)
            self._next_seq[stream] = seq + 1
            if self._is_complete(stream):
                self._close(stream)
            return seq

    def set_pace(self, *, interval_s: float, live: bool) -> None:
        """Set the distance of samples, and whether a lease wants each at once."""
        with self._lock:
            self._interval_s, self._live = interval_s, live
            for stream in filter(self._is_complete, list(self._open)):
                self._close(stream)

    def close_older(self, mono: float) -> None:
        """Close batches whose first sample is 10 s old at ``mono``: a stream may have fallen silent.

        A sample with a time in the future, as a program may report it, does not keep its batch open until then.
        """
        with self._lock:
            for stream, samples in list(self._open.items()):
                if abs(mono - samples[0].mono) >= MAX_AGE_S:
                    self._close(stream)

    def set_leaves(self, leaves: Callable[[str], bool]) -> None:
        """Obey another policy from the next batch on."""

        @functools.lru_cache(maxsize=_MAX_REMEMBERED)
        def leaving(among: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
            """Return the series that leave, and the names of their metrics, each once."""
            found = [key for key in among if leaves(metric_name(key))]
            return found, tuple(dict.fromkeys(map(metric_name, found)))

        self._leaving = leaving

    def flush(self, stream: str | None = None) -> None:
        """Close open batches, of one stream or of all."""
        with self._lock:
            for name in list(self._open):
                if stream in (None, name):
                    self._close(name)

    def counts(self) -> dict[str, float | None]:
        """Return the ``agent_`` metrics of the publisher, for `agent_collector`."""
        return {SAMPLES_PUBLISHED: self.published, SAMPLES_DROPPED: self.dropped}

    def last_seq(self, stream: str = HOST_STREAM) -> int | None:
        """Return the number of the newest sample of a stream; None before the first."""
        next_seq = self._next_seq.get(stream)
        return None if next_seq is None else next_seq - 1

    @property
    def taken(self) -> int:
        """The number of samples of all streams since the start."""
        return sum(list(self._next_seq.values()))

    @property
    def open_samples(self) -> int:
        """The number of samples in open batches."""
        return sum(map(len, list(self._open.values())))

    def _is_complete(self, stream: str) -> bool:
        """Tell whether an open batch closes now: it is live or full, or would be too old when the next sample comes."""
        samples = self._open[stream]
        # A tenth of a tick of tolerance: ticks are a little late, and none of them is early.
        age_s = samples[-1].mono - samples[0].mono + 0.9 * self._interval_s
        return (self._live and _is_sent(stream)) or len(samples) >= MAX_SAMPLES or age_s > MAX_AGE_S

    def _close(self, stream: str) -> None:
        samples = self._open.pop(stream)
        batch = self._batch(stream, samples, self._next_seq[stream] - len(samples))
        self._keep(batch)
        if _is_sent(stream):
            self._deliver(samples, batch)

    def _batch(self, stream: str, samples: list[Sample], seq: int) -> Batch:
        """Make a batch of samples with the same reasons; a series that a sample lacks is null in it."""
        names = dict.fromkeys(key for sample in samples for key in sample.values)
        return Batch(
            node_id=self._node_id,
            boot=self._boot,
            stream=stream,
            seq=seq,
            t=[round(sample.t, 3) for sample in samples],
            mono=[round(sample.mono, 6) for sample in samples],
            columns={key: [sample.values.get(key) for sample in samples] for key in names},
            reasons=samples[0].reasons,
        )

    def _deliver(self, samples: list[Sample], batch: Batch) -> None:
        """Send the part of a closed batch that may leave, in halves if it is too large for one message."""
        found, names = self._leaving(tuple(batch.columns))
        if not found:
            self.withheld += len(samples)
            return
        leaving = batch if len(found) == len(batch.columns) else batch.only(found)
        try:
            payload = codec.encode(leaving)
            is_large = len(payload) > MAX_BYTES
        except InvalidMessageError as error:
            is_large = True
            if len(samples) == 1:
                part = fitting(leaving, MAX_SAMPLE_BYTES)
                left_out = len(found) - len(part.columns)
                level = logging.DEBUG if self._has_cut else logging.WARNING
                logger.log(level, "a sample of stream %s goes without %d series: %s", batch.stream, left_out, error)
                self._has_cut = True
                payload = codec.encode(part)
        if is_large and len(samples) > 1:
            middle = len(samples) // 2
            for half, seq in ((samples[:middle], batch.seq), (samples[middle:], batch.seq + middle)):
                self._deliver(half, self._batch(batch.stream, half, seq))
        elif self._send(payload):
            self.published += len(samples)
            self._on_sent(names, len(samples))
        else:
            self.dropped += len(samples)


def _is_sent(stream: str) -> bool:
    """Tell whether a stream is published: values of runs go to their researcher alone, by other messages."""
    return not stream.startswith(f"{USER_STREAM}-")


def fitting(batch: Batch, max_bytes: int) -> Batch:
    """Return a batch of one sample with as many series as fit into ``max_bytes`` of JSON, or a tenth fewer.

    The metrics with the most series are cut: a thousand sensors cost no other metric. The rest stays in the recording:
    a sample leaves in one message or not at all.
    """
    counts = Counter(map(metric_name, batch.columns))
    names = sorted(batch.columns, key=lambda key: counts[metric_name(key)])
    while names and len(msgspec.json.encode(batch.only(names))) > max_bytes:
        del names[-(len(names) // 10 + 1) :]
    return batch.only(names)


# --- values of programs ----------------------------------------------------------------------------------------------

VALUE = "user_value"
STEP = "user_step"
VALUES_DROPPED = "user_values_dropped_total"
MAX_NAME_CHARS = 256
MAX_STEP = 2**53
"""Up to here every whole number has its own float. Source: IEEE 754, binary64."""
BURST = 2000
PER_S = 200.0
_MAX_T = 253_402_300_800.0
"""The year 10000, where calendars of programs end."""

Number = SupportsFloat | SupportsIndex


class UserValues:
    """Turns named values of programs, such as a loss, into samples of the stream ``user`` for ``publish``.

    Every method is safe from any thread and never waits. ``burst`` values are taken at once and ``per_s`` a second in
    the long run; ``dropped`` counts the rest. A value that is not finite is an event of the program: it is kept as null
    with the reason "failed: not finite". A value that is not a number is an error of the caller, and refused.
    """

    def __init__(
        self,
        publish: Callable[[str, Sample], object],
        *,
        burst: int = BURST,
        per_s: float = PER_S,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publish = publish
        self._throttle = Throttle(burst=burst, per_s=per_s, monotonic=monotonic)
        self._wall, self._monotonic = wall, monotonic
        self._lock = threading.Lock()
        self.dropped = 0

    def add_scalar(
        self, name: str, value: Number, step: int | None = None, t: float | None = None, *, job: str | None = None
    ) -> bool:
        """Report one value, and return whether it is taken.

        A name is any text of 1 to 256 characters. ``step`` is the program's own count, ``t`` Unix seconds (default:
        now), ``job`` the id of the job that the value belongs to. Raises InvalidInputError.
        """
        labels = {"name": _text(name, "the name of a value")}
        number, reason = _checked(name, value)
        if job is not None:
            labels["job"] = _text(job, "a job id")
        key = series(VALUE, **labels)
        readings = {key: number}
        if step is not None:
            readings[series(STEP, **labels)] = _checked_step(step)
        if t is not None and not (math.isfinite(t) and 0 <= t < _MAX_T):
            raise InvalidInputError(f"t={t!r} is not a time: give Unix seconds, or omit it for now")
        # Publishing under the lock keeps samples in the order of their times.
        with self._lock:
            if not self._throttle.allows("values"):
                self.dropped += 1
                return False
            wall, mono = self._wall(), self._monotonic()
            if self.dropped:
                readings[VALUES_DROPPED] = self.dropped
            when = wall if t is None else float(t)
            reasons = {key: reason} if reason else {}
            self._publish(USER_STREAM, Sample(t=when, mono=mono + (when - wall), values=readings, reasons=reasons))
        return True


def _checked(name: str, value: Number) -> tuple[float | None, str]:
    """Return a value and an empty reason, or None and the reason for a value that is not finite."""
    try:
        if isinstance(value, str | bytes | bytearray):
            raise TypeError
        number = float(value)
    except OverflowError:  # an integer that is larger than every float
        return None, f"{NOT_FINITE}: an integer beyond 1.8e308"
    except (TypeError, ValueError, RuntimeError):  # libraries of arrays choose among these for more than one element
        shown = repr(value) if isinstance(value, str | bytes) and len(value) <= 40 else f"a {type(value).__name__}"
        raise InvalidInputError(
            f"the value of {name!r} is {shown}, not a number: give an int, a float or a 0-d array"
        ) from None
    return (number, "") if math.isfinite(number) else (None, f"{NOT_FINITE}: {number}")


def _text(text: object, what: str) -> str:
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_NAME_CHARS:
        given = f"of {len(text)} characters" if isinstance(text, str) else f"of type {type(text).__name__}"
        raise InvalidInputError(f"{what} {given} cannot be used: give a text of 1 to {MAX_NAME_CHARS} characters")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InvalidInputError(f"{what} {text!r} holds half a character, which no file and no message can")
    return text


def _checked_step(step: object) -> int:
    try:
        number = operator.index(int(step) if isinstance(step, float) and step.is_integer() else step)  # type: ignore[arg-type]  # raises TypeError
    except TypeError:
        raise InvalidInputError(f"step={step!r} is not a whole number: give the epoch or iteration") from None
    if abs(number) > MAX_STEP:
        raise InvalidInputError(f"step={step!r} is beyond {MAX_STEP}")
    return number
