"""The life of an experiment: deploy, wait, release, shut down."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError
from fedmon.experiment.book import HIGHEST, Book, is_set
from fedmon.experiment.check.plan import refuse_impossible
from fedmon.experiment.engine import Engine
from fedmon.experiment.errors import (
    DeadlockError,
    ExperimentAbortedError,
    ExperimentOverError,
    InvalidExperimentError,
    InvalidTaskError,
    InvalidTimeError,
)
from fedmon.experiment.events import Became, DeployAsked, ReleaseAsked
from fedmon.experiment.hook_calls import guids_within
from fedmon.experiment.states import ECState, FailureLevel, ResourceState
from fedmon.experiment.turns import awaiting
from fedmon.experiment.waits import WaitResult
from fedmon.experiment.wiring import guids_of, state_of

if TYPE_CHECKING:
    from fedmon.experiment.protocol import Experiment, Guids
    from fedmon.experiment.resource import ResourceManager

logger = logging.getLogger(__name__)


_MANY = 1000


@contextlib.contextmanager
def collector_at_rest(resources: int) -> Iterator[None]:
    """Have the collector look at nothing while something is done with many resources; then it is as it was before.

    A step over thousands of resources makes so many that it would look at all of them again and again, and find
    nothing: a sixth of the time of such a step.
    """
    was_on = gc.isenabled() and resources >= _MANY
    if was_on:
        gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


RELEASE_TIMEOUT_S = 60.0
"""How long releases may take before the experiment goes on without them."""
_CLOSE_S = 2.0
OWN_PATIENCE_S = 5.0
"""How long a hook that releases all, itself among them, waits for the others, which may wait for it."""
HURRY_S = 1.0
"""How long they may take once somebody lost patience."""
_LONGEST_S = 10**15


class Life:
    """Deploys and releases resources; safe from any thread.

    ``heed`` has the failure manager asked how bad it is; ``at_release`` is called whenever resources were released,
    ``at_end`` once, when the experiment is over.
    """

    def __init__(
        self,
        ec: Experiment,
        book: Book,
        engine: Engine,
        *,
        heed: Callable[[], None] = lambda: None,
        at_release: Callable[[], None] = lambda: None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._ec, self._book, self._engine = ec, book, engine
        self._heed, self._at_release, self._at_end = heed, at_release, at_end
        self._lock = threading.Lock()
        self._is_released = self._is_terminated = self._is_ending = False
        self._ended = threading.Event()
        self.release_timeout_s, self.own_patience_s = RELEASE_TIMEOUT_S, OWN_PATIENCE_S

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

    def check_deployable(self) -> None:
        """Raise ExperimentOverError once `shutdown` was called, and ExperimentAbortedError once a failure ended it."""
        self.check_open()
        state = self._engine.state
        if state.is_aborted:
            raise ExperimentAbortedError(
                f"the experiment was ended by a failure, and nothing more is deployed: {state.level_reason}; "
                f"release it, and make a new ExperimentController"
            )

    def deploy(self, guids: Guids | None, *, wait_all_ready: bool, group: int | None) -> int:
        """Have resources deployed and started, all NEW ones where ``guids`` is null; return the group's id."""
        self.check_deployable()
        chosen = tuple(self._book.new()) if guids is None else guids_of(guids)
        for guid in chosen:
            self._book.get(guid)
        if group is not None and (type(group) is not int or not 0 <= group < HIGHEST):
            raise InvalidExperimentError(
                f"group {group!r} is no whole number from 0 to 2**63: leave it out to get a new one"
            )
        refuse_impossible(
            self._engine.state,
            deploying=chosen,
            group=group,
            wait_all_ready=bool(wait_all_ready),
            names=self._book.names,
            asked_for=self._book.asked_for,
        )
        with self._lock, collector_at_rest(len(chosen)):
            number = max(self._engine.state.groups, default=0) + 1 if group is None else group
            self._is_released = False
            self._engine.post(
                DeployAsked(t=self._engine.now(), guids=chosen, group=number, wait_all_ready=bool(wait_all_ready))
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

        Raises UnknownGuidError, InvalidConditionError for what is no state, InvalidTimeError for a timeout that is no
        number, InvalidTaskError for a ``quit_asked`` that is no function, and DeadlockError for a hook that would wait
        for what only comes after it.
        """
        chosen = guids_of(guids)
        for guid in chosen:
            self._book.get(guid)
        state = state_of(state)
        _check_timeout(timeout_s)
        if quit_asked is not None and not callable(quit_asked):
            raise InvalidTaskError(
                f"quit is {quit_asked!r:.80}, and must be a function that tells whether to end the wait"
            )
        if timeout_s is None and quit_asked is None:
            self._refuse_own(chosen, state)
        self._heed()
        heeds_abort = state is not ResourceState.RELEASED
        return self._engine.wait(chosen, state, timeout_s=timeout_s, heeds_abort=heeds_abort, quit_asked=quit_asked)

    def _refuse_own(self, guids: tuple[int, ...], state: ResourceState) -> None:
        own = guids_within(self._ec, None if state < ResourceState.FAILED else "release").intersection(guids)
        for guid in own:
            seen = self._engine.state.resources.get(guid)
            if seen is not None and seen.state < state:
                raise DeadlockError("", f"{self._book.get(guid).name} waits in a hook of its own to be {state.name}")

    def release(self, guids: Guids | None) -> WaitResult:
        """Release resources, all where ``guids`` is null, and wait for it; return who was released.

        What has not released itself in time counts as released, with a reason that says so. Within the hook of a
        release, that one goes on, and is not waited for; those who wait for it themselves hold it up a moment only.
        """
        resources = self._book.all() if guids is None else [self._book.get(guid) for guid in guids_of(guids)]
        own = guids_within(self._ec, "release")
        resources = [resource for resource in resources if resource.guid not in own]
        patience_s = self.own_patience_s if own and guids is None else None
        if not guids_within(self._ec):
            found = self._released(resources, resources)
        else:
            with awaiting([resource.turn for resource in resources if self._book.has_code(resource)]) as circular:
                awaited = [each for each in resources if not circular or each.turn not in circular]
                found = self._released(resources, awaited, patience_s=patience_s)
        try:
            self._at_release()
        except FedmonError as error:
            logger.warning("the experiment was released, and could not be saved: %s", error)
        hard = [resource.guid for resource in resources if _is_hard(resource) and self._is_over(resource.guid)]
        if hard:
            self._book.discard(hard)
        with self._lock:
            left = self._engine.state.resources.values()
            self._is_released = all(resource.state is ResourceState.RELEASED for resource in left)
        return found

    def _released(
        self,
        resources: Sequence[ResourceManager],
        awaited: Sequence[ResourceManager],
        *,
        patience_s: float | None = None,
    ) -> WaitResult:
        """Have resources released, and wait for some of them; after ``patience_s`` the others stay as they are."""
        with collector_at_rest(len(resources)):
            self._engine.note(ReleaseAsked(t=self._engine.now(), guids=tuple(resource.guid for resource in resources)))
        chosen = tuple(resource.guid for resource in awaited)
        timeout_s = self.release_timeout_s if patience_s is None else min(patience_s, self.release_timeout_s)
        found = self._engine.wait(chosen, ResourceState.RELEASED, timeout_s=timeout_s, heeds_abort=False)
        if not found.timed_out or patience_s is not None:
            return found
        logger.error("resources %s did not release themselves in time", found.timed_out)
        self._end_at_once(found.timed_out, f"its release did not end within {self.release_timeout_s:g} s")
        return found

    def _end_at_once(self, guids: Iterable[int], reason: str) -> None:
        """Have resources RELEASED whose release nobody waits for any longer; what they run ends without grace."""
        late = tuple(guids)
        for guid in late:
            try:
                self._book.get(guid).end_at_once()
            except Exception:  # a type's own code; the others are to end, too
                logger.exception("resource %d could not be ended at once", guid)
        self._engine.note(Became(t=self._engine.now(), guids=late, state=ResourceState.RELEASED, reason=reason))

    def shutdown(self) -> None:
        """Drop what was put off, release everything, and end; harmless when that was done before.

        Whoever comes second waits for the end, but for hooks and tasks, which the first one waits for. An interrupt has
        it hurry, and goes on its way at the end.
        """
        with self._lock:
            is_second, self._is_ending = self._is_ending, True
        if is_second:
            if not self._engine.pool.is_mine() and not guids_within(self._ec):
                self._ended.wait(self.release_timeout_s + 2 * _CLOSE_S)
            return
        deadline = Deadline(self.release_timeout_s + _CLOSE_S)
        self._engine.stop()
        try:
            self._release_all()
        except KeyboardInterrupt:
            self.release_timeout_s = min(self.release_timeout_s, HURRY_S)
            self._release_all()
            raise
        finally:
            try:
                self._end(deadline)
            finally:
                self._ended.set()

    def _end(self, deadline: Deadline) -> None:
        left = [guid for guid in self._book.guids if not self._is_over(guid)]
        try:
            if left:
                self._end_at_once(left, "the experiment ended before its release did")
        finally:
            with self._lock:
                self._is_terminated = True
            try:
                busy = self._engine.close(timeout_s=min(_CLOSE_S, deadline.left_s()))
                if busy:
                    logger.warning("%d hooks of resources are still at work; they cannot be ended from outside", busy)
            finally:
                self._at_end()

    def _release_all(self) -> None:
        own = tuple(guids_within(self._ec, "release"))
        if own:  # others may wait for this one, which goes on only when they are released
            self._engine.note(Became(t=self._engine.now(), guids=own, state=ResourceState.RELEASED))
        self.release(None)
        if not self._is_released:  # another thread has registered one meanwhile
            self.release(None)

    def _is_over(self, guid: int) -> bool:
        seen = self._engine.state.resources.get(guid)
        return seen is None or seen.state is ResourceState.RELEASED


def _is_hard(resource: ResourceManager) -> bool:
    try:
        return is_set(resource, "hardRelease")
    except FedmonError:  # a type may forbid that it is read
        return False


def _check_timeout(timeout_s: object) -> None:
    match timeout_s:
        case None:
            return
        case bool():
            is_well = False
        case int():
            is_well = abs(timeout_s) < _LONGEST_S
        case float():
            is_well = not math.isnan(timeout_s)
        case _:
            is_well = False
    if not is_well:
        raise InvalidTimeError(timeout_s, "a timeout is a number of seconds")
