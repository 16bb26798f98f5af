"""`fedmon::Node`: a node of the federation, there as long as its presence is confirmed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmon.common.ids import NodeId, checked_id
from fedmon.experiment.attributes import Flags, Types
from fedmon.experiment.check.problems import Problem
from fedmon.experiment.resource import clsinit_copy
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types.errors import MissingPartError
from fedmon.experiment.types.linked import LinkedResource
from fedmon.experiment.types.values import CheckedAttribute, duration, own
from fedmon.researcher.roster import NodeState

if TYPE_CHECKING:
    from fedmon.researcher.roster import Node as SeenNode

_GONE = (NodeState.OFFLINE, NodeState.STALE)


def is_gone(node: SeenNode | None) -> bool:
    """Tell whether a node is away, as far as anybody knows."""
    return node is None or node.state in _GONE


@clsinit_copy
class Node(LinkedResource):
    """DISCOVERED once the node was heard of, READY when it gave a sign of life, FAILED when it stays away too long.

    A node that was lost may return within ``grace`` as if nothing had been. One that returns later is again in the
    state that it had before; who passed it over meanwhile does not go back for it.
    """

    asks_federation = True
    _rtype = "fedmon::Node"
    _help = (
        "A node of the federation: READY when its presence is confirmed, FAILED when it is lost for longer than grace."
    )
    _passes = (ResourceState.DISCOVERED,)
    _required_attributes = ("nodeId",)
    _measured_by = ("fedmon::Monitor",)
    _measures_when_ready = True
    _losses = 0
    _before_loss: ResourceState | None = None

    @classmethod
    def _register_attributes(cls) -> None:
        cls._register_attribute(
            CheckedAttribute(
                "nodeId",
                "The id of the node.",
                lambda value: checked_id(str(value), what="node id"),
                "the id of a node",
                flags=Flags.Design,
            )
        )
        cls._register_attribute(
            CheckedAttribute(
                "grace",
                "For how long a node that is lost may come back before it counts as FAILED.",
                duration,
                'a duration, such as "30s"',
                default="30s",
            )
        )
        cls._register_attribute(own("present", "Whether the node is there now.", type=Types.Bool, default=False))
        cls._register_attribute(own("agentVersion", "The version of what runs there."))

    @property
    def node_id(self) -> NodeId:
        """The id of the node. Raises MissingPartError."""
        node_id = self.get("nodeId")
        if not node_id:
            raise MissingPartError(self.name, "nodeId", "set it to the id of the node, which `fedmon nodes` lists")
        return NodeId(node_id)

    def do_deploy(self) -> None:
        """Look who is there, and listen from then on; it is READY when the node gives a sign of life."""
        self._look()

    def _look(self) -> None:
        node_id = self.node_id
        self.deafen()
        self.listen("presence", self._told)
        node = self.federation.nodes().get(node_id)
        if is_gone(node):
            said = "was not heard of" if node is None else f"is {node.state.value}"
            self.wait_for(f"node {node_id}, which {said}")
            self._lost(f"node {node_id} {said}")
        if node is not None:
            self._told(node)
        # What the broker retains is a belief; an answer is a sign of life. A silent node may still come up.
        is_believed = node is not None and node.state not in _GONE and node.last_seen is None
        if is_believed and self.federation.ping(nodes=[node_id]).ok:
            self._confirmed()

    def foreseen(self) -> list[Problem]:
        """Tell whether the node is there."""
        if not self.get("nodeId"):
            return []  # what is not set is said by the plan
        node = self.federation.nodes().get(self.node_id)
        if not is_gone(node):
            return []
        text = f"node {self.node_id} {'was not heard of' if node is None else f'is {node.state.value}'}"
        return [Problem(kind="offline-node", severity="warning", guids=(self.guid,), text=text)]

    def do_reconnect(self, verb: str | None) -> None:
        """Look who is there now; one that was lost meanwhile has its grace from now on."""
        if verb == "release":
            super().do_reconnect(verb)
        elif self.state >= ResourceState.READY or verb == "deploy":
            if not self.get("present") and self.state >= ResourceState.READY:
                self._note_own("present", value=True)  # it was lost before, and its grace with the process
            self.do_deploy()

    def reconnect(self, verb: str | None) -> None:
        """Take it up again; one that was lost may still return."""
        if self.state is ResourceState.FAILED and verb != "release" and not self.get("present") and self.ready_time:
            *_, self._before_loss = (state for state, _ in self._seen().times if state < ResourceState.FAILED)
            self.later(self._look)
        else:
            super().reconnect(verb)

    def _told(self, node: SeenNode) -> None:
        if node.node_id != self.node_id:
            return
        with self.lock:
            state = self.state
            is_there = node.state not in _GONE
            if state is ResourceState.NEW:
                self.set_discovered()
            if is_there and node.last_seen is not None:
                self._confirmed()
            elif not is_there:
                why = f" ({node.reason})" if node.reason else ""
                self._lost(f"node {node.node_id} is {node.state.value}{why}")
            if node.agent_version and node.agent_version != self.get("agentVersion"):
                self._note_own("agentVersion", node.agent_version)

    def _confirmed(self) -> None:
        with self.lock:
            if not self.get("present"):
                if self.state >= ResourceState.READY:
                    self.info("is back")
                self._note_own("present", value=True)
            if self.state < ResourceState.READY:
                self.set_ready()
            elif self.state is ResourceState.FAILED and self._before_loss is not None:
                self.ec._returned(self.guid, self._before_loss)  # noqa: SLF001 - for resources alone
                self._before_loss = None
                for other in self.linked(LinkedResource):
                    other.neighbour_moved(self)

    def _lost(self, reason: str) -> None:
        if not self.get("present"):
            return
        self._note_own("present", value=False)
        if ResourceState.READY <= self.state < ResourceState.FAILED:
            self.warning(f"{reason}; it has {self.get('grace')} to come back")
            self._losses += 1
            losses = self._losses
            self.later(lambda: self._give_up(losses, reason), after=self.get("grace"))

    def _give_up(self, losses: int, reason: str) -> None:
        with self.lock:
            # A node that came back and went again has its whole time anew.
            is_over = self.get("present") or losses != self._losses or self.state >= ResourceState.FAILED
        if not is_over:
            self._before_loss = self.state
            self.fail(f"{reason}, and did not come back within {self.get('grace')}")

    def _set_state(self, state: ResourceState) -> None:
        super()._set_state(state)
        if state is ResourceState.FAILED:
            near = self.linked(LinkedResource)
            for other in {far for each in near for far in each.linked(LinkedResource)}.difference(near, [self]):
                other.neighbour_moved(self)  # a job whose dataset or plan is connected to it
        if state is ResourceState.FAILED and self.ready_time is not None:
            self.later(self._listen_on)

    def _listen_on(self) -> None:
        """Go on to listen, for a node that was lost may return."""
        if self.state is ResourceState.FAILED:
            self.listen("presence", self._told)
