"""All queries to a GPU, by how often their answers change.

Source of functions, units and constants: the NVML API reference (nvml.h) and the module ``pynvml``.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from fedmon.common.metrics.series import series, split_series
from fedmon.node.collectors.nvml.library import Nvml, RefusedError

Labels = Mapping[str, str]
UINT_MOST, WIDE_MOST = 2**32 - 2, 2**64 - 2
"""Above them a 32-bit or 64-bit answer is NVML_VALUE_NOT_AVAILABLE."""

CLOCKS = {name: f"NVML_CLOCK_{name.upper()}" for name in ("graphics", "sm", "video")} | {"memory": "NVML_CLOCK_MEM"}
_THROTTLES = (
    *("idle", "application_clocks", "software_power_cap", "hardware_slowdown", "sync_boost", "software_thermal"),
    *("hardware_thermal", "hardware_power_brake", "display_clocks", "board_limit", "reliability"),
)
THROTTLE_REASONS = {name: 1 << number for number, name in enumerate(_THROTTLES)}
"""Bits of nvmlClocksEventReason* (before: nvmlClocksThrottleReason*)."""
_POLICIES = ("power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability")
POLICIES = {name: f"NVML_PERF_POLICY_{name.upper()}" for name in _POLICIES} | {
    "application_clocks": "NVML_PERF_POLICY_TOTAL_APP_CLOCKS",
    "base_clocks": "NVML_PERF_POLICY_TOTAL_BASE_CLOCKS",
}
ECC_COUNTERS = {"volatile": "NVML_VOLATILE_ECC", "aggregate": "NVML_AGGREGATE_ECC"}
ECC_TYPES = {"corrected": "NVML_MEMORY_ERROR_TYPE_CORRECTED", "uncorrected": "NVML_MEMORY_ERROR_TYPE_UNCORRECTED"}
RETIREMENT_CAUSES = {
    "single_bit": "NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS",
    "double_bit": "NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR",
}
_LINK_ERRORS = ("replay", "recovery", "crc_flit", "crc_data", "ecc_data")
LINK_ERRORS = {name: f"NVML_NVLINK_ERROR_DL_{name.upper()}" for name in _LINK_ERRORS}
MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS of nvml.h 13; a card that has fewer refuses the rest once and is not asked for them again."""
_UNION = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t in the order of NVML_VALUE_TYPE_*."""


class Gpu(NamedTuple):
    """A device, or a MIG instance of one, with the handle by which NVML knows it."""

    nvml: Nvml
    handle: object
    labels: Labels

    def ask(self, call: str, *arguments: object) -> Any:
        """Call a function of NVML with the handle. Raises RefusedError."""
        return self.nvml.call(call, self.handle, *arguments)


class Value(NamedTuple):
    """One value of a metric of one device; None if the driver has no value."""

    metric: str
    labels: Labels
    number: float | None


class Query(NamedTuple):
    """A query that a device may refuse for good; then ``otherwise`` replaces it.

    ``name`` is unique within a device. ``gives`` names the metrics with their own labels; None if only an answer gives
    the labels.
    """

    name: str
    gives: tuple[tuple[str, Labels | None], ...]
    read: Callable[[Gpu], Iterator[Value]]
    otherwise: Query | None = None


class NvmlUnit(NamedTuple):
    """The conversion of an answer into base units: ``* times / per``; a number above ``most`` is no value.

    ``pick`` takes the number from the answer.
    """

    times: int = 1
    per: int = 1
    most: int = UINT_MOST
    pick: Callable[[Any], Any] = lambda answer: answer

    def value(self, answer: Any) -> float | None:
        """Return the number in base units; None if NVML has no value."""
        found = self.pick(answer)
        if found is None or not 0 <= found <= self.most:
            return None
        number: float = found * self.times if self.per == 1 else found * self.times / self.per
        return number

    def of(self, part: str | int) -> NvmlUnit:
        """Return the unit of an attribute or an index of the answer."""
        return self._replace(pick=operator.attrgetter(part) if isinstance(part, str) else operator.itemgetter(part))


ONE, WIDE, LENGTH = NvmlUnit(), NvmlUnit(most=WIDE_MOST), NvmlUnit(pick=len)
PERCENT, MILLI, MEGA, KILO, NANO = (
    NvmlUnit(per=100, most=100),
    NvmlUnit(per=1000),
    NvmlUnit(times=1_000_000),
    NvmlUnit(times=1000),
    NvmlUnit(per=1_000_000_000, most=WIDE_MOST),
)
CELSIUS = NvmlUnit(most=500)
"""NVML hands a negative or missing temperature out as an unsigned number far above it."""


def ask(call: str, units: Mapping[str, NvmlUnit], *arguments: str | int, otherwise: Query | None = None) -> Query:
    """Return the query that calls a function with the device's handle and ``arguments``.

    ``units`` are by metric, or by series without the labels of the device.
    """
    shown = f"{call}({', '.join(map(str, arguments))})" if arguments else call
    parts = [(*split_series(key), unit) for key, unit in units.items()]

    def read(gpu: Gpu) -> Iterator[Value]:
        answer = gpu.ask(call, *arguments)
        for metric, labels, unit in parts:
            yield Value(metric, labels, unit.value(answer))

    return Query(shown, tuple((metric, labels) for metric, labels, _ in parts), read, otherwise)


def field(
    constant: str, metric: str, unit: NvmlUnit, *, link: int | None = None, otherwise: Query | None = None
) -> Query:
    """Return the query for one field value, of a link for fields that each link has.

    A field has its own return code beside that of the call, and one number in the union that its type names.
    """
    scope = link or 0
    shown, labels = f"{constant}[{scope}]", {} if link is None else {"link": str(link)}

    def read(gpu: Gpu) -> Iterator[Value]:
        answer = gpu.ask("nvmlDeviceGetFieldValues", [(gpu.nvml.constant(constant), scope)])[0]
        if answer.nvmlReturn != 0:
            raise gpu.nvml.refusal(int(answer.nvmlReturn), shown)
        yield Value(metric, labels, unit.value(getattr(answer.value, _UNION[answer.valueType])))

    return Query(shown, ((metric, labels),), read, otherwise)


def _amounts(prefix: str, *fields: str) -> dict[str, NvmlUnit]:
    """Return the units of amounts of memory; the fields of the answer are named as the metrics."""
    return {f"{prefix}_{field}_bytes": WIDE.of(field) for field in fields}


def _throttle(call: str, supported_call: str, otherwise: Query | None = None) -> Query:
    metric = "gpu_throttle_active"

    def read(gpu: Gpu) -> Iterator[Value]:
        active, known = gpu.ask(call), -1
        with contextlib.suppress(RefusedError):  # a GPU that does not list the reasons that it can report
            known = gpu.ask(supported_call)
        for name, bit in THROTTLE_REASONS.items():
            if known & bit:
                yield Value(metric, {"reason": name}, None if active > WIDE_MOST else float(bool(active & bit)))

    return Query(call, ((metric, None),), read, otherwise)


def _info(metric: str, *, driver: bool) -> Query:
    def read(gpu: Gpu) -> Iterator[Value]:
        labels = {"uuid": gpu.ask("nvmlDeviceGetUUID"), "name": gpu.ask("nvmlDeviceGetName")}
        if driver:
            labels["driver"] = gpu.nvml.call("nvmlSystemGetDriverVersion")
        yield Value(metric, labels, 1.0)

    return Query("nvmlDeviceGetName", ((metric, None),), read)


def _link(link: int) -> Iterator[Query]:
    """Ask for one NVLink: state and bytes."""
    yield ask("nvmlDeviceGetNvLinkState", {series("gpu_nvlink_active", link=str(link)): ONE}, link)
    for word, kibibytes, counted in (
        ("transmit", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES"),
        ("receive", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES"),
    ):
        metric = f"gpu_nvlink_{word}_bytes_total"
        other = field(counted, metric, WIDE, link=link)
        yield field(kibibytes, metric, WIDE._replace(times=1024), link=link, otherwise=other)


def _link_errors(name: str, constant: str) -> Query:
    """Ask every link for one kind of error; a card with 18 links would else have 90 series that are nearly always 0."""
    total, single, call = "gpu_nvlink_errors_total", "gpu_nvlink_link_errors_total", "nvmlDeviceGetNvLinkErrorCounter"
    kind = {"error": name}

    def read(gpu: Gpu) -> Iterator[Value]:
        counts: dict[int, float | None] = {}
        refusal: RefusedError | None = None
        for link in range(MAX_LINKS):
            try:
                counts[link] = WIDE.value(gpu.ask(call, link, constant))
            except RefusedError as error:
                if not error.is_final:
                    raise
                refusal = error
                if error.error == "INVALID_ARGUMENT":
                    break  # the card has no more links
        if refusal is not None and not counts:
            raise refusal
        known = [count for count in counts.values() if count is not None]
        yield Value(total, kind, sum(known) if len(known) == len(counts) else None)
        for link, count in counts.items():
            if count:
                yield Value(single, {"link": str(link), **kind}, count)

    return Query(f"{call}({constant})", ((total, kind), (single, None)), read)


def _different(entries: Any) -> int:
    return len({entry.pid for entry in entries})


def is_partitioned(gpu: Gpu) -> bool | None:
    """Tell whether MIG is on; None if the GPU did not answer. A GPU without MIG has it off."""
    try:
        return bool(gpu.ask("nvmlDeviceGetMigMode")[0] == 1)
    except RefusedError as error:
        return False if error.is_final else None


def instances(gpu: Gpu) -> list[tuple[str, Gpu]]:
    """Return the MIG instances of a GPU, each with its identity. Raises RefusedError."""
    found = []
    for index in range(gpu.ask("nvmlDeviceGetMaxMigDeviceCount")):
        with contextlib.suppress(RefusedError):  # no instance has this index
            handle = gpu.ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
            identity = gpu.nvml.call("nvmlDeviceGetUUID", handle)
            found.append((identity, Gpu(gpu.nvml, handle, {**gpu.labels, "mig": str(index)})))
    return found


def describe(gpu: Gpu) -> dict[str, Any]:
    """Describe this GPU by the answers that it gives; the serial number is not asked for."""
    asked: dict[str, Callable[[], object]] = {
        "gpu": lambda: gpu.labels["gpu"],
        "model": lambda: gpu.ask("nvmlDeviceGetName"),
        "uuid": lambda: gpu.ask("nvmlDeviceGetUUID"),
        "memory_bytes": lambda: int(gpu.ask("nvmlDeviceGetMemoryInfo").total),
        "mig": lambda: is_partitioned(gpu),
        "driver_version": lambda: gpu.nvml.call("nvmlSystemGetDriverVersion"),
        "cuda_version": lambda: _cuda(gpu),
    }
    found: dict[str, Any] = {}
    for name, ask in asked.items():
        with contextlib.suppress(RefusedError, AttributeError, TypeError, ValueError):
            found[name] = ask()
    return {name: value for name, value in found.items() if value is not None}


def _cuda(gpu: Gpu) -> str:
    # 12040 is 12.4: thousands are the major and tens the minor version (nvmlSystemGetCudaDriverVersion).
    version: Any = gpu.nvml.call("nvmlSystemGetCudaDriverVersion_v2")
    return f"{version // 1000}.{version % 1000 // 10}"


_MEMORY = _amounts("gpu_memory", "total", "used", "free")
_THROTTLE_OLD = _throttle("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetSupportedClocksThrottleReasons")

FAST: tuple[Query, ...] = (
    ask(
        "nvmlDeviceGetUtilizationRates",
        {"gpu_utilization_ratio": PERCENT.of("gpu"), "gpu_memory_utilization_ratio": PERCENT.of("memory")},
    ),
    # Drivers before 510 know no reserved memory and count it as used.
    ask(
        "nvmlDeviceGetMemoryInfo",
        _MEMORY | _amounts("gpu_memory", "reserved"),
        "nvmlMemory_v2",
        otherwise=ask("nvmlDeviceGetMemoryInfo", _MEMORY),
    ),
    ask("nvmlDeviceGetEncoderUtilization", {"gpu_encoder_utilization_ratio": PERCENT.of(0)}),
    ask("nvmlDeviceGetDecoderUtilization", {"gpu_decoder_utilization_ratio": PERCENT.of(0)}),
    *(
        ask("nvmlDeviceGetClockInfo", {series("gpu_clock_hertz", clock=name): MEGA}, clock)
        for name, clock in CLOCKS.items()
    ),
    ask("nvmlDeviceGetTemperature", {"gpu_temperature_celsius": CELSIUS}, "NVML_TEMPERATURE_GPU"),
    field("NVML_FI_DEV_MEMORY_TEMP", "gpu_memory_temperature_celsius", CELSIUS),
    ask("nvmlDeviceGetFanSpeed", {"gpu_fan_speed_ratio": NvmlUnit(per=100, most=1000)}),
    ask("nvmlDeviceGetPowerUsage", {"gpu_power_watts": MILLI}),
    ask("nvmlDeviceGetTotalEnergyConsumption", {"gpu_energy_joules_total": NvmlUnit(per=1000, most=WIDE_MOST)}),
    ask("nvmlDeviceGetPerformanceState", {"gpu_performance_state": NvmlUnit(most=31)}),  # NVML_PSTATE_UNKNOWN is 32
    _throttle("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSupportedClocksEventReasons", _THROTTLE_OLD),
)
"""Asked at each tick."""

MEDIUM: tuple[Query, ...] = (
    ask(
        "nvmlDeviceGetBAR1MemoryInfo",
        {f"gpu_bar1_{amount}_bytes": WIDE.of(f"bar1{amount.title()}") for amount in ("total", "used", "free")},
    ),
    *(
        ask(
            "nvmlDeviceGetViolationStatus",
            {series("gpu_violation_seconds_total", policy=name): NANO.of("violationTime")},
            constant,
        )
        for name, constant in POLICIES.items()
    ),
    *(
        ask(
            "nvmlDeviceGetTotalEccErrors",
            {series("gpu_ecc_errors_total", counter=counter, type=kind): WIDE},
            kind_constant,
            counter_constant,
        )
        for counter, counter_constant in ECC_COUNTERS.items()
        for kind, kind_constant in ECC_TYPES.items()
    ),
    ask("nvmlDeviceGetCurrPcieLinkGeneration", {"gpu_pcie_link_generation": ONE}),
    ask("nvmlDeviceGetCurrPcieLinkWidth", {"gpu_pcie_link_lanes": ONE}),
    ask("nvmlDeviceGetPcieReplayCounter", {"gpu_pcie_replays_total": ONE}),
    *(query for link in range(MAX_LINKS) for query in _link(link)),
    *(_link_errors(name, constant) for name, constant in LINK_ERRORS.items()),
)
"""Asked every 10 s: counters that may wait, states of the bus, and links."""

PCIE: tuple[Query, ...] = (
    ask("nvmlDeviceGetPcieThroughput", {"gpu_pcie_transmit_bytes_per_second": KILO}, "NVML_PCIE_UTIL_TX_BYTES"),
    ask("nvmlDeviceGetPcieThroughput", {"gpu_pcie_receive_bytes_per_second": KILO}, "NVML_PCIE_UTIL_RX_BYTES"),
)
"""Asked every 10 s by themselves, since NVML counts for 20 ms before it answers; in KB/s."""

_LIMITS = {
    "set": "nvmlDeviceGetPowerManagementLimit",
    "enforced": "nvmlDeviceGetEnforcedPowerLimit",
    "default": "nvmlDeviceGetPowerManagementDefaultLimit",
}
SLOW: tuple[Query, ...] = (
    _info("gpu_info", driver=True),
    *(
        ask("nvmlDeviceGetMaxClockInfo", {series("gpu_clock_max_hertz", clock=name): MEGA}, clock)
        for name, clock in CLOCKS.items()
    ),
    *(ask(call, {series("gpu_power_limit_watts", limit=name): MILLI}) for name, call in _LIMITS.items()),
    ask(
        "nvmlDeviceGetPowerManagementLimitConstraints",
        {
            series("gpu_power_limit_watts", limit="lowest"): MILLI.of(0),
            series("gpu_power_limit_watts", limit="highest"): MILLI.of(1),
        },
    ),
    ask("nvmlDeviceGetMaxPcieLinkGeneration", {"gpu_pcie_link_generation_max": ONE}),
    ask("nvmlDeviceGetMaxPcieLinkWidth", {"gpu_pcie_link_lanes_max": ONE}),
    ask("nvmlDeviceGetEccMode", {"gpu_ecc_enabled": ONE.of(0)}),
    *(
        ask("nvmlDeviceGetRetiredPages", {series("gpu_retired_pages", cause=cause): LENGTH}, constant)
        for cause, constant in RETIREMENT_CAUSES.items()
    ),
    ask("nvmlDeviceGetRetiredPagesPendingStatus", {"gpu_page_retirement_pending": ONE}),
    ask(
        "nvmlDeviceGetRemappedRows",
        {
            series("gpu_remapped_rows", cause="corrected"): ONE.of(0),
            series("gpu_remapped_rows", cause="uncorrected"): ONE.of(1),
            "gpu_row_remap_pending": ONE.of(2),
            "gpu_row_remap_failed": ONE.of(3),
        },
    ),
)
"""Asked every minute: limits, and the repairs of the memory."""

MIG: tuple[Query, ...] = (
    _info("gpu_mig_info", driver=False),
    ask("nvmlDeviceGetMemoryInfo", _amounts("gpu_mig_memory", "total", "used", "free")),
    ask("nvmlDeviceGetAttributes_v2", {"gpu_mig_multiprocessors": ONE.of("multiprocessorCount")}),
    ask("nvmlDeviceGetComputeRunningProcesses", {"gpu_mig_processes": NvmlUnit(pick=_different)}),
)
"""Asked at each tick of each MIG instance."""
