"""User callbacks: those of one subscription in order, and on another thread than those of others."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

from fedmon.common.actor import BULK_BOUND, URGENT_BOUND, Backlog, Bound, Priority
from fedmon.common.errors import InvalidInputError
from fedmon.researcher.session.inbox import Tally

logger = logging.getLogger(__name__)

STOP_WAITS_S = 1.0
LINGER_S = 5.0
"""A thread that had nothing to call for this long ends."""
MAX_THREADS = 64
MAX_BYTES = 16 * 1024 * 1024
"""Of urgent calls, and of bulk calls, that wait for one subscription, by their stated size."""
_REMOVING = threading.Lock()
_URGENT, _BULK = (bound._replace(size_bytes=MAX_BYTES) for bound in (URGENT_BOUND, BULK_BOUND))


class _Call(NamedTuple):
    values: Iterable[Any]
    on_success: Callable[[], object] | None


class Subscription:
    """One callback of a user, until it is removed. Safe from any thread; also a context manager that removes it.

    ``urgent`` bounds the urgent calls that wait. Raises InvalidInputError for a callback that cannot be called.
    """

    def __init__(
        self, callback: Callable[..., object], on_removed: Callable[[Any], None], *, urgent: Bound = _URGENT
    ) -> None:
        if not callable(callback):
            raise InvalidInputError(f"callback is {callback!r}: give a function")
        self.callback = callback
        self.removed = False
        self.errors = 0
        self._on_removed = on_removed
        self.calls = Backlog[_Call](urgent, _BULK)
        self.is_queued = False

    def remove(self) -> None:
        """End it: the callback is not called again, but for a call that runs just now."""
        with _REMOVING:
            was_removed, self.removed = self.removed, True
        if not was_removed:
            self._on_removed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()


class Dispatcher:
    """Calls back: the calls of one subscription one after the other, in order, those of others at the same time.

    Each subscription has a bounded queue. While its callback is too slow, further bulk calls (samples, logs) are
    dropped and counted; urgent ones have a queue beside them. `call` is safe from any thread and never waits. Threads
    are started as calls need them, at most 64.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._changed = threading.Condition()
        self._queue: deque[Subscription] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def stop(self) -> None:
        """Run the calls that wait, and end; a callback that takes longer than a second is left behind."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._threads <= {threading.current_thread()}, STOP_WAITS_S)

    def has_room(self, subscription: Subscription, share: float = 1.0) -> bool:
        """Tell whether bulk calls fill less than this share of their queue; a full one takes none."""
        with self._changed:
            return subscription.calls.has_room(share)

    def call(
        self,
        subscription: Subscription,
        values: Iterable[Any],
        *,
        urgent: bool,
        size_bytes: int = 0,
        on_success: Callable[[], object] | None = None,
    ) -> bool:
        """Queue calls of a callback, one for each value; False when dropped.

        ``values`` is iterated on the callback's thread; ``on_success`` is called after them when none failed.
        """
        with self._changed:
            if self._closed:
                return False
            priority = Priority.URGENT if urgent else Priority.BULK
            taken = subscription.calls.put(_Call(values, on_success), priority, size_bytes)
            if taken and not subscription.is_queued:
                subscription.is_queued = True
                self._queue.append(subscription)
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
                subscription = self._queue.popleft()
                call = subscription.calls.take()
            if call is not None:
                self._serve(subscription, call)
            with self._changed:
                subscription.is_queued = len(subscription.calls) > 0
                if subscription.is_queued:
                    self._queue.append(subscription)

    def _serve(self, subscription: Subscription, call: _Call) -> None:
        worked = True
        for value in call.values:
            worked = not subscription.removed and self._one(subscription, value) and worked
            if subscription.removed:
                break
        if worked and call.on_success is not None:
            call.on_success()

    def _one(self, subscription: Subscription, value: Any) -> bool:
        try:
            subscription.callback(value)
        except (Exception, SystemExit):
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
