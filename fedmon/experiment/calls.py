"""Functions of users: tasks, which are scheduled for later, and `python::Function`, a function as a resource."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import itertools
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from fedmon.experiment import nepi
from fedmon.experiment.attributes import Attribute, Flags
from fedmon.experiment.check.graph import Problem, Severity
from fedmon.experiment.durations import moment_of
from fedmon.experiment.engine import Engine, here
from fedmon.experiment.errors import ExperimentError, InvalidStateError, InvalidTaskError, told
from fedmon.experiment.events import TaskDone, TaskScheduled
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.resource import Experiment, ResourceManager
from fedmon.experiment.states import ResourceState, TaskStatus

if TYPE_CHECKING:
    from fedmon.compat.nepi.scheduler import Task

logger = logging.getLogger(__name__)

__all__ = ["Function", "Tasks", "prepared"]  # types among them are registered


class Tasks:
    """Numbers functions and has the engine call them; safe from any thread.

    A function of a module is noted in the journal, and called by a process that reconnects, too. ``tracked`` has those
    whose outcome a caller asks for.
    """

    def __init__(self, engine: Engine, last: int) -> None:
        self._engine, self._numbers = engine, itertools.count(last + 1)
        self.tracked: dict[int, Task] = {}
        self._left: dict[int, bool] = {}  # by number, whether the journal has it

    def add(self, date: str | None, callback: Callable[[], Any], *, is_tracked: bool) -> int:
        """Schedule a function for a time or after a duration; return its number. Raises as `schedule` does."""
        _check_callable(callback)
        self._engine.check_open()
        now = self._engine.now()
        at, number = moment_of(date, now=now), next(self._numbers)
        if is_tracked:
            self.tracked[number] = task = nepi("scheduler").Task(at, callback)
            task.id = number
        for hook in here.hooks:
            hook.has_scheduled = True
        function = _name_of(callback) if at > now else ""
        if function:
            self._engine.post(TaskScheduled(number=number, function=function, at=at))
        self._left[number] = bool(function)
        self._engine.at(at, functools.partial(self._run, number, callback))
        return number

    def resume(self, left: TaskScheduled) -> None:
        """Schedule a task again that another process left."""
        module, _, name = left.function.partition(":")

        def found() -> object:
            return getattr(importlib.import_module(module), name)()

        self._left[left.number] = True
        self._engine.at(left.at, functools.partial(self._run, left.number, found))

    def drop(self) -> None:
        """Drop the tasks that have not run."""
        for number in list(self._left):
            if self._left.pop(number, False):
                self._engine.note(TaskDone(number=number))

    def _run(self, number: int, callback: Callable[[], Any]) -> None:
        is_noted = self._left.pop(number, None)
        if is_noted is None:  # it was dropped
            return
        if is_noted:
            self._engine.note(TaskDone(number=number))
        task = self.tracked.get(number)
        try:
            result, status = callback(), TaskStatus.DONE
        except BaseException as error:  # noqa: BLE001 - the exception is the task's result, sys.exit too
            is_known = here.reported is error or (isinstance(error, InvalidStateError) and error.is_over)
            logger.log(logging.DEBUG if is_known else logging.WARNING, "task %s failed: %s", number, told(error))
            result, status = traceback.format_exc() if task is not None else "", TaskStatus.ERROR
        if task is not None:
            task.result, task.status = result, status


def _check_callable(function: object) -> None:
    if not callable(function):
        raise InvalidTaskError(f"{function!r:.80} cannot be called: give a function, and not its result")
    if any(map(inspect.iscoroutinefunction, (function, type(function).__call__))):
        raise InvalidTaskError(f"{function!r:.80} is a coroutine function: give one that calls asyncio.run with it")


def _name_of(function: Callable[[], Any]) -> str:
    """Return ``module:name`` of a function that another process can find by that; "" for any other."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not isinstance(module, str) or module == "__main__":  # which is another module in another process
        return ""
    is_found = getattr(sys.modules.get(module), name, None) is function
    return f"{module}:{name}" if is_found else ""


# --- functions as resources -------------------------------------------------------------------------------------------

_LARGEST = 65_536


class ResultLostError(ExperimentError):
    """A function, or its result, was in a process that died."""


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
        self._raised: Callable[[], BaseException] | None = None
        self.returned: tuple[Any] | None = None

    def foreseen_here(self) -> Iterator[Problem]:
        """Yield a problem if this process does not have the function."""
        if self.function is None:
            text = f"{self.name} is a function, which no file holds: make it by ec.call"
            severity: Severity = "error" if self.get("critical") else "warning"
            yield Problem(kind="missing-part", severity=severity, guids=(self.guid,), text=text)

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
        self._raised = None
        try:
            value = self.function()
            if inspect.iscoroutine(value):
                value.close()  # else Python warns that it never ran
                raise InvalidTaskError("it returned a coroutine: call asyncio.run with that")
        except BaseException as error:
            self._raised = functools.partial(error.with_traceback, error.__traceback__)  # else it grows with each raise
            raise
        self.returned, self.function = (value,), None  # with its arguments, which may be large
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            text = json.dumps(value)
            if len(text) <= _LARGEST and json.loads(text) == value:
                self._set_own("result", text)
        self.set_stopped()

    def result(self) -> Any:
        """Return its result, or raise its exception. Raises InvalidStateError before, and ResultLostError."""
        if self._raised is not None:
            raise self._raised()
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
    _check_callable(function)
    name = getattr(function, "__qualname__", type(function).__name__)

    def prepare(resource: ResourceManager) -> None:
        cast("Function", resource).function = lambda: function(*args)
        resource.take_stored({"function": f"{getattr(function, '__module__', sys.argv[0])}:{name}"})

    return prepare
