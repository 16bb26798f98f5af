"""The way to a controller over HTTP: a thread of its own, so that nobody waits for a network."""

from __future__ import annotations

import collections
import concurrent.futures
import enum
import logging
import random
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError

if TYPE_CHECKING:
    import requests

logger = logging.getLogger(__name__)

TIMEOUT_S = 3.0
BACKLOG = 720
"""An hour of statuses at the default period."""
FIRST_RETRY_S = 0.25
LAST_RETRY_S = 30.0
DONE_RETRY_S = 2.0

_TRY_AGAIN = frozenset({408, 425, 429})
"""Refusals that are about the moment. Source: RFC 9110 section 15.5.9, RFC 8470 section 5.2, RFC 6585 section 4."""
_MAX_ANSWER_BYTES = 65_536


class ControllerCounts(NamedTuple):
    """What became of the statuses: ``waiting`` may still arrive, ``dropped`` and ``refused`` never will."""

    queued: int
    delivered: int
    refused: int
    dropped: int
    waiting: int
    failures: int


class _Outcome(enum.Enum):
    """What one POST came to."""

    OK = "200"
    OTHER_SUCCESS = "another success"
    REFUSED = "refused"
    FAILED = "failed"


class _Done(NamedTuple):
    """The end of a scenario that waits for its confirmation; ``status`` goes once before it."""

    status: bytes
    body: bytes
    confirmed: concurrent.futures.Future[bool]


class Controller:
    """Posts statuses in their order, and the end of a scenario, over one kept connection.

    A status that does not arrive is tried again, later and later; at most ``backlog`` wait, the oldest goes first and
    is counted. A status that the controller refuses (4xx) is not sent again. The end of a scenario goes before waiting
    statuses; a confirmed end makes those that were older than it worthless. No redirect is followed, no proxy of the
    environment is used, and of an answer at most 64 KiB are read. Every method but `stop` returns at once, and each is
    safe from any thread.
    """

    def __init__(
        self,
        *,
        status_url: str,
        done_url: str,
        user_agent: str,
        timeout_s: float = TIMEOUT_S,
        backlog: int = BACKLOG,
        seed: int | None = None,
    ) -> None:
        self._status_url, self._done_url, self._timeout_s = status_url, done_url, timeout_s
        # A header holds no line ends, and only Latin-1.
        self._user_agent = "".join(letter for letter in user_agent if letter.isprintable() and letter.isascii())
        self._backlog = backlog
        self._changed = threading.Condition()
        self._waiting: collections.deque[bytes] = collections.deque()
        self._ends: collections.deque[_Done] = collections.deque()
        self._thread: threading.Thread | None = None
        self._stop_by: Deadline | None = None
        self._random = random.Random(seed)  # noqa: S311  # spreads retries, keeps no secret
        self._queued = self._delivered = self._refused = self._dropped = self._failures = 0
        self._in_a_row = 0
        self._next_attempt = 0.0

    def start(self) -> None:
        """Start the thread; does nothing while it runs."""
        with self._changed:
            self._stop_by = None
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="fedmon-controller", daemon=True)
                self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Send what waits as far as that succeeds at once, and end the thread, within about ``timeout_s``."""
        with self._changed:
            self._stop_by = Deadline(timeout_s)
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s + 0.1)
            if thread.is_alive():
                logger.warning("the controller does not let go of a request: it is left to its timeout")
        with self._changed:
            self._dropped += len(self._waiting)
            self._waiting.clear()
            ends = list(self._ends)
            self._ends.clear()
        for end in ends:
            end.confirmed.cancel()

    def status(self, body: bytes) -> None:
        """Queue one status."""
        with self._changed:
            self._queued += 1
            self._waiting.append(body)
            while len(self._waiting) > self._backlog:
                self._waiting.popleft()
                self._dropped += 1
            self._changed.notify_all()

    def finished(self, status: bytes, body: bytes) -> concurrent.futures.Future[bool]:
        """Queue the end of the scenario; the future is True once the controller said 200, False when it refused."""
        end = _Done(status, body, concurrent.futures.Future())
        with self._changed:
            self._ends.append(end)
            self._next_attempt = 0.0
            self._changed.notify_all()
        return end.confirmed

    def counts(self) -> ControllerCounts:
        """Return what became of the statuses so far."""
        with self._changed:
            return ControllerCounts(
                self._queued, self._delivered, self._refused, self._dropped, len(self._waiting), self._failures
            )

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with _session(self._user_agent) as session:
            while self._wait_for_work():
                end = self._ends[0] if self._ends else None
                if end is not None:
                    self._post_end(session, end)
                else:
                    self._post_oldest(session)

    def _wait_for_work(self) -> bool:
        """Wait until something can be sent; False when it is time to end."""
        with self._changed:
            while True:
                while self._ends and self._ends[0].confirmed.cancelled():
                    self._ends.popleft()
                has_work = bool(self._waiting or self._ends)
                if self._stop_by is not None and (not has_work or self._in_a_row or self._stop_by.passed()):
                    return False
                left_s = self._next_attempt - time.monotonic()
                if has_work and left_s <= 0:
                    return True
                self._changed.wait(left_s if has_work else None)

    def _post_oldest(self, session: requests.Session) -> None:
        with self._changed:
            body = self._waiting[0]
        outcome = self._post(session, self._status_url, body)
        with self._changed:
            if outcome is _Outcome.FAILED:
                self._back_off(LAST_RETRY_S)
                return
            # The oldest may have been dropped meanwhile to make room.
            if self._waiting and self._waiting[0] is body:
                self._waiting.popleft()
            else:
                self._dropped -= 1
            self._delivered += outcome is not _Outcome.REFUSED
            self._refused += outcome is _Outcome.REFUSED
            self._in_a_row = 0

    def _post_end(self, session: requests.Session, end: _Done) -> None:
        if end.status:
            self._post(session, self._status_url, end.status)
            with self._changed:
                self._ends[0] = end = end._replace(status=b"")
        outcome = self._post(session, self._done_url, end.body)
        with self._changed:
            if outcome in (_Outcome.FAILED, _Outcome.OTHER_SUCCESS) and not end.confirmed.cancelled():
                self._back_off(DONE_RETRY_S)
                return
            self._ends.popleft()
            self._in_a_row = 0
            if outcome is _Outcome.OK:
                self._dropped += len(self._waiting)
                self._waiting.clear()
        if end.confirmed.set_running_or_notify_cancel():
            end.confirmed.set_result(outcome is _Outcome.OK)

    def _back_off(self, longest_s: float) -> None:
        delay_s = min(longest_s, FIRST_RETRY_S * 2 ** min(self._in_a_row, 10)) * self._random.uniform(0.5, 1.0)
        self._in_a_row += 1
        self._next_attempt = time.monotonic() + delay_s

    def _post(self, session: requests.Session, url: str, body: bytes) -> _Outcome:
        timeout_s = (
            self._timeout_s if self._stop_by is None else max(0.05, min(self._timeout_s, self._stop_by.left_s()))
        )
        try:
            status = _answer(session, url, body, timeout_s)
        except (_HttpError, OSError) as error:
            return self._failed(_Outcome.FAILED, f"{url}: {error}")
        if status == 200:
            return _Outcome.OK
        if 200 < status < 300:
            return _Outcome.OTHER_SUCCESS
        outcome = _Outcome.FAILED if status >= 500 or status in _TRY_AGAIN else _Outcome.REFUSED
        return self._failed(outcome, f"{url} answered {status}")

    def _failed(self, outcome: _Outcome, text: str) -> _Outcome:
        self._failures += 1
        level = logging.DEBUG if self._in_a_row or self._failures > 100 else logging.WARNING
        logger.log(level, "the controller did not take a report: %s", text)
        return outcome


class _HttpError(FedmonError):
    """A request failed before it had an answer."""


def _session(user_agent: str) -> requests.Session:
    # Loaded here, in the thread: importing it takes a tenth of a second.
    import requests

    session = requests.Session()
    session.trust_env = False
    session.headers.update({"Content-Type": "application/json", "User-Agent": user_agent})
    return session


def _answer(session: requests.Session, url: str, body: bytes, timeout_s: float) -> int:
    """Post once and return the status of the answer. Raises _HttpError."""
    import requests

    try:
        with session.post(url, data=body, timeout=timeout_s, allow_redirects=False, stream=True) as response:
            # A connection is kept only when its answer was read to the end.
            read = 0
            for chunk in response.iter_content(8192):
                read += len(chunk)
                if read > _MAX_ANSWER_BYTES:
                    break
            return int(response.status_code)
    except (requests.RequestException, ValueError) as error:
        raise _HttpError(f"{type(error).__name__}: {error}") from error
