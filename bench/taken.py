"""The cost of some work in this process: time, processor time, memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Self

MEGABYTE = 1_000_000


class Taken:
    """The time that something took, and the processor time of this process."""

    wall_s = cpu_s = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        wall, cpu = self._began
        self.wall_s, self.cpu_s = time.perf_counter() - wall, time.process_time() - cpu


def peak_bytes() -> int:
    """Return how much memory this process had at its most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise KeyError("VmHWM")
