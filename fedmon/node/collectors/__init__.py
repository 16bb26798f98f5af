"""Collectors read this machine; nothing else of the node does.

``host_collectors`` gives those of the stream ``host``: from /proc and /sys where they are, else through psutil.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from fedmon.node.collectors.agent import AgentCollector
from fedmon.node.collectors.base import Collector
from fedmon.node.collectors.cpu import CpuCollector
from fedmon.node.collectors.disk import DiskCollector
from fedmon.node.collectors.filesystem import FilesystemCollector
from fedmon.node.collectors.load import LoadCollector, UptimeCollector
from fedmon.node.collectors.memory import MemoryCollector
from fedmon.node.collectors.network import NetworkCollector

__all__ = ["host_collectors"]


def host_collectors(
    *,
    proc: Path = Path("/proc"),
    sys: Path = Path("/sys"),
    counts: Callable[[], Mapping[str, float | None]] | None = None,
) -> list[Collector]:
    """Return one collector for each group of host metrics, and the agent's own.

    ``counts`` gives the ``agent_`` metrics that sampler and publisher keep, see AgentCollector.
    """
    if not (proc / "stat").exists():
        from fedmon.node.collectors.portable import portable_collectors

        return portable_collectors(counts=counts)
    return [
        CpuCollector(proc=proc, sys=sys),
        MemoryCollector(proc=proc),
        LoadCollector(proc=proc),
        FilesystemCollector(proc=proc),
        DiskCollector(proc=proc),
        NetworkCollector(proc=proc),
        UptimeCollector(proc=proc),
        AgentCollector(proc=proc, counts=counts),
    ]
