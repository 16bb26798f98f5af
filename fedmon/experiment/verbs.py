"""How verbs of resources run: when they may, and what becomes of what their hooks raise."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, get_args

from fedmon.common.errors import FedmonError
from fedmon.experiment.errors import DeadlockError
from fedmon.experiment.events import Verb
from fedmon.experiment.states import ResourceState

if TYPE_CHECKING:
    from fedmon.experiment.resource import ResourceManager

logger = logging.getLogger("fedmon.experiment.resource")

_P = ParamSpec("_P")
_R = TypeVar("_R")
_BELOW_FAILED = tuple(state for state in ResourceState if state < ResourceState.FAILED)
_MAY: Mapping[str, tuple[ResourceState, ...]] = {
    "deploy": tuple(state for state in ResourceState if state <= ResourceState.READY),
    "start": (ResourceState.READY, ResourceState.STOPPED),
    "stop": (ResourceState.STARTED,),
}
_VERBS: frozenset[str] = frozenset(get_args(Verb))


class _Reported(threading.local):
    """Which exception of which resource this thread told last: one that goes on its way is told but once."""

    by: tuple[int, int] | None = None


_reported = _Reported()


def states_for(verb: str) -> tuple[ResourceState, ...]:
    """Return in which states a verb does something."""
    return _MAY.get(verb, _BELOW_FAILED)


def failtrap(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have a resource fail, or the verb tried again, when a method of its raises; the exception goes on its way.

    Within another verb of the same resource the exception only goes on: it is the outermost verb that failed.
    """

    @functools.wraps(method)
    def trapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        rm = cast("ResourceManager", args[0])
        if rm.turn.is_mine():
            return method(*args, **kwargs)
        _reported.by = None
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            _report(rm, method.__name__.removeprefix("do_"), error)
            raise

    return trapped


def perform(rm: ResourceManager, verb: str, reason: str = "") -> None:
    """Run a verb of a resource for the experiment; whatever it raises is noted, and goes no further.

    ``reason`` is why a resource is to fail. KeyboardInterrupt alone goes on.
    """
    if reason:
        rm.reason = reason
    _reported.by = None
    try:
        cast("Callable[[], Any]", getattr(rm, verb))()
    except BaseException as error:
        if verb == "release":
            rm.end(ResourceState.RELEASED)
        elif verb == "fail":
            rm.end(ResourceState.FAILED)
        _report(rm, verb, error)
        if isinstance(error, KeyboardInterrupt):
            raise


def told(error: BaseException) -> str:
    """Return an exception in one line, which can be written down."""
    text = _written(error)
    return text if isinstance(error, FedmonError) and text else f"{type(error).__name__}{text and f': {text}'}"


def as_reason(given: object) -> str:
    """Return why something failed as a text which can be written down, whatever a caller gave; "" for null."""
    if given is None:
        return ""
    return told(given) if isinstance(given, BaseException) else _written(given)


def _written(given: object) -> str:
    try:
        text = str(given)
    except Exception as error:  # noqa: BLE001 - the code of somebody else's class
        text = f"a {type(given).__name__} that cannot be shown: {type(error).__name__}"
    return text.encode(errors="backslashreplace").decode()


def _report(rm: ResourceManager, verb: str, error: BaseException) -> None:
    if _reported.by == (id(rm), id(error)):
        return
    if isinstance(error, DeadlockError) and error.refused == rm.name:
        return  # who called is to blame: the resource itself goes on with what it does
    _reported.by = (id(rm), id(error))
    # What we raise ourselves says what is wrong; where somebody's own code raised, its place is wanted, too.
    place = None if isinstance(error, FedmonError) else error
    logger.error("%s of %s failed: %s", verb, rm.name, told(error), exc_info=place)
    if verb == "release" or rm.state >= ResourceState.FAILED:
        return
    if verb in _VERBS:
        rm.ec._verb_failed(rm.guid, cast("Verb", verb), told(error))  # noqa: SLF001 - for resources alone
    else:
        rm.fail(f"{verb} failed: {told(error)}")
