"""One listener to the scalars of a run: however many come, one call at a time waits for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from fedmon.common.ids import NodeId
from fedmon.researcher.session.callbacks import Dispatcher, Subscription


class RunScalar(msgspec.Struct, frozen=True, kw_only=True):
    """One ``context.report`` of a plan on one node; see Scalar."""

    node_id: NodeId
    number: int
    t: float
    values: Mapping[str, float | None]
    step: int | None = None


class ScalarListener(Subscription):
    """Hands scalars to a callback in the order in which they came, each once, until removed. Safe from any thread."""

    def __init__(
        self,
        callback: Callable[[RunScalar], object],
        on_removed: Callable[[Subscription], None],
        dispatcher: Dispatcher,
    ) -> None:
        super().__init__(callback, on_removed)
        self._dispatcher = dispatcher
        self._lock = threading.Lock()
        self._waiting: deque[RunScalar] = deque()
        self._called = False

    def put(self, scalars: Iterable[RunScalar]) -> None:
        """Have the callback called with each."""
        with self._lock:
            self._waiting.extend(scalars)
            if self._called or not self._waiting:
                return
            self._called = True
        if not self._dispatcher.call(self, self._drained(), urgent=True):
            with self._lock:
                self._called = False

    def _drained(self) -> Iterator[RunScalar]:
        while True:
            with self._lock:
                if not self._waiting:
                    self._called = False
                    return
                scalar = self._waiting.popleft()
            yield scalar
