"""The ways out of a reporter beside its sinks: a broker, and NEBULA's controller over HTTP."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import enum
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fedmon.common.actor import Actor
from fedmon.common.backoff import Backoff
from fedmon.common.clock import Deadline
from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.sample import USER_STREAM, Sample
from fedmon.common.metrics.series import series
from fedmon.common.settings import BrokerSettings, broker_from_url
from fedmon.common.wire.messages import Monitor
from fedmon.common.wire.samples import MonitorReply
from fedmon.compat.nebula.settings import ReporterSettings, section
from fedmon.node.measure.publisher import HOST_STREAM, Publisher, UserValues
from fedmon.node.requests.dialect import echo

if TYPE_CHECKING:
    import requests

    from fedmon.node.broker_link import BrokerLink

logger = logging.getLogger(__name__)

FINISHED = "user_scenario_finished"
REFUSAL = "this is a reporter: it tells what it measures, and keeps nothing to send again"
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
CLOSE_WITHIN_S = 1.0
MAX_TEXT = 8192
MAX_ENTRIES = 1024
_TRY_AGAIN = frozenset({408, 425, 429})
"""Refusals for the moment. Source: RFC 9110 section 15.5.9, RFC 8470 section 5.2, RFC 6585 section 4."""
_MAX_ANSWER_BYTES = 65_536


def status_body(participant: Mapping[str, Any], stamp: Mapping[str, Any]) -> bytes:
    """Return one status as JSON: the keys above, null if the participant has none, and ``stamp`` under "fedmon".

    A value that JSON cannot carry, and text that is too long, becomes null.
    """
    body: dict[str, dict[str, Any]] = {
        group: {name: _plain(section(participant, group).get(name)) for name in names} for group, names in SENT.items()
    }
    body |= {group: dict.fromkeys(names) for group, names in ABSENT.items()}
    return json.dumps({**body, "fedmon": dict(stamp)}, allow_nan=False).encode()


def _plain(value: object) -> Any:
    """Return a scalar or a list of scalars as JSON carries it, else None."""
    if isinstance(value, list | tuple | set | frozenset):
        entries = [entry for entry in map(_plain, value) if entry is not None and not isinstance(entry, list)]
        return (sorted(entries, key=str) if isinstance(value, set | frozenset) else entries)[:MAX_ENTRIES]
    is_plain = (
        (isinstance(value, str) and len(value) <= MAX_TEXT)
        or (isinstance(value, int) and abs(value) < 2**63)
        or (isinstance(value, float) and math.isfinite(value))
    )
    return value if is_plain else None


class ControllerCounts(NamedTuple):
    """The statuses so far: ``waiting`` may still arrive, ``dropped`` and ``refused`` never will."""

    queued: int = 0
    delivered: int = 0
    refused: int = 0
    dropped: int = 0
    waiting: int = 0
    failures: int = 0


class _Outcome(enum.Enum):
    OK = "200"
    OTHER_SUCCESS = "another success"
    REFUSED = "refused"
    FAILED = "failed"


class _End(NamedTuple):
    """The end of a scenario that waits for its confirmation; ``status`` goes once before it."""

    status: bytes
    body: bytes
    confirmed: concurrent.futures.Future[bool]


class Controller:
    """Posts statuses in their order, and the end of a scenario, over one connection of its own thread.

    A status that does not arrive is retried later and later; at most ``backlog`` wait, the oldest is dropped and
    counted. A status that the controller refuses (4xx) is not sent again. The end of a scenario goes before waiting
    statuses, and drops them once it is confirmed. No redirect is followed, no proxy of the environment is used. Every
    method but `stop` returns at once, and each is safe from any thread.
    """

    def __init__(
        self,
        *,
        status_url: str,
        done_url: str,
        user_agent: str,
        timeout_s: float = TIMEOUT_S,
        backlog: int = BACKLOG,
    ) -> None:
        self._status_url, self._done_url, self._timeout_s = status_url, done_url, timeout_s
        # A header holds no line ends, and only Latin-1.
        self._user_agent = "".join(letter for letter in user_agent if letter.isprintable() and letter.isascii())
        self._backlog, self._lock = backlog, threading.Lock()
        self._waiting: collections.deque[bytes] = collections.deque()
        self._ends: collections.deque[_End] = collections.deque()
        self._counts = ControllerCounts()
        self._actor: Actor | None = None
        self._session: requests.Session | None = None
        self._stop_by: Deadline | None = None
        self._retry, self._next_attempt = Backoff(FIRST_RETRY_S, longest_s=LAST_RETRY_S, jitter=0.5), 0.0

    def start(self) -> None:
        """Start the thread; does nothing while it runs."""
        if self._actor is None:
            self._stop_by, self._actor = None, Actor("fedmon-controller")
            self._actor.start()
            self._actor.post(self._send_all)

    def stop(self, timeout_s: float) -> None:
        """Send what waits as far as that succeeds at once, and end the thread, within about ``timeout_s``."""
        self._stop_by = Deadline(timeout_s)
        if self._actor is not None:
            if not self._actor.close(timeout_s=timeout_s + 0.1):
                logger.warning("a request to the controller is left to its timeout")
            elif self._session is not None:
                self._session.close()
            self._actor = self._session = None
        with self._lock:
            self._drop_all()
            ends = list(self._ends)
            self._ends.clear()
        for end in ends:
            end.confirmed.cancel()

    def status(self, body: bytes) -> None:
        """Queue one status."""
        with self._lock:
            self._count(queued=1)
            self._waiting.append(body)
            while len(self._waiting) > self._backlog:
                self._waiting.popleft()
                self._count(dropped=1)
        if self._actor is not None:
            self._actor.post(self._send_all)

    def finished(self, status: bytes, body: bytes) -> concurrent.futures.Future[bool]:
        """Queue the end of the scenario; the future is True once the controller said 200, False when it refused."""
        end = _End(status, body, concurrent.futures.Future())
        with self._lock:
            self._ends.append(end)
            self._next_attempt = 0.0
        if self._actor is not None:
            self._actor.post(self._send_all)
        return end.confirmed

    def counts(self) -> ControllerCounts:
        """Return the counts of statuses so far."""
        with self._lock:
            return self._counts._replace(waiting=len(self._waiting))

    def _count(self, **more: int) -> None:
        self._counts = self._counts._replace(**{name: getattr(self._counts, name) + add for name, add in more.items()})

    def _drop_all(self) -> None:
        self._count(dropped=len(self._waiting))
        self._waiting.clear()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        """Send until nothing waits, or an attempt failed; then it is tried again later."""
        is_sent = True
        while is_sent and time.monotonic() >= self._next_attempt:
            if self._stop_by is not None and (self._retry.attempts or self._stop_by.passed()):
                return
            with self._lock:
                while self._ends and self._ends[0].confirmed.cancelled():
                    self._ends.popleft()
                end = self._ends[0] if self._ends else None
                oldest = self._waiting[0] if self._waiting else None
            if end is not None:
                is_sent = self._send_end(end)
            elif oldest is not None:
                is_sent = self._send_oldest(oldest)
            else:
                return
            if is_sent:
                self._retry.reset()
        if not is_sent and self._actor is not None:
            self._retry.longest_s = END_RETRY_S if end is not None else LAST_RETRY_S
            self._next_attempt = time.monotonic() + self._retry.next_s()
            self._actor.at(self._next_attempt, self._send_all)

    def _send_oldest(self, body: bytes) -> bool:
        outcome = self._post(self._status_url, body)
        if outcome is _Outcome.FAILED:
            return False
        with self._lock:
            if self._waiting and self._waiting[0] is body:
                self._waiting.popleft()
            else:  # it was dropped meanwhile to make room
                self._count(dropped=-1)
            self._count(**{"refused" if outcome is _Outcome.REFUSED else "delivered": 1})
        return True

    def _send_end(self, end: _End) -> bool:
        if end.status:
            self._post(self._status_url, end.status)
            self._ends[0] = end = end._replace(status=b"")
        outcome = self._post(self._done_url, end.body)
        if outcome in (_Outcome.FAILED, _Outcome.OTHER_SUCCESS) and not end.confirmed.cancelled():
            return False
        with self._lock:
            self._ends.popleft()
            if outcome is _Outcome.OK:
                self._drop_all()
        if end.confirmed.set_running_or_notify_cancel():
            end.confirmed.set_result(outcome is _Outcome.OK)
        return True

    def _post(self, url: str, body: bytes) -> _Outcome:
        import requests  # here, in the thread: importing it takes a tenth of a second

        session = self._session
        if session is None:
            session = self._session = requests.Session()
            session.trust_env = False
            session.headers.update({"Content-Type": "application/json", "User-Agent": self._user_agent})
        left_s = self._timeout_s if self._stop_by is None else self._stop_by.left_s()
        timeout_s = max(0.05, min(self._timeout_s, left_s))
        try:
            with session.post(url, data=body, timeout=timeout_s, allow_redirects=False, stream=True) as response:
                # A connection is kept only when its answer was read to the end.
                read = 0
                for chunk in response.iter_content(8192):
                    read += len(chunk)
                    if read > _MAX_ANSWER_BYTES:
                        break
                status = int(response.status_code)
        except (requests.RequestException, ValueError, OSError) as error:
            return self._failed(_Outcome.FAILED, f"{url}: {type(error).__name__}: {error}")
        if 200 <= status < 300:
            return _Outcome.OK if status == 200 else _Outcome.OTHER_SUCCESS
        outcome = _Outcome.FAILED if status >= 500 or status in _TRY_AGAIN else _Outcome.REFUSED
        return self._failed(outcome, f"{url} answered {status}")

    def _failed(self, outcome: _Outcome, text: str) -> _Outcome:
        with self._lock:
            self._count(failures=1)
        level = logging.DEBUG if self._retry.attempts or self._counts.failures > 100 else logging.WARNING
        logger.log(level, "the controller did not take a report: %s", text)
        return outcome


class Outlets:
    """Broker and controller of one reporter; only `finish` and `close` wait.

    ``boot`` numbers this run in samples and statuses. `open` and `close` come in turns, from any thread.
    """

    def __init__(
        self,
        settings: ReporterSettings,
        *,
        broker: str | BrokerSettings | None = None,
        boot: int = 1,
        streams: list[str] | None = None,
        capabilities: Callable[[], Mapping[str, str | None]] = dict,
        http_timeout_s: float = TIMEOUT_S,
        backlog: int = BACKLOG,
    ) -> None:
        self._settings, self._boot, self._capabilities = settings, boot, capabilities
        self._streams = [HOST_STREAM, *(streams or []), USER_STREAM]
        self._broker = broker_from_url(broker) if isinstance(broker, str) else broker
        self._link: BrokerLink | None = None
        self._connections = self._statuses = 0
        self._problems: set[str] = set()
        self._publisher: Publisher | None = None
        self.user_values: UserValues | None = None
        if broker is not None:
            self._publisher = Publisher(
                node_id=settings.node_id,
                boot=boot,
                send=lambda payload: self._link is not None and self._link.send(payload),
                leaves=lambda _name: True,
                interval_s=settings.report_frequency,
            )
            self.user_values = UserValues(self._publisher.publish)
        self._controller: Controller | None = None
        if settings.controller is not None:
            self._controller = Controller(
                status_url=settings.status_url,
                done_url=settings.done_url,
                user_agent=f"NEBULA Participant {settings.idx}",
                timeout_s=http_timeout_s,
                backlog=backlog,
            )

    def open(self) -> None:
        """Begin to connect; returns at once."""
        if self._broker is not None:
            from fedmon.node.broker_link import BrokerLink

            self._link = BrokerLink(
                self._broker,
                node_id=self._settings.node_id,
                boot=self._boot,
                streams=lambda: self._streams,
                monitor=self._granted,
                refusal=REFUSAL,
                connections=self._connections,
            )
            self._link.start()
        if self._controller is not None:
            self._controller.start()

    def close(self, timeout_s: float = CLOSE_WITHIN_S) -> None:
        """Send what was gathered, and end the connections."""
        self.flush()
        if self._link is not None:
            self._link.stop(timeout_s)
            self._connections = self._link.connections
            self._link = None
        if self._controller is not None:
            self._controller.stop(timeout_s)

    def publish(self, stream: str, sample: Sample) -> None:
        """Take a sample of a stream; for the sampler."""
        if self._publisher is not None:
            self._publisher.publish(stream, sample)

    def flush(self) -> None:
        """Send the samples that were gathered."""
        if self._publisher is not None:
            self._publisher.flush()

    def value(self, name: str, value: Any, t: float) -> None:
        """Publish one value of the program; one that is no number goes to the sinks alone."""
        if self.user_values is None:
            return
        try:
            self.user_values.add_scalar(name, value, t=t)
        except InvalidInputError as error:
            level = logging.DEBUG if name in self._problems or len(self._problems) > 100 else logging.WARNING
            logger.log(level, "a value goes to the sinks alone: %s", error)
            self._problems.add(name)

    def status(self, participant: Mapping[str, Any], t: float) -> None:
        """Queue the participant's status for the controller."""
        if self._controller is not None:
            self._controller.status(self._status_body(participant, t))

    def counts(self) -> ControllerCounts:
        """Return the counts of statuses; all 0 without a controller."""
        return ControllerCounts() if self._controller is None else self._controller.counts()

    async def finish(self, participant: Mapping[str, Any], timeout_s: float) -> bool:
        """Tell the end of the scenario until it is confirmed; False when it was not in time.

        A controller confirms with 200; without one the broker does, by showing that it holds our last presence.
        """
        held = asyncio.create_task(self._tell_broker(self._link, timeout_s)) if self._link is not None else None
        try:
            if self._controller is not None:
                return await self._tell_controller(self._controller, participant, timeout_s)
            return held is not None and await held
        finally:
            if held is not None and not held.done():
                held.cancel()
                await asyncio.wait({held})

    async def _tell_controller(self, controller: Controller, participant: Mapping[str, Any], timeout_s: float) -> bool:
        # The old controller is told the end alone, the later one a last status before.
        status = b"" if self._settings.generation == "old" else self._status_body(participant, time.time())
        controller.start()
        confirmed = controller.finished(status, json.dumps({"idx": self._settings.idx}).encode())
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.wrap_future(confirmed), timeout_s)
        return False

    async def _tell_broker(self, link: BrokerLink, timeout_s: float) -> bool:
        scenario = self._settings.scenario
        sample = Sample(t=time.time(), mono=time.monotonic(), values={series(FINISHED, scenario=scenario): 1.0})
        self.publish(USER_STREAM, sample)
        self.flush()
        link.finish(f"scenario {scenario} finished"[:200])
        given_up = threading.Event()
        try:
            return await asyncio.to_thread(link.wait_held, timeout_s, given_up=given_up)
        finally:
            given_up.set()

    def _status_body(self, participant: Mapping[str, Any], t: float) -> bytes:
        self._statuses += 1
        stamp = {"node_id": self._settings.node_id, "boot": self._boot, "sequence": self._statuses, "t": round(t, 3)}
        return status_body(participant, stamp)

    def _granted(self, request: Monitor) -> MonitorReply | None:
        """Answer `monitor`; None for a resend."""
        if request.action == "resend":
            return None
        found = dict(self._capabilities())
        return MonitorReply(
            action=request.action,
            interval_s=self._settings.report_frequency,
            streams=self._streams,
            capabilities=found,
            metrics=sorted(name for name, reason in found.items() if reason is None),
            **echo(request, self._settings.node_id),
        )
