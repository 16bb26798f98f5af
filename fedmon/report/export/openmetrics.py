"""OpenMetrics text 1.0: families one after the other, and in each family one series after the other, by time.

Source: OpenMetrics 1.0, sections "ABNF", "MetricFamily" and "Supported Metric Types".
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import numpy as np

from fedmon.common.metrics.series import series
from fedmon.common.metrics.table import Kind, Unit
from fedmon.report.column_spool import ColumnSpool
from fedmon.report.export.measured_columns import MeasuredColumns, Number
from fedmon.report.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_EXACT = 1_000_000
_AT_ONCE = 65_536
"""So many lines are made at once."""
_SUFFIXES = {"counter": "_total", "info": "_info"}
_UNITLESS = (Unit.COUNT, Unit.NONE)
Words = tuple[tuple[str, str], ...]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One family: its name without suffix, type, unit (empty for none) and help."""

    name: str
    type: str
    unit: str
    help: str

    @property
    def sample(self) -> str:
        """The name of its samples."""
        return self.name + _SUFFIXES.get(self.type, "")


def write_openmetrics(table: Table, file: BinaryIO, *, on_rows: Callable[[int], None] = lambda _: None) -> None:
    """Write a wide table or a view; ``on_rows`` is told how many rows were read since the last call.

    Numbers wait in a file of no name beside ``file``, so memory stays small. Where the clock was set back, samples that
    would go back in time are left out, which the standard demands; how many is logged. Raises InvalidInputError.
    """
    columns = MeasuredColumns(table.schema, format="OpenMetrics text")
    families = families_of(columns.numbers)
    with ColumnSpool[tuple[int, Words]](_folder(file)) as spool:
        order = _fill(spool, table, columns, on_rows)
        left_out = 0
        for family, members in families.items():
            written = False
            for number in members:
                for words in order:
                    for text, dropped in _series(spool, columns.time, family, number, words):
                        if not written:
                            file.write(_head(family))
                            written = True
                        file.write(text)
                        left_out += dropped
    file.write(b"# EOF\n")
    if left_out:
        logger.warning("%d samples are left out of OpenMetrics text: the clock was set back before them", left_out)


def families_of(numbers: list[Number]) -> Mapping[Family, list[Number]]:
    """Group columns by family, in the order of the columns; no two families claim a name of samples."""
    found: dict[str, tuple[Family, list[Number]]] = {}
    taken: dict[str, Family] = {}
    for number in numbers:
        family = _family(number)
        while any(taken.get(name, family) != family for name in (family.name, family.sample)) or (
            not number.is_series and family.name in found
        ):
            family = msgspec.structs.replace(family, name=f"{family.name}_other", unit="")
        taken |= dict.fromkeys((family.name, family.sample), family)
        found.setdefault(family.name, (family, []))[1].append(number)
    return dict(found.values())


def _family(number: Number) -> Family:
    row, name = number.row, number.metric
    if not number.is_series:
        return Family(name=name, type="unknown", unit="", help=number.name)
    if row is None:
        is_counter = name.endswith("_total")
        return Family(name=name.removesuffix("_total"), type="counter" if is_counter else "unknown", unit="", help="")
    if number.is_rate:
        unit = f"{row.unit.value}_per_second"
        help_ = f"Growth a second of {row.name}."
        return Family(name=name, type="gauge", unit=unit if name.endswith(f"_{unit}") else "", help=help_)
    plain = name.removesuffix(_SUFFIXES.get(row.kind.value, ""))
    unit = "" if row.unit in _UNITLESS or row.kind is Kind.INFO else row.unit.value
    return Family(name=plain, type=row.kind.value, unit=unit if plain.endswith(f"_{unit}") else "", help=row.help)


def _fill(
    spool: ColumnSpool[tuple[int, Words]], table: Table, columns: MeasuredColumns, on_rows: Callable[[int], None]
) -> list[Words]:
    """Put numbers and times aside by what the words of their rows are; return these in order."""
    order: dict[Words, None] = {}
    for batch in table.batches():
        times = _microseconds(batch.column(columns.time))
        values = {number.index: _floats(batch.column(number.index)) for number in columns.numbers}
        for run in columns.runs(batch):
            order[run.words] = None
            spool.add((columns.time, run.words), times[run.first : run.end])
            for index, column in values.items():
                spool.add((index, run.words), column[run.first : run.end])
        spool.settle()
        on_rows(batch.num_rows)
    return list(order)


def _series(
    spool: ColumnSpool[tuple[int, Words]], time: int, family: Family, number: Number, words: Words
) -> Iterator[tuple[memoryview, int]]:
    """Return the lines of one series piece by piece, each with how many samples were left out of it."""
    own = {name for name, _ in number.labels}
    # A label of the series goes before a word for the run that is called the same.
    labels = {(f"run_{name}" if name in own else name): word for name, word in words} | dict(number.labels)
    prefix = series(family.sample, **labels) if labels else family.sample
    latest = np.iinfo(np.int64).min
    pieces = zip(spool.read((time, words), np.int64), spool.read((number.index, words), np.float64), strict=True)
    for times, values in pieces:
        known = np.isfinite(values)
        moments, readings = times[known], values[known]
        if not len(moments):
            continue
        before = np.maximum.accumulate(np.concatenate([[latest], moments[:-1]]))
        forward = moments > before
        latest = max(latest, int(moments.max()))
        readings, moments, left_out = readings[forward], moments[forward], int((~forward).sum())
        for first in range(0, len(moments), _AT_ONCE):
            end = first + _AT_ONCE
            yield _lines(prefix, readings[first:end], moments[first:end]), left_out
            left_out = 0


def _lines(prefix: str, values: np.ndarray, moments: np.ndarray) -> memoryview:
    import pyarrow as pa
    import pyarrow.compute as pc

    seconds = pa.array(moments // _EXACT).cast(pa.string())
    fraction = pc.utf8_lpad(pa.array(moments % _EXACT).cast(pa.string()), 6, "0")
    ends = pc.binary_join_element_wise(pc.binary_join_element_wise(seconds, fraction, "."), "\n", "")
    lines = pc.binary_join_element_wise(pa.scalar(prefix), pa.array(values).cast(pa.string()), ends, " ")
    return text_of(lines)


def text_of(lines: pa.Array) -> memoryview:
    """Return the text of all strings of an array, one after the other, without copying it."""
    offsets = np.frombuffer(lines.buffers()[1], dtype=np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(lines.buffers()[2])[offsets[0] : offsets[-1]]


def _head(family: Family) -> bytes:
    text = f"# TYPE {family.name} {family.type}\n"
    if family.unit:
        text += f"# UNIT {family.name} {family.unit}\n"
    if family.help:
        escaped = family.help.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
        text += f"# HELP {family.name} {escaped}\n"
    return text.encode()


def _microseconds(times: pa.Array) -> np.ndarray:
    import pyarrow as pa

    found: np.ndarray = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def _floats(column: pa.Array) -> np.ndarray:
    """Return numbers; NaN is a value that is not known."""
    import pyarrow as pa

    found: np.ndarray = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return found


def _folder(file: BinaryIO) -> Path:
    """Return the folder of a file, also of one that has no name yet, for what waits beside it."""
    try:
        folder = Path(f"/proc/self/fd/{file.fileno()}").readlink().parent
    except OSError:
        return Path(tempfile.gettempdir())
    # What is no file, such as a pipe or a terminal, has no folder for ours.
    return folder if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else Path(tempfile.gettempdir())
