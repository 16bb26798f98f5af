"""What the machine of an experiment asks for, done to the resources themselves."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fedmon.common.errors import FedmonError
from fedmon.experiment import failure
from fedmon.experiment.errors import ExperimentOverError
from fedmon.experiment.events import Leveled, Verb
from fedmon.experiment.failure import FailureManager
from fedmon.experiment.reconnecting import Left
from fedmon.experiment.states import ResourceState
from fedmon.experiment.verbs import perform

if TYPE_CHECKING:
    from fedmon.experiment.book import Book
    from fedmon.experiment.engine import Engine

logger = logging.getLogger(__name__)


class _Heeding(threading.local):
    """Whether this thread is asking the failure manager."""

    is_on = False


class Doing:
    """Calls verbs, sets attributes, and has the failure manager look at what failed.

    ``informed``, where somebody overrides `inform_failure` of the controller, is that. `begin` comes before all else:
    the engine that asks for things is made with this.
    """

    book: Book
    engine: Engine

    def __init__(self, fm: FailureManager, *, informed: Callable[[int], object] | None = None) -> None:
        self.fm, self._informed = fm, informed
        self._heeding = _Heeding()

    def begin(self, book: Book, engine: Engine) -> None:
        """Work on these resources, for this engine."""
        self.book, self.engine = book, engine

    def call(self, guid: int, verb: Verb, reason: str) -> None:
        """Call a verb; one that nobody began before the resource was to end is not begun any more."""
        asked = self.engine.state.resources.get(guid)
        is_ending = asked is not None and asked.calling in ("fail", "release")
        if guid in self.book and not (is_ending and verb in ("deploy", "start", "stop")):
            perform(self.book.get(guid), verb, reason)

    def over(self, guids: Iterable[int]) -> None:
        """Have nobody wait any longer for the turn of who is FAILED, RELEASED or no more."""
        for guid in guids:
            if guid in self.book and (resource := self.book.get(guid)).has_turn:
                resource.turn.dismiss()

    def take_up(self, left: Left) -> None:
        """Go on where another process stopped: set timers and attributes, and have resources ask how they stand."""
        self.fm.take_up(left.state.level, left.state.level_reason)
        self.engine.resume()
        for guid, name, value in left.unassigned:
            self.engine.pool.put(functools.partial(self.assign, guid, name, value))
        for guid in left.unjudged:
            self.failed(guid)
        for guid, seen in sorted(left.state.resources.items()):
            if seen.calling == "fail":  # nobody was told why
                self.book.get(guid).reason = left.reasons.get(guid, "")
            if seen.state is not ResourceState.RELEASED:
                self.engine.pool.put(functools.partial(self.reconnect, guid, seen.calling))

    def reconnect(self, guid: int, verb: Verb | None) -> None:
        """Have a resource take up again what another process had begun."""
        if guid in self.book:
            with contextlib.suppress(Exception):  # the resource has failed with it, and said so
                self.book.get(guid).reconnect(verb)

    def assign(self, guid: int, name: str, value: Any) -> None:
        """Set an attribute."""
        if guid not in self.book:
            return
        try:
            self.book.get(guid).set(name, value)
        except FedmonError as error:
            logger.warning("resource %d: %s", guid, error)

    def failed(self, guid: int) -> None:
        """Have the failure manager look: ours at once, a user's own in a thread, for nobody knows what that takes."""
        if self._informed is not None:
            self.engine.pool.put(functools.partial(self._inform, self._informed, guid), is_urgent=True)
        else:
            self.look_at(guid)

    def look_at(self, guid: int) -> None:
        """Have the failure manager look, as `failed` does, whatever the controller makes of it."""
        if type(self.fm).__module__ == failure.__name__:
            self._judge(guid)
        else:
            self.engine.pool.put(lambda: self._judge(guid), is_urgent=True)

    def heed(self) -> None:
        """Look whether the failure manager finds it worse than it was; it may have changed its mind by itself."""
        if self._heeding.is_on:  # what an own manager says of itself may ask the experiment
            return
        self._heeding.is_on = True
        try:
            level, reason = failure.seen(self.fm)
        finally:
            self._heeding.is_on = False
        if level > self.engine.state.level:
            self.engine.note(Leveled(t=self.engine.now(), level=level, reason=reason))

    def _inform(self, informed: Callable[[int], object], guid: int) -> None:
        try:
            informed(guid)
        except Exception:  # somebody's own code; the failure must not be lost with it
            logger.exception("inform_failure failed, and the failure is judged without it")
            self.look_at(guid)

    def _judge(self, guid: int) -> None:
        """Judge a failure, and note that, also where it changes nothing: who takes the run up does not do so again."""
        with contextlib.suppress(ExperimentOverError):  # nobody is left to whom it would matter
            failure.judge(self.fm, guid)
        level, reason = failure.seen(self.fm)
        self.engine.note(Leveled(t=self.engine.now(), level=level, reason=reason, guid=guid))
