"""One round of questions to every GPU, as one lane asks them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Why
from fedmon.node.collectors.nvml import mig
from fedmon.node.collectors.nvml.device import Device
from fedmon.node.collectors.nvml.library import Meaning, RefusedError, text
from fedmon.node.collectors.nvml.mig import is_partitioned
from fedmon.node.collectors.nvml.processes import GpuProcesses, GpuUse
from fedmon.node.collectors.nvml.query import Gpu, Query
from fedmon.node.collectors.nvml.session import Found, NvmlSession

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


_ENERGY = "gpu_energy_joules_total"
_NO_MIG = f"{Why.UNSUPPORTED.value}: no GPU is split into MIG instances"


class Round(NamedTuple):
    """What one round found; ``report`` maps each metric, or a series of it, to None or the reason."""

    values: Mapping[str, float | None]
    reasons: Mapping[str, str]
    report: Mapping[str, str | None]


class LaneReader:
    """Asks every GPU the questions of one lane; belongs to one thread. ``doing`` may be read from any.

    ``with_processes`` also lists processes, MIG instances and energy for others; ``with_hardware`` describes each GPU.
    """

    def __init__(
        self,
        session: NvmlSession,
        queries: Iterable[Query],
        *,
        with_processes: bool = False,
        with_hardware: bool = False,
    ) -> None:
        self._session, self._queries = session, tuple(queries)
        self._with_processes, self._with_hardware = with_processes, with_hardware
        self._start = 0
        self._devices: dict[str, Device] = {}
        self._processes: dict[str, GpuProcesses] = {}
        self._instances: dict[str, dict[str, Device]] = {}
        self._partitioned: dict[str, bool] = {}
        self._lost: dict[str, str] = {}
        self.doing = ""

    def read(self) -> Round:
        """Ask everything once. Raises CollectorUnavailableError when no GPU can be asked."""
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        self.doing = "nvmlInit"
        with self._session.round() as found:
            if found.number != self._start:
                self._renew(found)
            self._lost = dict(found.lost)
            for label, gpu in found.gpus.items():
                if label not in self._lost:
                    self._read(label, gpu, values, reasons)
            for label in self._devices.keys() & self._lost.keys():
                self._null(label, self._lost[label], values, reasons)
            if self._with_processes:
                self._hand_over(found, values)
        return Round(values, reasons, self._report())

    def _renew(self, found: Found) -> None:
        """Ask the GPUs of another start of NVML everything again; series of a GPU that is gone are still known."""
        self._start = found.number
        self._instances, self._partitioned = {}, {}
        for label, gpu in found.gpus.items():
            self._processes[label] = GpuProcesses()
            self._ask_anew(label, gpu)
        if self._with_hardware:
            self.doing = "the description of the GPUs"
            self._session.keep_hardware([describe(gpu) for gpu in found.gpus.values()])

    def _ask_anew(self, label: str, gpu: Gpu) -> None:
        own = self._processes[label].queries if self._with_processes else ()
        self._devices[label] = Device(gpu, (*self._queries, *own), before=self._devices.get(label))

    def _read(self, label: str, gpu: Gpu, values: dict[str, float | None], reasons: dict[str, str]) -> None:
        try:
            if self._with_processes:
                self._look_for_instances(label, gpu)
            self._devices[label].read(values, reasons, lambda call: self._on_call(label, call))
            for device in self._instances.get(label, {}).values():
                device.read(values, reasons, lambda call: self._on_call(label, call))
        except RefusedError as error:
            if error.meaning is not Meaning.LOST:
                raise
            self._lost[label] = error.reason
            self._session.lose(label, error.reason)

    def _look_for_instances(self, label: str, gpu: Gpu) -> None:
        self._on_call(label, "nvmlDeviceGetMigMode")
        before = self._partitioned.get(label)
        partitioned = mig.is_partitioned(gpu)
        if partitioned is not None:
            self._partitioned[label] = partitioned
            if before is not None and partitioned != before:
                # Whoever splits a GPU changes what it answers.
                self._ask_anew(label, gpu)
        if not self._partitioned.get(label):
            self._instances.pop(label, None)
            return
        try:
            found = mig.instances(gpu)
        except RefusedError as error:
            if error.meaning in (Meaning.LOST, Meaning.ENDED):
                raise
            return  # those that were there are still asked
        known = self._instances.get(label, {})
        self._instances[label] = {}
        for identity, instance in found:
            device = known.get(identity)
            if device is None or device.gpu.labels != instance.labels:
                device = Device(instance, mig.QUERIES)
            device.gpu = instance
            self._instances[label][identity] = device

    def _on_call(self, label: str, call: str) -> None:
        self.doing = f"{call} of GPU {label}"

    def _null(self, label: str, reason: str, values: dict[str, float | None], reasons: dict[str, str]) -> None:
        for device in (self._devices[label], *self._instances.get(label, {}).values()):
            device.null(values, reasons, reason)

    def _hand_over(self, found: Found, values: Mapping[str, float | None]) -> None:
        """Keep for others who uses the GPUs, and what energy they used."""
        uses = {
            label: GpuUse(None, None, self._lost[label], self._lost[label])
            if label in self._lost
            else self._processes[label].take()
            for label in self._processes
        }
        self._session.keep_processes(uses)
        counters = {label: values.get(series(_ENERGY, gpu=label)) for label in found.gpus}
        self._session.keep_energy({label: joules for label, joules in counters.items() if joules is not None})

    def _report(self) -> dict[str, str | None]:
        """Join what the devices say: a metric is measured when one GPU gives it, and the others are named."""
        report: dict[str, str | None] = {}
        said: dict[str, Mapping[str, str | None]] = {}
        for label, device in self._devices.items():
            said[label] = device.report()
            for metric, reason in said[label].items():
                report[metric] = None if reason is None or report.get(metric, reason) is None else reason
        for label, metrics in said.items():
            for metric, reason in metrics.items():
                if reason is not None and report[metric] is None:
                    report[series(metric, gpu=label)] = reason
        report.update({series("gpu_info", gpu=label): reason for label, reason in self._lost.items()})
        if self._with_processes:
            report.update(self._mig_report())
        return report

    def _mig_report(self) -> dict[str, str | None]:
        report: dict[str, str | None] = {metric: _NO_MIG for query in mig.QUERIES for metric, _ in query.gives}
        for instances in self._instances.values():
            for device in instances.values():
                report.update(device.report())
        return report
