"""The counters of the network under the names that NEBULA's add-ons read."""

from __future__ import annotations

from fedmon.compat.nebula.traffic import Traffic


class NetworkCounters:
    """What all interfaces of the machine carried: ``acc_`` since the first report, ``prev_`` as read at the last."""

    _traffic: Traffic

    @property
    def first_net_metrics(self) -> bool:
        """Whether the counters were not read yet."""
        return self._traffic.is_first

    @property
    def acc_bytes_sent(self) -> int:
        """Bytes sent since the first report; never falls."""
        return self._traffic.total["bytes_sent"]

    @property
    def acc_bytes_recv(self) -> int:
        """Bytes received since the first report; never falls."""
        return self._traffic.total["bytes_recv"]

    @property
    def acc_packets_sent(self) -> int:
        """Packets sent since the first report; never falls."""
        return self._traffic.total["packets_sent"]

    @property
    def acc_packets_recv(self) -> int:
        """Packets received since the first report; never falls."""
        return self._traffic.total["packets_recv"]

    @property
    def prev_bytes_sent(self) -> int:
        """Bytes sent, as the machine counts them."""
        return self._traffic.reading["bytes_sent"]

    @property
    def prev_bytes_recv(self) -> int:
        """Bytes received, as the machine counts them."""
        return self._traffic.reading["bytes_recv"]

    @property
    def prev_packets_sent(self) -> int:
        """Packets sent, as the machine counts them."""
        return self._traffic.reading["packets_sent"]

    @property
    def prev_packets_recv(self) -> int:
        """Packets received, as the machine counts them."""
        return self._traffic.reading["packets_recv"]
