"""Which processes use a GPU, how much of its memory, and how busy they keep it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fedmon.node.collectors.nvml.library import RefusedError
from fedmon.node.collectors.nvml.queries import Gpu, Query, Value

LISTS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}
_SHARES = "nvmlDeviceGetProcessUtilization"
_RATES = "nvmlDeviceGetUtilizationRates"
_NOTHING_NEW = ("NOT_FOUND", "SUCCESS")
"""pynvml raises even NVML_SUCCESS here, when there is no sample at all."""


class GpuUse(NamedTuple):
    """The processes of one GPU, by pid: bytes of its memory, and share of its multiprocessors from 0 to 1.

    None is a number that is not known, for ``memory_reason`` or ``sm_reason``. ``memory`` is None as a whole when no
    process could be listed.
    """

    memory: Mapping[int, int | None] | None
    sm: Mapping[int, float] | None
    memory_reason: str = "unsupported: the driver does not tell the memory of processes"
    sm_reason: str = ""


class ProcessTable(NamedTuple):
    """The use of every GPU by its label at one tick; ``number`` rises with each table."""

    number: int
    gpus: Mapping[str, GpuUse]


class GpuProcesses:
    """Asks one GPU for its processes; ``queries`` are asked as any others, then ``take`` says what they found."""

    def __init__(self) -> None:
        self._lists: dict[str, Mapping[tuple[int, object, object], int | None]] = {}
        self._sm: dict[int, float] | None = None
        self._last_seen = 0
        self._refused: dict[str, str] = {}

    @property
    def queries(self) -> tuple[Query, ...]:
        """Return the questions."""
        lists = tuple(self._list_query(kind, call) for kind, call in LISTS.items())
        return (*lists, Query(_SHARES, (), self._shares))

    def take(self) -> GpuUse:
        """Return what was found since the last time."""
        memory: dict[int, int | None] | None = None
        if self._lists:
            memory = {}
            for key, used in self._merged().items():
                before = memory.get(key[0], 0)
                memory[key[0]] = None if used is None or before is None else before + used
        refused = next((self._refused[call] for call in LISTS.values() if call in self._refused), "")
        use = GpuUse(memory=memory, sm=self._sm, sm_reason=self._refused.get(_SHARES, "first sample"))
        if memory is None:
            use = use._replace(memory_reason=refused or use.memory_reason)
        self._lists, self._sm = {}, None
        return use

    def _merged(self) -> dict[tuple[int, object, object], int | None]:
        """Join the lists: a process that computes and draws stands in both with all of its memory."""
        merged: dict[tuple[int, object, object], int | None] = {}
        for found in self._lists.values():
            for key, used in found.items():
                before = merged.get(key)
                merged[key] = used if before is None else before if used is None else max(before, used)
        return merged

    def _list_query(self, kind: str, call: str) -> Query:
        metric, labels = "gpu_processes", (("type", kind),)

        def read(gpu: Gpu) -> Iterator[Value]:
            try:
                answer = gpu.ask(call)
            except RefusedError as error:
                self._refused[call] = error.reason
                raise
            self._lists[kind] = {
                (entry.pid, getattr(entry, "gpuInstanceId", None), getattr(entry, "computeInstanceId", None)): _bytes(
                    entry.usedGpuMemory
                )
                for entry in answer
            }
            yield Value(metric, labels, len({entry.pid for entry in answer}))

        return Query(call, ((metric, labels),), read)

    def _shares(self, gpu: Gpu) -> Iterator[Value]:
        """Read the shares since the last time. A process that the driver does not name was idle meanwhile."""
        samples: Any = []
        try:
            samples = gpu.ask(_SHARES, self._last_seen)
        except RefusedError as error:
            self._refused[_SHARES] = error.reason
            if error.error not in _NOTHING_NEW:
                raise
        newest: dict[int, tuple[int, float]] = {}
        for sample in samples:
            if sample.smUtil <= 100 and newest.get(sample.pid, (-1, 0.0))[0] < sample.timeStamp:
                newest[sample.pid] = (sample.timeStamp, sample.smUtil / 100)
        if newest:
            # The first answer reaches back to whatever the driver still remembers: too old to say anything of now.
            if self._last_seen:
                self._sm = {pid: share for pid, (_, share) in newest.items()}
            self._last_seen = max(self._last_seen, *(at for at, _ in newest.values()))
        elif self._is_idle(gpu):
            self._sm = {}
        else:
            self._refused[_SHARES] = f"failed: {_SHARES}: no new sample though the GPU is busy"
        yield from ()

    def _is_idle(self, gpu: Gpu) -> bool:
        # No sample can mean that nobody computed, or that the driver's next sample is not there yet.
        try:
            return bool(gpu.ask(_RATES).gpu == 0)
        except RefusedError:
            return False


def _bytes(used: object) -> int | None:
    """Return the memory of a process; None for NVML_VALUE_NOT_AVAILABLE, as the number or as pynvml's None."""
    return used if isinstance(used, int) and used != 2**64 - 1 else None
