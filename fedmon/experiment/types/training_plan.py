"""`fedmon::TrainingPlan`: a plan, RESERVED while owners look at it and READY when enough of them approved it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmon.common.errors import FedmonError
from fedmon.common.files import write_whole
from fedmon.common.ids import NodeId
from fedmon.common.plan_source import load_source, parsed
from fedmon.common.wire.messages import PlanStatus
from fedmon.experiment.attributes import Attribute, Flags
from fedmon.experiment.check.problems import Problem, Severity
from fedmon.experiment.natures import Need
from fedmon.experiment.resource import Experiment, clsinit_copy
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types.base import ASK_TIMEOUT_S, LinkedResource, MissingPartError, ResourceFailedError
from fedmon.experiment.types.node import Dataset, Node
from fedmon.experiment.types.values import CheckedAttribute, at_least, own

if TYPE_CHECKING:
    from fedmon.common.wire.messages import PlanDecision
    from fedmon.researcher.roster import Node as SeenNode

Decided = tuple[PlanStatus, str]
"""What the owner of a node decided, and the note to it."""


def _plan(value: Any) -> str:
    """Return the path of a plan, or the source of a class or an instance."""
    if not isinstance(value, str | Path):
        return load_source(value).source.decode("utf-8", "surrogateescape")
    if not str(value).strip():
        raise ValueError("it is empty")
    return str(value)


@clsinit_copy
class TrainingPlanResource(LinkedResource):
    """Asks the owners of its nodes for approval: RESERVED until all approved, or ``atLeast`` of them, then READY.

    FAILED when so many rejected it that the rest is too few. Its nodes are those that it is connected to, or those of
    its jobs, or else all that are online. It waits for owners without limit, unless deploy has a timeout. An approval
    that comes later counts for the jobs that start later.
    """

    asks_federation = True
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

    own_attributes = (
        CheckedAttribute("plan", "The file of the plan, or its class, which is kept as source.", _plan,
                         "the path of a Python file, or a class or instance of TrainingPlan", flags=Flags.Design),
        Attribute("description", "What owners are told of it.", default="", flags=Flags.Design),
        at_least("How many owners must approve it for it to be READY; None: all."),
        own("sha256", "The digest of what was handed in."),
        own("approvedBy", "The nodes whose owners approved it, with commas."),
    )  # fmt: skip

    @property
    def approved_by(self) -> list[NodeId]:
        """The nodes whose owners approved it."""
        return [NodeId(node_id) for node_id in (self.get("approvedBy") or "").split(",") if node_id]

    def admits(self, node_id: NodeId) -> bool:
        """Tell whether a job may go to a node: its owner approved the plan, or was not asked."""
        return node_id in self.approved_by or node_id not in self._wanted()

    def do_reconnect(self, verb: str | None) -> None:
        """Ask anew, which owners do not see, or listen to further decisions."""
        if verb is None and ResourceState.READY <= self.state < ResourceState.FAILED:
            self._asked = frozenset([*self.approved_by, *self._wanted()])
            self._decided = dict.fromkeys(self.approved_by, (PlanStatus.APPROVED, ""))
            self.listen("decision", self._decision)
        else:
            super().do_reconnect(verb)

    def missing(self) -> list[Problem]:
        """Tell whether the file of the plan cannot be read yet."""
        if not self.get("plan"):
            return []  # the plan of the experiment names missing attributes
        try:
            load_source(self._given())
        except FedmonError as error:
            text = f"{error}; it has to be there when it is deployed"
            return [Problem(kind="missing-part", severity="warning", guids=(self.guid,), text=text)]
        return []

    def foreseen(self) -> list[Problem]:
        """Tell whose approval is still needed, and who rejected the plan."""
        if not self.get("plan") or self.missing():
            return []
        online, wanted = set(self.federation.nodes().online), self._wanted()
        asked = [node_id for node_id in wanted or sorted(online) if node_id in online]
        if not asked:
            return []  # the nodes say that they are offline
        replies = self.federation.plan_status(self._given(), nodes=asked).ok
        open_to = [node_id for node_id, reply in replies.items() if reply.status is not PlanStatus.REJECTED]
        found: list[Problem] = []
        for node_id, reply in replies.items():
            if reply.status is PlanStatus.REJECTED:
                text = f"the owner of {node_id} rejected it{f' ({reply.note})' if reply.note else ''}"
                severity: Severity = "error" if len(open_to) < self._needed(len(replies)) else "warning"
                found.append(Problem(kind="approval-needed", severity=severity, guids=(self.guid,), text=text))
            elif reply.status is not PlanStatus.APPROVED:
                said = "has not decided yet" if reply.status is PlanStatus.PENDING else "has not seen it yet"
                text = f"the owner of {node_id} {said}"
                found.append(Problem(kind="approval-needed", severity="warning", guids=(self.guid,), text=text))
        return found

    # --- asking -------------------------------------------------------------------------------------------------------

    def do_deploy(self) -> None:
        """Hand the plan in once its nodes are READY; decisions come by themselves."""
        if not self.get("plan"):
            raise MissingPartError(self.name, "plan", "set it to the path of a Python file, or to a class")
        if not _is_source(self.get("plan")):
            self.fixed_path("plan")
        ready = self.ready(self._linked_nodes(), self.get("atLeast"))
        if ready is None:
            return
        nodes = list(dict.fromkeys(node.node_id for node in ready)) or list(self.federation.nodes().online)
        source = load_source(self._given())
        path = self._keep(source.source)
        self.note("sha256", source.sha256)
        with self.lock:
            self._decided, self._asked = {}, frozenset()
        self.deafen()
        self.listen("decision", self._decision)  # before owners are asked, so that none is missed
        self.listen("presence", self._heard)
        outcomes = self.federation.approve(
            path, description=self.get("description") or "", nodes=nodes, timeout_s=ASK_TIMEOUT_S
        )
        if len(outcomes.ok) < self._needed(len(outcomes)) or not outcomes:
            if self.waits_for_silent(outcomes, self._linked_nodes()):
                return
            self.deafen()
            said = "; ".join(f"{node_id}: {outcome.reason}" for node_id, outcome in outcomes.failed.items())
            if nodes and not said:
                said = f"atLeast is {self.get('atLeast')}, and it has {len(nodes)} nodes"
            raise ResourceFailedError(f"the plan could not be handed in: {said or outcomes.explanation()}")
        for node_id, outcome in outcomes.failed.items():
            self.warning(f"goes on without node {node_id}, where it could not be handed in: {outcome.reason}")
        with self.lock:
            self._asked = frozenset(map(NodeId, outcomes.ok))
            for node_id, reply in outcomes.ok.items():
                self._decided.setdefault(NodeId(node_id), (reply.status, reply.note))  # a decision is newer
            self._judge()

    def _needed(self, asked: int) -> int:
        found: int | None = self.get("atLeast")
        return asked if found is None else found

    def _linked_nodes(self) -> list[Node]:
        nodes = self.linked(Node)
        jobs = [] if nodes else [each for each in self.linked(LinkedResource) if each.is_rm_instance("fedmon::Job")]
        for job in jobs:
            nodes += [*job.linked(Node), *(node for dataset in job.linked(Dataset) for node in dataset.linked(Node))]
        return nodes

    def _wanted(self) -> list[NodeId]:
        return list(dict.fromkeys(node.node_id for node in self._linked_nodes() if node.get("nodeId")))

    def _given(self) -> Path:
        """Return the file that the run keeps; before there is one, the given file or that of a class's source."""
        if self._kept().exists():
            return self._kept()
        text = self.get("plan")
        return self._keep(text.encode("utf-8", "surrogateescape")) if _is_source(text) else Path(text).expanduser()

    def _kept(self) -> Path:
        """Return where the run keeps what was handed in, whatever becomes of the given file."""
        text = self.get("plan")
        return self.folder / f"{_class_name(text) if _is_source(text) else Path(text).stem}.py"

    def _keep(self, source: bytes) -> Path:
        write_whole(self._kept(), source, folder_mode=0o700)
        return self._kept()

    # --- decisions ----------------------------------------------------------------------------------------------------

    def _decision(self, decision: PlanDecision) -> None:
        if decision.sha256 != self.get("sha256"):
            return
        said = (decision.status, decision.note or decision.problem)
        # A kept decision may be older than what the owner decided since: the node has the last word.
        self.later(lambda: self._ask(NodeId(decision.node_id), said))

    def _heard(self, node: SeenNode) -> None:
        """Ask a node that came back: a decision that was made meanwhile may have reached another process."""
        self.heard(node)
        status, _ = self._decided.get(node.node_id, (None, ""))
        if status is PlanStatus.PENDING and node.last_seen is not None and self.state < ResourceState.READY:
            self.later(lambda: self._ask(node.node_id))

    def _ask(self, node_id: NodeId, said: Decided | None = None) -> None:
        """Ask a node for its decision; ``said`` counts if it does not answer."""
        reply = self.federation.plan_status(self._kept(), nodes=[node_id]).ok.get(node_id)
        if reply is not None and reply.status is not None:
            said = (reply.status, reply.note)
        if said is not None:
            with self.lock:
                self._decided[node_id] = said
                self._judge()

    def _judge(self) -> None:
        """Set the state that follows from the decisions; called under the lock."""
        if not self._asked or self.state >= ResourceState.FAILED:
            return
        mine = {node_id: self._decided[node_id] for node_id in sorted(self._asked) if node_id in self._decided}
        rejected = {node_id: note for node_id, (status, note) in mine.items() if status is PlanStatus.REJECTED}
        approved = [node_id for node_id, (status, _) in mine.items() if status is PlanStatus.APPROVED]
        pending = [node_id for node_id in sorted(self._asked) if node_id not in rejected and node_id not in approved]
        needed = self._needed(len(self._asked))
        if len(approved) + len(pending) < needed:
            said = "; ".join(f"{node_id}{f' ({note})' if note else ''}" for node_id, note in rejected.items())
            self.later(lambda: self.fail(f"the plan was rejected by the owner of {said}"))
            return
        if len(approved) >= needed:
            if self.get("approvedBy") != ",".join(approved):
                self.note("approvedBy", ",".join(approved))
            if self.state < ResourceState.READY:
                self.set_ready()
        elif self.state < ResourceState.READY:
            if self.state < ResourceState.RESERVED:
                self.set_reserved()
            self.wait_for(f"the owner of {', '.join(pending)} to approve it")


def _is_source(text: str) -> bool:
    return "\n" in text


def _class_name(source: str) -> str:
    """Return the name of the last class of a source; "plan" if it has none."""
    try:
        names = [node.name for node in parsed(source).body if isinstance(node, ast.ClassDef)]
    except (SyntaxError, ValueError, RecursionError):
        names = []
    return names[-1] if names else "plan"
