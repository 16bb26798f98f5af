"""The RDMA ports under ``/sys/class/infiniband``: what state they are in, and which files count their traffic."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError
from fedmon.node.collectors.procfile import ProcFile
from fedmon.node.collectors.sysfs import entries, garbled, read_count, read_text

TRAFFIC = {
    "infiniband_receive_bytes_total": "port_rcv_data",
    "infiniband_transmit_bytes_total": "port_xmit_data",
    "infiniband_receive_packets_total": "port_rcv_packets",
    "infiniband_transmit_packets_total": "port_xmit_packets",
}
OCTETS_PER_DATA = 4
MAX_PORTS = 32
"""Ports beyond this number are left out, so that one sample always fits into a message."""
FULL = 2**32 - 1
"""Where a counter of 32 bits stops; it does not begin again. Source: InfiniBand Architecture, PortCounters."""

LOOK_AGAIN_S = 10.0
_STATES = ("0", "1", "2", "3", "4", "5")
_ACTIVE = (4, 5)
_BITS_PER_OCTET = 8
_MAX_RATE = 1e13


class Counter(msgspec.Struct, frozen=True, kw_only=True):
    """One traffic counter of a port; ``file`` is None where the port does not have it, ``is_short`` one of 32 bits."""

    key: str
    name: str
    file: ProcFile | None
    is_short: bool


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """One port as it was looked at last. ``state`` and ``rate`` (bytes a second) are a text where they are unknown.

    ``inactive`` says why there is no traffic to count, None when there may be.
    """

    device: str
    number: str
    folder: Path
    link_layer: str
    state: int | str
    state_text: str
    rate: float | str
    rate_text: str
    traffic: Mapping[str, Counter]
    listed: frozenset[str]

    @property
    def inactive(self) -> str | None:
        """Say why there is no traffic to count; None while there may be."""
        if isinstance(self.state, str) or self.state in _ACTIVE:
            return None
        return f"port {self.number} of {self.device} has no link, its state is {self.state_text}"

    def file_of(self, counter: str) -> Path | None:
        """Return the file of a counter, that of 64 bits where there is one; None where the port does not count it."""
        return file_of(self.folder, counter, self.listed)


class Ports:
    """The ports of all adapters, looked up anew every ten seconds; used by one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports: list[Port] = []
        self._gone: list[str] = []
        self._looked = -math.inf

    def known(self, now: Instant) -> list[Port]:
        """Return the ports as they were looked at last, or now when that was long ago; none without adapters."""
        if now.mono - self._looked > LOOK_AGAIN_S:
            try:
                self.look(now)
            except CollectorUnavailableError:
                self._looked = now.mono
        return self._ports

    def look(self, now: Instant | None = None) -> list[Port]:
        """Look at all ports. Raises CollectorUnavailableError when there is none, or they cannot be listed."""
        before, self._ports = self._ports, []
        if now is not None:
            self._looked = now.mono
        kept = {(port.device, port.number): port.traffic for port in before}
        try:
            for device in entries(self.folder):
                for number in _numbers(self.folder / device / "ports"):
                    self._ports.append(_port(self.folder, device, number, kept.get((device, number))))
            del self._ports[MAX_PORTS:]
        finally:
            there = {(port.device, port.number) for port in self._ports}
            gone = [port for port in before if (port.device, port.number) not in there]
            self._gone += [counter.key for port in gone for counter in port.traffic.values()]
        return self._ports

    def gone(self) -> list[str]:
        """Return the series of traffic of ports that are no longer there; each is told once."""
        gone, self._gone = self._gone, []
        return gone


def file_of(folder: Path, counter: str, listed: Collection[str]) -> Path | None:
    """Return the file of a port's counter: that of 64 bits, where an older kernel keeps it under another name."""
    names = (
        f"counters_ext/{counter}_64",
        f"counters/{counter}_64",
        f"counters/{counter}",
        f"counters_ext/port_{counter}",
    )
    return next((folder / name for name in names if name in listed), None)


def _listed(folder: Path) -> frozenset[str]:
    """Return the counters that a port has, each with its folder."""
    found: set[str] = set()
    for name in ("counters", "counters_ext"):
        with contextlib.suppress(CollectorUnavailableError):  # without a folder there are no counters
            found.update(f"{name}/{counter}" for counter in entries(folder / name))
    return frozenset(found)


def _numbers(folder: Path) -> list[str]:
    try:
        return entries(folder, r"\d+")
    except CollectorUnavailableError:
        return []  # an adapter that was pulled out meanwhile


def _port(root: Path, device: str, number: str, kept: Mapping[str, Counter] | None) -> Port:
    folder = root / device / "ports" / number
    state, rate, listed = _text(folder / "state"), _text(folder / "rate"), _listed(folder)
    return Port(
        device=device,
        number=number,
        folder=folder,
        link_layer=_text(folder / "link_layer")[0],
        state=state[1] or _state(state[0], folder / "state"),
        state_text=state[0],
        rate=rate[1] or _rate(rate[0], folder / "rate"),
        rate_text=rate[0],
        traffic={
            metric: _counter(series(metric, device=device, port=number), name, folder, listed, (kept or {}).get(metric))
            for metric, name in TRAFFIC.items()
        },
        listed=listed,
    )


def _counter(key: str, name: str, folder: Path, listed: Collection[str], kept: Counter | None) -> Counter:
    path = file_of(folder, name, listed)
    file = kept.file if kept is not None and kept.file is not None and kept.file.path == path else None
    return Counter(
        key=key,
        name=name,
        file=file or (None if path is None else ProcFile(path, size_bytes=64)),
        is_short=path is not None
        and not (file is not None and kept is not None and not kept.is_short)
        and not _is_wide(path, listed),
    )


def _is_wide(path: Path, listed: Collection[str]) -> bool:
    """Tell whether a counter has 64 bits: by its name, by those that exist only beside such ones, or by its value.

    Source of the second: Linux drivers/infiniband/core/sysfs.c, the groups pma_group and pma_group_ext.
    """
    if path.name.endswith("_64") or "counters/unicast_rcv_packets" in listed:
        return True
    try:
        return read_count(path) > FULL
    except CollectorUnavailableError:
        return False


def _text(path: Path) -> tuple[str, str]:
    """Return a file's text, and the reason why it is unknown."""
    try:
        return read_text(path), ""
    except CollectorUnavailableError as error:
        return "", error.reason


def _state(text: str, path: Path) -> int | str:
    """Return the number of a state such as ``4: ACTIVE``, or the reason why it is unknown."""
    number = text.partition(":")[0]
    return int(number) if number in _STATES else garbled(path, text.encode()).reason


def _rate(text: str, path: Path) -> float | str:
    """Return the bytes a second of a rate such as ``100 Gb/sec (4X EDR)``, or the reason why it is unknown."""
    gigabits, _, unit = text.partition(" ")
    try:
        rate = float(gigabits) * 1e9 / _BITS_PER_OCTET
    except ValueError:
        rate = -1.0
    if not (0 <= rate < _MAX_RATE and unit.startswith("Gb/sec")):
        return garbled(path, text.encode()).reason
    return rate
