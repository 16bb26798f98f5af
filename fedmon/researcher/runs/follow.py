"""Following runs: answers, outcomes and scalars of nodes, and questions for the missing ones."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from fedmon.common.actor import Bound
from fedmon.common.backoff import Backoff
from fedmon.common.errors import ConflictError
from fedmon.common.ids import NodeId
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Error
from fedmon.common.wire.runs import JobOutcome, JobReport, JobsReply, JobState, JobStatus, Parcel, RunReply, Scalar
from fedmon.common.wire.samples import AddScalar
from fedmon.researcher.asking.outcome import Outcomes, OutcomeStatus
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.runs.states import NodeRun
from fedmon.researcher.session.callbacks import Dispatcher, Subscription
from fedmon.researcher.session.inbox import Tally

T = TypeVar("T")

MAX_SCALARS_KEPT = 100_000
MAX_SCALARS_BYTES = 64 * 2**20
"""Of one node; later ones are not kept, so that no plan fills the memory of its researcher."""
QUIET_S = 2.0
LONGEST_QUIET_S = 16.0
"""After so long without a message about a running job, doubling, its node is asked: its outcome may have been lost."""
PACE_S = 0.5
"""Missed scalars are asked for at most so often while the job runs."""
RETRY_S = 2.0
LONGEST_RETRY_S = 30.0
GIVE_UP_AFTER = 4
"""Questions about a job that is over which its node leaves unanswered until the missing parts count as lost."""
ALL_SCALARS = Bound(sys.maxsize)
"""No bound: a slow listener misses no scalar; runs are bounded themselves."""
DROPPED = "answers about runs dropped"
_VALUE_BYTES = 128
"""Memory of a value beside its name, about."""

Question = dict[str, Any]
"""The fields of a JobStatus."""


class RunScalar(Scalar, frozen=True, kw_only=True):
    """One ``context.report`` of a plan on one node; see Scalar."""

    node_id: NodeId


def _stage(state: JobState) -> int:
    early = (JobState.STARTING, JobState.RUNNING, JobState.HELD)
    return early.index(state) if state in early else len(early)


class Part:
    """One node's part in a run: its answers so far, and the next question; belongs to the lock of its ledger.

    ``asked`` is the outcome of asking it to run.
    """

    def __init__(self, node_id: NodeId, *, now: float) -> None:
        self.node_id, self.asked, self.reason = node_id, OutcomeStatus.TIMED_OUT, ""
        self.job: JobReport | None = None
        self.result: Parcel | None = None
        self.scalars: dict[int, Scalar] = {}
        self.scalars_lost = self._bytes = self._next_scalar = self._expected = 0
        self._retry = Backoff(RETRY_S, longest_s=LONGEST_RETRY_S)
        self._quiet_s = QUIET_S
        self._result_gone = self._forgotten = False
        self._news_at = self._may_ask_at = now

    @property
    def is_over(self) -> bool:
        """Whether the plan has ended, or never began."""
        return not self.job.state.is_running if self.job is not None else self.asked is not OutcomeStatus.TIMED_OUT

    @property
    def is_settled(self) -> bool:
        """Whether nothing more will come."""
        if self.job is None or not self.is_over:
            return self.is_over
        return not (self._lacks_result() or self._lacks_scalars()) or self._retry.attempts >= GIVE_UP_AFTER

    @property
    def has_result(self) -> bool:
        """Whether the job succeeded, and its result came or will not come."""
        is_known = self.is_settled or self.result is not None
        return is_known and self.job is not None and self.job.state is JobState.SUCCEEDED

    @property
    def in_order(self) -> list[Scalar]:
        """The scalars, by number."""
        return [self.scalars[number] for number in sorted(self.scalars)]

    @property
    def lost(self) -> int:
        """The number of scalars that will not come, or are more than are kept."""
        if not self.is_settled or self.job is None:
            return self.scalars_lost
        missing = sum(number not in self.scalars for number in range(self._next_scalar, self._expected))
        return self.scalars_lost + missing + max(0, self.job.scalars - MAX_SCALARS_KEPT)

    @property
    def view(self) -> NodeRun:
        """The last state that the node reported."""
        return NodeRun(
            node_id=self.node_id,
            job=self.job,
            asked=self.asked,
            reason=self.reason,
            scalars=len(self.scalars),
            latest=self.scalars[max(self.scalars)].values if self.scalars else {},
            result=self.result is not None,
        )

    def _lacks_result(self) -> bool:
        succeeded = self.job is not None and self.job.state is JobState.SUCCEEDED
        return succeeded and self.result is None and not self._result_gone

    def _lacks_scalars(self) -> bool:
        return self._next_scalar < self._expected

    # --- answers ------------------------------------------------------------------------------------------------------

    def knows(self, job: JobReport, question: Mapping[str, Any]) -> bool:
        """Tell whether an answer brings nothing: the job is over, and another one brought these scalars.

        Else each of several late answers would have the next page asked for, and so each of their answers.
        """
        is_same = self.job is not None and self.job.state is job.state and not job.state.is_running
        return is_same and question.get("scalars_from", self._next_scalar) < self._next_scalar

    def job_said(self, job: JobReport, now: float) -> None:
        """Take the state of the job; no earlier one follows, and one that is over stays over."""
        self._heard(now)
        known = None if self.job is None or self._forgotten else self.job.state
        if known is not None and (known.is_final or _stage(job.state) < _stage(known)):
            return
        self._forgotten = self._result_gone = False
        self.job, self.asked = job, OutcomeStatus.OK
        self._expected = max(self._expected, min(job.scalars, MAX_SCALARS_KEPT))
        if job.state.is_final:
            self._may_ask_at = now

    def result_said(self, result: Parcel | None, *, final: bool) -> None:
        """Take the result; ``final`` if a missing one means none."""
        self.result = self.result or result
        self._result_gone = final and self.result is None

    def scalar_heard(self, scalar: Scalar, now: float) -> Scalar | None:
        """Take a live scalar; return it if it is new."""
        self._news_at = now
        self._expected = max(self._expected, min(scalar.number + 1, MAX_SCALARS_KEPT))
        if self.job is not None and self.job.state is JobState.STARTING:
            self.job = msgspec.structs.replace(self.job, state=JobState.RUNNING)  # only a running plan reports
        return self._kept(scalar)

    def page_said(self, scalars: Sequence[Scalar], now: float) -> list[Scalar]:
        """Take a page of scalars from the first missing one on; return the new ones."""
        self._heard(now)
        # A page has all that the node keeps up to its last: the others, and with an empty page all that were
        # announced, it no longer keeps. A plan that reports without end leaves such a gap before nearly each page.
        asked_from = self._next_scalar
        new = [scalar for scalar in scalars if self._kept(scalar) is not None]
        reached = max((scalar.number + 1 for scalar in scalars), default=self._expected)
        page = range(asked_from, min(reached, MAX_SCALARS_KEPT))
        self.scalars_lost += sum(number not in self.scalars for number in page)
        self._next_scalar = max(self._next_scalar, page.stop)
        self._advance()
        return new

    def refused_to_say(self, reason: str, now: float, *, pause_s: float) -> None:
        """Note that the node does not tell the state of the job; it is asked again after a pause."""
        self._heard(now)
        self._may_ask_at = now + min(max(pause_s, RETRY_S), LONGEST_RETRY_S)
        self.reason = reason

    def not_known(self, now: float) -> None:
        """Note that the node knows no such job: it did not begin, or the node has forgotten it."""
        self._heard(now)
        if self.job is None:
            self.asked, self.reason = OutcomeStatus.FAILED, "the node does not know the job: it did not begin"
        elif not self.job.state.is_final:
            said = "the node no longer knows the job"
            self.job, self._forgotten = msgspec.structs.replace(self.job, state=JobState.LOST, reason=said), True
        self._result_gone = self.result is None
        self._expected = self._next_scalar

    def may_have_missed(self, now: float) -> None:
        """Note that the node, or our own connection, came up: messages in between did not reach us."""
        self._retry.reset()
        self._quiet_s = QUIET_S
        self._may_ask_at = now
        self._news_at = now - QUIET_S

    def _heard(self, now: float) -> None:
        self._news_at, self.reason = now, ""
        self._retry.reset()
        self._may_ask_at = now if self.is_over else now + PACE_S

    def _kept(self, scalar: Scalar) -> Scalar | None:
        if scalar.number in self.scalars or scalar.number >= MAX_SCALARS_KEPT:
            return None
        self._bytes += sum(len(name) + _VALUE_BYTES for name in scalar.values)
        if self._bytes > MAX_SCALARS_BYTES:
            self.scalars_lost += 1
            scalar = msgspec.structs.replace(scalar, values={})
        self.scalars[scalar.number] = scalar
        self._advance()
        return scalar if scalar.values else None

    def _advance(self) -> None:
        while self._next_scalar in self.scalars:
            self._next_scalar += 1

    # --- questions ----------------------------------------------------------------------------------------------------

    def question(self, now: float) -> Question | None:
        """Return the question that is due now, or None."""
        due_at = self.due_at()
        if due_at is None or due_at > now:
            return None
        self._may_ask_at = now + self._retry.next_s()
        if self.is_over and self._lacks_result():
            return {"result": True}
        if not self.is_over:
            self._quiet_s = min(2 * self._quiet_s, LONGEST_QUIET_S)
        return {"scalars_from": self._next_scalar}

    def due_at(self) -> float | None:
        """Return when the next question is due, None for never."""
        if self.is_settled:
            return None
        if self.is_over or self._lacks_scalars():
            return self._may_ask_at
        return max(self._may_ask_at, self._news_at + self._quiet_s)


class RunLedger:
    """The parts of one run, by node. Safe from any thread; ``changed`` is notified at each change.

    Only nodes that were asked have a part, and only messages about this job and this plan are taken: others are
    counted, with the reason. ``sha256`` None takes the plan of the first node that tells one. ``content`` is the
    request of this process, empty without one.
    """

    def __init__(
        self, job_id: str, *, sha256: str | None, content: bytes, dispatcher: Dispatcher, tally: Tally
    ) -> None:
        self.job_id, self.sha256, self.content = job_id, sha256, content
        self.changed = threading.Condition()
        self.version = 0
        self.closed = ""
        self._dispatcher, self._tally = dispatcher, tally
        self._parts: dict[NodeId, Part] = {}
        self._listeners: list[Subscription] = []
        self._at_end: tuple[tuple[Subscription, frozenset[NodeId]], ...] = ()

    @property
    def nodes(self) -> frozenset[NodeId]:
        """The nodes that take part."""
        with self.changed:
            return frozenset(self._parts)

    @property
    def unsettled(self) -> frozenset[NodeId]:
        """The nodes of which something is still to come."""
        with self.changed:
            return frozenset(node_id for node_id, part in self._parts.items() if not part.is_settled)

    def take_part(self, nodes: Iterable[NodeId]) -> None:
        """Begin to take messages of these nodes."""
        now = time.monotonic()
        with self.changed:
            for node_id in nodes:
                self._parts.setdefault(node_id, Part(node_id, now=now))
            self._touch()

    def asked(self, outcomes: Outcomes[RunReply]) -> None:
        """Take the outcomes of asking nodes to run it."""
        now = time.monotonic()
        with self.changed:
            for node_id, outcome in outcomes.items():
                if outcome.reply is None:
                    if (part := self._parts[node_id]).job is None:
                        part.asked, part.reason = outcome.status, outcome.reason
                elif (known := self._part(node_id, outcome.reply.job)) is not None:
                    known.job_said(outcome.reply.job, now)
            self._touch()

    # --- messages of nodes --------------------------------------------------------------------------------------------

    def job_said(self, node_id: str, job: JobReport) -> None:
        """Take a node's answer about its job."""
        with self.changed:
            part = self._part(node_id, job)
            if part is not None:
                part.job_said(job, time.monotonic())
                self._touch()

    def outcome(self, outcome: JobOutcome) -> bool:
        """Take how it ended on a node; False if it is about something else."""
        with self.changed:
            part = self._part(outcome.node_id, outcome.job)
            if part is None or outcome.job.state.is_running:
                return False
            part.job_said(outcome.job, time.monotonic())
            part.result_said(outcome.result, final=False)
            self._touch()
            return True

    def heard(self, message: AddScalar) -> None:
        """Take a live scalar."""
        if message.number is None:
            return
        t = time.time() if message.t is None else message.t
        scalar = Scalar(number=message.number, t=t, values=message.metric, step=message.iteration)
        with self.changed:
            part = self._parts.get(NodeId(message.node_id))
            if part is None:
                self._tally.count(DROPPED, f"scalars of {message.node_id}, which was not asked to run {self.job_id}")
                return
            new = part.scalar_heard(scalar, time.monotonic())
            self._tell(self._listeners, part.node_id, [] if new is None else [new])
            self._touch()

    def answered(self, reply: Reply, question: Mapping[str, Any]) -> None:
        """Take the answer to a question of `questions`."""
        now = time.monotonic()
        node_id = NodeId(reply.node_id)
        with self.changed:
            part = self._parts.get(node_id)
            if part is None:
                return
            if isinstance(reply, JobsReply):
                job = next((job for job in reply.jobs if job.job_id == self.job_id), None)
                if job is None:
                    part.not_known(now)
                elif self._part(node_id, job) is not None and not part.knows(job, question):
                    part.job_said(job, now)
                    if "result" in question:
                        part.result_said(reply.result, final=job.state.is_final)
                    else:
                        self._tell(self._listeners, node_id, part.page_said(reply.scalars, now))
            elif isinstance(reply, Error):
                reason = f"it does not say how the job stands: {reply.reason}"
                part.refused_to_say(reason, now, pause_s=reply.retry_after_s or 0.0)
            self._touch()

    def may_have_missed(self, node_id: NodeId | None) -> None:
        """Note that a node, or with None our own connection, came back: the state is asked for at once."""
        now = time.monotonic()
        with self.changed:
            for part in self._parts.values():
                if node_id is None or part.node_id == node_id:
                    part.may_have_missed(now)
            self._touch()

    def _part(self, node_id: str, job: JobReport) -> Part | None:
        part = self._parts.get(NodeId(node_id))
        if part is None:
            self._tally.count(DROPPED, f"job {self.job_id} of {node_id}, which was not asked to run it")
            return None
        if job.job_id != self.job_id:
            self._tally.count(DROPPED, f"{node_id} answered about job {job.job_id} in place of {self.job_id}")
            return None
        self.sha256 = self.sha256 or job.sha256
        if job.sha256 != self.sha256:
            part.reason = f"it told of another plan, {job.sha256[:12]}, under this job; that was dropped"
            self._tally.count(DROPPED, f"{node_id}, job {self.job_id}: {part.reason}")
            return None
        return part

    # --- questions ----------------------------------------------------------------------------------------------------

    def questions(self, now: float) -> list[tuple[NodeId, Question]]:
        """Return the questions that are due now, by node."""
        with self.changed:
            asked = [(part, fields) for part in self._parts.values() if (fields := part.question(now)) is not None]
            if any(part.is_settled for part, _ in asked):  # it was the last question
                self._touch()
        return [(part.node_id, fields) for part, fields in asked]

    def due_at(self) -> float | None:
        """Return when the next question is due, None for never."""
        with self.changed:
            return min((due for part in self._parts.values() if (due := part.due_at()) is not None), default=None)

    # --- views and listeners ------------------------------------------------------------------------------------------

    def each(self, view: Callable[[Part], T]) -> dict[NodeId, T]:
        """Return something of each part, by node."""
        with self.changed:
            return {node_id: view(part) for node_id, part in self._parts.items()}

    def results(self) -> dict[NodeId, Parcel | None]:
        """Return the received results of the nodes that succeeded; None if the node no longer has it."""
        with self.changed:
            return {node_id: part.result for node_id, part in self._parts.items() if part.has_result}

    def listen(self, callback: Callable[[RunScalar], object]) -> Subscription:
        """Call back at each scalar, and now for those that came already, each once."""
        listener = Subscription(callback, self._listeners.remove, urgent=ALL_SCALARS)
        with self.changed:
            for node_id, part in self._parts.items():
                self._tell([listener], node_id, part.in_order)
            self._listeners.append(listener)
        return listener

    def on_over(self, callback: Callable[[], object], *, without: Collection[NodeId] = ()) -> Subscription:
        """Call back once, when nothing more will come, or everything was closed; now, if that is so already."""
        listener = Subscription(lambda _: callback(), lambda _: None)
        with self.changed:
            self._at_end += ((listener, frozenset(without)),)
            self._touch()
        return listener

    def close(self, why: str) -> None:
        """End every wait: nothing more comes."""
        with self.changed:
            self.closed = self.closed or why
            self._touch()

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition holds, or everything was closed; return whether it holds."""
        with self.changed:
            self.changed.wait_for(lambda: bool(self.closed) or condition(), timeout=timeout_s)
            return condition()

    def wait_for_change(self, version: int, timeout_s: float) -> None:
        """Wait until something changed since a version, or everything was closed."""
        self.wait(lambda: self.version != version, timeout_s)

    def _tell(self, listeners: list[Subscription], node_id: NodeId, scalars: Collection[Scalar]) -> None:
        for listener in list(listeners) if scalars else ():
            told = (RunScalar(node_id=node_id, **msgspec.structs.asdict(one)) for one in scalars)
            self._dispatcher.call(listener, told, urgent=True)

    def _touch(self) -> None:
        self.version += 1
        self.changed.notify_all()
        if not self._at_end:
            return
        unsettled = {node_id for node_id, part in self._parts.items() if not part.is_settled}
        for entry in self._at_end:
            if self.closed or unsettled <= entry[1]:
                self._at_end = tuple(one for one in self._at_end if one is not entry)
                self._dispatcher.call(entry[0], (None,), urgent=True)


class RunBook:
    """The runs that this process follows: it routes messages to their ledgers, and asks for missing parts.

    Belongs to the inbox thread; `open`, `follow`, `holds` and `forget` are safe from any thread. `follow` and each
    message about a run have it followed until everything is there; a ledger is known as long as a handle holds it.
    ``wake`` has the inbox call `tick` now.
    """

    def __init__(self, asker: Asker, dispatcher: Dispatcher, tally: Tally, *, wake: Callable[[], None]) -> None:
        self._asker, self._dispatcher, self._tally, self._wake = asker, dispatcher, tally, wake
        self._lock = threading.Lock()
        self._followed: dict[str, RunLedger] = {}
        self._held: WeakValueDictionary[str, RunLedger] = WeakValueDictionary()

    def open(self, job_id: str, *, sha256: str | None, content: bytes = b"") -> RunLedger:
        """Return the ledger of a run, an earlier one if that is still held; it is not followed yet.

        Raises ConflictError if the earlier one is of another request.
        """
        new = RunLedger(job_id, sha256=sha256, content=content, dispatcher=self._dispatcher, tally=self._tally)
        with self._lock:
            ledger = self._held.setdefault(job_id, new)
        if content and ledger.content not in (b"", content):
            raise ConflictError(f"job_id {job_id} stands for another run of this process: give another, or none")
        return ledger

    def follow(self, job_id: str) -> None:
        """Ask for the missing parts of a run, from now on until everything is there."""
        self._follow(job_id)
        self._wake()

    def holds(self, job_id: str) -> bool:
        """Tell whether a ledger of this run is in use."""
        with self._lock:
            return job_id in self._held

    def forget(self, ledger: RunLedger) -> None:
        """Follow a run no more."""
        with self._lock:
            self._followed.pop(ledger.job_id, None)
            self._held.pop(ledger.job_id, None)

    @property
    def followed(self) -> list[RunLedger]:
        """The runs of which something is to come."""
        with self._lock:
            return list(self._followed.values())

    def _follow(self, job_id: str) -> RunLedger | None:
        """Follow a run whose ledger is in use, and return that; called whenever more of it may be missing."""
        with self._lock:
            ledger = self._held.get(job_id)
            if ledger is not None:
                self._followed[job_id] = ledger
            return ledger

    def heard(self, scalar: AddScalar) -> None:
        """Take a live scalar."""
        ledger = self._follow(scalar.job_id)
        if ledger is not None:
            ledger.heard(scalar)

    def outcome(self, outcome: JobOutcome) -> bool:
        """Take how a job ended; return whether it is of a run that is followed."""
        ledger = self._follow(outcome.job.job_id)
        return ledger is not None and ledger.outcome(outcome)

    def may_have_missed(self, node_id: NodeId | None) -> None:
        """Note that a node, or with None our own connection, came back."""
        for ledger in self.followed:
            ledger.may_have_missed(node_id)

    def tick(self, now: float) -> None:
        """Ask for missing parts."""
        for ledger in self.followed:
            for node_id, question in ledger.questions(now):
                self._ask(ledger.job_id, node_id, question)
            with self._lock:
                if not ledger.unsettled:
                    self._followed.pop(ledger.job_id, None)

    def due_at(self) -> float | None:
        """Return when `tick` is due next, None for never."""
        return min((due for ledger in self.followed if (due := ledger.due_at()) is not None), default=None)

    def close(self) -> None:
        """End every wait."""
        with self._lock:
            held = list(self._held.values())
        for ledger in held:
            ledger.close("the federation was closed")
            self.forget(ledger)

    def _ask(self, job_id: str, node_id: NodeId, question: Question) -> None:
        def take(reply: Reply) -> None:
            ledger = self._follow(job_id)
            if ledger is not None:
                ledger.answered(reply, question)

        request = self._asker.request(JobStatus, job_id=job_id, **question)
        self._asker.tell(request, [node_id], on_answer=take)
