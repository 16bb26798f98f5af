"""Whose turn it is with a resource: one verb at a time, and nobody waits for ever for a hook that does not end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from fedmon.experiment.errors import DeadlockError


class _Waiter:
    __slots__ = ("even_if_over", "event", "has_turn", "thread")

    def __init__(self, thread: int, *, even_if_over: bool) -> None:
        self.thread, self.even_if_over = thread, even_if_over
        self.event, self.has_turn = threading.Event(), False


# One lock for all turns is held for microseconds, and lets a circle of waiting threads be seen before it closes.
_guard = threading.Lock()
_waits: dict[int, Turn] = {}
_awaited: dict[int, tuple[Turn, ...]] = {}
"""Whose release a thread waits for, from within a hook."""


class Turn:
    """A lock of one resource that its owner may take again; safe from any thread."""

    __slots__ = ("_depth", "_waiters", "name", "owner")

    def __init__(self, name: str) -> None:
        self.name = name
        self.owner: int | None = None
        self._depth = 0
        self._waiters: list[_Waiter] | None = None

    def is_mine(self) -> bool:
        """Tell whether the calling thread has the turn."""
        return self.owner == threading.get_ident()

    def take(
        self, *, timeout_s: float | None = None, is_over: Callable[[], bool] = lambda: False, even_if_over: bool = False
    ) -> bool:
        """Wait for the turn; false where it did not come in time, or the resource was over before.

        Raises DeadlockError where the thread that has it waits for one that the caller has.
        """
        me = threading.get_ident()
        with _guard:
            if self.owner == me:
                self._depth += 1
                return True
            if not even_if_over and is_over():
                return False
            if self.owner is None:
                self.owner, self._depth = me, 1
                return True
            if timeout_s is not None and timeout_s <= 0:
                return False
            if timeout_s is None:
                self._refuse_circle(me)
            elif self in _awaited.get(self.owner, ()):  # who has the turn waits for what the caller is about to do
                return False
            waiter = _Waiter(me, even_if_over=even_if_over)
            self._waiters = [*(self._waiters or ()), waiter]
            _waits[me] = self
        try:
            waiter.event.wait(timeout_s)
        except BaseException:
            with _guard:
                self._leave(waiter)
            if waiter.has_turn:
                self.give()
            raise
        with _guard:
            self._leave(waiter)
        return waiter.has_turn

    def give(self) -> None:
        """Give the turn back: the next one who waits has it."""
        with _guard:
            self._depth -= 1
            if self._depth:
                return
            self.owner = None
            if self._waiters:
                waiter = self._waiters.pop(0)
                self.owner, self._depth, waiter.has_turn = waiter.thread, 1, True
                _waits.pop(waiter.thread, None)
                waiter.event.set()

    def dismiss(self) -> None:
        """Have nobody wait any longer but those who have something to do even with a resource that is over."""
        with _guard:
            for waiter in self._waiters or ():
                if not waiter.even_if_over:
                    waiter.event.set()
            self._waiters = [waiter for waiter in self._waiters or () if waiter.even_if_over] or None

    def _leave(self, waiter: _Waiter) -> None:
        _waits.pop(waiter.thread, None)
        if self._waiters and waiter in self._waiters:
            self._waiters.remove(waiter)

    def _refuse_circle(self, me: int) -> None:
        turn: Turn | None = self
        names = []
        while turn is not None and turn.owner is not None:
            names.append(turn.name)
            if turn.owner == me:
                raise DeadlockError(self.name, " -> ".join([*names, self.name]))
            turn = _waits.get(turn.owner)

    def _let_on(self) -> None:
        """Have those go on without the turn who would do something with the resource all the same."""
        for waiter in self._waiters or ():
            if waiter.even_if_over:
                waiter.event.set()


@contextmanager
def awaiting(turns: Iterable[Turn]) -> Iterator[frozenset[Turn]]:
    """Say that the calling thread, which is in a hook, waits for the release of resources.

    Those releases do not wait for the turn that it has. Yields the turns of those who wait for the caller themselves.
    """
    me = threading.get_ident()
    asked = tuple(turns)
    with _guard:
        circular = frozenset(turn for turn in asked if turn.owner != me and _leads_to(turn, me))
        before, _awaited[me] = _awaited.get(me, ()), tuple(turn for turn in asked if turn not in circular)
        for turn in _awaited[me]:
            if turn.owner == me:
                turn._let_on()  # noqa: SLF001 - the guard of all turns is held
    try:
        yield circular
    finally:
        with _guard:
            if before:
                _awaited[me] = before
            else:
                del _awaited[me]


def _leads_to(turn: Turn, thread: int) -> bool:
    """Tell whether a turn is had by a thread that waits, at last, for the one of ``thread``."""
    left, seen = [turn], set[int]()
    while left:
        owner = left.pop().owner
        if owner == thread:
            return True
        if owner is not None and owner not in seen:
            seen.add(owner)
            left += [*_awaited.get(owner, ()), *filter(None, [_waits.get(owner)])]
    return False
