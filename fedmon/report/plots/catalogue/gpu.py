"""Figures of GPUs: each GPU for itself per node, all of them together over nodes."""

from __future__ import annotations

from fedmon.report.plots.figure import Figure, Group, Join, Quantity


def _each(name: str, title: str, *metrics: str, join: Join = Join.AVERAGE, **fields: object) -> Figure:
    """Make a figure with a line for every GPU, or for a part of one."""
    lines = dict.fromkeys(metrics, "") if len(metrics) == 1 else {}
    given = {
        "name": name,
        "group": Group.GPU,
        "title": title,
        "lines": lines,
        "split": True,
        "within": join,
        "over": join,
    }
    return Figure(**(given | fields))  # type: ignore[arg-type]  # the fields of a figure, as given


FIGURES: tuple[Figure, ...] = (
    _each("gpu_load", "GPU load", "gpu_utilization_ratio"),
    _each("gpu_memory_load", "Load of GPU memory", "gpu_memory_utilization_ratio"),
    _each(
        "gpu_memory",
        "GPU memory",
        join=Join.TOTAL,
        lines={
            "gpu_memory_used_bytes": "used",
            "gpu_memory_free_bytes": "free",
            "gpu_memory_reserved_bytes": "reserved",
            "gpu_memory_total_bytes": "all there is",
        },
    ),
    _each("gpu_power", "GPU power", "gpu_power_watts", join=Join.TOTAL),
    _each("gpu_energy", "GPU power, from its energy counter", "gpu_energy_joules_total", join=Join.TOTAL),
    _each("gpu_power_limits", "Limits of GPU power", "gpu_power_limit_watts", keep=("limit",), over=None),
    _each("gpu_temperature", "GPU temperature", "gpu_temperature_celsius", within=Join.HIGHEST),
    _each(
        "gpu_memory_temperature",
        "Temperature of GPU memory",
        "gpu_memory_temperature_celsius",
        within=Join.HIGHEST,
    ),
    _each("gpu_clocks", "GPU clocks", "gpu_clock_hertz", keep=("clock",)),
    _each("gpu_clocks_max", "Highest GPU clocks", "gpu_clock_max_hertz", keep=("clock",), over=None),
    _each("gpu_fans", "GPU fans", "gpu_fan_speed_ratio"),
    _each(
        "gpu_codecs",
        "GPU encoders and decoders",
        lines={"gpu_encoder_utilization_ratio": "encoder", "gpu_decoder_utilization_ratio": "decoder"},
    ),
    _each(
        "gpu_pcie",
        "PCIe traffic of GPUs",
        join=Join.TOTAL,
        lines={
            "gpu_pcie_receive_bytes_per_second": "received",
            "gpu_pcie_transmit_bytes_per_second": "sent",
        },
    ),
    _each(
        "gpu_pcie_link",
        "PCIe generation and lanes of GPUs",
        lines={
            "gpu_pcie_link_generation": "generation",
            "gpu_pcie_link_generation_max": "highest generation",
            "gpu_pcie_link_lanes": "lanes",
            "gpu_pcie_link_lanes_max": "most lanes",
        },
        over=None,
    ),
    _each(
        "gpu_pcie_replays",
        "Packets that PCIe sent again",
        "gpu_pcie_replays_total",
        join=Join.TOTAL,
        noun="packets/s",
        quiet=True,
    ),
    _each(
        "gpu_nvlink",
        "NVLink traffic of GPUs",
        join=Join.TOTAL,
        lines={"gpu_nvlink_receive_bytes_total": "received", "gpu_nvlink_transmit_bytes_total": "sent"},
    ),
    _each("gpu_nvlink_state", "NVLinks (1 is up)", "gpu_nvlink_active", over=None),
    _each(
        "gpu_nvlink_errors",
        "NVLink errors",
        join=Join.TOTAL,
        lines={"gpu_nvlink_errors_total": "", "gpu_nvlink_link_errors_total": "of one link"},
        keep=("error",),
        noun="errors/s",
        quiet=True,
    ),
    _each("gpu_performance_state", "Performance state of GPUs (0 is fastest)", "gpu_performance_state", over=None),
    _each("gpu_throttled", "Reasons that hold GPU clocks down", "gpu_throttle_active", keep=("reason",), quiet=True),
    _each(
        "gpu_violations",
        "Time in which a policy held GPU clocks down",
        "gpu_violation_seconds_total",
        keep=("policy",),
        quiet=True,
    ),
    _each(
        "gpu_ecc_errors",
        "ECC errors of GPUs",
        "gpu_ecc_errors_total",
        join=Join.TOTAL,
        keep=("counter", "type"),
        noun="errors/s",
        quiet=True,
    ),
    _each("gpu_ecc", "ECC of GPUs (1 is on)", "gpu_ecc_enabled", over=None),
    _each(
        "gpu_bad_memory",
        "GPU memory out of use",
        join=Join.TOTAL,
        lines={"gpu_retired_pages": "pages", "gpu_remapped_rows": "rows"},
        keep=("cause",),
        quiet=True,
    ),
    _each(
        "gpu_bad_memory_state",
        "GPU memory that waits to be replaced (1 is yes)",
        lines={
            "gpu_page_retirement_pending": "pages pending",
            "gpu_row_remap_pending": "rows pending",
            "gpu_row_remap_failed": "rows failed",
        },
        quantity=Quantity.NUMBER,
        over=None,
        quiet=True,
    ),
    _each("gpu_processes", "Processes on GPUs", "gpu_processes", join=Join.TOTAL, keep=("type",), noun="processes"),
    _each(
        "gpu_bar1",
        "BAR1 memory of GPUs",
        join=Join.TOTAL,
        lines={
            "gpu_bar1_used_bytes": "used",
            "gpu_bar1_free_bytes": "free",
            "gpu_bar1_total_bytes": "all there is",
        },
    ),
    _each(
        "gpu_mig_memory",
        "Memory of GPU instances",
        join=Join.TOTAL,
        lines={
            "gpu_mig_memory_used_bytes": "used",
            "gpu_mig_memory_free_bytes": "free",
            "gpu_mig_memory_total_bytes": "all there is",
        },
    ),
    _each("gpu_mig_processors", "Multiprocessors of GPU instances", "gpu_mig_multiprocessors", over=None),
    _each("gpu_mig_processes", "Processes on GPU instances", "gpu_mig_processes", join=Join.TOTAL, noun="processes"),
)
