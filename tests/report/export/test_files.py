"""Tables in files: another library than the one that wrote reads each back, and a failure leaves what was there."""

from __future__ import annotations

import csv
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyorc
import pytest
import tables

from fedmon.common.errors import ConflictError, InvalidInputError, StorageError
from fedmon.report import TidyTable, WideTable, save
from fedmon.report.export import FORMATS, write
from fedmon.report.source import Source
from tests.report.tables import HOSTILE, T0, FixedTable, recording, samples
from tests.support.full_disk import files_of_at_most

MOMENT = datetime.fromtimestamp(T0, UTC)


def table_of(text: str, *, name: str = "wide", rows: int = 2) -> FixedTable:
    """Return a table with a text among its values and as the name of a column."""
    schema = pa.schema(
        [("host", pa.string()), ("time", pa.timestamp("us", tz="UTC")), (f"x{text}", pa.float64()), ("y", pa.float64())]
    )
    columns = [[text] * rows, [MOMENT] * rows, [1.5] * rows, [None] * rows]
    return FixedTable(parts=[pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=schema)], name=name)


def written(table: FixedTable, path: Path, *, key: str) -> Path:
    write(table, path, key=key)
    return path


Read = tuple[list[str], list[Any], list[float], list[float]]


def read_csv(path: Path) -> Read:
    with path.open(newline="", encoding="utf-8") as file:
        head, *rows = list(csv.reader(file))
    return head, [row[0] for row in rows], [float(row[2]) for row in rows], [float(row[-1] or "nan") for row in rows]


def read_polars(path: Path) -> Read:
    frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_ipc(path)
    assert set(frame["time"]) == {MOMENT}
    first, second = frame.to_series(2), frame["y"].fill_null(math.nan)
    return frame.columns, frame["host"].to_list(), first.to_list(), second.to_list()


def read_orc(path: Path) -> Read:
    with path.open("rb") as file:
        reader = pyorc.Reader(file, struct_repr=pyorc.StructRepr.TUPLE)
        rows = list(reader)
        names = list(reader.schema.fields)  # type: ignore[attr-defined]  # of a struct
    assert {row[1] for row in rows} == {MOMENT}
    return names, [row[0] for row in rows], [row[2] for row in rows], [row[-1] or math.nan for row in rows]


def read_hdf5(path: Path) -> Read:
    with tables.open_file(path) as file:
        group = file.get_node("/wide_all")
        names = list(group._v_attrs["columns"])
        sets = {node._v_attrs["name"]: node.read() for node in group}
    assert set(sets["time"]) == {int(T0 * 1e6)}
    return names, [text.decode() for text in sets["host"]], list(sets[names[2]]), list(sets["y"])


def of_frame(frame: Any) -> Read:
    assert set(frame["time"]) == {pd.Timestamp(MOMENT)}
    return list(frame.columns), list(frame["host"]), list(frame.iloc[:, 2]), list(frame["y"])


READERS: dict[str, Callable[[Path], Read]] = {
    "csv": read_csv, "parquet": read_polars, "feather": read_polars, "orc": read_orc, "hdf5": read_hdf5,
    "pickle": lambda path: of_frame(pd.read_pickle(path)),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_another_library_reads_what_was_written_and_hostile_text_survives_in_values_and_names(
    name: str, tmp_path: Path
) -> None:
    texts = [text.encode("utf-8", "backslashreplace").decode() for text in (*HOSTILE, "\udc80")]
    columns = [texts, [MOMENT] * len(texts), *([1.5] * len(texts) for _ in texts), [None] * len(texts)]
    fields = [("host", pa.string()), ("time", pa.timestamp("us", tz="UTC"))]
    schema = pa.schema(
        [*fields, *((f"x{at}{text}", pa.float64()) for at, text in enumerate(texts)), ("y", pa.float64())]
    )
    table = FixedTable(parts=[pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=schema)])

    file = written(table, tmp_path / f"x{FORMATS[name].suffixes[0]}", key="all")
    names, hosts, first, second = READERS[name](file)

    escaped = [one.replace("\0", "%00") if name in ("orc", "hdf5") else one for one in schema.names]
    expected = [f"'{text}" if name == "csv" and text[:1] in tuple("=+-@\t\r") and text else text for text in texts]
    if name == "hdf5":  # texts of a fixed length end before their last NUL
        expected = [text.rstrip("\0") for text in expected]
        assert of_frame(pd.read_hdf(file, "wide_all"))[:3] == (escaped, texts, [1.5] * len(texts))
    assert (names, hosts, first) == (escaped, expected, [1.5] * len(texts))
    assert all(map(math.isnan, second))
    assert os.listdir(tmp_path) == [file.name]


def test_texts_that_grow_while_a_table_is_written_keep_their_ends(tmp_path: Path) -> None:
    texts = ("a", "abc" * 9)
    parts = [table_of(text, rows=20_000).parts[0].rename_columns(["host", "time", "x", "y"]) for text in texts]

    file = written(FixedTable(parts=parts), tmp_path / "x.h5", key="1")

    with tables.open_file(file) as opened:
        found = opened.get_node("/wide_1/host").read()
    assert (found[19_999], found[20_000]) == (b"a", b"abc" * 9)


def test_csv_has_whole_numbers_as_such_and_times_with_their_zone(tmp_path: Path) -> None:
    path = recording(tmp_path / "r", samples({"host_disk_reads_total": [10**12, None], "host_load1": [0.1, 2]}))

    text = save(path, tmp_path / "x.csv", rates=False).read_text()

    assert text.splitlines() == [
        "host,time,host_load1,host_disk_reads_total",
        "n1,2025-11-21 04:40:00.000000Z,0.1,1000000000000",
        "n1,2025-11-21 04:40:01.000000Z,2,",
    ]


@pytest.mark.parametrize("name", READERS)
def test_a_failure_leaves_the_old_file_and_no_other(name: str, tmp_path: Path) -> None:
    class Failing(FixedTable, frozen=True, kw_only=True):
        def batches(self) -> Iterator[pa.RecordBatch]:
            yield self.parts[0]
            raise StorageError("the recording is gone")

    file = written(table_of("a"), tmp_path / f"x{FORMATS[name].suffixes[0]}", key="all")
    before = file.read_bytes()

    with pytest.raises(StorageError, match="gone"):
        write(Failing(parts=table_of("b").parts), file, key="other")

    assert (file.read_bytes(), os.listdir(tmp_path)) == (before, [file.name])


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    files = [written(table_of("a"), tmp_path / f"x{FORMATS[name].suffixes[0]}", key="all") for name in READERS]
    before = [file.read_bytes() for file in files]

    for file in files:
        with files_of_at_most(200_000), pytest.raises(StorageError, match=f"^cannot write {file}: File too large$"):
            write(noisy(), file, key="other")

    assert [file.read_bytes() for file in files] == before
    assert set(os.listdir(tmp_path)) == {file.name for file in files}


def noisy() -> FixedTable:
    """Return a table of a megabyte that does not compress."""
    values = np.random.default_rng(1).random((4, 32_768))
    names = ["a", "b", "c", "d"]
    return FixedTable(parts=[pa.RecordBatch.from_arrays(list(map(pa.array, values)), names=names)])


def test_a_writer_that_is_killed_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    code = """
import signal, sys
from fedmon.report.export import write
from tests.report.export.test_files import noisy
from tests.report.tables import FixedTable
class Endless(FixedTable, frozen=True, kw_only=True):
    def batches(self):
        yield self.parts[0]
        signal.raise_signal(signal.SIGKILL)
write(Endless(parts=noisy().parts), sys.argv[1], key="other")
"""
    for name in ("x.csv", "x.h5"):
        file = written(table_of("a"), tmp_path / name, key="all")
        before = file.read_bytes()

        done = subprocess.run([sys.executable, "-c", code, file], timeout=60)

        assert done.returncode == -signal.SIGKILL
        assert file.read_bytes() == before
        write(table_of("b"), file, key="next")  # and no lock is left
    assert set(os.listdir(tmp_path)) == {"x.csv", "x.h5"}


def test_what_cannot_be_written_is_said_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for path, why in (
        (tmp_path / "folder.csv", "it is a folder"),
        (tmp_path / "none" / "x.csv", "folder .* not found"),
        (Path("/dev/null/x.csv"), "folder .* not found"),
    ):
        with pytest.raises(InvalidInputError, match=why):
            write(table_of("a"), path)
    with pytest.raises(InvalidInputError, match="not a regular file"):
        write(table_of("a"), Path("/dev/null"), format="csv")

    class Unread(FixedTable, frozen=True, kw_only=True):
        def batches(self) -> Iterator[pa.RecordBatch]:
            raise AssertionError

    (tmp_path / "no.h5").write_text("text")
    with pytest.raises(StorageError, match="not a writable HDF5 file"):
        write(Unread(parts=table_of("a").parts), tmp_path / "no.h5")
    cut = written(table_of("a"), tmp_path / "cut.h5", key="1")
    os.truncate(cut, 3000)
    with pytest.raises(StorageError, match=r"cannot write .*cut\.h5: .*truncated"):
        write(table_of("b"), cut, key="2")


def test_a_file_that_is_replaced_keeps_its_rights_and_a_link_its_target(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("old")
    file.chmod(0o640)
    link = tmp_path / "link.csv"
    link.symlink_to(file)

    write(table_of("a"), link)

    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    assert read_csv(file)[1] == ["a", "a"]


def test_tables_of_several_jobs_lie_beside_each_other_in_one_hdf5_file(tmp_path: Path) -> None:
    file = tmp_path / "x.h5"

    for key in ("1", "2_7"):
        write(table_of(key, rows=40_000), file, key=key)
    write(table_of("1", name="tidy"), file, key="1")
    unchanged = file.stat().st_ino
    write(table_of("2_7", rows=40_000), file, key="2_7")

    with tables.open_file(file) as opened:
        assert {node._v_name for node in opened.root} == {"wide_1", "wide_2_7", "tidy_1"}
        assert len(opened.get_node("/wide_1/y")) == 40_000
        assert set(opened.get_node("/wide_2_7/host").read()) == {b"2_7"}
    assert file.stat().st_ino == unchanged


def test_an_hdf5_file_is_of_use_to_earlier_versions_and_theirs_to_this(tmp_path: Path) -> None:
    rows = range(20_000)
    columns: dict[str, list[Any]] = {
        "host": [f"n{at // 7000}" if at % 5 else None for at in rows],
        "time": [datetime.fromtimestamp(at, UTC) if at != 3 else None for at in rows],
        "x\0": [at / 7 if at % 3 else None for at in rows],
    }
    types = [pa.string(), pa.timestamp("us", tz="UTC"), pa.float64()]
    whole = pa.RecordBatch.from_pydict(columns, pa.schema(list(zip(columns, types, strict=True))))
    table = FixedTable(parts=[whole.slice(at, 3000) for at in range(0, len(rows), 3000)])

    file = written(table, tmp_path / "x.h5", key="1")

    of_earlier_versions = "e1d1bfc9193bdf37e1974f9fce3dd2b9e1df54aa718bc061fc666ec273d3c3df"
    with tables.open_file(file) as opened:
        assert opened.get_node("/wide_1")._v_attrs["digest"] == of_earlier_versions
    assert b"numpy._core" not in file.read_bytes()  # numpy 1 lacks it


def test_pandas_reads_every_table_of_an_hdf5_file_as_it_was_written(tmp_path: Path) -> None:
    columns: dict[str, list[float | None]] = {
        "host_load1": [at / 7 if at % 3 else None for at in range(20_000)],
        "axis0": [1.0] * 20_000,  # names of pandas' own
        "block0_values": [2.0] * 20_000,
    }
    documents: dict[str, dict[str, Any]] = {
        "n1": {"hostname": "n1", "labels": {"env": "gcc"}},
        "n2": {"hostname": "n2"},
    }
    path = recording(tmp_path / "r", *(samples(columns, node=node) for node in documents), documents=documents)

    with Source([path]) as source:
        found: list[WideTable] = [WideTable(source), WideTable(source, metrics=["no such"]), TidyTable(source)]
        found[1].name = "empty"
        for table in found:
            write(table, tmp_path / "x.h5", key="all")
        written = [pd.concat([pd.DataFrame(), *(each.to_pandas() for each in table.batches())]) for table in found]

    for table, expected in zip(found, written, strict=True):
        frame = pd.read_hdf(tmp_path / "x.h5", f"{table.name}_all")
        assert isinstance(frame, pd.DataFrame)
        assert list(frame.columns) == table.schema.names
        assert len(frame) == len(expected)
        for name in expected:
            pd.testing.assert_series_equal(
                frame[name], expected[name].reset_index(drop=True), check_dtype=False, check_index_type=False
            )
        assert str(frame["time"].dtype) == "datetime64[ns, UTC]"


def test_another_table_under_the_same_key_needs_a_word(tmp_path: Path) -> None:
    file = written(table_of("a"), tmp_path / "x.h5", key="1")

    with pytest.raises(ConflictError, match="wide_1"):
        write(table_of("a", rows=3), file, key="1")
    with pytest.raises(ConflictError, match="wide_1"):
        write(table_of("b"), file, key="1")
    write(table_of("b"), file, key="1", replace=True)

    with tables.open_file(file) as opened:
        assert set(opened.get_node("/wide_1/host").read()) == {b"b"}


def test_writers_of_one_hdf5_file_wait_for_each_other(tmp_path: Path) -> None:
    file = tmp_path / "x.h5"
    keys = [str(number) for number in range(8)]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: write(table_of(key), file, key=key), keys))

    with tables.open_file(file) as opened:
        assert {node._v_name for node in opened.root} == {f"wide_{key}" for key in keys}
    assert os.listdir(tmp_path) == ["x.h5"]
