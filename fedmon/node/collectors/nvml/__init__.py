"""NVIDIA GPUs through NVML, read on one thread; without NVIDIA's driver nothing is loaded."""

from __future__ import annotations

from fedmon.node.collectors.nvml.collector import JobGpuCollector, gpu_shares, nvml_collectors
from fedmon.node.collectors.nvml.reader import NvmlSession, open_session

__all__ = ["JobGpuCollector", "NvmlSession", "gpu_shares", "nvml_collectors", "open_session"]
