"""Replies that nobody has taken: kept in order, on disk, until somebody takes them."""

from __future__ import annotations

import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedmon.common.store.queue import FILE_NAME, TasksQueue
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import ApprovalReply, PlanDecision, PlanStatus, Pong
from fedmon.researcher.replies.content import KeptReply
from fedmon.researcher.replies.queue import MAX_INCOMING, MAX_KEPT_BYTES, Replies
from fedmon.researcher.session.inbox import Tally
from tests.support import envelopes
from tests.support.databases import execute, fill_up
from tests.support.waiting import wait_until

Keep = Callable[..., Replies]


def pong(sequence: int) -> Pong:
    return envelopes.pong(sequence=sequence, id=f"id-{sequence}")


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Keep]:
    """Return a function that opens the store on one folder, as each process in turn does."""
    with ExitStack() as opened:

        def keep(**options: Any) -> Replies:
            replies = Replies(TasksQueue(tmp_path / "queue"), **({"tally": Tally()} | options))
            replies.start()
            opened.callback(replies.stop)
            return replies

        yield keep


def sequences(replies: Replies, **options: Any) -> list[int]:
    return [one.message.sequence for one in replies.take(**options) if isinstance(one.message, Reply)]


def test_what_nobody_took_is_there_for_the_next_process_in_order(keep: Keep) -> None:
    first = keep()
    for number in range(5):
        first.keep(pong(number))
    wait_until(lambda: len(first) == 5)
    assert sequences(first, limit=2) == [0, 1]
    first.stop()

    second = keep()

    assert [one.redelivered for one in second.take(limit=1)] == [False]
    assert sequences(second) == [3, 4]


def test_no_copy_of_a_message_that_the_disk_refuses_counts_as_kept(tmp_path: Path) -> None:
    heard: list[bool] = []
    tally = Tally()
    replies = Replies(TasksQueue(tmp_path / "queue"), tally=tally)

    def keep() -> None:
        replies.keep(envelopes.decision(), only_once=True, on_kept=lambda _key, first: heard.append(first))

    file = tmp_path / "queue" / FILE_NAME
    fill_up(file, "queue_default")
    # Both come before the first write, which takes them together.
    keep()
    keep()
    replies.start()
    wait_until(lambda: tally.as_dict().get("failures of the reply queue"), what="the disk to refuse")
    execute(file, "DROP TRIGGER full")
    keep()
    wait_until(lambda: heard, what="the copy that the disk takes")
    replies.stop()

    assert heard == [True]


def test_what_a_disk_cannot_read_or_mark_is_told_and_can_be_taken(keep: Keep, tmp_path: Path) -> None:
    tally, file = Tally(), tmp_path / "queue" / FILE_NAME
    replies = keep(tally=tally)
    fill_up(file, "handed")
    execute(file, "ALTER TABLE seen RENAME TO gone")
    replies.keep(pong(1))
    wait_until(lambda: len(replies) == 1)
    taken = sequences(replies)
    replies.keep(envelopes.decision(), only_once=True)
    wait_until(lambda: tally.as_dict().get("failures of the reply queue") == 3, what="three failures")
    execute(file, "ALTER TABLE gone RENAME TO seen")
    replies.keep(envelopes.decision(), only_once=True)
    wait_until(lambda: len(replies) == 1, what="the copy that the disk takes")

    assert taken == [1]


def test_a_failing_step_after_one_message_takes_none_from_the_next(tmp_path: Path) -> None:
    done: list[int] = []
    replies = Replies(TasksQueue(tmp_path / "queue"), tally=Tally())

    # Both come before the first write, which takes them together.
    replies.keep(pong(1), on_kept=lambda _key, _first: done[0])
    replies.keep(pong(2), on_kept=lambda key, _first: done.append(key))
    replies.start()
    replies.stop()

    assert len(done) == 1


def test_what_waits_for_the_disk_is_bounded_and_counted() -> None:
    tally = Tally()
    replies = Replies(None, tally=tally)

    for number in range(MAX_INCOMING + 2):
        replies.keep(pong(number))

    assert tally.as_dict() == {"replies dropped: the disk is too slow": 2}


def test_the_oldest_goes_when_too_much_is_kept_and_is_counted(keep: Keep) -> None:
    tally = Tally()
    replies = keep(tally=tally, limit=3)
    for number in range(5):
        replies.keep(pong(number))

    wait_until(lambda: tally.as_dict().get("kept replies dropped: no caller takes them") == 2)

    assert sequences(replies) == [2, 3, 4]


def test_replies_whose_confirmation_is_interrupted_are_there_for_the_next_process(
    keep: Keep, interrupt: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmon.researcher.replies.queue.STOP_WAITS_S", 60.0)
    is_slow, goes_on, main, found = threading.Event(), threading.Event(), threading.get_ident(), list[KeptReply]()
    first = keep()
    first.keep(pong(1))
    wait_until(lambda: len(first) == 1)
    first.take(into=found)

    def slow() -> None:
        is_slow.set()
        goes_on.wait(60)

    def once_it_waits() -> None:
        wait_until(lambda: any(call.name == "settle" for call in traceback.extract_stack(sys._current_frames()[main])))
        interrupt()

    threading.Thread(target=first.between_writes, args=(slow,), daemon=True).start()
    assert is_slow.wait(60)
    threading.Thread(target=once_it_waits, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        first.confirm()
    first.give_back(found)
    goes_on.set()
    first.stop()

    assert sequences(keep()) == [1]


TAKER = """
import os, sys
from pathlib import Path
from fedmon.common.store.queue import TasksQueue
from fedmon.researcher.replies.queue import Replies
from fedmon.researcher.session.inbox import Tally

replies = Replies(TasksQueue(Path(sys.argv[1])), tally=Tally())
replies.start()
for _ in range(int(sys.argv[2])):
    replies.take(limit=1)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(("takes", "again"), [(1, [(0, True), (1, False), (2, False)]), (2, [(1, True), (2, False)])])
def test_taking_the_next_reply_confirms_the_one_before_on_disk(
    keep: Keep, tmp_path: Path, takes: int, again: list[tuple[int, bool]]
) -> None:
    before = keep()
    for number in range(3):
        before.keep(pong(number))
    wait_until(lambda: len(before) == 3)
    before.stop()

    killed = subprocess.run([sys.executable, "-c", TAKER, str(tmp_path / "queue"), str(takes)], check=False, timeout=60)
    found = [(one.message.sequence, one.redelivered) for one in keep().take() if isinstance(one.message, Reply)]

    assert killed.returncode == -9
    assert found == again


def test_without_a_disk_everything_is_kept_in_memory() -> None:
    replies = Replies(None, tally=Tally())
    replies.start()
    replies.keep(pong(1))
    replies.keep(envelopes.decision(), only_once=True)
    replies.keep(envelopes.decision(), only_once=True)
    wait_until(lambda: len(replies) == 2)

    assert not replies.durable
    assert [type(one.message) for one in replies.take()] == [Pong, PlanDecision]
    replies.stop()


def test_an_entry_that_cannot_be_read_is_counted_and_stops_nothing(keep: Keep, tmp_path: Path) -> None:
    with TasksQueue(tmp_path / "queue") as queue:
        queue.add_many([{"payload": "{"}, {"payload": 7}, {}, {"payload": msgspec.json.encode(pong(1)).decode()}])
    tally = Tally()

    assert sequences(keep(tally=tally)) == [1]
    assert tally.as_dict().get("unreadable entries of the reply queue") == 3


def test_large_replies_make_room_and_decisions_outlast_them(keep: Keep) -> None:
    tally = Tally()
    replies = keep(tally=tally)
    replies.keep(envelopes.decision(), only_once=True)
    large = MAX_KEPT_BYTES // 8
    for number in range(12):
        replies.keep(
            ApprovalReply(
                node_id="n", researcher_id="r", id=str(number), session="s", sequence=number, plan_id="p",
                sha256="0" * 64, status=PlanStatus.PENDING, note="x" * large,
            )
        )  # fmt: skip
    wait_until(lambda: sum(tally.as_dict().values()) >= 5, what="replies to be dropped")
    replies.stop()

    commands = [kept.command for kept in keep().take()]
    assert commands[0] == "plan-decision"
    assert 1 < len(commands) <= 8
