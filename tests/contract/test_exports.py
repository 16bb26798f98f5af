"""A recording has the columns, names and units that it had, in all formats and views."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import h5py
import pandas as pd
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet
import pytest

from tests.contract.opened import opened
from tests.contract.tables import rewrite, table
from tests.support.shell_here import document_here

KINDS = {"wide": [], "tidy": ["--tidy"], "perfmon": ["--view", "perfmon"], "nebula": ["--view", "nebula"]}
ENDINGS = {
    "csv": "csv", "parquet": "parquet", "feather": "feather", "orc": "orc", "hdf5": "h5", "pickle": "pkl",
    "json-lines": "jsonl", "openmetrics": "om", "influx": "line",
}  # fmt: skip
FEW = ["--metric", "host_disk_read_bytes_total", "--until", "1763700001"]
Row = dict[str, str]
_COLUMNS = table("columns")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Path]]:
    """Exports the recording; gives the files by the table that each holds."""
    folder = tmp_path_factory.mktemp("exported")
    recording = opened("two_nodes.fmr", folder / "recording")

    def export(name: str, *words: str) -> dict[str, Path]:
        said = document_here("export", recording, "--output", folder / name, *words)
        return {one["table"]: Path(one["path"]) for one in said["written"]}

    return export


@pytest.fixture(scope="module")
def rows(exported: Callable[..., dict[str, Path]]) -> dict[str, Row]:
    """The second row of each table as CSV has it, and the lines of the formats that have no columns."""
    found: dict[str, Row] = {}
    for kind, words in KINDS.items():
        for name, path in exported(f"{kind}.csv", *words).items():
            with path.open(newline="", encoding="utf-8") as file:
                found[name] = {column: _short(text) for column, text in list(csv.DictReader(file))[1].items()}
    lines = {name: next(iter(exported(f"few.{ENDINGS[name]}", *FEW).values())) for name in ("openmetrics", "influx")}
    rewrite("columns", found | {"wide": list(found["wide"])} | {name: _lines(path) for name, path in lines.items()})
    return found


@pytest.mark.parametrize("name", [name for name in _COLUMNS if name not in ("openmetrics", "influx")])
def test_a_table_has_its_columns_in_their_order_and_units(name: str, rows: dict[str, Row]) -> None:
    frozen = _COLUMNS[name]

    assert [column for column in rows[name] if column in frozen] == list(frozen)
    assert isinstance(frozen, list) or {column: rows[name][column] for column in frozen} == frozen


@pytest.mark.parametrize("form", ["parquet", "feather", "orc", "hdf5", "pickle", "json-lines"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_format_has_the_columns_of_all_formats(
    kind: str, form: str, exported: Callable[..., dict[str, Path]], rows: dict[str, Row]
) -> None:
    for name, path in exported(f"{kind}.{ENDINGS[form]}", *KINDS[kind]).items():
        assert _columns(path, name) == list(rows[name]), name


@pytest.mark.parametrize("form", ["openmetrics", "influx"])
def test_a_format_of_lines_is_written_as_it_was(form: str, exported: Callable[..., dict[str, Path]]) -> None:
    (path,) = exported(f"few.{ENDINGS[form]}", *FEW).values()

    assert _lines(path) == _COLUMNS.get(form, _lines(path))


@pytest.mark.parametrize("form", ["openmetrics", "influx"])
@pytest.mark.parametrize("view", ["perfmon", "nebula"])
def test_a_view_goes_into_a_format_of_lines(
    view: str, form: str, exported: Callable[..., dict[str, Path]], rows: dict[str, Row]
) -> None:
    written = exported(f"{view}.{ENDINGS[form]}", *KINDS[view])

    assert all(path.stat().st_size > 0 for path in written.values())
    assert set(written) <= set(rows)


def _lines(path: Path) -> list[str]:
    """Return the lines without what is written for people."""
    return [line for line in path.read_text().splitlines() if not line.startswith("# HELP")]


def _columns(path: Path, name: str) -> list[str]:
    """Return the columns of a file, read by another library than ours."""
    match path.suffix:
        case ".parquet":
            return list(pyarrow.parquet.read_schema(path).names)
        case ".feather":
            return list(pyarrow.feather.read_table(path).column_names)
        case ".orc":
            return list(pyarrow.orc.read_table(path).column_names)
        case ".pkl":
            return list(pd.read_pickle(path).columns)
        case ".jsonl":
            found = [json.loads(line) for line in path.read_text().splitlines()]
            return list(dict.fromkeys(column for row in found for column in row))
    with h5py.File(path) as file:
        group = file[f"{name}_4711"]
        columns = [str(column) for column in group.attrs["columns"]]
        assert set(columns) <= set(map(unquote, group))
        return columns


def _short(text: str) -> str:
    """Return a number with six digits, any other text as it is."""
    try:
        return f"{float(text):.6g}"
    except ValueError:
        return text
