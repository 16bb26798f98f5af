"""Resources that ask nodes while they are deployed: a node that is silent may still answer within its grace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fedmon.common.ids import NodeId
from fedmon.researcher.experiment.federation.linked import LinkedResource
from fedmon.researcher.experiment.federation.node import Node, is_gone
from fedmon.researcher.experiment.states import ResourceState
from fedmon.researcher.outcomes import OutcomeStatus

if TYPE_CHECKING:
    from fedmon.researcher.outcomes import Outcomes
    from fedmon.researcher.roster import Node as SeenNode

_AWAY = (OutcomeStatus.OFFLINE, OutcomeStatus.STALE)
_SILENT = (*_AWAY, OutcomeStatus.TIMED_OUT)


class AskingResource(LinkedResource):
    """Listens to `_shown` while it is deployed, and is deployed again when a node shows itself that was silent."""

    _silent: frozenset[NodeId] = frozenset()

    def waits_for_silent(self, outcomes: Outcomes[Any], nodes: Iterable[Node]) -> bool:
        """Tell whether all that is wrong is that some of these nodes are silent; `do_deploy` is to return then.

        It is called again when one of them shows itself, or FAILED.
        """
        living = {node.get("nodeId") for node in nodes if node.state < ResourceState.FAILED}
        silent = {node_id: one for node_id, one in outcomes.failed.items() if one.status in _SILENT}
        if not silent or not silent.keys() <= living or len(silent) < len(outcomes.failed):
            return False
        self._deploy_again = True  # before the look: what moves in between calls for another
        self._silent = frozenset(map(NodeId, silent))
        self.wait_for(f"node {', '.join(silent)} to answer")
        seen = self.federation.nodes()
        if any(one.status in _AWAY and not is_gone(seen.get(NodeId(node_id))) for node_id, one in silent.items()):
            self.neighbour_moved(self)
        return True

    def _shown(self, node: SeenNode) -> None:
        """Hear of a node."""
        if node.node_id in self._silent and not is_gone(node) and node.last_seen is not None:
            self._silent = frozenset()
            self.neighbour_moved(self)
