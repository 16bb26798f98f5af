"""`RunHandle`: a researcher's view of one run; and the runs that this process follows, by their messages."""

from __future__ import annotations

import importlib.util
import io
import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import msgspec

from fedmon.common.actor import Bound
from fedmon.common.clock import Deadline
from fedmon.common.errors import ConflictError, FedmonError, NoAnswerError, NotConnectedError, NotFoundError
from fedmon.common.ids import NodeId
from fedmon.common.log import escape_control
from fedmon.common.settings.values import RepositorySettings
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Error
from fedmon.common.wire.runs import (
    JobOutcome,
    JobReport,
    JobsReply,
    JobStatus,
    Parcel,
    RunReply,
    Scalar,
    Stop,
    StopReply,
)
from fedmon.common.wire.samples import AddScalar
from fedmon.researcher.asking.outcome import UNHEARD, Outcomes, OutcomeStatus, exit_code
from fedmon.researcher.asking.request import MAX_PAGES, Asker, Nodelist, checked_timeout, node_ids
from fedmon.researcher.asking.submission import transfer_s
from fedmon.researcher.roster import Moment
from fedmon.researcher.runs.errors import RunFailedError, RunHeldError, RunNotOverError
from fedmon.researcher.runs.part import Part, Question
from fedmon.researcher.runs.states import NodeRun, RunStates, ScalarsByNode, shown_in_place
from fedmon.researcher.session.callbacks import Dispatcher, Subscription
from fedmon.researcher.session.inbox import Tally

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_EVERY_S = 1.0
"""How often a wait looks whether nodes are heard."""
MAX_TEXT = 64 * 2**20
"""Characters of a log that are read at once; `JobLog.next_offset` says where it continues."""
ALL_SCALARS = Bound(sys.maxsize)
"""No bound: a slow listener misses no scalar; runs are bounded themselves."""
DROPPED = "answers about runs dropped"

Values = dict[str, dict[str, Any]]
Stream = Literal["stdout", "stderr"]
MAX_RESULT_BYTES = 2**30
"""Largest result of one node, unless the run has another limit: a node cannot make us fetch more."""
AT_ONCE = 4


class RunScalar(Scalar, frozen=True, kw_only=True):
    """One ``context.report`` of a plan on one node; see Scalar."""

    node_id: NodeId


class RunHandle:
    """One run over several nodes, under one ``job_id``. Safe from any thread; shows itself as a table of its nodes.

    ``started`` has the answer of each node to being asked; None if it was found by its id. ``sha256`` is the digest
    of the plan; empty until a node has reported it. ``closed`` is the reason why nothing more will come; empty while
    something may. ``content`` is the request of this process, empty without one.
    """

    def __init__(
        self,
        job_id: str,
        asker: Asker,
        dispatcher: Dispatcher,
        tally: Tally,
        *,
        results: Results,
        follow: Callable[[], None],
        sha256: str,
        content: bytes,
    ) -> None:
        self.job_id, self.sha256, self.content, self.closed = job_id, sha256, content, ""
        self.started: Outcomes[RunReply] | None = None
        self._asker, self._dispatcher, self._tally = asker, dispatcher, tally
        self._results, self._follow = results, follow
        self._changed = threading.Condition()
        self._version = 0
        self._parts: dict[NodeId, Part] = {}
        self._listeners: list[Subscription] = []
        self._at_end: tuple[tuple[Subscription, frozenset[NodeId]], ...] = ()
        self._warned: set[NodeId] = set()

    # --- how it stands -----------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        """The nodes that were asked to take part."""
        return sorted(self._each(lambda part: part.node_id))

    def states(self) -> RunStates:
        """Return the state on each node, with reasons, and the nodes that are not heard."""
        views = self._each(lambda part: part.view)
        return RunStates(self.job_id, {node_id: self._seen(view) for node_id, view in views.items()})

    @property
    def is_over(self) -> bool:
        """Whether it no longer runs on any node, and all reports came."""
        return not self._unsettled

    @property
    def scalars(self) -> ScalarsByNode:
        """The reports of the plan so far on each node, in order; complete when it is over, see `scalars_lost`."""
        return ScalarsByNode({str(node_id): part for node_id, part in self._each(lambda part: part.in_order).items()})

    @property
    def scalars_lost(self) -> dict[str, int]:
        """Number of lost scalars by node, because it no longer has or sends them; empty if all came."""
        lost = self._each(lambda part: part.lost)
        return {str(node_id): number for node_id, number in lost.items() if number}

    def on_scalar(self, callback: Callable[[RunScalar], object]) -> Subscription:
        """Call back at each scalar, also those that came already, until removed; missed ones come late."""
        listener = Subscription(callback, self._listeners.remove, urgent=ALL_SCALARS)
        with self._changed:
            for node_id, part in self._parts.items():
                self._tell([listener], node_id, part.in_order)
            self._listeners.append(listener)
        return listener

    def on_over(self, callback: Callable[[], object], *, without: Sequence[str] = ()) -> Subscription:
        """Call back once, when it is over (at once if it is) or the federation was closed, unless removed before.

        It counts as over without the nodes named in ``without``.
        """
        listener = Subscription(lambda _: callback(), lambda _: None)
        with self._changed:
            self._at_end += ((listener, frozenset(node_ids(without) or ())),)
            self._touch()
        return listener

    def expect(self, nodes: Sequence[str]) -> None:
        """Count nodes as part of it before they were heard; they are asked until they report its state."""
        now = time.monotonic()
        with self._changed:
            for node_id in node_ids(nodes) or ():
                self._parts.setdefault(node_id, Part(node_id, now=now))
            self._touch()
        self._follow()

    def logs(self, node: str, stream: Stream = "stdout", *, offset: int = 0) -> JobLog:
        """Return the plan's output on a node from byte ``offset`` on, or the reason why its owner withholds it.

        Raises NoAnswerError if the node does not answer, and ConflictError if it refuses.
        """
        return _read_log(self._asker, self.job_id, NodeId(node), stream, offset=offset)

    # --- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over on every node; return whether it is. A silent node causes one warning.

        A lost connection is tried again meanwhile. Raises NotConnectedError if the federation was closed.
        """
        deadline = _deadline(timeout_s)
        while not self.is_over:
            self._check()
            if deadline.passed():
                return False
            self._wait_over(deadline.left_s())
        return True

    def _wait_over(self, timeout_s: float) -> None:
        """Wait a second at most until it is over, or the federation was closed."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self.closed) or self.is_over, min(LOOK_EVERY_S, timeout_s))

    def changes(self, timeout_s: float | None = None, *, every_s: float = 0.25) -> Iterator[RunStates]:
        """Yield the states now, and after each change (at most each ``every_s``) until it is over."""
        deadline, last = _deadline(timeout_s), RunStates(self.job_id, {})
        while True:
            version, over, pace = self._version, self.is_over, Deadline(every_s)
            if (states := self.states()) != last:
                yield states
            last = states
            if over or deadline.passed():
                return
            self._check(warns=False)
            with self._changed:
                if self._version == version:
                    self._changed.wait(min(LOOK_EVERY_S, deadline.left_s()))
            self._wait_over(min(pace.left_s(), deadline.left_s()))

    def are_held(self, failed: Iterable[str]) -> bool:
        """Return whether the results of all these nodes only wait for their owners."""
        states = self.states()
        return all(states[NodeId(node_id)].is_held for node_id in failed)

    def result(self, timeout_s: float | None = None) -> Values:
        """Wait until it is over, and return the plan's results by node: JSON values and numpy arrays.

        Raises RunFailedError, naming every node that did not succeed and why, with the ``results`` of the others, and
        RunHeldError if these only wait for their owners; RunNotOverError if ``timeout_s`` is over before, with the
        results so far.
        """
        deadline = _deadline(timeout_s)
        if not self.wait(timeout_s):
            raise self.not_over(waited_s=timeout_s or 0.0)
        results, failed = self.opened(max(1.0, deadline.left_s()))
        if failed and self.are_held(failed):
            raise RunHeldError(self.job_id, failed=failed, results=results)
        if failed:
            raise RunFailedError(self.job_id, failed=failed, results=results, exit_code=self._exit_code())
        return results

    def not_over(self, *, waited_s: float) -> RunNotOverError:
        """Return the error that names the nodes where it still runs, with the results of the others."""
        states = self.states()
        unfinished = {str(node_id): part.sentence() for node_id, part in states.items() if not part.is_over}
        unfinished = unfinished or {
            str(node_id): f"{states[node_id].state}, but not all of it is here yet" for node_id in self._unsettled
        }
        return RunNotOverError(self.job_id, waited_s=waited_s, unfinished=unfinished, results=self.opened(1.0)[0])

    def results(self, *, partial: bool = True) -> Values:
        """Return the results of the nodes that succeeded so far, without waiting.

        Without ``partial`` it raises as `result` does if a node failed, or is not over.
        """
        return self.opened()[0] if partial else self.result(timeout_s=0.001)

    def failures(self) -> dict[str, str]:
        """Return why each node that is over did not succeed, or why its result cannot be used."""
        return self.opened()[1]

    def _exit_code(self) -> int:
        """Return 1 if it ran anywhere, else the code of the nodes that answered, 6 if there are none."""
        states = self.states().values()
        asked = {OutcomeStatus.REFUSED if part.state in ("refused", "busy") else part.asked for part in states}
        return 1 if any(part.job is not None for part in states) else exit_code(asked - UNHEARD or asked)

    def opened(self, timeout_s: float | None = None) -> tuple[Values, dict[str, str]]:
        """Return `results` and `failures` of one moment, after one attempt to fetch missing results."""
        with self._changed:
            parcels = {node_id: part.result for node_id, part in self._parts.items() if part.has_result}
        results, dropped = self._results.open(parcels, timeout_s=timeout_s)
        failed = {
            str(node_id): part.sentence()
            for node_id, part in self.states().items()
            if part.is_over and not part.succeeded
        } | {str(node_id): reason for node_id, reason in dropped.items()}
        return {str(node_id): results[node_id] for node_id in sorted(results)}, dict(sorted(failed.items()))

    # --- stopping ----------------------------------------------------------------------------------------------------

    def stop(self, *, nodes: Nodelist = None, timeout_s: float | None = None) -> Outcomes[StopReply]:
        """Ask every node where it runs, or those named, to end it; the outcome comes as with any other end."""
        named = sorted(self._running()) if nodes is None else node_ids(nodes)
        outcomes = self._asker.ask(Stop, StopReply, nodes=named, timeout_s=timeout_s, job_id=self.job_id)
        with self._changed:
            for node_id, reply in outcomes.ok.items():
                if (part := self._part(node_id, reply.job)) is not None:
                    part.job_said(reply.job, time.monotonic())
            self._touch()
        self._follow()
        return outcomes

    # --- showing -----------------------------------------------------------------------------------------------------

    def show(self, timeout_s: float | None = None) -> bool:
        """Show the states in a notebook as they change, until it is over; elsewhere only wait. Return whether it is."""
        return shown_in_place(self.changes(timeout_s)) if timeout_s is None or timeout_s > 0 else self.is_over

    def __str__(self) -> str:
        return str(self.states())

    def __repr__(self) -> str:
        return f"<RunHandle {self.states().summary()}>"

    def __rich__(self) -> Any:
        return self.states()

    def _repr_html_(self) -> str:
        return self.states()._repr_html_()

    def to_frame(self) -> Any:
        """Return the state on each node as a pandas DataFrame. Raises NoDataframeError if pandas is not installed."""
        return self.states().to_frame()

    def _each(self, view: Callable[[Part], T]) -> dict[NodeId, T]:
        with self._changed:
            return {node_id: view(part) for node_id, part in self._parts.items()}

    def _running(self) -> set[NodeId]:
        return {node_id for node_id, is_over in self._each(lambda part: part.is_over).items() if not is_over}

    @property
    def _unsettled(self) -> frozenset[NodeId]:
        """The nodes of which something is still to come."""
        with self._changed:
            return frozenset(node_id for node_id, part in self._parts.items() if not part.is_settled)

    def _seen(self, view: NodeRun) -> NodeRun:
        """Add whether the node is heard."""
        if view.is_over:
            return view
        node = self._asker.roster.get(view.node_id, Moment.now())
        if node is not None and node.is_online:
            return view
        return msgspec.structs.replace(view, unheard=True, unheard_since=node and (node.last_seen or node.since))

    def _check(self, *, warns: bool = True) -> None:
        """Warn of nodes that are not heard, if ``warns``. Raises NotConnectedError if nothing more can come."""
        if self.closed:
            raise NotConnectedError(f"{self.closed}: open it again, and find the run with job({self.job_id!r})")
        for node_id, part in self.states().items() if warns else ():
            if part.unheard and node_id not in self._warned:
                self._warned.add(node_id)
                logger.warning("job %s on node %s is waited for: %s", self.job_id, node_id, part.sentence())
            elif not part.unheard:
                self._warned.discard(node_id)

    # --- called as nodes are asked, and on the inbox thread -----------------------------------------------------------

    def asked(self, outcomes: Outcomes[RunReply], *, max_result_bytes: int | None) -> None:
        """Take the outcomes of asking nodes to run it, with results of this size."""
        self.started, now = outcomes, time.monotonic()
        self._results.max_bytes = max_result_bytes or MAX_RESULT_BYTES
        with self._changed:
            for node_id, outcome in outcomes.items():
                if outcome.reply is None:
                    if (part := self._parts[node_id]).job is None:
                        part.asked, part.reason = outcome.status, outcome.reason
                elif (known := self._part(node_id, outcome.reply.job)) is not None:
                    known.job_said(outcome.reply.job, now)
            self._touch()

    def outcome(self, outcome: JobOutcome) -> bool:
        """Take how it ended on a node; False if it is about something else."""
        with self._changed:
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
        with self._changed:
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
        with self._changed:
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
        with self._changed:
            for part in self._parts.values():
                if node_id is None or part.node_id == node_id:
                    part.may_have_missed(now)
            self._touch()

    def questions(self, now: float) -> list[tuple[NodeId, Question]]:
        """Return the questions that are due now, by node."""
        with self._changed:
            asked = [(part, fields) for part in self._parts.values() if (fields := part.question(now)) is not None]
            if any(part.is_settled for part, _ in asked):  # it was the last question
                self._touch()
        return [(part.node_id, fields) for part, fields in asked]

    def due_at(self) -> float | None:
        """Return when the next question is due, None for never."""
        with self._changed:
            return min((due for part in self._parts.values() if (due := part.due_at()) is not None), default=None)

    def end_waits(self, why: str) -> None:
        """End every wait: nothing more comes."""
        with self._changed:
            self.closed = self.closed or why
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

    def _tell(self, listeners: list[Subscription], node_id: NodeId, scalars: Collection[Scalar]) -> None:
        for listener in list(listeners) if scalars else ():
            told = (RunScalar(node_id=node_id, **msgspec.structs.asdict(one)) for one in scalars)
            self._dispatcher.call(listener, told, urgent=True)

    def _touch(self) -> None:
        self._version += 1
        self._changed.notify_all()
        unsettled = self._unsettled if self._at_end else frozenset()
        for entry in self._at_end:
            if self.closed or unsettled <= entry[1]:
                self._at_end = tuple(one for one in self._at_end if one is not entry)
                self._dispatcher.call(entry[0], (None,), urgent=True)


class RunBook:
    """The runs that this process follows: it routes messages to their handles, and asks for missing parts.

    Belongs to the inbox thread; `open`, `follow`, `holds` and `forget` are safe from any thread. `follow` and each
    message about a run have it followed until everything is there; a handle is known as long as it is used.
    ``wake`` has the inbox call `tick` now.
    """

    def __init__(
        self,
        asker: Asker,
        dispatcher: Dispatcher,
        tally: Tally,
        *,
        repository: RepositorySettings,
        wake: Callable[[], None],
    ) -> None:
        self._asker, self._dispatcher, self._tally, self._wake = asker, dispatcher, tally, wake
        self._repository = repository
        self._lock = threading.Lock()
        self._followed: dict[str, RunHandle] = {}
        self._held: WeakValueDictionary[str, RunHandle] = WeakValueDictionary()

    def open(self, job_id: str, *, sha256: str = "", content: bytes = b"") -> RunHandle:
        """Return the handle of a run, an earlier one if that is still used; it is not followed yet.

        Raises ConflictError if the earlier one is of another request.
        """
        new = RunHandle(
            job_id,
            self._asker,
            self._dispatcher,
            self._tally,
            results=Results(self._repository),
            follow=lambda: self.follow(job_id),
            sha256=sha256,
            content=content,
        )
        with self._lock:
            handle = self._held.setdefault(job_id, new)
            handle.content = handle.content or content  # it may have been found by its id before
        if content not in (b"", handle.content):
            raise ConflictError(f"job_id {job_id} stands for another run of this process: give another, or none")
        return handle

    def follow(self, job_id: str) -> None:
        """Ask for the missing parts of a run, from now on until everything is there."""
        self._follow(job_id)
        self._wake()

    def holds(self, job_id: str) -> bool:
        """Tell whether a handle of this run is in use."""
        with self._lock:
            return job_id in self._held

    def forget(self, handle: RunHandle) -> None:
        """Follow a run no more."""
        with self._lock:
            self._followed.pop(handle.job_id, None)
            self._held.pop(handle.job_id, None)

    @property
    def followed(self) -> list[RunHandle]:
        """The runs of which something is to come."""
        with self._lock:
            return list(self._followed.values())

    def _follow(self, job_id: str) -> RunHandle | None:
        """Follow a run whose handle is in use, and return that; called whenever more of it may be missing."""
        with self._lock:
            handle = self._held.get(job_id)
            if handle is not None:
                self._followed[job_id] = handle
            return handle

    def heard(self, scalar: AddScalar) -> None:
        """Take a live scalar."""
        if (handle := self._follow(scalar.job_id)) is not None:
            handle.heard(scalar)

    def outcome(self, outcome: JobOutcome) -> bool:
        """Take how a job ended; return whether it is of a run that is followed."""
        handle = self._follow(outcome.job.job_id)
        return handle is not None and handle.outcome(outcome)

    def may_have_missed(self, node_id: NodeId | None) -> None:
        """Note that a node, or with None our own connection, came back."""
        for handle in self.followed:
            handle.may_have_missed(node_id)

    def tick(self, now: float) -> float | None:
        """Ask for missing parts; return when to do so next, on the monotonic clock, None for never."""
        for handle in self.followed:
            for node_id, question in handle.questions(now):
                self._ask(handle.job_id, node_id, question)
            with self._lock:
                if handle.is_over:
                    self._followed.pop(handle.job_id, None)
        return min((due for handle in self.followed if (due := handle.due_at()) is not None), default=None)

    def close(self) -> None:
        """End every wait."""
        with self._lock:
            held = list(self._held.values())
        for handle in held:
            handle.end_waits("the federation was closed")
            self.forget(handle)

    def _ask(self, job_id: str, node_id: NodeId, question: Question) -> None:
        def take(reply: Reply) -> None:
            if (handle := self._follow(job_id)) is not None:
                handle.answered(reply, question)

        request = self._asker.request(JobStatus, job_id=job_id, **question)
        self._asker.tell(request, [node_id], on_answer=take)


def _deadline(timeout_s: float | None) -> Deadline:
    return Deadline(None if timeout_s is None else checked_timeout(timeout_s))


class JobLog(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a plan; ``withheld`` has the reason if its owner withholds it.

    ``size_bytes`` is its size so far, ``skipped_bytes`` how much of that is not kept, and ``next_offset`` where to
    continue.
    """

    node_id: NodeId
    stream: Stream
    text: str = ""
    size_bytes: int = 0
    skipped_bytes: int = 0
    next_offset: int = 0
    withheld: str = ""
    is_over: bool = False

    def __repr__(self) -> str:
        """Return it for a terminal, with control characters escaped; `text` has it as it was printed."""
        if self.withheld:
            return f"({self.stream} of {self.node_id} is withheld: {escape_control(self.withheld)})"
        return escape_control(self.text, keep="\n\t")


def _read_log(asker: Asker, job_id: str, node_id: NodeId, stream: Stream, *, offset: int) -> JobLog:
    """Return the output from a byte on. Raises NoAnswerError, ConflictError for a refusal, or NotFoundError."""
    texts: list[str] = []
    log = JobLog(node_id=node_id, stream=stream, next_offset=offset)
    for _ in range(MAX_PAGES):
        reply = _page(asker, job_id, node_id, stream, log.next_offset)
        trace = reply.stdout if stream == "stdout" else reply.stderr
        log = msgspec.structs.replace(log, is_over=not reply.jobs[0].state.is_running)
        if trace is None:
            return msgspec.structs.replace(log, withheld=reply.withheld or "the node no longer keeps it")
        gap = f"\n[... {trace.skipped_bytes} bytes not kept ...]\n" if trace.skipped_bytes else ""
        texts.append(gap + trace.text)
        # A node whose pages do not advance is not asked for more.
        ended = trace.next_offset <= log.next_offset or trace.next_offset >= trace.size_bytes
        log = msgspec.structs.replace(
            log,
            size_bytes=trace.size_bytes,
            skipped_bytes=log.skipped_bytes + trace.skipped_bytes,
            next_offset=max(log.next_offset, trace.next_offset),
        )
        if ended or sum(map(len, texts)) > MAX_TEXT:
            break
    return msgspec.structs.replace(log, text="".join(texts))


def _page(asker: Asker, job_id: str, node_id: NodeId, stream: Stream, offset: int) -> JobsReply:
    fields = {"job_id": job_id, f"{stream}_from": offset}
    outcome = asker.ask(JobStatus, JobsReply, nodes=[node_id], timeout_s=None, **fields)[node_id]
    if outcome.reply is None:
        kind = NoAnswerError if outcome.status in UNHEARD else ConflictError
        raise kind(f"{stream} of {node_id}: {outcome.reason}")
    if not outcome.reply.jobs or outcome.reply.jobs[0].job_id != job_id:
        raise NotFoundError(f"node {node_id} does not know job {job_id}; `fedmon runs` lists those that nodes know")
    return outcome.reply


class BadResultError(FedmonError):
    """The result of a node cannot be used; the message says why."""


class Results:
    """The results of one run, each opened once. Safe from any thread."""

    def __init__(self, repository: RepositorySettings) -> None:
        self._repository, self.max_bytes = repository, MAX_RESULT_BYTES
        self._known: dict[NodeId, dict[str, Any] | str] = {}

    def open(
        self, parcels: Mapping[NodeId, Parcel | None], *, timeout_s: float | None
    ) -> tuple[dict[NodeId, dict[str, Any]], dict[NodeId, str]]:
        """Return the values of each node, and the reasons of the others."""

        def open_next() -> None:
            for node_id in waiting:
                try:
                    self._known[node_id] = opened(
                        parcels[node_id], self._repository, max_bytes=self.max_bytes, timeout_s=timeout_s
                    )
                except (FedmonError, MemoryError) as error:
                    said = escape_control(str(error)) or "it does not fit into the memory"
                    self._known[node_id] = f"its result was dropped: {said}"

        new = [node_id for node_id in parcels if not isinstance(self._known.get(node_id), dict)]
        waiting = iter(new)
        # Daemons: the end of the process waits for other threads, so that Ctrl-C would wait for downloads.
        threads = [threading.Thread(target=open_next, name="fedmon-results", daemon=True) for _ in new[:AT_ONCE]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (
            {node_id: values for node_id in parcels if isinstance(values := self._known[node_id], dict)},
            {node_id: reason for node_id in parcels if isinstance(reason := self._known[node_id], str)},
        )


def opened(
    parcel: Parcel | None, repository: RepositorySettings, *, max_bytes: int, timeout_s: float | None
) -> dict[str, Any]:
    """Return the values in a parcel. Raises BadResultError, RepositoryError or InvalidInputError."""
    if parcel is None:
        raise BadResultError("the node no longer keeps it, or does not answer")
    if parcel.size_bytes > max_bytes:
        raise BadResultError(
            f"it has {parcel.size_bytes} bytes, and {max_bytes} are taken; `limits` with output_bytes allow more"
        )
    content = parcel.content()
    if parcel.format == "npz" and importlib.util.find_spec("numpy") is None:
        raise BadResultError("it holds arrays, which need numpy: pip install numpy")
    from fedmon.plan.parcels import unpack

    # Arrays share this memory, and may be written to.
    return unpack(parcel.format, _fetched(parcel, repository, timeout_s) if content is None else bytearray(content))


def _fetched(parcel: Parcel, repository: RepositorySettings, timeout_s: float | None) -> memoryview:
    """Return the bytes behind the URL of a parcel, which have its size and digest. Raises RepositoryError."""
    from fedmon.common.http import download_to

    file = io.BytesIO()
    patience_s = transfer_s(parcel.size_bytes)
    download_to(
        file,
        parcel.url or "",
        sha256=parcel.sha256,
        size_bytes=parcel.size_bytes,
        max_bytes=parcel.size_bytes,
        deadline_s=patience_s if timeout_s is None else min(patience_s, timeout_s),
        allowed_urls=trusted_urls(repository),
    )
    return file.getbuffer()


def trusted_urls(repository: RepositorySettings) -> list[str]:
    """Return the sources of files: the allowed URLs of the settings, and our own repository."""
    if repository.url is None:
        return list(repository.allowed_urls)
    split = urlsplit(repository.url)
    path = split.path.rstrip("/").removesuffix("/upload")
    return [*repository.allowed_urls, f"{split.scheme}://{split.netloc}{path}/"]
