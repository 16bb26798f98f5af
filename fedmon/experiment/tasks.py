"""The tasks of an experiment: functions that are scheduled for later."""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import sys
import traceback
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedmon.experiment import nepi
from fedmon.experiment.durations import moment_of
from fedmon.experiment.engine import Engine, here
from fedmon.experiment.errors import InvalidStateError, InvalidTaskError, told
from fedmon.experiment.events import TaskDone, TaskScheduled
from fedmon.experiment.states import TaskStatus

if TYPE_CHECKING:
    from fedmon.compat.nepi.scheduler import Task

logger = logging.getLogger(__name__)

KEPT_TASKS = 1000
"""How many tracked tasks that are over are kept."""


class Tasks:
    """Numbers functions and has the engine call them; safe from any thread.

    A function of a module is noted in the journal, and called by a process that reconnects, too.
    """

    def __init__(self, engine: Engine, last: int) -> None:
        self._engine, self._numbers = engine, itertools.count(last + 1)
        self._tracked: dict[int, Task] = {}
        self._over: deque[int] = deque()
        self._left: dict[int, bool] = {}  # by number, whether the journal has it

    def add(self, date: str | None, callback: Callable[[], Any], *, is_tracked: bool) -> int:
        """Schedule a function for a time or after a duration; return its number. Raises as `schedule` does."""
        if not callable(callback):
            raise InvalidTaskError(f"a task calls something, and {callback!r:.80} cannot be called")
        self._engine.check_open()
        now = self._engine.now()
        at, number = moment_of(date, now=now), next(self._numbers)
        if is_tracked:
            self._tracked[number] = task = nepi("scheduler").Task(at, callback)
            task.id = number
        for hook in here.hooks:
            hook.has_scheduled = True
        function = _name_of(callback) if at > now else ""
        if function:
            self._engine.post(TaskScheduled(number=number, function=function, at=at))
        self._left[number] = bool(function)
        self._engine.at(at, functools.partial(self._run, number, callback))
        return number

    def get(self, number: int) -> Task | None:
        """Return a tracked task; None for another one."""
        return self._tracked.get(number)

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
        task = self._tracked.get(number)
        try:
            result, status = callback(), TaskStatus.DONE
        except BaseException as error:  # noqa: BLE001 - the exception is the task's result, sys.exit too
            is_known = here.reported is error or (isinstance(error, InvalidStateError) and error.is_over)
            logger.log(logging.DEBUG if is_known else logging.WARNING, "task %s failed: %s", number, told(error))
            result, status = traceback.format_exc() if task is not None else "", TaskStatus.ERROR
        if task is not None:
            task.result, task.status = result, status
            self._over.append(number)
            if len(self._over) > KEPT_TASKS:
                self._tracked.pop(self._over.popleft(), None)


def _name_of(function: Callable[[], Any]) -> str:
    """Return ``module:name`` of a function that another process can find by that; "" for any other."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not isinstance(module, str) or module == "__main__":  # which is another module in another process
        return ""
    is_found = getattr(sys.modules.get(module), name, None) is function
    return f"{module}:{name}" if is_found else ""
