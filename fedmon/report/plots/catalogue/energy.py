"""Figures of energy: power of processors and machines, and what it emitted."""

from __future__ import annotations

from fedmon.report.plots.figure import Figure, Group, Join

FIGURES: tuple[Figure, ...] = (
    Figure(
        name="power",
        group=Group.ENERGY,
        title="Power of the machine",
        lines={"node_energy_joules_total": ""},
        keep=("method",),
        over=Join.TOTAL,
    ),
    Figure(
        name="emissions",
        group=Group.ENERGY,
        title="CO2 equivalent emitted",
        lines={"node_emissions_grams_total": ""},
        keep=("method",),
        over=Join.TOTAL,
    ),
    Figure(
        name="rapl_power",
        group=Group.ENERGY,
        title="RAPL power",
        lines={"rapl_energy_joules_total": ""},
        keep=("zone",),
        over=Join.TOTAL,
        detail="zone",
    ),
    Figure(
        name="sensor_power",
        group=Group.ENERGY,
        title="Power that sensors show",
        lines={"hwmon_power_watts": "power", "hwmon_energy_joules_total": "from energy"},
        split=True,
        within=Join.HIGHEST,
        over=Join.TOTAL,
    ),
)
