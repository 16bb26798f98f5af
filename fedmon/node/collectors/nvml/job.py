"""What the processes of one job use of the GPUs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.nvml.processes import GpuUse
from fedmon.node.collectors.nvml.reader import NvmlSession

MEMORY, SM, PROCESSES = "job_gpu_memory_bytes", "job_gpu_sm_ratio", "job_gpu_processes"
_METRICS = (MEMORY, SM, PROCESSES)
_NO_LIST = "no new list of the processes on the GPUs"
_NO_READING = f"{Why.FAILED.value}: {_NO_LIST}"
_NEVER_TOLD = (Why.UNSUPPORTED.value, Why.NO_PERMISSION.value)


class JobGpuCollector:
    """Sums what the processes of a job use of each GPU, for the stream of the job.

    ``jobs`` maps the ids of jobs to the pids of their processes; it is asked at each tick and must not wait. The lists
    of processes are those that the collectors of the stream ``host`` read for this tick: without them there is no
    reading. A GPU is named from the first tick on at which the job uses it.
    """

    name = "job-gpu"
    lane = Lane.FAST

    def __init__(self, session: NvmlSession, *, job_id: str, jobs: Callable[[], Mapping[str, Collection[int]]]) -> None:
        self._session, self._job_id, self._jobs = session, job_id, jobs
        self._used: dict[str, None] = {}
        self._seen = 0

    def collect(self, _now: Instant) -> Reading:
        """Sum the job's processes, once for each list of them."""
        if self._session.absent is not None:
            return Reading({})
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        table = self._session.processes()
        if table is None or table.number == self._seen:
            for gpu in self._used:
                _null(gpu, _METRICS, _NO_READING, values, reasons)
            return Reading(values, reasons)
        self._seen = table.number
        pids = frozenset(self._jobs().get(self._job_id, ()))
        for gpu, use in table.gpus.items():
            if gpu in self._used or not pids.isdisjoint(use.memory or ()):
                self._used[gpu] = None
                _sum(gpu, use, pids, values, reasons)
        for gpu in self._used.keys() - table.gpus.keys():
            _null(gpu, _METRICS, _NO_READING, values, reasons)
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say whether there is a GPU at all; whether the job uses one shows only later."""
        absent = self._session.absent
        return dict.fromkeys(_METRICS, None if absent is None else absent.reason)


def gpu_shares(session: NvmlSession, jobs: Mapping[str, Collection[int]]) -> dict[str, dict[str, float | None]]:
    """Map each job to its share from 0 to 1 of the multiprocessors of each GPU; None where that is not known this time.

    ``jobs`` is as in JobGpuCollector. A GPU that never tells is left out, as one that no job uses. Raises
    CollectorUnavailableError when the GPUs were not read for this tick.
    """
    if session.absent is not None:
        return {}
    table = session.processes()
    if table is None:
        raise CollectorUnavailableError(Why.FAILED, _NO_LIST)
    told = {
        gpu: use.sm
        for gpu, use in table.gpus.items()
        if use.sm is not None or not use.sm_reason.startswith(_NEVER_TOLD)
    }
    return {
        job: {gpu: None if sm is None else _share(sm, pids) for gpu, sm in told.items()} for job, pids in jobs.items()
    }


def _share(sm: Mapping[int, float], pids: Collection[int]) -> float:
    # Each share is rounded to a percent by the driver, so the sum can be a little above the whole.
    return min(1.0, sum(sm.get(pid, 0.0) for pid in pids))


def _sum(gpu: str, use: GpuUse, pids: frozenset[int], values: dict[str, float | None], reasons: dict[str, str]) -> None:
    if use.memory is None:
        _null(gpu, _METRICS, use.memory_reason, values, reasons)
        return
    own = [pid for pid in use.memory if pid in pids]
    values[series(PROCESSES, gpu=gpu)] = len(own)
    amounts = [use.memory[pid] for pid in own]
    if None in amounts:
        _null(gpu, (MEMORY,), use.memory_reason, values, reasons)
    else:
        values[series(MEMORY, gpu=gpu)] = sum(amount for amount in amounts if amount is not None)
    if use.sm is None:
        _null(gpu, (SM,), use.sm_reason, values, reasons)
    else:
        values[series(SM, gpu=gpu)] = _share(use.sm, own)


def _null(
    gpu: str, metrics: Collection[str], reason: str, values: dict[str, float | None], reasons: dict[str, str]
) -> None:
    for metric in metrics:
        key = series(metric, gpu=gpu)
        values[key], reasons[key] = None, reason
