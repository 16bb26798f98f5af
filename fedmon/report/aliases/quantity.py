"""How a value of another tool follows from our metrics; each kind of quantity reads instants in order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

import msgspec
import numpy as np

from fedmon.common.metrics.series import metric_name
from fedmon.report.aliases.instants import Instants
from fedmon.report.aliases.survey import Moment, Place
from fedmon.report.block import Block, Floats
from fedmon.report.rates import Rates

Reader = Callable[[Instants], Floats]


class Uses(msgspec.Struct, frozen=True, kw_only=True):
    """The series of the machine and of the job that a quantity needs."""

    host: frozenset[str] = frozenset()
    job: frozenset[str] = frozenset()


class Quantity(Protocol):
    """A number that another tool reports."""

    def uses(self, place: Place) -> Uses | None:
        """Return which series it needs of those that a place has; None where it cannot be told."""
        ...

    def reader(self, place: Place) -> Reader:
        """Return what computes it for one place, from all instants in order; NaN is a value that is not known."""
        ...


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of some series, times a factor; unknown when one of them is."""

    series: tuple[str, ...]
    times: float = 1.0
    is_of_job: bool = False

    def uses(self, place: Place) -> Uses | None:
        """Need all of them."""
        return _all(self.series, place, is_of_job=self.is_of_job)

    def reader(self, place: Place) -> Reader:  # noqa: ARG002
        """Return the sum."""

        def read(at: Instants) -> Floats:
            values = [at.of_job(name) if self.is_of_job else at.of_host(name) for name in self.series]
            total: Floats = np.sum(values, axis=0) * self.times
            return total

        return read


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """A counter of the machine, all of its instances together or one series, that never falls.

    An instance that restarted goes on from where it was, and one that is gone keeps what it counted. The sum is unknown
    while an instance that is still there was not read. With ``from_zero`` it counts from the first reading on.
    """

    metric: str
    times: float = 1.0
    from_zero: bool = False

    def uses(self, place: Place) -> Uses | None:
        """Need every instance there is."""
        names = frozenset(name for name in place.of_host if self.metric in (name, metric_name(name)))
        return Uses(host=names) if names else None

    def reader(self, place: Place) -> Reader:
        """Return the sum over the instances."""
        uses = self.uses(place)
        parts = [_Instance(name, place.of_host[name]) for name in sorted(uses.host if uses else ())]
        first: list[float] = []

        def read(at: Instants) -> Floats:
            values = np.stack([part.read(at) for part in parts])
            total = np.where(np.stack([part.is_there for part in parts]).any(axis=0), values.sum(axis=0), np.nan)
            known = total[~np.isnan(total)]
            if self.from_zero and not first and len(known):
                first.append(float(known[0]))
            return (total - first[0] if first else total) * self.times

        return read


class Computed(msgspec.Struct, frozen=True, kw_only=True):
    """What a function makes of some series of the machine and of the job, in this order; NaN where one is unknown."""

    compute: Callable[..., Floats]
    host: tuple[str, ...] = ()
    job: tuple[str, ...] = ()

    def uses(self, place: Place) -> Uses | None:
        """Need all of them."""
        if not set(self.host) <= place.of_host.keys() or not set(self.job) <= place.of_job.keys():
            return None
        return Uses(host=frozenset(self.host), job=frozenset(self.job))

    def reader(self, place: Place) -> Reader:  # noqa: ARG002
        """Return what the function makes of them."""

        def read(at: Instants) -> Floats:
            with np.errstate(invalid="ignore", divide="ignore"):
                values = self.compute(*map(at.of_host, self.host), *map(at.of_job, self.job))
            return np.where(np.isfinite(values), values, np.nan)

        return read


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """How much counters grew since the reading before, together; with ``clock`` only where that counter grew too.

    ``per_second`` divides by the growth of ``clock``, or by the time that passed.
    """

    series: tuple[str, ...]
    clock: str | None = None
    times: float = 1.0
    per_second: bool = False
    is_of_job: bool = False

    def uses(self, place: Place) -> Uses | None:
        """Need all of them, and the clock."""
        wanted = self.series if self.clock is None else (*self.series, self.clock)
        return _all(wanted, place, is_of_job=self.is_of_job)

    def reader(self, place: Place) -> Reader:  # noqa: ARG002
        """Return the growth."""
        rates = Rates()

        def read(at: Instants) -> Floats:
            columns = at.job if self.is_of_job else at.host
            names = self.series if self.clock is None else (*self.series, self.clock)
            if any(name not in columns for name in names):
                return np.full(len(at.t), np.nan)
            block = Block(at.node_id, at.boot, "", 0, at.t, at.mono, columns)
            found = {name: rates.of(block, name) for name in names}
            if self.clock is None:
                rows = [found[name].per_second if self.per_second else found[name].increase for name in self.series]
                total: Floats = np.sum(rows, axis=0) * self.times
                return total
            clock = found[self.clock].increase
            grown = np.sum([found[name].increase for name in self.series], axis=0)
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.where(clock > 0, (grown / clock if self.per_second else grown) * self.times, np.nan)

        return read


class _Instance:
    """One instance of a counter, followed over restarts."""

    def __init__(self, series: str, end: Moment) -> None:
        self._series, self._end = series, end
        self._last: float | None = None
        self._before = 0.0
        self.is_there = np.zeros(0, dtype=bool)

    def read(self, at: Instants) -> Floats:
        raw = at.of_host(self._series)
        known = np.flatnonzero(~np.isnan(raw))
        self.is_there = ~np.isnan(raw)
        total = np.full(len(raw), np.nan)
        begun = self._last is not None
        if len(known):
            readings = raw[known]
            earlier = np.concatenate([[readings[0] if self._last is None else self._last], readings[:-1]])
            before = self._before + np.cumsum(np.where(readings < earlier, earlier, 0.0))
            total[known] = readings + before
            self._last, self._before = float(readings[-1]), float(before[-1])
        if not begun:
            total[: known[0] if len(known) else len(raw)] = 0.0
        if at.boot > self._end[0]:
            total[np.isnan(total)] = self._kept
        elif at.boot == self._end[0]:
            total[np.isnan(total) & (at.mono > self._end[1])] = self._kept
        return total

    @property
    def _kept(self) -> float:
        return self._before + (self._last or 0.0)


def _all(names: Collection[str], place: Place, *, is_of_job: bool) -> Uses | None:
    known = place.of_job if is_of_job else place.of_host
    if any(name not in known for name in names):
        return None
    return Uses(job=frozenset(names)) if is_of_job else Uses(host=frozenset(names))
