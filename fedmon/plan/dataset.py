"""The dataset of a running plan, and how the cells of a table are read, by a plan and by a node that looks at it."""

from __future__ import annotations

from fedmon.common.errors import InvalidInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any, TextIO

    import numpy.typing as npt

DELIMITERS = (",", ";", "\t", "|")
GAPS = frozenset(
    {
        "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A",
        "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
    }
)  # fmt: skip
"""What stands for a value that is not there; as in pandas."""
TRUTHS = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}
SAMPLE_CHARACTERS = 256 * 1024
_SAMPLE_ROWS, _CHUNK_ROWS = 100, 50_000


class PlanDataset:
    """What the job may read.

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
        tags: list[str],
        shape: tuple[int, ...] | None,
        dtypes: dict[str, str] | None,
    ) -> None:
        self._path = path
        self.dataset_id, self.name, self.data_type, self.tags = dataset_id, name, data_type, tags
        self.shape, self.dtypes = shape, dtypes

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
        with self._open() as file:
            names, reader = self._begin(file)
            for row in self._whole_rows(reader, len(names)):
                yield dict(zip(names, row, strict=True))

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of a table as arrays: numbers as float64, where NaN is a gap; truths as bool; else texts.

        A column with anything but numbers and gaps, or truths alone, holds texts as they stand in the file. The whole
        table is read into memory. Raises InvalidInputError as `rows` does.
        """
        columns = self._numeric_columns()
        texts = [name for name, column in columns.items() if column is None]
        read = self._text_columns(texts) if texts else {}
        return {name: read[name] if column is None else column for name, column in columns.items()}

    def _numeric_columns(self) -> dict[str, npt.NDArray[Any] | None]:
        """Return the columns that are numbers, and None for each other one."""
        import numpy as np

        with self._open() as file:
            names, reader = self._begin(file)
            parts: dict[str, list[npt.NDArray[Any]] | None] = {name: [] for name in names}
            for chunk in _chunks(self._whole_rows(reader, len(names))):
                for name, values in zip(names, zip(*chunk, strict=True), strict=True):
                    known = parts[name]
                    if known is not None:
                        numbers = _numbers(values)
                        parts[name] = None if numbers is None else [*known, np.array(numbers, dtype=np.float64)]
        empty = np.empty(0)
        return {name: None if part is None else np.concatenate([empty, *part]) for name, part in parts.items()}

    def _text_columns(self, wanted: list[str]) -> dict[str, npt.NDArray[Any]]:
        import numpy as np

        with self._open() as file:
            names, reader = self._begin(file)
            places = [names.index(name) for name in wanted]
            parts: list[list[npt.NDArray[Any]]] = [[] for _ in wanted]
            for chunk in _chunks(self._whole_rows(reader, len(names))):
                for part, place in zip(parts, places, strict=True):
                    part.append(np.array([row[place] for row in chunk], dtype=np.str_))
        columns = {name: np.concatenate(part) for name, part in zip(wanted, parts, strict=True)}
        for name, column in columns.items():
            if column.dtype.itemsize <= 4 * len("False") and set(np.unique(column).tolist()) <= TRUTHS.keys():
                columns[name] = np.char.lower(column) == "true"
        return columns

    def _open(self) -> TextIO:
        if self.path.is_dir():
            raise InvalidInputError(f"dataset {self.name!r} is a folder and no table: use its path")
        try:
            return self.path.open(encoding="utf-8-sig", newline="")
        except OSError as error:
            raise InvalidInputError(f"dataset {self.name!r} cannot be read: {error.strerror}") from error

    def _begin(self, file: TextIO) -> tuple[list[str], Any]:
        import csv

        try:
            delimiter = delimiter_of(file.read(SAMPLE_CHARACTERS))
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"dataset {self.name!r} is no text in UTF-8 (byte {error.start})") from None
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header = next(filter(None, self._rows_of(reader)), None)
        if header is None:
            raise InvalidInputError(f"dataset {self.name!r} is an empty file")
        return column_names(header), reader

    def _rows_of(self, reader: Any) -> Iterator[list[str]]:
        import csv

        try:
            yield from reader
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidInputError(f"dataset {self.name!r}, line {reader.line_num}: {error}") from None

    def _whole_rows(self, reader: Any, width: int) -> Iterator[list[str]]:
        """Yield the rows that are not blank. Raises InvalidInputError for one of another width."""
        for row in self._rows_of(reader):
            if len(row) == width:
                yield row
            elif row:
                raise InvalidInputError(
                    f"dataset {self.name!r}, line {reader.line_num} has {len(row)} cells and the first line {width}"
                )


def delimiter_of(sample: str) -> str:
    """Choose the delimiter that cuts every row of a sample into as many cells, and into most; comma when none does."""
    if len(sample) == SAMPLE_CHARACTERS:
        sample = sample[: sample.rfind("\n") + 1] or sample
    widths = {delimiter: _width(sample, delimiter) for delimiter in DELIMITERS}
    agreed = [delimiter for delimiter in DELIMITERS if widths[delimiter][1] and widths[delimiter][0] > 1]
    return max(agreed or DELIMITERS, key=lambda delimiter: widths[delimiter][0])


def column_names(header: list[str]) -> list[str]:
    """Return the names in a first row; a nameless first column is the row index that pandas writes."""
    names = [name.strip() for name in header]
    if len(names) > 1 and not names[0]:
        names[0] = "Unnamed: 0"
    return names


def _width(sample: str, delimiter: str) -> tuple[int, bool]:
    """Return into how many cells the first row falls, and whether all others do so too."""
    import csv

    width, agree = 0, True
    try:
        for number, row in enumerate(filter(None, csv.reader(sample.splitlines(keepends=True), delimiter=delimiter))):
            if number == 0:
                width = len(row)
            agree = agree and len(row) == width
            if number == _SAMPLE_ROWS:
                break
    except csv.Error:
        agree = False
    return width, agree


def _chunks(rows: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    chunk: list[list[str]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == _CHUNK_ROWS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _numbers(values: tuple[str, ...]) -> list[float] | None:
    """Return what texts say as numbers, gaps as NaN; None when one is neither."""
    joined = "".join(values)
    if "_" in joined or not joined.isascii():  # float() takes underscores, and the digits of every script
        return None
    try:
        return list(map(float, values))
    except ValueError:
        pass
    nan = float("nan")
    try:
        return [nan if value in GAPS else float(value) for value in values]
    except ValueError:
        return None
