"""The engine of an experiment: it feeds the machine, does what that asks for, and wakes who waits."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol

from fedmon.common.errors import StorageError
from fedmon.experiment.alarms import alarms
from fedmon.experiment.errors import ExperimentOverError
from fedmon.experiment.events import (
    Action,
    Alarm,
    AnyEvent,
    Assign,
    Became,
    Call,
    Fired,
    Leveled,
    Reached,
    Removed,
    Timer,
    Verb,
)
from fedmon.experiment.journal import Journal
from fedmon.experiment.pool import Pool
from fedmon.experiment.situation import State
from fedmon.experiment.states import FailureLevel, ResourceState
from fedmon.experiment.step_safely import step_safely
from fedmon.experiment.waits import Wait, WaitResult, Waits, result_of, waited

logger = logging.getLogger(__name__)


_IDLE_S = 1.0


class Timers:
    """Calls ``fire`` with the keys whose moments have come, in their order; safe from any thread.

    Moments are Unix times by ``now``, which must not jump. ``fire`` runs in the thread of the timers and must not
    block.
    """

    def __init__(self, now: Callable[[], float], fire: Callable[[Hashable], None]) -> None:
        self._now, self._fire = now, fire
        self._changed = threading.Condition()
        self._moments: dict[Hashable, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def set(self, key: Hashable, at: float | None) -> None:
        """Have ``key`` fire at a moment instead of any it had before; null: never."""
        with self._changed:
            if len(self._heap) > 2 * len(self._moments) + 64:  # those taken back must not stay until their moments
                self._heap = [each for each in self._heap if self._moments.get(each[2]) == each[:2]]
                heapq.heapify(self._heap)
            if at is None or self._is_closed:
                self._moments.pop(key, None)
                return
            entry = (at, next(self._numbers))
            self._moments[key] = entry
            heapq.heappush(self._heap, (*entry, key))
            if self._thread is None:
                self._begin()
            elif self._heap[0][:2] == entry:
                self._changed.notify()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name="fedmon-experiment-timers", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            logger.exception("an experiment gets no thread for its timers; the next one that is set tries again")
            self._thread = None

    def clear(self) -> None:
        """Forget every moment."""
        with self._changed:
            self._moments.clear()
            self._heap.clear()

    def close(self) -> None:
        """Fire nothing more."""
        with self._changed:
            self._is_closed = True
            self._moments.clear()
            self._heap.clear()
            self._changed.notify()

    def _run(self) -> None:
        while (key := self._next()) is not None:
            try:
                self._fire(key[0])
            except Exception:  # all others still wait for their moments
                logger.exception("what was to be done at a moment failed")

    def _next(self) -> tuple[Hashable] | None:
        """Wait for the next moment and return its key; null when the thread is to end."""
        with self._changed:
            while not self._is_closed:
                while self._heap and self._moments.get(self._heap[0][2]) != self._heap[0][:2]:
                    heapq.heappop(self._heap)
                if not self._heap:
                    if not self._changed.wait(_IDLE_S) and not self._heap:
                        break
                    continue
                left_s = self._heap[0][0] - self._now()
                if left_s <= 0:
                    key = heapq.heappop(self._heap)[2]
                    del self._moments[key]
                    return (key,)
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
            self._thread = None
            return None


class SteadyClock:
    """Unix time in seconds that never jumps: the wall clock's when it was made, and the monotonic clock's since.

    It begins no earlier than ``after``: what was written down before must not lie ahead.
    """

    def __init__(self, *, after: float = 0.0) -> None:
        self._start = max(time.time(), after) - time.monotonic()

    def __call__(self) -> float:
        """Return the present moment."""
        return self._start + time.monotonic()


class Doer(Protocol):
    """Who does what the machine asks for."""

    def call(self, guid: int, verb: Verb, reason: str) -> None:
        """Call a verb, in a thread of the pool."""
        ...

    def assign(self, guid: int, name: str, value: Any) -> None:
        """Set an attribute, in a thread of the pool."""
        ...

    def failed(self, guid: int) -> None:
        """Look at a resource that failed; must not block."""
        ...

    def over(self, guids: Iterable[int]) -> None:
        """Hear who is FAILED, RELEASED or no more: nobody need wait for them any longer; must not block."""
        ...


class Engine:
    """Applies events one after the other, each to its end; safe from any thread.

    ``state`` is how things stand now. Where the journal cannot be written, the experiment counts as failed from then
    on, and can only be released; nobody else has its run before it is closed.
    """

    def __init__(
        self,
        doer: Doer,
        journal: Journal | None,
        *,
        state: State | None = None,
        after: float = 0.0,
        threads: int = 512,
    ) -> None:
        self.state = State() if state is None else state
        self.now = SteadyClock(after=after)
        self.pool = Pool(max_threads=threads, is_held=lambda: self._is_applying)
        self.timers = Timers(self.now, self._fire)
        self._doer, self._journal = doer, journal
        self._lock = threading.RLock()
        self._queue: deque[AnyEvent] = deque()
        self._is_applying = self._is_closed = self._is_journal_lost = False
        self._waits = Waits()

    def check_open(self) -> None:
        """Raise ExperimentOverError once it was closed."""
        if self._is_closed:
            raise ExperimentOverError("the experiment was shut down: make a new ExperimentController")

    def post(self, *wishes: AnyEvent) -> None:
        """Apply what somebody wants; when this returns, `state` is the one after it.

        Raises StorageError or UnwritableEventError, and nothing took effect, where it cannot be written down, and
        ExperimentOverError once it was closed.
        """
        self.check_open()
        self._take(wishes, self._write)

    def note(self, *facts: AnyEvent) -> None:
        """Apply what happened, whether it can be written down or not."""
        self._take(facts, self._write_on)

    def _take(self, happened: Sequence[AnyEvent], write: Callable[[Sequence[AnyEvent]], None]) -> None:
        with self._lock:
            if self._is_applying:  # whoever is called at once, in the midst of a step
                self._queue.extend(happened)
                return
            write(happened)
            self._queue.extend(happened)
            self._is_applying = True
            try:
                self._apply()
            finally:
                self._is_applying = False

    def wait(
        self,
        guids: Iterable[int],
        state: ResourceState,
        *,
        timeout_s: float | None,
        heeds_abort: bool = True,
        quit_asked: Callable[[], object] | None = None,
    ) -> WaitResult:
        """Wait until resources are at a state, a failure or ``quit_asked`` ends that, or the time is over."""
        wait = Wait(guids, state, heeds_abort=heeds_abort)
        with self._lock:
            self._waits.add(wait, self.state)
            if self._is_closed:
                wait.over.set()
        try:
            ending = waited(wait, timeout_s, quit_asked)
        finally:
            with self._lock:
                self._waits.remove(wait)
                seen = self.state
        return result_of(wait, seen, ending)

    def resume(self) -> None:
        """Set again the timers of a state that another process left, each for the moment it was meant for."""
        for alarm in alarms(self.state, self.now()):
            self.timers.set(alarm.timer, alarm.at)

    def stop(self) -> None:
        """Do nothing any more that was put off: drop timers and queued work, and end all waits."""
        self.timers.clear()
        self.pool.drop()
        with self._lock:
            self._waits.wake(is_abort=False)

    def close(self, *, timeout_s: float) -> int:
        """End the threads and the journal; return how many hooks are still at work."""
        self.timers.close()
        try:
            return self.pool.close(timeout_s=timeout_s)
        finally:
            with self._lock:
                self._is_closed = True
                self._waits.wake(is_abort=False)
                if self._journal is not None:
                    self._journal.close()
                    self._journal = None

    def _apply(self) -> None:
        while self._queue:
            event = self._queue.popleft()
            before = self.state
            self.state, asked = step_safely(before, event)
            if isinstance(event, Became):
                self._moved(event.guids, event.state)
            elif isinstance(event, Removed):
                self._moved(event.guids, ResourceState.RELEASED)
            if self.state.level is not before.level and not before.is_aborted:
                self._waits.wake(is_abort=True)
            if not asked:
                continue
            queued = len(self._queue)
            self._do(asked)
            if len(self._queue) > queued:
                self._write_on(list(self._queue)[queued:])

    def _moved(self, guids: Iterable[int], state: ResourceState) -> None:
        self._waits.moved(guids, state)
        if state >= ResourceState.FAILED:
            self._doer.over(guids)

    def _do(self, asked: Iterable[Action]) -> None:
        for action in asked:
            match action:
                case Call():
                    # Whatever ends something must not wait for a hook that does not end.
                    self._put(
                        action.verb in ("fail", "release"), self._doer.call, action.guid, action.verb, action.reason
                    )
                case Assign():
                    self._put(False, self._doer.assign, action.guid, action.name, action.value)  # noqa: FBT003
                case Alarm():
                    self.timers.set(action.timer, action.at)
                case Reached():
                    self._moved(action.guids, action.state)
                case _:
                    self._doer.failed(action.guid)

    def _put(self, is_urgent: bool, work: Callable[..., None], *arguments: Any) -> None:  # noqa: FBT001
        self.pool.put(lambda: work(*arguments), is_urgent=is_urgent)

    def _fire(self, key: Hashable) -> None:
        if isinstance(key, Timer):
            self.note(Fired(t=self.now(), timer=key))
        elif callable(key):
            self.pool.put(key)

    def _write(self, happened: Sequence[AnyEvent]) -> None:
        if self._journal is None or self._is_journal_lost:
            return
        try:
            self._journal.write(happened)
        except StorageError as error:
            self._lose_journal(error)
            raise

    def _write_on(self, happened: Sequence[AnyEvent]) -> None:
        with contextlib.suppress(StorageError):  # it was logged, and the experiment is over
            self._write(happened)

    def _lose_journal(self, error: StorageError) -> None:
        logger.error("%s; the experiment ends here, and can only be released", error)
        self._is_journal_lost = True  # its lock stays: nobody may take up the run while this process goes on with it
        lost = Leveled(t=self.now(), level=FailureLevel.EC_FAILURE, reason=str(error))
        self.state, asked = step_safely(self.state, lost)
        self._do(asked)
        self._waits.wake(is_abort=True)
