"""Ports of InfiniBand and other RDMA adapters: traffic at each tick, state and errors less often."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.files import (
    KernelFile,
    Reasons,
    SourceCollector,
    Values,
    entries,
    entries_or_none,
    garbled,
    miss,
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
MAX_PORTS = 32
"""Ports beyond this number are left out, so that one sample always fits into a message."""
FULL = 2**32 - 1
"""Where a counter of 32 bits stops; it does not begin again. Source: InfiniBand Architecture, PortCounters."""
LOOK_AGAIN_S = 10.0
_ACTIVE = (4, 5)


class Counter(NamedTuple):
    """One traffic counter of a port; ``file`` is None if the port lacks it, ``is_short`` is true for 32 bits."""

    key: str
    file: KernelFile | None
    is_short: bool


class Port(NamedTuple):
    """One port as of the last look; unknown texts are empty."""

    device: str
    number: str
    folder: Path
    link_layer: str
    state: str
    rate: str
    counters: frozenset[str]
    traffic: dict[str, Counter]

    @property
    def inactive(self) -> str:
        """The reason why there is no traffic to count; else empty."""
        number = self.state.partition(":")[0]
        if not number.isdigit() or int(number) in _ACTIVE:
            return ""
        return f"port {self.number} of {self.device} has no link, its state is {self.state}"


class Ports:
    """The ports of all adapters, listed again every ten seconds; used by one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports: list[Port] = []
        self._looked = -math.inf

    def known(self, now: Instant) -> list[Port]:
        """Return the ports as of at most 10 s ago. Raises CollectorUnavailableError as `look` does."""
        return self._ports if 0 <= now.mono - self._looked <= LOOK_AGAIN_S else self.look(now)

    def look(self, now: Instant) -> list[Port]:
        """List all ports. Raises CollectorUnavailableError if adapters cannot be listed."""
        before = {(port.device, port.number): port.traffic for port in self._ports}
        self._ports, self._looked = [], now.mono
        for device in entries(self.folder):
            for number in entries_or_none(self.folder / device / "ports", r"\d+"):
                self._ports.append(_port(self.folder, device, number, before.get((device, number), {})))
        del self._ports[MAX_PORTS:]
        return self._ports


def _port(root: Path, device: str, number: str, before: dict[str, Counter]) -> Port:
    folder = root / device / "ports" / number
    listed = frozenset(
        f"{part}/{name}" for part in ("counters", "counters_ext") for name in entries_or_none(folder / part)
    )
    traffic: dict[str, Counter] = {}
    for metric, name in TRAFFIC.items():
        path, old = _file_of(folder, name, listed), before.get(metric)
        if old is not None and old.file is not None and old.file.path == path:
            is_short = old.is_short and not _is_wide(path, listed)
            traffic[metric] = Counter(old.key, old.file, is_short)
        else:
            file = None if path is None else KernelFile(path, size_bytes=64)
            is_short = path is not None and not _is_wide(path, listed)
            traffic[metric] = Counter(series(metric, device=device, port=number), file, is_short)
    link_layer, state, rate = (text_or(folder / name) for name in ("link_layer", "state", "rate"))
    return Port(device, number, folder, link_layer, state, rate, listed, traffic)


def _file_of(folder: Path, counter: str, listed: frozenset[str]) -> Path | None:
    """Return the file of a port's counter, preferably of 64 bits, which an older kernel keeps under another name."""
    names = (
        f"counters_ext/{counter}_64",
        f"counters/{counter}_64",
        f"counters/{counter}",
        f"counters_ext/port_{counter}",
    )
    return next((folder / name for name in names if name in listed), None)


def _is_wide(path: Path, listed: frozenset[str]) -> bool:
    """Tell whether a counter has 64 bits: by its name, by files that exist only beside such counters, or by its value.

    Source of the second: Linux drivers/infiniband/core/sysfs.c, the groups pma_group and pma_group_ext.
    """
    if path.name.endswith("_64") or "counters/unicast_rcv_packets" in listed:
        return True
    try:
        return read_number(path) > FULL
    except CollectorUnavailableError:
        return False


class InfinibandTrafficCollector(SourceCollector):
    """Reads the four traffic counters of each port; without a link they are None, with the port's state.

    Data is counted in units of four octets, packets are not.
    Source: Linux Documentation/ABI/stable/sysfs-class-infiniband.
    """

    def __init__(self, ports: Ports) -> None:
        super().__init__("infiniband", Lane.FAST, TRAFFIC, where=ports.folder)
        self._ports = ports

    def _read(self, now: Instant) -> tuple[Values, Reasons]:
        values: Values = {}
        reasons: Reasons = {}
        for port in self._ports.known(now):
            for metric, counter in port.traffic.items():
                try:
                    values[counter.key] = _traffic(port, metric, counter)
                except CollectorUnavailableError as error:
                    miss(values, reasons, (counter.key,), error.reason)
        return values, reasons

    def probe(self) -> dict[str, str | None]:
        """Report the counted metrics, ports without a link, and counters of 32 bits."""
        report = super().probe()
        short = f"{Why.UNSUPPORTED.value}: 64 bits; these 32 stop when they are full"
        if all(reason is not None for reason in report.values()):
            return report
        counters = [counter for port in self._ports.look(Instant(t=0.0, mono=0.0)) for counter in port.traffic.values()]
        return {counter.key: short for counter in counters if counter.is_short} | report


class InfinibandPortCollector(SourceCollector):
    """Lists the ports, and reads state, rate, errors and kinds of packets of each."""

    def __init__(self, ports: Ports) -> None:
        untold = f"{Why.UNSUPPORTED.value}: no port counts it"
        super().__init__(
            "infiniband-ports", Lane.MEDIUM, (INFO, STATE, RATE, *COUNTERS), where=ports.folder, untold=untold
        )
        self._ports = ports
        self._infos: Values = {}

    def collect(self, now: Instant) -> Reading:
        """Read every port; a counter that a port does not have is left out."""
        self._infos = {}
        values, reasons = super().collect(now)
        # The labels of a description change with the state: the previous one is not missing.
        return Reading({**values, **self._infos}, reasons)

    def probe(self) -> dict[str, str | None]:
        """Report the metrics, and the counters that no port has."""
        self._infos = {}
        report = super().probe()
        return report | {INFO: None} if self._infos else report

    def _read(self, now: Instant) -> tuple[Values, Reasons]:
        values: Values = {}
        reasons: Reasons = {}
        for port in self._ports.look(now):
            labels = {"device": port.device, "port": port.number}
            for metric, text, parse in ((STATE, port.state, _state), (RATE, port.rate, _rate)):
                key = series(metric, **labels)
                try:
                    values[key] = parse(text)
                except ValueError:
                    miss(values, reasons, (key,), garbled(port.folder, text.encode()).reason)
            for metric, name in COUNTERS.items():
                path = _file_of(port.folder, name, port.counters)
                if path is not None:
                    key = series(metric, **labels)
                    try:
                        values[key] = read_number(path)
                    except CollectorUnavailableError as error:
                        miss(values, reasons, (key,), error.reason)
            info = series(INFO, **labels, link_layer=port.link_layer, state=port.state, rate=port.rate)
            self._infos[info] = 1
        return values, reasons


def infiniband_collectors(*, sys: Path) -> list[InfinibandTrafficCollector | InfinibandPortCollector]:
    """Return both collectors, which share the list of ports."""
    ports = Ports(sys / "class" / "infiniband")
    return [InfinibandTrafficCollector(ports), InfinibandPortCollector(ports)]


def _traffic(port: Port, metric: str, counter: Counter) -> int:
    """Return octets or packets. Raises CollectorUnavailableError without a link or such a counter."""
    if port.inactive:
        raise CollectorUnavailableError(Why.UNSUPPORTED, port.inactive)
    if counter.file is None:
        raise CollectorUnavailableError(Why.NOT_FOUND, f"{port.folder / 'counters' / TRAFFIC[metric]}")
    number = counter.file.number()
    if counter.is_short and number == FULL:
        raise CollectorUnavailableError(Why.FAILED, f"{counter.file.path}: its 32 bits are full, and it stands still")
    return number * OCTETS_PER_DATA if "bytes" in metric else number


def _state(text: str) -> int:
    """Return the number of a state such as ``4: ACTIVE``."""
    return int(text.partition(":")[0])


def _rate(text: str) -> float:
    """Return the bytes a second of a rate such as ``100 Gb/sec (4X EDR)``."""
    return float(text.partition(" ")[0]) * 1e9 / 8
