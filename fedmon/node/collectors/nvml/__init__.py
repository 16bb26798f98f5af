"""NVIDIA GPUs through NVML: one session, read ahead of each tick in a thread of its own.

``open_session`` loads nothing on a machine without NVIDIA's driver; ``pynvml`` is imported where there is one.
"""

from __future__ import annotations

from fedmon.node.collectors.nvml.collector import nvml_collectors
from fedmon.node.collectors.nvml.job import JobGpuCollector, gpu_shares
from fedmon.node.collectors.nvml.reader import NvmlSession, open_session

__all__ = ["JobGpuCollector", "NvmlSession", "gpu_shares", "nvml_collectors", "open_session"]
