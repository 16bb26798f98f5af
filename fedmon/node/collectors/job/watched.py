"""One job while it is watched: its processes, its CPU time, and whether it is over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import CollectorUnavailableError, Why
from fedmon.node.collectors.job.cgroup_cpu import CgroupCpu
from fedmon.node.collectors.job.process import SYSTEM, USER
from fedmon.node.collectors.job.tree import ProcessTree

_TICKS = os.sysconf("SC_CLK_TCK")
_FRESH_S = 0.05
"""Who asks again so soon asks within the same tick."""


class Watched:
    """What the collectors of a job share, so that it is read once a tick.

    ``cpu_s`` is user and system time in seconds: from the cgroup where there is one to read, else of the processes; it
    never goes down. ``is_last`` is true while the reading that found no process alive is taken, and ``is_over`` after
    it. While ``awaits_end`` no reading is the last one: ``switches``, the voluntary and involuntary context switches of
    the job's command, come with its end.
    """

    def __init__(self, tree: ProcessTree, *, cpu: CgroupCpu | None) -> None:
        self.tree = tree
        self._cpu = cpu
        self._read_early_at: float | None = None
        self.cpu_s = (0.0, 0.0)
        self.cpu_problem = ""
        """Why the CPU time could not be read this once."""
        self.is_last = self.is_over = False
        self.awaits_end = False
        self.switches: tuple[int, int] | None = None
        self.totals: list[Callable[[], Mapping[str, float]]] = []
        """Counters of slower lanes, for the last reading: there they would not be due."""

    @property
    def cpu_method(self) -> str:
        """Return where the CPU time comes from."""
        return "tree" if self._cpu is None else self._cpu.method

    def read(self, now: Instant) -> None:
        """Read everything for the tick ``now``, unless that happened in this tick already."""
        if self.is_last:
            self.is_last, self.is_over = False, True
        if self.is_over:
            return
        early, self._read_early_at = self._read_early_at, None
        if early is None or early < now.mono:
            self._read(now.mono)
        self.is_last = self.tree.has_ended and not self.awaits_end

    def read_early(self) -> float:
        """Return the CPU seconds of now, for another stream of the same tick; from the sampler's thread."""
        now = time.monotonic()
        is_fresh = self._read_early_at is not None and now - self._read_early_at < _FRESH_S
        if not (is_fresh or self.is_last or self.is_over):
            self._read_early_at = now
            self._read(now)
        return sum(self.cpu_s)

    def close(self) -> None:
        """Close every file."""
        self.tree.close()
        if self._cpu is not None:
            self._cpu.close()

    def _read(self, mono: float) -> None:
        self.tree.refresh(mono)
        self.cpu_problem = ""
        if self._cpu is None:
            user_s, system_s = self.tree.counts[USER] / _TICKS, self.tree.counts[SYSTEM] / _TICKS
        else:
            try:
                user_s, system_s = self._cpu.read()
            except CollectorUnavailableError as error:
                if not self.tree.has_ended:  # of a cgroup that went with its last process the last reading holds
                    self.cpu_problem = error.reason
                return
        if user_s < self.cpu_s[0] or system_s < self.cpu_s[1]:
            went = f"from {sum(self.cpu_s):.2f} to {user_s + system_s:.2f} s"
            self.cpu_problem = f"{Why.FAILED.value}: the CPU time of the job's cgroup went back, {went}"
            return
        self.cpu_s = (user_s, system_s)
