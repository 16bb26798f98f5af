"""The MIG instances of a GPU: which there are, and what each of them tells."""

from __future__ import annotations

from collections.abc import Iterator

from fedmon.node.collectors.nvml.library import Meaning, RefusedError, text
from fedmon.node.collectors.nvml.queries import MIG
from fedmon.node.collectors.nvml.query import Gpu, Query, Value

_LIST = "nvmlDeviceGetComputeRunningProcesses"


def is_partitioned(gpu: Gpu) -> bool | None:
    """Tell whether MIG is on; a GPU that does not know MIG has it off, and None is one that did not answer.

    Raises RefusedError when the GPU is lost.
    """
    try:
        modes = gpu.nvml.call("nvmlDeviceGetMigMode", gpu.handle)
    except RefusedError as error:
        if error.meaning in (Meaning.LOST, Meaning.ENDED):
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
            if error.meaning in (Meaning.LOST, Meaning.ENDED):
                raise
            continue  # no instance has this index
        found.append((identity, Gpu(gpu.nvml, handle, (*gpu.labels, ("mig", str(index))))))
    return found


def _info(gpu: Gpu) -> Iterator[Value]:
    uuid = text(gpu.nvml.call("nvmlDeviceGetUUID", gpu.handle))
    name = text(gpu.nvml.call("nvmlDeviceGetName", gpu.handle))
    yield Value("gpu_mig_info", (("uuid", uuid), ("name", name)), 1.0)


def _processes(gpu: Gpu) -> Iterator[Value]:
    entries = gpu.nvml.call(_LIST, gpu.handle)
    found = entries if isinstance(entries, list | tuple) else []
    yield Value("gpu_mig_processes", (), len({entry.pid for entry in found}))


QUERIES: tuple[Query, ...] = (
    Query("nvmlDeviceGetName", (("gpu_mig_info", None),), _info),
    *MIG,
    Query(_LIST, (("gpu_mig_processes", ()),), _processes),
)
"""Asked of each instance at each tick."""
