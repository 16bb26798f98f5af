"""The collectors of a machine's GPUs, and of the use that one job makes of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.nvml import queries
from fedmon.node.collectors.nvml.processes import GpuUse
from fedmon.node.collectors.nvml.queries import Query
from fedmon.node.collectors.nvml.reader import LaneReader, NvmlSession, Round

PATIENCE_S = 0.2
"""A tick waits no longer for NVML, which answers for one GPU within about 10 ms."""
_FIRST_S = 5.0


class GpuCollector:
    """Reads one lane at each of its ticks, on the session's thread.

    A reading that is not finished in time is handed out at the next tick; meanwhile the series are None with the
    reason. ``close`` is final.
    """

    def __init__(self, name: str, lane: Lane, reader: LaneReader, metrics: Iterable[str]) -> None:
        self.name, self.lane = name, lane
        self._metrics, self._reader, self._session = tuple(dict.fromkeys(metrics)), reader, reader.session
        self._pending: Future[Round] | None = None
        self._is_closed = False
        self._gave: tuple[str, ...] = ()
        self._report = self._told = dict[str, str | None]()

    def collect(self, now: Instant) -> Reading:
        """Read the GPUs; all of them together wait 0.2 s a tick at most."""
        return self._noted(self._session.left_s(now, PATIENCE_S))

    def probe(self) -> dict[str, str | None]:
        """Return the last values of each GPU; read it the first time."""
        if not self._report:
            self._noted(PATIENCE_S)
        self._told = self._report
        return dict(self._told)

    @property
    def probe_changed(self) -> bool:
        """Whether a reading was late for its tick, or ``probe`` would give another answer than the last time."""
        return (self._pending is not None and self._pending.done()) or self._report != self._told

    def wait_probed(self, timeout_s: float) -> None:
        """Wait for a reading, at most so long and 5 s; for a report, never in the sampler's thread."""
        self._noted(min(timeout_s, _FIRST_S))

    def close(self) -> None:
        """Read no more; the last collector of a session shuts NVML down."""
        self._is_closed = True
        self._session.leave(self)

    def _noted(self, patience_s: float) -> Reading:
        try:
            found = self._read(patience_s)
        except CollectorUnavailableError as error:
            if not self._gave:
                self._report = dict.fromkeys(self._metrics, error.reason)
            return Reading(dict.fromkeys(self._gave), dict.fromkeys(self._gave, error.reason))
        self._gave, self._report = tuple(found.values), dict(found.report)
        return Reading(found.values, found.reasons)

    def _read(self, patience_s: float) -> Round:
        """Return a new reading, else the one that was late for the tick before. Raises CollectorUnavailableError."""
        session = self._session
        if session.absent is None and not self._is_closed:
            session.enter(self)
        hang, late = session.hang(), self._finished()
        if late is not None and self.lane is not Lane.FAST:
            return late.result()  # one reading for each time that the lane is due
        if session.absent is None and self._pending is None:
            self._pending = session.submit(self._reader.read)
        if self._pending is not None and not hang:
            with contextlib.suppress(TimeoutError):
                self._pending.exception(max(0.0, patience_s - session.asked_s()))
        found = self._finished() or late
        if session.absent is not None:
            self.close()
            raise session.absent
        if found is not None:
            return found.result()
        detail = hang or session.hang() or f"the reading is not finished within {max(patience_s, PATIENCE_S):g} s"
        raise CollectorUnavailableError(Why.FAILED, detail)

    def _finished(self) -> Future[Round] | None:
        """Take the reading under way if it is finished."""
        found = self._pending
        if found is None or not found.done():
            return None
        self._pending = None
        return found


def nvml_collectors(session: NvmlSession) -> list[GpuCollector]:
    """Return the collectors of this machine's GPUs, for the stream ``host``; without a driver, one with the reason."""
    of_each_tick = [*_metrics((*queries.FAST, *queries.MIG)), "gpu_processes"]
    if session.absent is not None:
        names = [*of_each_tick, *_metrics((*queries.MEDIUM, *queries.PCIE, *queries.SLOW))]
        return [GpuCollector("gpu", Lane.SLOW, LaneReader(session, ()), names)]
    fast = LaneReader(session, queries.FAST, with_processes=True)
    return [
        GpuCollector("gpu", Lane.FAST, fast, of_each_tick),
        GpuCollector("gpu-counters", Lane.MEDIUM, LaneReader(session, queries.MEDIUM), _metrics(queries.MEDIUM)),
        GpuCollector("gpu-pcie", Lane.MEDIUM, LaneReader(session, queries.PCIE), _metrics(queries.PCIE)),
        GpuCollector("gpu-limits", Lane.SLOW, LaneReader(session, queries.SLOW), _metrics(queries.SLOW)),
    ]


def _metrics(asked: Iterable[Query]) -> list[str]:
    return [metric for query in asked for metric, _ in query.gives]


_MEMORY, _SM, _PROCESSES = _JOB = ("job_gpu_memory_bytes", "job_gpu_sm_ratio", "job_gpu_processes")
_NO_LIST = "no new list of the processes on the GPUs"
_NEVER_KNOWN = (Why.UNSUPPORTED.value, Why.NO_PERMISSION.value)


class JobGpuCollector:
    """Sums the use of each GPU by the processes of a job, for the stream of the job.

    ``jobs`` maps the ids of jobs to the pids of their processes; it is asked at each tick and must not wait. The lists
    of processes are those that the stream ``host`` read for this tick. A GPU is named from the first tick on at which
    the job uses it.
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
        table = self._session.processes()
        uses: Mapping[str, GpuUse] = {}
        pids: frozenset[int] = frozenset()
        if table is not None and table.number != self._seen:
            self._seen, uses, pids = table.number, table.gpus, frozenset(self._jobs().get(self._job_id, ()))
        self._used |= {gpu: None for gpu, use in uses.items() if not pids.isdisjoint(use.memory or ())}
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for gpu in self._used:
            use = uses.get(gpu) or GpuUse(None, None, f"{Why.FAILED.value}: {_NO_LIST}", "")
            for metric, (value, reason) in zip(_JOB, _use_of(use, pids), strict=True):
                key = series(metric, gpu=gpu)
                values[key] = value
                if value is None:
                    reasons[key] = reason
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say whether there is a GPU; whether the job uses one shows only later."""
        absent = self._session.absent
        return dict.fromkeys(_JOB, None if absent is None else absent.reason)


def _use_of(use: GpuUse, pids: frozenset[int]) -> list[tuple[float | None, str]]:
    """Return memory, share of the multiprocessors and number of these processes, each with the reason for None."""
    if use.memory is None:
        return [(None, use.memory_reason)] * len(_JOB)
    own = {pid: used for pid, used in use.memory.items() if pid in pids}
    known = [used for used in own.values() if used is not None]
    return [
        (sum(known) if len(known) == len(own) else None, use.memory_reason),
        (None if use.sm is None else _share(use.sm, own), use.sm_reason),
        (len(own), ""),
    ]


def gpu_shares(session: NvmlSession, jobs: Mapping[str, Collection[int]]) -> dict[str, dict[str, float | None]]:
    """Map each job to its share, 0 to 1, of the multiprocessors of each GPU; None if it is unknown this time.

    ``jobs`` is as in JobGpuCollector. A GPU that never gives shares is left out. Raises CollectorUnavailableError if
    the GPUs were not read for this tick.
    """
    table = session.processes()
    if table is None:
        raise CollectorUnavailableError(Why.FAILED, _NO_LIST)
    known = {
        gpu: use.sm
        for gpu, use in table.gpus.items()
        if use.sm is not None or not use.sm_reason.startswith(_NEVER_KNOWN)
    }
    return {
        job: {gpu: None if sm is None else _share(sm, pids) for gpu, sm in known.items()} for job, pids in jobs.items()
    }


def _share(sm: Mapping[int, float], pids: Collection[int]) -> float:
    # The driver rounds each share to a percent, so the sum can be a little above the whole.
    return min(1.0, sum(sm.get(pid, 0.0) for pid in pids))
