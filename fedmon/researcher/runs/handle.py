"""`RunHandle`: a researcher's view of one run, once every node accepted or refused."""

from __future__ import annotations

import importlib.util
import io
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import ConflictError, FedmonError, NoAnswerError, NotConnectedError, NotFoundError
from fedmon.common.ids import NodeId
from fedmon.common.log import escape_control
from fedmon.common.settings.values import RepositorySettings
from fedmon.common.wire.runs import JobsReply, JobStatus, Parcel, RunReply, Stop, StopReply
from fedmon.researcher.asking.outcome import UNHEARD, Outcomes, OutcomeStatus, exit_code
from fedmon.researcher.asking.request import MAX_PAGES, Asker, Nodelist, checked_timeout, node_ids
from fedmon.researcher.asking.submission import transfer_s
from fedmon.researcher.roster import Moment, NodeState
from fedmon.researcher.runs.errors import RunFailedError, RunHeldError, RunNotOverError
from fedmon.researcher.runs.states import NodeRun, RunStates, ScalarsByNode, shown_in_place

if TYPE_CHECKING:
    from fedmon.researcher.runs.follow import RunBook, RunLedger, RunScalar
    from fedmon.researcher.session.callbacks import Subscription

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""How often a wait looks whether nodes are heard."""
MAX_TEXT = 64 * 2**20
"""Characters of a log that are read at once; `JobLog.next_offset` says where it continues."""

Values = dict[str, dict[str, Any]]
Stream = Literal["stdout", "stderr"]
MAX_RESULT_BYTES = 2**30
"""Largest result of one node, unless the run has another limit: a node cannot make us fetch more."""
AT_ONCE = 4


class RunHandle:
    """One run over several nodes, under one ``job_id``. Safe from any thread; shows itself as a table of its nodes.

    ``started`` has the answer of each node to being asked; None if the run was found again by its id.
    """

    def __init__(
        self,
        ledger: RunLedger,
        asker: Asker,
        book: RunBook,
        *,
        repository: RepositorySettings,
        started: Outcomes[RunReply] | None = None,
        max_result_bytes: int | None = None,
    ) -> None:
        self.job_id, self.started = ledger.job_id, started
        self._ledger, self._asker, self._book = ledger, asker, book
        self._results = Results(repository, max_bytes=max_result_bytes)
        self._warned: set[NodeId] = set()

    # --- how it stands -----------------------------------------------------------------------------------------------

    @property
    def sha256(self) -> str:
        """The digest of the plan; empty until a node has reported it."""
        return self._ledger.sha256 or ""

    @property
    def nodes(self) -> list[str]:
        """The nodes that were asked to take part."""
        return sorted(self._ledger.nodes)

    def states(self) -> RunStates:
        """Return the state on each node, with reasons, and the nodes that are not heard."""
        views = self._ledger.each(lambda part: part.view)
        return RunStates(self.job_id, {node_id: self._seen(view) for node_id, view in views.items()})

    @property
    def is_over(self) -> bool:
        """Whether it no longer runs on any node, and all reports came."""
        return not self._ledger.unsettled

    @property
    def scalars(self) -> ScalarsByNode:
        """The reports of the plan so far on each node, in order; complete when it is over, see `scalars_lost`."""
        return ScalarsByNode(
            {str(node_id): part for node_id, part in self._ledger.each(lambda part: part.in_order).items()}
        )

    @property
    def scalars_lost(self) -> dict[str, int]:
        """Number of lost scalars by node, because it no longer has or sends them; empty if all came."""
        lost = self._ledger.each(lambda part: part.lost)
        return {str(node_id): number for node_id, number in lost.items() if number}

    def on_scalar(self, callback: Callable[[RunScalar], object]) -> Subscription:
        """Call back at each scalar, also those that came already, until removed; missed ones come late."""
        return self._ledger.listen(callback)

    def on_over(self, callback: Callable[[], object], *, without: Sequence[str] = ()) -> Subscription:
        """Call back once, when it is over (at once if it is) or the federation was closed, unless removed before.

        It counts as over without the nodes named in ``without``.
        """
        return self._ledger.on_over(callback, without=node_ids(without) or ())

    def expect(self, nodes: Sequence[str]) -> None:
        """Count nodes as part of it before they were heard; they are asked until they report its state."""
        self._ledger.take_part(node_ids(nodes) or ())
        self._book.follow(self.job_id)

    @property
    def closed(self) -> str:
        """The reason why nothing more will come; empty while something may."""
        return self._ledger.closed

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
        return self._wait_for(lambda: self.is_over, timeout_s)

    def wait_for_end(self, *, nodes: Sequence[str], timeout_s: float) -> bool:
        """Wait until it is over on these nodes, even if reports are still to come; return whether it is."""
        named = node_ids(nodes) or ()

        def ended() -> bool:
            return all(over for node, over in self._ledger.each(lambda part: part.is_over).items() if node in named)

        return self._wait_for(ended, timeout_s)

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        deadline = None if timeout_s is None else Deadline(checked_timeout(timeout_s))
        while not condition():
            self._check()
            if deadline is not None and deadline.passed():
                return False
            self._ledger.wait(condition, _step_s(deadline))
        return True

    def changes(self, timeout_s: float | None = None, *, every_s: float = 0.25) -> Iterator[RunStates]:
        """Yield the states now, after each change (at most each ``every_s``), and when it is over, until then."""
        deadline = None if timeout_s is None else Deadline(checked_timeout(timeout_s))
        while True:
            version, over, pace = self._ledger.version, self.is_over, Deadline(every_s)
            yield self.states()
            if over or (deadline is not None and deadline.passed()):
                return
            self._check(warns=False)
            self._ledger.wait_for_change(version, _step_s(deadline))
            if not self.is_over:
                self._ledger.wait(lambda: self.is_over, min(pace.left_s(), _step_s(deadline)))

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
        deadline = None if timeout_s is None else Deadline(checked_timeout(timeout_s))
        if not self.wait(timeout_s):
            raise self.not_over(waited_s=timeout_s or 0.0)
        results, failed = self.opened(None if deadline is None else max(1.0, deadline.left_s()))
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
            str(node_id): f"{states[node_id].state}, but not all of it is here yet"
            for node_id in self._ledger.unsettled
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
        asked = {part.asked for part in states}
        return 1 if any(part.job is not None for part in states) else exit_code(asked - UNHEARD or asked)

    def opened(self, timeout_s: float | None = None) -> tuple[Values, dict[str, str]]:
        """Return `results` and `failures` of one moment, after one attempt to fetch missing results."""
        results, dropped = self._results.open(self._ledger.results(), timeout_s=timeout_s)
        failed = {
            str(node_id): part.sentence()
            for node_id, part in self.states().items()
            if part.is_over and not part.succeeded
        } | {str(node_id): reason for node_id, reason in dropped.items()}
        return {str(node_id): results[node_id] for node_id in sorted(results)}, dict(sorted(failed.items()))

    # --- stopping ----------------------------------------------------------------------------------------------------

    def stop(self, *, nodes: Nodelist = None, timeout_s: float | None = None) -> Outcomes[StopReply]:
        """Ask every node where it runs, or those named, to end it; the outcome comes as with any other end."""
        going = {node_id for node_id, is_over in self._ledger.each(lambda part: part.is_over).items() if not is_over}
        named = sorted(going) if nodes is None else node_ids(nodes)
        outcomes = self._asker.ask(Stop, StopReply, nodes=named, timeout_s=timeout_s, job_id=self.job_id)
        for node_id, reply in outcomes.ok.items():
            self._ledger.job_said(node_id, reply.job)
        self._book.follow(self.job_id)
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

    # -----------------------------------------------------------------------------------------------------------------

    def _seen(self, view: NodeRun) -> NodeRun:
        """Add whether the node is heard."""
        if view.is_over:
            return view
        node = self._asker.roster.get(view.node_id, Moment.now())
        if node is not None and node.state not in (NodeState.OFFLINE, NodeState.STALE):
            return view
        return msgspec.structs.replace(view, unheard=True, unheard_since=node and (node.last_seen or node.since))

    def _check(self, *, warns: bool = True) -> None:
        """Warn of nodes that are not heard, if ``warns``. Raises NotConnectedError if nothing more can come."""
        if self._ledger.closed:
            raise NotConnectedError(f"{self._ledger.closed}: open it again, and find the run with job({self.job_id!r})")
        for node_id, part in self.states().items() if warns else ():
            if part.unheard and node_id not in self._warned:
                self._warned.add(node_id)
                logger.warning(
                    "job %s on node %s is waited for: %s", self.job_id, node_id, escape_control(part.sentence())
                )
            elif not part.unheard:
                self._warned.discard(node_id)


def _step_s(deadline: Deadline | None) -> float:
    return LOOK_EVERY_S if deadline is None else max(0.001, min(LOOK_EVERY_S, deadline.left_s()))


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
        refused = (OutcomeStatus.REFUSED, OutcomeStatus.FAILED, OutcomeStatus.BUSY)
        kind = ConflictError if outcome.status in refused else NoAnswerError
        raise kind(f"{stream} of {node_id}: {outcome.reason}")
    if not outcome.reply.jobs or outcome.reply.jobs[0].job_id != job_id:
        raise NotFoundError(f"node {node_id} does not know job {job_id}; `fedmon runs` lists those that nodes know")
    return outcome.reply


class BadResultError(FedmonError):
    """The result of a node cannot be used; the message says why."""


class Results:
    """The results of one run, each opened once. Safe from any thread."""

    def __init__(self, repository: RepositorySettings, *, max_bytes: int | None) -> None:
        self._repository = repository
        self._max_bytes = MAX_RESULT_BYTES if max_bytes is None else max_bytes
        self._known: dict[NodeId, dict[str, Any] | str] = {}

    def open(
        self, parcels: Mapping[NodeId, Parcel | None], *, timeout_s: float | None
    ) -> tuple[dict[NodeId, dict[str, Any]], dict[NodeId, str]]:
        """Return the values of each node, and the reasons of the others."""

        def open_next() -> None:
            for node_id in waiting:
                try:
                    self._known[node_id] = opened(
                        parcels[node_id], self._repository, max_bytes=self._max_bytes, timeout_s=timeout_s
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
