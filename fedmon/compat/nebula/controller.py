"""NEBULA's controller over HTTP, to which a reporter tells its statuses and the end of its scenario."""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import ssl
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from fedmon.common.actor import Actor, BusyError
from fedmon.common.backoff import Backoff
from fedmon.common.clock import Deadline
from fedmon.compat.nebula.settings import section

if TYPE_CHECKING:
    import requests

logger = logging.getLogger(__name__)

SENT: Mapping[str, tuple[str, ...]] = {
    "device_args": ("uid", "idx", "name", "role", "malicious"),
    "network_args": ("ip", "port", "neighbors"),
    "scenario_args": ("name", "federation", "rounds", "n_nodes"),
    "federation_args": ("round",),
    "tracking_args": ("run_hash",),
}
"""The keys that leave, by group: those that a controller shows or keeps."""
ABSENT: Mapping[str, tuple[str, ...]] = {"mobility_args": ("latitude", "longitude", "neighbors_distance")}
"""Keys that a controller needs, and that are always null, so that no place leaves."""
TIMEOUT_S = 3.0
BACKLOG = 720
"""An hour of statuses at the default period."""
FIRST_RETRY_S, LAST_RETRY_S, END_RETRY_S = 0.25, 30.0, 2.0
_Scalar = Annotated[str, msgspec.Meta(max_length=8192)] | bool | int | float | None
_Sent = _Scalar | Annotated[list[_Scalar], msgspec.Meta(max_length=1024)]
"""The values that leave."""
_TRY_AGAIN = frozenset({408, 425, 429})
"""Refusals for the moment. Source: RFC 9110 section 15.5.9, RFC 8470 section 5.2, RFC 6585 section 4."""
_MOST_CHUNKS = 8
_NO_ANSWER = 0


def status_body(participant: Mapping[str, Any], stamp: Mapping[str, Any]) -> bytes:
    """Return one status as JSON: the keys above, null if the participant has none, and ``stamp`` under "fedmon".

    A value that is no short scalar and no list of such, or that JSON cannot carry, becomes null.
    """
    body: dict[str, Mapping[str, Any]] = {
        group: {name: _sent(section(participant, group).get(name)) for name in names} for group, names in SENT.items()
    }
    body |= {group: dict.fromkeys(names) for group, names in ABSENT.items()}
    return msgspec.json.encode({**body, "fedmon": stamp})


def _sent(value: object) -> msgspec.Raw | None:
    try:
        return msgspec.Raw(msgspec.json.encode(msgspec.convert(value, _Sent)))
    except (msgspec.MsgspecError, TypeError, ValueError):
        return None


class Complaints:
    """Logs each problem as a warning when it first comes, and for debugging from then on."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def log(self, key: str, text: str) -> None:
        """Log a problem; ``key`` tells whether it is known."""
        is_known = key in self._known or len(self._known) > 100
        logger.log(logging.DEBUG if is_known else logging.WARNING, "%s", text)
        if not is_known:
            self._known.add(key)


STATUSES = ("queued", "delivered", "refused", "dropped", "waiting", "failures")
"""Counts of statuses: waiting ones may still arrive, refused or dropped ones never will."""


class Controller:
    """Posts statuses in order, and the end of a scenario, over one connection on a dedicated thread.

    A status that does not arrive is retried later and later; at most ``backlog`` wait, then the oldest is dropped and
    counted. A status that the controller refuses (4xx) is not sent again. The end of a scenario drops waiting statuses.
    No redirect is followed, and no proxy of the environment is used. Every method is safe from any thread, and only
    `finish` and `stop` wait.
    """

    def __init__(
        self,
        *,
        status_url: str,
        done_url: str,
        idx: int | str | None,
        timeout_s: float = TIMEOUT_S,
        backlog: int = BACKLOG,
    ) -> None:
        self._status_url, self._done_url, self._idx = status_url, done_url, idx
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._waiting: collections.deque[bytes] = collections.deque()
        self._backlog, self._counts = backlog, dict.fromkeys(STATUSES, 0)
        self._complaints = Complaints()
        self._actor, self._is_running = Actor("fedmon-controller"), False
        self._session: requests.Session | None = None
        self._retry, self._next_attempt = Backoff(FIRST_RETRY_S, longest_s=LAST_RETRY_S, jitter=0.5), 0.0

    def start(self) -> None:
        """Start the thread; does nothing while it runs."""
        if not self._is_running:
            self._actor, self._is_running = Actor("fedmon-controller"), True
            self._actor.post(self._send)
            self._actor.start()

    def stop(self, timeout_s: float) -> None:
        """Send waiting statuses while that succeeds, for up to ``timeout_s``, drop the rest, and end the thread."""
        # Another thread may start a new one as soon as none runs.
        actor, self._is_running = self._actor, False
        actor.post(self._close)
        if not actor.close(timeout_s=timeout_s):
            logger.warning("a request to the controller is left to its timeout")
        self._drop_all()

    def status(self, body: bytes) -> None:
        """Queue one status."""
        with self._lock:
            self._counts["queued"] += 1
            self._waiting.append(body)
            if len(self._waiting) > self._backlog:
                self._waiting.popleft()
                self._counts["dropped"] += 1
        self._actor.post(self._send)

    def finish(self, status: bytes, timeout_s: float, *, given_up: threading.Event) -> bool:
        """Post a last status until it is taken, and the end of the scenario until it is confirmed with 200.

        Statuses that wait are dropped. Returns False if it is refused or given up, or after ``timeout_s``.
        """
        self.start()
        self._drop_all()
        deadline, retry = Deadline(timeout_s), Backoff(FIRST_RETRY_S, longest_s=END_RETRY_S)
        is_told, body = not status, msgspec.json.encode({"idx": self._idx})
        with contextlib.suppress(BusyError):  # the time is over, or `stop` was called
            while not (given_up.is_set() or deadline.passed()):
                is_told = is_told or _is_final(self._ask(self._status_url, status, deadline))
                answer = self._ask(self._done_url, body, deadline)
                if answer == 200:
                    return True
                if _is_refused(answer) or given_up.wait(min(retry.next_s(), deadline.left_s())):
                    return False
        return False

    def _ask(self, url: str, body: bytes, deadline: Deadline) -> int:
        return self._actor.call(lambda: self._post(url, body), timeout_s=deadline.left_s())

    def counts(self) -> dict[str, int]:
        """Return the counts of statuses so far."""
        with self._lock:
            return {**self._counts, "waiting": len(self._waiting)}

    def _drop_all(self) -> None:
        with self._lock:
            self._counts["dropped"] += len(self._waiting)
            self._waiting.clear()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send waiting statuses until an attempt fails, which is repeated later."""
        while time.monotonic() >= self._next_attempt:
            with self._lock:
                body = self._waiting[0] if self._waiting else None
            if body is None:
                return
            answer = self._post(self._status_url, body)
            if not _is_final(answer):
                self._next_attempt = time.monotonic() + self._retry.next_s()
                self._actor.at(self._next_attempt, self._send)
                return
            self._retry.reset()
            with self._lock:
                if self._waiting and self._waiting[0] is body:
                    self._waiting.popleft()
                else:  # it was dropped meanwhile to make room
                    self._counts["dropped"] -= 1
                self._counts["refused" if _is_refused(answer) else "delivered"] += 1

    def _post(self, url: str, body: bytes) -> int:
        """Return the status code of the answer, 0 without one."""
        import requests  # takes a tenth of a second, so on this thread

        session = self._session  # a thread that was left to its timeout may close it after the next start
        if session is None:
            session = self._session = requests.Session()
            session.trust_env = False
            session.verify = ssl.get_default_verify_paths().cafile or True  # SSL_CERT_FILE, else the system's
            agent = f"NEBULA Participant {self._idx}"
            session.headers.update({"Content-Type": "application/json", "User-Agent": agent})
        try:
            with session.post(url, body, timeout=self._timeout_s, allow_redirects=False, stream=True) as response:
                # A connection is kept only if its answer was read to the end.
                for _ in itertools.islice(response.iter_content(8192), _MOST_CHUNKS):
                    pass
                answer, problem = int(response.status_code), f"answer {response.status_code}"
        except (requests.RequestException, ValueError, OSError) as error:
            answer, problem = _NO_ANSWER, f"{type(error).__name__}: {error}"
        if not 200 <= answer < 300:
            with self._lock:
                self._counts["failures"] += 1
            self._complaints.log(problem.partition(":")[0], f"the controller did not take a report: {url}: {problem}")
        return answer

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _is_final(answer: int) -> bool:
    return 200 <= answer < 300 or _is_refused(answer)


def _is_refused(answer: int) -> bool:
    return 300 <= answer < 500 and answer not in _TRY_AGAIN
