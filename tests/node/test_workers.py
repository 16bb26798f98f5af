"""Slow work is done beside the router: its outcome comes whatever it is, and stopping waits for none of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn

import pytest

from fedmon.common.errors import FedmonError, NotFoundError
from fedmon.node.workers import THREADS, Kind, Workers
from tests.support.waiting import stays

Outcomes = queue.Queue[object]


def _at_once(job: Callable[[], object]) -> bool:
    job()
    return True


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(_at_once)
    yield made
    made.stop()


def test_an_outcome_is_a_result_or_the_error_whatever_it_was(workers: Workers) -> None:
    known, outcomes = NotFoundError("not there"), Outcomes()

    def fail(error: Exception) -> NoReturn:
        raise error

    workers.start()
    for work in (lambda: 3, lambda: fail(known), lambda: fail(RuntimeError("a defect")), lambda: 4):
        assert workers.post("plans", work, outcomes.put)
    first, second, third, fourth = (outcomes.get(timeout=60) for _ in range(4))

    assert (first, second, fourth) == (3, known, 4)
    assert isinstance(third, FedmonError)
    assert "its log says why" in str(third)


def test_slow_work_of_one_kind_holds_up_no_other(workers: Workers) -> None:
    over, outcomes = threading.Event(), Outcomes()
    workers.start()
    for _ in range(2 * THREADS["inputs"]):
        workers.post("inputs", lambda: over.wait(60), outcomes.put)
    others: tuple[Kind, ...] = ("checks", "plans", "results")
    for kind in others:
        workers.post(kind, partial(str, kind), outcomes.put)

    assert {outcomes.get(timeout=60) for _ in others} == set(others)
    over.set()


def test_stopping_waits_for_no_slow_work_and_its_outcome_is_not_told(workers: Workers) -> None:
    over, begun, outcomes = threading.Event(), threading.Event(), Outcomes()

    def work() -> bool:
        begun.set()
        return over.wait(60)

    workers.start()
    for _ in range(3):
        workers.post("checks", work, outcomes.put)
    assert begun.wait(60)

    workers.stop()

    over.set()
    assert stays(outcomes.empty, 0.3)
