"""Values that a program reports, such as an accuracy or a loss, on the time axis of everything measured."""

from __future__ import annotations

import math
import operator
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import SupportsFloat, SupportsIndex

from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.sample import USER_STREAM, Sample
from fedmon.common.metrics.series import series
from fedmon.common.wire.runs import NOT_FINITE

VALUE = "user_value"
STEP = "user_step"
DROPPED = "user_values_dropped_total"
MAX_NAME_CHARS = 256
MAX_STEP = 2**53
"""Up to here every whole number is a different one in a recording and in JSON. Source: IEEE 754, binary64."""
BURST = 2000
PER_S = 200.0

_SAMPLE_BYTES = 32_768
_MAX_T = 253_402_300_800.0
"""The year 10000, where calendars of programs end."""

Number = SupportsFloat | SupportsIndex


class UserValues:
    """Turns named values into samples of the stream ``user`` and hands each to ``publish(stream, sample)``.

    Every method is safe from any thread and never waits. ``burst`` values are taken at once and ``per_s`` a second in
    the long run; what comes faster is dropped. ``taken`` and ``dropped`` count values since the start. A value that is
    not finite (a loss that became infinite) is an event of the program: it is kept as null with the reason "failed: not
    finite". A value that is not a number is an error of the caller, and refused.
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
        self._burst, self._per_s = float(burst), per_s
        self._wall, self._monotonic = wall, monotonic
        self._lock = threading.Lock()
        self._left, self._looked = float(burst), monotonic()
        self.taken = self.dropped = 0

    def add_scalar(
        self, name: str, value: Number, step: int | None = None, t: float | None = None, *, job: str | None = None
    ) -> int:
        """Report one value; see `add_scalars`."""
        return self.add_scalars({name: value}, step, t, job=job)

    def add_scalars(
        self, values: Mapping[str, Number], step: int | None = None, t: float | None = None, *, job: str | None = None
    ) -> int:
        """Report values of one moment, and return how many of them were taken.

        A name is any text of 1 to 256 characters. ``step`` is the program's own count, ``t`` Unix seconds when it was
        not now, ``job`` the id of the job that the values belong to. Raises InvalidInputError, and takes none of them,
        when one of these cannot be used.
        """
        checked = [(_text(name, "the name of a value"), *_checked(name, value)) for name, value in values.items()]
        number = None if step is None else _checked_step(step)
        labels = {} if job is None else {"job": _text(job, "a job id")}
        if t is not None and not (math.isfinite(t) and 0 <= t < _MAX_T):
            raise InvalidInputError(f"t={t!r} is no time: give Unix seconds, or leave it away for now")
        # Publishing under the lock keeps samples in the order of their times.
        with self._lock:
            wall, mono = self._wall(), self._monotonic()
            allowed = checked[: self._admit(len(checked), mono)]
            when = wall if t is None else float(t)
            for readings, reasons in self._parts(allowed, number, labels):
                self._publish(USER_STREAM, Sample(t=when, mono=mono + (when - wall), values=readings, reasons=reasons))
        return len(allowed)

    def _parts(
        self, values: list[tuple[str, float | None, str]], step: int | None, labels: Mapping[str, str]
    ) -> Iterator[tuple[dict[str, float | None], dict[str, str]]]:
        """Yield values and reasons of samples that each fit into a message, however long the names are."""
        readings: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        size = 0
        for name, value, reason in values:
            # A character takes 6 bytes of JSON at most, and a name stands in up to three series.
            cost = 3 * (6 * (len(name) + sum(map(len, labels.values()))) + 64)
            if readings and size + cost > _SAMPLE_BYTES:
                yield readings, reasons
                readings, reasons, size = {}, {}, 0
            size += cost
            key = series(VALUE, name=name, **labels)
            readings[key] = value
            if reason:
                reasons[key] = reason
            if step is not None:
                readings[series(STEP, name=name, **labels)] = step
        if readings:
            if self.dropped:
                readings[DROPPED] = self.dropped
            yield readings, reasons

    def _admit(self, count: int, now: float) -> int:
        """Return how many of ``count`` values are within the limit, and count the others."""
        self._left = min(self._burst, self._left + (now - self._looked) * self._per_s)
        self._looked = now
        admitted = min(count, int(self._left))
        self._left -= admitted
        self.taken += admitted
        self.dropped += count - admitted
        return admitted


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
        raise InvalidInputError(f"step={step!r} is no whole number: give the epoch or iteration") from None
    if abs(number) > MAX_STEP:
        raise InvalidInputError(f"step={step!r} is beyond {MAX_STEP}")
    return number
