"""Workers beside the router, for slow work: checks of plans, transfers, trials of the sandbox, and looks at jobs."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Literal, TypeVar

from fedmon.common.errors import FedmonError

Kind = Literal["checks", "plans", "inputs", "results", "sandbox", "watching"]
T = TypeVar("T")

THREADS: dict[Kind, int] = {"checks": 1, "plans": 1, "inputs": 4, "results": 4, "sandbox": 1, "watching": 1}
"""Threads of each kind of work; a single one keeps the order, as that of requests whose plans are fetched."""
_AGAIN_S = 0.5

logger = logging.getLogger(__name__)


class Workers:
    """Threads for each kind of slow work, so that a slow server holds up one of them; safe from any thread.

    ``hand_over(job)`` runs a job on the router's thread, or returns False.
    """

    def __init__(self, hand_over: Callable[[Callable[[], object]], bool]) -> None:
        self.hand_over, self.stopping = hand_over, threading.Event()
        self._waiting = {kind: SimpleQueue[Callable[[], None]]() for kind in THREADS}

    def start(self) -> None:
        """Start the threads; work that was posted before is done first."""
        for kind, number in THREADS.items():
            for _ in range(number):
                threading.Thread(target=self._work, args=(kind,), name=f"fedmon-{kind}", daemon=True).start()

    def stop(self) -> None:
        """Hand over no more outcomes; unfinished work is repeated after the next start."""
        self.stopping.set()
        for kind, number in THREADS.items():
            for _ in range(number):
                self._waiting[kind].put(lambda: None)

    def post(
        self,
        kind: Kind,
        work: Callable[[], T],
        done: Callable[[T | FedmonError], object] = lambda _: None,
        *,
        most: float = math.inf,
    ) -> bool:
        """Have work done; ``done`` gets its outcome on the router's thread. Return False if ``most`` wait already."""
        if self._waiting[kind].qsize() >= most:
            return False
        self._waiting[kind].put(lambda: self._do(work, done))
        return True

    def _work(self, kind: Kind) -> None:
        while not self.stopping.is_set():
            self._waiting[kind].get()()

    def _do(self, work: Callable[[], T], done: Callable[[T | FedmonError], object]) -> None:
        outcome: T | FedmonError
        try:
            outcome = work()
        except FedmonError as error:
            outcome = error
        except Exception:
            # A request or a job waits for its outcome, whatever went wrong.
            logger.exception("a worker failed")
            outcome = FedmonError("the node failed at it; its log says why")
        while not (self.stopping.is_set() or self.hand_over(lambda: done(outcome))):
            self.stopping.wait(_AGAIN_S)
