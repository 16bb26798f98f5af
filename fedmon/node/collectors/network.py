"""Counters of network interfaces."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why, probe_by_reading
from fedmon.node.collectors.listing import Listing, Reasons, Values, miss
from fedmon.node.collectors.procfile import ProcFile
from fedmon.node.collectors.sysfs import LONGEST_TEXT, MAX_NUMBER, garbled

MAX_INTERFACES = 64
"""Interfaces beyond this number are left out, in the kernel's order, so that one sample always fits into a message."""

METRICS = (
    "host_network_receive_bytes_total",
    "host_network_receive_packets_total",
    "host_network_receive_errors_total",
    "host_network_receive_dropped_total",
    "host_network_transmit_bytes_total",
    "host_network_transmit_packets_total",
    "host_network_transmit_errors_total",
    "host_network_transmit_dropped_total",
)
_SENT = 8
_EACH_WAY = 4
_LINE_BYTES = 1024
"""More than a name and sixteen numbers take."""
_USED = _SENT + _EACH_WAY
_INSIDE_THE_HOST = re.compile(
    rb"lo\d*|veth.*|cali.*|cni.*|flannel.*|docker\d+|br-[0-9a-f]{12}|virbr.*|vnet\d+|ifb\d+|dummy\d+"
)


class NetworkCollector:
    """Reads ``net/dev``; interfaces that only carry traffic inside the host, such as loopback, are left out."""

    name = "network"
    lane = Lane.FAST

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._dev = ProcFile(proc / "net" / "dev")
        self._listing = Listing(partial(_begins, self._dev.path), choose_interfaces, where=str(proc / "net" / "dev"))

    def collect(self, _now: Instant) -> Reading:
        """Read the counters of each interface that is there now."""
        return self._reading()

    def probe(self) -> dict[str, str | None]:
        """Say whether the counters can be read."""
        return probe_by_reading(self._some, METRICS)

    def _some(self) -> None:
        values, reasons = self._reading()
        if not any(value is not None for value in values.values()):
            reason = next(iter(reasons.values()), "")
            raise CollectorUnavailableError(Why.NOT_FOUND, reason or "no interface that leaves this host is listed")

    def _reading(self) -> Reading:
        values: Values = {}
        reasons: Reasons = {}
        for keys, row in self._listing.rows(self._dev.read(longest_line_bytes=_LINE_BYTES), values, reasons):
            try:
                # One column more than is used: a number may be cut off unless another follows it.
                columns = row.split(None, _USED + 1)
                del columns[_EACH_WAY:_SENT]
                counted = list(map(int, columns[: 2 * _EACH_WAY]))
                if len(columns) <= 2 * _EACH_WAY or min(counted) < 0 or max(counted) > MAX_NUMBER:
                    raise ValueError(columns)
            except ValueError:
                miss(values, reasons, keys, garbled(self._dev.path, row).reason)
                continue
            values.update(zip(keys, counted, strict=True))
        return Reading(values, reasons)


def choose_interfaces(names: tuple[bytes, ...]) -> dict[bytes, tuple[str, ...]]:
    """Map each interface that is reported to its series, in the order of METRICS."""
    reported = [name for name in names if name and not _INSIDE_THE_HOST.fullmatch(name)]
    return {
        name: tuple(series(metric, interface=name[:LONGEST_TEXT].decode(errors="replace")) for metric in METRICS)
        for name in reported[:MAX_INTERFACES]
    }


def _begins(where: Path, text: bytes) -> dict[bytes, bytes]:
    """Return the listed names; the line of one begins behind the line before it, with the space for alignment."""
    if b"|" not in text:
        raise garbled(where, text)
    begins = [line.rpartition(b":")[0] for line in text.splitlines()[2:]]
    return {begin.strip(): b"\n" + begin + b":" for begin in begins if begin}
