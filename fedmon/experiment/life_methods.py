"""The methods of a controller about what is done: verbs, deployment, waits, tasks, and the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedmon.experiment.delegate import Delegate, Guids
from fedmon.experiment.scheduler import Task
from fedmon.experiment.states import ResourceState
from fedmon.experiment.waits import WaitResult


class LifeMethods(Delegate):
    """What is done with an experiment."""

    def discover(self, guid: int) -> None:
        """Discover a resource."""
        self._book.get(guid).discover()

    def reserve(self, guid: int) -> None:
        """Reserve a resource."""
        self._book.get(guid).reserve()

    def provision(self, guid: int) -> None:
        """Provision a resource."""
        self._book.get(guid).provision()

    def start(self, guid: int) -> None:
        """Start a resource."""
        self._book.get(guid).start()

    def stop(self, guid: int) -> None:
        """Stop a resource."""
        self._book.get(guid).stop()

    def deploy(
        self,
        guids: Guids | None = None,
        wait_all_ready: bool = True,  # noqa: FBT001, FBT002 - NEPI's signature
        group: int | None = None,
    ) -> int:
        """Have resources deployed and started as their conditions say; all NEW ones where ``guids`` is null.

        Returns the id of their group. Raises ImpossiblePlanError naming what can never come, and ExperimentAbortedError
        once a failure ended the experiment.
        """
        return self._life.deploy(guids, wait_all_ready=wait_all_ready, group=group)

    def release(self, guids: Guids | None = None) -> WaitResult:
        """Release resources, all where ``guids`` is null, and wait for it."""
        return self._life.release(guids)

    def shutdown(self) -> None:
        """Drop what was put off, release everything, and end."""
        self._life.shutdown()

    def wait(
        self,
        guids: Guids,
        state: ResourceState,
        quit: Callable[[], object] | None = None,  # noqa: A002 - NEPI's name
        *,
        timeout: float | None = None,
    ) -> WaitResult:
        """Wait until resources are at a state at least, or ``quit()`` is true; ``timeout`` in seconds."""
        return self._life.wait(guids, state, timeout, quit)

    def wait_deployed(self, guids: Guids, *, timeout: float | None = None) -> WaitResult:
        """Wait until resources are READY at least."""
        return self._life.wait(guids, ResourceState.READY, timeout)

    def wait_started(self, guids: Guids, *, timeout: float | None = None) -> WaitResult:
        """Wait until resources are STARTED at least."""
        return self._life.wait(guids, ResourceState.STARTED, timeout)

    def wait_finished(self, guids: Guids, *, timeout: float | None = None) -> WaitResult:
        """Wait until resources are STOPPED at least."""
        return self._life.wait(guids, ResourceState.STOPPED, timeout)

    def wait_released(self, guids: Guids, *, timeout: float | None = None) -> WaitResult:
        """Wait until resources are RELEASED."""
        return self._life.wait(guids, ResourceState.RELEASED, timeout)

    def schedule(
        self,
        date: str | None,
        callback: Callable[[], Any],
        track: bool = False,  # noqa: FBT001, FBT002 - NEPI's signature
    ) -> int:
        """Have a callback run after a duration or at an absolute time; return the task's id.

        Raises InvalidTimeError, InvalidTaskError, and ExperimentOverError after `shutdown`.
        """
        return self._tasks.schedule(date, callback, is_tracked=track)

    def get_task(self, tid: int) -> Task:
        """Return a tracked task. Raises UnknownTaskError."""
        return self._tasks.get(tid)
