"""Energy and power of the machine, the share of each job, and what they emit.

``energy_collectors`` gives the collectors of the stream ``host`` and the meter behind them; ``job_energy_collectors``
gives those of a job's stream.
"""

from __future__ import annotations

from collections.abc import Callable

from fedmon.common.settings.values import EnergySettings
from fedmon.node.collectors.base import Collector, Roots
from fedmon.node.collectors.energy.meter import (
    EnergyCollector,
    EnergyMeter,
    GpuEnergy,
    GpuShares,
    JobCpu,
    JobEnergyCollector,
)
from fedmon.node.collectors.energy.sources import hwmon_collector, rapl_collector

__all__ = ["EnergyMeter", "energy_collectors", "job_energy_collectors"]


def energy_collectors(
    roots: Roots,
    settings: EnergySettings,
    *,
    job_cpu: JobCpu | None = None,
    busy_cpu: Callable[[], float] | None = None,
    gpu_energy: GpuEnergy | None = None,
    gpu_shares: GpuShares | None = None,
) -> tuple[list[Collector], EnergyMeter]:
    """Return the collectors of the machine's energy, and their meter; the arguments are as in EnergyMeter."""
    meter = EnergyMeter(
        roots, settings, job_cpu=job_cpu, busy_cpu=busy_cpu, gpu_energy=gpu_energy, gpu_shares=gpu_shares
    )
    collectors: list[Collector] = [
        rapl_collector(meter.rapl),
        hwmon_collector(meter.hwmon),
        EnergyCollector(meter),
        EnergyCollector(meter, emissions=True),
    ]
    return collectors, meter


def job_energy_collectors(meter: EnergyMeter, job_id: str) -> list[Collector]:
    """Return the collectors of one job's share, for the stream of that job."""
    return [JobEnergyCollector(meter, job_id), EnergyCollector(meter, job_id, emissions=True)]
