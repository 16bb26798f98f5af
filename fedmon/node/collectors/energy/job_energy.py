"""What a node reports of the energy of one job."""

from __future__ import annotations

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Lane, Reading
from fedmon.node.collectors.energy.meter import EnergyMeter, joules_of_a_job, kilowatt_hours_of_a_job

JOULES = "job_energy_joules_total"
KILOWATT_HOURS = "job_energy_kilowatt_hours_total"
GRAMS = "job_emissions_grams_total"


class JobEnergyCollector:
    """Reports a job's share of the machine's energy since the job was seen first; ``close`` ends its account.

    ``joules`` is the newest value, None before the first, and ``read_at`` its Unix time.
    """

    name = "job_energy"

    def __init__(self, meter: EnergyMeter, job_id: str) -> None:
        self._meter, self._job_id = meter, job_id
        self.joules: float | None = None
        self.read_at = 0.0
        meter.watch(job_id)

    @property
    def lane(self) -> Lane:
        """Return how often the meter can be read."""
        return self._meter.lane

    def collect(self, now: Instant) -> Reading:
        """Read the meter."""
        energy = self._meter.job(now, self._job_id)
        if self._meter.no_shares_ever:
            return Reading({})
        if energy.uj is None:
            return Reading({JOULES: None}, {JOULES: energy.reason or ""})
        self.joules, self.read_at = joules_of_a_job(energy.uj), now.t
        return Reading({JOULES: self.joules})

    def probe(self) -> dict[str, str | None]:
        """Say whether jobs get a share."""
        return {JOULES: self._meter.no_shares()}

    def close(self) -> None:
        """Let the meter forget the job."""
        self._meter.forget(self._job_id)


class JobEmissionsCollector:
    """Reports the same share in kilowatt-hours, and what it emitted where the owner has chosen a factor."""

    name = "job_emissions"
    lane = Lane.MEDIUM

    def __init__(self, meter: EnergyMeter, job_id: str) -> None:
        self._meter, self._job_id = meter, job_id

    def collect(self, now: Instant) -> Reading:
        """Read the meter."""
        energy = self._meter.job(now, self._job_id)
        if self._meter.no_shares_ever:
            return Reading({})
        keys = [KILOWATT_HOURS] if self._meter.no_factor else [KILOWATT_HOURS, GRAMS]
        if energy.uj is None:
            return Reading(dict.fromkeys(keys), dict.fromkeys(keys, energy.reason or ""))
        found = kilowatt_hours_of_a_job(energy.uj), self._meter.grams_of_a_job(energy.uj)
        return Reading(dict(zip(keys, found, strict=False)))

    def probe(self) -> dict[str, str | None]:
        """Say whether jobs get a share, and whether there is a factor."""
        reason = self._meter.no_shares()
        return {KILOWATT_HOURS: reason, GRAMS: self._meter.no_factor or reason}
