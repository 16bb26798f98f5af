"""Inputs are fetched and results are stored beside everything else that a node does, one after another."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedmon.common.errors import FedmonError, InvalidInputError
from fedmon.common.repository_address import RepositoryError, UrlRefusedError
from fedmon.common.settings import RepositorySettings
from fedmon.common.wire.runs import Parcel
from fedmon.node.runs import inputs, results

logger = logging.getLogger(__name__)

T = TypeVar("T")
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Between the tries to store a result; a repository that is away for longer loses it to the researcher."""


class Transfers:
    """Two threads, one for each direction, that are there from the first transfer on.

    ``done`` of a transfer is called on the worker's thread, by ``hand_over``, with what came of it.
    """

    def __init__(self, repository: RepositorySettings, *, hand_over: Callable[[Callable[[], None]], object]) -> None:
        self.repository = repository
        self._hand_over = hand_over
        self._stopping = threading.Event()
        self._lanes: dict[str, queue.SimpleQueue[Callable[[], None] | None]] = {}

    def fetch(self, parcel: Parcel, folder: Path, *, max_bytes: int, done: Callable[[int | FedmonError], None]) -> None:
        """Fetch inputs; ``done`` gets a descriptor that it has to close."""
        self._do(
            "inputs",
            lambda: inputs.fetched(parcel, folder, max_bytes=max_bytes, allowed_urls=self.repository.allowed_urls),
            done,
        )

    def deliver(self, path: Path, parcel: Parcel, done: Callable[[Parcel | FedmonError], None]) -> None:
        """Store a result that no message holds, as its keeper checked it; ``done`` gets it with its URL."""
        self._do("results", lambda: self._stored(path, parcel), done)

    def stop(self) -> None:
        """End the threads after what they are at; what waits is done after the next start."""
        self._stopping.set()
        for lane in self._lanes.values():
            lane.put(None)

    def _stored(self, path: Path, parcel: Parcel) -> Parcel:
        for pause_s in PAUSES_S:
            try:
                return results.stored(path, parcel, self.repository)
            except UrlRefusedError:
                raise
            except RepositoryError as error:
                logger.warning("the result %s is stored later: %s", path, error)
                if self._stopping.wait(pause_s):
                    raise
        return results.stored(path, parcel, self.repository)

    def _do(self, lane: str, work: Callable[[], T], done: Callable[[T | FedmonError], None]) -> None:
        def run() -> None:
            outcome: T | FedmonError
            try:
                outcome = work()
            except FedmonError as error:
                outcome = error
            except Exception:
                # Whoever waits for it must hear of its end, whatever that was.
                logger.exception("a transfer of %s failed", lane)
                outcome = InvalidInputError(f"the {lane} could not be transferred; the log of the node says why")
            if not self._stopping.is_set():
                self._hand_over(lambda: done(outcome))

        if lane not in self._lanes:
            tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
            self._lanes[lane] = tasks
            # A transfer may hang in name resolution beyond our reach: it must not keep a stopping node alive.
            threading.Thread(target=_work, args=(tasks,), name=f"fedmon-runs-{lane}", daemon=True).start()
        self._lanes[lane].put(run)


def _work(tasks: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (task := tasks.get()) is not None:
        task()
