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
from typing import IO, cast

from fedmon.common.backoff import Backoff
from fedmon.common.clock import Deadline
from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Lane, Reading, Why
from fedmon.node.collectors.job.process import TICKS_PER_S, Birth, find_birth
from fedmon.node.perf.events import COUNTED_SECONDS, EVENTS, RUNNING, STARTS, PerfScope, Plan
from fedmon.node.perf.output import Snapshot, Totals, parse_line
from fedmon.node.perf.source import (
    PLAIN,
    PerfSource,
    PerfTarget,
    cgroup_name,
    count,
    exit_reason,
    start_problem,
    unblocked_signals,
)

logger = logging.getLogger(__name__)

_QUIET_S = 0.1
_READ_BYTES = 65_536
_SAID_BYTES = 4_096
_VANISHED_S = 0.2
_PROCESSES_GONE = "Problems finding threads"
_LAST_INTERVAL_S = 1.5
_AGAIN_AFTER_S = 2.0
_PROBING = f"{Why.FIRST_SAMPLE.value}: perf's events are still being tried out"
_NO_PROCESS = f"{Why.NOT_FOUND.value}: no process of the job lives"
_INCOMPLETE = f"{Why.FAILED.value}: the events of this group were not all counted in one interval"
_ZERO_DIVISOR = f"{Why.FAILED.value}: nothing happened that the result could be divided by"


class PerfProcess:
    """A running perf that prints counts on its standard output; every method belongs to one thread.

    When this process dies, even by kill -9, the next line that perf prints ends it by SIGPIPE, within one interval. (A
    parent-death signal would need code between fork and exec, which is not safe beside threads, and the kernel drops it
    for a perf with file capabilities.) Perf may take ``patience_s`` to end. Raises OSError if it cannot be started.
    """

    def __init__(self, command: list[str], *, patience_s: float = 5.0) -> None:
        self._patience_s = patience_s
        self._rest = b""
        # Perf's messages are kept in memory; an unread pipe could block it.
        self._said = os.fdopen(os.memfd_create("fedmon-perf"), "w+b")
        try:
            with unblocked_signals():
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._said, env=PLAIN, bufsize=0
                )
        except BaseException:
            self._said.close()
            raise
        self.pid, self._output = self._process.pid, cast("IO[bytes]", self._process.stdout)
        self._lines = self._output.fileno()

    def run(self, take: Callable[[str | None], object], wake: int, *, silence_s: float) -> str | None:
        """Hand each line to ``take``, and None after a burst of lines, until perf has closed its output.

        Perf is ended by SIGINT when the descriptor ``wake`` is readable, or after ``silence_s`` without a line; it may
        take ``patience_s`` for its last lines. Return ``"woken"``, ``"silent"``, or None if perf ended by itself.
        """
        in_burst, deadline, why = False, Deadline(silence_s), None
        while True:
            wait_s = _QUIET_S if in_burst and why is None else deadline.left_s()
            ready, _, _ = select.select([self._lines, *([wake] if why is None else [])], [], [], wait_s)
            if self._lines in ready:
                if not (chunk := os.read(self._lines, _READ_BYTES)):
                    break
                for line in self._split(chunk):
                    take(line)
                in_burst, deadline = True, Deadline(silence_s) if why is None else deadline
            elif in_burst and not ready and why is None:
                take(None)
                in_burst = False
            elif why is None:
                why, deadline = "woken" if ready else "silent", Deadline(self._patience_s)
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGINT)
            else:
                break
        take(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0 if why is None else deadline.left_s())
        return why

    def close(self) -> tuple[int, str]:
        """Kill perf if it still runs, and return its status and its messages; the object is of no use afterwards."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        with self._output, self._said:
            size = self._said.seek(0, os.SEEK_END)
            self._said.seek(max(0, size - _SAID_BYTES))
            said = self._said.read().decode(errors="replace")
        return self._process.returncode, said

    def _split(self, chunk: bytes) -> Iterator[str]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)


class PerfSession:
    """Counts a plan for a target on a thread, until it is stopped.

    ``prepare`` is called once on the thread, ``source.begin_after_s`` after the start, and gives the plan; None if its
    argument said that it is time to stop. ``target`` is called there before each start of perf; None waits for the next
    ``attach_again``. ``start``, ``attach_again``, ``end_interval`` and ``stop`` belong to one thread; attributes may be
    read from any.
    """

    def __init__(
        self,
        source: PerfSource,
        *,
        prepare: Callable[[Callable[[], bool]], Plan | None],
        target: Callable[[], PerfTarget | None],
        name: str,
        backoff: Backoff | None = None,
        patience_s: float = 5.0,
    ) -> None:
        self._source, self._interval_s = source, source.settings.interval_s
        self._prepare, self._target = prepare, target
        self._backoff, self._patience_s = backoff or Backoff(1.0, longest_s=60.0), patience_s
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ended = threading.Event()
        self.attaching = False
        """Whether ``attach_again`` was called and the target has not been looked at since."""
        self.plan: Plan | None = None
        self.totals: Totals | None = None
        self.problem: str | None = None
        """The reason why perf does not count at present; None while it does."""
        self.starts = 0
        """How often perf was started."""
        self.attached_at: float | None = None
        """When the present perf began to count, on the clock of process start times; None until its first line."""
        self.pid: int | None = None
        self.idle = False
        """Whether there is nothing to count until ``attach_again``."""
        self.planned = threading.Event()
        """Set when the plan is ready."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def attach_again(self) -> None:
        """Look at the target again: end perf and start it again."""
        if not self._stopping:
            self.attaching = True
            os.eventfd_write(self._wake, 1)

    def end_interval(self, timeout_s: float) -> None:
        """End perf, so that its present interval is counted, and look at the target again."""
        if self.pid is not None:
            self.attach_again()
            self._ended.wait(timeout_s)

    def end(self, timeout_s: float) -> bool:
        """End perf, so that its present interval is counted, and the thread; return whether that is done."""
        if not self._stopping:
            self._stopping = True
            os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self, timeout_s: float = 8.0) -> None:
        """End perf and the thread, and free everything; safe to call twice."""
        if not self.end(timeout_s):
            logger.error("perf's thread %s did not end within %.1f s", self._thread.name, timeout_s)
        elif self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def _run(self) -> None:
        self._pause(self._source.begin_after_s)
        plan = None if self._stopping else self._prepare(lambda: self._stopping)
        if plan is None:
            return
        self.plan, self.totals = plan, Totals(plan)
        self.planned.set()
        while plan.groups and not self._stopping:
            self.attaching = False
            target = self._target()
            self.idle = target is None
            if target is None:
                self._pause(None)
                continue
            ran = Deadline(10.0)
            self._ended.clear()
            self.problem = problem = self._count(target, plan, self.totals)
            self.attached_at = self.pid = None
            self._ended.set()
            if problem is None:
                continue
            if ran.passed():
                self._backoff.reset()
            level = logging.DEBUG if self._backoff.attempts else logging.WARNING
            delay_s = self._backoff.next_s()
            logger.log(level, "perf does not count, next try in %.1f s: %s", delay_s, problem)
            self._pause(delay_s)

    def _count(self, target: PerfTarget, plan: Plan, totals: Totals) -> str | None:
        """Run perf once; return why it ended, or None if that was intended."""
        command = count(self._source.perf, plan.groups, target, interval_s=self._interval_s)
        try:
            process = PerfProcess(command, patience_s=self._patience_s)
        except OSError as error:
            return start_problem(self._source.perf, error)
        self.pid = process.pid
        self.starts += 1
        totals.begin()
        silence_s = 5 * self._interval_s + 10.0
        try:
            why = process.run(lambda line: self._take(line, totals), self._wake, silence_s=silence_s)
        finally:
            status, said = process.close()
        if self._woken():
            return None
        if why == "silent":
            return f"failed: perf printed nothing for {silence_s:g} s"
        if target.pids and (status == 0 or _PROCESSES_GONE in said):
            # All of them ended, or one did before perf found it: list the living ones again.
            self._pause(_VANISHED_S if self.attached_at is None else 0.0)
            return None
        return exit_reason(said, status, self._source.paranoia)

    def _take(self, line: str | None, totals: Totals) -> None:
        if line is None:
            totals.end_interval()
        elif (found := parse_line(line)) is not None:
            if self.attached_at is None and found.time_s is not None:
                self.attached_at = time.clock_gettime(time.CLOCK_BOOTTIME) - found.time_s
                self.problem = None
            totals.add(found)

    def _pause(self, seconds: float | None) -> None:
        """Wait until ``stop`` or ``attach_again``, at most so long."""
        if not (self._stopping or self.attaching):
            select.select([self._wake], [], [], seconds)
        self._woken()

    def _woken(self) -> bool:
        """Take back the wake-up; tell whether there was one."""
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return self._stopping or self.attaching
        return True


class JobTarget:
    """The processes of one job, as they were seen last.

    Perf counts the children that a process forks after perf was attached, but no earlier ones. ``see`` and
    ``uncounted`` belong to the sampler's thread, ``target`` to perf's.
    """

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self.cgroup = ""
        """The job's cgroup as perf calls it, once it is known that perf may count it."""
        self.has_ended = False
        """Whether the job had processes and has none."""
        self._proc = proc
        self._pids: frozenset[int] = frozenset()
        self._listed: frozenset[int] = frozenset()
        self._counted: set[int] = set()
        self._of: frozenset[int] = frozenset()

    def see(self, pids: Collection[int]) -> None:
        """Take the present processes of the job."""
        self.has_ended = not pids and (self.has_ended or bool(self._pids))
        self._pids = frozenset(pids)

    def target(self) -> PerfTarget | None:
        """Return perf's target; None if no process of the job lives."""
        if self.cgroup:
            return None if self.has_ended else PerfTarget(cgroup=self.cgroup)
        self._listed = frozenset(pid for pid in self._pids if self._living(pid) is not None)
        return PerfTarget(pids=tuple(sorted(self._listed))) if self._listed else None

    def uncounted(self, attached_at: float | None) -> bool:
        """Tell whether the job has a process that perf does not count.

        ``attached_at`` is when perf began, in seconds since boot; None if that is not known yet, which means no.
        """
        if self.cgroup or attached_at is None:
            return False
        listed = self._listed
        if listed is not self._of:
            self._of, self._counted = listed, set(listed)
        new = self._pids - self._counted
        if not new:
            return False
        self._counted &= self._pids
        found = {pid: birth for pid in new if (birth := self._living(pid)) is not None}
        # Parents first: a child is counted if its parent was at the time.
        for pid, birth in sorted(found.items(), key=lambda pair: (pair[1].start, pair[0])):
            # Start times are cut to a tick of the kernel's clock, so one of the same tick may have been too early.
            if birth.parent in self._counted and birth.start / TICKS_PER_S > attached_at:
                self._counted.add(pid)
        return any(pid not in self._counted for pid in found)

    def _living(self, pid: int) -> Birth | None:
        birth = find_birth(pid, self._proc)
        return None if birth is None or birth.is_zombie else birth


class PerfCollector:
    """Counts the whole machine; for the stream ``host``.

    ``collect`` starts perf's thread when first called, and afterwards only takes the finished intervals: a series is
    left out of a sample if perf has ended no interval since the previous one.
    """

    name = "perf"
    lane = Lane.FAST

    def __init__(self, source: PerfSource, *, thread: str = "fedmon-perf") -> None:
        self._source = source
        self._started = self._is_ending = False
        self._reported: tuple[Plan | None, str | None] = (None, None)
        self._given: tuple[str, ...] = (COUNTED_SECONDS,)
        self._session = PerfSession(source, prepare=self._prepare, target=self._target, name=thread)

    def collect(self, now: Instant) -> Reading:
        """Return totals, and series derived from the intervals since the previous call.

        Never waits, but up to 1.5 s for the last interval of a job.
        """
        self._look(now)
        self._start()
        session = self._session
        if self._is_ending:
            session.end(_LAST_INTERVAL_S)
        plan, totals = session.plan, session.totals
        if plan is None or totals is None:
            return Reading({})
        if not plan.groups:
            return self._missing(plan.missing.get(EVENTS, Why.UNSUPPORTED.value))
        snapshot = totals.take()
        if not snapshot.fresh:
            problem = session.problem or (_NO_PROCESS if session.idle else None)
            return self._missing(problem) if problem is not None else Reading({})
        values, reasons = _reading(plan, snapshot)
        values[STARTS] = session.starts
        self._given = tuple(values)
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Report the counted groups; "first sample" until they were tried out."""
        self._start()
        self._reported = plan, problem = self._session.plan, self._session.problem
        if plan is None:
            return dict.fromkeys((EVENTS, COUNTED_SECONDS), _PROBING)
        report = plan.capabilities()
        return report if problem is None else {name: reason or problem for name, reason in report.items()}

    @property
    def probe_changed(self) -> bool:
        """Whether ``probe`` would give another answer than the last time."""
        return self._reported != (self._session.plan, self._session.problem)

    def wait_probed(self, timeout_s: float) -> bool:
        """Wait until the groups were tried out, at most so long; for a report, never in the sampler's thread."""
        self._start()
        return self._session.planned.wait(timeout_s)

    def ending(self) -> None:
        """Have the present interval counted: the next reading is the last, and waits for it."""
        self._is_ending = True
        self._session.end(0.0)  # all perfs end at the same time

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
        """Notice a change of the target."""

    def _prepare(self, stopping: Callable[[], bool]) -> Plan | None:
        return self._source.plan(PerfScope.HOST, whole_machine=True, stopping=stopping)

    def _target(self) -> PerfTarget | None:
        return PerfTarget()


class PerfJobCollector(PerfCollector):
    """Counts the processes of one job; for the stream of that job.

    ``pids`` gives the present processes of the job; it is called at each tick and must not wait. ``cgroup`` is the
    folder of the cgroup that holds the job and nothing else; it is preferred if perf may count it, since it holds all
    that the job will start.
    """

    def __init__(
        self, source: PerfSource, *, job: str, pids: Callable[[], Collection[int]], cgroup: Path | None = None
    ) -> None:
        super().__init__(source, thread=f"fedmon-perf-{job}")
        self._pids, self._cgroup = pids, cgroup
        self._job = JobTarget(proc=source.roots.proc)
        self._again_from = 0.0

    def _prepare(self, stopping: Callable[[], bool]) -> Plan | None:
        name = cgroup_name(self._source.roots, self._cgroup) if self._cgroup is not None else None
        if name is not None:
            plan = self._source.plan(PerfScope.JOB, whole_machine=True, stopping=stopping)
            if plan is None or plan.groups:
                self._job.cgroup = name
                return plan
        return self._source.plan(PerfScope.JOB, whole_machine=False, stopping=stopping)

    def _target(self) -> PerfTarget | None:
        return self._job.target()

    def _look(self, now: Instant) -> None:
        pids, session, had_ended = self._pids(), self._session, self._job.has_ended
        self._job.see(pids)
        if self._job.has_ended and not had_ended:
            session.end_interval(_LAST_INTERVAL_S)
        if session.attaching or now.mono < self._again_from:
            return
        if (pids and session.idle) or self._job.uncounted(session.attached_at):
            self._again_from = now.mono + max(_AGAIN_AFTER_S, 2 * self._source.settings.interval_s)
            session.attach_again()


def _reading(plan: Plan, snapshot: Snapshot) -> tuple[dict[str, float | None], dict[str, str]]:
    values: dict[str, float | None] = {COUNTED_SECONDS: round(snapshot.seconds, 6)}
    reasons: dict[str, str] = {}
    for group in plan.groups:
        window = snapshot.windows.get(group.name)
        gap = ""
        for name in (event.series(group.name) for event in group.events):
            if (reason := snapshot.gaps.get(name)) is not None:
                values[name], reasons[name] = None, reason
                gap = gap or reason
            elif name in snapshot.totals:
                values[name] = snapshot.totals[name]
        if window is not None and window.running_ratio is not None and group.has_ratio:
            values[series(RUNNING, group=group.name)] = window.running_ratio
        for derived in plan.derived[group.name]:
            result = None if window is None else derived.formula.value({**window.counts, "seconds": window.seconds})
            values[derived.series] = result
            if result is None:
                reasons[derived.series] = (gap or _INCOMPLETE) if window is None else _ZERO_DIVISOR
    return values, reasons
