"""What a task queue promises survives kill -9 at any moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.common.store.queue import TasksQueue
from tests.common.store.killed import lines_until_killed
from tests.support.chance import seeded


@pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=pytest.mark.soak)])
def test_kill_loses_nothing_keeps_order_and_repeats_only_what_was_in_hand(tmp_path: Path, rounds: int) -> None:
    chance = seeded()
    folder, ledger = tmp_path / "queue", Ledger()

    for _ in range(rounds):
        ledger.restarted()
        after_lines = chance.randrange(1, 400)
        for line in lines_until_killed("queue_child", folder, ledger.next_number, after_lines=after_lines):
            ledger.read(line)
    ledger.restarted()
    with TasksQueue(folder) as queue:
        for _, document, handed in queue.pending():
            ledger.got(document["n"], redelivered=handed)

    assert ledger.promised <= set(ledger.order), "a document whose add returned is lost"
    assert ledger.order == sorted(ledger.order), "documents came in another order than they were put"
    assert len(ledger.order) == len(set(ledger.order)), "a document came twice without a mark"
    assert len(ledger.promised) > rounds


class Ledger:
    """What was promised and what came, kept outside the process that is killed."""

    def __init__(self) -> None:
        self.promised: set[int] = set()
        self.order: list[int] = []
        self.next_number = 0
        self._first_since_start = True

    def restarted(self) -> None:
        """A new process opens the queue; only its first document may be marked."""
        self._first_since_start = True

    def got(self, number: int, *, redelivered: bool) -> None:
        """Write down one document; a marked one counts only when it was not seen before the crash."""
        assert not redelivered or self._first_since_start, f"document {number} is marked but was not the first"
        if redelivered and self.order and self.order[-1] == number:
            self.order.pop()
        self.order.append(number)
        self._first_since_start = False

    def read(self, line: str) -> None:
        """Write down what the process said."""
        word, number, *rest = line.split()
        match word:
            case "putting":
                self.next_number = int(number) + 1
            case "put":
                self.promised.add(int(number))
            case "got":
                self.got(int(number), redelivered=rest == ["1"])
