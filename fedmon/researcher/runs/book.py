"""The runs that this process follows: what arrives goes to the one that it is about, and what lacks is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from fedmon.common.ids import NodeId
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.runs import JobOutcome, JobStatus
from fedmon.common.wire.samples import AddScalar
from fedmon.researcher.asking.match import Waiting
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.runs.ledger import Ledger
from fedmon.researcher.session.callbacks import Dispatcher
from fedmon.researcher.session.tally import Tally


class RunBook:
    """Belongs to the thread of the inbox; `open`, `holds`, `forget` and `wake` are safe from any thread.

    A run of which something is to come is followed until it is there; after that as long as somebody holds it, so that
    what comes twice is known. ``wake`` has the inbox call `tick` now: what is missing of a run may have changed.
    """

    def __init__(self, asker: Asker, dispatcher: Dispatcher, tally: Tally, *, wake: Callable[[], None]) -> None:
        self._asker, self._dispatcher, self._tally, self.wake = asker, dispatcher, tally, wake
        self._lock = threading.Lock()
        self._followed: dict[str, Ledger] = {}
        self._held: WeakValueDictionary[str, Ledger] = WeakValueDictionary()
        self._asked: dict[tuple[str, NodeId], Waiting] = {}

    def open(self, job_id: str, *, sha256: str | None) -> Ledger:
        """Begin to follow a run; return its ledger, an earlier one if that is still held."""
        ledger = Ledger(job_id, sha256=sha256, dispatcher=self._dispatcher, tally=self._tally)
        with self._lock:
            used = self._held.setdefault(job_id, ledger)
            self._followed[job_id] = used
            return used

    def holds(self, job_id: str) -> bool:
        """Tell whether a ledger of this run is in use."""
        return self._find(job_id) is not None

    def forget(self, ledger: Ledger) -> None:
        """Follow a run no more."""
        with self._lock:
            self._followed.pop(ledger.job_id, None)
            self._held.pop(ledger.job_id, None)

    @property
    def followed(self) -> list[Ledger]:
        """The runs of which something is to come."""
        with self._lock:
            return list(self._followed.values())

    def _find(self, job_id: str) -> Ledger | None:
        with self._lock:
            return self._held.get(job_id)

    def heard(self, scalar: AddScalar) -> None:
        """Take a live scalar."""
        ledger = self._find(scalar.job_id)
        if ledger is not None:
            ledger.heard(scalar)

    def outcome(self, outcome: JobOutcome) -> bool:
        """Take how a job ended; return whether it is of a run that is followed."""
        ledger = self._find(outcome.job.job_id)
        return ledger is not None and ledger.outcome(outcome)

    def may_have_missed(self, node_id: NodeId | None) -> None:
        """Hear that a node, or with null our own connection, came back."""
        for ledger in self.followed:
            ledger.may_have_missed(node_id)

    def tick(self, now: float) -> None:
        """Ask for what is missing."""
        for ledger in self.followed:
            for node_id, fields in ledger.questions(now):
                self._ask(ledger, node_id, fields)
            if not ledger.unsettled and ledger.is_complete:
                with self._lock:
                    self._followed.pop(ledger.job_id, None)

    def due_at(self) -> float | None:
        """Return when `tick` is due next, null for never."""
        return min((due for ledger in self.followed if (due := ledger.due_at()) is not None), default=None)

    def close(self) -> None:
        """End every wait."""
        for ledger in self.followed:
            ledger.close("the federation was closed")
            self.forget(ledger)

    def _ask(self, ledger: Ledger, node_id: NodeId, fields: dict[str, Any]) -> None:
        before = self._asked.pop((ledger.job_id, node_id), None)
        if before is not None:
            self._asker.pending.forget(before)
        request = self._asker.request(JobStatus, job_id=ledger.job_id, **fields)
        waiting = self._asker.tell(request, [node_id], on_answer=self._taker(ledger, node_id, fields))
        self._asked[ledger.job_id, node_id] = waiting

    def _taker(self, ledger: Ledger, node_id: NodeId, fields: dict[str, Any]) -> Callable[[Reply], None]:
        def take(reply: Reply) -> None:
            # Another node's answer to this question is none.
            if reply.node_id == node_id:
                asked = self._asked.pop((ledger.job_id, node_id), None)
                ledger.answered(reply, fields)
                if asked is not None:
                    self._asker.pending.forget(asked)

        return take
