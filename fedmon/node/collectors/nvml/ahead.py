"""Read ahead in a thread of its own what may take long, so that a reading is ready when a tick comes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from fedmon.common.clock import Deadline
from fedmon.node.collectors.base import CollectorUnavailableError, Why
from fedmon.node.collectors.nvml.library import AbsentError

logger = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_DISTANCE_S = 1.0
_MARGIN_S = 0.005
_MARGIN_RATIO = 1.5
_MAX_DOUBLINGS = 16


class ReadAhead(Generic[T]):
    """Calls ``read`` shortly before each tick, and hands each finished reading out once.

    Ticks are foreseen from the distance of the last ones. A reading that nobody took within ``max_age_s`` of its
    beginning is never handed out. ``read`` runs on the thread ``name`` alone and may take as long as it likes; when it
    raises AbsentError the thread ends for good. ``on_start`` and ``on_end`` run first and last on that thread. Every
    method is safe from any thread, and none but ``first`` waits.
    """

    def __init__(
        self,
        read: Callable[[], T],
        *,
        name: str,
        max_age_s: float,
        doing: Callable[[], str] = lambda: "",
        on_start: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._name, self._max_age_s, self._doing = read, name, max_age_s, doing
        self._on_start, self._on_end, self._monotonic = on_start, on_end, monotonic
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._newest: T | CollectorUnavailableError | None = None
        self._began = self._took_s = 0.0
        self._is_taken = True
        self._began_now: float | None = None
        self._last_take: float | None = None
        self._distances = (_FIRST_DISTANCE_S, _FIRST_DISTANCE_S)
        self._untaken = 0
        self._absent: AbsentError | None = None
        self._is_stuck = False

    def start(self) -> None:
        """Start the thread, which reads at once; nothing happens when it runs, or when there is nothing to read."""
        with self._changed:
            if self._thread is not None or self._absent is not None:
                return
            self._stopping, self._last_take, self._untaken, self._newest = False, None, 0, None
            # A call into a driver that hangs never returns, and must not keep the process from ending after `close`.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def take(self) -> T:
        """Return the newest reading. Raises CollectorUnavailableError when there is none that is new and fresh."""
        self.start()
        with self._changed:
            now = self._monotonic()
            self._foresee(now)
            if self._absent is not None:
                raise self._absent
            newest, taken, self._is_taken = self._newest, self._is_taken, True
            if newest is not None and not taken and now - self._began <= self._max_age_s:
                if isinstance(newest, CollectorUnavailableError):
                    raise newest
                return newest
            raise self._nothing(now)

    def first(self, deadline: Deadline) -> T:
        """Wait for the first reading, or return the newest, without taking it.

        Raises CollectorUnavailableError when there is none before the deadline, or it failed.
        """
        self.start()
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._absent is not None, deadline.left_s())
            if self._absent is not None:
                raise self._absent
            if self._newest is None:
                raise self._nothing(self._monotonic())
            if isinstance(self._newest, CollectorUnavailableError):
                raise self._newest
            return self._newest

    def close(self, timeout_s: float = 0.5) -> None:
        """End the thread; one that is stuck in a call is left behind, and said. ``take`` would start another."""
        with self._changed:
            thread, self._thread, self._stopping = self._thread, None, True
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
            if thread.is_alive():
                logger.warning("%s was left behind: it is stuck in %s", self._name, self._doing() or "a call")

    def _foresee(self, now: float) -> None:
        """Note a tick."""
        if self._last_take is not None:
            self._distances = (self._distances[1], now - self._last_take)
        self._last_take, self._untaken = now, 0
        self._changed.notify_all()

    def _due(self) -> float:
        """Return when to begin the next reading."""
        if self._newest is None and not self._untaken:
            return self._monotonic()
        # After a tick that came late the distance before it is still the right one. A tick that does not come is
        # awaited at doubling distances, so that a slower pace finds a fresh reading, and one that ended costs nothing.
        tick = (self._last_take or self._began) + min(self._distances) * (1 << min(self._untaken, _MAX_DOUBLINGS))
        return max(tick - self._took_s * _MARGIN_RATIO - _MARGIN_S, self._began + self._took_s)

    def _run(self) -> None:
        thread = threading.current_thread()
        self._on_start()
        try:
            while self._wait(thread):
                result = self._once()
                with self._changed:
                    if self._thread is not thread:
                        return
                    self._newest, self._is_taken = result, False
                    self._took_s = self._monotonic() - self._began
                    self._began_now, self._untaken = None, self._untaken + 1
                    if isinstance(result, AbsentError):
                        self._absent, self._thread = result, None
                    self._changed.notify_all()
                    if self._is_stuck:
                        self._is_stuck = False
                        logger.warning("%s answers again after %.1f s", self._name, self._took_s)
        finally:
            self._on_end()

    def _wait(self, thread: threading.Thread) -> bool:
        """Wait until the next reading is due; False when it is time to end."""
        with self._changed:
            while self._thread is thread and not self._stopping:
                left_s = self._due() - self._monotonic()
                if left_s <= 0:
                    self._began = self._began_now = self._monotonic()
                    return True
                self._changed.wait(left_s)
            return False

    def _once(self) -> T | CollectorUnavailableError:
        try:
            return self._read()
        except CollectorUnavailableError as error:
            return error
        except Exception as error:  # whatever a driver does, the thread goes on
            logger.debug("%s failed", self._name, exc_info=True)
            return CollectorUnavailableError(Why.FAILED, f"{type(error).__name__}: {error}"[:200])

    def _nothing(self, now: float) -> CollectorUnavailableError:
        """Say why there is no fresh reading."""
        began = self._began_now
        if began is not None and now - began > self._max_age_s:
            what = self._doing()
            if not self._is_stuck:
                self._is_stuck = True
                logger.warning("%s has had no answer for %.1f s: %s", self._name, now - began, what)
            return CollectorUnavailableError(Why.FAILED, f"no answer for {now - began:.1f} s{': ' * bool(what)}{what}")
        if self._newest is None:
            return CollectorUnavailableError(Why.FIRST_SAMPLE, "the first reading is not finished")
        return CollectorUnavailableError(Why.FAILED, "no new reading is finished; the pace changed or reading is slow")
