"""Events of processor and kernel that perf counts: of the machine, and of one job."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Lane, Reading, Why
from fedmon.node.perf.command import Target, WholeMachine
from fedmon.node.perf.event import Scope
from fedmon.node.perf.job_target import JobTarget
from fedmon.node.perf.plan import COUNTED_SECONDS, EVENTS, RUNNING, STARTS, Plan, event_series, has_ratio
from fedmon.node.perf.session import Session
from fedmon.node.perf.source import PerfSource
from fedmon.node.perf.totals import GroupWindow, Snapshot

_PROBING = f"{Why.FIRST_SAMPLE.value}: perf's events are still being tried out"
_NO_PROCESS = f"{Why.NOT_FOUND.value}: no process of the job lives"
_INCOMPLETE = f"{Why.FAILED.value}: the events of this group were not all counted in one interval"
_NOTHING_TO_DIVIDE_BY = f"{Why.FAILED.value}: nothing happened that the result could be divided by"
_AGAIN_AFTER_S = 2.0


class _PerfCollector:
    """What counting the machine and counting a job have in common.

    ``collect`` starts perf's thread when first called, and afterwards only takes what that thread has ready: a series
    is left out of a sample when perf has ended no interval since the previous one.
    """

    name = "perf"
    lane = Lane.FAST

    def __init__(self, source: PerfSource, *, thread: str) -> None:
        self._source = source
        self._started = False
        self._told: tuple[Plan | None, str | None] = (None, None)
        self._given: tuple[str, ...] = (COUNTED_SECONDS,)
        self._session = Session(
            perf=source.perf,
            prepare=self._prepare,
            target=self._target,
            interval_s=source.settings.interval_s,
            paranoia=source.paranoia,
            name=thread,
            begin_after_s=source.begin_after_s,
        )

    def collect(self, now: Instant) -> Reading:
        """Return totals and what is derived from the intervals since the previous call; never waits."""
        self._look(now)
        self._start()
        session = self._session
        plan, totals = session.plan, session.totals
        if plan is None or totals is None:
            return Reading({})
        if not plan.groups:
            return self._missing(plan.missing.get(EVENTS, Why.UNSUPPORTED.value))
        snapshot = totals.take()
        if not snapshot.fresh:
            problem = session.problem or self._idle()
            return self._missing(problem) if problem is not None else Reading({})
        values, reasons = _reading(plan, snapshot)
        values[STARTS] = session.starts
        self._given = tuple(values)
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say what is counted; the answer changes from "first sample" to the truth when the probes are over."""
        self._start()
        self._told = plan, problem = self._session.plan, self._session.problem
        if plan is None:
            return dict.fromkeys((EVENTS, COUNTED_SECONDS), _PROBING)
        report = plan.capabilities()
        return report if problem is None else {name: reason or problem for name, reason in report.items()}

    @property
    def probe_changed(self) -> bool:
        """Whether ``probe`` would answer otherwise than it did last: the probes are over, or perf began or ceased."""
        return self._told != (self._session.plan, self._session.problem)

    def wait_probed(self, timeout_s: float) -> bool:
        """Wait until the probes are over, at most so long; for a report, never in the sampler's thread."""
        self._start()
        return self._session.planned.wait(timeout_s)

    def close(self) -> None:
        """End perf and its thread."""
        self._started = True
        self._session.stop()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._session.start()

    def _missing(self, reason: str) -> Reading:
        return Reading(dict.fromkeys(self._given), dict.fromkeys(self._given, reason))

    def _look(self, now: Instant) -> None:
        """Notice what changed about the target."""

    def _idle(self) -> str | None:
        """Return why perf counts nothing although nothing is wrong with it."""
        return None

    def _prepare(self, stopping: Callable[[], bool]) -> Plan | None:
        raise NotImplementedError

    def _target(self) -> Target | None:
        raise NotImplementedError


class PerfCollector(_PerfCollector):
    """Counts the whole machine; for the stream ``host``."""

    def __init__(self, source: PerfSource) -> None:
        super().__init__(source, thread="fedmon-perf")

    def _prepare(self, stopping: Callable[[], bool]) -> Plan | None:
        return self._source.plan(Scope.HOST, whole_machine=True, stopping=stopping)

    def _target(self) -> Target:
        return WholeMachine()


class PerfJobCollector(_PerfCollector):
    """Counts the processes of one job; for the stream of that job.

    ``pids`` gives the processes that the job has now; it is called at each tick and must not wait. ``cgroup`` is the
    folder of the cgroup that holds the job and nothing else; it is preferred where perf sees it and may count it, since
    it holds whatever the job will start.
    """

    def __init__(
        self, source: PerfSource, *, job: str, pids: Callable[[], Collection[int]], cgroup: Path | None = None
    ) -> None:
        super().__init__(source, thread=f"fedmon-perf-{job}")
        self._pids, self._cgroup = pids, cgroup
        self._job = JobTarget(proc=source.roots.proc)
        self._again_from = 0.0

    @property
    def method(self) -> str:
        """Return how the job is counted: ``cgroup``, or ``pids`` with the children they fork."""
        return "pids" if self._job.cgroup is None else "cgroup"

    def _prepare(self, stopping: Callable[[], bool]) -> Plan | None:
        name = self._source.cgroup_name(self._cgroup) if self._cgroup is not None else None
        if name is not None:
            plan = self._source.plan(Scope.JOB, whole_machine=True, stopping=stopping)
            if plan is None or plan.groups:
                self._job.cgroup = name
                return plan
        return self._source.plan(Scope.JOB, whole_machine=False, stopping=stopping)

    def _target(self) -> Target | None:
        return self._job.target()

    def _look(self, now: Instant) -> None:
        if self._job.cgroup is not None:
            return
        pids = self._pids()
        self._job.see(pids)
        session = self._session
        if session.attaching or now.mono < self._again_from:
            return
        if not (bool(pids) and session.idle) and not self._job.uncounted(session.attached_at):
            return
        self._again_from = now.mono + max(_AGAIN_AFTER_S, 2 * self._source.settings.interval_s)
        session.attach_again()

    def _idle(self) -> str | None:
        return _NO_PROCESS if self._session.idle else None


def _reading(plan: Plan, snapshot: Snapshot) -> tuple[dict[str, float | None], dict[str, str]]:
    values: dict[str, float | None] = {COUNTED_SECONDS: round(snapshot.seconds, 6)}
    reasons: dict[str, str] = {}
    for group in plan.groups:
        window = snapshot.windows.get(group.name)
        gap = None
        for event in group.events:
            name = event_series(group.name, event)
            reason = snapshot.gaps.get(name)
            if reason is not None:
                values[name], reasons[name] = None, reason
                gap = gap or reason
            elif name in snapshot.totals:
                values[name] = snapshot.totals[name]
        if window is not None and window.running_ratio is not None and has_ratio(group):
            values[series(RUNNING, group=group.name)] = window.running_ratio
        for derived in plan.derived[group.name]:
            result = None if window is None else derived.parsed().value(_variables(window))
            values[derived.series] = result
            if result is None:
                reasons[derived.series] = (gap or _INCOMPLETE) if window is None else _NOTHING_TO_DIVIDE_BY
    return values, reasons


def _variables(window: GroupWindow) -> dict[str, float | None]:
    return {**window.counts, "seconds": window.seconds}
