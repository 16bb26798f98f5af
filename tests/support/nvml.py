"""A stand-in for the module ``pynvml`` on machines without an NVIDIA GPU.

It has the names, constants, errors and signatures of the real module, and answers from objects that a test sets up.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pynvml

Refuses = Callable[[tuple[Any, ...]], bool]


def process(pid: int, used_bytes: int | None, *, instance: int = 0xFFFFFFFF) -> SimpleNamespace:
    """Return an entry of a list of running processes."""
    return SimpleNamespace(pid=pid, usedGpuMemory=used_bytes, gpuInstanceId=instance, computeInstanceId=instance)


def share(pid: int, at_us: int, percent: int) -> SimpleNamespace:
    """Return a sample of a process's utilisation."""
    return SimpleNamespace(pid=pid, timeStamp=at_us, smUtil=percent, memUtil=1, encUtil=0, decUtil=0)


class FakeMig:
    """One MIG instance."""

    def __init__(self, uuid: str, *, processes: list[SimpleNamespace] | None = None) -> None:
        self.uuid, self.processes = uuid, processes or []


class FakeGpu:
    """One GPU; ``answers`` maps a function of NVML to what it answers, or to a callable of its arguments."""

    def __init__(self, uuid: str = "GPU-0", *, links: int = 2, instances: dict[int, FakeMig] | None = None) -> None:
        self.uuid, self.links, self.instances = uuid, links, instances
        self.compute: list[SimpleNamespace] = [process(100, 1 << 30), process(101, 2 << 30)]
        self.graphics: list[SimpleNamespace] = [process(101, 2 << 30)]
        self.mps: list[SimpleNamespace] = []
        self.shares: list[SimpleNamespace] = []
        self.answers: dict[str, Any] = {
            "UUID": uuid,
            "Name": "NVIDIA Test 80GB",
            "UtilizationRates": SimpleNamespace(gpu=37, memory=12),
            "EncoderUtilization": [5, 167000],
            "DecoderUtilization": [6, 167000],
            "MemoryInfo": self._memory,
            "BAR1MemoryInfo": SimpleNamespace(bar1Total=1 << 37, bar1Used=1 << 20, bar1Free=(1 << 37) - (1 << 20)),
            "ClockInfo": lambda clock: 1000 + clock,
            "MaxClockInfo": lambda clock: 2000 + clock,
            "Temperature": 41,
            "FanSpeed": 30,
            "PowerUsage": 123_456,
            "TotalEnergyConsumption": 7_000_500,
            "PerformanceState": 0,
            "CurrentClocksEventReasons": 0x24,
            "SupportedClocksEventReasons": 0x1FF,
            "CurrentClocksThrottleReasons": 0x24,
            "SupportedClocksThrottleReasons": 0x1FF,
            "ViolationStatus": lambda policy: SimpleNamespace(referenceTime=1, violationTime=policy * 1_500_000_000),
            "TotalEccErrors": lambda kind, counter: 10 * counter + kind,
            "CurrPcieLinkGeneration": 5,
            "CurrPcieLinkWidth": 16,
            "MaxPcieLinkGeneration": 5,
            "MaxPcieLinkWidth": 16,
            "PcieReplayCounter": 3,
            "PcieThroughput": lambda counter: 500 + counter,
            "PowerManagementLimit": 700_000,
            "EnforcedPowerLimit": 690_000,
            "PowerManagementDefaultLimit": 700_000,
            "PowerManagementLimitConstraints": [200_000, 700_000],
            "EccMode": [1, 1],
            "RetiredPages": lambda cause: [4096] * (cause + 1),
            "RetiredPagesPendingStatus": 0,
            "RemappedRows": (1, 2, 0, 0),
            "NvLinkState": self._link(lambda: 1),
            "NvLinkErrorCounter": self._link(lambda counter: 100 + counter),
            "FieldValues": self._fields,
            "MigMode": lambda: [int(self.instances is not None)] * 2,
            "MaxMigDeviceCount": 7,
            "MigDeviceHandleByIndex": self._instance,
            "ComputeRunningProcesses": lambda: self.compute,
            "GraphicsRunningProcesses": lambda: self.graphics,
            "MPSComputeRunningProcesses": lambda: self.mps,
            "ProcessUtilization": self._shares,
        }

    def _memory(self, version: int | None = None) -> SimpleNamespace:
        amounts = {"total": 80 << 30, "used": 3 << 30, "free": 76 << 30}
        return SimpleNamespace(**amounts, **({"reserved": 1 << 30} if version else {}))

    def _link(self, answer: Callable[..., int]) -> Callable[..., int]:
        def of(link: int, *arguments: int) -> int:
            if link >= self.links:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
            return answer(*arguments)

        return of

    def _fields(self, wanted: list[tuple[int, int]]) -> list[Any]:
        of_scope_0: dict[int, int] = {
            pynvml.NVML_FI_DEV_MEMORY_TEMP: 55,
            pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: 1000,
            pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: 2000,
        }
        answers = []
        for identity, scope in wanted:
            answer = pynvml.c_nvmlFieldValue_t(fieldId=identity, scopeId=scope)
            if identity in of_scope_0 and scope < self.links:
                answer.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
                answer.value.ullVal = of_scope_0[identity] + scope
            else:
                answer.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
            answers.append(answer)
        return answers

    def _instance(self, index: int) -> FakeMig:
        if not self.instances or index not in self.instances:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.instances[index]

    def _shares(self, last_seen_us: int) -> list[SimpleNamespace]:
        found = [entry for entry in self.shares if entry.timeStamp > last_seen_us]
        if not found:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found


class FakeNvml:
    """The module; ``refuse`` makes calls fail, ``hang`` makes one wait until ``release`` is set."""

    NVMLError = pynvml.NVMLError
    NVMLLibraryMismatchError = pynvml.NVMLLibraryMismatchError

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.calls: Counter[str] = Counter()
        self.release = threading.Event()
        self._initialised = 0
        self._refusals: list[tuple[str, int, Refuses]] = []
        self._hanging = ""
        self._hanging_on: FakeGpu | None = None
        self.hanging = 0

    def refuse(self, name: str, code: int, *, when: Refuses = lambda _: True) -> Callable[[], None]:
        """Answer calls of a function with an error; return what ends that."""
        rule = (name, code, when)
        self._refusals.append(rule)
        return lambda: self._refusals.remove(rule)

    def hang(self, name: str, *, on: FakeGpu | None = None) -> None:
        """Let calls of a function hang from now on, of all GPUs or one, until ``release`` is set."""
        self._hanging, self._hanging_on = name, on

    def nvmlInit(self) -> None:  # noqa: N802
        self._called("nvmlInit", ())
        self._initialised += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._called("nvmlShutdown", ())
        if self._initialised < 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        self._initialised -= 1

    @property
    def running(self) -> int:
        """How often NVML was started and not ended."""
        return self._initialised

    def __dir__(self) -> Iterator[str]:
        yield from dir(pynvml)

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        return functools.partial(self._answer, name) if callable(real) else real

    def _answer(self, name: str, *arguments: Any) -> Any:
        _signature(name).bind(*arguments)
        self._called(name, arguments)
        if self._initialised < 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        if name == "nvmlDeviceGetCount":
            return len(self.gpus)
        if name == "nvmlDeviceGetHandleByIndex":
            return self.gpus[arguments[0]]
        if name.startswith("nvmlSystemGet"):
            return {"nvmlSystemGetDriverVersion": "580.1"}.get(name, 13000)
        device, rest = arguments[0], arguments[1:]
        answers = device.answers if isinstance(device, FakeGpu) else _instance_answers(device)
        found = answers.get(name.removeprefix("nvmlDeviceGet"))
        if found is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return found(*rest) if callable(found) else found

    def _called(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.calls[name] += 1
        if name == self._hanging and self._hanging_on in (None, *arguments[:1]):
            self.hanging += 1
            self.release.wait(100.0)
        for refused, code, when in self._refusals:
            if refused == name and when(arguments):
                raise pynvml.NVMLError(code)


@functools.cache
def _signature(name: str) -> inspect.Signature:
    return inspect.signature(getattr(pynvml, name))


def _instance_answers(instance: FakeMig) -> Mapping[str, Any]:
    return {
        "UUID": instance.uuid,
        "Name": "NVIDIA Test 80GB MIG 1g.10gb",
        "MemoryInfo": SimpleNamespace(total=10 << 30, used=1 << 30, free=9 << 30),
        "Attributes_v2": SimpleNamespace(multiprocessorCount=16),
        "ComputeRunningProcesses": instance.processes,
    }
