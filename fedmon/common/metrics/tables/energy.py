"""Energy and power of the machine and the share of a job."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric, metrics

ROWS: list[Metric] = [
    *metrics(
        "/sys/class/powercap/*/energy_uj",
        {
            "rapl_energy_joules_total": "Energy that one zone of a processor drew since the node's start; core, uncore"
            " and the like are parts of their package, dram is not."
        },
        labels=("zone",),
    ),
    *metrics(
        "/sys/class/hwmon/*/powerN_input, else powerN_average",
        {"hwmon_power_watts": "Power that a sensor of a chip shows; sensors may overlap."},
        labels=("chip", "sensor"),
    ),
    *metrics(
        "/sys/class/hwmon/*/energyN_input",
        {"hwmon_energy_joules_total": "Energy that a sensor of a chip counted since the node's start."},
        labels=("chip", "sensor"),
    ),
    *metrics(
        "psys; else packages, dram and GPUs; else hwmon power over time",
        {
            "node_energy_joules_total": "Energy that the machine drew since the node's start, by method: psys (the"
            " platform's counter), components (packages, dram and GPUs), hwmon (power sensors integrated over time),"
            " gpus (nothing but GPUs could be read).",
            "node_energy_kilowatt_hours_total": "The same energy in kilowatt-hours.",
        },
        labels=("method",),
    ),
    *metrics(
        "node_energy_kilowatt_hours_total x PUE x emission factor",
        {
            "node_emissions_grams_total": "CO2 equivalent of that energy, in grams; only where the owner has chosen a"
            " region or a factor."
        },
        labels=("method",),
    ),
    *metrics(
        "[energy] of the settings, or the table of factors",
        {"node_emissions_factor_info": "Always 1; the labels describe the emission factor in use, and the PUE."},
        labels=("region", "name", "gco2e_per_kwh", "date", "source", "table", "pue"),
    ),
    *metrics(
        "node_energy_joules_total by CPU time, GPUs by share of use",
        {
            "job_energy_joules_total": "The job's share of the machine's energy since the job was seen first; all jobs"
            " together never get more than the machine drew.",
            "job_energy_kilowatt_hours_total": "The same share in kilowatt-hours.",
        },
    ),
    *metrics(
        "job_energy_kilowatt_hours_total x PUE x emission factor",
        {
            "job_emissions_grams_total": "CO2 equivalent of that share, in grams; only where the owner has chosen a"
            " region or a factor."
        },
    ),
]
