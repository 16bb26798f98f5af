"""`python::Function`: a function as a resource; `ExperimentController.call` registers one."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any, cast

from fedmon.experiment.attributes import Attribute, Flags
from fedmon.experiment.check.graph import Problem, Severity
from fedmon.experiment.errors import ExperimentError, InvalidStateError, InvalidTaskError
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.resource import Experiment, ResourceManager, clsinit_copy
from fedmon.experiment.states import ResourceState

__all__ = ["Function", "prepared", "result_of"]  # types among them are registered

_LARGEST = 65_536


class ResultLostError(ExperimentError):
    """A function, or its result, was in a process that died."""


@clsinit_copy
class Function(ResourceManager):
    """STARTED while the function runs, STOPPED when it has returned, FAILED when it raised.

    Its result survives its process if JSON can hold it; the function does not: it FAILS in another process.
    """

    _rtype = "python::Function"
    _help = "A function of this process, which runs once: STOPPED when it has returned, FAILED when it raised."
    _platform = "python"
    _ends_itself = True
    own_attributes = (
        Attribute("function", "The name of the function.", flags=Flags.NoWrite | Flags.Reserved),
        Attribute("result", "The function's result, as JSON.", flags=Flags.NoWrite | Flags.Reserved),
    )

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self.function: Callable[[], Any] | None = None
        self.raised: BaseException | None = None
        self.returned: tuple[Any] | None = None

    def missing(self) -> list[Problem]:
        """Return a problem if this process does not have the function."""
        text = f"{self.name} is a function, which no file holds: make it by ec.call"
        severity: Severity = "error" if self.get("critical") else "warning"
        problem = Problem(kind="missing-part", severity=severity, guids=(self.guid,), text=text)
        return [] if self.function else [problem]

    def do_start(self) -> None:
        """Call it."""
        if self.returned is not None or self.get("result") is not None:
            self.warning("has run, and is not called again: ec.call makes another one")
            super().do_start()
            self.set_stopped()
            return
        if self.function is None:
            raise ResultLostError(f"{self.get('function') or 'its function'} is in no file: make it by ec.call")
        super().do_start()
        self.raised = None
        try:
            value = self.function()
        except BaseException as error:
            self.raised = error
            raise
        self.returned, self.function = (value,), None  # with its arguments, which may be large
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            text = json.dumps(value)
            if len(text) <= _LARGEST and json.loads(text) == value:
                self._set_own("result", text)
        self.set_stopped()

    def result(self) -> Any:
        """Return its result, or raise its exception. Raises InvalidStateError before, and ResultLostError."""
        if self.raised is not None:
            raise self.raised
        if not any(state is ResourceState.STOPPED for state, _ in self._seen().times):
            why = f": {self.reason}" if self.reason else "; wait_finished waits for it"
            raise InvalidStateError(f"{self.name} is {self.state.name}, and has no result{why}")
        if self.returned is not None:
            return self.returned[0]
        if self.get("result") is None:
            raise ResultLostError(f"the result of {self.name} was in a process that died")
        return json.loads(self.get("result"))


ResourceFactory.register_type(Function)


def prepared(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[ResourceManager], None]:
    """Return the attributes that give a resource its function. Raises InvalidTaskError if it cannot be called."""
    if not callable(function):
        raise InvalidTaskError(f"{function!r:.80} cannot be called: give a function, and its arguments after it")
    name = getattr(function, "__qualname__", type(function).__name__)

    def prepare(resource: ResourceManager) -> None:
        cast("Function", resource).function = lambda: function(*args)
        resource.take_stored({"function": f"{getattr(function, '__module__', sys.argv[0])}:{name}"})

    return prepare


def result_of(resource: ResourceManager) -> Any:
    """Return the result of a resource that `ExperimentController.call` made. Raises InvalidTaskError for another."""
    if not isinstance(resource, Function):
        raise InvalidTaskError(f"{resource.name} is not a function: ec.result is for resources of ec.call")
    return resource.result()
