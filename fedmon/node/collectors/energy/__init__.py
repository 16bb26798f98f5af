"""Energy and power of the machine, the share of each job, and their emissions."""

from __future__ import annotations

from fedmon.node.collectors.energy.meter import EnergyMeter, energy_collectors, job_energy_collectors

__all__ = ["EnergyMeter", "energy_collectors", "job_energy_collectors"]
