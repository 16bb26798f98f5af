"""Everything that is known of one run, from all of its nodes: what they answer, announce and stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from fedmon.common.ids import NodeId
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Error, ErrorCode
from fedmon.common.wire.runs import Job, JobOutcome, JobsReply, JobState, Parcel, Scalar
from fedmon.common.wire.samples import AddScalar
from fedmon.researcher.asking.outcome import OutcomeStatus
from fedmon.researcher.runs.part import Part
from fedmon.researcher.runs.scalar_listener import RunScalar, ScalarListener
from fedmon.researcher.runs.states import NodeRun
from fedmon.researcher.session.callbacks import Dispatcher, Subscription
from fedmon.researcher.session.tally import Tally

DROPPED = "answers about runs dropped"


class Ledger:
    """The parts of one run, by node. Safe from any thread; ``changed`` is notified at each change.

    Only nodes that were asked have a part, and only what is about this job and this plan is taken: the rest is counted,
    with its reason. ``sha256`` null takes the plan of the first node that tells one. ``is_complete`` says that no
    further node will take part.
    """

    def __init__(self, job_id: str, *, sha256: str | None, dispatcher: Dispatcher, tally: Tally) -> None:
        self.job_id, self.sha256 = job_id, sha256
        self.changed = threading.Condition()
        self.version = 0
        self.closed = ""
        self.is_complete = False
        self._dispatcher, self._tally = dispatcher, tally
        self._parts: dict[NodeId, Part] = {}
        self._listeners: tuple[ScalarListener, ...] = ()
        self._at_end: tuple[tuple[Subscription, frozenset[NodeId]], ...] = ()
        self._settled = 0

    # --- whom it is about --------------------------------------------------------------------------------------------

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

    def take_part(self, nodes: Iterable[NodeId], *, asked: OutcomeStatus = OutcomeStatus.TIMED_OUT) -> None:
        """Begin to take what these nodes say."""
        now = time.monotonic()
        with self.changed:
            for node_id in nodes:
                self._parts.setdefault(node_id, Part(node_id, now=now, asked=asked))
            self._touch()

    def leave_out(self, nodes: Iterable[NodeId]) -> None:
        """Forget nodes that turned out to take no part, unless they have said otherwise meanwhile."""
        with self.changed:
            for node_id in nodes:
                part = self._parts.get(node_id)
                if part is not None and part.job is None:
                    del self._parts[node_id]
            self._touch()

    def came_of_asking(self, node_id: NodeId, status: OutcomeStatus, reason: str) -> None:
        """Note why a node does not run it, or that it did not answer."""
        with self.changed:
            part = self._parts.get(node_id)
            if part is not None and part.job is None:
                part.asked, part.reason = status, reason
                self._touch()

    # --- what nodes say ----------------------------------------------------------------------------------------------

    def job_said(self, node_id: str, job: Job) -> bool:
        """Take what a node answered about its job; False when it is about something else."""
        with self.changed:
            part = self._part(node_id, job)
            if part is not None:
                part.job_said(job, time.monotonic())
                self._touch()
            return part is not None

    def outcome(self, outcome: JobOutcome) -> bool:
        """Take how it ended on a node; False when it is about something else."""
        with self.changed:
            part = self._part(outcome.node_id, outcome.job)
            if part is None or not outcome.job.state.is_over:
                return False
            part.job_said(outcome.job, time.monotonic())
            part.result_said(outcome.result, final=False)
            self._touch()
            return True

    def heard(self, message: AddScalar) -> None:
        """Take a live scalar."""
        if message.number is None:
            return
        values = {str(name): value for name, value in message.metric.items()}
        t = time.time() if message.t is None else message.t
        scalar = Scalar(number=message.number, t=t, values=values, step=message.iteration)
        with self.changed:
            part = self._parts.get(NodeId(message.node_id))
            if part is None:
                self._tally.count(DROPPED, f"scalars of {message.node_id}, which was not asked to run {self.job_id}")
                return
            new = part.scalar_heard(scalar, time.monotonic())
            self._tell(part.node_id, [] if new is None else [new])
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
                    part.not_known("", now)
                elif self._part(node_id, job) is not None:
                    part.job_said(job, now)
                    if "result" in question:
                        part.result_said(reply.result, final=job.state.is_over)
                    else:
                        self._tell(node_id, part.page_said(reply.scalars, now))
            elif isinstance(reply, Error):
                if reply.code is ErrorCode.FAILED:
                    part.not_known(reply.reason, now)
                else:
                    part.refused_to_say(f"it does not say how the job stands: {reply.reason}", now)
            self._touch()

    def _part(self, node_id: str, job: Job) -> Part | None:
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

    def may_have_missed(self, node_id: NodeId | None) -> None:
        """Hear that a node, or with null our own connection, came back: how it stands is asked at once."""
        now = time.monotonic()
        with self.changed:
            for part in self._parts.values():
                if node_id is None or part.node_id == node_id:
                    part.may_have_missed(now)
            self._touch()

    # --- what is to be asked -----------------------------------------------------------------------------------------

    def questions(self, now: float) -> list[tuple[NodeId, dict[str, Any]]]:
        """Return what is to be asked of whom now."""
        with self.changed:
            asked = [(node_id, part.question(now)) for node_id, part in self._parts.items()]
            settled = sum(part.is_settled for part in self._parts.values())
            if settled != self._settled:
                self._settled = settled
                self._touch()
        return [(node_id, fields) for node_id, fields in asked if fields is not None]

    def due_at(self) -> float | None:
        """Return when something is to be asked next, null for never."""
        with self.changed:
            return min((due for part in self._parts.values() if (due := part.due_at()) is not None), default=None)

    # --- what users see ----------------------------------------------------------------------------------------------

    def views(self) -> dict[NodeId, NodeRun]:
        """Return how it stands on each node, as far as the nodes said."""
        with self.changed:
            return {
                node_id: NodeRun(
                    node_id=node_id,
                    job=part.job,
                    asked=part.asked,
                    reason=part.reason,
                    scalars=len(part.scalars),
                    result=part.result is not None,
                )
                for node_id, part in self._parts.items()
            }

    def results(self) -> dict[NodeId, Parcel | None]:
        """Return what is there of the results of the nodes that succeeded, null where the node has it no more."""
        with self.changed:
            return {
                node_id: part.result
                for node_id, part in self._parts.items()
                if part.job is not None
                and part.job.state is JobState.SUCCEEDED
                and (part.is_settled or part.result is not None)
            }

    def scalars(self) -> dict[NodeId, list[Scalar]]:
        """Return the scalars of each node, in order."""
        with self.changed:
            return {
                node_id: [part.scalars[number] for number in sorted(part.scalars)]
                for node_id, part in self._parts.items()
            }

    def scalars_lost(self) -> dict[NodeId, int]:
        """Return of how many scalars it is known that they will not come, where there are any."""
        with self.changed:
            return {node_id: part.scalars_lost for node_id, part in self._parts.items() if part.scalars_lost}

    def latest(self) -> dict[NodeId, Mapping[str, float | None]]:
        """Return the last scalars of each node that has any."""
        with self.changed:
            return {
                node_id: part.scalars[max(part.scalars)].values for node_id, part in self._parts.items() if part.scalars
            }

    def listen(self, callback: Callable[[RunScalar], object]) -> Subscription:
        """Call back at each scalar, and now for those that are here already, each once."""

        def removed(subscription: Subscription) -> None:
            with self.changed:
                self._listeners = tuple(one for one in self._listeners if one is not subscription)

        listener = ScalarListener(callback, removed, self._dispatcher)
        with self.changed:
            for node_id, part in self._parts.items():
                listener.put(_told(node_id, [part.scalars[number] for number in sorted(part.scalars)]))
            self._listeners += (listener,)
        return listener

    def on_over(self, callback: Callable[[], object], *, without: Collection[NodeId] = ()) -> Subscription:
        """Call back once, when all is here that will ever be, or nothing comes any more; now, where it is so."""
        listener = Subscription(lambda _: callback(), lambda _: None)
        with self.changed:
            self._at_end += ((listener, frozenset(without)),)
            self._touch()
        return listener

    def close(self, why: str) -> None:
        """End every wait: nothing comes any more."""
        with self.changed:
            self.closed = self.closed or why
            self._touch()

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something holds, or everything was closed; return whether it holds."""
        with self.changed:
            self.changed.wait_for(lambda: bool(self.closed) or condition(), timeout=timeout_s)
            return condition()

    def wait_for_change(self, version: int, timeout_s: float) -> None:
        """Wait until something changed since a version, or everything was closed."""
        self.wait(lambda: self.version != version, timeout_s)

    def _tell(self, node_id: NodeId, scalars: Collection[Scalar]) -> None:
        for listener in self._listeners if scalars else ():
            listener.put(_told(node_id, scalars))

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


def _told(node_id: NodeId, scalars: Iterable[Scalar]) -> list[RunScalar]:
    return [RunScalar(node_id=node_id, number=one.number, t=one.t, values=one.values, step=one.step) for one in scalars]
