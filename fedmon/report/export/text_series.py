"""Formats of time series as text: OpenMetrics 1.0 and the line protocol of InfluxDB."""

from __future__ import annotations

import itertools
import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.series import series, split_series
from fedmon.common.metrics.table import METRICS, Kind, Unit
from fedmon.report.export import VIEW, Table
from fedmon.report.export.files import stored

logger = logging.getLogger(__name__)

_TIDY = frozenset({"metric", "labels", "value"})
_OTHER = re.compile(r"[^a-zA-Z0-9]+")
_PER_SECOND = "_per_second"
_EXACT = 1_000_000
_AT_ONCE = 65_536
"""Lines that are made at once."""
_SUFFIXES = {"counter": "_total", "info": "_info"}
_UNITLESS = (Unit.COUNT, Unit.NONE)
Words: TypeAlias = tuple[tuple[str, str], ...]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A family of OpenMetrics: its name without suffix, type, unit (empty for none) and help."""

    name: str
    type: str
    unit: str = ""
    help: str = ""

    @property
    def sample(self) -> str:
        """The name of its samples."""
        return self.name + _SUFFIXES.get(self.type, "")


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """A column of numbers: at ``index``, of one ``metric`` with ``labels``.

    ``is_series`` is False of a column that has a name in words, as views have them.
    """

    index: int
    name: str
    metric: str
    family: Family
    labels: Words = ()
    is_series: bool = True


class MeasuredColumns:
    """The roles of the columns of a schema. Raises InvalidInputError for a table without series."""

    def __init__(self, schema: pa.Schema, *, format: str) -> None:  # noqa: A002 - what everybody calls it
        if set(schema.names) >= _TIDY:
            raise InvalidInputError(f"{format} is made of the wide table, which has a column for each series")
        self.time = next(number for number, field in enumerate(schema) if pa.types.is_timestamp(field.type))
        self.words = [number for number, field in enumerate(schema) if pa.types.is_string(field.type)]
        self._names = [_OTHER.sub("_", schema.names[number]).strip("_").lower() for number in self.words]
        is_view = VIEW.encode() in (schema.metadata or {})
        self.numbers = [
            _number(number, schema.names[number], is_view=is_view)
            for number, field in enumerate(schema)
            if pa.types.is_floating(field.type)
        ]

    def runs(self, batch: pa.RecordBatch) -> Iterator[tuple[slice, Words]]:
        """Return the rows of a batch that have the same words, in order; absent or empty words are left out."""
        ends = (pc.run_end_encode(batch.column(number)).run_ends.to_pylist() for number in self.words)
        for first, end in itertools.pairwise(sorted({0, batch.num_rows}.union(*ends))):
            said = ((name, batch.column(at)[first].as_py()) for name, at in zip(self._names, self.words, strict=True))
            yield slice(first, end), tuple((name, word) for name, word in said if word)


def _number(index: int, name: str, *, is_view: bool) -> Number:
    try:
        metric, labels = split_series("" if is_view else name)
    except ValueError:
        plain = _OTHER.sub("_", name).strip("_").lower()
        metric = plain if plain[:1].isalpha() else f"value_{plain}"
        family = Family(name=metric, type="unknown", help=name)
        return Number(index=index, name=name, metric=metric, family=family, is_series=False)
    return Number(index=index, name=name, metric=metric, family=_family(metric), labels=tuple(labels.items()))


def _family(metric: str) -> Family:
    row, counter = METRICS.get(metric), METRICS.get(f"{metric.removesuffix(_PER_SECOND)}_total")
    if row is None and counter is not None and metric.endswith(_PER_SECOND):
        unit = f"{counter.unit.value}_per_second"
        unit = unit if metric.endswith(f"_{unit}") else ""
        return Family(name=metric, type="gauge", unit=unit, help=f"Growth a second of {counter.name}.")
    if row is None:
        is_counter = metric.endswith("_total")
        return Family(name=metric.removesuffix("_total"), type="counter" if is_counter else "unknown")
    name = metric.removesuffix(_SUFFIXES.get(row.kind.value, ""))
    unit = "" if row.unit in _UNITLESS or row.kind is Kind.INFO else row.unit.value
    return Family(name=name, type=row.kind.value, unit=unit if name.endswith(f"_{unit}") else "", help=row.help)


def write_openmetrics(table: Table, file: BinaryIO) -> None:
    """Write a wide table or a view.

    The table waits in a file of no name beside ``file``, so memory stays small. Where the clock was set back, samples
    that would go back in time are left out, which the standard demands; how many is logged. Raises InvalidInputError.
    """
    columns = MeasuredColumns(table.schema, format="OpenMetrics text")
    with stored(table.schema, table.batches(), _folder(file)) as rows:
        parts = _by_words(rows, columns)
        left_out = 0
        for family, members in families_of(columns.numbers).items():
            head = _head(family)
            for number in members:
                for words, part in parts.items():
                    for text, dropped in _series(part, columns.time, family, number, words):
                        file.write(head)
                        head = b""
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
        family = number.family
        while any(taken.get(name, family) != family for name in (family.name, family.sample)) or (
            not number.is_series and family.name in found
        ):
            family = msgspec.structs.replace(family, name=f"{family.name}_other", unit="")
        taken |= dict.fromkeys((family.name, family.sample), family)
        found.setdefault(family.name, (family, []))[1].append(number)
    return dict(found.values())


def _by_words(table: pa.Table, columns: MeasuredColumns) -> dict[Words, pa.Table]:
    """Group rows by their words, in order."""
    found: dict[Words, list[pa.RecordBatch]] = {}
    for batch in table.to_batches():
        for rows, words in columns.runs(batch):
            found.setdefault(words, []).append(batch.slice(rows.start, rows.stop - rows.start))
    return {words: pa.Table.from_batches(batches) for words, batches in found.items()}


def _series(
    rows: pa.Table, time: int, family: Family, number: Number, words: Words
) -> Iterator[tuple[memoryview, int]]:
    """Return the lines of one series piece by piece, each with how many samples were left out of it."""
    own = {name for name, _ in number.labels}
    # A label of the series goes before a word for the run that is called the same.
    labels = {(f"run_{name}" if name in own else name): word for name, word in words} | dict(number.labels)
    prefix = series(family.sample, **labels) if labels else family.sample
    latest = np.iinfo(np.int64).min
    for first in range(0, len(rows), _AT_ONCE):
        times = rows.column(time).slice(first, _AT_ONCE).cast(pa.int64()).to_numpy()
        values = rows.column(number.index).slice(first, _AT_ONCE).to_numpy()
        known = np.isfinite(values)
        moments, readings = times[known], values[known]
        if not len(moments):
            continue
        before = np.maximum.accumulate(np.concatenate([[latest], moments[:-1]]))
        forward = moments > before
        latest = max(latest, int(moments.max()))
        text = _lines(prefix, readings[forward], moments[forward]) if forward.any() else memoryview(b"")
        yield text, int((~forward).sum())


def _lines(prefix: str, values: np.ndarray, moments: np.ndarray) -> memoryview:
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


def _folder(file: BinaryIO) -> Path:
    """Return the folder of a file, also of one that has no name yet, for its temporary files."""
    try:
        folder = Path(f"/proc/self/fd/{file.fileno()}").readlink().parent
    except OSError:
        return Path(tempfile.gettempdir())
    # What is no file, such as a pipe or a terminal, has no folder for ours.
    return folder if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else Path(tempfile.gettempdir())


# A line ends at a line feed and the protocol has no way to write one, nor a backslash before a comma.
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f\\]|%(?=[0-9a-fA-F]{2})")
_SPECIAL = re.compile(r"([,= ])")
_NAME_SPECIAL = re.compile(r"([, ])")


def write_influx(table: Table, file: BinaryIO) -> None:
    """Write a wide table or a view.

    Control characters and backslashes in names and labels are written as in web addresses, %0A for a line feed; a
    value that is not known has no field. Raises InvalidInputError.
    """
    columns = MeasuredColumns(table.schema, format="Influx line protocol")
    points: dict[tuple[str, Words], list[Number]] = {}
    for number in columns.numbers:
        measurement = number.metric.partition("_")[0] if number.is_series else table.name
        points.setdefault((measurement, number.labels), []).append(number)
    for batch in table.batches():
        for rows, said in columns.runs(batch):
            part = batch.slice(rows.start, rows.stop - rows.start)
            microseconds = part.column(columns.time).cast(pa.int64()).cast(pa.string())
            ends = pc.binary_join_element_wise(microseconds, pa.scalar("000\n"), "")
            for (measurement, labels), numbers in points.items():
                own = {name for name, _ in labels}
                words = [(f"run_{name}" if name in own else name, word) for name, word in said]
                tags = "".join(f",{escaped(name)}={escaped(word)}" for name, word in (*words, *labels) if word)
                _write(file, escaped(measurement, is_measurement=True) + tags, part, numbers, ends)


def escaped(text: str, *, is_measurement: bool = False) -> str:
    """Return a name or the value of a tag as the protocol writes it."""
    plain = _UNWRITABLE.sub(lambda match: f"%{ord(match[0]):02X}", text)
    return (_NAME_SPECIAL if is_measurement else _SPECIAL).sub(r"\\\1", plain)


def _write(file: BinaryIO, prefix: str, part: pa.RecordBatch, numbers: list[Number], ends: pa.Array) -> None:
    # When nulls are skipped, pyarrow 26 loses rows that have nothing else, so a field without a value is empty text.
    fields = [_field(number, part.column(number.index)) for number in numbers]
    joined = pc.binary_join_element_wise(*fields, pa.scalar(""), pa.scalar(""))
    known = pc.greater(pc.binary_length(joined), 0)
    joined, ends = pc.utf8_slice_codeunits(joined.filter(known), 1), ends.filter(known)
    if len(joined):
        file.write(text_of(pc.binary_join_element_wise(pa.scalar(prefix), joined, ends, " ")))


def _field(number: Number, column: pa.Array) -> pa.Array:
    """Return ",name=value" for each row, and an empty text where there is no value."""
    name = escaped(number.metric if number.is_series else number.name)
    text = pc.binary_join_element_wise(pa.scalar(f",{name}"), column.cast(pa.string()), "=")
    return pc.if_else(pc.fill_null(pc.is_finite(column), fill_value=False), text, pa.scalar(""))
