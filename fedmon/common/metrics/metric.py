"""One row of the table of metrics, and its vocabulary."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class Kind(enum.Enum):
    """How a value moves: a gauge goes up and down, a counter only grows until it restarts, an info is a description."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"


class Unit(enum.Enum):
    """The base unit of a value; a ratio is 1 when it is full, and NONE belongs to descriptions and users' values."""

    RATIO = "ratio"
    BYTES = "bytes"
    SECONDS = "seconds"
    COUNT = "count"
    HERTZ = "hertz"
    CELSIUS = "celsius"
    WATTS = "watts"
    JOULES = "joules"
    KILOWATT_HOURS = "kilowatt_hours"
    GRAMS = "grams"
    BYTES_PER_SECOND = "bytes_per_second"
    PER_SECOND = "per_second"
    NONE = "none"


_NAMED_UNITS = tuple(sorted(set(Unit) - {Unit.COUNT, Unit.NONE}, key=lambda unit: -len(unit.value)))
"""Those that a name ends in, the longest first: "bytes_per_second" ends in "per_second" too."""


class Scope(enum.Enum):
    """The subject of a metric; the first word of its name."""

    HOST = "host"
    JOB = "job"
    GPU = "gpu"
    RAPL = "rapl"
    HWMON = "hwmon"
    NODE = "node"
    INFINIBAND = "infiniband"
    PERF = "perf"
    USER = "user"
    AGENT = "agent"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table; ``source`` names where the number comes from on Linux."""

    name: str
    kind: Kind
    unit: Unit
    scope: Scope
    help: str
    source: str
    labels: tuple[str, ...] = ()


def rows(source: str, unit: Unit | None, texts: Mapping[str, str], *, labels: tuple[str, ...] = ()) -> list[Metric]:
    """Make rows of one source and unit from name and help; the name tells kind, scope and a unit that is None."""
    return [
        Metric(
            name=name,
            kind=Kind.COUNTER if name.endswith("_total") else Kind.INFO if name.endswith("_info") else Kind.GAUGE,
            unit=unit or _unit(name),
            scope=Scope(name.partition("_")[0]),
            help=text,
            source=source,
            labels=labels,
        )
        for name, text in texts.items()
    ]


def metrics(
    source: str, texts: Mapping[str, str], *, labels: tuple[str, ...] = (), unit: Unit | None = None
) -> list[Metric]:
    """Make rows of one source from name and help; the name tells kind, scope and, unless given, the unit."""
    return rows(source, unit, texts, labels=labels)


def _unit(name: str) -> Unit:
    if name.endswith("_info"):
        return Unit.NONE
    return next((unit for unit in _NAMED_UNITS if name.removesuffix("_total").endswith(f"_{unit.value}")), Unit.COUNT)
