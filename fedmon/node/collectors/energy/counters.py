"""Readers of energy counters of processors (RAPL) and of sensors of chips (hwmon), and their sums."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Why
from fedmon.node.collectors.files import PROBE, Reasons, SourceCollector, Values, read_number

SHORTEST_WRAP_S = 60.0
"""No counter wraps faster than this. Source: Intel SDM volume 3B, "RAPL Interfaces": around 60 s at high power."""
IMPOSSIBLE_WATTS = 10_000.0
"""A zone of one processor that seems to draw more did not count: its counter was reset."""
LONGEST_GAP_S = 600.0
"""The energy between two readings of a power further apart is unknown."""

_LEAST_ELAPSED_S = 1.0  # a counter is refreshed in steps: two readings at once may lie some milliseconds of it apart


class Part(enum.Enum):
    """The part of a machine that a source measures."""

    PLATFORM = "psys"
    PACKAGE = "package"
    DRAM = "dram"
    INSIDE = "inside"  # a part of its package, such as core and uncore
    CHIP = "chip"


class Source(NamedTuple):
    """A file with microjoules that count up, or with microwatts.

    ``name`` is unique among counters and among powers, and stays the same. ``range_uj`` is the value at which the
    counter starts again from 0; None if it does not or that is unknown. ``driver`` is that of a sensor's chip.
    """

    path: Path
    name: str
    series: str
    part: Part
    range_uj: int | None = None
    counts_energy: bool = True
    driver: str = ""


class PowerIntegral:
    """The energy below the trapezoids between readings of a power, in whole microjoules."""

    def __init__(self, name: str) -> None:
        self.total_uj = 0
        self._name, self._gap = name, ""
        self._last: tuple[int, float] | None = None

    def add(self, number: int, mono: float) -> str:
        """Add the energy since the previous reading; return the reason if it is not known.

        ``mono`` is monotonic time in seconds. After a reason this reading is the first one.
        """
        last, self._last = self._last, (number, mono)
        if last is None:
            gap, self._gap = self._gap, ""
            return gap
        drawn_uj, gap = self._between(number, last[0], mono - last[1])
        self.total_uj += drawn_uj
        return gap

    def restart(self, gap: str) -> None:
        """Begin with the next reading, which gives the reason ``gap``."""
        if self._last is not None:
            self._last, self._gap = None, gap

    def _between(self, power_uw: int, before_uw: int, elapsed_s: float) -> tuple[int, str]:
        if not 0 <= elapsed_s <= LONGEST_GAP_S:
            return 0, f"{Why.FAILED.value}: two readings of {self._name} are {elapsed_s:.0f} s apart"
        # A supply that feeds back or a battery that is charged shows less than nothing: no energy is given back here.
        return max(0, int((before_uw + power_uw) * elapsed_s / 2)), ""


class EnergyCounter(PowerIntegral):
    """The energy that one counter has shown since its first reading, in whole microjoules.

    ``max_watts`` is the most that it can measure. It decides whether a counter that went back has wrapped or was reset,
    and after which time it may have wrapped twice. Above ``impossible_watts`` it was reset.
    """

    def __init__(
        self, *, range_uj: int | None = None, max_watts: float = math.inf, impossible_watts: float = math.inf
    ) -> None:
        super().__init__("")
        self.range_uj, self._max_watts, self._impossible_watts = range_uj, max_watts, impossible_watts

    def _between(self, raw_uj: int, before_uj: int, elapsed_s: float) -> tuple[int, str]:
        elapsed_s = max(elapsed_s, _LEAST_ELAPSED_S)
        counted = raw_uj - before_uj
        if self.range_uj:
            shortest_s = max(self.range_uj / 1e6 / self._max_watts, SHORTEST_WRAP_S)
            if elapsed_s > shortest_s:
                return 0, (
                    f"{Why.FAILED.value}: the counter may have wrapped more than once in {elapsed_s:.0f} s, which takes"
                    f" it {shortest_s:.0f} s at {self._max_watts:g} W; sample more often"
                )
            across = counted + self.range_uj
            if counted < 0 <= across <= min(self._max_watts * elapsed_s * 1e6, self.range_uj / 2):
                counted = across
        if not 0 <= counted <= self._impossible_watts * elapsed_s * 1e6:
            return 0, (
                f"{Why.FAILED.value}: the counter went from {before_uj} to {raw_uj} uJ in {elapsed_s:.1f} s; it was"
                " reset, and the energy since the previous reading is not known"
            )
        return counted, ""


class SourceReader(SourceCollector):
    """The collector of every source of one kind; reads each once for each instant, on the sampler's thread alone.

    ``hint`` says how to get the right to read them.
    """

    def __init__(
        self,
        name: str,
        lane: Lane,
        sources: Iterable[Source],
        metrics: Iterable[str],
        *,
        untold: str,
        max_watts: float,
        impossible_watts: float = math.inf,
        hint: str = "",
    ) -> None:
        super().__init__(name, lane, metrics, where=name, untold=untold)
        self._hint = hint
        self._accounts = {
            source: EnergyCounter(range_uj=source.range_uj, max_watts=max_watts, impossible_watts=impossible_watts)
            if source.counts_energy
            else PowerIntegral(source.name)
            for source in sources
        }
        self._last: tuple[Instant, Values, Reasons] | None = None

    def _read(self, now: Instant) -> tuple[Values, Reasons]:
        if now == PROBE:
            found = self.readable()
            gaps = {source.series: reason for source, reason in found.items() if reason is not None}
            return dict.fromkeys(source.series for source in found), gaps
        values, gaps = self._at(now)
        return values, {key: reason for key, reason in gaps.items() if values[key] is None}

    def energy(self, now: Instant, counted: Collection[Source]) -> tuple[int, str]:
        """Return the microjoules of some sources since the node's start, and the reason if one is not known now."""
        _, gaps = self._at(now)
        reason = next((gaps[source.series] for source in counted if source.series in gaps), "")
        return sum(self._accounts[source].total_uj for source in counted), reason

    def _at(self, now: Instant) -> tuple[Values, Reasons]:
        """Return joules since the node's start or watts, and each reason of a missed reading or of unknown energy."""
        if self._last is None or self._last[0] != now:
            values: Values = {}
            gaps: Reasons = {}
            for source, energy in self._accounts.items():
                values[source.series], gap = self._reading(source, energy, now.mono)
                if gap:
                    gaps[source.series] = gap
            self._last = now, values, gaps
        return self._last[1:]

    def readable(self) -> dict[Source, str | None]:
        """Map each source to None if it can be read, else to the reason; counts nothing."""
        found: dict[Source, str | None] = {}
        for source in self._accounts:
            try:
                read_number(source.path)
                found[source] = None
            except CollectorUnavailableError as error:
                found[source] = self._reason(error)
        return found

    def _reading(self, source: Source, energy: PowerIntegral, mono: float) -> tuple[float | None, str]:
        try:
            number = read_number(source.path)
        except CollectorUnavailableError as error:
            if error.why is Why.NOT_FOUND or not source.counts_energy:  # a present counter goes on counting meanwhile
                energy.restart(f"{Why.FAILED.value}: {source.name} could not be read before")
            return None, self._reason(error)
        gap = energy.add(number, mono)
        if not source.counts_energy:
            return number / 1e6, gap
        return None if gap else energy.total_uj / 1e6, gap

    def _reason(self, error: CollectorUnavailableError) -> str:
        is_refused = self._hint and error.why is Why.NO_PERMISSION
        return f"{error.reason}: {self._hint}" if is_refused else error.reason
