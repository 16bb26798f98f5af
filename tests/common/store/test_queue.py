"""The durable queue: order, bounds, ownership, damage, full disks."""

from __future__ import annotations

import pickle
import resource
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.common.errors import FolderInUseError, StorageError
from fedmon.common.store.queue import TasksQueue, TasksQueueError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "queue"


@pytest.fixture
def queue(folder: Path) -> Iterator[TasksQueue]:
    with TasksQueue(folder) as opened:
        yield opened


def numbers(documents: list[dict[str, int]]) -> list[int]:
    return [document["n"] for document in documents]


def test_documents_come_in_the_order_they_were_added(queue: TasksQueue) -> None:
    keys = [queue.add({"n": number}) for number in range(5)]

    taken = []
    while queue.qsize():
        taken.append(queue.get())
        queue.task_done()

    assert numbers(taken) == [0, 1, 2, 3, 4]
    assert keys == sorted(set(keys))


def test_an_empty_queue_says_so_at_once_or_after_the_time_given(queue: TasksQueue) -> None:
    with pytest.raises(TasksQueueError, match="is empty"):
        queue.get(block=False)
    with pytest.raises(TasksQueueError, match="is empty"):
        queue.get(timeout_s=0.05)


def test_a_waiting_get_receives_what_another_thread_adds(queue: TasksQueue) -> None:
    taken: list[dict[str, int]] = []
    waiting = threading.Thread(target=lambda: taken.append(queue.get()))
    waiting.start()

    queue.add({"n": 7})
    waiting.join(5.0)

    assert numbers(taken) == [7]


def test_closing_ends_a_waiting_get(queue: TasksQueue) -> None:
    failures: list[Exception] = []

    def wait() -> None:
        try:
            queue.get()
        except TasksQueueError as error:
            failures.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    queue.close()
    waiting.join(5.0)

    assert len(failures) == 1
    assert "closed" in str(failures[0])


def test_a_surplus_task_done_does_nothing(queue: TasksQueue) -> None:
    queue.add({"n": 1})

    queue.task_done()

    assert queue.get() == {"n": 1}


@pytest.mark.parametrize("wrong", [["a list"], "text", None, {"key": object()}, {"key": b"bytes"}])
def test_only_json_objects_are_taken(queue: TasksQueue, wrong: dict[str, object]) -> None:
    with pytest.raises(TasksQueueError, match="JSON"):
        queue.add(wrong)

    assert queue.qsize() == 0


def test_a_batch_is_drained_for_good(folder: Path) -> None:
    with TasksQueue(folder) as queue:
        queue.add_many([{"n": number} for number in range(5000)])
        taken = queue.take_all(4000)
    with TasksQueue(folder) as queue:
        rest = queue.take_all()

    assert numbers(taken) == list(range(4000))
    assert numbers(rest) == list(range(4000, 5000))


def test_what_was_in_hand_comes_first_again_and_alone_is_marked(folder: Path) -> None:
    with TasksQueue(folder) as queue:
        queue.add_many([{"n": number} for number in range(4)])
        queue.get()
        queue.task_done()
        queue.get()
    with TasksQueue(folder) as queue:
        again = queue.take_all()

    assert again == [{"n": 1, "redelivered": True}, {"n": 2}, {"n": 3}]


def test_taking_the_next_document_confirms_the_one_before(folder: Path) -> None:
    with TasksQueue(folder) as queue:
        queue.add_many([{"n": 0}, {"n": 1}])
        queue.get()
        queue.get()
    with TasksQueue(folder) as queue:
        again = queue.take_all()

    assert again == [{"n": 1, "redelivered": True}]


def test_single_documents_are_discarded_without_disturbing_the_rest(folder: Path) -> None:
    with TasksQueue(folder) as queue:
        keys = queue.add_many([{"n": number} for number in range(6)])
        in_hand = queue.get()
        queue.discard([keys[0], keys[2], keys[4], 10**9])
        size = queue.qsize()
        queue.task_done()
        rest = queue.take_all()

    assert in_hand == {"n": 0}
    assert size == 3
    assert numbers(rest) == [1, 3, 5]


def test_documents_noted_as_handed_over_are_pending_and_marked(folder: Path) -> None:
    with TasksQueue(folder) as queue:
        keys = queue.add_many([{"n": 0}, {"n": 1}, {"n": 2}])
        queue.mark_handed(keys[:2])
        queue.discard(keys[:1])
    with TasksQueue(folder) as queue:
        pending = queue.pending()

    assert pending == [(keys[1], {"n": 1}, True), (keys[2], {"n": 2}, False)]


def test_beyond_its_bound_the_oldest_go_and_are_counted(folder: Path) -> None:
    with TasksQueue(folder, max_items=3) as queue:
        for number in range(5):
            queue.add({"n": number})
        queue.add_many([{"n": 5}, {"n": 6}])

        assert (queue.qsize(), queue.dropped) == (3, 4)
        assert numbers(queue.take_all()) == [4, 5, 6]


def test_a_batch_larger_than_the_bound_leaves_its_newest(folder: Path) -> None:
    with TasksQueue(folder, max_items=3) as queue:
        queue.add_many([{"n": number} for number in range(10)])

        assert (queue.qsize(), queue.dropped) == (3, 7)
        assert numbers(queue.take_all()) == [7, 8, 9]


def test_ids_are_known_across_restarts_and_the_oldest_are_forgotten(folder: Path) -> None:
    with TasksQueue(folder, max_seen=3) as queue:
        queue.add({"n": 0}, message_id="first")
        queue.add_many([{"n": 1}, {"n": 2}], ids=["second", None])
        queue.mark_seen("third")
        queue.take_all()
    with TasksQueue(folder, max_seen=3) as queue:
        before = [queue.seen(one) for one in ("first", "second", "third", "fourth")]
        queue.mark_seen("fourth")
        after = [queue.seen(one) for one in ("first", "second", "third", "fourth")]

    assert before == [True, True, True, False]
    assert after == [False, True, True, True]


def test_a_second_owner_is_refused_and_told_who_holds_the_folder(folder: Path, queue: TasksQueue) -> None:
    code = f"from fedmon.common.store.queue import TasksQueue; TasksQueue({str(folder)!r})"

    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    with pytest.raises(FolderInUseError, match="in use by process"):
        TasksQueue(folder)

    assert "FolderInUseError" in other.stderr


def test_a_closed_queue_gives_its_folder_back(folder: Path) -> None:
    TasksQueue(folder).close()

    with TasksQueue(folder) as queue:
        assert queue.qsize() == 0


def test_nobody_else_can_read_the_queue(folder: Path, queue: TasksQueue) -> None:
    queue.add({"n": 1})

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert set(modes.values()) == {0o600}
    assert {"data.db", "data.db-wal", "lock"} <= set(modes)


def test_a_folder_open_to_others_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)

    with pytest.raises(StorageError, match="chmod 700"):
        TasksQueue(folder)


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
        queue.add({"n": 1})
        aside = queue.set_aside
        taken = queue.take_all()
    with TasksQueue(folder) as queue:
        aside_later = queue.set_aside

    assert aside is not None
    assert aside.exists()
    assert str(aside) in caplog.text
    assert taken == [{"n": 1}]
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
            with sqlite3.connect(path) as connection:
                connection.execute("CREATE TABLE queue_default (something TEXT)")
            connection.close()


class Planted:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.write_text, (self.target, "executed"))


def test_a_planted_pickle_is_skipped_and_never_runs(folder: Path, tmp_path: Path) -> None:
    with TasksQueue(folder) as queue:
        queue.add({"n": 1})
    with sqlite3.connect(folder / "data.db") as connection:
        for blob in (pickle.dumps(Planted(tmp_path / "trap")), "text", None, b"[1]", b"[" * 100_000, b"\xff"):
            connection.execute("INSERT INTO queue_default (data, timestamp) VALUES (?, 0)", (blob,))
        connection.execute("INSERT INTO queue_default (data, timestamp) VALUES (?, 0)", (b'{"n": 2}',))
    connection.close()

    with TasksQueue(folder) as queue:
        pending = [document for _, document, _ in queue.pending()]
        first = queue.get()
        second = queue.get()

    assert pending == [first, second] == [{"n": 1}, {"n": 2}]
    assert not (tmp_path / "trap").exists()


FULL_DISK = """
    import resource, sys
    from fedmon.common.errors import StorageError
    from fedmon.common.store.queue import TasksQueue
    queue = TasksQueue(sys.argv[1])
    count = 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    try:
        while True:
            queue.add({"n": count, "text": "x" * 1000})
            count += 1
    except StorageError as error:
        print(str(error))
    taken = []
    while queue.qsize():
        taken.append(queue.get(block=False)["n"])
        queue.task_done()
    print(taken == list(range(count)), count > 10)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    queue.add({"n": -1})
    print(queue.get()["n"], queue.qsize())
    queue.task_done()
    queue.close()
    print(TasksQueue(sys.argv[1]).qsize())
"""


def test_on_a_full_disk_adding_fails_clearly_and_reading_goes_on(folder: Path) -> None:
    assert hasattr(resource, "RLIMIT_FSIZE")

    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(folder)], capture_output=True, text=True, check=False
    )

    assert child.returncode == 0, child.stderr
    error, complete, after, left = child.stdout.splitlines()
    assert f"cannot write the queue in {folder}" in error
    assert complete == "True True"
    assert after == "-1 0"
    assert left == "0"


def test_many_threads_lose_and_double_nothing(queue: TasksQueue) -> None:
    taken: list[int] = []

    def put(first: int) -> None:
        for number in range(first, first + 200):
            queue.add({"n": number})

    def take() -> None:
        while (document := queue.get())["n"] >= 0:
            taken.append(document["n"])

    putting = [threading.Thread(target=put, args=(first,)) for first in (0, 1000, 2000)]
    taking = [threading.Thread(target=take) for _ in range(3)]
    for thread in (*putting, *taking):
        thread.start()
    for thread in putting:
        thread.join()
    for _ in taking:
        queue.add({"n": -1})
    for thread in taking:
        thread.join(10.0)

    assert sorted(taken) == [number for first in (0, 1000, 2000) for number in range(first, first + 200)]
