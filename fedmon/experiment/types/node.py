"""`fedmon::Node`, a node of the federation, and `fedmon::Dataset`, a dataset that nodes offer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedmon.common.ids import NodeId, checked_id
from fedmon.experiment.attributes import Attribute, Flags, Types
from fedmon.experiment.check.graph import Problem, Severity
from fedmon.experiment.natures import Need
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types.base import ASK_TIMEOUT_S, LinkedResource, ResourceFailedError, is_gone
from fedmon.experiment.types.values import CheckedAttribute, duration, own, words
from fedmon.researcher.asking.outcome import SILENT
from fedmon.researcher.asking.tables import by_reason

if TYPE_CHECKING:
    from fedmon.common.wire.messages import SearchReply
    from fedmon.researcher.asking.outcome import Outcomes
    from fedmon.researcher.roster import Node as SeenNode


class Node(LinkedResource):
    """DISCOVERED once the node was heard of, READY after a sign of life, FAILED when it is away for too long.

    A node that returns within ``grace`` was never lost.
    """

    asks_federation = True
    _rtype = "fedmon::Node"
    _help = (
        "A node of the federation: READY when its presence is confirmed, FAILED when it is lost for longer than grace."
    )
    _required_attributes = ("nodeId",)
    _measures_when_ready = True
    _reach = 3  # a plan whose job has a dataset that is connected to it
    _listens_until = ResourceState.RELEASED  # for `present`
    _losses = 0

    own_attributes = (
        CheckedAttribute("nodeId", "The id of the node.", lambda value: checked_id(str(value), what="node id"),
                         "the id of a node", flags=Flags.Design),
        CheckedAttribute("grace", "The time a lost node has to come back before it is FAILED.", duration,
                         'a duration, such as "30s"', default="30s"),
        own("present", "Whether the node is online now.", type=Types.Bool, default=False),
        own("agentVersion", "The version of its agent."),
    )  # fmt: skip

    @property
    def node_id(self) -> NodeId:
        """The id of the node."""
        return NodeId(self.get("nodeId"))

    def do_deploy(self) -> None:
        """Listen for the node; a sign of life makes it READY."""
        node_id = self.node_id
        self.deafen()
        self.listen("presence", self._heard)
        node = self.federation.nodes().get(node_id)
        if node is None:
            self._lost(_absence(node))
        else:
            self._heard(node)
            # A retained presence is only a hint, an answer is a sign of life. A silent node may still come up.
            if not is_gone(node) and node.last_seen is None:
                if self.federation.ping(nodes=[node_id]).ok:
                    self._confirmed()
                elif self.state < ResourceState.READY:
                    self.wait_for(f"node {node_id}, which does not answer")
                    self._tell_around()

    def foreseen(self) -> Iterator[Problem]:
        """Yield a problem if the node is away."""
        node = self.federation.nodes().get(self.node_id)
        if is_gone(node):
            text = f"node {self.node_id} {_absence(node)}"
            yield Problem(kind="offline-node", severity="warning", guids=(self.guid,), text=text)

    def do_reconnect(self, verb: str | None) -> None:
        """Listen for the node again; a lost one has its whole grace again."""
        if verb == "release" or self.state < ResourceState.READY:
            super().do_reconnect(verb)
            return
        if not self.get("present"):
            self.note("present", value=True)  # its grace ended with the process
        self.do_deploy()

    def _heard(self, node: SeenNode) -> None:
        if node.node_id != self.node_id:
            return
        with self.lock:
            if self.state is ResourceState.NEW:
                self.set_discovered()
            if is_gone(node):
                self._lost(_absence(node))
            elif node.last_seen is not None:
                self._confirmed()
            if node.agent_version and node.agent_version != self.get("agentVersion"):
                self.note("agentVersion", node.agent_version)

    def _confirmed(self) -> None:
        with self.lock:
            was_away = not self.get("present")
            if was_away:
                if self.state >= ResourceState.READY:
                    self.info("is back")
                self.note("present", value=True)
            if self.state < ResourceState.READY:
                self.set_ready()
        if was_away:  # others wait for that; a presence is refreshed all the time
            self._tell_around()

    def _lost(self, absence: str) -> None:
        if self.state < ResourceState.READY:
            self.wait_for(f"node {self.node_id}, which {absence}")
            self._tell_around()  # a plan may do without a node that waits
        if not self.get("present"):
            return
        self.note("present", value=False)
        if ResourceState.READY <= self.state < ResourceState.FAILED:
            self.warning(f"node {self.node_id} {absence}; it has {self.get('grace')} to come back")
            self._losses += 1
            losses = self._losses
            self.later(lambda: self._give_up(losses, absence), after=self.get("grace"))

    def _give_up(self, losses: int, absence: str) -> None:
        with self.lock:
            # A node that came back and was lost again has its whole grace again.
            is_over = self.get("present") or losses != self._losses or self.state >= ResourceState.FAILED
        if not is_over:
            self.fail(f"node {self.node_id} {absence}, and did not come back within {self.get('grace')}")


def _absence(node: SeenNode | None) -> str:
    if node is None:
        return "was not heard of"
    return f"is {node.state.value}{f' ({node.reason})' if node.reason else ''}"


class Dataset(LinkedResource):
    """DISCOVERED and then READY when every connected node offers one dataset with all of its tags.

    If it is connected to no node, all online nodes are searched.
    """

    asks_federation = True
    _rtype = "fedmon::Dataset"
    _help = "A dataset on the nodes that it is connected to, found by its tags."
    _partners = ("fedmon::Node", "fedmon::Job", "fedmon::Collector")
    _needs = (Need(verb="deploy", of="fedmon::Node"),)
    _required_attributes = ("tags",)
    _reach = 2  # the plan of its job

    own_attributes = (
        CheckedAttribute("tags", "The tags that it has; nodes may give it more.", words,
                         'a list of texts, such as ["mri", "2024"], or "mri, 2024"', flags=Flags.Design),
        Attribute("datasetId", "Its id, if the tags match more than one dataset of a node.", flags=Flags.Design),
        own("foundOn", "The nodes that offer it, separated by commas."),
    )  # fmt: skip

    def do_deploy(self) -> None:
        """Search the nodes once they are READY."""
        nodes = self.ready("fedmon::Node")
        if nodes is None:
            return
        asked = [NodeId(node.get("nodeId")) for node in nodes]
        outcomes = self.federation.search(self.get("tags"), nodes=asked or None, timeout_s=ASK_TIMEOUT_S)
        found = _offering(outcomes, self.get("datasetId"))
        missing = [node_id for node_id in asked if node_id not in found]
        if missing and self.waits_for_silent(outcomes):
            return
        if missing or not found:
            raise ResourceFailedError(_why_not(outcomes, missing, self.get("tags"), self.get("datasetId")))
        self.note("foundOn", ",".join(found))
        self.set_discovered()
        self.set_ready()

    def foreseen(self) -> Iterator[Problem]:
        """Yield a problem if online nodes do not offer it."""
        return missing_dataset(self, self.get("datasetId"), "error")


def missing_dataset(of: LinkedResource, dataset_id: str | None, severity: Severity) -> Iterator[Problem]:
    """Yield a problem if the online nodes of a resource, or all online ones, do not offer a dataset with its tags."""
    online, tags = set(of.federation.nodes().online), of.get("tags")
    asked = [node.node_id for node in of.linked(Node) if node.get("nodeId")]
    present = [node_id for node_id in asked if node_id in online]
    if asked and not present:
        return  # the nodes say that they are offline
    outcomes, missing = of.federation.search(tags, nodes=present or None), list[NodeId]()
    silent = {node_id for node_id, one in outcomes.failed.items() if one.status in SILENT}
    try:
        found = _offering(outcomes, dataset_id)
        missing = [node_id for node_id in present if node_id not in found]
        text = "" if found and not missing else _why_not(outcomes, missing, tags, dataset_id)
    except ResourceFailedError as error:
        text = str(error)
    if text:
        severity = "warning" if missing and silent.issuperset(missing) else severity
        yield Problem(kind="missing-dataset", severity=severity, guids=(of.guid,), text=text)


def _offering(outcomes: Outcomes[SearchReply], wanted: str | None) -> list[NodeId]:
    found: list[NodeId] = []
    for node_id, reply in outcomes.ok.items():
        fitting = [one for one in reply.datasets if wanted is None or one.dataset_id == wanted]
        if len(fitting) > 1:
            ids = ", ".join(f"{one.dataset_id} ({one.name})" for one in fitting)
            raise ResourceFailedError(f"node {node_id} offers more than one; set datasetId of a fedmon::Dataset: {ids}")
        found += [NodeId(node_id)] if fitting else []
    return found


def _why_not(outcomes: Outcomes[SearchReply], missing: list[NodeId], tags: list[str], wanted: str | None) -> str:
    said = {
        str(node_id): outcomes[node_id].reason or "it offers none to you"
        for node_id in (missing or outcomes)
        if node_id in outcomes
    }
    what = f"dataset {wanted} with the tags" if wanted else "tags"
    return f"no dataset for {what} {', '.join(tags)}: {'; '.join(by_reason(said)) or outcomes.explanation()}"
