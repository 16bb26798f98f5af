"""The dataset of a running plan, and the reading of table cells, for plans and nodes."""

from __future__ import annotations

from fedmon.common.errors import InvalidInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

    import numpy.typing as npt

    Array = npt.NDArray[Any]

DELIMITERS = (",", ";", "\t", "|")
GAPS = frozenset(
    {
        "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A",
        "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
    }
)  # fmt: skip
"""Cells that mean a missing value, as in pandas."""
TRUTHS = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}
SAMPLE_CHARACTERS = 256 * 1024
_SAMPLE_ROWS, _CHUNK_ROWS = 100, 50_000


class PlanDataset:
    """The data of a job.

    ``shape`` is rows and columns, or the number of images or subjects; ``dtypes`` maps the columns of a table to their
    types; both are None if the node does not know them.
    """

    def __init__(
        self,
        *,
        path: str,
        dataset_id: str,
        name: str,
        data_type: str,
        tags: Sequence[str] = (),
        shape: Sequence[int] | None = None,
        dtypes: dict[str, str] | None = None,
    ) -> None:
        self._path = path
        self.dataset_id, self.name, self.data_type, self.tags = dataset_id, name, data_type, list(tags)
        self.shape, self.dtypes = None if shape is None else tuple(shape), dtypes

    @property
    def path(self) -> Path:
        """The file or folder; it cannot be written to."""
        from pathlib import Path as _Path

        return _Path(self._path)

    def rows(self) -> Iterator[dict[str, str]]:
        """Yield the rows of a table, each a mapping of column names to texts as they stand in the file.

        The first row holds the names; UTF-8, cut by comma, semicolon, tab or bar. Raises InvalidInputError for a
        folder, and naming the line where a row has more or fewer cells.
        """
        table = self._table()
        names = next(table)
        for row in table:
            yield dict(zip(names, row, strict=True))

    def columns(self) -> dict[str, Array]:
        """Return the columns of a table as arrays: numbers as float64, where NaN is a gap; truths as bool; else texts.

        A column with anything but numbers and gaps, or truths alone, holds texts as they stand in the file. The whole
        table is read into memory. Raises InvalidInputError as `rows` does.
        """
        import numpy as np

        columns = self._converted(_numbers)
        missing = {name for name, column in columns.items() if column is None}
        texts = self._converted(lambda cells: np.array(cells, dtype=np.str_), missing) if missing else {}
        return {name: _truths(texts[name]) if column is None else column for name, column in columns.items()}

    def _converted(
        self, convert: Callable[[Sequence[str]], Array | None], wanted: set[str] | None = None
    ) -> dict[str, Any]:
        """Return the wanted columns (default: all), and None for each that is not of this kind."""
        from itertools import islice

        import numpy as np

        table = self._table()
        names = next(table)
        parts: dict[str, list[Array] | None] = {name: [] for name in names if wanted is None or name in wanted}
        while chunk := list(islice(table, _CHUNK_ROWS)):
            for name, cells in zip(names, zip(*chunk, strict=True), strict=True):
                if (known := parts.get(name)) is not None:
                    part = convert(cells)
                    parts[name] = None if part is None else [*known, part]
        return {name: None if part is None else np.concatenate(part or [np.empty(0)]) for name, part in parts.items()}

    def _table(self) -> Iterator[list[str]]:
        if self.path.is_dir():
            raise InvalidInputError(f"dataset {self.name!r} is a folder and no table: use its path")
        return read_table(self.path, f"dataset {self.name!r}")


def read_table(path: Path, what: str) -> Iterator[list[str]]:
    """Yield the names of the columns of a table, then every row that is not blank.

    Raises InvalidInputError naming the table as ``what``, the line and the cause, but not the file.
    """
    import csv
    from itertools import pairwise

    names: list[str] = []
    reader: Any = None
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = _delimiter_of(file.read(SAMPLE_CHARACTERS))
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            for row in filter(None, reader):
                if names and len(row) != len(names):
                    found = f"line {reader.line_num} has {len(row)} cells and the first line {len(names)}"
                    raise InvalidInputError(f"{what}, {found}")
                if names:
                    yield row
                else:
                    names = [name.strip() for name in row]
                    if len(names) > 1 and not names[0]:
                        names[0] = "Unnamed: 0"  # the row index that pandas writes
                    twice = [name for name, other in pairwise(sorted(names)) if name == other]
                    if twice:
                        raise InvalidInputError(f"{what} has two columns called {twice[0]!r}")
                    yield names
    except OSError as error:
        raise InvalidInputError(f"{what} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidInputError(f"{what} is not UTF-8 text: convert it") from None
    except csv.Error as error:
        raise InvalidInputError(f"{what}, line {reader.line_num}: {error}") from None
    if not names:
        raise InvalidInputError(f"{what} is an empty file")


def _delimiter_of(sample: str) -> str:
    """Return the delimiter that splits all rows of a sample into the same, largest number of cells; default comma."""
    if len(sample) == SAMPLE_CHARACTERS:
        sample = sample[: sample.rfind("\n") + 1] or sample
    widths = {delimiter: _width(sample, delimiter) for delimiter in DELIMITERS}
    agreed = [delimiter for delimiter in DELIMITERS if widths[delimiter][1] and widths[delimiter][0] > 1]
    return max(agreed or DELIMITERS, key=lambda delimiter: widths[delimiter][0])


def _width(sample: str, delimiter: str) -> tuple[int, bool]:
    """Return the number of cells in the first row, and True if all rows have as many."""
    import csv
    from itertools import islice

    try:
        rows = filter(None, csv.reader(sample.splitlines(keepends=True), delimiter=delimiter))
        widths = list(map(len, islice(rows, _SAMPLE_ROWS + 1)))
    except csv.Error:
        return 0, False
    return (widths[0], len(set(widths)) == 1) if widths else (0, True)


def _truths(column: Array) -> Array:
    """Return a column of texts as truths if it holds only these."""
    import numpy as np

    may_be = column.dtype.itemsize <= 4 * len("False")
    return np.char.lower(column) == "true" if may_be and set(np.unique(column).tolist()) <= TRUTHS.keys() else column


def _numbers(cells: Sequence[str]) -> Array | None:
    """Return texts as numbers, gaps as NaN; None if one is neither."""
    import numpy as np

    joined = "".join(cells)
    if "_" in joined or not joined.isascii():  # float() takes underscores, and the digits of every script
        return None
    try:
        return np.array([float("nan" if cell in GAPS else cell) for cell in cells])
    except ValueError:
        return None
