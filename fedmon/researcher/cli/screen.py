"""The screen of `fedmon watch`: tables that fit, bars and sparklines, missing metrics with reasons, and totals."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.log import escape_control
from fedmon.common.metrics.table import MISSING, format_rate, format_value, is_counter
from fedmon.common.text import joined, natural, plural, short_ids, shorten, table
from fedmon.common.wire.samples import MonitorReply
from fedmon.researcher.cli.readings import Absent, Labels, Latest, WatchState

GAP = 2
BAR = 6
"""Characters of a bar."""
SPARK = 10
"""Parts of a sparkline, of six seconds each: a node measures every five seconds by default."""
SPARKS = "▁▂▃▄▅▆▇"


class Grade(enum.IntEnum):
    """How bad a value is; SILENT is the name of a node that sends nothing."""

    FINE = 0
    HIGH = 1
    BAD = 2
    SILENT = 3


MARKS, CODES = "●◐◐✕", ("", "33", "1;31", "1;31")
"""The sign before a row and the SGR code of a cell, by grade; signs hold without colours."""


class Cell(msgspec.Struct, frozen=True):
    """A value as people read it, and how bad it is."""

    text: str
    grade: Grade = Grade.FINE
    weight: float = 0.0
    """How near the value is to its worst, 0 to 1; rows are sorted by their heaviest cell."""


NOTHING = Cell(MISSING)


class ScreenRow(msgspec.Struct, frozen=True, kw_only=True):
    """The cells of one node, job or device."""

    cells: tuple[Cell, ...]

    @property
    def weight(self) -> tuple[int, float]:
        """How bad the row is: by its worst grade, then by how near a value is to its worst.

        In steps of a tenth, so that rows do not change places with every sample.
        """
        return self.grade, round(max(cell.weight for cell in self.cells), 1)

    @property
    def grade(self) -> Grade:
        """The worst grade of a cell."""
        return max(cell.grade for cell in self.cells)


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Headers and rows; on a narrow screen the column of the highest order goes first. The first column is text."""

    title: str
    headers: tuple[str, ...]
    orders: tuple[int, ...]
    rows: tuple[ScreenRow, ...]
    more: int = 0
    """How many rows were left out."""

    def worst_first(self) -> Table:
        """Return the rows by weight; equal ones stay in their order."""
        return msgspec.structs.replace(self, rows=tuple(sorted(self.rows, key=lambda row: row.weight, reverse=True)))

    def cut(self, rows: int) -> Table:
        """Return the first rows; ``more`` says how many were left out."""
        left_out = max(0, len(self.rows) - rows)
        return msgspec.structs.replace(self, rows=self.rows[:rows], more=self.more + left_out)

    def narrowed(self, width: int) -> Table:
        """Return the table without empty columns, and with as many as fit; the first two and those of order 0 stay.

        Those of order 0 are cut where the table is drawn, so that long names leave a share of the width to the others.
        """
        columns = [[header, *(row.cells[at].text for row in self.rows)] for at, header in enumerate(self.headers)]
        widths = [min(max(map(len, column)), width if order else width // (1 + self.orders.count(0)))
                  for column, order in zip(columns, self.orders, strict=True)]  # fmt: skip
        shown = [at for at, column in enumerate(columns) if at == 0 or any(text != MISSING for text in column[1:])]
        while any(self.orders[at] for at in shown[2:]) and sum(widths[at] + GAP for at in shown) - GAP > width:
            shown.remove(max(shown, key=lambda at: (self.orders[at], at)))
        return msgspec.structs.replace(
            self,
            headers=tuple(self.headers[at] for at in shown),
            orders=tuple(self.orders[at] for at in shown),
            rows=tuple(msgspec.structs.replace(row, cells=tuple(row.cells[at] for at in shown)) for row in self.rows),
        )


def fitted(tables: Sequence[Table], *, height: int) -> list[Table]:
    """Return tables that together fit into ``height`` lines: each gives its last rows, but for one."""
    rows = [min(1, len(table.rows)) for table in tables]
    # Title, headers, the line that counts rows left out, and a blank one.
    free = height - sum(4 + count for count in rows)
    while free > 0 and any(count < len(table.rows) for count, table in zip(rows, tables, strict=True)):
        for index, one in enumerate(tables):
            if rows[index] < len(one.rows) and free > 0:
                rows[index] += 1
                free -= 1
    return [table.cut(count) for count, table in zip(rows, tables, strict=True)]


# --- columns ----------------------------------------------------------------------------------------------------------

Limits = tuple[float, float]
"""Where a value is high, and where it is bad."""
Show = Callable[[Latest, Labels], Cell]
Subject = tuple[tuple[str, ...], Latest, Labels]


class Column(msgspec.Struct, frozen=True):
    """A header, its cells, and when it gives way on a narrow screen: the highest ``order`` goes first."""

    header: str
    cell: Show
    order: int = 5


def value(metric: str, *, worst: Limits | None = None, bar: bool = False) -> Show:
    """Show the series of a metric with the row's labels."""

    def cell(latest: Latest, labels: Labels) -> Cell:
        matching = _matching(latest.each(metric), labels)
        return shown(metric, matching[0] if len(matching) == 1 else None, worst=worst, bar=bar)

    return cell


def growth(metric: str) -> Show:
    """Show how fast a counter grows, over all its series that have the row's labels."""

    def cell(latest: Latest, labels: Labels) -> Cell:
        total = _total(_matching(latest.growths(metric), labels))
        return NOTHING if total is None else Cell(format_rate(metric, total))

    return cell


def sparkline(metric: str, *, top: float = 0.0) -> Show:
    """Show the last minute of a series, blank without values; without ``top`` its highest value is the top."""

    def cell(latest: Latest, labels: Labels) -> Cell:
        means = latest.minute(metric, labels, SPARK)
        known = [mean for mean in means if mean is not None]
        if not known:
            return NOTHING
        low = min(0.0, *known)
        scale = len(SPARKS) / ((top or max(0.0, *known)) - low or 1.0)
        heights = (None if mean is None else min(len(SPARKS) - 1, int((mean - low) * scale)) for mean in means)
        return Cell("".join(" " if height is None else SPARKS[height] for height in heights))

    return cell


def shown(
    metric: str, number: float | None, *, worst: Limits | None = None, ratio: float | None = None, bar: bool = False
) -> Cell:
    """Return the cell of a number; its grade is that of ``ratio`` if there is one. A ratio may have a ``bar``."""
    if number is None:
        return NOTHING
    graded = number if ratio is None else ratio
    text = format_value(metric, number)
    if bar:
        full = min(BAR, max(0, round(number * BAR)))
        text = f"{'━' * full}{'─' * (BAR - full)} {text:>5}"
    if worst is None:
        return Cell(text)
    high, bad = worst
    grade = Grade.BAD if graded >= bad else Grade.HIGH if graded >= high else Grade.FINE
    return Cell(text, grade, min(1.0, max(0.0, graded / bad)))


def _matching(found: Iterable[tuple[Labels, float | None]], labels: Labels) -> list[float | None]:
    return [number for its, number in found if labels.items() <= its.items()]


def _total(values: Sequence[float | None]) -> float | None:
    """Return the sum; None if there is no value, or one is unknown."""
    known = [number for number in values if number is not None]
    return sum(known) if known and len(known) == len(values) else None


# --- groups -----------------------------------------------------------------------------------------------------------


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the screen: its name on the command line, title, rows and columns."""

    name: str
    title: str
    about: tuple[str, ...]
    subjects: Callable[[WatchState], Iterable[Subject]]
    columns: tuple[Column, ...]

    def table(self, state: WatchState) -> Table:
        """Return the group as a table; without rows if no node measures it."""
        rows = []
        subjects = list(self.subjects(state))
        short = short_ids({part for key, _, _ in subjects for part in key[1:]})
        for key, latest, labels in subjects:
            about = (Cell(short.get(part, part)) for part in key)
            cells = (*about, *(column.cell(latest, labels) for column in self.columns))
            silent_s = state.silent_s(key[0])
            if silent_s is not None:
                silent = f"{key[0]} (silent {format_value('host_uptime_seconds', silent_s)})"
                cells = (Cell(silent, Grade.SILENT, 1.0), *cells[1:])
            rows.append(ScreenRow(cells=cells))
        return Table(
            title=self.title,
            headers=(*self.about, *(column.header for column in self.columns)),
            orders=(*(0 for _ in self.about), *(column.order for column in self.columns)),
            rows=tuple(rows),
        )


BUSY = (0.8, 0.95)
"""Limits of a share of CPU or memory."""


def _hosts(state: WatchState) -> Iterable[Subject]:
    return [((node,), latest, {}) for node, stream, latest in state.streams("host") if stream == "host"]


def _memory(latest: Latest) -> tuple[float, float] | None:
    """Return used bytes, and their share."""
    total, available = latest.value("host_memory_total_bytes"), latest.value("host_memory_available_bytes")
    return None if available is None or not total else (total - available, (total - available) / total)


def _memory_used(latest: Latest, _labels: Labels) -> Cell:
    memory = _memory(latest)
    return NOTHING if memory is None else shown("host_memory_total_bytes", memory[0], ratio=memory[1], worst=BUSY)


def _memory_ratio(latest: Latest, _labels: Labels) -> Cell:
    memory = _memory(latest)
    return NOTHING if memory is None else shown("host_cpu_busy_ratio", memory[1], worst=BUSY, bar=True)


def _load(latest: Latest, _labels: Labels) -> Cell:
    load, cpus = latest.value("host_load1"), latest.value("host_cpu_count")
    return shown("host_load1", load, ratio=load / cpus if load is not None and cpus else 0.0, worst=(1.5, 4.0))


def _hottest(latest: Latest, _labels: Labels) -> Cell:
    known = [celsius for _, celsius in latest.each("host_temperature_celsius") if celsius is not None]
    return shown("host_temperature_celsius", max(known, default=None), worst=(80.0, 95.0))


HOST = Group(
    name="host",
    title="HOSTS",
    about=("node",),
    subjects=_hosts,
    columns=(
        Column("CPU", value("host_cpu_busy_ratio", worst=BUSY, bar=True), 1),
        Column("last minute", sparkline("host_cpu_busy_ratio", top=1.0), 3),
        Column("mem", _memory_ratio, 1),
        Column("mem used", _memory_used, 5),
        Column("load", _load, 2),
        Column("read", growth("host_disk_read_bytes_total"), 4),
        Column("written", growth("host_disk_written_bytes_total"), 4),
        Column("net in", growth("host_network_receive_bytes_total"), 3),
        Column("net out", growth("host_network_transmit_bytes_total"), 3),
        Column("power", growth("node_energy_joules_total"), 4),
        Column("temp", _hottest, 6),
    ),
)


def _jobs(state: WatchState) -> Iterable[Subject]:
    return [((node, stream.removeprefix("job-")), latest, {}) for node, stream, latest in state.streams("job-")]


JOBS = Group(
    name="jobs",
    title="JOBS",
    about=("node", "job"),
    subjects=_jobs,
    columns=(
        Column("CPUs busy", value("job_cpus_busy"), 1),
        Column("last minute", sparkline("job_cpus_busy"), 3),
        Column("memory", value("job_memory_rss_bytes"), 1),
        Column("read", growth("job_io_read_bytes_total"), 3),
        Column("written", growth("job_io_written_bytes_total"), 3),
        Column("power", growth("job_energy_joules_total"), 2),
    ),
)

_GPU_MARKS = ("gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_power_watts", "gpu_temperature_celsius")


def _gpus(state: WatchState) -> Iterable[Subject]:
    for (node,), latest, _ in _hosts(state):
        names = {labels["gpu"] for metric in _GPU_MARKS for labels, _ in latest.each(metric) if "gpu" in labels}
        for gpu in sorted(names, key=natural):
            yield (node, gpu), latest, {"gpu": gpu}


def _gpu_memory(latest: Latest, labels: Labels) -> Cell:
    used, total = (
        next(iter(_matching(latest.each(metric), labels)), None)
        for metric in ("gpu_memory_used_bytes", "gpu_memory_total_bytes")
    )
    ratio = used / total if used is not None and total else 0.0
    return shown("gpu_memory_used_bytes", used, ratio=ratio, worst=(0.9, 0.98))


GPU = Group(
    name="gpu",
    title="GPUS",
    about=("node", "gpu"),
    subjects=_gpus,
    columns=(
        Column("busy", value("gpu_utilization_ratio", bar=True), 1),
        Column("last minute", sparkline("gpu_utilization_ratio", top=1.0), 3),
        Column("memory", _gpu_memory, 1),
        Column("power", value("gpu_power_watts"), 2),
        Column("temp", value("gpu_temperature_celsius", worst=(80.0, 90.0)), 3),
    ),
)


def _values(state: WatchState) -> Iterable[Subject]:
    for node, _, latest in state.streams("user"):
        found = [((node, labels.get("name", ""), labels.get("job", MISSING)), latest, labels)
                 for labels, _ in latest.each("user_value")]  # fmt: skip
        yield from sorted(found, key=lambda one: one[0])


USER = Group(
    name="user",
    title="REPORTED VALUES",
    about=("node", "name", "job"),
    subjects=_values,
    columns=(
        Column("value", value("user_value"), 1),
        Column("step", value("user_step"), 2),
        Column("last minute", sparkline("user_value"), 3),
    ),
)
GROUPS = {group.name: group for group in (HOST, JOBS, GPU, USER)}
"""Every group by its name, in the order of the screen."""


def _series(state: WatchState) -> Iterable[Subject]:
    for node, stream, latest in state.streams(""):
        for series in latest.series():
            yield (node, series if stream == "host" else f"{series} of {stream}"), latest, {"series": series}


def _series_growth(latest: Latest, labels: Labels) -> Cell:
    series = labels["series"]
    return Cell(format_rate(series, latest.growth(series))) if is_counter(series) else NOTHING


CHOSEN = Group(
    name="these metrics",
    title="METRICS",
    about=("node", "metric"),
    subjects=_series,
    columns=(
        Column("value", lambda latest, labels: shown(labels["series"], latest.value(labels["series"])), 0),
        Column("growth", _series_growth, 0),
    ),
)
"""Each series, for metrics that were chosen by name."""

# --- the screen -------------------------------------------------------------------------------------------------------


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the screen, from top to bottom."""

    tables: tuple[Table, ...]
    absent: tuple[str, ...]
    totals: str


def compose(
    state: WatchState,
    groups: Sequence[Group],
    *,
    capabilities: Mapping[NodeId, MonitorReply],
    refusals: Mapping[NodeId, str],
    width: int,
    height: int | None,
    worst_first: bool = True,
    absences: bool = True,
    lost: int = 0,
    missing: int = 0,
) -> Screen:
    """Return a screen of this size; ``height`` None shows every row. Refusals are shown without ``absences`` too."""
    tables = [group.table(state) for group in groups]
    are_chosen = len(groups) < len(GROUPS)
    empty = [group.name for group, table in zip(groups, tables, strict=True) if are_chosen and not table.rows]
    tables = [table.worst_first() if worst_first else table for table in tables if table.rows]
    missed = state.absent(capabilities) if absences else []
    absent = [f"{name}: no node reports any" for name in empty if state.samples]
    absent += _absent_lines(missed, refusals, nodes=len(state.nodes), width=width)
    if height is not None:
        # A low screen shows numbers before reasons.
        most = max(1, height // 5)
        if len(absent) > most:
            absent[most:] = [f"... {len(absent) - most} more; fedmon watch --absent shows all"]
        tables = fitted(tables, height=height - len(absent) - (2 if absent else 0) - 2)
    tables = [table.narrowed(width - GAP) for table in tables]
    return Screen(tables=tuple(tables), absent=tuple(absent), totals=_totals(state, lost, missing))


def text_screen(screen: Screen, *, width: int, colours: bool = False, keys: str = "") -> str:
    """Return a screen as lines; ``keys`` explains the keys of a terminal."""
    bold, faint, end = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if colours else ("", "", "")
    lines = []
    for one in screen.tables:
        headers = [f"{' ' * GAP}{one.headers[0]}", *one.headers[1:]]
        cells = [
            [f"{MARKS[row.grade]} {row.cells[0].text}", *(cell.text for cell in row.cells[1:])] for row in one.rows
        ]
        codes = [[CODES[cell.grade] for cell in row.cells] for row in one.rows]
        lines += [f"{bold}{one.title}{end}", table(headers, cells, width=width, styles=codes if colours else None)]
        lines.append(f"... {one.more} more" if one.more else "")
    if screen.absent:
        lines += [f"{bold}NOT MEASURED{end}", *screen.absent, ""]
    return "\n".join([*lines, f"{faint}{shorten(f'{screen.totals}   {keys}'.rstrip(), width)}{end}"])


def _totals(state: WatchState, lost: int, missing: int) -> str:
    if not state.samples:
        return "waiting for the first sample"
    backfilled = f" ({state.late} backfilled)" if state.late else ""
    counts = f"{plural(len(state.nodes), 'node')}, {plural(state.samples, 'sample')}{backfilled}, {lost} lost"
    return f"{counts}, {missing} missing" if missing else counts


def _absent_lines(absent: list[Absent], refusals: Mapping[NodeId, str], *, nodes: int, width: int) -> list[str]:
    lines = [f"{node}: {reason}" for node, reason in sorted(refusals.items())]
    for one in absent:
        some = joined(one.nodes, most=2, last=", ")
        where = "" if nodes <= 1 else " everywhere" if len(one.nodes) == nodes else f" on {some}"
        lines.append(f"{one.metric}{where}: {one.reason}")
    return [shorten(escape_control(line), width) for line in lines]
