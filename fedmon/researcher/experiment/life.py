"""The life of an experiment: deploy, wait, release, shut down."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError
from fedmon.researcher.experiment.book import HIGHEST, Book
from fedmon.researcher.experiment.engine import Engine
from fedmon.researcher.experiment.errors import ExperimentOverError, InvalidExperimentError, InvalidTimeError
from fedmon.researcher.experiment.events import Became, DeployAsked, ReleaseAsked
from fedmon.researcher.experiment.planning import refuse_circles
from fedmon.researcher.experiment.states import ECState, FailureLevel, ResourceState
from fedmon.researcher.experiment.waits import WaitResult
from fedmon.researcher.experiment.wiring import guids_of, state_of

if TYPE_CHECKING:
    Guids = int | Iterable[int]

logger = logging.getLogger(__name__)

RELEASE_TIMEOUT_S = 60.0
"""How long releases may take before the experiment goes on without them."""
_CLOSE_S = 2.0


class Life:
    """Deploys and releases resources; safe from any thread.

    ``at_release`` is called whenever resources were released, ``at_end`` once, when the experiment is over.
    """

    def __init__(
        self,
        book: Book,
        engine: Engine,
        *,
        at_release: Callable[[], None] = lambda: None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._book, self._engine, self._at_release, self._at_end = book, engine, at_release, at_end
        self._lock = threading.Lock()
        self._is_released = self._is_terminated = self._is_ending = False
        self._ended = threading.Event()
        self.release_timeout_s = RELEASE_TIMEOUT_S

    @property
    def state(self) -> ECState:
        """How the controller is."""
        if self._is_terminated:
            return ECState.TERMINATED
        if self._engine.state.level is FailureLevel.EC_FAILURE:
            return ECState.FAILED
        return ECState.RELEASED if self._is_released else ECState.RUNNING

    def check_open(self) -> None:
        """Raise ExperimentOverError once `shutdown` was called."""
        if self._is_ending:
            raise ExperimentOverError("the experiment was shut down: make a new ExperimentController")

    def deploy(self, guids: Guids | None, *, wait_all_ready: bool, group: int | None) -> int:
        """Have resources deployed and started, all NEW ones where ``guids`` is null; return the group's id."""
        self.check_open()
        chosen = tuple(self._book.new()) if guids is None else guids_of(guids)
        for guid in chosen:
            self._book.get(guid)
        if group is not None and (type(group) is not int or not 0 <= group < HIGHEST):
            raise InvalidExperimentError(
                f"group {group!r} is no whole number from 0 to 2**63: leave it out to get a new one"
            )
        refuse_circles(self._engine.state, deploying=chosen, wait_all_ready=wait_all_ready)
        with self._lock:
            number = max(self._engine.state.groups, default=0) + 1 if group is None else group
            self._is_released = False
            self._engine.post(
                DeployAsked(t=self._engine.now(), guids=chosen, group=number, wait_all_ready=wait_all_ready)
            )
        return number

    def wait(
        self,
        guids: Guids,
        state: ResourceState,
        timeout_s: float | None,
        quit_asked: Callable[[], object] | None = None,
    ) -> WaitResult:
        """Wait until resources are at a state; a failure of the experiment ends that.

        Raises UnknownGuidError, InvalidConditionError for what is no state, and InvalidTimeError for a timeout that is
        no number.
        """
        chosen = guids_of(guids)
        for guid in chosen:
            self._book.get(guid)
        state = state_of(state)
        given: object = timeout_s
        if given is not None and (not isinstance(given, int | float) or math.isnan(given)):
            raise InvalidTimeError(timeout_s, "a timeout is a number of seconds")
        heeds_abort = state is not ResourceState.RELEASED
        return self._engine.wait(chosen, state, timeout_s=timeout_s, heeds_abort=heeds_abort, quit_asked=quit_asked)

    def release(self, guids: Guids | None) -> WaitResult:
        """Release resources, all where ``guids`` is null, and wait for it; return who was released.

        What has not released itself in time counts as released, with a reason that says so.
        """
        resources = self._book.all() if guids is None else [self._book.get(guid) for guid in guids_of(guids)]
        chosen = tuple(resource.guid for resource in resources)
        hard = [resource.guid for resource in resources if resource.get("hardRelease")]
        self._engine.note(ReleaseAsked(t=self._engine.now(), guids=chosen))
        found = self._engine.wait(chosen, ResourceState.RELEASED, timeout_s=self.release_timeout_s, heeds_abort=False)
        if found.timed_out:
            logger.error("resources %s did not release themselves in time", found.timed_out)
            reason = f"its release did not end within {self.release_timeout_s:g} s"
            self._engine.note(
                Became(t=self._engine.now(), guids=found.timed_out, state=ResourceState.RELEASED, reason=reason)
            )
        try:
            self._at_release()
        except FedmonError as error:
            logger.warning("the experiment was released, and could not be saved: %s", error)
        if hard:
            self._book.discard(hard)
        with self._lock:
            left = self._engine.state.resources.values()
            self._is_released = all(resource.state is ResourceState.RELEASED for resource in left)
        return found

    def shutdown(self) -> None:
        """Drop what was put off, release everything, and end; harmless when that was done before.

        Whoever comes second waits for the end, but for hooks and tasks, which the first one waits for.
        """
        with self._lock:
            is_second, self._is_ending = self._is_ending, True
        if is_second:
            if not self._engine.pool.is_mine():
                self._ended.wait(self.release_timeout_s + 2 * _CLOSE_S)
            return
        deadline = Deadline(self.release_timeout_s + _CLOSE_S)
        self._engine.stop()
        try:
            self.release(None)
            if not self._is_released:  # another thread has registered one meanwhile
                self.release(None)
        finally:
            with self._lock:
                self._is_terminated = True
            busy = self._engine.close(timeout_s=min(_CLOSE_S, deadline.left_s()))
            if busy:
                logger.warning("%d hooks of resources are still at work; they cannot be ended from outside", busy)
            try:
                self._at_end()
            finally:
                self._ended.set()
