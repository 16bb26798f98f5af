"""What a GPU is, for the description of the machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from fedmon.node.collectors.nvml.library import RefusedError, text
from fedmon.node.collectors.nvml.mig import is_partitioned
from fedmon.node.collectors.nvml.query import Gpu

_ARCHITECTURES = "NVML_DEVICE_ARCH_"
_NAMED = ("KEPLER", "MAXWELL", "PASCAL", "VOLTA", "TURING", "AMPERE", "ADA", "HOPPER", "BLACKWELL", "RUBIN")


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
