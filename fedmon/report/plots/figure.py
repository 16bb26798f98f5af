"""What a figure is: which metrics it shows, in which unit, and how several devices or nodes become one line."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from fedmon.common.metrics.table import METRICS, Kind, Metric, Unit


class Group(enum.Enum):
    """What figures are about, in the order in which they are read; the value is the word of the command line."""

    JOB = "job"
    USER = "user"
    CPU = "cpu"
    MEMORY = "memory"
    SYSTEM = "system"
    DISK = "disk"
    NETWORK = "network"
    INFINIBAND = "infiniband"
    ENERGY = "energy"
    GPU = "gpu"
    PERF = "perf"
    PRESSURE = "pressure"
    FILESYSTEM = "filesystem"
    NUMA = "numa"
    SENSORS = "sensors"
    AGENT = "agent"
    OTHER = "other"


class Join(enum.Enum):
    """How several lines become one; the value is the word in the title."""

    TOTAL = "Total"
    AVERAGE = "Average"
    HIGHEST = "Highest"


class Quantity(enum.Enum):
    """What the numbers of an axis are, which decides its unit and how it is scaled."""

    BYTES = "bytes"
    BYTE_RATE = "bytes per second"
    SHARE = "percent"
    CPUS = "CPUs"
    COUNT = "count"
    RATE = "per second"
    SECONDS = "seconds"
    HERTZ = "hertz"
    CELSIUS = "degrees"
    WATTS = "watts"
    GRAM_RATE = "grams per hour"
    NUMBER = "number"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure: for each node, and for all of them together unless ``over`` is None.

    ``lines`` maps metrics to what they are called in the legend; ``limits`` are metrics drawn as a limit of them.
    ``keep`` are labels whose values are lines of their own everywhere, such as a CPU mode. All other labels tell
    devices apart: they are joined by ``within``, or shown one by one for each node where ``split``; where not, and
    ``detail`` names them, a second figure shows them. ``each`` is a label of whose values each gets its own figure.
    ``without`` leaves out series by a label's value. ``noun`` says what is counted. A figure of events that are
    normally absent, ``quiet``, is not drawn when all values are 0.
    """

    name: str
    group: Group
    title: str
    lines: Mapping[str, str]
    over: Join | None = Join.AVERAGE
    limits: Mapping[str, str] = {}
    quantity: Quantity | None = None
    keep: tuple[str, ...] = ()
    split: bool = False
    detail: str | None = None
    within: Join = Join.TOTAL
    each: str | None = None
    without: Mapping[str, frozenset[str]] = {}
    noun: str = ""
    quiet: bool = False
    is_event: bool = False
    over_step: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric that it shows."""
        return (*self.lines, *self.limits)

    @property
    def shown(self) -> Quantity:
        """What its axis shows."""
        return self.quantity or quantity_of(METRICS.get(next(iter(self.lines))))


_GAUGES = {
    Unit.RATIO: Quantity.SHARE,
    Unit.BYTES: Quantity.BYTES,
    Unit.SECONDS: Quantity.SECONDS,
    Unit.COUNT: Quantity.COUNT,
    Unit.HERTZ: Quantity.HERTZ,
    Unit.CELSIUS: Quantity.CELSIUS,
    Unit.WATTS: Quantity.WATTS,
    Unit.BYTES_PER_SECOND: Quantity.BYTE_RATE,
    Unit.PER_SECOND: Quantity.RATE,
}
_COUNTERS = {
    Unit.BYTES: Quantity.BYTE_RATE,
    Unit.SECONDS: Quantity.SHARE,
    Unit.COUNT: Quantity.RATE,
    Unit.JOULES: Quantity.WATTS,
    Unit.GRAMS: Quantity.GRAM_RATE,
}


def quantity_of(metric: Metric | None) -> Quantity:
    """Return what the values of a metric are on an axis; of a counter, its growth per second."""
    if metric is None:
        return Quantity.NUMBER
    table = _COUNTERS if metric.kind is Kind.COUNTER else _GAUGES
    return table.get(metric.unit, Quantity.NUMBER)
