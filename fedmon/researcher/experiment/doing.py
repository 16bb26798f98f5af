"""What the machine of an experiment asks for, done to the resources themselves."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Any

from fedmon.common.errors import FedmonError
from fedmon.researcher.experiment import failure
from fedmon.researcher.experiment.events import Leveled, Verb
from fedmon.researcher.experiment.failure import FailureManager
from fedmon.researcher.experiment.reconnecting import Left
from fedmon.researcher.experiment.states import ResourceState
from fedmon.researcher.experiment.verbs import perform

if TYPE_CHECKING:
    from fedmon.researcher.experiment.book import Book
    from fedmon.researcher.experiment.engine import Engine

logger = logging.getLogger(__name__)


class Doing:
    """Calls verbs, sets attributes, and has the failure manager look at what failed."""

    def __init__(self, fm: FailureManager) -> None:
        self.fm = fm
        self.book: Book | None = None
        self.engine: Engine | None = None

    def call(self, guid: int, verb: Verb, reason: str) -> None:
        """Call a verb."""
        if self.book is not None and guid in self.book:
            perform(self.book.get(guid), verb, reason)

    def take_up(self, left: Left) -> None:
        """Go on where another process stopped: set timers and attributes, and have resources ask how they stand."""
        if self.engine is None:
            return
        self.engine.resume()
        for guid, name, value in left.unassigned:
            self.engine.pool.put(functools.partial(self.assign, guid, name, value))
        for guid, seen in sorted(left.state.resources.items()):
            if seen.state is ResourceState.FAILED:
                self.failed(guid)
            if seen.state is not ResourceState.RELEASED:
                self.engine.pool.put(functools.partial(self.reconnect, guid, seen.calling))

    def reconnect(self, guid: int, verb: Verb | None) -> None:
        """Have a resource take up again what another process had begun."""
        if self.book is not None and guid in self.book:
            with contextlib.suppress(Exception):  # the resource has failed with it, and said so
                self.book.get(guid).reconnect(verb)

    def assign(self, guid: int, name: str, value: Any) -> None:
        """Set an attribute."""
        if self.book is None or guid not in self.book:
            return
        try:
            self.book.get(guid).set(name, value)
        except FedmonError as error:
            logger.warning("resource %d: %s", guid, error)

    def failed(self, guid: int) -> None:
        """Have the failure manager look: ours at once, a user's own in a thread, for nobody knows what that takes."""
        if self.engine is None:
            return
        if type(self.fm).eval_failure.__module__ == failure.__name__:
            self._judge(guid)
        else:
            self.engine.pool.put(lambda: self._judge(guid))

    def _judge(self, guid: int) -> None:
        level = failure.judge(self.fm, guid)
        if self.engine is not None and level is not self.engine.state.level:
            self.engine.note(Leveled(t=self.engine.now(), level=level, reason=self.fm.reason))
