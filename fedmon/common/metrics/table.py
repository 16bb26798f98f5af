"""The one table of metrics: what each is called, counts, and means.

Column names on the wire, table headers and ``docs/metrics.md`` come from here. Names are in base units, which
instance (CPU mode, device, interface, mount point) is meant is a label, and a counter ends in ``_total``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from fedmon.common.metrics.series import metric_name


class Kind(enum.Enum):
    """How a value moves: a gauge goes up and down, a counter only grows until it restarts."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Unit(enum.Enum):
    """The base unit of a value; a ratio is 1 when it is full."""

    RATIO = "ratio"
    BYTES = "bytes"
    SECONDS = "seconds"
    COUNT = "count"


class Scope(enum.Enum):
    """What a metric describes."""

    HOST = "host"
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


def _rows(source: str, unit: Unit, rows: Mapping[str, str], *, labels: tuple[str, ...] = ()) -> list[Metric]:
    """Make rows of one source and unit from name and help; the name says kind and scope."""
    return [
        Metric(
            name=name,
            kind=Kind.COUNTER if name.endswith("_total") else Kind.GAUGE,
            unit=unit,
            scope=Scope(name.partition("_")[0]),
            help=text,
            source=source,
            labels=labels,
        )
        for name, text in rows.items()
    ]


_STAT = "/proc/stat, first line"
_MEMINFO = "/proc/meminfo"
_LOADAVG = "/proc/loadavg"
_DISKSTATS = "/proc/diskstats"
_NETDEV = "/proc/net/dev"
_STATVFS = "statvfs of each mount in /proc/self/mounts"

_ROWS: list[Metric] = [
    *_rows(
        _STAT,
        Unit.RATIO,
        {
            "host_cpu_busy_ratio": "Busy share of all CPUs since the previous sample, 0 to 1; idle and iowait are"
            " not busy."
        },
    ),
    *_rows(
        _STAT,
        Unit.SECONDS,
        {
            "host_cpu_seconds_total": "Time that all CPUs spent in a mode: user (guests included), nice, system,"
            " idle, iowait, irq, softirq, steal."
        },
        labels=("mode",),
    ),
    *_rows("/sys/devices/system/cpu/online", Unit.COUNT, {"host_cpu_count": "Logical CPUs that are online."}),
    *_rows(
        _MEMINFO,
        Unit.BYTES,
        {
            "host_memory_total_bytes": "Memory that the system has.",
            "host_memory_available_bytes": "Memory that programs can still get without swapping.",
            "host_memory_free_bytes": "Memory that nothing uses, not even as a cache.",
            "host_memory_buffers_bytes": "Memory that holds raw disk blocks.",
            "host_memory_cached_bytes": "Memory that holds file contents, shared memory included.",
            "host_swap_total_bytes": "Swap space that the system has; 0 where swap is off.",
            "host_swap_used_bytes": "Swap space in use.",
        },
    ),
    *_rows(
        _LOADAVG,
        Unit.COUNT,
        {
            "host_load1": "Processes running or waiting for CPU or disk, averaged over 1 minute.",
            "host_load5": "Processes running or waiting for CPU or disk, averaged over 5 minutes.",
            "host_load15": "Processes running or waiting for CPU or disk, averaged over 15 minutes.",
        },
    ),
    *_rows(
        _STATVFS,
        Unit.BYTES,
        {
            "host_filesystem_size_bytes": "Size of a local file system.",
            "host_filesystem_free_bytes": "Space that nothing uses, the part reserved for root included.",
            "host_filesystem_available_bytes": "Space that a user who is not root can still fill.",
        },
        labels=("mountpoint",),
    ),
    *_rows(
        _DISKSTATS,
        Unit.BYTES,
        {
            "host_disk_read_bytes_total": "Bytes read from a disk.",
            "host_disk_written_bytes_total": "Bytes written to a disk.",
        },
        labels=("device",),
    ),
    *_rows(
        _DISKSTATS,
        Unit.COUNT,
        {
            "host_disk_reads_total": "Reads that a disk completed.",
            "host_disk_writes_total": "Writes that a disk completed.",
        },
        labels=("device",),
    ),
    *_rows(
        _DISKSTATS,
        Unit.SECONDS,
        {"host_disk_busy_seconds_total": "Time during which a disk had at least one request open."},
        labels=("device",),
    ),
    *_rows(
        _NETDEV,
        Unit.BYTES,
        {
            "host_network_receive_bytes_total": "Bytes that an interface received.",
            "host_network_transmit_bytes_total": "Bytes that an interface sent.",
        },
        labels=("interface",),
    ),
    *_rows(
        _NETDEV,
        Unit.COUNT,
        {
            "host_network_receive_packets_total": "Packets that an interface received.",
            "host_network_transmit_packets_total": "Packets that an interface sent.",
            "host_network_receive_errors_total": "Packets received with an error.",
            "host_network_transmit_errors_total": "Packets that could not be sent because of an error.",
            "host_network_receive_dropped_total": "Packets received and dropped.",
            "host_network_transmit_dropped_total": "Packets dropped before they were sent.",
        },
        labels=("interface",),
    ),
    *_rows("/proc/uptime", Unit.SECONDS, {"host_uptime_seconds": "Time since the system started."}),
    *_rows(
        "CLOCK_PROCESS_CPUTIME_ID",
        Unit.SECONDS,
        {"agent_cpu_seconds_total": "CPU time of this node's own process, user and system, without its children."},
    ),
    *_rows(
        "/proc/self/statm",
        Unit.BYTES,
        {"agent_memory_rss_bytes": "Resident memory of this node's own process."},
    ),
    *_rows(
        "the sampler",
        Unit.SECONDS,
        {"agent_collect_seconds": "Time that all collectors together took for the previous sample."},
    ),
    *_rows(
        "the sampler",
        Unit.COUNT,
        {"agent_ticks_missed_total": "Ticks of the sampling grid that were left out because sampling came too late."},
    ),
    *_rows(
        "the publisher",
        Unit.COUNT,
        {
            "agent_samples_published_total": "Samples handed to the connection with the broker.",
            "agent_samples_dropped_total": "Samples dropped because there was no connection with a broker.",
        },
    ),
]


def by_name(rows: Iterable[Metric]) -> Mapping[str, Metric]:
    """Return the rows under their names, in their order.

    Raises ValueError when a name is declared twice.
    """
    table: dict[str, Metric] = {}
    for row in rows:
        if table.setdefault(row.name, row) is not row:
            raise ValueError(f"metric {row.name} is declared twice; give one of them another name")
    return MappingProxyType(table)


METRICS: Mapping[str, Metric] = by_name(_ROWS)
"""Every metric by its name, in the order in which people read them."""


def metric_of(text: str) -> Metric | None:
    """Return the row of a series or metric name; None when the table does not know it."""
    return METRICS.get(metric_name(text))
