"""The engine of an experiment: journals events, steps the pure machine, and performs its actions."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar

import msgspec

from fedmon.common.actor import Actor
from fedmon.common.clock import Deadline
from fedmon.common.errors import StorageError
from fedmon.experiment.errors import DeadlockError, ExperimentOverError, InvalidStateError
from fedmon.experiment.events import (
    Abandon,
    Action,
    Alarm,
    AnyEvent,
    Assign,
    Call,
    Fired,
    Inform,
    Leveled,
    Reached,
    Removed,
    Verb,
    VerbBegan,
)
from fedmon.experiment.journal import Journal
from fedmon.experiment.machine import alarms, due_at, step_safely
from fedmon.experiment.situation import State
from fedmon.experiment.states import FailureLevel, ResourceState

_P = ParamSpec("_P")
_R = TypeVar("_R")
logger = logging.getLogger(__name__)

_QUIT_S = 0.1
_IDLE_S = 0.5
"""How long a thread for hooks waits for its next job."""
_THREAD_RETRY_S = 0.1
Kind = Literal["verb", "ending", "other"]


class WaitResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a wait, by guids: resources that reached the state, that failed, and that timed out.

    ``aborted``: a failure of the experiment, or its shutdown, ended the wait; ``left`` are the resources that were on
    their way when that, or the caller's own function, ended it. ``reason`` says why not all reached the state,
    ``reasons`` why each failed.
    """

    reached: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    timed_out: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    aborted: bool = False
    reason: str = ""
    reasons: dict[int, str] = {}

    def __bool__(self) -> bool:
        """Tell whether all reached the state."""
        return not (self.failed or self.timed_out or self.left)


class HookJob:
    """A call for `Hooks`. Jobs of kind "verb" have a limit; those of kind "ending" survive `Hooks.drop`."""

    __slots__ = ("call", "kind")

    def __init__(self, call: Callable[[], object], kind: Kind = "other") -> None:
        self.call, self.kind = call, kind


class Hooks:
    """A pool of daemon threads; safe from any thread.

    Every job gets a thread, however many others block; but at most ``max_running`` verbs run at once. A thread takes
    the next job when its own returns, and ends after a moment without one. A job that is left behind has no slot,
    and nothing waits for it. ``later`` calls a function a moment later.
    """

    def __init__(self, max_running: int | None, later: Callable[[Callable[[], None]], None]) -> None:
        self._max_running, self._later = max_running, later
        self._changed = threading.Condition(threading.Lock())
        self._verbs: deque[HookJob] = deque()
        self._others: deque[HookJob] = deque()
        self._running: set[HookJob] = set()
        # Threads that are idle; that were woken and do not run yet; that were woken or started and have no job yet.
        self._idle = self._called = self._coming = 0
        self._is_closed = False

    def put(self, job: HookJob) -> None:
        """Run a job as soon as there is a thread and a slot for it; after `close` it is dropped."""
        with self._changed:
            if not self._is_closed:
                (self._verbs if job.kind == "verb" else self._others).append(job)
        self.start()

    def start(self) -> None:
        """Call or start a thread, if a job could run and no thread is coming for it."""
        with self._changed:
            if self._coming or self._ready() is None:
                return
            self._coming += 1
            if self._idle:
                self._idle, self._called = self._idle - 1, self._called + 1
                self._changed.notify()
                return
        try:
            threading.Thread(target=self._work, name="fedmon-experiment-hook", daemon=True).start()
        except RuntimeError as error:
            with self._changed:
                self._coming -= 1
            logger.warning("hooks wait until a thread can be started: %s", error)
            with contextlib.suppress(RuntimeError):  # then the next job tries again
                self._later(self.start)

    def leave(self, job: HookJob) -> None:
        """Free the slot of a job that may never end."""
        with self._changed:
            self._running.discard(job)
            self._changed.notify_all()
        self.start()

    def is_mine(self) -> bool:
        """Tell whether the calling thread runs one of its jobs."""
        return here.job in self._running

    def drop(self) -> None:
        """Drop the jobs that wait, but for releases and failures, and lift the limit."""
        with self._changed:
            self._verbs.clear()
            self._others = deque(job for job in self._others if job.kind == "ending")
            self._max_running = None

    def close(self, *, timeout_s: float) -> int:
        """Begin nothing more and wait for running jobs, but for the caller's; return how many are left."""
        own = int(self.is_mine())
        with self._changed:
            self._is_closed = True
            self._verbs.clear()
            self._others.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._running) <= own, timeout_s)
            return len(self._running) - own

    def _ready(self) -> deque[HookJob] | None:
        """Return the queue whose first job may run now."""
        if self._others:
            return self._others
        if self._max_running is not None and sum(job.kind == "verb" for job in self._running) >= self._max_running:
            return None
        return self._verbs or None

    def _work(self) -> None:
        job: HookJob | None = None
        while (job := self._next(job)) is not None:
            here.job = job
            try:
                job.call()
            except BaseException:  # SystemExit of a hook must not end the thread
                logger.exception("a job of an experiment failed")

    def _next(self, done: HookJob | None) -> HookJob | None:
        """Return the next job, or None if none comes for a while."""
        with self._changed:
            if done is None:
                self._coming -= 1
            else:
                self._running.discard(done)
                if self._is_closed:
                    self._changed.notify_all()
            while (queue := self._ready()) is None:
                if self._is_closed:
                    return None
                self._idle += 1
                self._changed.wait(_IDLE_S)
                if not self._called:
                    self._idle -= 1
                    return None
                self._called, self._coming = self._called - 1, self._coming - 1
            job = queue.popleft()
            self._running.add(job)
            is_more = self._ready() is not None
        if is_more:
            self.start()
        return job


class _Wait:
    """A wait for resources that have not reached a state yet."""

    def __init__(self, guids: Sequence[int], wanted: ResourceState, state: State, *, heeds_abort: bool) -> None:
        self.wanted, self.heeds_abort = wanted, heeds_abort
        resources = state.resources
        self.left = {guid for guid in guids if guid in resources and resources[guid].state < wanted}
        self.over = threading.Event()
        if not self.left or (heeds_abort and state.is_aborted):
            self.over.set()

    def reached(self, guids: Iterable[int], state: ResourceState) -> None:
        """Look at resources that reached a state; removed ones count as released."""
        if state >= self.wanted and self.left:
            self.left.difference_update(guids)
            if not self.left:
                self.over.set()


class Engine:
    """Applies events one after the other, in the thread that brings them; safe from any thread.

    ``state`` is the present one. An event is in the journal before it takes effect, and its actions are performed
    before the next event. If the journal cannot be written, the experiment counts as failed and can only be released.
    Hooks run on daemon threads, timers on the thread of an actor. ``call`` calls a verb of a resource, which
    notes its end; ``abandon`` leaves one behind and returns its job. ``inform`` must not
    block; ``waits_for`` names the cause of a resource's wait, for the reason of a timeout.
    """

    def __init__(
        self,
        journal: Journal | None,
        *,
        call: Callable[[int, Verb, str], None],
        assign: Callable[[int, str, Any], None],
        inform: Callable[[int], None],
        abandon: Callable[[int], HookJob | None],
        waits_for: Callable[[int], str],
        state: State | None = None,
        after: float = 0.0,
        max_running: int | None = None,
    ) -> None:
        self.state = State() if state is None else state
        self.hooks = Hooks(max_running, lambda work: self._schedule(object(), self.now() + _THREAD_RETRY_S, work))
        # Unix time that never jumps, and begins after the last event of the journal.
        self._start = max(time.time(), after) - time.monotonic()
        self._call, self._assign, self._inform, self._abandon = call, assign, inform, abandon
        self._waits_for = waits_for
        self._journal = journal
        self._lock = threading.RLock()
        self._actions: deque[Action] = deque()
        self._waits: list[_Wait] = []
        self._actor = Actor("fedmon-experiment")
        # By key: the moment, the work, and when the actor looks.
        self._timers: dict[object, tuple[float, Callable[[], object], float]] = {}
        self._is_timed = self._is_performing = self._is_closed = self._is_journal_lost = False

    def now(self) -> float:
        """Return the present moment: Unix time by a clock that never jumps."""
        return self._start + time.monotonic()

    def check_open(self) -> None:
        """Raise ExperimentOverError after `close`."""
        if self._is_closed:
            raise ExperimentOverError("the experiment was shut down: make a new ExperimentController")

    def post(self, *wishes: AnyEvent) -> None:
        """Apply a caller's request; on return, `state` is the one after it.

        Raises StorageError or UnwritableEventError, without any effect, if the journal cannot hold it, and
        ExperimentOverError after `close`.
        """
        self.check_open()
        self._take(wishes, is_fact=False)

    def note(self, *facts: AnyEvent) -> None:
        """Apply an event that happened, even if the journal cannot hold it."""
        self._take(facts, is_fact=True)

    def at(self, moment: float, work: Callable[[], object]) -> None:
        """Call a function at a moment, in a thread for hooks; a `stop` before drops it."""
        if moment <= self.now():
            self.run(work)
        else:
            self._schedule(object(), moment, functools.partial(self.run, work))

    def run(self, work: Callable[[], object]) -> None:
        """Call a function in a thread for hooks."""
        self.hooks.put(HookJob(work))

    def reconnect(self, guid: int, verb: Verb | None, work: Callable[[], None]) -> None:
        """Call a function in a thread for hooks that takes up a resource, and its verb that was under way."""
        kind: Kind = "ending" if verb == "release" else "other" if verb is None else "verb"
        self.hooks.put(HookJob(functools.partial(self._begin, guid, verb, work), kind))

    def wait(
        self,
        guids: Sequence[int],
        state: ResourceState,
        *,
        timeout_s: float | None,
        heeds_abort: bool = True,
        quit_asked: Callable[[], object] | None = None,
    ) -> WaitResult:
        """Wait until resources are at a state; a failure, ``quit_asked`` or the timeout ends that."""
        with self._lock:
            wait = _Wait(guids, state, self.state, heeds_abort=heeds_abort)
            self._waits.append(wait)
            if self._is_closed:
                wait.over.set()
        deadline = None if timeout_s is None else Deadline(timeout_s)
        look_s = threading.TIMEOUT_MAX if quit_asked is None else _QUIT_S
        is_late = False
        try:
            while not is_late and not (quit_asked is not None and quit_asked()):
                if wait.over.wait(look_s if deadline is None else min(look_s, deadline.left_s())):
                    break
                is_late = deadline is not None and deadline.passed()
        finally:
            with self._lock:
                self._waits.remove(wait)
                seen = self.state
        return _result_of(guids, wait, seen, is_late=is_late)

    def resume(self) -> None:
        """Set the timers of a state that another process left, each for its moment."""
        for alarm in alarms(self.state):
            self._set_timer(alarm)

    def stop(self) -> None:
        """Drop timers and waiting jobs, but for releases, and end all waits."""
        with self._lock:
            self._timers.clear()
            self.hooks.drop()
            self._end_waits(is_abort=False)
        self.hooks.start()

    def close(self, *, timeout_s: float) -> int:
        """End the threads and the journal; return how many hooks are still running."""
        try:
            return self.hooks.close(timeout_s=timeout_s)
        finally:
            with self._lock:
                self._is_closed = True
                self._end_waits(is_abort=False)
                if self._journal is not None:
                    self._journal.close()
                    self._journal = None
            if self._is_timed:
                self._actor.close(timeout_s=1.0, drop=True)

    # --- events and actions -------------------------------------------------------------------------------------------

    def _take(self, happened: Sequence[AnyEvent], *, is_fact: bool) -> None:
        with self._lock:
            try:
                self._write(happened)
            except StorageError:
                if not is_fact:  # else it was logged, and the experiment is over
                    raise
            for event in happened:
                self._apply(event)
            if self._is_performing:  # in an action of this thread, which goes on with what follows
                return
            self._is_performing = True
            try:
                while self._actions:
                    self._perform(self._actions.popleft())
            finally:
                self._is_performing = False

    def _write(self, happened: Sequence[AnyEvent]) -> None:
        if self._journal is None or self._is_journal_lost:
            return
        try:
            self._journal.write(happened)
        except StorageError as error:
            logger.error("%s; the experiment ends here, and can only be released", error)  # noqa: TRY400 - it says where
            self._is_journal_lost = True  # its lock stays: no other process may reconnect meanwhile
            self._apply(Leveled(t=self.now(), level=FailureLevel.EC_FAILURE, reason=str(error)))
            raise

    def _apply(self, event: AnyEvent) -> None:
        before = self.state
        self.state, actions, wrong = step_safely(before, event)
        self._actions += actions
        if wrong:
            logger.error("%s; the experiment ends here, and can only be released", wrong)
        if isinstance(event, Removed):
            self._actions.append(Reached(guids=event.guids, state=ResourceState.RELEASED))
        if self.state.is_aborted and not before.is_aborted:
            self._end_waits(is_abort=True)

    def _perform(self, action: Action) -> None:
        match action:
            case Call(guid=guid, verb=verb, reason=reason):
                call = functools.partial(self._call, guid, verb, reason)
                # What ends a resource must not wait for hooks that do not end.
                kind: Kind = "ending" if verb in ("fail", "release") else "verb"
                self.hooks.put(HookJob(functools.partial(self._begin, guid, verb, call), kind))
            case Assign(guid=guid, name=name, value=value):
                self.run(functools.partial(self._assign, guid, name, value))
            case Alarm():
                self._set_timer(action)
            case Inform(guid=guid):
                self._inform(guid)
            case Reached(guids=guids, state=state):
                for wait in self._waits:
                    wait.reached(guids, state)
            case Abandon(guid=guid):
                job = self._abandon(guid)
                if job is not None:
                    self.hooks.leave(job)

    def _begin(self, guid: int, verb: Verb | None, call: Callable[[], None]) -> None:
        """Start the timeout of a verb, and call its hook."""
        with self._lock:
            resource = self.state.resources.get(guid)
            if verb is not None and resource is not None and resource.calling == verb and verb in resource.timeouts:
                self.note(VerbBegan(t=self.now(), guid=guid, verb=verb))
        call()

    def _end_waits(self, *, is_abort: bool) -> None:
        for wait in self._waits:
            if wait.heeds_abort or not is_abort:
                wait.over.set()

    # --- timers -------------------------------------------------------------------------------------------------------

    def _set_timer(self, alarm: Alarm) -> None:
        self._schedule(alarm.timer, alarm.at, functools.partial(self._fire, alarm))

    def _fire(self, alarm: Alarm) -> None:
        if due_at(self.state, alarm.timer) == alarm.at:
            waits_for = self._waits_for(alarm.timer.guid)
            self.note(Fired(t=self.now(), timer=alarm.timer, waits_for=waits_for))

    def _schedule(self, key: object, moment: float, work: Callable[[], object]) -> None:
        """Call a function at a moment, on the thread of the actor, and none that was scheduled under its key before."""
        with self._lock:
            if self._is_closed:
                return
            if not self._is_timed:
                self._actor.start()
                self._is_timed = True
            looks_at = self._timers[key][2] if key in self._timers else math.inf
            self._timers[key] = moment, work, min(moment, looks_at)
            if moment < looks_at:  # else the actor looks earlier, and again at this moment
                self._look_at(key, moment)

    def _look_at(self, key: object, moment: float) -> None:
        self._actor.at(moment - self._start, functools.partial(self._look, key))

    def _look(self, key: object) -> None:
        """Call the function scheduled under a key, if it is due."""
        with self._lock:
            if key not in self._timers:
                return
            moment, work, _ = self._timers[key]
            if moment > self.now():
                self._timers[key] = moment, work, moment
                self._look_at(key, moment)
                return
            del self._timers[key]
        work()


def _result_of(guids: Iterable[int], wait: _Wait, state: State, *, is_late: bool) -> WaitResult:
    reached, reasons, left = [], {}, []
    for guid in guids:
        resource = state.resources.get(guid)
        if resource is not None and resource.state < wait.wanted:
            left.append(guid)
        elif resource is not None and resource.state is ResourceState.FAILED is not wait.wanted:
            reasons[guid] = resource.reason
        else:
            reached.append(guid)
    return WaitResult(
        reached=tuple(reached),
        failed=tuple(reasons),
        reasons=reasons,
        timed_out=tuple(left) if is_late else (),
        left=() if is_late else tuple(left),
        aborted=(state.is_aborted and wait.heeds_abort) or (wait.over.is_set() and bool(left)),
        reason=state.level_reason,
    )


# --- the hooks that a thread runs -----------------------------------------------------------------------------------


class Hook:
    """A hook that runs in the calling thread, for as long as the block; ``name`` is "" around a whole verb."""

    __slots__ = ("has_scheduled", "is_abandoned", "job", "name", "rm")

    def __init__(self, rm: Any, name: str) -> None:
        self.rm, self.name, self.job = rm, name, here.job
        self.has_scheduled = self.is_abandoned = False

    def __enter__(self) -> Self:
        here.hooks.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        here.hooks.remove(self)


class _Here(threading.local):
    """The hooks of the calling thread, its job of `Hooks`, and its last exception that was noted as a failure."""

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.job: HookJob | None = None
        self.reported: BaseException | None = None

    def is_in(self, rm: object, name: str | None = None) -> bool:
        """Tell whether the thread is in a hook of a resource, or in the one with a name."""
        return any(hook.rm is rm and name in (None, hook.name) for hook in self.hooks)


here = _Here()


def guids_within(ec: object, name: str | None = None) -> frozenset[int]:
    """Return the resources of an experiment whose hook, or whose hook with a name, this thread runs."""
    return frozenset(each.rm.guid for each in here.hooks if each.rm.is_of(ec) and name in (None, each.name))


def refuse_own_wait(ec: object, resources: Iterable[Any], state: ResourceState) -> None:
    """Raise DeadlockError if this thread runs a hook of one of the resources that the wait is for."""
    own = guids_within(ec, None if state < ResourceState.FAILED else "release")
    for resource in resources:
        if resource.guid in own and resource.state < state:
            raise DeadlockError(f"{resource.name} would wait in its own hook to be {state.name}")


def failtrap(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Fail a resource, or retry its verb, if a method of it raises; the exception is raised on.

    Within a hook of the same resource the exception is only raised on: it is the verb that fails.
    """

    @functools.wraps(method)
    def trapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        rm: Any = args[0]
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            if not (here.is_in(rm) or here.reported is error or isinstance(error, InvalidStateError)):
                rm.trap(method.__name__.removeprefix("do_"), error)
            raise

    return trapped


def perform(rm: object, verb: str) -> None:
    """Call a verb of a resource; its failure is noted, and not raised."""
    with contextlib.suppress(Exception):
        getattr(rm, verb)()
