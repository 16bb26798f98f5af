"""Calling what users gave us, on a thread of its own, so that neither their time nor their errors disturb us."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Self

from fedmon.researcher.lanes import Lanes
from fedmon.researcher.tally import Tally

logger = logging.getLogger(__name__)

STOP_WAITS_S = 1.0
LANE_BYTES = 16 * 1024 * 1024
"""Of memory, by what the entries are said to weigh."""


class Subscription:
    """One callback of a user, until it is removed. Safe from any thread; also a context manager that removes it."""

    def __init__(self, callback: Callable[..., object], on_removed: Callable[[Subscription], None]) -> None:
        self.callback = callback
        self.removed = False
        self.errors = 0
        self._on_removed = on_removed

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
    """Runs callbacks one after the other, in order. `call` is safe from any thread and never waits.

    What is plenty (samples, logs) is dropped and counted when callbacks are too slow; the rest has a lane of its own.
    """

    def __init__(self, tally: Tally, *, on_room: Callable[[], None] | None = None) -> None:
        self._tally = tally
        # One at a time: what is urgent waits for one slow batch, and what was taken is not beyond the bound.
        self._lanes: Lanes[tuple[Subscription, Iterable[Any], Callable[[], None] | None]] = Lanes(
            lane_bytes=LANE_BYTES, bulk_at_once=1, on_room=on_room
        )
        self._thread = threading.Thread(target=self._run, name="fedmon-callbacks", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Run what is waiting, and end; a callback that takes longer than a second is left behind."""
        self._lanes.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(STOP_WAITS_S)

    def has_room(self) -> bool:
        """Tell whether what is plenty is taken now; after a no, ``on_room`` is called when it is again."""
        return self._lanes.has_room()

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

        ``values`` is iterated on the thread of the callbacks; ``on_success`` is called after them when none failed.
        """
        entry = (subscription, values, on_success)
        if self._lanes.put(entry, urgent=urgent, size_bytes=size_bytes):
            return True
        self._tally.count("callbacks dropped: too slow", _name(subscription.callback))
        return False

    def _run(self) -> None:
        while True:
            urgent, bulk = self._lanes.take(timeout_s=None)
            for subscription, values, on_success in (*urgent, *bulk):
                worked = True
                for value in values:
                    worked = not subscription.removed and self._one(subscription, value) and worked
                if worked and on_success is not None:
                    on_success()
            if self._lanes.closed and not len(self._lanes):
                return

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
