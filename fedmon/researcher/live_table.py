"""A table of the newest numbers of each node, with rates taken from two samples."""

from __future__ import annotations

from collections.abc import Mapping

from fedmon.common.metrics.display import format_rate, format_value
from fedmon.common.metrics.rate import rate
from fedmon.researcher.monitor import LiveSample

COLUMNS = ("node", "samples", "CPU", "memory used", "load", "disk read", "disk written", "network in", "network out")
NARROW = (0, 2, 3, 4, 6, 7)
"""The columns that are left when the screen is narrower than 110 characters."""

_COUNTERS = (
    "host_disk_read_bytes_total",
    "host_disk_written_bytes_total",
    "host_network_receive_bytes_total",
    "host_network_transmit_bytes_total",
)
_NUMBERS = ("host_cpu_busy_ratio", "host_load1", "host_memory_total_bytes", "host_memory_available_bytes")


class LiveTable:
    """Keeps the last two samples of each node."""

    def __init__(self, nodes: list[str], *, width: int = 120) -> None:
        self._nodes = list(nodes)
        self._shown = tuple(range(len(COLUMNS))) if width >= 110 else NARROW
        self._last: dict[str, LiveSample] = {}
        self._before: dict[str, LiveSample] = {}
        self.counts = dict.fromkeys(nodes, 0)

    @property
    def columns(self) -> tuple[str, ...]:
        """The headers of what `rows` returns."""
        return tuple(COLUMNS[index] for index in self._shown)

    def add(self, sample: LiveSample) -> None:
        """Take a sample; a node that is new gets a row."""
        node = str(sample.node_id)
        if node not in self.counts:
            self._nodes.append(node)
            self._nodes.sort()
            self.counts[node] = 0
        if sample.stream == "host":
            self.counts[node] += 1
            if node in self._last:
                self._before[node] = self._last[node]
            self._last[node] = sample

    def rows(self) -> list[list[str]]:
        """Return one row a node, in the same order each time."""
        return [[row[index] for index in self._shown] for row in map(self._row, self._nodes)]

    def numbers(self) -> dict[str, dict[str, float | None]]:
        """Return the newest values of each node, for the JSON document."""
        return {node: {name: sample.values.get(name) for name in _NUMBERS} for node, sample in self._last.items()}

    def _row(self, node: str) -> list[str]:
        sample = self._last.get(node)
        if sample is None:
            return [node, "0", *["-"] * (len(COLUMNS) - 2)]
        values = sample.values
        total, available = values.get("host_memory_total_bytes"), values.get("host_memory_available_bytes")
        used = None if total is None or available is None else total - available
        before = self._before.get(node)
        return [
            node,
            str(self.counts[node]),
            format_value("host_cpu_busy_ratio", values.get("host_cpu_busy_ratio")),
            format_value("host_memory_total_bytes", used),
            format_value("host_load1", values.get("host_load1")),
            *(format_rate(name, _rate(name, before, sample)) for name in _COUNTERS),
        ]


def _rate(name: str, before: LiveSample | None, sample: LiveSample) -> float | None:
    if before is None or before.boot != sample.boot:
        return None
    return rate(_sum(name, before.values), _sum(name, sample.values), sample.mono - before.mono)


def _sum(name: str, values: Mapping[str, float | None]) -> float | None:
    found = [value for series, value in values.items() if series.partition("{")[0] == name]
    known = [value for value in found if value is not None]
    return sum(known) if known and len(known) == len(found) else None
