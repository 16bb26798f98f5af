"""The collectors of the stream ``host``: from /proc and /sys; on systems without /proc, through psutil."""

from __future__ import annotations

import os

from fedmon.node.collectors.agent import Counts, agent_collector
from fedmon.node.collectors.base import THIS_MACHINE, Collector, Roots
from fedmon.node.collectors.cpu import CpuCollector, FrequencyCollector, PerCoreCollector
from fedmon.node.collectors.filesystem import FilesystemCollector
from fedmon.node.collectors.hardware import HardwareCollector
from fedmon.node.collectors.infiniband import infiniband_collectors
from fedmon.node.collectors.kernel import NumaCollector, PressureCollector, proc_collectors
from fedmon.node.collectors.sensors import TemperatureCollector


def host_collectors(*, roots: Roots = THIS_MACHINE, per_core: bool = False, counts: Counts = dict) -> list[Collector]:
    """Return one collector for each group of host metrics, and the agent's own.

    ``per_core`` adds single CPUs. ``counts`` gives the ``agent_`` metrics of sampler and publisher, see agent.
    """
    # A simulated machine is always read from its tree.
    if not roots.simulated and not (roots.proc / "stat").exists():
        from fedmon.node.collectors.portable import portable_collectors

        return portable_collectors(counts=counts)
    proc, sys = roots.proc, roots.sys
    return [
        CpuCollector(proc=proc, sys=sys),
        *([PerCoreCollector(proc=proc)] if per_core else []),
        *proc_collectors(proc, sys),
        PressureCollector(proc=proc),
        FilesystemCollector(proc=proc, statvfs=None if roots.simulated else os.statvfs),
        *infiniband_collectors(sys=sys),
        TemperatureCollector(sys=sys),
        FrequencyCollector(proc=proc, sys=sys, per_core=per_core),
        NumaCollector(sys=sys),
        HardwareCollector(roots),
        agent_collector(counts),
    ]
