"""Tasks in the order of their moments: NEPI's `HeapScheduler` and `Task`."""

from __future__ import annotations

import datetime
import heapq
import math
import threading
from collections.abc import Callable
from typing import Any

from fedmon.experiment.durations import moment
from fedmon.experiment.errors import InvalidTaskError
from fedmon.experiment.states import TaskStatus

__all__ = ["HeapScheduler", "Task", "TaskStatus"]

Moment = float | datetime.datetime | str


class Task:
    """A callback and when it is due: Unix seconds, a datetime, or 20 digits.

    ``result`` is what the callback returned, or the text of its traceback where ``status`` is ERROR; ``id`` is given by
    the scheduler. Raises InvalidTaskError, and InvalidTimeError for a text that is no moment.
    """

    __slots__ = ("callback", "due", "id", "result", "status", "timestamp")

    def __init__(self, timestamp: Moment, callback: Callable[[], Any]) -> None:
        if not callable(callback):
            raise InvalidTaskError(f"a task calls something, and {callback!r} cannot be called")
        self.id: int | None = None
        self.timestamp = timestamp
        self.due = _due(timestamp)
        self.callback = callback
        self.status = TaskStatus.NEW
        self.result: Any = None

    def __repr__(self) -> str:
        return f"Task(id={self.id}, timestamp={self.timestamp!r}, status={self.status.name})"


class HeapScheduler:
    """Gives out tasks by moment, and by id where moments are the same; ids count from 1. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, int]] = []
        # Which entry of the heap counts for a task, so that one that was scheduled again comes but once.
        self._valid: dict[int, tuple[int, Task]] = {}
        self._entries = 0
        self._highest = 0

    def __len__(self) -> int:
        return len(self._valid)

    @property
    def pending(self) -> list[int]:
        """The ids of the tasks that are still to come, in their order."""
        with self._lock:
            return [number for _, number, entry in sorted(self._heap) if self._is_valid(number, entry)]

    def schedule(self, task: Task) -> Task:
        """Take a task; one that was scheduled before keeps its id, and comes at its present moment only.

        Raises InvalidTaskError for what is none.
        """
        if not isinstance(task, Task):
            raise InvalidTaskError(f"{task!r:.80} is no task: take Task(timestamp, callback)")
        due = task.due = _due(task.timestamp)
        with self._lock:
            if task.id is None:
                task.id = self._highest + 1
            self._highest = max(self._highest, task.id)
            self._entries += 1
            self._valid[task.id] = (self._entries, task)
            heapq.heappush(self._heap, (due, task.id, self._entries))
            self._forget_invalid()
        return task

    def remove(self, tid: int) -> None:
        """Have a task not come any more; nothing where it is not pending."""
        with self._lock:
            if isinstance(tid, int):
                self._valid.pop(tid, None)
            self._forget_invalid()

    def next(self) -> Task | None:
        """Take the first task out and return it; null where none is pending."""
        with self._lock:
            while self._heap:
                _, number, entry = heapq.heappop(self._heap)
                if self._is_valid(number, entry):
                    return self._valid.pop(number)[1]
            return None

    def _is_valid(self, number: int, entry: int) -> bool:
        found = self._valid.get(number)
        return found is not None and found[0] == entry

    def _forget_invalid(self) -> None:
        # Entries of removed tasks stay until there are more of them than others: that costs nothing per task.
        if len(self._heap) > 2 * len(self._valid) + 64:
            self._heap = [each for each in self._heap if self._is_valid(each[1], each[2])]
            heapq.heapify(self._heap)


def _due(timestamp: Moment) -> float:
    if isinstance(timestamp, str):
        return moment(timestamp).timestamp()
    if isinstance(timestamp, datetime.datetime):
        return timestamp.timestamp()
    if not _is_number(timestamp):
        raise InvalidTaskError(f"a task is due at Unix seconds, a datetime or 20 digits, not {timestamp!r}")
    return float(timestamp)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
