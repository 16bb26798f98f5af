"""`fedmon::TrainingPlan`: a plan, RESERVED while owners look at it and READY when all of them approved it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedmon.common.errors import FedmonError
from fedmon.common.ids import NodeId
from fedmon.common.plan_source import load_source
from fedmon.common.wire.messages import PlanStatus
from fedmon.experiment.attributes import Attribute, Flags
from fedmon.experiment.natures import Need
from fedmon.experiment.plan_problems import Problem
from fedmon.experiment.resource import Experiment, clsinit_copy
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types import job_files
from fedmon.experiment.types.asking import AskingResource
from fedmon.experiment.types.dataset import Dataset
from fedmon.experiment.types.errors import MissingPartError, NotApprovedError
from fedmon.experiment.types.linked import ASK_TIMEOUT_S
from fedmon.experiment.types.node import Node
from fedmon.experiment.types.values import CheckedAttribute, class_name, is_source, own, plan

if TYPE_CHECKING:
    from fedmon.common.wire.messages import PlanDecision
    from fedmon.researcher.roster import Node as SeenNode

Decided = tuple[PlanStatus, str]


@clsinit_copy
class TrainingPlanResource(AskingResource):
    """Asks the owners of its nodes for approval: RESERVED while one has not decided, READY when all approved.

    FAILED as soon as one rejected it. Its nodes are those that it is connected to, or those of its jobs, or else all
    that are there. It waits for owners as long as they take, unless a timeout of deploy says otherwise.
    """

    _rtype = "fedmon::TrainingPlan"
    _help = "A training plan: RESERVED while approval is pending, READY when approved, FAILED when rejected."
    _partners = ("fedmon::Node", "fedmon::Job", "fedmon::Collector")
    _needs = (
        Need(verb="deploy", of="fedmon::Node"),
        Need(verb="deploy", of="fedmon::Node", through=("fedmon::Job",)),
        Need(verb="deploy", of="fedmon::Node", through=("fedmon::Job", "fedmon::Dataset")),
    )
    _passes = (ResourceState.RESERVED,)
    _required_attributes = ("plan",)
    _measured_by = ()

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self._asked: frozenset[NodeId] = frozenset()
        self._decided: dict[NodeId, Decided] = {}

    @classmethod
    def _register_attributes(cls) -> None:
        cls._register_attribute(
            CheckedAttribute(
                "plan",
                "The file of the plan, or its class, which is kept as source.",
                plan,
                "the path of a Python file, or a class or instance of TrainingPlan",
                flags=Flags.Design,
            )
        )
        cls._register_attribute(Attribute("description", "What owners are told of it.", default="", flags=Flags.Design))
        cls._register_attribute(own("sha256", "The digest of what was handed in."))
        cls._register_attribute(own("approvedBy", "The nodes whose owners approved it, with commas."))

    @property
    def approved_by(self) -> list[NodeId]:
        """The nodes whose owners approved it."""
        return [NodeId(node_id) for node_id in (self.get("approvedBy") or "").split(",") if node_id]

    def do_reconnect(self, verb: str | None) -> None:
        """Ask anew, which owners do not see, or hear whether an approval is taken back."""
        if verb is None and ResourceState.READY <= self.state < ResourceState.FAILED:
            self._asked = frozenset(self.approved_by)
            self.listen("decision", self._decision)
        else:
            super().do_reconnect(verb)

    def missing(self) -> list[Problem]:
        """Tell whether the file of the plan cannot be read yet."""
        if not self.get("plan"):
            return []  # what is not set is said by the plan
        try:
            load_source(self._given())
        except FedmonError as error:
            text = f"{error}; it has to be there when it is deployed"
            return [Problem(kind="missing-part", severity="warning", guids=(self.guid,), text=text)]
        return []

    def foreseen(self) -> list[Problem]:
        """Tell whose approval is still needed, and who rejected it."""
        if not self.get("plan"):
            return []  # what is not set is said by the plan
        there, wanted = set(self.federation.nodes().online), self._wanted()
        asked = [node_id for node_id in wanted or sorted(there) if node_id in there]
        found: list[Problem] = []
        if not asked or self.missing():
            return found  # nobody can say; that nodes are offline is said by them
        for node_id, reply in self.federation.plan_status(self._given(), nodes=asked).ok.items():
            if reply.status is PlanStatus.REJECTED:
                text = f"the owner of {node_id} rejected it{f' ({reply.note})' if reply.note else ''}"
                found.append(Problem(kind="approval-needed", guids=(self.guid,), text=text))
            elif reply.status is not PlanStatus.APPROVED:
                said = "has not decided yet" if reply.status is PlanStatus.PENDING else "has not seen it yet"
                text = f"the owner of {node_id} {said}"
                found.append(Problem(kind="approval-needed", severity="warning", guids=(self.guid,), text=text))
        return found

    def do_deploy(self) -> None:
        """Hand it in, as soon as its nodes are READY; decisions come by themselves."""
        if not self.get("plan"):
            raise MissingPartError(self.name, "plan", "set it to the path of a Python file, or to a class")
        if not is_source(self.get("plan")):
            self.fixed_path("plan")
        if self.ready(Node) is None:
            return
        nodes = self._nodes()
        if nodes is None:
            return
        source = load_source(self._given())
        path = self._keep(source.source)
        self._set_own("sha256", source.sha256)
        with self.lock:
            self._decided, self._asked = {}, frozenset()
        self.deafen()
        self.listen("decision", self._decision)  # before it is asked, so that none is missed
        self.listen("presence", self._heard)
        outcomes = self.federation.approve(
            path, description=self.get("description") or "", nodes=nodes, timeout_s=ASK_TIMEOUT_S
        )
        if self.waits_for_silent(outcomes, self._linked_nodes()):
            return
        refused = {node_id: outcome.reason for node_id, outcome in outcomes.failed.items()}
        if refused or not outcomes:
            self.deafen()
            said = "; ".join(f"{node_id}: {reason}" for node_id, reason in refused.items()) or outcomes.explanation()
            raise NotApprovedError(f"the plan could not be handed in: {said}")
        with self.lock:
            self._asked = frozenset(outcomes)
            for node_id, reply in outcomes.ok.items():
                self._decided.setdefault(NodeId(node_id), (reply.status, reply.note))  # a decision is newer
            self._judge()

    def _nodes(self) -> list[NodeId] | None:
        """Return whose owners are asked; empty for all that are there, null while those of a job are not READY."""
        # Nodes of a job are not our own neighbours: the job passes on that they moved. The wish for that comes before
        # the look, so that no move in between is lost.
        self._deploy_again = True
        living = [node for node in self._linked_nodes() if node.state < ResourceState.FAILED]
        waiting = [node.name for node in living if node.state < ResourceState.READY]
        if waiting:
            self.wait_for(f"{', '.join(waiting)} to be READY")
            return None
        self._deploy_again = False
        return list(dict.fromkeys(node.node_id for node in living)) or self._everybody()

    def _linked_nodes(self) -> list[Node]:
        from fedmon.experiment.types.job import Job

        nodes = self.linked(Node)
        for job in () if nodes else self.linked(Job):
            nodes += [*job.linked(Node), *(node for dataset in job.linked(Dataset) for node in dataset.linked(Node))]
        return nodes

    def _wanted(self) -> list[NodeId]:
        return list(dict.fromkeys(node.node_id for node in self._linked_nodes() if node.get("nodeId")))

    def _everybody(self) -> list[NodeId]:
        return list(self.federation.nodes().online)

    def _given(self) -> Path:
        """Return what the run keeps, once it does; before, the file that was given, or that of a class's source."""
        if self._kept().exists():
            return self._kept()
        text = self.get("plan")
        return self._keep(text.encode("utf-8", "surrogateescape")) if is_source(text) else Path(text).expanduser()

    def _kept(self) -> Path:
        """Return where the run keeps what was handed in, which stays as it is when the file that was given changes."""
        text = self.get("plan")
        return self.folder / f"{class_name(text) if is_source(text) else Path(text).stem}.py"

    def _keep(self, source: bytes) -> Path:
        path = self._kept()
        job_files.write(path, source)
        return path

    def _decision(self, decision: PlanDecision) -> None:
        if decision.sha256 != self.get("sha256"):
            return
        said = (decision.status, decision.note or decision.problem)
        # One that was kept may be older than what the owner decided since, so the node has the last word.
        self.later(lambda: self._ask(NodeId(decision.node_id), said))

    def _heard(self, node: SeenNode) -> None:
        """Ask a node anew that came back: what its owner decided meanwhile may have reached another process."""
        self._shown(node)
        status, _ = self._decided.get(node.node_id, (None, ""))
        if status is PlanStatus.PENDING and node.last_seen is not None and self.state < ResourceState.READY:
            self.later(lambda: self._ask(node.node_id))

    def _ask(self, node_id: NodeId, said: Decided | None = None) -> None:
        """Ask a node where the plan stands; ``said`` counts where it does not answer."""
        reply = self.federation.plan_status(self._kept(), nodes=[node_id]).ok.get(node_id)
        if reply is not None and reply.status is not None:
            said = (reply.status, reply.note)
        if said is not None:
            with self.lock:
                self._decided[node_id] = said
                self._judge()

    def _judge(self) -> None:
        """Set the state that follows from what owners decided; called under the lock."""
        if not self._asked or self.state >= ResourceState.FAILED:
            return
        mine = {node_id: self._decided[node_id] for node_id in self._asked if node_id in self._decided}
        rejected = {node_id: note for node_id, (status, note) in mine.items() if status is PlanStatus.REJECTED}
        if rejected:
            said = "; ".join(f"{node_id}{f' ({note})' if note else ''}" for node_id, note in sorted(rejected.items()))
            self.later(lambda: self.fail(f"the plan was rejected by the owner of {said}"))
        elif self.state < ResourceState.READY:
            pending = [node_id for node_id, (status, _) in mine.items() if status is PlanStatus.PENDING]
            if not pending and len(mine) == len(self._asked):
                self._note_own("approvedBy", ",".join(sorted(mine)))
                self.set_ready()
            elif self.state < ResourceState.RESERVED:
                self.set_reserved()
            if pending:
                self.wait_for(f"the owner of {', '.join(sorted(pending))} to approve it")
