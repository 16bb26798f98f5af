"""The recorder loses nothing that it can keep, never waits for the disk, and accounts for every sample."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.clock import Deadline
from fedmon.common.errors import StorageError
from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from fedmon.node.measure.recorder import BUFFERED, DROPPED_BOUND, DROPPED_FULL, FILE_BYTES, RECORDED, Recorder
from tests.common.store.recordings import NODE, batch, flat, seqs
from tests.support.databases import locked
from tests.support.full_disk import files_of_at_most
from tests.support.waiting import wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recording.sqlite"


@contextmanager
def running(path: Path, **more: Any) -> Iterator[Recorder]:
    recorder = Recorder(path, node_id=NODE, **more)
    recorder.start()
    try:
        yield recorder
    finally:
        assert recorder.stop(60.0)


def everything(recorder: Recorder, *, boot: int = 1, first: int = 0, last: int = 10**9) -> list[Batch]:
    return list(recorder.samples("host", boot, first, last, wanted=lambda _series: True))


def test_what_is_kept_can_be_read_at_once_and_after_a_restart(path: Path) -> None:
    with running(path) as recorder:
        recorder.keep(batch(0))
        recorder.keep(batch(10, 3))
        wait_until(lambda: recorder.counts()[RECORDED] == 10 or recorder.counts()[RECORDED] == 13)

        assert flat(everything(recorder)) == flat([batch(0, 13)])
        assert [(one.boot, one.oldest_seq, one.last_seq) for one in recorder.extents()] == [(1, 0, 12)]
    with running(path) as recorder:
        wait_until(lambda: recorder.ready)
        recorder.keep(batch(0, 4, boot=2))

        assert [(one.boot, one.last_seq) for one in recorder.extents()] == [(2, 3), (1, 12)]
        assert flat(everything(recorder)) == flat([batch(0, 13)])
        assert seqs(everything(recorder, boot=2)) == [0, 1, 2, 3]


def test_a_recording_of_one_sample_of_a_large_machine_takes_64_kib_at_most(path: Path) -> None:
    series = [f'host_interrupts_total{{cpu="{number}",device="eth{number % 8}"}}' for number in range(400)]
    known = {f"{key} of a large machine": "not found: /sys/devices/system/node/x" for key in series}
    columns: dict[str, list[float | None]] = {key: [number * 1001] for number, key in enumerate(series)}
    with running(path) as recorder:
        recorder.keep(Batch(node_id=NODE, boot=1, stream="host", seq=0, t=[1.5], mono=[1.5], columns=columns))
    with Recording(path) as recording:
        recording.describe(NODE, 1, {"capabilities": known})
        recording.mark(NODE, 1, "host", 1.5, "the run ended")

    with Recording(path, read_only=True) as recording:
        assert [one.document for one in recording.descriptions()] == [{"capabilities": known}]
        assert recording.size_bytes() <= 65_536


def test_samples_that_come_one_by_one_share_a_row_and_are_stored_at_the_end(path: Path) -> None:
    with running(path) as recorder:
        wait_until(lambda: recorder.ready)
        for seq in range(25):
            recorder.keep(batch(seq, 1))
        assert seqs(everything(recorder, first=3, last=22)) == list(range(3, 23))

    with Recording(path, read_only=True) as recording:
        assert [len(one.t) for one in recording.read()] <= [25]
        assert flat(recording.read()) == flat([batch(0, 25)])


def test_on_a_full_disk_samples_wait_then_drop_and_all_are_accounted_for(path: Path) -> None:
    produced = 0

    def adds_up() -> bool:
        counts = recorder.counts()
        return produced == sum(counts[name] or 0 for name in (RECORDED, DROPPED_FULL, BUFFERED))

    with running(path, buffer_bytes=40_000) as recorder:
        wait_until(lambda: recorder.ready)
        with files_of_at_most(200_000):
            while not recorder.counts()[DROPPED_FULL]:
                recorder.keep(batch(produced))
                produced += 10
                assert adds_up()
                if produced % 100 == 0:
                    wait_until(lambda: recorder.problem or not recorder.counts()[BUFFERED])
            problem, counts = recorder.problem, recorder.counts()
            assert len(seqs(everything(recorder))) == (counts[RECORDED] or 0) + (counts[BUFFERED] or 0)
        wait_until(lambda: not recorder.counts()[BUFFERED])
        recorder.keep(batch(produced))
        produced += 10

    assert "cannot write" in problem
    assert (adds_up(), recorder.counts()[BUFFERED], recorder.problem) == (True, 0, "")
    with Recording(path, read_only=True) as recording:
        kept = seqs(recording.read())
    assert (len(kept), kept[-1]) == (recorder.counts()[RECORDED], produced - 1)


def test_samples_on_their_way_to_the_disk_take_room_in_memory_as_those_that_wait(path: Path, tmp_path: Path) -> None:
    waiting = Recorder(tmp_path / "never started", node_id=NODE, buffer_bytes=60_000)
    for first in range(0, 1000, 10):
        waiting.keep(batch(first))
    firsts, buffered = itertools.count(0, 10), set[float | None]()
    with running(path, buffer_bytes=60_000) as recorder:
        wait_until(lambda: recorder.ready)

        def keep() -> str:
            recorder.keep(batch(next(firsts)))
            buffered.add(recorder.counts()[BUFFERED])
            return recorder.problem

        with locked(path):
            wait_until(keep, what="the end of the first attempt to store")

    assert max(filter(None, buffered)) == waiting.counts()[BUFFERED]


def test_keeping_never_waits_for_the_disk(path: Path) -> None:
    with running(path) as recorder:
        wait_until(lambda: recorder.ready)
        with locked(path):
            began = Deadline(60)
            for first in range(0, 3000, 10):
                recorder.keep(batch(first))
            recorder.extents()
            recorder.counts()
            taken_s = began.elapsed_s()

    assert taken_s < 4.5  # a wait for the lock lasts 5 s
    with Recording(path, read_only=True) as recording:
        assert seqs(recording.read()) == list(range(3000))


def test_bounds_hold_and_what_they_drop_is_counted(path: Path) -> None:
    with running(path, max_age_s=100) as recorder:
        for first in range(0, 500, 10):
            recorder.keep(batch(first))
        wait_until(lambda: recorder.counts()[RECORDED] == 500)
        wait_until(lambda: (recorder.counts()[DROPPED_BOUND] or 0) == recorder.extents()[0].oldest_seq > 300)

        assert (recorder.counts()[FILE_BYTES] or 0) > 0
        recorder.set_bounds(max_bytes=None, max_age_s=20)
        wait_until(lambda: recorder.extents()[0].oldest_seq >= 420)


def set_aside(path: Path) -> list[Path]:
    return [one for one in path.parent.iterdir() if ".damaged-" in one.name]


@pytest.mark.parametrize("damage", ["overwritten", "truncated"])
def test_a_file_damaged_while_it_is_open_is_set_aside_when_that_shows(
    path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Recording(path) as recording:
        recording.append(batch(first) for first in range(0, 3000, 10))
    with caplog.at_level(logging.ERROR), running(path) as recorder:
        wait_until(lambda: recorder.ready)
        with path.open("r+b") as file:
            size = path.stat().st_size
            file.truncate(0)
            file.write(b"\xff" * size if damage == "overwritten" else b"")
        with pytest.raises(StorageError):
            everything(recorder)
        wait_until(lambda: "samples wait in memory" in caplog.text)
        recorder.keep(batch(3000))
        wait_until(lambda: recorder.counts()[RECORDED] == 10)

        assert seqs(everything(recorder)) == list(range(3000, 3010))
        wait_until(lambda: not recorder.problem)

    # Of an empty file there is nothing to set aside; its log may say that there was more, or be gone, too.
    assert damage == "truncated" or set_aside(path)


def test_damage_is_looked_for_while_nothing_is_read_or_stored(path: Path) -> None:
    with Recording(path) as recording:
        recording.append(batch(first) for first in range(0, 3000, 10))
    with running(path, check_every_s=0.05) as recorder:
        wait_until(lambda: recorder.ready)
        with path.open("r+b") as file:
            file.write(b"\xff" * path.stat().st_size)

        wait_until(lambda: set_aside(path))


def test_a_file_that_was_moved_away_is_begun_anew(path: Path) -> None:
    with running(path) as recorder:
        recorder.keep(batch(0))
        wait_until(lambda: recorder.counts()[RECORDED] == 10)
        path.rename(path.with_name("elsewhere"))
        recorder.keep(batch(10))
        wait_until(lambda: recorder.counts()[RECORDED] == 20)

        assert seqs(everything(recorder)) == list(range(10, 20))

    with Recording(path, read_only=True) as recording:
        assert seqs(recording.read()) == list(range(10, 20))


def test_a_file_that_was_moved_away_is_no_foreign_one(path: Path) -> None:
    with running(path, check_every_s=0.05) as recorder:
        wait_until(lambda: recorder.ready)
        path.rename(path.with_name("elsewhere"))

        assert str(path) in wait_until(lambda: recorder.problem)
        assert recorder.foreign == ""


def test_many_threads_may_keep_and_ask_at_once(path: Path) -> None:
    with running(path) as recorder:

        def produce(stream: str) -> None:
            for first in range(0, 500, 10):
                recorder.keep(batch(first, stream=stream))
                recorder.extents()

        with ThreadPoolExecutor(4, initializer=threading.Barrier(4).wait) as threads:
            list(threads.map(produce, [f"job-{number}" for number in range(4)]))
        wait_until(lambda: recorder.counts()[RECORDED] == 2000)

        assert {(one.stream, one.oldest_seq, one.last_seq) for one in recorder.extents()} == {
            (f"job-{number}", 0, 499) for number in range(4)
        }
