"""NEPI's `HeapScheduler` and `Task`: tasks in the order of their due times."""

from __future__ import annotations

import bisect
import dataclasses
import datetime
import threading
from collections.abc import Callable
from typing import Any

from fedmon.experiment.durations import moment
from fedmon.experiment.states import TaskStatus

Moment = float | datetime.datetime | str


@dataclasses.dataclass(eq=False, slots=True)
class Task:
    """A callback and its due time: Unix seconds, a datetime, or 20 digits.

    ``result`` is the callback's result, or its traceback if ``status`` is ERROR. The scheduler sets ``id``. Raises
    InvalidTimeError for a text that is not a time.
    """

    timestamp: Moment
    callback: Callable[[], Any]
    id: int | None = None
    status: TaskStatus = TaskStatus.NEW
    result: Any = None

    def __post_init__(self) -> None:
        _ = self.due

    @property
    def due(self) -> float:
        """The due time in Unix seconds."""
        found = moment(self.timestamp) if isinstance(self.timestamp, str) else self.timestamp
        return found.timestamp() if isinstance(found, datetime.datetime) else float(found)


class HeapScheduler:
    """A queue of tasks by due time, then by id; ids count from 1. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: list[tuple[float, int, Task]] = []  # sorted; no two have the same id
        self._highest = 0

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def pending(self) -> list[int]:
        """The ids of the scheduled tasks, in order."""
        with self._lock:
            return [number for _, number, _ in self._tasks]

    def schedule(self, task: Task) -> Task:
        """Add a task; one that was scheduled before keeps its id and moves to its present timestamp."""
        due = task.due
        with self._lock:
            if task.id is None:
                task.id = self._highest + 1
            else:
                self._take_out(task.id)
            self._highest = max(self._highest, task.id)
            bisect.insort(self._tasks, (due, task.id, task))
        return task

    def remove(self, tid: int) -> None:
        """Remove a task, if it is scheduled."""
        with self._lock:
            self._take_out(tid)

    def next(self) -> Task | None:
        """Remove the first task and return it; None if there is none."""
        with self._lock:
            return self._tasks.pop(0)[2] if self._tasks else None

    __next__ = next  # noqa: A003 - NEPI has both

    def _take_out(self, tid: int) -> None:
        self._tasks = [entry for entry in self._tasks if entry[1] != tid]
