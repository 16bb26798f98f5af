"""The jobs that a node watches."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import ConflictError, InvalidInputError, NotFoundError
from fedmon.common.ids import checked_id
from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Collector, Roots
from fedmon.node.collectors.job.cgroup import UNIFIED, JobCgroup, find_hierarchies
from fedmon.node.collectors.job.maker import TREE, JobMaker, Watching

logger = logging.getLogger(__name__)

MAX_JOBS = 64
ENDED_KEPT = 64
"""Most jobs that are still listed after their watch ended."""

JOB_STREAM = "job-"
"""The stream of a job is this and the job's id."""
MARKER = "FEDMON_JOB_ID"
"""A process with this variable set to the job's id counts for the job, under any parent."""

ALL_ENDED = "all of its processes have ended"
FORGOTTEN = "its owner had it forgotten"


class JobOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """How a batch job was found: its scheduler, its id as that writes it, by which method, and how sure that is."""

    scheduler: str
    job_id: str
    method: str
    confidence: str


class WatchedJob(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a job; times are RFC 3339 in UTC, ``cpu_seconds`` as of the last reading.

    ``ended`` and ``reason`` tell of one that is watched no longer. ``methods`` says where CPU time, members, peak and
    swap come from, and how orphans are known. ``origin`` is None where processes or cgroup were named.
    """

    job_id: str
    name: str
    pids: list[int]
    cgroup: str | None
    methods: dict[str, str]
    since: str
    processes: int
    cpu_seconds: float
    ended: str | None = None
    reason: str = ""
    origin: JobOrigin | None = None


class JobWatches:
    """Watches jobs, each in a separate stream ``job-<id>``, until it has ended or is forgotten.

    ``add_stream(stream, collectors)``, ``remove_stream(stream)`` and ``sample_last(stream)`` are the sampler's.
    ``on_end(record)`` is told of each job that has ended, on the thread that calls ``close_ended``. A job's last
    sample, with complete totals, is `handed_on` before its stream ends. Every method is safe from any thread;
    ``cpu_seconds`` reads, and is meant for the sampler's.
    """

    def __init__(
        self,
        roots: Roots,
        add_stream: Callable[[str, Sequence[Collector]], None],
        remove_stream: Callable[[str], None],
        *,
        on_end: Callable[[WatchedJob], object] = lambda _record: None,
        sample_last: Callable[[str], object] = lambda _stream: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._add_stream, self._remove_stream, self._on_end = add_stream, remove_stream, on_end
        self._sample_last = sample_last
        self._monotonic = monotonic
        self._roots, self._maker = roots, JobMaker(roots)
        self._changing = threading.Lock()
        self._jobs: Mapping[str, _Job] = {}
        self._ended: deque[WatchedJob] = deque(maxlen=ENDED_KEPT)

    def add(
        self,
        job_id: str,
        *,
        pids: Collection[int] = (),
        cgroup: str | JobCgroup | None = None,
        name: str = "",
        marker: str | None = None,
        starts: Mapping[int, int] | None = None,
        exclude: Collection[int] = (),
        overhead: Mapping[int, int] | None = None,
        is_overhead_now: Callable[[int], bool] | None = None,
        origin: JobOrigin | None = None,
        is_command: bool = False,
    ) -> WatchedJob:
        """Watch a job from the next tick on: processes and all that descend from them, or a cgroup.

        ``marker`` is a ``NAME=value`` in the environment of its processes, by default FEDMON_JOB_ID with the job's id.
        ``starts`` guards against numbers that were given again; ``exclude``, ``overhead`` and ``is_overhead_now`` tell
        of processes that are not the job's wherever they are, see JobMaker. A JobCgroup may be empty already. The last
        sample of a command waits for `command_ended`. Raises InvalidIdError, InvalidInputError, NotFoundError and
        ConflictError.
        """
        checked_id(job_id, what="job id")
        if not pids and cgroup is None:
            raise InvalidInputError(f"job {job_id!r}: say which processes it is, with --pid, or its --cgroup")
        self.close_ended()
        with self._changing:
            if job_id in self._jobs:
                raise ConflictError(f"job {job_id!r} is watched already; see 'fedmon node job list'")
            if len(self._jobs) >= MAX_JOBS:
                raise ConflictError(f"{MAX_JOBS} jobs are watched already; have one forgotten first")
            watching = self._maker.make(
                pids=pids,
                cgroup=cgroup,
                marker=marker or f"{MARKER}={job_id}",
                mono=self._monotonic(),
                starts=starts,
                exclude=exclude,
                overhead=overhead,
                is_overhead_now=is_overhead_now,
            )
            try:
                self._refuse_shared(job_id, watching, may_have_ended=isinstance(cgroup, JobCgroup))
            except ConflictError:
                watching.watched.close()
                self._rest()
                raise
            watching.watched.awaits_end = is_command
            job = _Job(job_id, name, list(pids), watching, origin)
            self._jobs = {**self._jobs, job_id: job}
            self._add_stream(job.stream, watching.collectors)
            self._rest()
        return job.record()

    def command_ended(self, job_id: str, switches: tuple[int, int] | None) -> None:
        """Tell the context switches of a job's command, None if unknown: its next sample is the last one."""
        job = self._jobs.get(job_id)
        if job is not None:
            job.watched.switches, job.watched.awaits_end = switches, False

    def handed_on(self, job_id: str) -> None:
        """Tell that a sample of a job has gone to its readers: the job is over after its last one."""
        job = self._jobs.get(job_id)
        if job is not None:
            job.watched.is_over |= job.watched.is_last

    def note_cpu(self, job_id: str, cpu_s: float) -> bool:
        """Tell all CPU seconds of a job that has ended; False if a reading since then has missed the last of them."""
        job = self._jobs.get(job_id)
        if job is None or job.watched.tree.has_ended:
            return False
        job.watched.noted_cpu_s = cpu_s
        return True

    def remove(self, job_id: str) -> WatchedJob:
        """Watch a job no longer; its processes are left alone. Raises NotFoundError when it is not watched."""
        with self._changing:
            job = self._jobs.get(job_id)
            if job is None:
                raise NotFoundError(f"no job {job_id!r} is watched; see 'fedmon node job list'")
            self._sample_last(job.stream)
            return self._close(job, FORGOTTEN)

    def records(self) -> list[WatchedJob]:
        """Return the jobs that are watched, and the last 64 that were, oldest first."""
        self.close_ended()
        return [*self._ended, *(job.record() for job in self._jobs.values())]

    def close_ended(self) -> list[WatchedJob]:
        """End the streams of jobs whose last sample was handed on; called about once a second."""
        with self._changing:
            records = [self._close(job, ALL_ENDED) for job in self._jobs.values() if job.watched.is_over]
        for record in records:
            logger.info("job %s has ended: %s", record.job_id, record.reason)
            self._on_end(record)
        return records

    def resume(self) -> None:
        """Give all streams to the sampler again, after it dropped them."""
        with self._changing:
            for job in self._jobs.values():
                self._add_stream(job.stream, job.watching.collectors)

    def pids(self) -> dict[str, Collection[int]]:
        """Return the living processes of each job, as of its last reading."""
        return {job_id: job.watched.tree.pids for job_id, job in self._jobs.items()}

    def cpu_seconds(self, now: Instant) -> dict[str, float]:
        """Return the CPU time that each job has used at the tick ``now``, in seconds; it never goes down."""
        return {job_id: job.watched.cpu_until(now) for job_id, job in self._jobs.items()}

    def perf_cgroup(self, job_id: str) -> str:
        """Return perf's name of a watched job's own cgroup; empty if there is none that perf could count.

        It is the path in the hierarchy of the version 1 controller ``perf_event``, else in version 2.
        Source: Linux tools/lib/api/fs/cgroup.c.
        """
        job, hierarchies = self._jobs.get(job_id), find_hierarchies(self._roots.cgroup)
        kind = "perf_event" if "perf_event" in hierarchies else UNIFIED
        if job is None or job.watching.cgroup is None or kind not in job.watching.cgroup.folders:
            return ""
        name = str(job.watching.cgroup.folders[kind].relative_to(hierarchies[kind]))
        return "" if "," in name else name  # perf separates names by commas

    def _close(self, job: _Job, reason: str) -> WatchedJob:
        self._jobs = {job_id: other for job_id, other in self._jobs.items() if other is not job}
        job.watched.is_over = True  # its holders open no file again
        self._remove_stream(job.stream)
        record = msgspec.structs.replace(job.record(), ended=_now(), reason=reason)
        self._ended.append(record)
        self._rest()
        return record

    def _rest(self) -> None:
        """Look for new processes no longer, when every job that is left has its members from a cgroup."""
        if all(job.watching.methods["members"] != TREE for job in self._jobs.values()):
            self._maker.rest()

    def _refuse_shared(self, job_id: str, watching: Watching, *, may_have_ended: bool) -> None:
        mine = set(watching.watched.tree.pids)
        if not mine and not may_have_ended:
            raise ConflictError(f"job {job_id!r}: its processes have ended meanwhile")
        for other in self._jobs.values():
            shared = mine.intersection(other.watched.tree.pids)
            if shared:
                raise ConflictError(
                    f"job {job_id!r}: process {min(shared)} belongs to job {other.job_id!r} already, and would be"
                    " counted twice"
                )


class _Job:
    """One job that is watched."""

    def __init__(self, job_id: str, name: str, pids: list[int], watching: Watching, origin: JobOrigin | None) -> None:
        self.job_id, self.watching, self.watched = job_id, watching, watching.watched
        self.stream = f"{JOB_STREAM}{job_id}"
        self._name, self._pids, self._origin = name, pids, origin
        self._since = _now()

    def record(self) -> WatchedJob:
        cgroup = self.watching.cgroup
        return WatchedJob(
            job_id=self.job_id,
            name=self._name,
            pids=self._pids,
            cgroup=None if cgroup is None else cgroup.path,
            methods=dict(self.watching.methods),
            since=self._since,
            processes=len(self.watched.tree.pids),
            cpu_seconds=round(sum(self.watched.cpu_s), 6),
            origin=self._origin,
        )


def _now() -> str:
    return utc_now().isoformat(timespec="seconds")
