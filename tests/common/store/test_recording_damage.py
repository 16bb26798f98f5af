"""What a recording does with files that it cannot use, and with a disk that is full."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedmon.common.errors import StorageError
from fedmon.common.store.damage import is_damaged
from fedmon.common.store.recording import Recording
from fedmon.common.store.recording_compaction import RecordingJoin
from tests.common.store.recordings import NODE, STREAM, batch, flat, missing, seqs
from tests.support.compaction import compact
from tests.support.databases import execute, locked
from tests.support.full_disk import files_of_at_most
from tests.support.waiting import stays

DAMAGE = "UPDATE batch SET body = zeroblob(length(body))"


def filled(path: Path, samples: int = 2000) -> None:
    with Recording(path) as recording:
        for first in range(0, samples, 10):
            recording.append([batch(first)])


def overwrite(path: Path) -> None:
    """Damage 32 KiB near the end of a file."""
    content = bytearray(path.read_bytes())
    pages = len(content) // 16_384
    content[16_384 * (pages - 3) : 16_384 * (pages - 1)] = b"\xff" * (2 * 16_384)
    path.write_bytes(content)


def test_a_recording_of_a_newer_version_is_refused_with_both_versions_and_not_touched(path: Path) -> None:
    filled(path, 10)
    execute(path, "PRAGMA user_version = 7")
    before = path.read_bytes()

    for read_only in (False, True):
        with pytest.raises(StorageError, match=r"has version 7 and this fedmon knows up to 1: upgrade fedmon"):
            Recording(path, read_only=read_only)

    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir() if "damaged" in one.name] == []


def test_a_database_of_others_is_refused_and_not_touched(path: Path) -> None:
    execute(path, "CREATE TABLE mine (value)")
    before = path.read_bytes()

    for read_only in (False, True):
        with pytest.raises(StorageError, match="is a database but no recording"):
            Recording(path, read_only=read_only)

    assert path.read_bytes() == before


def test_a_file_of_others_is_refused_and_neither_moved_nor_changed(tmp_path: Path) -> None:
    path = tmp_path / "plan.py"
    path.write_text("# no database\n" * 500)
    path.chmod(0o644)

    with pytest.raises(StorageError, match=r"plan\.py: it is no database, so no recording: move it away or"):
        Recording(path)

    assert [one.name for one in tmp_path.iterdir()] == ["plan.py"]
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("# no database\n" * 500, 0o644)


@pytest.mark.parametrize("damage", ["garbage", "truncated", "other tables"])
def test_a_damaged_file_is_set_aside_and_reported_and_recording_goes_on(
    path: Path, caplog: pytest.LogCaptureFixture, *, damage: str
) -> None:
    filled(path)
    if damage == "other tables":
        execute(path, "DROP TABLE batch", "DROP TABLE source", "CREATE TABLE source (id)", "VACUUM")
        execute(path, "INSERT INTO source VALUES (1)")
    else:
        path.write_bytes(
            b"this is no database at all " * 2000 if damage == "garbage" else path.read_bytes()[: 16_384 * 5 + 100]
        )
    content = path.read_bytes()

    if damage == "garbage":
        with pytest.raises(StorageError, match="cannot read the recording"):
            Recording(path, read_only=True)
    with caplog.at_level(logging.WARNING), Recording(path) as recording:
        assert recording.append([batch(5000)]) == 10
        aside = recording.aside

    assert aside is not None
    assert aside.read_bytes() == content
    assert str(aside) in caplog.text
    assert ("cannot read any part of" in caplog.text) == (damage == "other tables")


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_what_can_be_read_of_a_damaged_file_is_taken_over(path: Path, *, is_cut_off: bool) -> None:
    filled(path)
    if is_cut_off:
        os.truncate(path, path.stat().st_size * 9 // 10)
    else:
        overwrite(path)

    with Recording(path) as recording:
        assert recording.aside is not None
        kept = seqs(recording.read())
        gaps = missing(recording, 0, 1999)
        assert recording.append([batch(2000)]) == 10

        assert len(kept) >= 500
        absent = sum(last - first + 1 for first, last in gaps)
        assert absent <= 2000 - len(kept) <= absent + 10 * is_cut_off  # a row may be cut off itself
        whole = {one[3]: one for one in flat([batch(0, 2000)])}
        assert all(whole[one[3]] == one for one in flat(recording.read(last_seq=1999)))


def test_a_damaged_row_costs_no_other_and_is_given_up_when_rows_are_merged(path: Path) -> None:
    filled(path, 700)
    execute(path, f"{DAMAGE} WHERE first_seq = 300")

    with Recording(path) as recording:
        expected = [seq for seq in range(700) if not 300 <= seq < 310]
        assert seqs(recording.read()) == expected
        compact(recording)

        assert seqs(recording.read()) == expected
        assert recording.counts()["damaged"] == 10
        assert [(one.first_seq, one.reason) for one in recording.lost(NODE, 1, STREAM)] == [(300, "damaged")]


def test_a_join_leaves_damaged_rows_out_and_keeps_the_counts_of_lost_samples(path: Path) -> None:
    damaged = path.with_name("damaged.sqlite")
    filled(damaged, 100)
    execute(damaged, f"{DAMAGE} WHERE first_seq = 30", "INSERT INTO number VALUES ('dropped_by_age', 7)")

    with RecordingJoin(path) as join:
        assert join.add(damaged, check=True) == 90
        join.finish()

    with Recording(path, read_only=True) as recording:
        assert missing(recording, 0, 99) == [(30, 39)]
        assert recording.counts() == {"dropped_by_size": 0, "dropped_by_age": 7, "damaged": 0}


def test_the_series_of_a_long_stream_are_those_of_all_its_sound_rows(path: Path) -> None:
    with Recording(path) as recording:  # rows of one sample, as there are gaps
        recording.append([batch(seq, 1) for seq in range(2, 1200, 2)])
        recording.append([msgspec.structs.replace(batch(5000, 1), columns={"late": [1.0]})])
    execute(path, f"{DAMAGE} WHERE first_seq = 4")

    with Recording(path, read_only=True) as recording:
        assert list(recording.rows.series((NODE, STREAM, 1))) == [*batch(0, 1).columns, "late"]
        assert recording.rows.before((NODE, STREAM, 1), 2) is None


def test_a_file_that_cannot_be_looked_at_is_not_taken_for_damaged(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"cannot read {tmp_path}: unable to open database file"):
        is_damaged(tmp_path)


@pytest.mark.parametrize(
    ("rows", "doubled"), [([(0, 600), (600, 10)], (590, 10)), ([(0, 10), (10, 20)], (20, 10))], ids=["before", "behind"]
)
def test_a_row_that_holds_samples_of_another_costs_none_when_rows_are_merged(
    path: Path, rows: list[tuple[int, int]], doubled: tuple[int, int]
) -> None:
    other = path.with_name("other.sqlite")
    with Recording(path) as recording, Recording(other) as stale:
        for first, length in rows:
            recording.append([batch(first, length)])
        stale.append([batch(*doubled)])
    execute(other, "UPDATE batch SET id = 100")
    execute(path, f"ATTACH '{other}' AS other", "INSERT INTO batch SELECT * FROM other.batch")

    with Recording(path) as recording:
        compact(recording)

        assert flat(recording.read()) == flat([batch(0, sum(length for _, length in rows))])
        assert recording.counts()["damaged"] == 0


def test_rows_of_which_nobody_knows_the_stream_are_not_taken_over_as_another_streams(path: Path) -> None:
    filled(path)
    execute(path, "DELETE FROM source")
    overwrite(path)

    with Recording(path) as recording:
        assert recording.aside is not None
        recording.append([batch(5000, node="another")])

        assert seqs(recording.read()) == list(range(5000, 5010))


def test_what_was_rescued_stays_older_than_what_is_new(path: Path) -> None:
    now = [0.0]
    with Recording(path, monotonic=lambda: now[0]) as recording:
        recording.append([batch(0)])
        now[0] = 1e6
        for first in range(10, 2000, 10):
            recording.append([batch(first)])
    execute(path, "DELETE FROM number")
    overwrite(path)

    now[0] = 5.0
    with Recording(path, max_age_s=50, monotonic=lambda: now[0]) as recording:
        assert len(seqs(recording.read())) > 500
        now[0] = 105.0
        recording.append([batch(0, boot=2)])

        assert {one.boot for one in recording.read()} == {2}


def test_two_that_make_the_same_recording_at_once_both_record(path: Path) -> None:
    def record(node: str) -> None:
        with Recording(path) as recording:
            recording.append([batch(0, node=node)])

    execute(path, "PRAGMA journal_mode = WAL")
    with ThreadPoolExecutor(2) as pool:
        with locked(path):
            recording = [pool.submit(record, node) for node in "ab"]
            assert stays(lambda: not any(one.done() for one in recording), 0.3)
        for one in recording:
            one.result(60)

    with Recording(path, read_only=True) as both:
        assert [stream.node_id for stream in both.extents()] == ["a", "b"]
    assert not [one for one in path.parent.iterdir() if ".damaged-" in one.name]


def test_a_recording_that_another_makes_during_the_first_look_is_not_taken_for_a_database_of_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    looks: list[str] = []

    def make(statement: str) -> None:
        if "user_version" in statement and not looks:  # the look has read the mark of ours before, and there was none
            looks.append(statement)
            with Recording(path) as other:
                other.append([batch(0)])

    def connected(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.set_trace_callback(make)
        return connection

    execute(path, "PRAGMA journal_mode = WAL")
    monkeypatch.setattr(sqlite3, "connect", connected)
    with Recording(path) as recording:
        recording.append([batch(10)])
        assert seqs(recording.read()) == list(range(20))
    assert looks


def test_a_symbolic_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StorageError, match="symbolic link"):
        Recording(path)

    assert not (tmp_path / "elsewhere").exists()


def test_on_a_full_disk_nothing_is_half_written_and_with_space_it_goes_on(path: Path) -> None:
    stored: list[int] = []

    def fill() -> None:
        while True:
            recording.append([batch(len(stored)), batch(len(stored), node="b")])
            stored.extend(range(len(stored), len(stored) + 10))

    with Recording(path) as recording:
        with files_of_at_most(200_000):
            with pytest.raises(StorageError, match=f"cannot write the recording {path}"):
                fill()
            first = len(stored)
            assert first > 100
            assert seqs(recording.read("a")) == seqs(recording.read("b")) == stored
            assert missing(recording, 0, first + 9) == [(first, first + 9)]

        assert recording.append([batch(first), batch(first, node="b")]) == 20
        assert seqs(recording.read("b")) == list(range(first + 10))


CUT_OFF = """
    import os, sqlite3, sys
    connection = sqlite3.connect(sys.argv[1], isolation_level=None)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN")
    connection.execute("DELETE FROM batch")
    connection.execute("CREATE TABLE filler (body BLOB)")
    for _ in range(50):
        connection.execute("INSERT INTO filler VALUES (randomblob(4000))")
    os._exit(9)
"""


@pytest.mark.parametrize("read_only", [True, False])
def test_a_recording_without_a_log_whose_writer_was_killed_has_what_was_committed(path: Path, read_only: bool) -> None:
    filled(path, 100)
    subprocess.run([sys.executable, "-c", textwrap.dedent(CUT_OFF), path], check=False, timeout=60)
    assert path.with_name(path.name + "-journal").stat().st_size > 0

    with Recording(path, read_only=read_only) as recording:
        assert seqs(recording.read(NODE)) == list(range(100))
        assert recording.aside is None
