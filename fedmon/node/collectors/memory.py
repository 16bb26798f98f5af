"""Memory and swap of the host."""

from __future__ import annotations

from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.listing import Given, Reasons, Values, miss
from fedmon.node.collectors.procfile import ProcFile
from fedmon.node.collectors.sysfs import MAX_NUMBER, garbled

TOTAL, AVAILABLE, USED = "host_memory_total_bytes", "host_memory_available_bytes", "host_memory_used_bytes"
SWAP_TOTAL, SWAP_USED = "host_swap_total_bytes", "host_swap_used_bytes"
_SWAP_FREE = "swap free"
_FIELDS = (
    (TOTAL, b"\nMemTotal:"),
    ("host_memory_free_bytes", b"\nMemFree:"),
    (AVAILABLE, b"\nMemAvailable:"),
    ("host_memory_buffers_bytes", b"\nBuffers:"),
    ("host_memory_cached_bytes", b"\nCached:"),
    (SWAP_TOTAL, b"\nSwapTotal:"),
    (_SWAP_FREE, b"\nSwapFree:"),
    ("host_memory_dirty_bytes", b"\nDirty:"),
    ("host_memory_shared_bytes", b"\nShmem:"),
    ("host_memory_slab_bytes", b"\nSlab:"),
)
METRICS = (*(metric for metric, _ in _FIELDS if metric != _SWAP_FREE), USED, SWAP_USED)
_MISSING = f"{Why.UNSUPPORTED.value}: this kernel's meminfo does not tell"


class MemoryCollector:
    """Reads ``meminfo``. A line that this kernel does not have leaves its metric out."""

    name = "memory"
    lane = Lane.FAST

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._meminfo = ProcFile(proc / "meminfo")
        self._given = Given(where=str(proc / "meminfo"))

    def collect(self, _now: Instant) -> Reading:
        """Read the present state; a line that cannot be understood is None."""
        values, reasons = self._reading()
        self._given.follow(values, reasons)
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say which lines this kernel has."""
        try:
            values, reasons = self._reading()
        except CollectorUnavailableError as error:
            return dict.fromkeys(METRICS, error.reason)
        return {metric: reasons.get(metric) if metric in values else _MISSING for metric in METRICS}

    def _reading(self) -> tuple[Values, Reasons]:
        text = b"\n" + self._meminfo.head()
        values: Values = {}
        reasons: Reasons = {}
        position = 0
        for metric, field in _FIELDS:
            # The kernel writes the lines in this order, so that each is found behind the one before it.
            start = text.find(field, position)
            if start < 0:
                start = text.find(field)
                if start < 0:
                    continue
            position = start + len(field)
            try:
                size = int(text[position : text.index(b" kB", position)]) * 1024
                if not 0 <= size <= MAX_NUMBER:
                    raise ValueError(size)
                values[metric] = size
            except ValueError:  # also where the line ends before its unit
                values[metric] = None
                reasons[metric] = garbled(self._meminfo.path, text[start : position + 20]).reason
        if not values:
            raise garbled(self._meminfo.path, text)
        if not text.endswith(b"\n"):
            cut_off = (metric for metric, _ in _FIELDS if metric not in values)
            miss(values, reasons, cut_off, f"{Why.FAILED.value}: {self._meminfo.path} is cut off")
        _subtract(values, reasons, USED, whole=TOTAL, part=AVAILABLE)
        _subtract(values, reasons, SWAP_USED, whole=SWAP_TOTAL, part=_SWAP_FREE)
        values.pop(_SWAP_FREE, None)
        reasons.pop(_SWAP_FREE, None)
        return values, reasons


def _subtract(values: Values, reasons: Reasons, metric: str, *, whole: str, part: str) -> None:
    """Add a metric that is the difference of two, when there are both."""
    if whole not in values or part not in values:
        return
    total, rest = values[whole], values[part]
    if total is not None and rest is not None and rest <= total:
        values[metric] = total - rest
    else:
        values[metric] = None
        contradiction = f"{Why.FAILED.value}: more is free than there is"
        reasons[metric] = reasons.get(whole) or reasons.get(part) or contradiction
