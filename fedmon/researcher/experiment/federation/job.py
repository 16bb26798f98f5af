"""`fedmon::Job`: one run of an approved plan on nodes, from its start there to the results of all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmon.common.errors import FedmonError
from fedmon.common.ids import NodeId, new_id
from fedmon.common.wire.runs import JobState
from fedmon.researcher.experiment.federation import job_description, job_files
from fedmon.researcher.experiment.federation.dataset import Dataset
from fedmon.researcher.experiment.federation.errors import JobFailedError, MissingPartError
from fedmon.researcher.experiment.federation.linked import ASK_TIMEOUT_S, LinkedResource
from fedmon.researcher.experiment.federation.node import Node
from fedmon.researcher.experiment.federation.training_plan import TrainingPlanResource
from fedmon.researcher.experiment.natures import Need
from fedmon.researcher.experiment.protocol import Experiment
from fedmon.researcher.experiment.resource import clsinit_copy
from fedmon.researcher.experiment.states import ResourceState

if TYPE_CHECKING:
    from fedmon.researcher.runs.handle import RunHandle, Values
    from fedmon.researcher.runs.scalar_listener import RunScalar

_STOP_TIMEOUT_S = 5.0
_END_PATIENCE = "10s"
"""For what nodes say of the end of a run that was stopped by its release."""


@clsinit_copy
class Job(LinkedResource):
    """STARTED while the plan runs, STOPPED when it ended well on every node, FAILED with what happened where not.

    Connected to a plan; to nodes or datasets, or it runs where its plan was approved. Numbers that the plan reports
    reach conditions under its guid. Nodes that failed before it starts are left out unless they are critical; one that
    fails while it runs fails its part. ``jobId`` is kept before anything is asked, so that `adopt` finds the run again.
    """

    _rtype = "fedmon::Job"
    _help = "A run of an approved plan: STOPPED when it ended well on all nodes, FAILED with what happened otherwise."
    _partners = (
        "fedmon::TrainingPlan", "fedmon::Node", "fedmon::Dataset", "fedmon::Aggregator", "fedmon::Monitor",
        "fedmon::Collector",
    )  # fmt: skip
    _once = ("fedmon::TrainingPlan", "fedmon::Dataset")
    _needs = (
        *(Need(verb="deploy", of=rtype) for rtype in ("fedmon::Node", "fedmon::Dataset", "fedmon::TrainingPlan")),
        Need(verb="start", attribute="inputsFrom", state=ResourceState.STOPPED),
    )
    _ends_itself = True
    _passes = ()
    _required_connections = (("fedmon::TrainingPlan",),)

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self.handle: RunHandle | None = None
        self._is_stopping = self._is_releasing = False
        self._lost: frozenset[NodeId] = frozenset()

    @classmethod
    def _register_attributes(cls) -> None:
        for attribute in job_description.attributes():
            cls._register_attribute(attribute)

    @classmethod
    def _register_traces(cls) -> None:
        for trace in job_description.traces():
            cls._register_trace(trace)

    # --- what it needs ------------------------------------------------------------------------------------------------

    def do_deploy(self) -> None:
        """Be READY when its plan, its nodes and its dataset are."""
        if not self.linked(TrainingPlanResource):
            raise MissingPartError(self.name, "plan", "connect it to a fedmon::TrainingPlan")
        for kind in (Node, Dataset, TrainingPlanResource):
            if self.ready(kind) is None:
                return
        super().do_deploy()

    def neighbour_moved(self, other: LinkedResource) -> None:
        """Look again; a plan asks the owners of our nodes, and cannot see those by itself."""
        super().neighbour_moved(other)
        if isinstance(other, Node | Dataset):
            for plan in self.linked(TrainingPlanResource):
                plan.neighbour_moved(self)
        if isinstance(other, Node) and other.state is ResourceState.FAILED and self.state is ResourceState.STARTED:
            self.later(lambda: self._node_lost(other))

    def _nodes(self) -> list[NodeId] | None:
        """Return where it runs; null for wherever it can."""
        found = [node.node_id for node in self.linked(Node) if node.state < ResourceState.FAILED]
        for dataset in () if found else self.linked(Dataset):
            found += dataset.found_on
        for plan in () if found else self.linked(TrainingPlanResource):
            found += plan.approved_by
        return found or None

    def _inputs(self) -> dict[str, Any]:
        given = self.get("inputs")
        values = job_files.read_inputs(Path(given)) if isinstance(given, str) else dict(given or {})
        if self.get("inputsFrom") is not None:
            source = self.ec.get_resource(self.get("inputsFrom"))
            result = getattr(source, "result", None)
            if not isinstance(result, Mapping):
                raise MissingPartError(
                    self.name, f"result in {source.name} to begin with",
                    "have it wait for a fedmon::Aggregator to be STOPPED",
                )  # fmt: skip
            values.update(result)
        return values

    # --- running ------------------------------------------------------------------------------------------------------

    def do_start(self) -> None:
        """Ask the nodes to run the plan; how it ends comes by itself."""
        self._run_as(new_id())

    def _run_as(self, job_id: str) -> None:
        plan = self.linked(TrainingPlanResource)[0]
        datasets = self.linked(Dataset)
        dataset_id = datasets[0].get("datasetId") if datasets else None
        tags = datasets[0].get("tags") if datasets else self.get("tags")
        values = self._inputs()
        self._set_own("jobId", job_id)  # before anybody is asked: after a crash it says what to look for
        if self.get("outcome") is not None:  # of an earlier run
            self._set_own("outcome", None)
        self._is_stopping, self._lost = False, frozenset()
        handle = self.federation.run(
            f"sha256:{plan.get('sha256')}",
            nodes=self._nodes(),
            tags=None if dataset_id else tags,
            dataset=dataset_id,
            args=self.get("args"),
            inputs=values or None,
            limits=self.get("limits"),
            job_id=job_id,
            timeout_s=ASK_TIMEOUT_S,
        )
        self._set_own("ranOn", ",".join(handle.nodes))
        if self.state >= ResourceState.FAILED:  # it was released while nodes were asked
            handle.stop(timeout_s=_STOP_TIMEOUT_S)
            return
        if all(part.job is None and part.is_over for part in handle.states().values()):
            said = "; ".join(f"{node_id}: {part.sentence()}" for node_id, part in handle.states().items())
            raise JobFailedError(f"no node took it: {said}")
        self.set_started()
        self._follow(handle)

    def adopt(self) -> bool:
        """Take up the run of ``jobId``, also one that another process began; false where no node knows it."""
        handle = self._found()
        if handle is None:
            return False
        handle.expect(self.ran_on)  # also those that know it no more: that is how it ended there
        if self.state < ResourceState.STARTED:
            self.set_started()
        self._follow(handle)
        return True

    def _found(self) -> RunHandle | None:
        from fedmon.researcher.runs.errors import RunNotKnownError

        job_id = self.get("jobId")
        try:
            return self.federation.job(job_id, nodes=self.ran_on or None, expected=self.ran_on) if job_id else None
        except RunNotKnownError:
            return None

    def do_reconnect(self, verb: str | None) -> None:
        """Take up the run. One that was about to start is asked for under its id, so that no node starts it twice."""
        if verb == "start" and self.get("jobId") and self.get("outcome") is None:
            self._start_again()
        elif verb in (None, "stop") and self.state is ResourceState.STARTED:
            if not self.adopt():
                raise JobFailedError(f"no node that answers knows job {self.get('jobId')}")
            super().do_reconnect(verb)
        else:
            super().do_reconnect(verb)

    def _start_again(self) -> None:
        """Ask for it anew as soon as its nodes are there, for one that is away may have begun it."""
        if self.state is not ResourceState.READY:
            return
        nodes = self._nodes()
        away = self.federation.nodes().absent(nodes or ())
        if not nodes:
            raise JobFailedError(f"no node is left that may have begun job {self.get('jobId')}")
        with self.lock:
            self._starts_again = bool(away)
        if away:
            self.wait_for(f"{', '.join(away)} to be there")
        else:
            self.deafen()
            self._run_as(self.get("jobId"))

    def _follow(self, handle: RunHandle) -> None:
        self.handle = handle
        self._subscriptions.append(handle.on_scalar(self._reported))
        self._subscriptions.append(handle.on_over(lambda: self.later(self._over)))
        for node in self._nodes_around():  # who failed before anybody listened
            self._look_at(node)

    def _reported(self, scalar: RunScalar) -> None:
        values = {name: value for name, value in scalar.values.items() if value is not None}
        self.tell_metrics(self.guid, values, source=scalar.node_id)

    def _node_lost(self, node: Node) -> None:
        """Wait no longer for a node that failed; the job goes on where there are others."""
        with self.lock:
            self._lost |= {node.node_id}
            lost, handle = sorted(self._lost), self.handle
        if handle is not None:
            self._subscriptions.append(handle.on_over(lambda: self.later(self._over), without=lost))

    def _over(self) -> None:
        """Say how it ended, once nothing more will come."""
        handle = self.handle
        if handle is None or self.state is not ResourceState.STARTED:
            return
        waiting = {node_id for node_id, part in handle.states().items() if not part.is_over}
        if waiting - self._lost:
            if handle.closed:
                self.fail(f"{handle.closed} while it ran on {', '.join(sorted(waiting))} (job {handle.job_id})")
            return
        failed = handle.failures() | {str(node_id): "the node was lost while it ran there" for node_id in waiting}
        results = handle.results()
        job_files.write_result(self.folder, results)
        job_files.write_scalars(self.folder, handle.scalars)
        self._keep_traces()
        is_well = not failed or (self._is_stopping and all(self._was_stopped(node_id) for node_id in failed))
        said = "; ".join(f"{node_id}: {reason}" for node_id, reason in failed.items())
        with self.lock:
            if self._ended_as(handle):
                return
            self._set_own("outcome", said or "succeeded on every node")
            if is_well:
                self.set_stopped()
        if not is_well:
            self.fail(said)

    def _ended_as(self, handle: RunHandle) -> bool:
        return self.handle is not handle or self.state is not ResourceState.STARTED

    def _was_stopped(self, node_id: str) -> bool:
        part = self.handle.states().get(NodeId(node_id)) if self.handle is not None else None
        return part is not None and part.job is not None and part.job.state is JobState.STOPPED

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
            if name in ("stdout", "stderr"):
                job_files.write_log(path, handle, name)
            elif name == "scalars":
                job_files.write_scalars(self.folder, handle.scalars)
            elif results := handle.results():
                job_files.write_result(self.folder, results)
        return path

    # --- the end ------------------------------------------------------------------------------------------------------

    def do_stop(self) -> None:
        """Ask the nodes to end it; it is STOPPED when they say so."""
        self._is_stopping = True
        if self.handle is not None:
            self.handle.stop()

    def do_release(self) -> None:
        """End what runs; it is RELEASED when nodes say how it ended, or have not said so in time."""
        self._is_releasing = True
        handle, is_running = self.handle, self.state is ResourceState.STARTED
        self._quietly(self.end_work)
        if handle is None or not is_running:
            self.finish_release()
            return
        handle.on_over(lambda: self.later(self.finish_release))
        self.later(self.finish_release, after=_END_PATIENCE)

    def finish_release(self) -> None:
        """Take how it ended, and release it, once."""
        with self.lock:
            is_first, self._is_releasing = self._is_releasing, False
        if is_first:
            self._over()
            super().finish_release()

    def end_work(self) -> None:
        """End what runs on nodes."""
        self._is_stopping = True
        handle = self.handle
        if handle is None and self.get("jobId") and self.get("outcome") is None:
            handle = self._found()  # what another process left running, or a start that is not through
        if handle is not None and not handle.closed and not all(part.is_over for part in handle.states().values()):
            handle.stop(timeout_s=_STOP_TIMEOUT_S)
