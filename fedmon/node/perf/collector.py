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
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import IO, cast

from fedmon.common.backoff import Backoff
from fedmon.common.clock import Deadline
from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Lane, Reading, Why
from fedmon.node.collectors.files import TICKS_PER_S
from fedmon.node.collectors.job.process import Birth, births_of, descended
from fedmon.node.perf.events import COUNTED_SECONDS, EVENTS, STARTS, PerfScope, Plan
from fedmon.node.perf.output import Totals, parse_line
from fedmon.node.perf.source import (
    LISTED,
    MACHINE,
    PLAIN,
    PerfSource,
    count,
    exit_reason,
    start_problem,
)

logger = logging.getLogger(__name__)

_QUIET_S = 0.1
_SILENCE_S = 10.0  # and five intervals
_READ_BYTES = 65_536
_SAID_LINES = 200
_VANISHED_S = 0.2
_PROCESSES_GONE = "Problems finding threads"
_LAST_INTERVAL_S = 1.5
_AGAIN_AFTER_S = 2.0
_PROBING = f"{Why.FIRST_SAMPLE.value}: perf's events are still being tried out"
_NO_PROCESS = f"{Why.NOT_FOUND.value}: no process of the job lives"


class PerfSession:
    """Counts a plan for a target on a thread, by a perf that prints its counts, until it is stopped.

    ``prepare`` is called once on the thread and gives the plan; None if its argument said that it is time to stop.
    ``target`` is called there before each start of perf, and gives perf's options for its target; None waits for
    the next ``attach_again``. ``start``, ``attach_again``, ``end`` and ``stop`` belong to one thread; attributes may be
    read from any.
    """

    def __init__(
        self,
        source: PerfSource,
        *,
        prepare: Callable[[Callable[[], bool]], Plan | None],
        target: Callable[[], Sequence[str] | None],
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
        """Start the thread, once, and not after `stop`."""
        if self._thread.ident is None and not self._stopping:
            self._thread.start()

    def attach_again(self) -> None:
        """Look at the target again: end perf and start it again."""
        if not self._stopping:
            self.attaching = True
            os.eventfd_write(self._wake, 1)

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
        plan = self._prepare(lambda: self._stopping)
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

    def _count(self, target: Sequence[str], plan: Plan, totals: Totals) -> str | None:
        """Run perf once; return why it ended, or None if that was intended.

        When this process dies, even by kill -9, the next line that perf prints ends it by SIGPIPE, within one interval.
        (A parent-death signal would need code between fork and exec, which is not safe beside threads, and the kernel
        drops it for a perf with file capabilities.)
        """
        command = count(self._source.perf, plan.groups, target, interval_s=self._interval_s)
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=PLAIN
            )
        except OSError as error:
            return start_problem(self._source.perf, error)
        self.pid = process.pid
        self.starts += 1
        totals.begin()
        said = deque[str](maxlen=_SAID_LINES)
        with process:
            try:
                self._read(process, totals, said)
            finally:
                process.kill()
        if self._woken():
            return None
        text = "\n".join(said)
        if LISTED in target and (process.returncode == 0 or _PROCESSES_GONE in text):
            # All of them ended, or one did before perf found it: list the living ones again.
            self._pause(_VANISHED_S if self.attached_at is None else 0.0)
            return None
        return exit_reason(text, process.returncode, self._source.paranoia)

    def _read(self, process: subprocess.Popen[bytes], totals: Totals, said: deque[str]) -> None:
        """Take the counts that perf prints until its end, and keep its messages.

        Perf is ended by SIGALRM when this session is woken: as by SIGINT it prints the present interval, but SIGINT may
        be blocked in the threads of a node or a tool, and so in perf. It may take ``patience_s`` for its last lines. A
        long silence is a ``problem`` until the next line. Source: Linux tools/perf/builtin-stat.c, skip_signal.
        """
        output = cast("IO[bytes]", process.stdout).fileno()
        heard, in_burst, rest = [output, self._wake], False, b""
        deadline: Deadline | None = None
        silence_s = _SILENCE_S + 5 * self._interval_s
        while True:
            is_between = in_burst and deadline is None  # perf's last lines belong to one interval
            wait_s = _QUIET_S if is_between else silence_s if deadline is None else deadline.left_s()
            ready = _readable(heard, wait_s)
            if output in ready:
                if not (chunk := os.read(output, _READ_BYTES)):
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._take(line.decode(errors="replace"), totals, said)
                in_burst = True
            elif is_between and not ready:
                totals.end_interval()
                in_burst = False
            elif deadline is None and not ready:
                self.problem = f"{Why.FAILED.value}: perf has printed nothing for {silence_s:g} s"
            elif deadline is None:
                heard, deadline = [output], Deadline(self._patience_s)
                process.send_signal(signal.SIGALRM)
            else:
                break
        totals.end_interval()
        said.append(rest.decode(errors="replace"))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._patience_s if deadline is None else deadline.left_s())

    def _take(self, line: str, totals: Totals, said: deque[str]) -> None:
        found = parse_line(line)
        if found is None or found.time_s is None:
            if not line.startswith("#"):
                said.append(line)
            return
        if self.attached_at is None:
            self.attached_at = time.clock_gettime(time.CLOCK_BOOTTIME) - found.time_s
        self.problem = None
        totals.add(found)

    def _pause(self, seconds: float | None) -> None:
        """Wait until ``stop`` or ``attach_again``, at most so long."""
        _readable([self._wake], seconds)
        self._woken()

    def _woken(self) -> bool:
        """Take back the wake-up; tell whether there was one."""
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return self._stopping or self.attaching
        return True


def _readable(descriptors: Collection[int], timeout_s: float | None) -> list[int]:
    """Wait until some can be read, and return them; unlike select(), for numbers above 1023, too."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]


class JobTarget:
    """The processes of one job, as they were seen last.

    Perf counts the children that a process forks after perf was attached, but no earlier ones. ``see`` and
    ``uncounted`` belong to the sampler's thread, ``target`` to perf's.
    """

    def __init__(self, *, proc: Path) -> None:
        self.cgroup = ""
        """The job's cgroup as perf calls it, once it is known that perf may count it."""
        self._proc = proc
        self._pids: frozenset[int] = frozenset()
        self._counted: set[int] = set()

    def see(self, pids: Collection[int]) -> bool:
        """Take the present processes of the job; return whether the last one has ended."""
        before, self._pids = self._pids, frozenset(pids)
        return bool(before) and not pids

    def target(self) -> list[str] | None:
        """Return perf's options for the job; None if no process of it lives."""
        if self.cgroup:
            return [MACHINE, "--for-each-cgroup", self.cgroup]
        listed = sorted(birth.pid for birth in self._living(self._pids))
        self._counted = set(listed)
        return [LISTED, ",".join(map(str, listed))] if listed else None

    def uncounted(self, attached_at: float | None) -> bool:
        """Tell whether the job has a process that perf does not count.

        ``attached_at`` is when perf began, in seconds since boot; None if that is not known yet, which means no.
        """
        if self.cgroup or attached_at is None:
            return False
        counted = self._counted  # perf's thread may replace it meanwhile
        found = self._living(self._pids - counted)
        counted &= self._pids
        # Start times are cut to a tick of the kernel's clock, so one of the same tick may have been too early.
        later = [birth for birth in found if birth.start / TICKS_PER_S > attached_at]
        counted.update(birth.pid for birth in descended(counted, later))
        return any(birth.pid not in counted for birth in found)

    def _living(self, pids: Collection[int]) -> list[Birth]:
        return [birth for birth in births_of(pids, self._proc) if not birth.is_zombie]


class PerfCollector:
    """Counts the whole machine; for the stream ``host``.

    ``collect`` starts perf's thread when first called, and afterwards only takes the finished intervals: a series is
    left out of a sample if perf has ended no interval since the previous one.
    """

    name = "perf"
    lane = Lane.FAST

    def __init__(self, source: PerfSource, *, thread: str = "fedmon-perf") -> None:
        self._source = source
        self._is_ending = False
        self._reported: tuple[Plan | None, str | None] = (None, None)
        self._given: tuple[str, ...] = (COUNTED_SECONDS,)
        self._session = PerfSession(source, prepare=self._prepare, target=self._target, name=thread)

    def collect(self, now: Instant) -> Reading:
        """Return totals, and series derived from the intervals since the previous call.

        Never waits, but up to 1.5 s for the last interval of a job.
        """
        self._look(now)
        session = self._session
        session.start()
        if self._is_ending:
            session.end(_LAST_INTERVAL_S if session.pid is not None else 0.0)
        plan, totals = session.plan, session.totals
        if plan is None or totals is None:
            return Reading({})
        if not plan.groups:
            return self._missing(plan.missing.get(EVENTS, Why.UNSUPPORTED.value))
        reading = totals.take()
        if reading is None:
            problem = session.problem or (_NO_PROCESS if session.idle else None)
            return self._missing(problem) if problem is not None else Reading({})
        values = {**reading.values, STARTS: session.starts}
        self._given = tuple(values)
        return Reading(values, reading.reasons)

    def probe(self) -> dict[str, str | None]:
        """Report the counted groups; "first sample" until they were tried out."""
        self._session.start()
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
        self._session.start()
        return self._session.planned.wait(timeout_s)

    def ending(self) -> None:
        """Have the present interval counted: the next reading is the last, and waits for it."""
        self._is_ending = True
        self._session.end(0.0)  # all perfs end at the same time

    def close(self) -> None:
        """End perf and its thread."""
        self._session.stop()

    def _missing(self, reason: str) -> Reading:
        return Reading(dict.fromkeys(self._given), dict.fromkeys(self._given, reason))

    def _look(self, now: Instant) -> None:
        """Notice a change of the target."""

    def _prepare(self, stopping: Callable[[], bool]) -> Plan | None:
        return self._source.plan(PerfScope.HOST, whole_machine=True, stopping=stopping)

    def _target(self) -> list[str] | None:
        return [MACHINE]


class PerfJobCollector(PerfCollector):
    """Counts the processes of one job; for the stream of that job.

    ``pids`` gives the present processes of the job; it is called at each tick and must not wait. ``cgroup`` is perf's
    name of the cgroup that holds the job and nothing else, or empty; it is preferred if perf may count it, since it
    holds all that the job will start.
    """

    def __init__(self, source: PerfSource, *, job: str, pids: Callable[[], Collection[int]], cgroup: str = "") -> None:
        super().__init__(source, thread=f"fedmon-perf-{job}")
        self._pids, self._cgroup = pids, cgroup
        self._job = JobTarget(proc=source.roots.proc)
        self._again_from = 0.0

    def _prepare(self, stopping: Callable[[], bool]) -> Plan | None:
        if self._cgroup:
            plan = self._source.plan(PerfScope.JOB, whole_machine=True, stopping=stopping)
            if plan is None or plan.groups:
                self._job.cgroup = self._cgroup
                return plan
        return self._source.plan(PerfScope.JOB, whole_machine=False, stopping=stopping)

    def _target(self) -> list[str] | None:
        return self._job.target()

    def _look(self, now: Instant) -> None:
        pids, session = self._pids(), self._session
        self._is_ending |= self._job.see(pids)
        if session.attaching or now.mono < self._again_from:
            return
        if (pids and session.idle) or self._job.uncounted(session.attached_at):
            self._again_from = now.mono + max(_AGAIN_AFTER_S, 2 * self._source.settings.interval_s)
            session.attach_again()
