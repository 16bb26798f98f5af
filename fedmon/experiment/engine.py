"""The engine of an experiment: journals events, steps the pure machine, and performs its actions."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

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
    Event,
    Fired,
    Inform,
    Leveled,
    Reached,
    Removed,
    Timer,
    Verb,
)
from fedmon.experiment.journal import Journal
from fedmon.experiment.machine import alarms, step_safely
from fedmon.experiment.situation import State
from fedmon.experiment.states import FailureLevel, ResourceState

_P = ParamSpec("_P")
_R = TypeVar("_R")
logger = logging.getLogger(__name__)

_QUIT_S = 0.1
_AGAIN_S = 0.1
Job = Callable[[], object]
"""What a hook does; an event that it returns is what happened."""


class WaitResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a wait, by guids: which reached the state, which failed, and which had not when the time was over.

    ``aborted`` tells that a failure ended the experiment, or its shutdown, and ``reason`` why the wait ended before all
    had reached the state. ``left`` are those still on their way when that, or the caller's own function, ended the
    wait; ``reasons`` says of each that failed why.
    """

    reached: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    timed_out: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    aborted: bool = False
    reason: str = ""
    reasons: dict[int, str] = {}

    def __bool__(self) -> bool:
        """Tell whether all came to the state."""
        return not (self.failed or self.timed_out or self.left)


class Hooks:
    """Daemon threads for hooks; safe from any thread.

    A thread takes the next job when its own returns, and ends when none waits; a new one starts whenever a job waits
    for which there is a slot. At most ``max_running`` jobs run at once that are ``limited``. A thread that was left
    behind has no slot any more, and nothing waits for it.
    """

    def __init__(self, max_running: int | None, done: Callable[[Any], None]) -> None:
        self._max_running, self._done = max_running, done
        self._changed = threading.Condition()
        self._free: deque[Job] = deque()
        self._limited: deque[Job] = deque()
        self._running: dict[int, bool] = {}  # whether it is limited, by thread
        self._is_closed = False

    def put(self, job: Job, *, limited: bool) -> None:
        """Queue a job; `start` begins it."""
        with self._changed:
            if not self._is_closed:
                (self._limited if limited else self._free).append(job)

    def start(self, *, spare: int = 0) -> None:
        """Start threads until none but ``spare`` jobs wait that have a slot."""
        while self._count_ready() > spare:
            try:
                threading.Thread(target=self._work, name="fedmon-experiment-hook", daemon=True).start()
            except RuntimeError:
                logger.warning("no more threads for hooks; those that wait are tried again", exc_info=True)
                if self._running:
                    return
                threading.Event().wait(_AGAIN_S)

    def leave(self, thread: int) -> None:
        """Count a thread no more, for nobody knows whether its hook ends."""
        with self._changed:
            self._running.pop(thread, None)
            self._changed.notify_all()
        self.start()

    def is_mine(self) -> bool:
        """Tell whether the calling thread is one of them."""
        return threading.get_ident() in self._running

    @property
    def is_busy(self) -> bool:
        """Whether a hook runs or waits."""
        return bool(self._running or self._free or self._limited)

    def drop(self) -> None:
        """Forget the jobs that wait, and lift the limit: what releases resources must not wait for a slot."""
        with self._changed:
            self._free.clear()
            self._limited.clear()
            self._max_running = None

    def close(self, *, timeout_s: float) -> int:
        """Begin nothing more and wait for what runs; return how many hooks are still running then."""
        deadline, own = Deadline(timeout_s), int(self.is_mine())  # a hook that ends its experiment waits for no other
        with self._changed:
            self._is_closed = True
            self._free.clear()
            self._limited.clear()
            while len(self._running) > own and not deadline.passed():
                self._changed.wait(deadline.left_s())
            return len(self._running) - own

    def _count_ready(self) -> int:
        """Return how many jobs wait that have a slot."""
        with self._changed:
            slots = len(self._limited)
            if self._max_running is not None:
                slots = min(slots, max(0, self._max_running - sum(self._running.values())))
            return len(self._free) + slots

    def _work(self) -> None:
        me = threading.get_ident()
        while (job := self._next(me)) is not None:
            happened = None
            try:
                happened = job()
            except BaseException:  # SystemExit of a hook must not take the thread with it
                logger.exception("what an experiment had to do failed")
            if isinstance(happened, Event):
                self._done(happened)
            if me not in self._running:  # it was left behind, and the job that it would have taken waits
                self.start()
                return

    def _next(self, me: int) -> Job | None:
        with self._changed:
            self._running.pop(me, None)
            limited = not self._free
            if not self._count_ready():
                self._changed.notify_all()
                return None
            self._running[me] = limited
            return (self._limited if limited else self._free).popleft()


class _Wait:
    """One wait: for resources that are not at a state yet."""

    def __init__(self, guids: Sequence[int], wanted: ResourceState, state: State, *, heeds_abort: bool) -> None:
        self.wanted, self.heeds_abort = wanted, heeds_abort
        resources = state.resources
        self.left = {guid for guid in guids if guid in resources and resources[guid].state < wanted}
        self.over = threading.Event()
        if not self.left or (heeds_abort and state.is_aborted):
            self.over.set()

    def moved(self, guids: Iterable[int], state: ResourceState) -> None:
        """Look at resources that came to another state; removed ones count as released."""
        if state >= self.wanted and self.left:
            self.left.difference_update(guids)
            if not self.left:
                self.over.set()


class Engine:
    """Applies events one after the other, in the thread that brings them; safe from any thread.

    ``state`` is how things stand now. An event is in the journal before it takes effect. If the journal cannot be
    written, the experiment counts as failed from then on, and can only be released. Hooks run on daemon threads, timers
    on the thread of an actor. ``call`` calls a verb of a resource and returns how it ended, None if that does not
    matter any more; ``abandon`` leaves one behind and returns its thread. ``inform`` must not block; ``waits_for`` says
    what a resource waits for, for the reason of a timeout.
    """

    def __init__(
        self,
        journal: Journal | None,
        *,
        call: Callable[[int, Verb, str], AnyEvent | None],
        assign: Callable[[int, str, Any], None],
        inform: Callable[[int], None],
        abandon: Callable[[int], int | None],
        waits_for: Callable[[int], str],
        state: State | None = None,
        after: float = 0.0,
        max_running: int | None = None,
    ) -> None:
        self.state = State() if state is None else state
        self.hooks = Hooks(max_running, lambda event: self._take((event,), is_fact=True, spare=1))
        # Unix time that never jumps, and begins after what was written before.
        self._start = max(time.time(), after) - time.monotonic()
        self._call, self._assign, self._inform, self._abandon = call, assign, inform, abandon
        self._waits_for = waits_for
        self._journal = journal
        self._lock = threading.Lock()
        self._todo: deque[Action] = deque()
        self._waits: list[_Wait] = []
        self._timers = Actor("fedmon-experiment")
        self._due: dict[Timer, float] = {}
        self._stops = 0
        self._is_timed = self._is_closed = self._is_journal_lost = False

    def now(self) -> float:
        """Return the present moment: Unix time by a clock that never jumps."""
        return self._start + time.monotonic()

    def check_open(self) -> None:
        """Raise ExperimentOverError once it was closed."""
        if self._is_closed:
            raise ExperimentOverError("the experiment was shut down: make a new ExperimentController")

    def post(self, *wishes: AnyEvent) -> None:
        """Apply what a caller wants; when this returns, `state` is the one after it.

        Raises StorageError or UnwritableEventError, and nothing took effect, if it cannot be written down, and
        ExperimentOverError once it was closed.
        """
        self.check_open()
        self._take(wishes, is_fact=False)

    def note(self, *facts: AnyEvent) -> None:
        """Apply what happened, whether it can be written down or not."""
        self._take(facts, is_fact=True)

    def at(self, moment: float, work: Callable[[], object]) -> None:
        """Have something called at a moment, in a thread for hooks; not after a `stop` meanwhile."""
        stops = self._stops

        def begin() -> None:
            if stops == self._stops:
                self.run(work)

        if moment <= self.now():
            begin()
        else:
            with self._lock:
                self._alarm(moment, begin)

    def run(self, work: Job) -> None:
        """Have something called in a thread for hooks."""
        self.hooks.put(work, limited=False)
        self.hooks.start()

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
        """Set again the timers of a state that another process left, each for the moment it was meant for."""
        with self._lock:
            for alarm in alarms(self.state, self.now()):
                self._set_timer(alarm)

    def stop(self) -> None:
        """Do nothing of what was put off so far: drop timers and queued hooks, and end all waits."""
        self._stops += 1
        self.hooks.drop()
        with self._lock:
            self._due.clear()
            self._wake(is_abort=False)

    def close(self, *, timeout_s: float) -> int:
        """End the threads and the journal; return how many hooks are still running."""
        self._stops += 1
        try:
            return self.hooks.close(timeout_s=timeout_s)
        finally:
            with self._lock:
                self._is_closed = True
                self._wake(is_abort=False)
                if self._journal is not None:
                    self._journal.close()
                    self._journal = None
            if self._is_timed:
                self._timers.close(timeout_s=1.0, drop=True)

    def _take(self, happened: Sequence[AnyEvent], *, is_fact: bool, spare: int = 0) -> None:
        with self._lock:
            try:
                self._write(happened)
            except StorageError:
                if not is_fact:  # else it was logged, and the experiment is over
                    raise
            for event in happened:
                self._apply(event)
        self._perform(spare)

    def _apply(self, event: AnyEvent) -> None:
        before = self.state
        self.state, asked, wrong = step_safely(before, event)
        if wrong:
            logger.error("%s; the experiment ends here, and can only be released", wrong)
        if isinstance(event, Removed):
            self._moved(event.guids, ResourceState.RELEASED)
        if self.state.is_aborted and not before.is_aborted:
            self._wake(is_abort=True)
        for action in asked:
            if isinstance(action, Reached) and action.state is not ResourceState.FAILED:
                self._moved(action.guids, action.state)
            elif isinstance(action, Alarm):
                self._set_timer(action)
            else:
                self._todo.append(action)

    def _perform(self, spare: int) -> None:
        """Do what the steps asked for; without the lock, for it may come back."""
        while self._todo:
            try:
                action = self._todo.popleft()
            except IndexError:  # another thread was faster
                break
            match action:
                case Call(guid=guid, verb=verb, reason=reason):
                    # Whatever ends something must not wait for hooks that do not end.
                    is_limited = verb not in ("fail", "release")
                    self.hooks.put(functools.partial(self._call, guid, verb, reason), limited=is_limited)
                case Assign(guid=guid, name=name, value=value):
                    self.hooks.put(functools.partial(self._assign, guid, name, value), limited=False)
                case Inform(guid=guid):
                    self._inform(guid)
                case Reached(guids=guids, state=state):  # FAILED: a wait that it ends tells how bad that is
                    with self._lock:
                        self._moved(guids, state)
                case Abandon(guid=guid):
                    thread = self._abandon(guid)
                    if thread is not None:
                        self.hooks.leave(thread)
        self.hooks.start(spare=spare)

    def _moved(self, guids: Iterable[int], state: ResourceState) -> None:
        for wait in self._waits:
            wait.moved(guids, state)

    def _wake(self, *, is_abort: bool) -> None:
        for wait in self._waits:
            if wait.heeds_abort or not is_abort:
                wait.over.set()

    def _set_timer(self, alarm: Alarm) -> None:
        timer, at = alarm.timer, alarm.at
        if at is None or self._is_closed:
            self._due.pop(timer, None)
            return

        def fire() -> None:
            with self._lock:
                is_meant = self._due.get(timer) == at
                if is_meant:
                    del self._due[timer]
            if is_meant:
                self.note(Fired(t=self.now(), timer=timer, waits_for=self._waits_for(timer.guid)))

        self._due[timer] = at
        self._alarm(at, fire)

    def _alarm(self, moment: float, job: Callable[[], object]) -> None:
        """Have the actor call something; with the lock."""
        if not self._is_timed:
            self._is_timed = True
            self._timers.start()
        self._timers.at(moment - self._start, job)

    def _write(self, happened: Sequence[AnyEvent]) -> None:
        if self._journal is None or self._is_journal_lost:
            return
        try:
            self._journal.write(happened)
        except StorageError as error:
            logger.error("%s; the experiment ends here, and can only be released", error)  # noqa: TRY400 - it says where
            self._is_journal_lost = True  # its lock stays: no other process may take up the run meanwhile
            self._apply(Leveled(t=self.now(), level=FailureLevel.EC_FAILURE, reason=str(error)))
            raise


def _result_of(guids: Iterable[int], wait: _Wait, state: State, *, is_late: bool) -> WaitResult:
    reached, reasons, left = [], {}, []
    for guid in guids:
        resource = state.resources.get(guid)
        if resource is None or resource.state >= wait.wanted:
            if resource is None or resource.state is not ResourceState.FAILED or wait.wanted is ResourceState.FAILED:
                reached.append(guid)
            else:
                reasons[guid] = resource.reason
        else:
            left.append(guid)
    return WaitResult(
        reached=tuple(reached),
        failed=tuple(reasons),
        reasons=reasons,
        timed_out=tuple(left) if is_late else (),
        left=() if is_late else tuple(left),
        aborted=(state.is_aborted and wait.heeds_abort) or (wait.over.is_set() and bool(left)),
        reason=state.level_reason,
    )


# --- the hooks that a thread is in --------------------------------------------------------------------------------


class Hook:
    """A hook that runs in the calling thread, for as long as the block; ``name`` is "" around a whole verb."""

    __slots__ = ("has_scheduled", "is_abandoned", "name", "rm", "thread")

    def __init__(self, rm: Any, name: str) -> None:
        self.rm, self.name, self.thread = rm, name, threading.get_ident()
        self.has_scheduled = self.is_abandoned = False

    def __enter__(self) -> Self:
        here.hooks.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        here.hooks.remove(self)


class _Here(threading.local):
    """The hooks that the calling thread is in, and the last exception of one that was reported."""

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.reported: BaseException | None = None

    def is_in(self, rm: object, name: str | None = None) -> bool:
        """Tell whether the thread is in a hook of a resource, or in the one of a name."""
        return any(hook.rm is rm and name in (None, hook.name) for hook in self.hooks)


here = _Here()


def note_scheduled() -> None:
    """Note that the hooks that this thread is in have put something off."""
    for hook in here.hooks:
        hook.has_scheduled = True


def was_reported(error: BaseException) -> bool:
    """Tell whether an exception was reported in this thread as the failure of a verb."""
    return here.reported is error


def guids_within(ec: object, name: str | None = None) -> frozenset[int]:
    """Return of which resources of an experiment this thread is in a hook, or in the one of a name."""
    return frozenset(each.rm.guid for each in here.hooks if each.rm.is_of(ec) and name in (None, each.name))


def refuse_own_wait(ec: object, resources: Iterable[Any], state: ResourceState) -> None:
    """Raise DeadlockError if this thread is in a hook of one of the resources, which then never comes to the state."""
    own = guids_within(ec, None if state < ResourceState.FAILED else "release")
    for resource in resources:
        if resource.guid in own and resource.state < state:
            raise DeadlockError(f"{resource.name} would wait in a hook of its own to be {state.name}")


def failtrap(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have a resource fail, or the verb tried again, when a method of its raises; the exception goes on its way.

    Within a hook of the same resource the exception only goes on: it is the verb that fails.
    """

    @functools.wraps(method)
    def trapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        rm: Any = args[0]
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            if not (here.is_in(rm) or was_reported(error) or isinstance(error, InvalidStateError)):
                rm.trap(method.__name__.removeprefix("do_"), error)
            raise

    return trapped


def perform(rm: object, verb: str) -> None:
    """Call a verb of a resource from outside; its failure is noted, and goes no further."""
    with contextlib.suppress(Exception):
        getattr(rm, verb)()
