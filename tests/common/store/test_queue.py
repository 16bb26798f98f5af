"""The durable queue: order, bounds, ownership, damage, full disks."""

from __future__ import annotations

import pickle
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.common.errors import StorageError
from fedmon.common.store.queue import MAX_SEEN, TasksQueue, TasksQueueError
from tests.support.databases import execute
from tests.support.full_disk import files_of_at_most


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "queue"


@pytest.fixture
def queue(folder: Path) -> Iterator[TasksQueue]:
    with TasksQueue(folder) as opened:
        yield opened


def numbers(queue: TasksQueue) -> list[int]:
    return [document["n"] for _, document, _ in queue.pending()]


def test_documents_noted_as_handed_over_are_pending_and_marked(folder: Path) -> None:
    with TasksQueue(folder) as queue:
        keys = queue.add_many([{"n": 0}, {"n": 1}, {"n": 2}])
        queue.mark_handed(keys[:2])
        queue.discard(keys[:1])
    with TasksQueue(folder) as queue:
        pending = queue.pending()

    assert pending == [(keys[1], {"n": 1}, True), (keys[2], {"n": 2}, False)]
    with pytest.raises(TasksQueueError, match=f"the queue in {folder} is closed"):
        queue.pending()


def test_ids_are_known_across_restarts_and_the_oldest_are_forgotten(folder: Path) -> None:
    with TasksQueue(folder) as queue:
        keys = queue.add_many([{}, {}, {}, {}], ids=["first", None, *map(str, range(MAX_SEEN - 3)), "second", "third"])
        queue.discard(keys)
    with TasksQueue(folder) as queue:
        before = [queue.seen(each) for each in ("first", "second", "third", "fourth")]
        queue.add_many([{}], ids=["fourth"])
        after = [queue.seen(each) for each in ("first", "second", "third", "fourth")]

    assert before == [True, True, True, False]
    assert after == [False, True, True, True]


def test_nobody_else_can_read_the_queue(folder: Path, queue: TasksQueue) -> None:
    queue.add_many([{"n": 1}])

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert set(modes.values()) == {0o600}
    assert {"data.db", "data.db-wal", "lock"} <= set(modes)


def test_a_folder_open_to_others_or_below_a_file_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    (folder / "file").touch()

    with pytest.raises(StorageError, match=f"chmod 700 {folder}, or choose a folder"):
        TasksQueue(folder)
    with pytest.raises(StorageError, match=r"cannot write .*/file/queue: Not a directory"):
        TasksQueue(folder / "file" / "queue")


def test_a_symbolic_link_in_place_of_the_file_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "data.db").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StorageError, match=r"data\.db"):
        TasksQueue(folder)

    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("damage", ["noise", "cut", "middle", "foreign tables"])
def test_a_damaged_file_is_set_aside_and_work_goes_on(
    folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with TasksQueue(folder) as queue:
        queue.add_many([{"n": number, "text": "x" * 500} for number in range(200)])
    harm(folder / "data.db", damage)

    with TasksQueue(folder) as queue:
        queue.add_many([{"n": 1}])
        aside = queue.set_aside
        taken = numbers(queue)
    with TasksQueue(folder) as queue:
        aside_later = queue.set_aside

    assert aside is not None
    assert aside.exists()
    assert str(aside) in caplog.text
    assert taken == [1]
    assert aside_later is None


def harm(path: Path, how: str) -> None:
    content = path.read_bytes()
    match how:
        case "noise":
            path.write_bytes(b"no database at all" * 100)
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "middle":
            middle = len(content) // 2
            path.write_bytes(content[:middle] + b"\xff" * 8192 + content[middle + 8192 :])
        case "foreign tables":
            path.unlink()
            execute(path, "CREATE TABLE queue_default (something TEXT)")


class Planted:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.write_text, (self.target, "executed"))


def test_a_planted_pickle_is_skipped_and_never_runs(folder: Path, tmp_path: Path) -> None:
    with TasksQueue(folder) as queue:
        queue.add_many([{"n": 1}])
    with sqlite3.connect(folder / "data.db") as connection:
        for blob in (pickle.dumps(Planted(tmp_path / "trap")), "text", None, b"[1]", b"[" * 100_000, b"\xff"):
            connection.execute("INSERT INTO queue_default (data, timestamp) VALUES (?, 0)", (blob,))
        connection.execute("INSERT INTO queue_default (data, timestamp) VALUES (?, 0)", (b'{"n": 2}',))
    connection.close()

    with TasksQueue(folder) as queue:
        assert numbers(queue) == [1, 2]

    assert not (tmp_path / "trap").exists()


def test_on_a_full_disk_adding_fails_clearly_and_reading_goes_on(folder: Path, queue: TasksQueue) -> None:
    added: list[int] = []

    def fill() -> None:
        while True:
            queue.add_many([{"n": len(added), "text": "x" * 1000}])
            added.append(len(added))

    with files_of_at_most(400_000):
        with pytest.raises(StorageError, match=f"cannot write the queue in {folder}"):
            fill()
        assert len(added) > 10
        assert numbers(queue) == added

    queue.discard([key for key, _, _ in queue.pending()])
    queue.add_many([{"n": -1}])
    queue.close()
    with TasksQueue(folder) as again:
        assert numbers(again) == [-1]
