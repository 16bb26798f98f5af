"""Everything that is asked of a GPU, by how often it changes.

Source of functions, units and constants: the NVML API reference (nvml.h) and the module ``pynvml``.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedmon.node.collectors.nvml.library import Meaning, RefusedError, number, text
from fedmon.node.collectors.nvml.query import Gpu, Part, Query, Value, ask, field

_WIDE = 2**64 - 2
_PERCENT = 100
_MEGAHERTZ = 1_000_000
_HOTTEST = 500
"""Degrees Celsius; NVML hands a negative or missing temperature out as an unsigned number far above it."""
_UNKNOWN_STATE = 31
"""NVML_PSTATE_UNKNOWN is 32."""

CLOCKS = {
    "graphics": "NVML_CLOCK_GRAPHICS",
    "sm": "NVML_CLOCK_SM",
    "memory": "NVML_CLOCK_MEM",
    "video": "NVML_CLOCK_VIDEO",
}
THROTTLE_REASONS = {
    "idle": 0x1,
    "application_clocks": 0x2,
    "software_power_cap": 0x4,
    "hardware_slowdown": 0x8,
    "sync_boost": 0x10,
    "software_thermal": 0x20,
    "hardware_thermal": 0x40,
    "hardware_power_brake": 0x80,
    "display_clocks": 0x100,
    "board_limit": 0x200,
    "reliability": 0x400,
}
"""Bits of nvmlClocksEventReason* (before: nvmlClocksThrottleReason*)."""
POLICIES = {
    "power": "NVML_PERF_POLICY_POWER",
    "thermal": "NVML_PERF_POLICY_THERMAL",
    "sync_boost": "NVML_PERF_POLICY_SYNC_BOOST",
    "board_limit": "NVML_PERF_POLICY_BOARD_LIMIT",
    "low_utilization": "NVML_PERF_POLICY_LOW_UTILIZATION",
    "reliability": "NVML_PERF_POLICY_RELIABILITY",
    "application_clocks": "NVML_PERF_POLICY_TOTAL_APP_CLOCKS",
    "base_clocks": "NVML_PERF_POLICY_TOTAL_BASE_CLOCKS",
}
ECC_COUNTERS = {"volatile": "NVML_VOLATILE_ECC", "aggregate": "NVML_AGGREGATE_ECC"}
ECC_TYPES = {"corrected": "NVML_MEMORY_ERROR_TYPE_CORRECTED", "uncorrected": "NVML_MEMORY_ERROR_TYPE_UNCORRECTED"}
RETIREMENT_CAUSES = {
    "single_bit": "NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS",
    "double_bit": "NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR",
}


def _busy(call: str, metric: str) -> Query:
    return ask(call, parts=(Part(metric, 0, per=_PERCENT, most=_PERCENT),))


def _memory(prefix: str, names: dict[str, str]) -> tuple[Part, ...]:
    return tuple(Part(f"{prefix}_{name}_bytes", pick, most=_WIDE) for name, pick in names.items())


def _throttle(call: str, supported_call: str, otherwise: Query | None = None) -> Query:
    metric = "gpu_throttle_active"

    def read(gpu: Gpu) -> Iterator[Value]:
        active = number(gpu.nvml.call(call, gpu.handle), call=call)
        known = _mask(gpu, supported_call)
        for name, bit in THROTTLE_REASONS.items():
            if known is None or known & bit:
                yield Value(metric, (("reason", name),), None if active is None else float(bool(int(active) & bit)))

    return Query(call, ((metric, None),), read, otherwise)


def _mask(gpu: Gpu, call: str) -> int | None:
    """Return the reasons that this GPU can tell; None where it does not say which."""
    try:
        known = number(gpu.nvml.call(call, gpu.handle), call=call)
    except RefusedError as error:
        if error.meaning in (Meaning.LOST, Meaning.ENDED):
            raise
        return None
    return None if known is None else int(known)


def _retired(cause: str, constant: str) -> Query:
    labels, call = (("cause", cause),), "nvmlDeviceGetRetiredPages"

    def read(gpu: Gpu) -> Iterator[Value]:
        pages = gpu.nvml.call(call, gpu.handle, constant)
        yield Value("gpu_retired_pages", labels, len(pages) if isinstance(pages, list | tuple) else None)

    return Query(f"{call}({constant})", (("gpu_retired_pages", labels),), read)


def _info(gpu: Gpu) -> Iterator[Value]:
    uuid = text(gpu.nvml.call("nvmlDeviceGetUUID", gpu.handle))
    name = text(gpu.nvml.call("nvmlDeviceGetName", gpu.handle))
    driver = text(gpu.nvml.call("nvmlSystemGetDriverVersion"))
    yield Value("gpu_info", (("uuid", uuid), ("name", name), ("driver", driver)), 1.0)


_MEMORY = {"total": "total", "used": "used", "free": "free"}

FAST: tuple[Query, ...] = (
    ask(
        "nvmlDeviceGetUtilizationRates",
        parts=(
            Part("gpu_utilization_ratio", "gpu", per=_PERCENT, most=_PERCENT),
            Part("gpu_memory_utilization_ratio", "memory", per=_PERCENT, most=_PERCENT),
        ),
    ),
    ask(
        "nvmlDeviceGetMemoryInfo",
        "nvmlMemory_v2",
        parts=_memory("gpu_memory", {**_MEMORY, "reserved": "reserved"}),
        # Drivers before 510 know no reserved memory and count it as used.
        otherwise=ask("nvmlDeviceGetMemoryInfo", parts=_memory("gpu_memory", _MEMORY)),
    ),
    _busy("nvmlDeviceGetEncoderUtilization", "gpu_encoder_utilization_ratio"),
    _busy("nvmlDeviceGetDecoderUtilization", "gpu_decoder_utilization_ratio"),
    *(
        ask(
            "nvmlDeviceGetClockInfo",
            constant,
            parts=(Part("gpu_clock_hertz", times=_MEGAHERTZ, labels=(("clock", name),)),),
        )
        for name, constant in CLOCKS.items()
    ),
    ask("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU", parts=(Part("gpu_temperature_celsius", most=_HOTTEST),)),
    field("NVML_FI_DEV_MEMORY_TEMP", Part("gpu_memory_temperature_celsius", most=_HOTTEST)),
    ask("nvmlDeviceGetFanSpeed", parts=(Part("gpu_fan_speed_ratio", per=_PERCENT, most=10 * _PERCENT),)),
    ask("nvmlDeviceGetPowerUsage", parts=(Part("gpu_power_watts", per=1000),)),
    ask("nvmlDeviceGetTotalEnergyConsumption", parts=(Part("gpu_energy_joules_total", per=1000, most=_WIDE),)),
    ask("nvmlDeviceGetPerformanceState", parts=(Part("gpu_performance_state", most=_UNKNOWN_STATE),)),
    _throttle(
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetSupportedClocksEventReasons",
        otherwise=_throttle("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetSupportedClocksThrottleReasons"),
    ),
)
"""Asked at each tick."""

MEDIUM: tuple[Query, ...] = (
    ask(
        "nvmlDeviceGetBAR1MemoryInfo",
        parts=_memory("gpu_bar1", {"total": "bar1Total", "used": "bar1Used", "free": "bar1Free"}),
    ),
    *(
        ask(
            "nvmlDeviceGetViolationStatus",
            constant,
            parts=(
                Part(
                    "gpu_violation_seconds_total",
                    "violationTime",
                    per=1_000_000_000,
                    most=_WIDE,
                    labels=(("policy", name),),
                ),
            ),
        )
        for name, constant in POLICIES.items()
    ),
    *(
        ask(
            "nvmlDeviceGetTotalEccErrors",
            kind_constant,
            counter_constant,
            parts=(Part("gpu_ecc_errors_total", most=_WIDE, labels=(("counter", counter), ("type", kind))),),
        )
        for counter, counter_constant in ECC_COUNTERS.items()
        for kind, kind_constant in ECC_TYPES.items()
    ),
    ask("nvmlDeviceGetCurrPcieLinkGeneration", parts=(Part("gpu_pcie_link_generation"),)),
    ask("nvmlDeviceGetCurrPcieLinkWidth", parts=(Part("gpu_pcie_link_lanes"),)),
    ask("nvmlDeviceGetPcieReplayCounter", parts=(Part("gpu_pcie_replays_total"),)),
)
"""Asked every 10 s: counters that may wait, and states of the bus."""


PCIE: tuple[Query, ...] = tuple(
    ask("nvmlDeviceGetPcieThroughput", constant, parts=(Part(f"gpu_pcie_{word}_bytes_per_second", times=1000),))
    for word, constant in (("transmit", "NVML_PCIE_UTIL_TX_BYTES"), ("receive", "NVML_PCIE_UTIL_RX_BYTES"))
)
"""Asked every 10 s in a thread of their own, since NVML counts for 20 ms before it answers; in KB/s."""

SLOW: tuple[Query, ...] = (
    Query("nvmlDeviceGetName", (("gpu_info", None),), _info),
    *(
        ask(
            "nvmlDeviceGetMaxClockInfo",
            constant,
            parts=(Part("gpu_clock_max_hertz", times=_MEGAHERTZ, labels=(("clock", name),)),),
        )
        for name, constant in CLOCKS.items()
    ),
    *(
        ask(call, parts=(Part("gpu_power_limit_watts", per=1000, labels=(("limit", name),)),))
        for name, call in (
            ("set", "nvmlDeviceGetPowerManagementLimit"),
            ("enforced", "nvmlDeviceGetEnforcedPowerLimit"),
            ("default", "nvmlDeviceGetPowerManagementDefaultLimit"),
        )
    ),
    ask(
        "nvmlDeviceGetPowerManagementLimitConstraints",
        parts=tuple(
            Part("gpu_power_limit_watts", index, per=1000, labels=(("limit", name),))
            for index, name in enumerate(("lowest", "highest"))
        ),
    ),
    ask("nvmlDeviceGetMaxPcieLinkGeneration", parts=(Part("gpu_pcie_link_generation_max"),)),
    ask("nvmlDeviceGetMaxPcieLinkWidth", parts=(Part("gpu_pcie_link_lanes_max"),)),
    ask("nvmlDeviceGetEccMode", parts=(Part("gpu_ecc_enabled", 0),)),
    *(_retired(cause, constant) for cause, constant in RETIREMENT_CAUSES.items()),
    ask("nvmlDeviceGetRetiredPagesPendingStatus", parts=(Part("gpu_page_retirement_pending"),)),
    ask(
        "nvmlDeviceGetRemappedRows",
        parts=(
            Part("gpu_remapped_rows", 0, labels=(("cause", "corrected"),)),
            Part("gpu_remapped_rows", 1, labels=(("cause", "uncorrected"),)),
            Part("gpu_row_remap_pending", 2),
            Part("gpu_row_remap_failed", 3),
        ),
    ),
)
"""Asked every minute: limits, and what is repaired in the memory."""

MIG: tuple[Query, ...] = (
    ask("nvmlDeviceGetMemoryInfo", parts=_memory("gpu_mig_memory", _MEMORY)),
    ask("nvmlDeviceGetAttributes_v2", parts=(Part("gpu_mig_multiprocessors", "multiprocessorCount"),)),
)
"""Asked at each tick of each MIG instance."""
