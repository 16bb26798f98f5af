"""A table's shape and types are those that pandas would tell, and what is no table is refused with line and cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.common.errors import InvalidInputError
from fedmon.node.registers.dataset_source import measure_table

TYPES = {
    "int64": ["1", "-2", "+3", "007", " 4 ", str(2**63 - 1), str(-(2**63))],
    "float64": ["1", "2.5", "-.5", "1.", "1e5", "-1E-5", "inf", "-Infinity", " 2.0 "],
    "bool": ["True", "false", "TRUE"],
    "object": ["a", "b"],
}
MIXED = {
    "int64 with gaps": (["1", "", "3"], "float64"),
    "float64 with every kind of gap": (["1.5", "NA", "NaN", "null", "N/A", "<NA>", "None", ""], "float64"),
    "nothing but gaps": (["", "NA"], "float64"),
    "bool with gaps": (["True", "", "False"], "object"),
    "bool and numbers": (["True", "1"], "object"),
    "numbers and text": (["1", "2.5", "x"], "object"),
    "beyond 64 bits": (["1", str(2**63)], "object"),
    "below and beyond 63 bits": (["-1", str(2**63)], "object"),
    "integers and floats": (["1", "2.0"], "float64"),
    "dates": (["2026-01-01", "2026-01-02"], "object"),
    "decimal commas": (["1,5", "2,5"], "object"),
    "underscores of Python": (["1_000", "2_000"], "object"),
    "hexadecimal": (["0x10", "0x11"], "object"),
    "digits of another script": (["١٢", "٣"], "object"),
}
REFUSED = {
    "nothing": (b"", "is an empty file"),
    "blank lines": (b"\n\n\n", "is an empty file"),
    "only a byte order mark": (b"\xef\xbb\xbf", "is an empty file"),
    "no rows": (b"a,b\n", "has names of columns but no rows"),
    "no header": (b"842302,M,17.99,10.38\n842517,M,20.57,17.77\n", r"looks like values \(842302, M, 17.99, 10.38\)"),
    "a nameless column": (b"a,,c\n1,2,3\n", "has no name for column 2"),
    "one name twice": (b"a,b,a\n1,2,3\n", "has two columns called 'a'"),
    "a short row": (b"a,b\n1,2\n\n3\n", "line 4 has 1 cells and the first line 2"),
    "too many columns": (b",".join(b"c%d" % number for number in range(100_001)), "100001 columns, more than 100000"),
    "an open quote": (b'a,b\n1,"2\n', "line 2: unexpected end of data"),
    "a huge cell": (b"a,b\n1," + b"x" * 200_000 + b"\n", "field larger than field limit"),
    "UTF-16": ("a,b\n1,2\n".encode("utf-16"), "is not UTF-8 text: convert it"),
    "values in UTF-16 without a mark": ("1,2\n3,4\n".encode("utf-16-le"), "holds a NUL character in its first row"),
}


def _read(tmp_path: Path, content: bytes | str) -> tuple[list[int], dict[str, str]]:
    """Return the shape and the types of the columns of a table."""
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    table = measure_table(path)
    assert table.shape is not None
    assert table.dtypes is not None
    return table.shape, table.dtypes


def _column(tmp_path: Path, values: list[str]) -> str:
    rows = "".join(f'{number},"{value}"\n' for number, value in enumerate(values))
    return _read(tmp_path, "number,value\n" + rows)[1]["value"]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_column_of_one_kind_has_its_type(tmp_path: Path, dtype: str) -> None:
    assert _column(tmp_path, TYPES[dtype]) == dtype


@pytest.mark.parametrize("name", MIXED)
def test_gaps_and_mixtures_widen_the_type(tmp_path: Path, name: str) -> None:
    values, dtype = MIXED[name]

    assert _column(tmp_path, values) == dtype


def test_shape_names_and_types_come_from_the_whole_file(tmp_path: Path) -> None:
    rows = "".join(f"{number},{number / 2},text\n" for number in range(70_000))

    table = _read(tmp_path, "id, size ,what\n" + rows + "last,1,2\n")

    assert table == ([70_001, 3], {"id": "object", "size": "float64", "what": "object"})


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("a;b\n1,5;2,5\n", ["a", "b"]),
        ("a\tb\tc\n1\t2\t3\n", ["a", "b", "c"]),
        ("a|b\n1|2\n", ["a", "b"]),
        ("a,b\n1,x;y\n", ["a", "b"]),
        ('"a,b",c\n"1,2",3\n', ["a,b", "c"]),
        ("only\n1\n2\n", ["only"]),
        ("a,b\r\n1,2\r\n", ["a", "b"]),
        ("\ufeffa,b\n1,2\n", ["a", "b"]),
        ("\n\na,b\n1,2\n", ["a", "b"]),
        ('a,b\n"line one\nline two",2\n', ["a", "b"]),
        (",a\n0,x\n", ["Unnamed: 0", "a"]),
        ("0,1,2\n5,6,7\n", ["0", "1", "2"]),
        ("name,2024,2025,2026\nx,1,2,3\n", None),
        ("größe,漢字\n1,2\n", ["größe", "漢字"]),
        ("a,b\n1,2", ["a", "b"]),
    ],
)
def test_delimiters_quotes_marks_and_names_are_understood(
    tmp_path: Path, content: str, columns: list[str] | None
) -> None:
    if columns is None:
        with pytest.raises(InvalidInputError, match="looks like values"):
            _read(tmp_path, content)
        return

    shape, dtypes = _read(tmp_path, content)

    assert (shape[1], list(dtypes)) == (len(columns), columns)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_table_is_refused_with_its_cause(tmp_path: Path, name: str) -> None:
    content, cause = REFUSED[name]

    with pytest.raises(InvalidInputError, match=cause) as raised:
        _read(tmp_path, content)

    assert f"the table {tmp_path / 'table.csv'}" in str(raised.value)


@settings(max_examples=300)
@given(st.binary(max_size=300) | st.text(alphabet='ab12.,;\t|"\n\r \ufeff\0', max_size=80).map(str.encode))
def test_any_bytes_are_a_table_or_one_clear_refusal(tmp_path: Path, content: bytes) -> None:
    try:
        (rows, columns), dtypes = _read(tmp_path, content)
    except InvalidInputError:
        return

    assert rows > 0
    assert columns == len(dtypes) > 0
