"""What goes into a recording comes out of it: once, in order, and the same."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fedmon.common.errors import StorageError
from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from fedmon.common.store.recording_file import LARGEST
from fedmon.common.store.recording_reader import chooser
from tests.common.store.recordings import NODE, STREAM, T0, batch, flat, missing, seqs
from tests.support.compaction import compact
from tests.support.rights import as_nobody


def test_samples_come_back_as_they_were_and_the_file_is_private(path: Path) -> None:
    given = [batch(0), batch(10), batch(0, stream="user"), batch(0, boot=2), batch(0, node="b")]

    with Recording(path) as recording:
        assert recording.append(given) == 50
    with Recording(path, read_only=True) as recording:
        found = list(recording.read())

    assert flat(found) == flat([given[0], given[1], given[3], given[2], given[4]])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_recording_is_read_in_a_folder_where_its_reader_may_not_write() -> None:
    with tempfile.TemporaryDirectory() as folder:  # those of pytest are closed to other users
        path = Path(folder, "shared.fmr")
        with Recording(path) as recording:
            recording.append([batch(0)])
        path.chmod(0o444)
        path.parent.chmod(0o555)

        with as_nobody(), Recording(path, read_only=True) as recording:
            assert seqs(recording.read()) == list(range(10))
        path.chmod(0)
        with as_nobody(), pytest.raises(StorageError, match="you may not read it"):
            Recording(path, read_only=True)


def test_pieces_in_any_order_and_overlapping_are_read_in_order_without_a_double(path: Path) -> None:
    chance = random.Random(7)
    pieces = [batch(first, chance.randrange(1, 25)) for first in range(0, 400, 10)] * 2
    chance.shuffle(pieces)
    expected = sorted({seq for piece in pieces for seq in range(piece.seq, piece.last_seq + 1)})

    with Recording(path) as recording:
        stored = sum(recording.append([piece]) for piece in pieces)
        before = flat(recording.read())
        compact(recording)
        after = flat(recording.read())

    assert stored == len(expected)
    assert [one[3] for one in before] == expected
    assert after == before


def test_merging_rows_changes_no_sample_and_takes_less_room(path: Path) -> None:
    with Recording(path) as recording:
        for first in range(0, 3000, 10):
            recording.append([batch(first)])
        before, size = flat(recording.read()), recording.size_bytes()

        compact(recording)

        assert flat(recording.read()) == before
        assert len(list(recording.read())) == 5
        assert len(list(recording.read())) * 600 == 3000
    assert path.stat().st_size <= size


def test_reasons_stay_with_their_nulls_when_rows_are_merged(path: Path) -> None:
    def hot(seq: int, value: float | None, reasons: dict[str, str]) -> Batch:
        return msgspec.structs.replace(batch(seq, 2), columns={"x": [value, value], "y": [1.0, None]}, reasons=reasons)

    given = [
        hot(0, None, {"x": "failed: gone"}),
        hot(2, None, {}),
        hot(4, 1.0, {}),
        hot(6, None, {"x": "failed: gone", "y": "failed: too"}),
        hot(8, None, {"x": "no permission: now"}),
    ]
    with Recording(path) as recording:
        for one in given:
            recording.append([one])
        compact(recording)

        assert flat(recording.read()) == flat(given)


def test_parts_can_be_read_by_number_time_boot_stream_and_metric(path: Path) -> None:
    with Recording(path) as recording:
        recording.append([batch(0, 700), batch(0, 5, boot=2), batch(0, 5, stream="job-1")])
        compact(recording)

        assert seqs(recording.read(boot=1, stream=STREAM, first_seq=598, last_seq=601)) == [598, 599, 600, 601]
        assert seqs(recording.read(NODE, 1, STREAM, since_t=T0 + 697)) == [697, 698, 699]
        assert seqs(recording.read(boot=2)) == [0, 1, 2, 3, 4]
        assert {one.stream for one in recording.read(stream="job-1")} == {"job-1"}
        assert seqs(recording.read("nobody")) == []
        (disk,) = recording.read(boot=2, series=chooser(["host_disk_*"]))
        assert list(disk.columns) == ['host_disk_read_bytes_total{device="sda"}']


def test_extents_and_gaps_tell_what_is_there(path: Path) -> None:
    with Recording(path) as recording:
        recording.append([batch(10), batch(40), batch(0, boot=2)])

        first, second = recording.extents()
        gaps = missing(recording, 0, 60)

        assert (first.ranges, first.oldest_seq, first.last_seq, first.samples) == (((10, 19), (40, 49)), 10, 49, 20)
        assert (first.oldest_t, first.last_t) == (T0 + 10, T0 + 49)
        assert (second.boot, second.samples) == (2, 10)
        assert gaps == [(0, 9), (20, 39), (50, 60)]
        assert missing(recording, 3, 4, of=("c", 1, STREAM)) == [(3, 4)]


def test_what_is_declared_lost_is_not_missing_and_may_come_after_all(path: Path) -> None:
    with Recording(path) as recording:
        recording.append([batch(0), batch(30)])
        recording.set_all_lost([((NODE, STREAM, 1), 5, 24, "the node kept them no longer")])

        assert missing(recording, 0, 39) == [(25, 29)]
        recording.append([batch(12, 3)])

    with Recording(path, read_only=True) as recording:
        lost = [(one.first_seq, one.last_seq, one.reason) for one in recording.lost(NODE, 1, STREAM)]
        assert lost == [(10, 11, "the node kept them no longer"), (15, 24, "the node kept them no longer")]
        assert missing(recording, 0, 39) == [(25, 29)]


def test_losses_beyond_the_highest_number_of_a_sample_keep_nothing_else_from_being_stored(path: Path) -> None:
    with Recording(path) as recording:
        begins = {1: 5, 2: LARGEST + 1}
        recording.set_all_lost(((NODE, STREAM, boot), first, LARGEST + 4, "gone") for boot, first in begins.items())
        recording.append([batch(0, 3)])

        lost = [[(one.first_seq, one.last_seq) for one in recording.lost(NODE, boot, STREAM)] for boot in (1, 2)]
    assert lost == [[(5, LARGEST)], []]


def test_descriptions_and_marks_are_kept_beside_the_samples(path: Path) -> None:
    with Recording(path) as recording:
        recording.describe(NODE, 1, {"cpu": "first"})
        recording.describe(NODE, 1, {"cpu": "second", "cores": 2})
        recording.mark(NODE, 1, STREAM, T0 + 1, "training began")

    with Recording(path, read_only=True) as recording:
        (known,), (mark,) = recording.descriptions(), recording.marks()
    assert (known.boot, known.document) == (1, {"cpu": "second", "cores": 2})
    assert (mark.t, mark.text, mark.stream) == (T0 + 1, "training began", STREAM)


def test_what_a_block_adds_is_stored_whole_or_not_at_all(path: Path) -> None:
    with Recording(path) as recording:
        with contextlib.suppress(KeyboardInterrupt), recording.changing():
            recording.append([batch(0)])
            recording.describe(NODE, 1, {"cpu": "first"})
            raise KeyboardInterrupt

        assert (missing(recording, 0, 9), recording.descriptions()) == ([(0, 9)], [])

        with recording.changing():
            recording.append([batch(0)])
            recording.describe(NODE, 1, {"cpu": "second"})

    with Recording(path, read_only=True) as recording:
        assert seqs(recording.read(NODE)) == list(range(10))
        assert [one.document for one in recording.descriptions()] == [{"cpu": "second"}]


def test_a_reader_sees_what_a_writer_adds_and_merges(path: Path) -> None:
    with Recording(path) as writer, Recording(path, read_only=True) as reader:
        for start in range(0, 600, 10):
            writer.append([batch(start)])
        found = reader.read()
        first = next(found)
        for start in range(600, 3000, 10):
            writer.append([batch(start)])
        compact(writer)

        assert seqs([first, *found]) == list(range(3000))
        assert reader.extents()[0].last_seq == 2999
        with pytest.raises(StorageError, match="reading only"):
            reader.append([batch(0)])


def test_a_writer_that_came_while_a_closed_recording_was_read_is_held_up_by_no_later_reader(path: Path) -> None:
    @contextlib.contextmanager
    def reading() -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM batch").fetchone()[0]
            yield

    with Recording(path) as recording:
        recording.append([batch(0)])
    with reading():
        writer = Recording(path)

    with writer:
        writer.append([batch(10)])
        with reading():
            writer.append([batch(20)])
        assert seqs(writer.read()) == list(range(30))


def test_two_writers_store_no_sample_twice(path: Path) -> None:
    with Recording(path) as one, Recording(path) as other:
        one.append([batch(0)])
        assert other.append([batch(0, 15)]) == 5
        assert one.append([batch(0, 20)]) == 5
        compact(other)
        assert one.append([batch(0, 30)]) == 10

        assert flat(one.read()) == flat([batch(0, 30)])


def test_what_cannot_be_stored_keeps_nothing_else_from_it(path: Path) -> None:
    beyond = batch(2**63 - 5, 10)

    with Recording(path) as recording:
        assert recording.append([beyond, batch(0, 0), batch(20)]) == 10
        assert flat(recording.read()) == flat([batch(20)])


def test_reading_what_is_not_there_names_it(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"recording .*absent.* not found"):
        Recording(tmp_path / "absent.sqlite", read_only=True)
    with pytest.raises(StorageError, match="No such file"):
        Recording(tmp_path / "no-folder" / "x.sqlite")
