"""Memory of each NUMA node, and how often memory was taken from another one."""

from __future__ import annotations

from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.listing import Given, Reasons, Values, miss
from fedmon.node.collectors.sysfs import MAX_NUMBER, entries, garbled, read_bytes

MAX_NODES = 64
"""Nodes beyond this number are left out, so that one sample always fits into a message."""

MEMORY = {
    "host_numa_memory_total_bytes": "MemTotal:",
    "host_numa_memory_free_bytes": "MemFree:",
    "host_numa_memory_used_bytes": "MemUsed:",
    "host_numa_memory_cached_bytes": "FilePages:",
}
PAGES = {
    "host_numa_hits_total": "numa_hit",
    "host_numa_misses_total": "numa_miss",
    "host_numa_foreign_total": "numa_foreign",
    "host_numa_interleave_hits_total": "interleave_hit",
    "host_numa_local_total": "local_node",
    "host_numa_other_total": "other_node",
}
METRICS = (*MEMORY, *PAGES)
_KILO = 1024


class NumaCollector:
    """Reads ``meminfo`` and ``numastat`` of each NUMA node. Source: Linux Documentation/admin-guide/numastat.rst."""

    name = "numa"
    lane = Lane.MEDIUM

    def __init__(self, *, sys: Path = Path("/sys")) -> None:
        self._nodes = sys / "devices" / "system" / "node"
        self._gave = False
        self._given = Given(where=str(self._nodes))

    def collect(self, _now: Instant) -> Reading:
        """Read each node that is there now; nothing on a kernel without NUMA."""
        try:
            values, reasons = self._reading()
        except CollectorUnavailableError as error:
            if self._gave or not error.is_lack:
                raise
            return Reading({})
        self._gave = True
        self._given.follow(values, reasons)
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say whether there are nodes, and what they do not tell."""
        try:
            values, reasons = self._reading()
        except CollectorUnavailableError as error:
            return dict.fromkeys(METRICS, error.reason)
        report: dict[str, str | None] = {}
        for metric in METRICS:
            keys = [key for key in values if key.startswith(f"{metric}{{")]
            if any(values[key] is not None for key in keys):
                report[metric] = None
                report.update({key: reasons[key] for key in keys if key in reasons})
            else:
                untold = f"{Why.UNSUPPORTED.value}: {self._nodes} of this kernel does not tell"
                report[metric] = reasons[keys[0]] if keys else untold
        return report

    def _reading(self) -> tuple[Values, Reasons]:
        values: Values = {}
        reasons: Reasons = {}
        for name in self._names():
            for metrics, file, unit in ((MEMORY, "meminfo", _KILO), (PAGES, "numastat", 1)):
                self._read(self._nodes / name / file, metrics, name[4:], unit, values, reasons)
        return values, reasons

    def _names(self) -> list[str]:
        try:
            names = entries(self._nodes, r"node\d+")
        except CollectorUnavailableError as error:
            if error.reason.startswith(Why.NOT_FOUND.value):
                raise CollectorUnavailableError(Why.UNSUPPORTED, f"this kernel has no {self._nodes}") from None
            raise
        if not names:
            raise CollectorUnavailableError(Why.NOT_FOUND, f"{self._nodes} lists no NUMA node")
        return names[:MAX_NODES]

    def _read(
        self, path: Path, metrics: dict[str, str], node: str, unit: int, values: Values, reasons: Reasons
    ) -> None:
        """Read one file; its lines end with a name and a number, and with ``kB`` where ``unit`` is 1024."""
        keys = {word: series(metric, node=node) for metric, word in metrics.items()}
        try:
            text = read_bytes(path)
        except CollectorUnavailableError as error:
            miss(values, reasons, keys.values(), error.reason)
            return
        *lines, rest = text.split(b"\n")
        for line in lines:
            words = line.decode(errors="replace").split()
            if unit == _KILO and words[:1] == ["Node"]:
                words = words[2:]
            key = keys.get(words[0]) if words else None
            if key is None:
                continue
            try:
                number = int(words[1]) * unit
                if not 0 <= number <= MAX_NUMBER or (unit == _KILO) != (words[2:] == ["kB"]):
                    raise ValueError(line)
                values[key] = number
            except (ValueError, IndexError):
                miss(values, reasons, (key,), garbled(path, line).reason)
        if rest or not any(key in values for key in keys.values()):
            untold = (key for key in keys.values() if key not in values)
            miss(values, reasons, untold, garbled(path, rest or text).reason)
