"""Inputs are fetched and results are stored beside everything else that a node does, a few at a time."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from fedmon.common.errors import FedmonError, InvalidInputError, StorageError
from fedmon.common.http import RepositoryError, UrlRefusedError
from fedmon.common.settings import RepositorySettings
from fedmon.common.wire.runs import Parcel
from fedmon.node.runs import results
from fedmon.node.runs.results import mapped

DEADLINE_S = 600.0
_NAME = ".inputs"

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
            lambda: fetched(parcel, folder, max_bytes=max_bytes, allowed_urls=self.repository.allowed_urls),
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


def fetched(parcel: Parcel, folder: Path, *, max_bytes: int, allowed_urls: Sequence[str]) -> int:
    """Return a descriptor, for reading, of what lies at the parcel's URL, checked; the caller closes it.

    Raises RepositoryError when it cannot be fetched or is not allowed to be, InvalidInputError when it is no parcel,
    StorageError when it cannot be kept.
    """
    from fedmon.common.http import download_to

    path = folder / _NAME
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        written = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(written, "r+b") as file:
            read_only = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            path.unlink()
            try:
                download_to(
                    file,
                    parcel.url or "",
                    sha256=parcel.sha256,
                    size_bytes=parcel.size_bytes,
                    max_bytes=max_bytes,
                    deadline_s=DEADLINE_S,
                    allowed_urls=allowed_urls,
                )
                file.flush()
                _check(file.fileno(), parcel, max_bytes)
            except BaseException:
                os.close(read_only)
                raise
    except OSError as error:
        raise StorageError(f"inputs cannot be kept in {folder}: {error.strerror}") from error
    return read_only


def _check(descriptor: int, parcel: Parcel, max_bytes: int) -> None:
    from fedmon.plan.parcels import check

    try:
        check(parcel.format, mapped(descriptor), max_bytes)
    except FedmonError as problem:
        raise InvalidInputError(f"the inputs cannot be used: {problem}") from None
