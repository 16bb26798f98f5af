"""`RunHandle`: one run as its researcher sees it, from the moment every node accepted or refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fedmon.common.clock import Deadline
from fedmon.common.errors import NotConnectedError
from fedmon.common.ids import NodeId
from fedmon.common.log import escape_control
from fedmon.common.settings import RepositorySettings
from fedmon.common.wire.runs import RunReply, Scalar, Stop, StopReply
from fedmon.researcher.asking.outcome import Outcomes
from fedmon.researcher.asking.request import Asker, checked_timeout
from fedmon.researcher.roster import Instant, NodeState
from fedmon.researcher.runs import tables
from fedmon.researcher.runs.errors import RunFailedError, RunNotOverError
from fedmon.researcher.runs.results import Results
from fedmon.researcher.runs.states import REFUSED, NodeRun, RunStates
from fedmon.researcher.runs.traces import JobLog, read_log

if TYPE_CHECKING:
    from fedmon.researcher.runs.book import RunBook
    from fedmon.researcher.runs.ledger import Ledger
    from fedmon.researcher.runs.scalar_listener import RunScalar
    from fedmon.researcher.session.callbacks import Subscription

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""How often a wait looks whether the connection still lives, and whether nodes are heard."""

Values = dict[str, dict[str, Any]]


class RunHandle:
    """One run over several nodes, under one ``job_id``. Safe from any thread; shows itself as a table of its nodes.

    ``started`` says what each node answered when it was asked; null where the run was found again by its id.
    """

    def __init__(
        self,
        ledger: Ledger,
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
        """The digest of the plan; empty as long as no node has told of it."""
        return self._ledger.sha256 or ""

    @property
    def nodes(self) -> list[str]:
        """The nodes that were asked to take part."""
        return sorted(self._ledger.nodes)

    def states(self) -> RunStates:
        """Return how it stands on each node, why not where it does not run, and which nodes are not heard."""
        found = {node_id: self._seen(view) for node_id, view in self._ledger.views().items()}
        return RunStates(self.job_id, found, self._ledger.latest())

    @property
    def is_over(self) -> bool:
        """Whether it goes on nowhere, and everything that was reported is here."""
        return not self._ledger.unsettled

    @property
    def scalars(self) -> dict[str, list[Scalar]]:
        """What the plan reported so far on each node, in order; complete when it is over, see `scalars_lost`."""
        return {str(node_id): scalars for node_id, scalars in self._ledger.scalars().items()}

    @property
    def scalars_lost(self) -> dict[str, int]:
        """How many scalars of each node will never come, because it keeps them no more; empty when all came."""
        return {str(node_id): number for node_id, number in self._ledger.scalars_lost().items()}

    def on_scalar(self, callback: Callable[[RunScalar], object]) -> Subscription:
        """Call back at each scalar, also those that are here already, until removed; what was lost comes late."""
        return self._ledger.listen(callback)

    def on_over(self, callback: Callable[[], object], *, without: Sequence[str] = ()) -> Subscription:
        """Call back once, when it is over (at once where it is) or the federation was closed, unless removed before.

        It counts as over without the nodes named in ``without``.
        """
        return self._ledger.on_over(callback, without={NodeId(node) for node in without})

    def expect(self, nodes: Sequence[str]) -> None:
        """Count nodes as part of it from which nothing was heard yet; they are asked until they say how it stands."""
        self._ledger.take_part(NodeId(node) for node in nodes)
        self._book.wake()

    @property
    def closed(self) -> str:
        """Why nothing more will be heard of it; empty as long as it may be."""
        return self._ledger.closed

    def logs(self, node: str, stream: Literal["stdout", "stderr"] = "stdout", *, offset: int = 0) -> JobLog:
        """Return what the plan printed on a node from byte ``offset`` on, or why its owner does not let it leave.

        Raises NoAnswerError when the node does not answer, and ConflictError when it refuses.
        """
        return read_log(self._asker, self.job_id, NodeId(node), stream, offset=offset)

    # --- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over on every node; return whether it is. A node that is not heard is warned of, once.

        Raises NotConnectedError when the federation was closed, and the connection's error when that is not tried
        again.
        """
        deadline = None if timeout_s is None else Deadline(checked_timeout(timeout_s))
        while not self.is_over:
            self._check()
            if deadline is not None and deadline.passed():
                return False
            self._ledger.wait(lambda: self.is_over, _step_s(deadline))
        return True

    def wait_for_end(self, *, nodes: Sequence[str], timeout_s: float) -> bool:
        """Wait until it is over on these nodes, whatever of it is still to come; return whether it is."""
        wanted = [NodeId(node) for node in nodes]
        deadline = Deadline(checked_timeout(timeout_s))
        while not self._ended(wanted):
            self._check()
            if deadline.passed():
                return False
            self._ledger.wait(lambda: self._ended(wanted), _step_s(deadline))
        return True

    def _ended(self, nodes: Sequence[NodeId]) -> bool:
        views = self._ledger.views()
        return all(views[node].is_over for node in nodes if node in views)

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

    def result(self, timeout_s: float | None = None) -> Values:
        """Wait until it is over, and return what the plan returned on each node: JSON values and numpy arrays.

        Raises RunFailedError, naming every node that did not succeed and why, with the ``results`` of the others;
        RunNotOverError when ``timeout_s`` is over before, with what is there.
        """
        deadline = None if timeout_s is None else Deadline(checked_timeout(timeout_s))
        if not self.wait(timeout_s):
            raise self.not_over(waited_s=timeout_s or 0.0)
        results, failed = self._opened(None if deadline is None else max(1.0, deadline.left_s()))
        if failed:
            raise RunFailedError(self.job_id, failed=failed, results=results, exit_code=self._exit_code())
        return results

    def not_over(self, *, waited_s: float) -> RunNotOverError:
        """Return the error that says where it goes on, with what is there of the other nodes."""
        states = self.states()
        unfinished = {str(node_id): part.sentence() for node_id, part in states.items() if not part.is_over}
        unfinished = unfinished or {
            str(node_id): f"{states[node_id].state}, but not all of it is here yet"
            for node_id in self._ledger.unsettled
        }
        return RunNotOverError(self.job_id, waited_s=waited_s, unfinished=unfinished, results=self._opened(1.0)[0])

    def results(self, *, partial: bool = True) -> Values:
        """Return what is there now of the nodes that succeeded, without waiting.

        Without ``partial`` it raises as `result` does when a node failed, or is not over.
        """
        return self._opened(None)[0] if partial else self.result(timeout_s=0.001)

    def failures(self) -> dict[str, str]:
        """Return why each node that is over did not succeed, or why its result cannot be used."""
        return self._opened(None)[1]

    def _exit_code(self) -> int:
        """Return 1 where it ran anywhere, 4 where it was refused, and 6 where nobody could be asked."""
        states = self.states().values()
        if any(part.job is not None for part in states):
            return 1
        return 4 if any(part.state == REFUSED for part in states) else 6

    def _opened(self, timeout_s: float | None) -> tuple[Values, dict[str, str]]:
        results, dropped = self._results.open(self._ledger.results(), timeout_s=timeout_s)
        failed = {
            str(node_id): part.sentence()
            for node_id, part in self.states().items()
            if part.is_over and not part.succeeded
        }
        failed |= {str(node_id): reason for node_id, reason in dropped.items()}
        return {str(node_id): results[node_id] for node_id in sorted(results)}, dict(sorted(failed.items()))

    # --- stopping ----------------------------------------------------------------------------------------------------

    def stop(self, *, nodes: Sequence[str] | None = None, timeout_s: float | None = None) -> Outcomes[StopReply]:
        """Ask every node where it goes on, or those named, to end it; how it ended comes as with any other end."""
        going = {node_id for node_id, view in self._ledger.views().items() if not view.is_over}
        named = sorted(going if nodes is None else {NodeId(node) for node in nodes})
        request = self._asker.request(Stop, job_id=self.job_id)
        outcomes = self._asker.ask(request, StopReply, tables.stopping, nodes=named, timeout_s=timeout_s)
        for node_id, reply in outcomes.ok.items():
            self._ledger.job_said(node_id, reply.job)
        return outcomes

    # --- showing -----------------------------------------------------------------------------------------------------

    def show(self, timeout_s: float | None = None) -> bool:
        """Show the states in a notebook as they change, until it is over; elsewhere only wait. Return whether it is."""
        from fedmon.researcher.runs.notebook import shown_in_place

        return shown_in_place(self.changes(timeout_s)) if timeout_s is None or timeout_s > 0 else self.is_over

    def __str__(self) -> str:
        return str(self.states())

    def __repr__(self) -> str:
        return f"<RunHandle {self.states().summary()}>"

    def _repr_html_(self) -> str:
        return self.states()._repr_html_()

    # -----------------------------------------------------------------------------------------------------------------

    def _seen(self, view: NodeRun) -> NodeRun:
        """Add whether the node is heard."""
        if view.is_over:
            return view
        node = self._asker.roster.get(view.node_id, Instant.now())
        if node is not None and node.state not in (NodeState.OFFLINE, NodeState.STALE):
            return view
        return view.unheard_from(None if node is None else node.last_seen or node.since)

    def _check(self, *, warns: bool = True) -> None:
        """Say that nodes are not heard, unless who waits is shown that. Raises what makes waiting vain."""
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
