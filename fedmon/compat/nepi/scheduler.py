"""Tasks in the order of their due times: NEPI's `HeapScheduler` and `Task`."""

from __future__ import annotations

import datetime
import heapq
import math
import threading
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from fedmon.experiment.durations import moment
from fedmon.experiment.errors import InvalidTaskError
from fedmon.experiment.states import TaskStatus

Moment = float | datetime.datetime | str


class Task:
    """A callback and its due time: Unix seconds, a datetime, or 20 digits.

    ``result`` is the callback's result, or its traceback if ``status`` is ERROR. The scheduler sets ``id``. Raises
    InvalidTaskError, and InvalidTimeError for a text that is not a time.
    """

    __slots__ = ("callback", "due", "id", "result", "status", "timestamp")

    def __init__(self, timestamp: Moment, callback: Callable[[], Any]) -> None:
        if not callable(callback):
            raise InvalidTaskError(f"the callback of a task is {callback!r:.80}, which cannot be called")
        self.id: int | None = None
        self.timestamp = timestamp
        self.due = _due(timestamp)
        self.callback = callback
        self.status = TaskStatus.NEW
        self.result: Any = None

    def __repr__(self) -> str:
        return f"Task(id={self.id}, timestamp={self.timestamp!r}, status={self.status.name})"


class HeapScheduler:
    """Returns tasks by due time, and by id if due times are equal; ids count from 1. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, Task]] = []
        self._highest = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def pending(self) -> list[int]:
        """The ids of the scheduled tasks, in order."""
        with self._lock:
            return [number for _, number, _ in sorted(self._heap, key=itemgetter(0, 1))]

    def schedule(self, task: Task) -> Task:
        """Add a task; one that was scheduled before keeps its id and is due at its present timestamp only.

        Raises InvalidTaskError.
        """
        if not isinstance(task, Task):
            raise InvalidTaskError(f"{task!r:.80} is not a task: use Task(timestamp, callback)")
        task.due = _due(task.timestamp)
        with self._lock:
            if task.id is None:
                task.id = self._highest + 1
            else:
                self._take_out(task.id)
            self._highest = max(self._highest, task.id)
            heapq.heappush(self._heap, (task.due, task.id, task))
        return task

    def remove(self, tid: int) -> None:
        """Remove a task, if it is scheduled."""
        with self._lock:
            self._take_out(tid)

    def next(self) -> Task | None:
        """Remove the first task and return it; None if there is none."""
        with self._lock:
            return heapq.heappop(self._heap)[2] if self._heap else None

    __next__ = next  # noqa: A003 - NEPI has both

    def _take_out(self, tid: int) -> None:
        self._heap = [entry for entry in self._heap if entry[1] != tid]
        heapq.heapify(self._heap)


def _due(timestamp: Moment) -> float:
    if isinstance(timestamp, str):
        return moment(timestamp).timestamp()
    if isinstance(timestamp, datetime.datetime):
        return timestamp.timestamp()
    if type(timestamp) not in (int, float) or not math.isfinite(timestamp):
        raise InvalidTaskError(f"a task is due at Unix seconds, a datetime or 20 digits, not {timestamp!r:.80}")
    return float(timestamp)
