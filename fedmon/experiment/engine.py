"""The engine of an experiment: journals events, steps the pure machine, and performs its actions."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

import msgspec
from msgspec.structs import replace

from fedmon.common.actor import Actor
from fedmon.common.clock import Deadline
from fedmon.common.errors import StorageError
from fedmon.experiment.errors import ExperimentOverError, InvalidStateError
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
    Timer,
    Verb,
    VerbBegan,
)
from fedmon.experiment.journal import ReplayedRun
from fedmon.experiment.machine import due_at, step_safely
from fedmon.experiment.states import FailureLevel, ResourceState

_P = ParamSpec("_P")
_R = TypeVar("_R")
logger = logging.getLogger(__name__)

_QUIT_S = 0.1
_IDLE_S = 0.5
"""How long a thread for hooks waits for its next job."""
_THREAD_RETRY_S = 0.1


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


class HookJob(NamedTuple):
    """A call for `Hooks`; only verbs, those with a ``guid``, have a limit."""

    call: Callable[[], object]
    guid: int | None


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
        self._free = 0
        """Threads that wait for a job, or are about to take one."""
        self._is_closed = False

    def put(self, job: HookJob) -> None:
        """Queue a job for `start`; after `close` it is dropped."""
        with self._changed:
            if not self._is_closed:
                (self._others if job.guid is None else self._verbs).append(job)

    def start(self) -> None:
        """Call or start a thread, if a job could run; every job does the same as it begins."""
        with self._changed:
            if self._ready() is None:
                return
            if self._free:
                self._changed.notify()
                return
            self._free += 1
        try:
            threading.Thread(target=self._work, name="fedmon-experiment-hook", daemon=True).start()
        except RuntimeError as error:
            with self._changed:
                self._free -= 1
            logger.warning("hooks wait until a thread can be started: %s", error)
            with contextlib.suppress(RuntimeError):  # then the next job tries again
                self._later(self.start)

    def leave(self, job: HookJob | None) -> None:
        """Free the slot of a job that may never end; None: a caller's thread, which has none."""
        with self._changed:
            self._running -= {job}
            self._changed.notify_all()
        self.start()

    def is_waiting(self, guid: int) -> bool:
        """Tell whether a verb of a resource waits for a slot."""
        with self._changed:
            return any(job.guid == guid for job in self._verbs)

    def is_mine(self) -> bool:
        """Tell whether the calling thread runs one of its jobs."""
        return here.job in self._running

    def close(self, *, timeout_s: float) -> int:
        """Begin nothing more and wait for running jobs; return how many are left."""
        with self._changed:
            self._is_closed = True
            self._verbs.clear()
            self._others.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._running, timeout_s)
            return len(self._running)

    def _ready(self) -> deque[HookJob] | None:
        """Return the queue whose first job may run now."""
        if self._others:
            return self._others
        if self._max_running is not None and sum(job.guid is not None for job in self._running) >= self._max_running:
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
        is_late = False
        with self._changed:
            if done is not None:
                self._free += 1
                self._running.discard(done)
                if self._is_closed:
                    self._changed.notify_all()
            while (queue := self._ready()) is None and not (self._is_closed or is_late):
                is_late = not self._changed.wait(_IDLE_S)
            self._free -= 1
            if queue is None:
                return None
            job = queue.popleft()
            self._running.add(job)
            return job


class Engine:
    """Applies events one after the other, in the thread that brings them; safe from any thread.

    ``state`` is the present one. An event gets its time and is in the journal before it takes effect, and its actions
    are performed before the next event. If the journal cannot be written, the experiment counts as failed and can only
    be released. Hooks run on daemon threads, timers on the thread of an actor. ``find`` returns a resource, None for
    one that was removed; ``inform`` is told of each that failed, and must not block.
    """

    def __init__(
        self,
        left: ReplayedRun,
        *,
        find: Callable[[int], Any],
        inform: Callable[[int], None],
        max_running: int | None = None,
    ) -> None:
        """Continue with a run that another process ``left``, or with an empty one."""
        self.state, self._journal = left.state, left.journal
        self.hooks = Hooks(max_running, lambda work: self._schedule(self.now() + _THREAD_RETRY_S, work))
        # Unix time that never jumps, and begins after the last event of the journal.
        self._start = max(time.time(), left.until) - time.monotonic()
        self._find, self._inform = find, inform
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._actions: deque[Action] = deque()
        self._actor = Actor("fedmon-experiment")
        self._stops = 0
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
        """Call a function at a moment, in a thread for hooks."""
        if moment <= self.now():
            self.run(work)
        else:
            self._schedule(moment, functools.partial(self.run, work))

    def run(self, work: Callable[[], object], guid: int = 0, verb: Verb | None = None) -> None:
        """Call a function in a thread for hooks; ``guid`` is the resource that it does a verb of, or takes up."""
        # What ends a resource must not wait for hooks that do not end.
        limited = None if verb in (None, "fail", "release") else guid
        self.hooks.put(HookJob(functools.partial(self._begin, guid, verb, work), limited))
        if not self._is_performing:  # else when all actions are: until then it could only block
            self.hooks.start()

    def wait(
        self,
        guids: Sequence[int],
        wanted: ResourceState,
        *,
        timeout_s: float | None,
        heeds_abort: bool = True,
        quit_asked: Callable[[], object] | None = None,
    ) -> WaitResult:
        """Wait until resources are at a state; a failure, ``quit_asked`` or the timeout ends that."""
        deadline, stops = Deadline(timeout_s), self._stops
        look_s = threading.TIMEOUT_MAX if quit_asked is None else _QUIT_S
        is_over = is_late = False

        def is_there(guid: int) -> bool:
            resource = self.state.resources.get(guid)
            return resource is None or resource.state >= wanted

        missing = [guid for guid in guids if not is_there(guid)]

        def is_ended() -> bool:
            while missing and is_there(missing[-1]):
                missing.pop()
            has_stopped = self._is_closed or self._stops > stops
            return not missing or has_stopped or (heeds_abort and self.state.is_aborted)

        while not (is_over or is_late or (quit_asked is not None and quit_asked())):
            with self._changed:
                is_over = self._changed.wait_for(is_ended, min(look_s, deadline.left_s()))
            is_late = not is_over and deadline.passed()
        with self._lock:
            seen, left = self.state, tuple(guid for guid in missing if not is_there(guid))
        there = set(guids).difference(left)
        reasons = {
            one.guid: one.reason
            for one in filter(None, map(seen.resources.get, guids))
            if one.guid in there and one.state is ResourceState.FAILED is not wanted
        }
        return WaitResult(
            reached=tuple(guid for guid in guids if guid in there and guid not in reasons),
            failed=tuple(reasons),
            reasons=reasons,
            timed_out=left if is_late else (),
            left=() if is_late else left,
            aborted=(seen.is_aborted and heeds_abort) or (is_over and bool(left)),
            reason=seen.level_reason,
        )

    def end_waits(self) -> None:
        """End all waits that are under way."""
        with self._changed:
            self._stops += 1
            self._changed.notify_all()

    def close(self, *, timeout_s: float) -> int:
        """End the threads and the journal; return how many hooks are still running."""
        try:
            return self.hooks.close(timeout_s=timeout_s)
        finally:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
                if self._journal is not None:
                    self._journal.close()
                    self._journal = None
            if self._is_timed:
                self._actor.close(timeout_s=1.0, drop=True)

    # --- events and actions -------------------------------------------------------------------------------------------

    def _take(self, happened: Sequence[AnyEvent], *, is_fact: bool) -> None:
        with self._lock:
            now = self.now()
            happened = [replace(event, t=now) for event in happened]
            try:
                self._write(happened)
            except StorageError:
                if not is_fact:  # else it was logged, and the experiment is over
                    raise
            for event in happened:
                self._apply(event)
            if self._is_performing or not self._actions:  # an action of this thread goes on with what follows
                return
            self._is_performing = True
            try:
                while self._actions:
                    self.perform(self._actions.popleft())
            finally:
                self._is_performing = False
                self.hooks.start()

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
        self.state, actions, wrong = step_safely(self.state, event)
        self._actions += actions
        self._changed.notify_all()
        if wrong:
            logger.error("%s; the experiment ends here, and can only be released", wrong)

    def perform(self, action: Action) -> None:
        """Perform an action of the machine."""
        match action:
            case Call(guid=guid, verb=verb, reason=reason) if (resource := self._find(guid)) is not None:
                self.run(functools.partial(resource.run_verb, verb, reason), guid, verb)
            case Assign(guid=guid, name=name, value=value) if (resource := self._find(guid)) is not None:
                resource.assigned.append((name, value))
                self.run(resource.assign_next)
            case Alarm(timer=timer, at=moment):
                self._schedule(moment, functools.partial(self._look, timer))
            case Inform(guid=guid):
                self._inform(guid)
            case Abandon(guid=guid) if (resource := self._find(guid)) is not None:
                resource.abandon()

    def _begin(self, guid: int, verb: Verb | None, work: Callable[[], object]) -> None:
        """Start the timeout of a verb and the next thread, and call a hook or another function."""
        with self._lock:  # or threads would be started while the ones before still wait here
            resource = self.state.resources.get(guid)
            if verb is not None and resource is not None and resource.calling == verb and verb in resource.timeouts:
                self.note(VerbBegan(guid=guid, verb=verb))
        self.hooks.start()
        work()

    def _schedule(self, moment: float, work: Callable[[], object]) -> None:
        """Call a function at a moment, on the thread of the actor."""
        with self._lock:
            if self._is_closed:
                return
            if not self._is_timed:
                self._actor.start()
                self._is_timed = True
        self._actor.at(moment - self._start, work)

    def _look(self, timer: Timer) -> None:
        """Fire a timer if it is due; else look again when it is."""
        with self._lock:  # until it fired: a verb that begins meanwhile has a later one
            due = due_at(self.state, timer)
            if due is not None and due > self.now():
                self._schedule(due, functools.partial(self._look, timer))
            elif due is not None:
                self.note(Fired(timer=timer))


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

    def __exit__(self, *_: object) -> None:
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
