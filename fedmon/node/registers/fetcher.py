"""Plans that are named by a URL are fetched here, on a thread of their own, by the rules of the repository."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

import msgspec

from fedmon.common.errors import FedmonError
from fedmon.common.settings import RepositorySettings

logger = logging.getLogger(__name__)

CAPACITY = 100
DEADLINE_S = 30.0


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    sha256: str | None
    done: Callable[[bytes | FedmonError], None]


class Fetcher:
    """Fetches one file after another; ``start`` is done by the first job, so that a node without any has no thread."""

    def __init__(
        self, repository: RepositorySettings, *, max_bytes: int, hand_over: Callable[[Callable[[], None]], object]
    ) -> None:
        self._repository, self._max_bytes, self._hand_over = repository, max_bytes, hand_over
        self._queue: queue.Queue[_Job | None] = queue.Queue(CAPACITY)
        self._thread: threading.Thread | None = None

    def submit(self, url: str, sha256: str | None, done: Callable[[bytes | FedmonError], None]) -> bool:
        """Have a file fetched; ``done`` gets its bytes or a FedmonError on the router's thread.

        Without a digest it may be any file.
        """
        try:
            self._queue.put_nowait(_Job(url=url, sha256=sha256, done=done))
        except queue.Full:
            return False
        if self._thread is None:
            # A download may hang in name resolution beyond our reach: it must not keep a stopping node alive.
            self._thread = threading.Thread(target=self._run, name="fedmon-fetcher", daemon=True)
            self._thread.start()
        return True

    def stop(self, timeout_s: float) -> None:
        """End the thread, unless a download keeps it."""
        if self._thread is not None:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                return
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            result = self._fetch(job)
            done = job.done
            self._hand_over(lambda done=done, result=result: done(result))  # type: ignore[misc]

    def _fetch(self, job: _Job) -> bytes | FedmonError:
        from fedmon.common.http import download

        try:
            return download(
                job.url,
                sha256=job.sha256,
                max_bytes=self._max_bytes,
                deadline_s=DEADLINE_S,
                allowed_urls=self._repository.allowed_urls,
            )
        except FedmonError as error:
            logger.warning("plan %s was not fetched: %s", job.sha256 or "of unknown digest", error)
            return error
