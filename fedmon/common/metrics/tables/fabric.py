"""InfiniBand and RDMA ports."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric, Unit, rows

_PORT = "/sys/class/infiniband/*/ports/*"
_COUNTERS = f"{_PORT}/counters"
_TRAFFIC = f"{_PORT}/counters_ext/*_64, else counters"
_LABELS = ("device", "port")

ROWS: list[Metric] = [
    *rows(
        _TRAFFIC,
        Unit.BYTES,
        {
            "infiniband_receive_bytes_total": "Bytes that a port received: the kernel's count of four octets, times"
            " four.",
            "infiniband_transmit_bytes_total": "Bytes that a port sent: the kernel's count of four octets, times four.",
        },
        labels=_LABELS,
    ),
    *rows(
        _TRAFFIC,
        Unit.COUNT,
        {
            "infiniband_receive_packets_total": "Packets that a port received.",
            "infiniband_transmit_packets_total": "Packets that a port sent.",
            "infiniband_unicast_receive_packets_total": "Packets for one receiver that a port received.",
            "infiniband_unicast_transmit_packets_total": "Packets for one receiver that a port sent.",
            "infiniband_multicast_receive_packets_total": "Packets for several receivers that a port received.",
            "infiniband_multicast_transmit_packets_total": "Packets for several receivers that a port sent.",
        },
        labels=_LABELS,
    ),
    *rows(
        _COUNTERS,
        Unit.COUNT,
        {
            "infiniband_symbol_errors_total": "Minor errors of the link.",
            "infiniband_link_recoveries_total": "Times that the link recovered from an error by itself.",
            "infiniband_link_downed_total": "Times that the link went down because recovery failed.",
            "infiniband_link_integrity_errors_total": "Times that too many minor errors followed each other.",
            "infiniband_buffer_overruns_total": "Times that the buffer overflowed for long.",
            "infiniband_receive_errors_total": "Packets received with an error.",
            "infiniband_receive_remote_errors_total": "Packets that were marked as bad by whoever passed them on.",
            "infiniband_receive_switch_errors_total": "Packets that a switch could not pass on.",
            "infiniband_receive_constraint_errors_total": "Packets received and refused by the port's rules.",
            "infiniband_transmit_constraint_errors_total": "Packets not sent because of the port's rules.",
            "infiniband_transmit_discards_total": "Packets not sent because the port was down or congested.",
            "infiniband_transmit_waits_total": "Ticks during which there were data to send and no credits.",
            "infiniband_management_dropped_total": "Management packets dropped for want of room.",
        },
        labels=_LABELS,
    ),
    *rows(
        f"{_PORT}/rate",
        Unit.BYTES_PER_SECOND,
        {"infiniband_rate_bytes_per_second": "Rate of the link, both lanes and width counted."},
        labels=_LABELS,
    ),
    *rows(
        f"{_PORT}/state",
        Unit.NONE,
        {"infiniband_port_state": "State of a port: 1 down, 2 initializing, 3 armed, 4 active, 5 active but deferred."},
        labels=_LABELS,
    ),
    *rows(
        f"{_PORT}/link_layer, state, rate",
        Unit.NONE,
        {"infiniband_port_info": "Always 1; what a port is and does is in the labels."},
        labels=(*_LABELS, "link_layer", "state", "rate"),
    ),
]
