"""Hooks that run: in which ones the calling thread is, and what becomes of what they raise."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from fedmon.experiment.errors import DeadlockError, InvalidStateError
from fedmon.experiment.states import ResourceState

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Hook:
    """A hook that runs in the calling thread, for as long as the block; ``name`` is "" around a whole verb."""

    __slots__ = ("has_scheduled", "is_abandoned", "name", "rm", "thread")

    def __init__(self, rm: Any, name: str) -> None:
        self.rm, self.name, self.thread = rm, name, threading.get_ident()
        self.has_scheduled = self.is_abandoned = False

    def __enter__(self) -> Self:
        here.hooks.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        here.hooks.remove(self)


class _Here(threading.local):
    """The hooks that the calling thread is in, and the last exception of one that was reported."""

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.reported: BaseException | None = None

    def is_in(self, rm: object, name: str | None = None) -> bool:
        """Tell whether the thread is in a hook of a resource, or in the one of a name."""
        return any(hook.rm is rm and name in (None, hook.name) for hook in self.hooks)


here = _Here()


def note_scheduled() -> None:
    """Note that the hooks that this thread is in have put something off."""
    for hook in here.hooks:
        hook.has_scheduled = True


def was_reported(error: BaseException) -> bool:
    """Tell whether an exception was reported in this thread as the failure of a verb."""
    return here.reported is error


def guids_within(ec: object, name: str | None = None) -> frozenset[int]:
    """Return of which resources of an experiment this thread is in a hook, or in the one of a name."""
    return frozenset(each.rm.guid for each in here.hooks if each.rm.is_of(ec) and name in (None, each.name))


def refuse_own_wait(ec: object, resources: Iterable[Any], state: ResourceState) -> None:
    """Raise DeadlockError if this thread is in a hook of one of the resources, which then never comes to the state."""
    own = guids_within(ec, None if state < ResourceState.FAILED else "release")
    for resource in resources:
        if resource.guid in own and resource.state < state:
            raise DeadlockError(f"{resource.name} would wait in a hook of its own to be {state.name}")


def failtrap(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have a resource fail, or the verb tried again, when a method of its raises; the exception goes on its way.

    Within a hook of the same resource the exception only goes on: it is the verb that fails.
    """

    @functools.wraps(method)
    def trapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        rm: Any = args[0]
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            if not (here.is_in(rm) or was_reported(error) or isinstance(error, InvalidStateError)):
                rm.trap(method.__name__.removeprefix("do_"), error)
            raise

    return trapped


def perform(rm: object, verb: str) -> None:
    """Call a verb of a resource from outside; its failure is noted, and goes no further."""
    with contextlib.suppress(Exception):
        getattr(rm, verb)()
