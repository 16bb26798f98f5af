"""`fedmon::Job`: one run of an approved plan on nodes, from its start there to the results of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmon.common.ids import NodeId, new_id
from fedmon.experiment.federation import job_description
from fedmon.experiment.federation.dataset import Dataset
from fedmon.experiment.federation.errors import JobFailedError, MissingPartError
from fedmon.experiment.federation.job_inputs import inputs_of
from fedmon.experiment.federation.linked import ASK_TIMEOUT_S, LinkedResource
from fedmon.experiment.federation.node import Node, is_gone
from fedmon.experiment.federation.reported import told_before
from fedmon.experiment.federation.run_resource import RunResource
from fedmon.experiment.federation.training_plan import TrainingPlanResource
from fedmon.experiment.natures import Need
from fedmon.experiment.protocol import Experiment
from fedmon.experiment.resource import clsinit_copy
from fedmon.experiment.states import ResourceState

if TYPE_CHECKING:
    from fedmon.researcher.roster import Node as SeenNode
    from fedmon.researcher.runs.handle import RunHandle

_STOP_TIMEOUT_S = 5.0
_END_PATIENCE = "10s"
"""For what nodes say of the end of a run that was stopped by its release."""


@clsinit_copy
class Job(RunResource):
    """STARTED while the plan runs, STOPPED when it ended well on every node, FAILED with what happened where not.

    With ``atLeast`` it is STOPPED when it ended well on so many, with the results of those.
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
        self._is_releasing = self._hears = False
        self._starting = ""
        self._may_have_begun = False

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
        if isinstance(self.get("inputs"), str):
            self.fixed_path("inputs")
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
        if isinstance(other, Node) and other.state is ResourceState.FAILED:
            self.later(lambda: self._look_at(other))

    def _nodes(self) -> list[NodeId] | None:
        """Return where it runs; null for wherever it can."""
        found = [node.node_id for node in self.linked(Node) if node.state < ResourceState.FAILED]
        for dataset in () if found else self.linked(Dataset):
            found += dataset.found_on
        for plan in () if found else self.linked(TrainingPlanResource):
            found += plan.approved_by
        return found or None

    def _inputs(self) -> dict[str, Any]:
        source = self.get("inputsFrom")
        given = self.fixed_path("inputs") if isinstance(self.get("inputs"), str) else self.get("inputs")
        return inputs_of(self.name, given, None if source is None else self.ec.get_resource(source))

    # --- running ------------------------------------------------------------------------------------------------------

    def do_start(self) -> None:
        """Ask the nodes to run the plan, once they are there; how it ends comes by itself."""
        self._starting, self._may_have_begun = new_id(), False
        self._start_when_there()

    def _run_as(self, job_id: str) -> None:
        nodes, at_least = self._nodes(), self.get("atLeast")
        if at_least is not None and nodes is not None and len(nodes) < at_least:
            raise JobFailedError(f"atLeast is {at_least}, and there are {len(nodes)} nodes: {', '.join(nodes)}")
        plan = self.linked(TrainingPlanResource)[0]
        datasets = self.linked(Dataset)
        dataset_id = datasets[0].get("datasetId") if datasets else None
        tags = datasets[0].get("tags") if datasets else self.get("tags")
        values = self._inputs()
        self._set_own("jobId", job_id)  # before anybody is asked: after a crash it says what to look for
        if self.get("outcome") is not None:  # of an earlier run
            self._set_own("outcome", None)
        self._is_stopping = False
        handle = self.federation.run(
            f"sha256:{plan.get('sha256')}",
            nodes=nodes,
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
        self._follow(handle, told_before(self.ec.run_dir, self.guid))
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
            self._starting, self._may_have_begun = self.get("jobId"), True
            self._start_when_there()
        elif verb in (None, "stop") and self.state is ResourceState.STARTED:
            if not self.adopt():
                raise JobFailedError(f"no node that answers knows job {self.get('jobId')}")
            super().do_reconnect(verb)
        else:
            super().do_reconnect(verb)

    def _heard(self, node: SeenNode) -> None:
        if self._starting and not is_gone(node):
            self.later(self._start_when_there)

    def _start_when_there(self) -> None:
        """Have it run as soon as no node is away of which it is expected, or that may have begun it."""
        if not self._hears:
            self._hears = True
            self.listen("presence", self._heard)  # before the look, so that none is missed
        away = self._away()
        with self.lock:
            job_id = "" if away or self.state >= ResourceState.FAILED else self._starting
            if not away:
                self._starting = ""
        if job_id:
            self._run_as(job_id)
        elif away and self._starting:
            self.wait_for(f"node {', '.join(away)} to be there")

    def _away(self) -> list[NodeId]:
        seen, around = self.federation.nodes(), self._nodes_around()
        failed = {node.get("nodeId") for node in around if node.state >= ResourceState.FAILED}
        awaited = {node.get("nodeId") for node in around} - failed
        return [
            node_id
            for node_id in self._nodes() or ()
            if is_gone(seen.get(node_id)) and (node_id in awaited or (self._may_have_begun and node_id not in failed))
        ]

    def _look_at(self, node: Node) -> None:
        super()._look_at(node)
        if self._starting and node.state is ResourceState.FAILED:
            self._start_when_there()

    # --- the end ------------------------------------------------------------------------------------------------------

    def do_stop(self) -> None:
        """Ask the nodes to end it; it is STOPPED when they say so."""
        self._is_stopping = True
        if self.handle is not None:
            self.handle.stop()

    def do_release(self) -> None:
        """End what runs; it is RELEASED when nodes say how it ended, or have not said so in time."""
        self._is_releasing = self._is_given_back = True
        run, is_running = self._followed, self.state is ResourceState.STARTED
        self._quietly(self.end_work)
        if run is None or not is_running:
            self.finish_release()
            return
        run.when_over(lambda: self.later(self.finish_release))
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
        self._is_stopping, self._starting = True, ""
        handle, is_failed = self.handle, self.state is ResourceState.FAILED
        if handle is None and self.get("jobId") and (is_failed or self.get("outcome") is None):
            handle = self._found()  # what another process left running, or a start that is not through
        if handle is not None and not handle.closed and not all(part.is_over for part in handle.states().values()):
            handle.stop(timeout_s=_STOP_TIMEOUT_S)
