"""The line protocol of InfluxDB: a point for each row and set of labels, with a field for each metric.

The measurement is the first word of the metrics (host, job, gpu, ...), tags are the host, the words for the run and the
labels of the series, fields are metrics, times are in nanoseconds. Source: InfluxDB 2 reference, "Line protocol".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, BinaryIO

from fedmon.report.export.measured_columns import MeasuredColumns, Number
from fedmon.report.export.openmetrics import text_of
from fedmon.report.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

# A line ends at a line feed and the protocol has no way to write one, nor a backslash before a comma.
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f\\]|%(?=[0-9a-fA-F]{2})")
_SPECIAL = re.compile(r"([,= ])")
_NAME_SPECIAL = re.compile(r"([, ])")

Key = tuple[str, tuple[tuple[str, str], ...]]


def write_influx(table: Table, file: BinaryIO, *, on_rows: Callable[[int], None] = lambda _: None) -> None:
    """Write a wide table or a view; ``on_rows`` is told how many rows were written since the last call.

    Control characters and backslashes in names and labels are written as in web addresses, %0A for a line feed; a
    value that is not known has no field. Raises InvalidInputError.
    """
    columns = MeasuredColumns(table.schema, format="Influx line protocol")
    points: dict[Key, list[Number]] = {}
    for number in columns.numbers:
        measurement = number.metric.partition("_")[0] if number.is_series else table.name
        points.setdefault((measurement, number.labels), []).append(number)
    for batch in table.batches():
        for run in columns.runs(batch):
            part = batch.slice(run.first, run.end - run.first)
            ends = _ends(part.column(columns.time))
            for (measurement, labels), numbers in points.items():
                own = {name for name, _ in labels}
                words = [(f"run_{name}" if name in own else name, word) for name, word in run.words]
                _write(file, _prefix(measurement, [*words, *labels]), part, numbers, ends)
        on_rows(batch.num_rows)


def escaped(text: str, *, is_measurement: bool = False) -> str:
    """Return a name or the value of a tag as the protocol writes it."""
    plain = _UNWRITABLE.sub(lambda match: f"%{ord(match[0]):02X}", text)
    return (_NAME_SPECIAL if is_measurement else _SPECIAL).sub(r"\\\1", plain)


def _prefix(measurement: str, tags: Iterable[tuple[str, str]]) -> str:
    pairs = "".join(f",{escaped(name)}={escaped(word)}" for name, word in tags if word)
    return f"{escaped(measurement, is_measurement=True)}{pairs}"


def _write(file: BinaryIO, prefix: str, part: pa.RecordBatch, numbers: list[Number], ends: pa.Array) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    # When nulls are skipped, pyarrow 26 loses rows that have nothing else, so a field without a value is empty text.
    fields = [_field(number, part.column(number.index)) for number in numbers]
    joined = pc.binary_join_element_wise(*fields, pa.scalar(""), pa.scalar(""))
    known = pc.greater(pc.binary_length(joined), 0)
    joined, ends = pc.utf8_slice_codeunits(joined.filter(known), 1), ends.filter(known)
    if len(joined):
        file.write(text_of(pc.binary_join_element_wise(pa.scalar(prefix), joined, ends, " ")))


def _field(number: Number, column: pa.Array) -> pa.Array:
    """Return ",name=value" for each row, and an empty text where there is no value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = column.cast(pa.float64())
    name = escaped(number.metric if number.is_series else number.name)
    text = pc.binary_join_element_wise(pa.scalar(f",{name}"), values.cast(pa.string()), "=")
    return pc.if_else(pc.fill_null(pc.is_finite(values), fill_value=False), text, pa.scalar(""))


def _ends(times: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    nanoseconds = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).cast(pa.string())
    return pc.binary_join_element_wise(nanoseconds, pa.scalar("000\n"), "")
