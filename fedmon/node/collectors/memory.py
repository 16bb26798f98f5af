"""Memory and swap of the host."""

from __future__ import annotations

from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.procfile import ProcFile

_FIELDS = (
    ("host_memory_total_bytes", b"MemTotal:"),
    ("host_memory_available_bytes", b"MemAvailable:"),
    ("host_memory_free_bytes", b"MemFree:"),
    ("host_memory_buffers_bytes", b"Buffers:"),
    ("host_memory_cached_bytes", b"\nCached:"),
    ("host_swap_total_bytes", b"SwapTotal:"),
)
SWAP_USED = "host_swap_used_bytes"
METRICS = (*(metric for metric, _ in _FIELDS), SWAP_USED)


class MemoryCollector:
    """Reads ``meminfo``. A line that this kernel does not have leaves its metric out."""

    name = "memory"
    lane = Lane.FAST

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._meminfo = ProcFile(proc / "meminfo")

    def collect(self, _now: Instant) -> Reading:
        """Read the present state."""
        return Reading(self._values())

    def probe(self) -> dict[str, str | None]:
        """Say which lines this kernel has."""
        try:
            values = self._values()
        except CollectorUnavailableError as error:
            return dict.fromkeys(METRICS, error.reason)
        missing = f"{Why.UNSUPPORTED.value}: this kernel's meminfo does not tell"
        return {metric: None if metric in values else missing for metric in METRICS}

    def _values(self) -> dict[str, float | None]:
        text = self._meminfo.head()
        values: dict[str, float | None] = {}
        for metric, field in _FIELDS:
            size = _bytes_of(text, field)
            if size is not None:
                values[metric] = size
        if not values:
            raise CollectorUnavailableError(Why.FAILED, "meminfo holds none of the expected lines")
        total, free = values.get("host_swap_total_bytes"), _bytes_of(text, b"SwapFree:")
        if total is not None and free is not None:
            values[SWAP_USED] = total - free
        return values


def _bytes_of(text: bytes, field: bytes) -> int | None:
    start = text.find(field)
    if start < 0:
        return None
    start += len(field)
    return int(text[start : text.find(b"kB", start)]) * 1024
