"""Ports of InfiniBand and other RDMA adapters: traffic at each tick, state and errors less often."""

from __future__ import annotations

from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import metric_name, series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.listing import Given, Reasons, Values, miss
from fedmon.node.collectors.ports import FULL, OCTETS_PER_DATA, TRAFFIC, Port, Ports
from fedmon.node.collectors.sysfs import MAX_NUMBER, garbled, read_count

CASTS = {
    "infiniband_unicast_receive_packets_total": "unicast_rcv_packets",
    "infiniband_unicast_transmit_packets_total": "unicast_xmit_packets",
    "infiniband_multicast_receive_packets_total": "multicast_rcv_packets",
    "infiniband_multicast_transmit_packets_total": "multicast_xmit_packets",
}
ERRORS = {
    "infiniband_symbol_errors_total": "symbol_error",
    "infiniband_link_recoveries_total": "link_error_recovery",
    "infiniband_link_downed_total": "link_downed",
    "infiniband_link_integrity_errors_total": "local_link_integrity_errors",
    "infiniband_buffer_overruns_total": "excessive_buffer_overrun_errors",
    "infiniband_receive_errors_total": "port_rcv_errors",
    "infiniband_receive_remote_errors_total": "port_rcv_remote_physical_errors",
    "infiniband_receive_switch_errors_total": "port_rcv_switch_relay_errors",
    "infiniband_receive_constraint_errors_total": "port_rcv_constraint_errors",
    "infiniband_transmit_constraint_errors_total": "port_xmit_constraint_errors",
    "infiniband_transmit_discards_total": "port_xmit_discards",
    "infiniband_transmit_waits_total": "port_xmit_wait",
    "infiniband_management_dropped_total": "VL15_dropped",
}
STATE, RATE, INFO = "infiniband_port_state", "infiniband_rate_bytes_per_second", "infiniband_port_info"


class InfinibandTrafficCollector:
    """Reads the four traffic counters of each port; those of a port without a link are None, with its state.

    Data is counted in units of four octets, packets are not.
    Source: Linux Documentation/ABI/stable/sysfs-class-infiniband.
    """

    name = "infiniband"
    lane = Lane.FAST

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def collect(self, now: Instant) -> Reading:
        """Read every port; nothing where there is no adapter."""
        values: Values = {}
        reasons: Reasons = {}
        for port in self._ports.known(now):
            for metric, counter in port.traffic.items():
                try:
                    values[counter.key] = _traffic(port, metric)
                except CollectorUnavailableError as error:
                    miss(values, reasons, (counter.key,), error.reason)
        for key in self._ports.gone():
            miss(values, reasons, (key,), f"{Why.NOT_FOUND.value}: its adapter is no longer there")
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say what is counted, which ports have no link, and which have only the counters of 32 bits."""
        try:
            ports = self._ports.look()
        except CollectorUnavailableError as error:
            return dict.fromkeys(TRAFFIC, error.reason)
        report: dict[str, str | None] = {}
        for port in ports:
            for metric, counter in port.traffic.items():
                try:
                    _traffic(port, metric)
                    report[metric] = None
                    if counter.is_short:
                        report[counter.key] = f"{Why.UNSUPPORTED.value}: 64 bits; these 32 stop when they are full"
                except CollectorUnavailableError as error:
                    report.setdefault(metric, error.reason)
                    report[counter.key] = error.reason
        return report


class InfinibandPortCollector:
    """Reads state, rate, errors and kinds of packets of each port, and looks which ports there are."""

    name = "infiniband-ports"
    lane = Lane.MEDIUM

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._given = Given(where=str(ports.folder))

    def collect(self, now: Instant) -> Reading:
        """Read every port; nothing where there is no adapter. A counter that a port does not have is left out."""
        try:
            ports = self._ports.look(now)
        except CollectorUnavailableError as error:
            if not error.is_lack:
                raise
            ports = []
        values: Values = {}
        reasons: Reasons = {}
        for port in ports:
            self._read(port, values, reasons)
        self._given.follow(values, reasons)
        # The labels of a description change with the state; the one before is over, and nothing is missing.
        values.update({_info(port): 1 for port in ports})
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say which ports there are and what they do not tell."""
        metrics = (INFO, STATE, RATE, *CASTS, *ERRORS)
        try:
            ports = self._ports.look()
        except CollectorUnavailableError as error:
            return dict.fromkeys(metrics, error.reason)
        values: Values = {}
        reasons: Reasons = {}
        for port in ports:
            self._read(port, values, reasons)
        report: dict[str, str | None] = dict(reasons)
        told = {metric_name(key) for key in values} | {INFO}
        untold = f"{Why.UNSUPPORTED.value}: no port counts it"
        return report | {metric: None if metric in told else untold for metric in metrics}

    def _read(self, port: Port, values: Values, reasons: Reasons) -> None:
        labels = {"device": port.device, "port": port.number}
        for metric, told in ((STATE, port.state), (RATE, port.rate)):
            key = series(metric, **labels)
            if isinstance(told, str):
                miss(values, reasons, (key,), told)
            else:
                values[key] = told
        for metric, name in (CASTS | ERRORS).items():
            path = port.file_of(name)
            if path is None:
                continue
            key = series(metric, **labels)
            try:
                values[key] = _in_range(read_count(path), path)
            except CollectorUnavailableError as error:
                miss(values, reasons, (key,), error.reason)


def infiniband_collectors(*, sys: Path) -> list[InfinibandTrafficCollector | InfinibandPortCollector]:
    """Return both collectors; they share what is known of the ports, so that it is looked up once."""
    ports = Ports(sys / "class" / "infiniband")
    return [InfinibandTrafficCollector(ports), InfinibandPortCollector(ports)]


def _info(port: Port) -> str:
    return series(
        INFO,
        device=port.device,
        port=port.number,
        link_layer=port.link_layer,
        state=port.state_text,
        rate=port.rate_text,
    )


def _traffic(port: Port, metric: str) -> int:
    """Return octets or packets. Raises CollectorUnavailableError where there is no link, or no whole number."""
    counter = port.traffic[metric]
    if port.inactive is not None:
        raise CollectorUnavailableError(Why.UNSUPPORTED, port.inactive)
    if counter.file is None:
        raise CollectorUnavailableError(Why.NOT_FOUND, f"{port.folder / 'counters' / counter.name}")
    text = counter.file.head()
    try:
        number = int(text)
    except ValueError:
        raise garbled(counter.file.path, text) from None
    if counter.is_short and number == FULL:
        raise CollectorUnavailableError(Why.FAILED, f"{counter.file.path}: its 32 bits are full, and it stands still")
    return _in_range(number * (OCTETS_PER_DATA if "bytes" in metric else 1), counter.file.path)


def _in_range(number: int, path: Path) -> int:
    if not 0 <= number <= MAX_NUMBER:
        raise garbled(path, str(number).encode())
    return number
