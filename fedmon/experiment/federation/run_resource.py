"""A resource whose work is a run on nodes: it follows that, says how it ended, and has what came of it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from fedmon.common.errors import FedmonError
from fedmon.common.ids import NodeId
from fedmon.experiment.federation import job_files
from fedmon.experiment.federation.dataset import Dataset
from fedmon.experiment.federation.followed_run import FollowedRun
from fedmon.experiment.federation.linked import LinkedResource
from fedmon.experiment.federation.node import Node
from fedmon.experiment.federation.reported import Reported, Told
from fedmon.experiment.federation.training_plan import TrainingPlanResource
from fedmon.experiment.protocol import Experiment
from fedmon.experiment.states import ResourceState

if TYPE_CHECKING:
    from fedmon.researcher.runs.handle import RunHandle, Values


class RunResource(LinkedResource):
    """Once it follows a run it is STARTED, and STOPPED or FAILED when that is over on all nodes that are not lost."""

    asks_federation = True

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self._followed: FollowedRun | None = None
        self._is_stopping = self._is_given_back = False

    # --- following ----------------------------------------------------------------------------------------------------

    def _follow(self, handle: RunHandle, before: Collection[Told] = frozenset()) -> None:
        def tell(node_id: str, nth: int, values: dict[str, float]) -> None:
            self.tell_metrics(self.guid, values, source=node_id, nth=nth)

        if self._followed is not None:
            self._followed.end()
        self._followed = FollowedRun(handle, Reported(tell, before), lambda: self.later(self._over))
        self._followed.begin()
        for node in self._nodes_around():  # who failed before anybody listened
            self._look_at(node)

    def deafen(self) -> None:
        """Listen no more, to the run neither."""
        super().deafen()
        if self._followed is not None:
            self._followed.end()

    def _nodes_around(self) -> list[Node]:
        """Return the nodes that it is connected to, or that its dataset or its plan are."""
        near: list[LinkedResource] = [self, *self.linked(Dataset), *self.linked(TrainingPlanResource)]
        return [node for each in near for node in each.linked(Node)]

    def _look_at(self, node: Node) -> None:
        """Wait no longer for a node that failed; the job goes on where there are others."""
        run = self._followed
        if run is not None and node.state is ResourceState.FAILED and node.get("nodeId") in self.ran_on:
            run.lose(node.node_id)

    def _over(self) -> None:
        """Say how it ended, once nothing more will come; who gives it back does not ask that lost nodes stopped."""
        run = self._followed
        if run is None or self.state is not ResourceState.STARTED:
            return
        if run.waits_for:
            if run.handle.closed:
                self.fail(f"{run.handle.closed} while it ran on {', '.join(run.waits_for)} (job {run.handle.job_id})")
            return
        run.tell_rest()  # who is STOPPED tells nothing more
        ending = run.ending(
            at_least=self.get("atLeast"), is_stopping=self._is_stopping, forgives_lost=self._is_given_back
        )
        job_files.write_result(self.folder, run.handle.results())
        job_files.write_scalars(self.folder, run.handle.scalars)
        self._keep_traces()
        with self.lock:
            if self._followed is not run or self.state is not ResourceState.STARTED:
                return
            self._note_own("outcome", ending.outcome)
            if ending.is_well:
                self.set_stopped()
        if not ending.is_well:
            self.fail(ending.failed)
        elif ending.failed:
            self.warning(f"ended well, but not everywhere: {ending.failed}")

    def _keep_traces(self) -> None:
        """Keep what was printed where somebody wants it, as nodes forget it."""
        for name in ("stdout", "stderr"):
            if self.trace_enabled(name):
                try:
                    self.written(name)
                except FedmonError as error:
                    self.warning(f"{name} cannot be kept: {error}")

    # --- what came of it ----------------------------------------------------------------------------------------------

    @property
    def handle(self) -> RunHandle | None:
        """Its run; null before it was started or taken up."""
        return None if self._followed is None else self._followed.handle

    @property
    def ran_on(self) -> list[NodeId]:
        """The nodes that were asked to run it."""
        return [NodeId(node_id) for node_id in (self.get("ranOn") or "").split(",") if node_id]

    @property
    def results(self) -> Values:
        """What it returned, by node: of the nodes that succeeded so far."""
        if self.handle is not None:
            return self.handle.results()
        return job_files.saved_values(self.folder / "returned") if self.state >= ResourceState.STOPPED else {}

    def written(self, name: str) -> Path:
        """Return the file of a trace, fetched where it may have changed."""
        path = super().written(name)
        handle = self.handle
        if handle is not None and (not path.exists() or self.state is ResourceState.STARTED):
            job_files.fetch(self.folder, path, handle, name)
        return path
