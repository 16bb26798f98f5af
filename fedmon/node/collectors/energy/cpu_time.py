"""How long the CPUs of the machine were busy, with which the energy of jobs is weighed."""

from __future__ import annotations

import os
from pathlib import Path

from fedmon.node.collectors.base import CollectorUnavailableError, Why
from fedmon.node.collectors.procfile import ProcFile


class BusyCpuTime:
    """Reads the time that all CPUs spent in user, nice, system, irq and softirq.

    Time stolen by a hypervisor is not this machine's work. Source: Linux Documentation/filesystems/proc.rst, 1.7.
    """

    def __init__(self, proc: Path) -> None:
        self._stat = ProcFile(proc / "stat", size_bytes=512)
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")

    def __call__(self) -> float:
        """Return busy seconds since the system started. Raises CollectorUnavailableError."""
        fields = self._stat.head().partition(b"\n")[0].split()
        try:
            if fields[0] != b"cpu":
                raise ValueError
            user, nice, system, _, _, irq, softirq = map(int, fields[1:8])
        except (ValueError, IndexError):
            raise CollectorUnavailableError(Why.FAILED, "the first line of stat is not that of all CPUs") from None
        return (user + nice + system + irq + softirq) / self._ticks_per_s
