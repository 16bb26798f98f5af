"""Rows as comma-separated values, as RFC 4180 has them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from fedmon.report.export import CountedTable

_FORMULA = "^[=+@\\t\\r\\-]"
_SPECIAL = '[,"\\r\\n]'
_EXACT = float(2**53)
_SAMPLE = 512
"""Values that are looked at first."""
_MOST_UNIQUE = 0.9
"""Share of these up to which half of all values are repeated: to look them up then takes less than to write them."""


def header(schema: pa.Schema) -> bytes:
    """Return the line with the names of the columns."""
    return (",".join(_quoted(_safe(name)) for name in schema.names) + "\n").encode()


def text(batches: Iterable[pa.RecordBatch]) -> memoryview:
    """Return the lines of rows."""
    sink = pa.BufferOutputStream()
    for batch in batches:
        arrays = [_safe_texts(array) if pa.types.is_string(array.type) else array for array in batch.columns]
        is_plain = not any(_needs_quotes(array) for array in arrays if pa.types.is_string(array.type))
        arrays = [_times(array) if pa.types.is_timestamp(array.type) else array for array in arrays]
        # Numbers that were made texts once are written much faster, but only where texts go without quotes.
        numbers = _texts if is_plain else _whole
        arrays = [numbers(array) if pa.types.is_floating(array.type) else array for array in arrays]
        plain = pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
        options = pa.csv.WriteOptions(
            include_header=False,
            batch_size=max(1, len(plain)),
            quoting_style="none" if is_plain else "needed",
        )
        with pa.csv.CSVWriter(sink, plain.schema, write_options=options) as writer:
            writer.write_batch(plain)
    return memoryview(sink.getvalue())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if re.search(_SPECIAL, name) else name


def _safe(name: str) -> str:
    return f"'{name}" if name[:1] in tuple("=+-@\t\r") and name else name


def _safe_texts(array: pa.Array) -> pa.Array:
    kinds = array.dictionary_encode()
    texts = kinds.dictionary
    is_formula = pc.match_substring_regex(texts, _FORMULA)
    if not pc.any(is_formula).as_py():
        return array
    return pc.if_else(is_formula, pc.binary_join_element_wise("'", texts, ""), texts).take(kinds.indices)


def _needs_quotes(array: pa.Array) -> bool:
    return bool(pc.any(pc.match_substring_regex(array.unique(), _SPECIAL)).as_py())


def _times(array: pa.Array) -> pa.Array:
    """Return times as RFC 3339 has them; pyarrow takes twenty times as long for those with a zone."""
    return pc.binary_join_element_wise(array.cast(pa.timestamp("us")).cast(pa.string()), "Z", "")


def _whole(array: pa.Array) -> pa.Array:
    """Return whole numbers as such where all are."""
    values = array.to_numpy(zero_copy_only=False)
    # Most columns with fractions begin with one, and need no look at the rest.
    if not _is_whole(values[:_SAMPLE]).all() or not _is_whole(values).all():
        return array
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    return pa.array(whole, mask=np.isnan(values) if array.null_count else None)


def _is_whole(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell which values are whole numbers that floating point has exactly, or not known."""
    with np.errstate(invalid="ignore"):
        whole: NDArray[np.bool_] = (np.abs(values) < _EXACT) & (np.rint(values) == values)
    return whole | np.isnan(values)


def _texts(array: pa.Array) -> pa.Array:
    """Return numbers as texts; making one text for all equal values saves the time."""
    values = array.to_numpy(zero_copy_only=False)
    if len(values) and values[0] == values[-1] and (values == values[0]).all():
        return pa.repeat(_whole(array[:1]).cast(pa.string())[0], len(values))
    numbers = _whole(array)
    some = numbers[:: max(1, len(numbers) // _SAMPLE)]
    if len(some.unique()) < _MOST_UNIQUE * len(some):
        kinds = numbers.dictionary_encode()
        return kinds.dictionary.cast(pa.string()).take(kinds.indices)
    return numbers.cast(pa.string())


def write_csv(table: CountedTable, file: BinaryIO) -> None:
    """Write a line of names and a line for each row; an unknown value is empty."""
    file.write(header(table.schema))
    file.writelines(table.lines(text))
