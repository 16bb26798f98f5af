"""User callbacks, each subscription's in order and on a thread beside the others, so that none delays another."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Self

from fedmon.common.errors import InvalidInputError
from fedmon.researcher.session.lanes import Lanes
from fedmon.researcher.session.tally import Tally

logger = logging.getLogger(__name__)

STOP_WAITS_S = 1.0
LINGER_S = 5.0
"""A thread that had nothing to call for this long ends."""
MAX_THREADS = 64
LANE_BYTES = 16 * 1024 * 1024
"""Of memory for each subscription, by what the entries are said to weigh."""

Entry = tuple[Iterable[Any], Callable[[], None] | None]


class Subscription:
    """One callback of a user, until it is removed. Safe from any thread; also a context manager that removes it.

    Raises InvalidInputError for what cannot be called.
    """

    def __init__(self, callback: Callable[..., object], on_removed: Callable[[Subscription], None]) -> None:
        if not callable(callback):
            raise InvalidInputError(f"callback is {callback!r}: give a function")
        self.callback = callback
        self.removed = False
        self.errors = 0
        self._on_removed = on_removed
        # These belong to the dispatcher.
        self.waiting: Lanes[Entry] | None = None
        self.is_queued = False

    def remove(self) -> None:
        """End it: the callback is not called again, but for a call that runs just now."""
        if not self.removed:
            self.removed = True
            self._on_removed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()


class Dispatcher:
    """Calls back: one subscription's calls one after the other, in order, those of others at the same time.

    Each subscription has a bounded queue: of what is plenty (samples, logs) the newest is dropped and counted while its
    callback is too slow, the rest has a lane beside it. `call` is safe from any thread and never waits. Threads are
    started as calls need them, at most 64.
    """

    def __init__(self, tally: Tally, *, on_room: Callable[[], None] | None = None) -> None:
        self._tally, self._on_room = tally, on_room
        self._changed = threading.Condition()
        self._queue: deque[tuple[Subscription, Lanes[Entry]]] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def stop(self) -> None:
        """Run what is waiting, and end; a callback that takes longer than a second is left behind."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._threads <= {threading.current_thread()}, STOP_WAITS_S)

    def has_room(self, subscription: Subscription) -> bool:
        """Tell whether what is plenty is taken now; after a no, ``on_room`` is called when it is again."""
        return subscription.waiting is None or subscription.waiting.has_room()

    def call(
        self,
        subscription: Subscription,
        values: Iterable[Any],
        *,
        urgent: bool,
        size_bytes: int = 0,
        on_success: Callable[[], None] | None = None,
    ) -> bool:
        """Let a callback be called with each value; False when dropped.

        ``values`` is iterated on the callback's thread; ``on_success`` is called after them when none failed.
        """
        with self._changed:
            if self._closed:
                return False
            lanes = subscription.waiting
            if lanes is None:
                # One at a time, so that what was taken is not beyond the bound.
                lanes = subscription.waiting = Lanes(lane_bytes=LANE_BYTES, bulk_at_once=1, on_room=self._on_room)
            taken = lanes.put((values, on_success), urgent=urgent, size_bytes=size_bytes)
            if taken and not subscription.is_queued:
                subscription.is_queued = True
                self._queue.append((subscription, lanes))
                self._have_served()
        if not taken:
            self._tally.count("callbacks dropped: too slow", _name(subscription.callback))
        return taken

    def _have_served(self) -> None:
        if self._idle >= len(self._queue) or len(self._threads) >= MAX_THREADS:
            self._changed.notify()
            return
        thread = threading.Thread(target=self._run, name=f"fedmon-callbacks-{len(self._threads)}", daemon=True)
        thread.start()
        self._threads.add(thread)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: bool(self._queue) or self._closed, LINGER_S)
                self._idle -= 1
                if not self._queue:
                    self._threads.discard(threading.current_thread())
                    self._changed.notify_all()
                    return
                subscription, lanes = self._queue.popleft()
            self._serve(subscription, lanes)
            with self._changed:
                subscription.is_queued = len(lanes) > 0
                if subscription.is_queued:
                    self._queue.append((subscription, lanes))

    def _serve(self, subscription: Subscription, lanes: Lanes[Entry]) -> None:
        urgent, bulk = lanes.take(timeout_s=0.0)
        for values, on_success in (*urgent, *bulk):
            worked = True
            for value in values:
                worked = not subscription.removed and self._one(subscription, value) and worked
                if subscription.removed:
                    break
            if worked and on_success is not None:
                on_success()

    def _one(self, subscription: Subscription, value: Any) -> bool:
        try:
            subscription.callback(value)
        except Exception:
            subscription.errors += 1
            self._tally.count("callback errors", quiet=True)
            if subscription.errors == 1:
                logger.exception(
                    "callback %s failed; its further errors are only counted", _name(subscription.callback)
                )
            return False
        return True


def _name(callback: Callable[..., object]) -> str:
    return getattr(callback, "__qualname__", repr(type(callback)))
