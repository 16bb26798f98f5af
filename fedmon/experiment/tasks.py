"""Tasks of an experiment: callbacks that run at a moment, in a thread of the pool."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedmon.experiment import nepi
from fedmon.experiment.durations import moment_of
from fedmon.experiment.engine import Engine
from fedmon.experiment.errors import UnknownTaskError
from fedmon.experiment.hook_calls import note_scheduled
from fedmon.experiment.states import TaskStatus

if TYPE_CHECKING:
    from fedmon.compat.nepi.scheduler import Task

logger = logging.getLogger(__name__)


class Tasks:
    """The tasks that are still to run, and those whose results somebody asked to keep; safe from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers = itertools.count(1)
        self._tracked: dict[int, Task] = {}
        self._lock = threading.Lock()

    def schedule(self, date: str | None, callback: Callable[[], Any], *, is_tracked: bool) -> int:
        """Have ``callback`` run after a duration or at an absolute time; null: now. Return the task's id.

        Raises InvalidTimeError, and ExperimentOverError once nothing is done any more.
        """
        self._engine.check_open()
        at = moment_of(date, now=self._engine.now())
        with self._lock:
            task: Task = nepi("scheduler").Task(at, callback)
            task.id = next(self._numbers)
            if is_tracked:
                self._tracked[task.id] = task
        note_scheduled()
        work = functools.partial(_run, task)
        if at <= self._engine.now():
            self._engine.pool.put(work)
        else:
            self._engine.timers.set(work, at)
        return task.id

    def get(self, task_id: object) -> Task:
        """Return a task that is tracked. Raises UnknownTaskError."""
        task = self._tracked.get(task_id) if isinstance(task_id, int) else None
        if task is None:
            raise UnknownTaskError(f"there is no tracked task {task_id}: only those scheduled with track=True are kept")
        return task


def _run(task: Task) -> None:
    try:
        task.result = task.callback()
        task.status = TaskStatus.DONE
    except BaseException as error:  # noqa: BLE001 - whatever the callback raises is the task's result, sys.exit too
        logger.warning("task %s failed: %s: %s", task.id, type(error).__name__, error)
        task.result = traceback.format_exc()
        task.status = TaskStatus.ERROR
