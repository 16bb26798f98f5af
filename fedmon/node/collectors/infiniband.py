"""Ports of InfiniBand and other RDMA adapters: traffic at each tick, state and errors less often."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Why
from fedmon.node.collectors.files import (
    PROBE,
    Reasons,
    SourceCollector,
    Values,
    entries,
    entries_or_none,
    garbled,
    miss,
    note,
    read_number,
    text_or,
)

TRAFFIC = {
    "infiniband_receive_bytes_total": "port_rcv_data",
    "infiniband_transmit_bytes_total": "port_xmit_data",
    "infiniband_receive_packets_total": "port_rcv_packets",
    "infiniband_transmit_packets_total": "port_xmit_packets",
}
COUNTERS = {
    "infiniband_unicast_receive_packets_total": "unicast_rcv_packets",
    "infiniband_unicast_transmit_packets_total": "unicast_xmit_packets",
    "infiniband_multicast_receive_packets_total": "multicast_rcv_packets",
    "infiniband_multicast_transmit_packets_total": "multicast_xmit_packets",
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
OCTETS_PER_DATA = 4
FULL = 2**32 - 1
"""Where a counter of 32 bits stops; it does not begin again. Source: InfiniBand Architecture, PortCounters."""
_ACTIVE = (4, 5)


class Port(NamedTuple):
    """One port as of the last look; unknown texts are empty."""

    device: str
    number: str
    folder: Path
    link_layer: str
    state: str
    rate: str
    counters: Mapping[str, Path]
    """The file of each counter that the port has, by metric."""
    is_short: bool
    """Whether its traffic counters have 32 bits."""

    def series(self, metric: str) -> str:
        """Return the series of a metric of this port."""
        return series(metric, device=self.device, port=self.number)

    @property
    def inactive(self) -> str:
        """The reason why there is no traffic to count; else empty."""
        number = self.state.partition(":")[0]
        if not number.isdigit() or int(number) in _ACTIVE:
            return ""
        return f"port {self.number} of {self.device} has no link, its state is {self.state}"


def find_ports(folder: Path) -> list[Port]:
    """List the ports of all adapters. Raises CollectorUnavailableError if adapters cannot be listed."""
    listed = [(device, number) for device in entries(folder)
              for number in entries_or_none(folder / device / "ports", r"\d+")]  # fmt: skip
    return [_port(folder, device, number) for device, number in listed]


def _port(root: Path, device: str, number: str) -> Port:
    folder = root / device / "ports" / number
    listed = {f"{part}/{name}" for part in ("counters", "counters_ext") for name in entries_or_none(folder / part)}
    counters: dict[str, Path] = {}
    for metric, name in (TRAFFIC | COUNTERS).items():
        # Preferably of 64 bits, which an older kernel keeps under another name.
        places = (f"counters_ext/{name}_64", f"counters/{name}_64", f"counters/{name}", f"counters_ext/port_{name}")
        if (file := next((place for place in places if place in listed), None)) is not None:
            counters[metric] = folder / file
    # Files of the second kind exist beside wide counters only.
    # Source: Linux drivers/infiniband/core/sysfs.c, the groups pma_group and pma_group_ext.
    is_wide = any(name.endswith("_64") for name in listed) or "counters/unicast_rcv_packets" in listed
    with contextlib.suppress(KeyError, CollectorUnavailableError):
        is_wide = is_wide or read_number(counters["infiniband_receive_bytes_total"]) > FULL
    link_layer, state, rate = (text_or(folder / name) for name in ("link_layer", "state", "rate"))
    return Port(device, number, folder, link_layer, state, rate, counters, not is_wide)


class InfinibandPortCollector(SourceCollector):
    """Lists the ports, and reads state, rate, errors and kinds of packets of each, as far as a port counts them."""

    def __init__(self, folder: Path) -> None:
        untold, metrics = f"{Why.UNSUPPORTED.value}: no port counts it", (INFO, STATE, RATE, *COUNTERS)
        super().__init__("infiniband-ports", Lane.MEDIUM, metrics, where=folder, untold=untold)
        self.folder = folder
        self.ports: list[Port] = []

    def _read(self, _now: Instant) -> tuple[Values, Reasons]:
        values: Values = {}
        reasons: Reasons = {}
        self.ports = []  # also if they cannot be listed
        self.ports = find_ports(self.folder)
        for port in self.ports:
            for metric, text, parse in ((STATE, port.state, _state), (RATE, port.rate, _rate)):
                key = port.series(metric)
                try:
                    values[key] = parse(text)
                except ValueError:
                    miss(values, reasons, (key,), garbled(port.folder, text.encode()).reason)
            for metric in COUNTERS.keys() & port.counters.keys():
                note(values, reasons, port.series(metric), read_number, port.counters[metric])
            labels = {"device": port.device, "port": port.number, "link_layer": port.link_layer}
            values[series(INFO, **labels, state=port.state, rate=port.rate)] = 1
        return values, reasons


class InfinibandTrafficCollector(SourceCollector):
    """Reads the four traffic counters of each port; without a link they are None, with the port's state.

    The ports are those that ``listing`` found last. Data is counted in units of four octets, packets are not.
    Source: Linux Documentation/ABI/stable/sysfs-class-infiniband.
    """

    def __init__(self, listing: InfinibandPortCollector) -> None:
        super().__init__("infiniband", Lane.FAST, TRAFFIC, where=listing.folder)
        self._listing = listing

    def _read(self, now: Instant) -> tuple[Values, Reasons]:
        values: Values = {}
        reasons: Reasons = {}
        for port in find_ports(self._listing.folder) if now == PROBE else self._listing.ports:
            for metric in TRAFFIC:
                note(values, reasons, port.series(metric), _traffic, port, metric)
        return values, reasons

    def probe(self) -> dict[str, str | None]:
        """Report the counted metrics, ports without a link, and counters of 32 bits."""
        report = super().probe()
        short = f"{Why.UNSUPPORTED.value}: 64 bits; these 32 stop when they are full"
        if all(reason is not None for reason in report.values()):
            return report
        ports = [port for port in find_ports(self._listing.folder) if port.is_short]
        return {port.series(metric): short for port in ports for metric in TRAFFIC if metric in port.counters} | report


def infiniband_collectors(*, sys: Path) -> list[InfinibandPortCollector | InfinibandTrafficCollector]:
    """Return both collectors; the first one lists the ports for the second one when it is probed or read."""
    listing = InfinibandPortCollector(sys / "class" / "infiniband")
    return [listing, InfinibandTrafficCollector(listing)]


def _traffic(port: Port, metric: str) -> int:
    """Return octets or packets. Raises CollectorUnavailableError without a link or such a counter."""
    if port.inactive:
        raise CollectorUnavailableError(Why.UNSUPPORTED, port.inactive)
    path = port.counters.get(metric)
    if path is None:
        raise CollectorUnavailableError(Why.NOT_FOUND, f"{port.folder / 'counters' / TRAFFIC[metric]}")
    number = read_number(path)
    if port.is_short and number == FULL:
        raise CollectorUnavailableError(Why.FAILED, f"{path}: its 32 bits are full, and it no longer counts")
    return number * OCTETS_PER_DATA if "bytes" in metric else number


def _state(text: str) -> int:
    """Return the number of a state such as ``4: ACTIVE``."""
    return int(text.partition(":")[0])


def _rate(text: str) -> float:
    """Return the bytes a second of a rate such as ``100 Gb/sec (4X EDR)``."""
    return float(text.partition(" ")[0]) * 1e9 / 8
