"""A thread that keeps perf counting one target: starts it, reads it, ends it, and starts it again when it died."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable

from fedmon.common.clock import Deadline
from fedmon.node.perf.command import Processes, Target, count
from fedmon.node.perf.output import parse_line
from fedmon.node.perf.plan import Plan
from fedmon.node.perf.probe import not_startable, why_it_ended
from fedmon.node.perf.process import PerfProcess
from fedmon.node.perf.totals import Totals

logger = logging.getLogger(__name__)

_BACK_OFF_S = (1.0, 60.0)
_VANISHED_S = 0.2
_PROCESSES_GONE = "Problems finding threads"


class Session:
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
        back_off_s: tuple[float, float] = _BACK_OFF_S,
        patience_s: float = 2.0,
        begin_after_s: float = 0.0,
    ) -> None:
        self._begin_after_s = begin_after_s
        self._perf, self._interval_s, self._paranoia = perf, interval_s, paranoia
        self._prepare, self._target = prepare, target
        self._back_off_s, self._patience_s = back_off_s, patience_s
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
        back_off_s, longest_s = self._back_off_s
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
                back_off_s = self._back_off_s[0]
            logger.log(
                logging.WARNING if back_off_s == self._back_off_s[0] else logging.DEBUG,
                "perf does not count, next try in %.1f s: %s", back_off_s, problem,
            )  # fmt: skip
            self._pause(back_off_s)
            back_off_s = min(2 * back_off_s, longest_s)

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
