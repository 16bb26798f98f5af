"""Events of processor and kernel that perf counts: of the machine, and of one job."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from fedmon.common.backoff import Backoff
from fedmon.common.clock import Deadline
from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Lane, Reading, Why
from fedmon.node.collectors.job.process import Birth, read_birth
from fedmon.node.perf.events import COUNTED_SECONDS, EVENTS, RUNNING, STARTS, PerfScope, Plan, event_series, has_ratio
from fedmon.node.perf.output import Snapshot, Totals, parse_line
from fedmon.node.perf.source import (
    PLAIN,
    InCgroup,
    PerfSource,
    Processes,
    Target,
    WholeMachine,
    count,
    not_startable,
    signals_reach_children,
    why_it_ended,
)

logger = logging.getLogger(__name__)


_QUIET_S = 0.1
_READ_BYTES = 65_536
_SAID_BYTES = 4_096


class PerfProcess:
    """A running perf; every method belongs to the thread that made it.

    Its output comes through a pipe whose only reader is this process. When this process dies, even by kill -9, the
    next line that perf prints ends it by SIGPIPE, within one interval. (A parent-death signal would need code between
    fork and exec, which is not safe beside threads, and the kernel drops it for a perf that has file capabilities.)
    ``patience_s`` is how long it may take to end. Raises OSError when perf cannot be started.
    """

    def __init__(self, command: Callable[[int], list[str]], *, patience_s: float = 2.0) -> None:
        self._patience_s = patience_s
        self._lines, writes = os.pipe()
        # What perf says beside its counts is kept in memory; a pipe that nobody reads could block it.
        self._said = os.memfd_create("fedmon-perf")
        self._rest = b""
        try:
            with signals_reach_children():
                self._process = subprocess.Popen(
                    command(writes),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._said,
                    pass_fds=(writes,),
                    env=PLAIN,
                )
        except BaseException:
            os.close(self._lines)
            os.close(self._said)
            raise
        finally:
            os.close(writes)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def lines(self, wake: int, *, silence_s: float) -> Iterator[str | None]:
        """Yield each line as it comes, and None when a burst of lines is over.

        Ends when perf has closed its output, when the descriptor ``wake`` can be read, or when perf printed nothing for
        ``silence_s``.
        """
        in_burst, silent = False, Deadline(silence_s)
        while True:
            wait_s = _QUIET_S if in_burst else silent.left_s()
            ready, _, _ = select.select([self._lines, wake], [], [], wait_s)
            if wake in ready:
                return
            if ready:
                chunk = os.read(self._lines, _READ_BYTES)
                if not chunk:
                    return
                yield from self._split(chunk)
                in_burst, silent = True, Deadline(silence_s)
            elif in_burst:
                yield None
                in_burst = False
            else:
                return

    def end(self) -> Iterator[str]:
        """End perf by SIGINT and yield what it still prints; SIGKILL follows when it has not ended in time."""
        deadline = Deadline(self._patience_s)
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        while not deadline.passed():
            ready, _, _ = select.select([self._lines], [], [], deadline.left_s())
            chunk = os.read(self._lines, _READ_BYTES) if ready else b""
            if not chunk:
                break
            yield from self._split(chunk)
        self._reap(deadline.left_s())

    def close(self) -> tuple[int, str]:
        """Make sure that perf is gone, and return its status and what it said; afterwards this object is of no use."""
        self._reap(0.0 if self._process.poll() is None else None)
        size = os.fstat(self._said).st_size
        said = os.pread(self._said, _SAID_BYTES, max(0, size - _SAID_BYTES)).decode(errors="replace")
        os.close(self._lines)
        os.close(self._said)
        return self._process.returncode, said

    def wait(self, timeout_s: float) -> None:
        """Wait for a perf that has closed its output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def _reap(self, timeout_s: float | None) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _split(self, chunk: bytes) -> Iterator[str]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > _READ_BYTES:
            self._rest = b""
        for line in lines:
            yield line.decode(errors="replace")


_VANISHED_S = 0.2
_PROCESSES_GONE = "Problems finding threads"


class PerfSession:
    """Counts a plan for a target until it is stopped.

    ``prepare`` is called once on the session's thread, ``begin_after_s`` after the start, and gives the plan, after as
    long as probing takes; it asks its argument whether it is time to stop, and then gives None. ``target`` is called
    there before each start and gives what to count now, or None to wait for the next ``attach_again``.
    ``start``, ``attach_again`` and ``stop`` belong to one thread; what can be read, to any.
    """

    def __init__(
        self,
        *,
        perf: str,
        prepare: Callable[[Callable[[], bool]], Plan | None],
        target: Callable[[], Target | None],
        interval_s: float,
        paranoia: str,
        name: str,
        backoff: Backoff | None = None,
        patience_s: float = 2.0,
        begin_after_s: float = 0.0,
    ) -> None:
        self._begin_after_s = begin_after_s
        self._perf, self._interval_s, self._paranoia = perf, interval_s, paranoia
        self._prepare, self._target = prepare, target
        self._backoff, self._patience_s = backoff or Backoff(1.0, longest_s=60.0), patience_s
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._again = False
        self._thread = threading.Thread(target=self._run, name=name)
        self.plan: Plan | None = None
        self.totals: Totals | None = None
        self.problem: str | None = None
        """Why perf does not count at present; None while it does."""
        self.starts = 0
        """How often perf was started."""
        self.attached_at: float | None = None
        """When the present perf began to count, on the clock of process start times; None until its first line."""
        self.pid: int | None = None
        self.idle = False
        """Whether there is nothing to count until ``attach_again``."""
        self.planned = threading.Event()
        """Set when the plan is there."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def attaching(self) -> bool:
        """Whether ``attach_again`` was called and the target has not been looked at since."""
        return self._again

    def attach_again(self) -> None:
        """Look at the target again: end perf and start it anew."""
        if self._stopping:
            return
        self._again = True
        os.eventfd_write(self._wake, 1)

    def stop(self, timeout_s: float = 5.0) -> None:
        """End perf and the thread; safe to call twice."""
        if self._stopping:
            return
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.error("perf's thread %s did not end within %.1f s", self._thread.name, timeout_s)
            return
        os.close(self._wake)

    def _run(self) -> None:
        self._pause(self._begin_after_s)
        plan = None if self._stopping else self._prepare(lambda: self._stopping)
        if plan is None:
            return
        self.plan, self.totals = plan, Totals(plan)
        self.planned.set()
        while plan.groups and not self._stopping:
            self._again = False
            target = self._target()
            self.idle = target is None
            if target is None:
                self._pause(None)
                continue
            ran = Deadline(10.0)
            self.problem = problem = self._count(target, plan, self.totals)
            self.attached_at = self.pid = None
            if problem is None:
                continue
            if ran.passed():
                self._backoff.reset()
            level = logging.DEBUG if self._backoff.attempts else logging.WARNING
            delay_s = self._backoff.next_s()
            logger.log(level, "perf does not count, next try in %.1f s: %s", delay_s, problem)
            self._pause(delay_s)

    def _count(self, target: Target, plan: Plan, totals: Totals) -> str | None:
        """Run perf once; return why it ended, or None when that was meant."""
        try:
            process = PerfProcess(
                lambda log_fd: count(self._perf, plan.groups, target, interval_s=self._interval_s, log_fd=log_fd),
                patience_s=self._patience_s,
            )
        except OSError as error:
            return not_startable(self._perf, error)
        self.pid = process.pid
        self.starts += 1
        totals.begin()
        silence_s = 5 * self._interval_s + 10.0
        silent, heard = Deadline(silence_s), False
        try:
            for line in process.lines(self._wake, silence_s=silence_s):
                heard, silent = True, Deadline(silence_s)
                self._take(line, totals)
            meant = self._woken()
            if meant or silent.passed():
                for line in process.end():
                    self._take(line, totals)
            else:
                process.wait(1.0)
            totals.end_interval()
        finally:
            status, said = process.close()
        if meant:
            return None
        if silent.passed():
            return f"failed: perf printed nothing for {silence_s:g} s"
        if isinstance(target, Processes) and (status == 0 or _PROCESSES_GONE in said):
            # All of them ended, or one did before perf found it: look at who is left.
            self._pause(0.0 if heard else _VANISHED_S)
            return None
        return why_it_ended(said, status, self._paranoia)

    def _take(self, line: str | None, totals: Totals) -> None:
        if line is None:
            totals.end_interval()
            return
        found = parse_line(line)
        if found is None:
            return
        if self.attached_at is None and found.time_s is not None:
            self.attached_at = time.clock_gettime(time.CLOCK_BOOTTIME) - found.time_s
            self.problem = None
        totals.add(found)

    def _pause(self, seconds: float | None) -> None:
        """Wait, but not longer than until ``stop`` or ``attach_again``; None waits for these alone."""
        if not (self._stopping or self._again):
            select.select([self._wake], [], [], seconds)
        self._woken()

    def _woken(self) -> bool:
        """Take back the wake-up; tell whether there was one."""
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return self._stopping or self._again
        return True


_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class JobTarget:
    """The processes of one job, as they were seen last.

    perf counts the children that a process forks after it was attached, but not those that were there before.
    ``see`` and ``uncounted`` belong to the sampler's thread, ``target`` to perf's.
    """

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self.cgroup: str | None = None
        """The job's cgroup as perf calls it, once it is known that perf may count it."""
        self._proc = proc
        self._pids: frozenset[int] = frozenset()
        self._listed: frozenset[int] = frozenset()
        self._counted: set[int] = set()
        self._of: frozenset[int] = frozenset()

    def see(self, pids: Collection[int]) -> None:
        """Take the processes that the job has now."""
        self._pids = frozenset(pids)

    def target(self) -> Target | None:
        """Return what perf is to count now; None when no process of the job lives."""
        if self.cgroup is not None:
            return InCgroup(self.cgroup)
        listed = {pid for pid in self._pids if self._living(pid) is not None}
        self._listed = frozenset(listed)
        return Processes(tuple(sorted(listed))) if listed else None

    def uncounted(self, attached_at: float | None) -> bool:
        """Tell whether the job has a process that perf does not count.

        ``attached_at`` is when perf began, in seconds since boot; None, when that is not known yet, means no.
        """
        if self.cgroup is not None or attached_at is None:
            return False
        listed = self._listed
        if listed is not self._of:
            self._of, self._counted = listed, set(listed)
        new = self._pids - self._counted
        if not new:
            return False
        self._counted &= self._pids
        found = {pid: birth for pid in new if (birth := self._living(pid)) is not None}
        # Parents first: a child is counted when its parent was at the time.
        for pid, birth in sorted(found.items(), key=lambda pair: (pair[1].start, pair[0])):
            # Start times are cut to a tick of the kernel's clock, so one of the same tick may have been too early.
            if birth.parent in self._counted and birth.start / _TICKS_PER_SECOND > attached_at:
                self._counted.add(pid)
        return any(pid not in self._counted for pid in found)

    def _living(self, pid: int) -> Birth | None:
        try:
            birth = read_birth(pid, self._proc)
        except (OSError, ValueError, IndexError):
            return None
        return None if birth.is_zombie else birth


_PROBING = f"{Why.FIRST_SAMPLE.value}: perf's events are still being tried out"
_NO_PROCESS = f"{Why.NOT_FOUND.value}: no process of the job lives"
_INCOMPLETE = f"{Why.FAILED.value}: the events of this group were not all counted in one interval"
_NOTHING_TO_DIVIDE_BY = f"{Why.FAILED.value}: nothing happened that the result could be divided by"
_AGAIN_AFTER_S = 2.0


class PerfCollector:
    """Counts the whole machine; for the stream ``host``.

    ``collect`` starts perf's thread when first called, and afterwards only takes what that thread has ready: a series
    is left out of a sample when perf has ended no interval since the previous one.
    """

    name = "perf"
    lane = Lane.FAST

    def __init__(self, source: PerfSource, *, thread: str = "fedmon-perf") -> None:
        self._source = source
        self._started = False
        self._told: tuple[Plan | None, str | None] = (None, None)
        self._given: tuple[str, ...] = (COUNTED_SECONDS,)
        self._session = PerfSession(
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
        return self._source.plan(PerfScope.HOST, whole_machine=True, stopping=stopping)

    def _target(self) -> Target | None:
        return WholeMachine()


class PerfJobCollector(PerfCollector):
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
            plan = self._source.plan(PerfScope.JOB, whole_machine=True, stopping=stopping)
            if plan is None or plan.groups:
                self._job.cgroup = name
                return plan
        return self._source.plan(PerfScope.JOB, whole_machine=False, stopping=stopping)

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
            result = None if window is None else derived.parsed().value({**window.counts, "seconds": window.seconds})
            values[derived.series] = result
            if result is None:
                reasons[derived.series] = (gap or _INCOMPLETE) if window is None else _NOTHING_TO_DIVIDE_BY
    return values, reasons
