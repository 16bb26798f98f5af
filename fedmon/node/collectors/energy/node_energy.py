"""What a node reports of its own energy."""

from __future__ import annotations

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Lane, Reading
from fedmon.node.collectors.energy.meter import EnergyMeter, joules, kilowatt_hours

JOULES = "node_energy_joules_total"
KILOWATT_HOURS = "node_energy_kilowatt_hours_total"
GRAMS = "node_emissions_grams_total"
FACTOR = "node_emissions_factor_info"


class NodeEnergyCollector:
    """Reports the energy of the whole machine since the node's start; the label says how it was found."""

    name = "node_energy"

    def __init__(self, meter: EnergyMeter) -> None:
        self._meter = meter

    @property
    def lane(self) -> Lane:
        """Return how often the meter can be read."""
        return self._meter.lane

    def collect(self, now: Instant) -> Reading:
        """Read the meter."""
        energy = self._meter.node(now)
        if self._meter.method is None:
            return Reading({})
        key = series(JOULES, method=self._meter.method)
        if energy.uj is None:
            return Reading({key: None}, {key: energy.reason or ""})
        return Reading({key: joules(energy.uj)})

    def probe(self) -> dict[str, str | None]:
        """Say whether there is a way to find the energy."""
        return {JOULES: None if self._meter.method else self._meter.no_method}


class NodeEmissionsCollector:
    """Reports the same energy in kilowatt-hours, and what it emitted where the owner has chosen a factor."""

    name = "node_emissions"
    lane = Lane.MEDIUM

    def __init__(self, meter: EnergyMeter) -> None:
        self._meter = meter

    def collect(self, now: Instant) -> Reading:
        """Read the meter."""
        energy, method = self._meter.node(now), self._meter.method
        if method is None:
            return Reading({})
        keys = [series(KILOWATT_HOURS, method=method)]
        if self._meter.no_factor is None:
            keys.append(series(GRAMS, method=method))
        if energy.uj is None:
            return Reading(dict.fromkeys(keys), dict.fromkeys(keys, energy.reason or ""))
        return Reading(dict(zip(keys, (kilowatt_hours(energy.uj), self._meter.grams(energy.uj)), strict=False)))

    def probe(self) -> dict[str, str | None]:
        """Say whether there is a way to find the energy, and a factor."""
        reason = None if self._meter.method else self._meter.no_method
        return {KILOWATT_HOURS: reason, GRAMS: self._meter.no_factor or reason, FACTOR: self._meter.no_factor}
