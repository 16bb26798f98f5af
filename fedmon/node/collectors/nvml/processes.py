"""The processes on a GPU: their memory, and their shares of the multiprocessors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fedmon.node.collectors.nvml.library import NO_VALUE, RefusedError
from fedmon.node.collectors.nvml.queries import Gpu, Query, Value

LISTS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}
_SHARES = "nvmlDeviceGetProcessUtilization"
_NOTHING_NEW = ("NOT_FOUND", "SUCCESS")
"""pynvml raises even NVML_SUCCESS here if there is no sample at all."""


class GpuUse(NamedTuple):
    """The processes of one GPU, by pid: bytes of its memory, and share of its multiprocessors from 0 to 1.

    None is an unknown number, for ``memory_reason`` or ``sm_reason``; ``memory`` is None if no list could be read.
    """

    memory: Mapping[int, int | None] | None
    sm: Mapping[int, float] | None
    memory_reason: str = "unsupported: the driver does not report the memory of processes"
    sm_reason: str = ""


class ProcessTable(NamedTuple):
    """The use of every GPU by its label at one tick; ``number`` rises with each table."""

    number: int
    gpus: Mapping[str, GpuUse]


class GpuProcesses:
    """Asks one GPU for its processes: `take` returns the answers to ``queries`` since the last time."""

    def __init__(self) -> None:
        # By pid and ids of the MIG instances. A process that computes and draws is listed twice with all its memory.
        self._used: dict[tuple[int, object, object], int | None] | None = None
        self._sm: dict[int, float] | None = None
        self._last_seen = 0
        self._refused: dict[str, str] = {}

    @property
    def queries(self) -> tuple[Query, ...]:
        """Return the queries."""
        lists = tuple(self._list_query(kind, call) for kind, call in LISTS.items())
        return (*lists, Query(_SHARES, (), self._shares))

    def take(self) -> GpuUse:
        """Return the answers since the last time."""
        use = GpuUse(memory=None, sm=self._sm, sm_reason=self._refused.get(_SHARES, "first sample"))
        if self._used is None:
            refused = next((self._refused[call] for call in LISTS.values() if call in self._refused), "")
            use = use._replace(memory_reason=refused or use.memory_reason)
        else:
            memory: dict[int, int | None] = {}
            for (pid, _, _), used in self._used.items():
                before = memory.get(pid, 0)
                memory[pid] = None if used is None or before is None else before + used
            use = use._replace(memory=memory)
        self._used = self._sm = None
        return use

    def _list_query(self, kind: str, call: str) -> Query:
        metric, labels = "gpu_processes", {"type": kind}

        def read(gpu: Gpu) -> Iterator[Value]:
            try:
                answer = gpu.ask(call)
            except RefusedError as error:
                self._refused[call] = error.reason
                raise
            known = self._used = {} if self._used is None else self._used
            for entry in answer:
                key = entry.pid, getattr(entry, "gpuInstanceId", None), getattr(entry, "computeInstanceId", None)
                # NVML_VALUE_NOT_AVAILABLE comes as the number or as pynvml's None.
                amounts = [each for each in (known.get(key), entry.usedGpuMemory) if each not in (None, NO_VALUE)]
                known[key] = max(amounts, default=None)
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
            # The first answer holds all samples that the driver remembers: too old for the present.
            if self._last_seen:
                self._sm = {pid: share for pid, (_, share) in newest.items()}
            self._last_seen = max(self._last_seen, *(at for at, _ in newest.values()))
        elif _is_idle(gpu):
            self._sm = {}
        else:
            self._refused[_SHARES] = f"failed: {_SHARES}: no new sample though the GPU is busy"
        yield from ()


def _is_idle(gpu: Gpu) -> bool:
    """Tell an idle GPU from one whose next sample the driver does not have yet."""
    try:
        return bool(gpu.ask("nvmlDeviceGetUtilizationRates").gpu == 0)
    except RefusedError:
        return False
