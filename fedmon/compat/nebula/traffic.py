"""What all interfaces carried since the reporter's first look."""

from __future__ import annotations

from collections.abc import Mapping

from fedmon.common.metrics.series import metric_name

_KINDS: Mapping[str, str] = {
    "host_network_transmit_bytes_total": "bytes_sent",
    "host_network_receive_bytes_total": "bytes_recv",
    "host_network_transmit_packets_total": "packets_sent",
    "host_network_receive_packets_total": "packets_recv",
}


class Traffic:
    """Adds up the growth of each interface's counters; nothing is ever subtracted.

    A counter that went back was restarted, and what it counted in between is not known: it adds nothing, nor does an
    interface that comes or goes. ``total`` and ``reading`` map bytes_sent, bytes_recv, packets_sent and packets_recv
    to the growth since the first look, and to the sum of the counters at the last one. Not safe between threads.
    """

    def __init__(self) -> None:
        self.total: dict[str, int] = dict.fromkeys(_KINDS.values(), 0)
        self.reading: dict[str, int] = dict.fromkeys(_KINDS.values(), 0)
        self.is_first = True
        self.resets = 0
        self._last: dict[str, float] = {}

    def look(self, values: Mapping[str, float | None]) -> bool:
        """Take a reading of the counters of all interfaces; False when it held none."""
        found = {key: value for key, value in values.items() if metric_name(key) in _KINDS}
        counted = {key: value for key, value in found.items() if value is not None}
        if not counted:
            return False
        self.reading = dict.fromkeys(_KINDS.values(), 0)
        for key, value in counted.items():
            kind = _KINDS[metric_name(key)]
            self.reading[kind] += int(value)
            earlier = self._last.get(key, value)
            self.total[kind] += max(0, int(value) - int(earlier))
            self.resets += value < earlier
        # A reading that was missed once keeps its place; an interface that is gone does not.
        self._last = {key: value for key, value in self._last.items() if key in found} | counted
        self.is_first = False
        return True
