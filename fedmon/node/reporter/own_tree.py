"""CPU time and memory of this process and its children."""

from __future__ import annotations

import os
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why, probe_by_reading, why
from fedmon.node.reporter.view import CPU_SECONDS, RSS

_USER, _SYSTEM = series(CPU_SECONDS, mode="user"), series(CPU_SECONDS, mode="system")


class OwnTree:
    """Adds up ``stat`` of the process and of everything below it, with what ended children had used."""

    name = "own-processes"
    lane = Lane.FAST

    def __init__(self, *, proc: Path = Path("/proc"), pid: int | None = None) -> None:
        self._proc, self._pid = proc, os.getpid() if pid is None else pid
        self._ticks_per_s, self._page_bytes = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")

    def collect(self, _now: Instant) -> Reading:
        """Read every process of the tree that is there now."""
        user = system = pages = 0
        for pid in self._tree():
            try:
                fields = (self._proc / str(pid) / "stat").read_bytes().rpartition(b") ")[2].split()
            except OSError:
                continue  # it ended between listing and reading
            user += int(fields[11]) + int(fields[13])
            system += int(fields[12]) + int(fields[14])
            pages += int(fields[21])
        return Reading(
            {_USER: user / self._ticks_per_s, _SYSTEM: system / self._ticks_per_s, RSS: pages * self._page_bytes}
        )

    def probe(self) -> dict[str, str | None]:
        """Say whether the own process can be read."""
        return probe_by_reading(self._tree, (CPU_SECONDS, RSS))

    def _tree(self) -> list[int]:
        found, todo = [], [self._pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            try:
                for task in (self._proc / str(pid) / "task").iterdir():
                    todo += map(int, (task / "children").read_bytes().split())
            except OSError as error:
                if pid == self._pid:
                    raise why(error) from None
        if not found:
            raise CollectorUnavailableError(Why.NOT_FOUND, "the own process")
        return found
