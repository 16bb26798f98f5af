"""All questions to a GPU, by how often their answers change.

Source of functions, units and constants: the NVML API reference (nvml.h) and the module ``pynvml``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fedmon.node.collectors.nvml.library import Meaning, Nvml, RefusedError, number, text

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
LINK_ERRORS = {
    "replay": "NVML_NVLINK_ERROR_DL_REPLAY",
    "recovery": "NVML_NVLINK_ERROR_DL_RECOVERY",
    "crc_flit": "NVML_NVLINK_ERROR_DL_CRC_FLIT",
    "crc_data": "NVML_NVLINK_ERROR_DL_CRC_DATA",
    "ecc_data": "NVML_NVLINK_ERROR_DL_ECC_DATA",
}
MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS of nvml.h 13; a card that has fewer refuses the rest once and is not asked for them again."""

_ARCHITECTURES = "NVML_DEVICE_ARCH_"
_NAMED = ("KEPLER", "MAXWELL", "PASCAL", "VOLTA", "TURING", "AMPERE", "ADA", "HOPPER", "BLACKWELL", "RUBIN")
_LIST = "nvmlDeviceGetComputeRunningProcesses"

Labels = tuple[tuple[str, str], ...]
UINT_MOST = 2**32 - 2
"""Above it a 32-bit answer is NVML_VALUE_NOT_AVAILABLE_uint."""


class Gpu(NamedTuple):
    """A device, or a MIG instance of one, with the handle by which NVML knows it."""

    nvml: Nvml
    handle: object
    labels: Labels


class Value(NamedTuple):
    """One value of a metric of one device; None where the driver says that it has no value."""

    metric: str
    labels: Labels
    number: float | None


class Query(NamedTuple):
    """A question that a device may refuse for good; then ``otherwise`` is asked in its place.

    ``name`` is unique within a device. ``gives`` names the metrics with their own labels, which are None where only
    an answer tells them.
    """

    name: str
    gives: tuple[tuple[str, Labels | None], ...]
    read: Callable[[Gpu], Iterator[Value]]
    otherwise: Query | None = None


class Part(NamedTuple):
    """A number in an answer: where it is, and how it becomes base units: ``* times / per``.

    ``pick`` is an attribute or an index, None for the answer itself. A number above ``most`` is none.
    """

    metric: str
    pick: str | int | None = None
    times: int = 1
    per: int = 1
    most: int = UINT_MOST
    labels: Labels = ()


def ask(call: str, *arguments: str | int, parts: tuple[Part, ...], otherwise: Query | None = None) -> Query:
    """Make the query that calls one function with the device's handle and ``arguments``."""
    shown = f"{call}({', '.join(map(str, arguments))})" if arguments else call

    def read(gpu: Gpu) -> Iterator[Value]:
        answer = gpu.nvml.call(call, gpu.handle, *arguments)
        for part in parts:
            yield Value(part.metric, part.labels, scaled(part, answer, call=shown))

    return Query(shown, tuple((part.metric, part.labels) for part in parts), read, otherwise)


def field(constant: str, part: Part, *, scope: int = 0, otherwise: Query | None = None) -> Query:
    """Make the query for one field value; ``scope`` is the link, for fields that each link has.

    A field has a return code of its own beside that of the call, and one number in the union that its type names.
    """
    shown = f"{constant}[{scope}]"

    def read(gpu: Gpu) -> Iterator[Value]:
        identity = gpu.nvml.constant(constant)
        if identity is None:
            raise RefusedError(shown, "FUNCTION_NOT_FOUND", Meaning.NEVER)
        answers = gpu.nvml.call("nvmlDeviceGetFieldValues", gpu.handle, [(identity, scope)])
        answer = answers[0]  # type: ignore[index]  # an array of structures of ctypes
        if answer.nvmlReturn != 0:
            raise gpu.nvml.refusal(int(answer.nvmlReturn), shown)
        kind = _UNION[answer.valueType] if 0 <= answer.valueType < len(_UNION) else "ullVal"
        yield Value(part.metric, part.labels, scaled(part, getattr(answer.value, kind), call=shown))

    return Query(shown, ((part.metric, part.labels),), read, otherwise)


_UNION = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t in the order of NVML_VALUE_TYPE_*."""


def scaled(part: Part, answer: object, *, call: str) -> float | None:
    """Return one part of an answer in base units. Raises RefusedError when it is no number."""
    found = number(_picked(part.pick, answer), call=call)
    if found is None or found < 0 or found > part.most:
        return None
    return found * part.times if part.per == 1 else found * part.times / part.per


def _picked(pick: str | int | None, answer: object) -> object:
    if pick is None:
        return answer
    if isinstance(pick, str):
        return getattr(answer, pick, None)
    return answer[pick] if isinstance(answer, list | tuple) and pick < len(answer) else None


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
        if error.meaning is Meaning.LOST:
            raise
        return None
    return None if known is None else int(known)


def _retired(cause: str, constant: str) -> Query:
    labels, call = (("cause", cause),), "nvmlDeviceGetRetiredPages"

    def read(gpu: Gpu) -> Iterator[Value]:
        pages = gpu.nvml.call(call, gpu.handle, constant)
        yield Value("gpu_retired_pages", labels, len(pages) if isinstance(pages, list | tuple) else None)

    return Query(f"{call}({constant})", (("gpu_retired_pages", labels),), read)


def _gpu_info(gpu: Gpu) -> Iterator[Value]:
    uuid = text(gpu.nvml.call("nvmlDeviceGetUUID", gpu.handle))
    name = text(gpu.nvml.call("nvmlDeviceGetName", gpu.handle))
    driver = text(gpu.nvml.call("nvmlSystemGetDriverVersion"))
    yield Value("gpu_info", (("uuid", uuid), ("name", name), ("driver", driver)), 1.0)


def _link(link: int) -> Iterator[Query]:
    """Ask for one NVLink: state and bytes."""
    label = (("link", str(link)),)
    yield ask("nvmlDeviceGetNvLinkState", link, parts=(Part("gpu_nvlink_active", labels=label),))
    for word, kibibytes, counted in (
        ("transmit", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES"),
        ("receive", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES"),
    ):
        metric = f"gpu_nvlink_{word}_bytes_total"
        yield field(
            kibibytes,
            Part(metric, times=1024, most=_WIDE, labels=label),
            scope=link,
            otherwise=field(counted, Part(metric, most=_WIDE, labels=label), scope=link),
        )


def _link_errors(name: str, constant: str) -> Query:
    """Ask every link for one kind of error; a card with 18 links would else have 90 series that are nearly always 0."""
    total, single, call = "gpu_nvlink_errors_total", "gpu_nvlink_link_errors_total", "nvmlDeviceGetNvLinkErrorCounter"
    shown, kind = f"{call}({constant})", (("error", name),)

    def read(gpu: Gpu) -> Iterator[Value]:
        counts: dict[int, float] = {}
        refusal: RefusedError | None = None
        for link in range(MAX_LINKS):
            try:
                found = number(gpu.nvml.call(call, gpu.handle, link, constant), call=shown)
            except RefusedError as error:
                if error.meaning is not Meaning.NEVER:
                    raise
                refusal = error
                if error.error == "INVALID_ARGUMENT":
                    break  # the card has no more links
                continue
            if found is None:
                yield Value(total, kind, None)
                return
            counts[link] = found
        if refusal is not None and not counts:
            raise refusal
        yield Value(total, kind, sum(counts.values()))
        for link, count in counts.items():
            if count:
                yield Value(single, (("link", str(link)), *kind), count)

    return Query(shown, ((total, kind), (single, None)), read)


def _mig_info(gpu: Gpu) -> Iterator[Value]:
    uuid = text(gpu.nvml.call("nvmlDeviceGetUUID", gpu.handle))
    name = text(gpu.nvml.call("nvmlDeviceGetName", gpu.handle))
    yield Value("gpu_mig_info", (("uuid", uuid), ("name", name)), 1.0)


def _mig_processes(gpu: Gpu) -> Iterator[Value]:
    entries = gpu.nvml.call(_LIST, gpu.handle)
    found = entries if isinstance(entries, list | tuple) else []
    yield Value("gpu_mig_processes", (), len({entry.pid for entry in found}))


def is_partitioned(gpu: Gpu) -> bool | None:
    """Tell whether MIG is on; a GPU that does not know MIG has it off, and None is one that did not answer.

    Raises RefusedError when the GPU is lost.
    """
    try:
        modes = gpu.nvml.call("nvmlDeviceGetMigMode", gpu.handle)
    except RefusedError as error:
        if error.meaning is Meaning.LOST:
            raise
        return None if error.meaning is Meaning.ONCE else False
    return isinstance(modes, list | tuple) and len(modes) > 0 and modes[0] == 1


def instances(gpu: Gpu) -> list[tuple[str, Gpu]]:
    """Return the MIG instances of a GPU, each with its identity. Raises RefusedError."""
    count = gpu.nvml.call("nvmlDeviceGetMaxMigDeviceCount", gpu.handle)
    found = []
    for index in range(count if isinstance(count, int) else 0):
        try:
            handle = gpu.nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", gpu.handle, index)
            identity = text(gpu.nvml.call("nvmlDeviceGetUUID", handle))
        except RefusedError as error:
            if error.meaning is Meaning.LOST:
                raise
            continue  # no instance has this index
        found.append((identity, Gpu(gpu.nvml, handle, (*gpu.labels, ("mig", str(index))))))
    return found


def describe(gpu: Gpu) -> dict[str, Any]:
    """Return what this GPU tells of itself; what it does not tell is left out. The serial number is not asked for."""
    asked: dict[str, Callable[[], object]] = {
        "gpu": lambda: gpu.labels[0][1],
        "model": lambda: text(gpu.nvml.call("nvmlDeviceGetName", gpu.handle)),
        "uuid": lambda: text(gpu.nvml.call("nvmlDeviceGetUUID", gpu.handle)),
        "architecture": lambda: _architecture(gpu),
        "compute_capability": lambda: ".".join(map(str, _call(gpu, "nvmlDeviceGetCudaComputeCapability"))),
        "cores": lambda: gpu.nvml.call("nvmlDeviceGetNumGpuCores", gpu.handle),
        "memory_bytes": lambda: int(_call(gpu, "nvmlDeviceGetMemoryInfo").total),
        "memory_bus_bits": lambda: gpu.nvml.call("nvmlDeviceGetMemoryBusWidth", gpu.handle),
        "pci_bus": lambda: text(_call(gpu, "nvmlDeviceGetPciInfo_v3").busId).lower(),
        "pcie_generation": lambda: gpu.nvml.call("nvmlDeviceGetMaxPcieLinkGeneration", gpu.handle),
        "pcie_lanes": lambda: gpu.nvml.call("nvmlDeviceGetMaxPcieLinkWidth", gpu.handle),
        "mig": lambda: is_partitioned(gpu),
        "driver_version": lambda: text(gpu.nvml.call("nvmlSystemGetDriverVersion")),
        "nvml_version": lambda: text(gpu.nvml.call("nvmlSystemGetNVMLVersion")),
        "cuda_version": lambda: _cuda(gpu),
    }
    found: dict[str, Any] = {}
    for name, ask in asked.items():
        with contextlib.suppress(RefusedError, AttributeError, TypeError, ValueError):
            found[name] = ask()
    return {name: value for name, value in found.items() if value is not None}


def _call(gpu: Gpu, name: str) -> Any:
    return gpu.nvml.call(name, gpu.handle)


def _architecture(gpu: Gpu) -> str | None:
    number = gpu.nvml.call("nvmlDeviceGetArchitecture", gpu.handle)
    names = (name for name in _NAMED if gpu.nvml.constant(_ARCHITECTURES + name) == number)
    return next((name.lower() for name in names), None)


def _cuda(gpu: Gpu) -> str | None:
    # 12040 is 12.4: thousands are the major and tens the minor version (nvmlSystemGetCudaDriverVersion).
    version = gpu.nvml.call("nvmlSystemGetCudaDriverVersion_v2")
    return f"{version // 1000}.{version % 1000 // 10}" if isinstance(version, int) else None


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
    *(query for link in range(MAX_LINKS) for query in _link(link)),
    *(_link_errors(name, constant) for name, constant in LINK_ERRORS.items()),
)
"""Asked every 10 s: counters that may wait, states of the bus, and links."""


PCIE: tuple[Query, ...] = tuple(
    ask("nvmlDeviceGetPcieThroughput", constant, parts=(Part(f"gpu_pcie_{word}_bytes_per_second", times=1000),))
    for word, constant in (("transmit", "NVML_PCIE_UTIL_TX_BYTES"), ("receive", "NVML_PCIE_UTIL_RX_BYTES"))
)
"""Asked every 10 s by themselves, since NVML counts for 20 ms before it answers; in KB/s."""

SLOW: tuple[Query, ...] = (
    Query("nvmlDeviceGetName", (("gpu_info", None),), _gpu_info),
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
    Query("nvmlDeviceGetName", (("gpu_mig_info", None),), _mig_info),
    ask("nvmlDeviceGetMemoryInfo", parts=_memory("gpu_mig_memory", _MEMORY)),
    ask("nvmlDeviceGetAttributes_v2", parts=(Part("gpu_mig_multiprocessors", "multiprocessorCount"),)),
    Query(_LIST, (("gpu_mig_processes", ()),), _mig_processes),
)
"""Asked at each tick of each MIG instance."""
