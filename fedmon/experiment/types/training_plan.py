"""`fedmon::TrainingPlan`: a plan, RESERVED while owners look at it and READY when enough of them approved it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmon.common.errors import FedmonError
from fedmon.common.files import write_whole
from fedmon.common.ids import NodeId
from fedmon.common.plan_source import load_source
from fedmon.common.wire.messages import PlanStatus
from fedmon.experiment.attributes import Attribute, Flags
from fedmon.experiment.check.graph import Problem, Severity
from fedmon.experiment.natures import Need
from fedmon.experiment.resource import Experiment
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types.base import ASK_TIMEOUT_S, LinkedResource, ResourceFailedError
from fedmon.experiment.types.values import CheckedAttribute, at_least, own, path_text
from fedmon.researcher.asking.tables import by_reason

if TYPE_CHECKING:
    from fedmon.common.wire.messages import ApprovalReply, PlanDecision
    from fedmon.researcher.asking.outcome import Outcomes
    from fedmon.researcher.roster import Node as SeenNode


def _plan(value: Any) -> str:
    """Return the path of a plan, or the source of a class or an instance."""
    if not isinstance(value, str | Path):
        return load_source(value).source.decode("utf-8", "surrogateescape")
    text = str(value)
    return text if _is_source(text) else path_text(text)


class TrainingPlanResource(LinkedResource):
    """Asks the owners of its nodes for approval: RESERVED until all approved, or ``atLeast`` of them, then READY.

    FAILED when too few are left that have not rejected it. Its nodes are those connected to it, or those of its jobs,
    or else all online ones. It waits for owners without limit, unless deploy has a timeout. A later approval counts
    for the jobs that start later.
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
    _required_attributes = ("plan",)

    own_attributes = (
        CheckedAttribute("plan", "The file of the plan, or its class, which is kept as source.", _plan,
                         "the path of a Python file, or a class or instance of TrainingPlan", flags=Flags.Design,
                         is_path=True),
        Attribute("description", "Description for the owners.", default="", flags=Flags.Design),
        at_least("How many owners must approve it for it to be READY; None: all."),
        own("sha256", "The digest of the submitted source."),
        own("askedOf", "The nodes whose owners were asked, separated by commas."),
        own("approvedBy", "The nodes whose owners approved it, separated by commas."),
    )  # fmt: skip

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self._decided: dict[NodeId, tuple[PlanStatus, str]] = {}  # by node, with the owner's note
        self._is_asked = False  # from then on it holds each node that was asked, and no other

    @property
    def approved_by(self) -> list[NodeId]:
        """The nodes whose owners approved it."""
        return self.node_ids("approvedBy")

    def admits(self, node_id: NodeId) -> bool:
        """Tell whether a job may go to a node: its owner approved the plan, or was not asked."""
        return node_id in self.approved_by or node_id not in self._wanted()

    def do_reconnect(self, verb: str | None) -> None:
        """Ask again, which owners do not see, or listen to further decisions."""
        if verb is None and ResourceState.READY <= self.state < ResourceState.FAILED:
            asked = self.node_ids("askedOf") or self._wanted()  # those are of a journal of an earlier version
            self._decided = dict.fromkeys(asked, (PlanStatus.PENDING, ""))
            self._decided |= dict.fromkeys(self.approved_by, (PlanStatus.APPROVED, ""))
            self._is_asked = True
            self.listen("decision", self._decision)
        else:
            super().do_reconnect(verb)

    def foreseen_here(self) -> Iterator[Problem]:
        """Yield a problem if the file of the plan cannot be read yet."""
        try:
            if self.get("plan"):  # the plan of the experiment names missing attributes
                load_source(self._given())
        except FedmonError as error:
            text = f"{error}; it must exist when it is deployed"
            yield Problem(kind="missing-part", severity="warning", guids=(self.guid,), text=text)

    def foreseen(self) -> Iterator[Problem]:
        """Yield a problem for each owner who has not approved it."""
        online, wanted = set(self.federation.nodes().online), self._wanted()
        asked = [node_id for node_id in wanted or sorted(online) if node_id in online]
        if not asked or any(self.foreseen_here()):  # else the nodes say that they are offline
            return
        replies = self.federation.plan_status(self._given(), nodes=asked).ok
        rejected = [node_id for node_id, reply in replies.items() if reply.status is PlanStatus.REJECTED]
        total = len(wanted or replies)  # nodes that are away may still approve it
        is_lost = total - len(rejected) < self._needed(total)
        for node_id, reply in replies.items():
            severity: Severity = "error" if is_lost and node_id in rejected else "warning"
            if reply.status is PlanStatus.REJECTED:
                said = f"rejected it{f' ({reply.note})' if reply.note else ''}"
            else:
                said = "has not decided yet" if reply.status is PlanStatus.PENDING else "has not seen it yet"
            if reply.status is not PlanStatus.APPROVED:
                text = f"the owner of {node_id} {said}"
                yield Problem(kind="approval-needed", severity=severity, guids=(self.guid,), text=text)

    # --- asking -------------------------------------------------------------------------------------------------------

    def do_deploy(self) -> None:
        """Submit the plan once its nodes are READY; then decisions arrive."""
        ready = self.ready("fedmon::Node", self.get("atLeast"))
        if ready is None:
            return
        asked = list(dict.fromkeys(node.get("nodeId") for node in ready)) or list(self.federation.nodes().online)
        source = load_source(self._given())
        path = self._keep(source.source)
        self.note("sha256", source.sha256)
        with self.lock:
            self._decided, self._is_asked = {}, False
        self.deafen()
        self.listen("decision", self._decision)  # before owners are asked, so that none is missed
        self.listen("presence", self._heard)
        outcomes = self.federation.approve(
            path,
            description=self.get("description") or "",
            datasets=self._datasets(),
            nodes=asked,
            timeout_s=ASK_TIMEOUT_S,
        )
        if len(outcomes.ok) < self._needed(len(outcomes)) or not outcomes:
            if not self.waits_for_silent(outcomes):
                self.deafen()
                raise ResourceFailedError(f"the plan could not be submitted: {self._why_not(outcomes, asked)}")
            return
        with self.lock:
            said = {NodeId(node_id): (reply.status, reply.note) for node_id, reply in outcomes.ok.items()}
            self._decided = {node_id: self._decided.get(node_id, said[node_id]) for node_id in said}  # that is newer
            self._is_asked = True
            self.note("askedOf", ",".join(self._decided))
            self._judge()
        for node_id, outcome in outcomes.failed.items():
            self.warning(f"continues without node {node_id}, which did not take it: {outcome.reason}")

    def _why_not(self, outcomes: Outcomes[ApprovalReply], asked: list[NodeId]) -> str:
        said = "; ".join(by_reason({str(node_id): outcome.reason for node_id, outcome in outcomes.failed.items()}))
        if asked and not said:
            said = f"atLeast is {self.get('atLeast')}, and it has {len(asked)} nodes"
        return said or outcomes.explanation()

    def _needed(self, asked: int) -> int:
        found: int | None = self.get("atLeast")
        return asked if found is None else found

    def _datasets(self) -> list[str] | None:
        """Return the datasets of its jobs, by id or tags; None without jobs, to ask for all."""
        jobs, named = self.get_connected("fedmon::Job"), list[str]()
        for job in jobs:
            found = job.get_connected("fedmon::Dataset")
            named += [place.get("datasetId") or ",".join(place.get("tags") or ()) for place in found]
            named += [] if found else [",".join(job.get("tags") or ())]
        return [each for each in dict.fromkeys(named) if each] if jobs else None

    def _wanted(self) -> list[NodeId]:
        return list(dict.fromkeys(filter(None, (node.get("nodeId") for node in self.needs("fedmon::Node")))))

    def _given(self) -> Path:
        """Return the file of a class's source, or the copy of the run; before there is one, the given file."""
        text = self.get("plan")
        if _is_source(text):  # another one may be set after a plan, or after a refused deployment
            return self._keep(text.encode("utf-8", "surrogateescape"))
        return self._kept() if self._kept().exists() else Path(text)

    def _kept(self) -> Path:
        """Return the path of the run's own copy, which stays if the given file changes."""
        text = self.get("plan")
        return self.folder / f"{_class_name(text) if _is_source(text) else Path(text).stem}.py"

    def _keep(self, source: bytes) -> Path:
        write_whole(self._kept(), source, folder_mode=0o700)
        return self._kept()

    # --- decisions ----------------------------------------------------------------------------------------------------

    def _decision(self, decision: PlanDecision) -> None:
        if decision.sha256 == self.get("sha256"):
            said = (decision.status, decision.note or decision.problem)
            self.later(lambda: self._ask(NodeId(decision.node_id), said))

    def _heard(self, node: SeenNode) -> None:
        """Ask a node that came back: its decision may have reached another process meanwhile."""
        status, _ = self._decided.get(node.node_id, (None, ""))
        if status is PlanStatus.PENDING and node.last_seen is not None and self.state < ResourceState.READY:
            self.later(lambda: self._ask(node.node_id))

    def _ask(self, node_id: NodeId, said: tuple[PlanStatus, str] | None = None) -> None:
        """Ask a node for its decision, because a delivered one may be outdated; ``said`` counts without an answer."""
        reply = self.federation.plan_status(self._kept(), nodes=[node_id]).ok.get(node_id)
        if reply is not None and reply.status is not None:
            said = (reply.status, reply.note)
        with self.lock:
            if said is not None and (node_id in self._decided or not self._is_asked):
                self._decided[node_id] = said
                self._judge()

    def _judge(self) -> None:
        """Set the state that follows from the decisions; called under the lock."""
        if not self._is_asked or self.state >= ResourceState.FAILED:
            return
        decided = sorted(self._decided.items())
        approved = [node_id for node_id, (status, _) in decided if status is PlanStatus.APPROVED]
        rejected = {node_id: note for node_id, (status, note) in decided if status is PlanStatus.REJECTED}
        needed = self._needed(len(decided))
        if len(decided) - len(rejected) < needed:
            said = "; ".join(f"{node_id}{f' ({note})' if note else ''}" for node_id, note in rejected.items())
            self.later(lambda: self.fail(f"the plan was rejected by the owner of {said}"))
        elif len(approved) >= needed:
            if approved != self.approved_by:
                self.note("approvedBy", ",".join(approved))
            if self.state < ResourceState.READY:
                self.set_ready()
        elif self.state < ResourceState.READY:
            if self.state < ResourceState.RESERVED:
                self.set_reserved()
            pending = [node_id for node_id in self._decided if node_id not in approved and node_id not in rejected]
            self.wait_for(f"the owner of {', '.join(sorted(pending))} to approve it")


def _is_source(text: str) -> bool:
    return "\n" in text


def _class_name(source: str) -> str:
    """Return the name of the last class of a source; "plan" if it has none."""
    names: list[str] = re.findall(r"^class\s+(\w+)", source, re.MULTILINE)
    return names[-1] if names else "plan"
