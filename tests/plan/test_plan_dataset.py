"""Tables as plans see them: what their cells become, and which line is wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.errors import InvalidInputError
from fedmon.plan.dataset import SAMPLE_CHARACTERS, PlanDataset


def dataset(path: Path) -> PlanDataset:
    return PlanDataset(
        path=str(path), dataset_id="d1", name="patients", data_type="csv", tags=[], shape=None, dtypes=None
    )


def table(folder: Path, content: str | bytes) -> PlanDataset:
    path = folder / "table"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return dataset(path)


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("a,b\n1,x\n", [{"a": "1", "b": "x"}]),
        ("\ufeffa;b\r\n1,5;2\r\n", [{"a": "1,5", "b": "2"}]),
        ("a; b \n1;2\n", [{"a": "1", "b": "2"}]),
        ("a\tb\n1\t\n", [{"a": "1", "b": ""}]),
        ("a|b\n\n1|2\n\n", [{"a": "1", "b": "2"}]),
        ('a,b\n"1,2","x\ny"\n', [{"a": "1,2", "b": "x\ny"}]),
        (",a\n0,1\n", [{"Unnamed: 0": "0", "a": "1"}]),
        ("a\n1\n", [{"a": "1"}]),
        ("a,b\n", []),
        ("a,b\n" + "1,2\n" * 200, [{"a": "1", "b": "2"}] * 200),
    ],
)
def test_the_rows_of_a_table_are_texts_by_column(content: str, rows: list[dict[str, str]], tmp_path: Path) -> None:
    assert list(table(tmp_path, content).rows()) == rows


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        (["1", "2.5", "-3e2"], [1.0, 2.5, -300.0]),
        (["1", "NA", "null"], [1.0, math.nan, math.nan]),
        (["True", "false", "TRUE"], [True, False, True]),
        (["True", "maybe", "False"], ["True", "maybe", "False"]),
        (["1_000", "2", "3"], ["1_000", "2", "3"]),
        (["\u0661", "2", "3"], ["\u0661", "2", "3"]),
        (["1", "high", "3"], ["1", "high", "3"]),
        (["", "high", "NA"], ["", "high", "NA"]),
    ],
    ids=["numbers", "gaps", "truths", "texts", "underscores", "other digits", "mixed", "texts and gaps"],
)
def test_a_column_is_numbers_truths_or_texts_as_all_its_cells_say(
    cells: list[str], column: list[Any], tmp_path: Path
) -> None:
    content = "".join(f"{number},{cell}\n" for number, cell in enumerate(["c", *cells]))

    columns = table(tmp_path, content).columns()

    assert columns["0"].tolist() == [1.0, 2.0, 3.0]
    assert columns["c"].tolist() == pytest.approx(column, nan_ok=True)


def test_a_column_of_many_rows_is_whole_and_one_of_none_is_empty(tmp_path: Path) -> None:
    long = table(tmp_path, "n,word\n" + "".join(f"{number},w{number % 7}\n" for number in range(120_000))).columns()
    empty = table(tmp_path, "n,word\n").columns()

    assert long["n"].tolist() == list(range(120_000))
    assert long["word"][-1] == f"w{119_999 % 7}"
    assert {name: column.tolist() for name, column in empty.items()} == {"n": [], "word": []}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "dataset 'patients' is an empty file"),
        ("\n\n", "dataset 'patients' is an empty file"),
        ("a,b\n1,2\n1,2,3\n", "line 3 has 3 cells and the first line 2"),
        ("a,b\n1\n", "line 2 has 1 cells and the first line 2"),
        ("a,b, a\n1,2,3\n", "dataset 'patients' has two columns called 'a'"),
        ('a,b\n"1"x,2\n', "dataset 'patients', line 2: "),
        (b"a,b\n\xff,1\n", "is not UTF-8 text: convert it"),
        (b"a,b\n" + b"1,2\n" * SAMPLE_CHARACTERS + b"\xff,1\n", "dataset 'patients' is not UTF-8 text"),
    ],
)
def test_a_table_that_cannot_be_read_is_named_with_its_line(content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=message):
        list(table(tmp_path, content).rows())


def test_a_folder_or_a_missing_file_is_no_table(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "is a folder and no table: use its path"), (tmp_path / "gone", "cannot be read")):
        with pytest.raises(InvalidInputError, match=message):
            dataset(path).columns()
