"""Inputs are fetched and results are stored beside everything else that a node does, a few at a time."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedmon.common.errors import FedmonError, InvalidInputError
from fedmon.common.http import RepositoryError, UrlRefusedError
from fedmon.common.settings import RepositorySettings
from fedmon.common.wire.runs import Parcel
from fedmon.node.runs import inputs, results

logger = logging.getLogger(__name__)

T = TypeVar("T")
AT_A_TIME = 4
"""Transfers in each direction; more wait, so that one slow server does not hold up all jobs, nor many the node."""
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Between the tries to store a result; a repository that is away for longer loses it to the researcher."""


class Transfers:
    """A few threads for each direction, each there from the first transfer on that it is needed for.

    ``done`` of a transfer is called on the worker's thread, by ``hand_over``, with what came of it.
    """

    def __init__(self, repository: RepositorySettings, *, hand_over: Callable[[Callable[[], None]], object]) -> None:
        self.repository = repository
        self._hand_over = hand_over
        self._stopping = threading.Event()
        self._lanes: dict[str, _Lane] = {}

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
            lane.end()

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

        self._lanes.setdefault(lane, _Lane(f"fedmon-runs-{lane}")).put(run)


class _Lane:
    """Does tasks on at most AT_A_TIME threads; belongs to one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = 0

    def put(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)
        if self._threads < AT_A_TIME:
            # A transfer may hang in name resolution beyond our reach: it must not keep a stopping node alive.
            threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
            self._threads += 1

    def end(self) -> None:
        for _ in range(self._threads):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
