"""Counters of network interfaces."""

from __future__ import annotations

import re
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why, probe_by_reading
from fedmon.node.collectors.procfile import ProcFile

MAX_INTERFACES = 64
"""Interfaces beyond this number are left out, in the kernel's order, so that one sample always fits into a message."""

_COLUMNS = (
    ("host_network_receive_bytes_total", 0),
    ("host_network_receive_packets_total", 1),
    ("host_network_receive_errors_total", 2),
    ("host_network_receive_dropped_total", 3),
    ("host_network_transmit_bytes_total", 8),
    ("host_network_transmit_packets_total", 9),
    ("host_network_transmit_errors_total", 10),
    ("host_network_transmit_dropped_total", 11),
)
METRICS = tuple(metric for metric, _ in _COLUMNS)
_INSIDE_THE_HOST = re.compile(
    rb"lo\d*|veth.*|cali.*|cni.*|flannel.*|docker\d+|br-[0-9a-f]{12}|virbr.*|vnet\d+|ifb\d+|dummy\d+"
)


class NetworkCollector:
    """Reads ``net/dev``; interfaces that only carry traffic inside the host, such as loopback, are left out."""

    name = "network"
    lane = Lane.FAST

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._dev = ProcFile(proc / "net" / "dev")
        self._names: tuple[bytes, ...] = ()
        self._series: dict[bytes, tuple[str, ...]] = {}

    def collect(self, _now: Instant) -> Reading:
        """Read the counters of each interface that is there now."""
        return Reading(self._values())

    def probe(self) -> dict[str, str | None]:
        """Say whether the counters can be read."""
        return probe_by_reading(self._some, METRICS)

    def _some(self) -> None:
        if not self._values():
            raise CollectorUnavailableError(Why.NOT_FOUND, "no interface that leaves this host is listed")

    def _values(self) -> dict[str, float | None]:
        lines = [line.rpartition(b":") for line in self._dev.read().splitlines()[2:]]
        names = tuple([name.strip() for name, _, _ in lines])
        if names != self._names:
            self._names, self._series = names, choose_interfaces(names)
        values: dict[str, float | None] = {}
        for name, (_, _, numbers) in zip(names, lines, strict=True):
            keys = self._series.get(name)
            if keys is None:
                continue
            fields = numbers.split(None, 12)
            for key, (_, column) in zip(keys, _COLUMNS, strict=True):
                values[key] = int(fields[column])
        return values


def choose_interfaces(names: tuple[bytes, ...]) -> dict[bytes, tuple[str, ...]]:
    """Map each interface that is reported to its series, in the order of METRICS."""
    reported = [name for name in names if name and not _INSIDE_THE_HOST.fullmatch(name)]
    return {
        name: tuple(series(metric, interface=name.decode(errors="replace")) for metric in METRICS)
        for name in reported[:MAX_INTERFACES]
    }
