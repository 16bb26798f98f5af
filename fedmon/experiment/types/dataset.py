"""`fedmon::Dataset`: a dataset that nodes offer, found by its tags."""

from __future__ import annotations

from fedmon.common.ids import NodeId
from fedmon.common.wire.messages import SearchReply
from fedmon.experiment.attributes import Attribute, Flags
from fedmon.experiment.check.problems import Problem
from fedmon.experiment.natures import Need
from fedmon.experiment.resource import clsinit_copy
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types.asking import AskingResource
from fedmon.experiment.types.errors import MissingPartError, NotOfferedError
from fedmon.experiment.types.linked import ASK_TIMEOUT_S
from fedmon.experiment.types.node import Node
from fedmon.experiment.types.values import CheckedAttribute, own, words
from fedmon.researcher.asking.outcome import Outcomes


@clsinit_copy
class Dataset(AskingResource):
    """DISCOVERED when every node that it is connected to offers one dataset with all of its tags; READY at once then.

    Connected to no node, it is looked for on all that are there.
    """

    _rtype = "fedmon::Dataset"
    _help = "A dataset on the nodes that it is connected to, found by its tags."
    _partners = ("fedmon::Node", "fedmon::Job", "fedmon::Collector")
    _needs = (Need(verb="deploy", of="fedmon::Node"),)
    _passes = (ResourceState.DISCOVERED,)
    _required_attributes = ("tags",)
    _measured_by = ()

    @classmethod
    def _register_attributes(cls) -> None:
        cls._register_attribute(
            CheckedAttribute(
                "tags",
                "The tags that it has; nodes may give it more.",
                words,
                'a list of texts, such as ["mri", "2024"], or "mri, 2024"',
                flags=Flags.Design,
            )
        )
        cls._register_attribute(
            Attribute("datasetId", "Its id, where the tags alone fit more than one of a node.", flags=Flags.Design)
        )
        cls._register_attribute(own("foundOn", "The nodes that offer it, with commas."))

    @property
    def found_on(self) -> list[NodeId]:
        """The nodes that offer it; empty before it was DISCOVERED."""
        return [NodeId(node_id) for node_id in (self.get("foundOn") or "").split(",") if node_id]

    def do_deploy(self) -> None:
        """Look for it on the nodes, as soon as they are READY."""
        tags = self.get("tags")
        if not tags:
            raise MissingPartError(self.name, "tags", 'set them, such as tags=["mri"]')
        nodes = self.ready(Node)
        if nodes is None:
            return
        asked = [node.node_id for node in nodes]
        self.deafen()
        self.listen("presence", self._shown)
        outcomes = self.federation.search(tags, nodes=asked or None, timeout_s=ASK_TIMEOUT_S)
        found = self._offering(outcomes)
        missing = [node_id for node_id in asked if node_id not in found]
        if missing and self.waits_for_silent(outcomes, nodes):
            return
        if missing or not found:
            raise NotOfferedError(self._why_not(outcomes, missing))
        self._set_own("foundOn", ",".join(found))
        self.set_discovered()
        self.set_ready()

    def foreseen(self) -> list[Problem]:
        """Tell which nodes that are there do not offer it."""
        tags = self.get("tags")
        if not tags:
            return []  # what is not set is said by the plan
        there = set(self.federation.nodes().online)
        asked = [node.node_id for node in self.linked(Node) if node.get("nodeId")]
        present = [node_id for node_id in asked if node_id in there]
        if asked and not present:
            return []  # nobody can say; that the nodes are offline is said by them
        outcomes = self.federation.search(tags, nodes=present or None)
        try:
            found = self._offering(outcomes)
        except NotOfferedError as error:
            return [Problem(kind="missing-dataset", guids=(self.guid,), text=str(error))]
        missing = [node_id for node_id in present if node_id not in found]
        if found and not missing:
            return []
        return [Problem(kind="missing-dataset", guids=(self.guid,), text=self._why_not(outcomes, missing))]

    def _offering(self, outcomes: Outcomes[SearchReply]) -> list[NodeId]:
        wanted = self.get("datasetId")
        found: list[NodeId] = []
        for node_id, reply in outcomes.ok.items():
            fitting = [one for one in reply.datasets if wanted is None or one.dataset_id == wanted]
            if len(fitting) > 1:
                ids = ", ".join(f"{one.dataset_id} ({one.name})" for one in fitting)
                raise NotOfferedError(f"node {node_id} offers more than one dataset that fits; set datasetId: {ids}")
            found += [NodeId(node_id)] if fitting else []
        return found

    def _why_not(self, outcomes: Outcomes[SearchReply], missing: list[NodeId]) -> str:
        tags = ", ".join(self.get("tags"))
        wanted = f"dataset {self.get('datasetId')} with the tags {tags}" if self.get("datasetId") else f"tags {tags}"
        said = [
            f"{node_id}: {outcomes[node_id].reason or 'it offers none to you'}"
            for node_id in (missing or outcomes)
            if node_id in outcomes
        ]
        return f"no dataset for {wanted}: {'; '.join(said) or outcomes.explanation()}"
