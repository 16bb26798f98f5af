"""The groups of `fedmon watch`: which rows and columns each has."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from fedmon.common.metrics.table import format_value
from fedmon.researcher.cli.watching.column import NOTHING, Cell, Column, Grade, Labels, graded, growth, shown, value
from fedmon.researcher.cli.watching.latest import Latest
from fedmon.researcher.cli.watching.state import WatchState
from fedmon.researcher.cli.watching.table import Row, Table

BUSY = (0.8, 0.95)
"""Where a share of CPU, memory or disk is high, and where it is bad."""

Subject = tuple[tuple[str, ...], Latest, Labels]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A name for the command line, a title, what its rows are about, and its columns."""

    name: str
    title: str
    about: tuple[str, ...]
    subjects: Callable[[WatchState], Iterable[Subject]]
    columns: tuple[Column, ...]

    def table(self, state: WatchState) -> Table:
        """Return the group as a table; without rows when nobody measures it."""
        rows = []
        for key, latest, labels in self.subjects(state):
            cells = (*(Cell(part) for part in key), *(column.cell(latest, labels) for column in self.columns))
            rows.append(Row(key=key, cells=self._marked(state, key, cells)))
        return Table(
            title=self.title,
            headers=(*self.about, *(column.header for column in self.columns)),
            orders=(*(0 for _ in self.about), *(column.order for column in self.columns)),
            rows=tuple(rows),
        )

    def _marked(self, state: WatchState, key: tuple[str, ...], cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
        """Say of a silent node that it is."""
        silent_s = state.silent_s(key[0])
        if silent_s is None:
            return cells
        return (Cell(f"{key[0]} (silent {format_value('host_uptime_seconds', silent_s)})", Grade.BAD, 1.0), *cells[1:])


def _hosts(state: WatchState) -> Iterable[Subject]:
    for node, stream, latest in state.streams("host"):
        if stream == "host":
            yield (node,), latest, {}


def _memory_used(latest: Latest, _labels: Labels) -> Cell:
    total, available = latest.value("host_memory_total_bytes"), latest.value("host_memory_available_bytes")
    if total is None or available is None or not total:
        return NOTHING
    ratio = (total - available) / total
    return Cell(format_value("host_memory_total_bytes", total - available), *graded(ratio, BUSY))


def _memory_ratio(latest: Latest, _labels: Labels) -> Cell:
    total, available = latest.value("host_memory_total_bytes"), latest.value("host_memory_available_bytes")
    if total is None or available is None or not total:
        return NOTHING
    return shown("host_cpu_busy_ratio", (total - available) / total, worst=BUSY)


def _load(latest: Latest, _labels: Labels) -> Cell:
    load, cpus = latest.value("host_load1"), latest.value("host_cpu_count")
    if load is None:
        return NOTHING
    return Cell(format_value("host_load1", load), *graded(load / cpus if cpus else 0.0, (1.5, 4.0)))


def _fullest_disk(latest: Latest, _labels: Labels) -> Cell:
    sizes = {labels.get("mountpoint"): size for labels, size in latest.each("host_filesystem_size_bytes")}
    shares = []
    for labels, available in latest.each("host_filesystem_available_bytes"):
        size = sizes.get(labels.get("mountpoint"))
        if size and available is not None:
            shares.append(1 - available / size)
    return shown("host_cpu_busy_ratio", max(shares), worst=(0.85, 0.95)) if shares else NOTHING


def _hottest(latest: Latest, _labels: Labels) -> Cell:
    return shown("host_temperature_celsius", latest.largest("host_temperature_celsius"), worst=(80.0, 95.0))


def _missed_ticks(latest: Latest, _labels: Labels) -> Cell:
    missed = latest.value("agent_ticks_missed_total")
    return NOTHING if missed is None else Cell(format_value("agent_ticks_missed_total", missed))


def _gpu_memory_of_job(latest: Latest, _labels: Labels) -> Cell:
    return shown("job_gpu_memory_bytes", latest.total("job_gpu_memory_bytes"))


def _method(latest: Latest, _labels: Labels) -> Cell:
    methods = sorted({labels["method"] for labels, _ in latest.each("node_energy_joules_total") if "method" in labels})
    return Cell(", ".join(methods)) if methods else NOTHING


def _rates(header: str, metric: str, order: int) -> Column:
    return Column(header, growth(metric), order)


HOST = Group(
    name="host",
    title="HOSTS",
    about=("node",),
    subjects=_hosts,
    columns=(
        Column("CPU", value("host_cpu_busy_ratio", worst=BUSY), 1),
        Column("mem", _memory_ratio, 1),
        Column("mem used", _memory_used, 5),
        Column("load", _load, 2),
        Column("disk full", _fullest_disk, 4),
        _rates("read", "host_disk_read_bytes_total", 4),
        _rates("written", "host_disk_written_bytes_total", 4),
        _rates("net in", "host_network_receive_bytes_total", 3),
        _rates("net out", "host_network_transmit_bytes_total", 3),
        Column("temp", _hottest, 6),
        Column("overruns", _missed_ticks, 7),
    ),
)


def _jobs(state: WatchState) -> Iterable[Subject]:
    for node, stream, latest in state.streams("job-"):
        yield (node, stream.removeprefix("job-")), latest, {}


JOBS = Group(
    name="jobs",
    title="JOBS",
    about=("node", "job"),
    subjects=_jobs,
    columns=(
        Column("CPUs busy", value("job_cpus_busy"), 1),
        Column("memory", value("job_memory_rss_bytes"), 1),
        Column("peak", value("job_memory_peak_bytes"), 4),
        Column("processes", value("job_processes"), 5),
        _rates("read", "job_io_read_bytes_total", 3),
        _rates("written", "job_io_written_bytes_total", 3),
        _rates("power", "job_energy_joules_total", 2),
        Column("GPU memory", _gpu_memory_of_job, 2),
    ),
)


def _energies(state: WatchState) -> Iterable[Subject]:
    for node, stream, latest in state.streams("host"):
        if stream == "host" and any(latest.each(metric) for metric in _ENERGY_MARKS):
            yield (node,), latest, {}


_ENERGY_MARKS = ("node_energy_joules_total", "rapl_energy_joules_total", "hwmon_power_watts")

ENERGY = Group(
    name="energy",
    title="ENERGY",
    about=("node",),
    subjects=_energies,
    columns=(
        _rates("power", "node_energy_joules_total", 1),
        Column("since start", value("node_energy_kilowatt_hours_total"), 2),
        Column("CO2e", value("node_emissions_grams_total"), 2),
        Column("measured by", _method, 3),
    ),
)


def _gpus(state: WatchState) -> Iterable[Subject]:
    for node, stream, latest in state.streams("host"):
        if stream == "host":
            names = {labels["gpu"] for metric in _GPU_MARKS for labels, _ in latest.each(metric) if "gpu" in labels}
            for gpu in sorted(names):
                yield (node, gpu), latest, {"gpu": gpu}


_GPU_MARKS = ("gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_power_watts", "gpu_temperature_celsius")


def _gpu_memory(latest: Latest, labels: Labels) -> Cell:
    used, total = _single(latest, "gpu_memory_used_bytes", labels), _single(latest, "gpu_memory_total_bytes", labels)
    if used is None:
        return NOTHING
    return Cell(format_value("gpu_memory_used_bytes", used), *graded(used / total if total else 0.0, (0.9, 0.98)))


def _throttle(latest: Latest, labels: Labels) -> Cell:
    """Name why the clocks are held back now; an idle GPU's are, and that is no trouble."""
    active = [
        its.get("reason", "")
        for its, number in latest.each("gpu_throttle_active")
        if number and labels.items() <= its.items()
    ]
    named = [reason for reason in active if reason not in _HARMLESS]
    return Cell(", ".join(named), Grade.HIGH, 0.8) if named else NOTHING


_HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting", "none"})


def _values(state: WatchState) -> Iterable[Subject]:
    for node, _, latest in state.streams("user"):
        for labels, _ in latest.each("user_value"):
            yield (node, labels.get("name", "")), latest, labels


def _single(latest: Latest, metric: str, labels: Labels) -> float | None:
    return next((number for its, number in latest.each(metric) if labels.items() <= its.items()), None)


GPU = Group(
    name="gpu",
    title="GPUS",
    about=("node", "gpu"),
    subjects=_gpus,
    columns=(
        Column("busy", value("gpu_utilization_ratio"), 1),
        Column("memory", _gpu_memory, 1),
        Column("power", value("gpu_power_watts"), 2),
        Column("temp", value("gpu_temperature_celsius", worst=(80.0, 90.0)), 3),
        Column("throttled by", _throttle, 4),
        Column("processes", value("gpu_processes"), 5),
    ),
)
USER = Group(
    name="user",
    title="REPORTED VALUES",
    about=("node", "name"),
    subjects=_values,
    columns=(Column("value", value("user_value"), 1), Column("step", value("user_step"), 2)),
)
GROUPS = {group.name: group for group in (HOST, JOBS, GPU, ENERGY, USER)}
"""Every group by its name, in the order of the screen."""
