"""Which hooks of resources the calling thread is in, and whether they put something off."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from fedmon.experiment.protocol import Experiment
    from fedmon.experiment.resource import ResourceManager


class HookCall:
    """A hook of a resource that runs in this thread, for as long as the block."""

    __slots__ = ("has_scheduled", "rm", "verb")

    def __init__(self, rm: ResourceManager, verb: str) -> None:
        self.rm, self.verb = rm, verb
        self.has_scheduled = False

    def __enter__(self) -> Self:
        _here.calls.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _here.calls.remove(self)


class _Here(threading.local):
    def __init__(self) -> None:
        self.calls: list[HookCall] = []


_here = _Here()


def is_within(rm: ResourceManager, verb: str) -> bool:
    """Tell whether this thread is in the hook of a verb of a resource."""
    return any(call.rm is rm and call.verb == verb for call in _here.calls)


def guids_within(ec: Experiment, verb: str | None = None) -> frozenset[int]:
    """Return of which resources of an experiment this thread is in the hook of a verb, or in any hook."""
    if not _here.calls:
        return frozenset()
    return frozenset(call.rm.guid for call in _here.calls if call.rm.is_of(ec) and (verb is None or call.verb == verb))


def note_scheduled() -> None:
    """Note that the hook that this thread is in put something off."""
    if _here.calls:
        _here.calls[-1].has_scheduled = True
