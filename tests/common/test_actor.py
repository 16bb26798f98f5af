"""One owner thread: order, bounds, timers, calls and the end."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from fedmon.common.actor import Actor, Bound, BusyError, Priority
from fedmon.common.errors import FedmonError

PATIENCE_S = 60.0


@contextlib.contextmanager
def running(name: str) -> Iterator[Actor]:
    actor = Actor(name)
    actor.start()
    yield actor
    assert actor.close(timeout_s=PATIENCE_S)


def test_urgent_jobs_run_before_bulk_ones_and_each_kind_in_its_order() -> None:
    ran: list[str] = []
    actor = Actor("ordered")
    for name in ("a", "b"):
        actor.post(lambda name=name: ran.append(f"bulk {name}"), priority=Priority.BULK)  # type: ignore[misc]
        actor.post(lambda name=name: ran.append(f"urgent {name}"))  # type: ignore[misc]

    actor.start()

    assert actor.close(timeout_s=PATIENCE_S)
    assert ran == ["urgent a", "urgent b", "bulk a", "bulk b"]


def test_a_full_inbox_drops_and_counts_by_jobs_and_by_bytes() -> None:
    actor = Actor("full", urgent=Bound(2), bulk=Bound(10, size_bytes=100))

    urgent = [actor.post(int) for _ in range(3)]
    bulk = [actor.post(int, priority=Priority.BULK, size_bytes=60) for _ in range(3)]

    assert (urgent, bulk) == ([True, True, False], [True, True, False])
    assert actor.dropped == [1, 1]
    assert actor.backlog == 4


def test_a_job_that_raises_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with running("sturdy") as actor:
        actor.post(lambda: 1 // 0)
        with pytest.raises(BusyError, match="sturdy failed at a job; the log says why"):
            actor.call(lambda: 1 // 0, timeout_s=PATIENCE_S)
        assert actor.call(lambda: 7, timeout_s=PATIENCE_S) == 7

    assert [record.getMessage() for record in caplog.records] == ["job failed in sturdy"] * 2


def test_a_call_that_was_given_up_never_runs() -> None:
    held, ran = threading.Event(), []
    with running("slow") as actor:
        actor.post(held.wait)
        with pytest.raises(BusyError, match=r"did not get to it within 0\.01 s"):
            actor.call(lambda: ran.append(1), timeout_s=0.01)
        held.set()

    assert ran == []
    with pytest.raises(BusyError, match="closing"):
        actor.call(int, timeout_s=PATIENCE_S)


def test_a_timer_centuries_away_stops_no_other() -> None:
    done = threading.Event()
    with running("timed") as actor:
        actor.at(1e12, lambda: None)
        actor.post(lambda: actor.at(time.monotonic() + 0.01, done.set))
        assert done.wait(PATIENCE_S)


def test_periodic_work_stays_on_its_grid_and_says_once_that_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="fedmon.common.actor")
    thrice = threading.Semaphore(0)

    def fail() -> None:
        thrice.release()
        raise FedmonError("disk is full")

    with running("periodic") as actor:
        actor.every(0.005, fail)
        for _ in range(3):
            assert thrice.acquire(timeout=PATIENCE_S)

    levels = [record.levelname for record in caplog.records]
    assert levels[:2] == ["WARNING", "DEBUG"]
    assert levels.count("WARNING") == 1
