"""The values of NEBULA's reporter, computed from our metrics: its tags and units; unknown values are left out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping

from fedmon.common.metrics.nebula_tags import (
    CONNECTIONS,
    CPU_PROCESS,
    CPU_TEMPERATURE,
    MACHINE,
    PACKETS_RECEIVED,
    PACKETS_SENT,
    VOLUMES,
    TagFormula,
    gpu_formulas,
    processor_sensors,
    unit_of,
)
from fedmon.common.metrics.series import metric_name
from fedmon.compat.nebula.settings import Generation

_FORMULAS = (*MACHINE, TagFormula(CPU_PROCESS, ("job_cpus_busy",), lambda cpus: cpus * 100, 1))
_KINDS: Mapping[str, str] = {
    "host_network_transmit_bytes_total": "bytes_sent",
    "host_network_receive_bytes_total": "bytes_recv",
    "host_network_transmit_packets_total": "packets_sent",
    "host_network_receive_packets_total": "packets_recv",
}
_GPU = re.compile(r'gpu_[a-z_]+\{gpu="(\d+)"\}')


class Reported(dict[str, float]):
    """Values by tag, as a plain dict for any sink, with their time, origin and units.

    ``t`` is Unix and ``mono`` monotonic seconds, ``seq`` numbers everything logged since the start, and ``units`` maps
    the tags to their units; user's values have none.
    """

    def __init__(self, values: Mapping[str, float], *, t: float, mono: float, node_id: str, seq: int) -> None:
        super().__init__(values)
        self.t, self.mono, self.node_id, self.seq = t, mono, node_id, seq

    @property
    def units(self) -> dict[str, str]:
        """Map each tag to its unit, or to an empty text."""
        return {tag: unit_of(tag) for tag in self}


class Traffic:
    """Sums the growth of each interface's counters; nothing is ever subtracted.

    A counter that was restarted adds nothing, nor does an interface that comes or goes. ``total`` and ``reading`` map
    bytes_sent, bytes_recv, packets_sent and packets_recv to the growth since the first look, and to the sum of the
    counters at the last one. Not safe between threads.
    """

    def __init__(self) -> None:
        self.total: dict[str, int] = dict.fromkeys(_KINDS.values(), 0)
        self.reading = dict(self.total)
        self.is_first = True
        self._last: dict[str, int] = {}

    def look(self, values: Mapping[str, float | None]) -> None:
        """Take a reading of the counters of all interfaces."""
        found = {key: value for key, value in values.items() if metric_name(key) in _KINDS}
        counted = {key: int(value) for key, value in found.items() if value is not None}
        if not counted:
            return
        self.reading = dict.fromkeys(_KINDS.values(), 0)
        for key, value in counted.items():
            kind = _KINDS[metric_name(key)]
            self.reading[kind] += value
            self.total[kind] += max(0, value - self._last.get(key, value))
        # A reading that was missed once keeps its place; an interface that is gone does not.
        self._last = {key: value for key, value in self._last.items() if key in found} | counted
        self.is_first = False


def resources(
    values: Mapping[str, float | None],
    *,
    traffic: Traffic,
    connections: int | None,
    generation: Generation,
) -> dict[str, float]:
    """Return the 13 values of a machine, without unknown ones."""
    others = {CPU_TEMPERATURE: cpu_temperature(values), CONNECTIONS: connections}
    found = _computed(_FORMULAS, values) | {tag: value for tag, value in others.items() if value is not None}
    if not traffic.is_first:
        sent, received, divisor = VOLUMES[generation]
        volume = {sent: traffic.total["bytes_sent"], received: traffic.total["bytes_recv"]}
        found |= volume if divisor == 1 else {tag: round(size / divisor, 3) for tag, size in volume.items()}
        found |= {PACKETS_SENT: traffic.total["packets_sent"], PACKETS_RECEIVED: traffic.total["packets_recv"]}
    return found


def gpus(values: Mapping[str, float | None]) -> Iterator[dict[str, float]]:
    """Yield up to 7 values of each GPU, in the order of their numbers."""
    for number in sorted({int(match[1]) for match in map(_GPU.match, values) if match}):
        if found := _computed(gpu_formulas(str(number)), values):
            yield found


def cpu_temperature(values: Mapping[str, float | None]) -> float | None:
    """Return the temperature of the processor: that of the whole, else of its warmest part."""
    known = {name: value for name, value in values.items() if value is not None}
    return max((known[name] for name in processor_sensors(known)), default=None)


def _computed(formulas: Iterable[TagFormula], values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the value of each tag of which all series are known."""
    found: dict[str, float] = {}
    for tag, names, compute, digits in formulas:
        known = [value for name in names if (value := values.get(name)) is not None]
        if len(known) == len(names):
            with contextlib.suppress(ZeroDivisionError):
                found[tag] = compute(*known) if digits is None else round(compute(*known), digits)
    return found
