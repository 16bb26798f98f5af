"""The collectors of the stream ``host``: from /proc and /sys where they are, else through psutil."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from fedmon.node.collectors.activity import activity_collectors
from fedmon.node.collectors.agent import AgentCollector
from fedmon.node.collectors.base import THIS_MACHINE, Collector, Roots
from fedmon.node.collectors.cpu import CpuCollector
from fedmon.node.collectors.disk import DiskCollector
from fedmon.node.collectors.filesystem import FilesystemCollector, refuse_to_ask
from fedmon.node.collectors.frequency import FrequencyCollector
from fedmon.node.collectors.hardware import HardwareCollector
from fedmon.node.collectors.infiniband import infiniband_collectors
from fedmon.node.collectors.load import LoadCollector, UptimeCollector
from fedmon.node.collectors.memory import MemoryCollector
from fedmon.node.collectors.network import NetworkCollector
from fedmon.node.collectors.numa import NumaCollector
from fedmon.node.collectors.percore import PerCoreCollector
from fedmon.node.collectors.pressure import PressureCollector
from fedmon.node.collectors.temperature import TemperatureCollector


def needs_psutil(roots: Roots) -> bool:
    """Tell whether this machine has no /proc; trees that stand in for another machine are always read as they are."""
    return not roots.simulated and not (roots.proc / "stat").exists()


def host_collectors(
    *,
    roots: Roots = THIS_MACHINE,
    per_core: bool = False,
    counts: Callable[[], Mapping[str, float | None]] | None = None,
) -> list[Collector]:
    """Return one collector for each group of host metrics, and the agent's own.

    ``per_core`` adds what single CPUs do. ``counts`` gives the ``agent_`` metrics that sampler and publisher keep, see
    AgentCollector.
    """
    if needs_psutil(roots):
        from fedmon.node.collectors.portable import portable_collectors

        return portable_collectors(counts=counts)
    proc, sys = roots.proc, roots.sys
    return [
        CpuCollector(proc=proc, sys=sys),
        *([PerCoreCollector(proc=proc)] if per_core else []),
        MemoryCollector(proc=proc),
        LoadCollector(proc=proc),
        PressureCollector(proc=proc),
        FilesystemCollector(proc=proc, statvfs=refuse_to_ask if roots.simulated else os.statvfs),
        DiskCollector(proc=proc),
        NetworkCollector(proc=proc),
        *infiniband_collectors(sys=sys),
        TemperatureCollector(sys=sys),
        FrequencyCollector(proc=proc, sys=sys, per_core=per_core),
        NumaCollector(sys=sys),
        *activity_collectors(proc=proc),
        UptimeCollector(proc=proc),
        HardwareCollector(roots),
        AgentCollector(counts=counts),
    ]
