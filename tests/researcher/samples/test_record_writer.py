"""The thread that writes a store: bounded while it cannot, and complete when it ends."""

from __future__ import annotations

from pathlib import Path

from fedmon.common.store.recording import Recording
from fedmon.researcher.samples.record import QUEUE_BYTES, RecordWriter
from fedmon.researcher.samples.resend import MissingSamples
from tests.researcher.samples.test_follower import batch
from tests.support.databases import locked
from tests.support.waiting import wait_until

MIB = 1024 * 1024


def test_while_nothing_can_be_written_what_waits_is_bounded_and_then_there_is_room_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    writer = RecordWriter(path)
    writer.open()
    taken = 0

    with locked(path):
        while writer.has_room():
            writer.put(batch(taken), size_bytes=MIB, late=taken % 2 == 0)
            taken += 1
        stored_before = writer.stored
    wait_until(lambda: writer.has_room(0.5))
    stored_then, ended = writer.stored, writer.stop()

    assert (taken, stored_before) == (QUEUE_BYTES // MIB + 1, 0)
    assert (ended, writer.stored, writer.late, writer.repeated) == (True, taken, (taken + 1) // 2, 0)
    assert stored_then >= taken // 2
    with Recording(path, read_only=True) as recording:
        assert [(one.oldest_seq, one.last_seq) for one in recording.extents()] == [(0, taken - 1)]


def test_what_was_put_is_written_at_the_end_and_what_comes_twice_is_left_out(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "store")
    assert writer.open() == []
    for seq in (0, 1, 1, 2):
        writer.put(batch(seq), size_bytes=10, late=False)
    writer.describe("a", 1, {"hardware": {"cores": 4}})

    ended = writer.stop()
    writer.put(batch(3), size_bytes=10, late=False)

    assert (ended, writer.stored, writer.repeated) == (True, 3, 1)
    assert writer.positions == {("a", "host"): (1, 2, 102.0)}
    again = RecordWriter(tmp_path / "store")
    (found,) = again.open()
    assert (found.last_seq, again.positions) == (2, writer.positions)
    assert again.stop()


def test_a_store_that_was_moved_away_while_it_is_written_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "store"
    writer = RecordWriter(path)
    writer.open()
    writer.put(batch(0), size_bytes=10, late=False)
    wait_until(lambda: writer.stored == 1)
    path.rename(tmp_path / "elsewhere")
    writer.put(batch(1), size_bytes=10, late=False)
    wait_until(lambda: writer.stored == 2)

    assert writer.stop()
    assert "was moved, removed or replaced" in writer.last_error
    with Recording(path, read_only=True) as recording:
        assert [(one.oldest_seq, one.last_seq) for one in recording.extents()] == [(1, 1)]


def test_word_of_very_many_losses_is_bounded_too(tmp_path: Path) -> None:
    path = tmp_path / "store"
    writer = RecordWriter(path)
    writer.open()
    told = 0

    with locked(path):
        while writer.has_room() and told < 100_000:
            want = MissingSamples(node_id="a", boot=1, stream="host", first_seq=2 * told, last_seq=2 * told)
            writer.lose(want, "gone")
            told += 1

    assert told < 100_000
    assert writer.stop()
    with Recording(path, read_only=True) as recording:
        assert len(recording.lost("a", 1, "host")) == told
