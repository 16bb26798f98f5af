"""Resources that ask nodes while they are deployed: a node that is silent may still answer within its grace."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fedmon.common.ids import NodeId
from fedmon.experiment.durations import seconds
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types.linked import LinkedResource
from fedmon.experiment.types.node import Node, is_gone
from fedmon.researcher.asking.outcome import OutcomeStatus

if TYPE_CHECKING:
    from fedmon.researcher.asking.outcome import Outcomes
    from fedmon.researcher.roster import Node as SeenNode

_SILENT = (OutcomeStatus.OFFLINE, OutcomeStatus.STALE, OutcomeStatus.TIMED_OUT)


class AskingResource(LinkedResource):
    """Listens to `_shown` while it is deployed, and is deployed again when a node shows itself that was silent."""

    asks_federation = True
    _silent: frozenset[NodeId] = frozenset()
    _mute_since: float | None = None

    def waits_for_silent(self, outcomes: Outcomes[Any], nodes: Iterable[Node]) -> bool:
        """Tell whether all that is wrong is that some of these nodes are silent; `do_deploy` is to return then.

        It is called again when one of them shows itself, or FAILED; and soon while one is said to be there and does not
        answer, for as long as a node may be away.
        """
        living = {node.get("nodeId"): node for node in nodes if node.state < ResourceState.FAILED}
        failed = outcomes.failed
        if not failed or any(one.status not in _SILENT or node_id not in living for node_id, one in failed.items()):
            self._mute_since = None
            return False
        self._deploy_again = True  # before the look: what moves in between calls for another
        self._silent = frozenset(map(NodeId, failed))
        seen, now = self.federation.nodes(), time.monotonic()
        if all(is_gone(seen.get(node_id)) for node_id in self._silent):
            self._mute_since = None
        else:
            self._mute_since = now if self._mute_since is None else self._mute_since
            if now - self._mute_since > max(seconds(living[node_id].get("grace")) for node_id in failed):
                return False
            self.later(lambda: self.neighbour_moved(self), after="1s")
        self.wait_for(f"node {', '.join(failed)} to answer")
        return True

    def _shown(self, node: SeenNode) -> None:
        """Hear of a node."""
        if node.node_id in self._silent and not is_gone(node) and node.last_seen is not None:
            self._silent = frozenset()
            self.neighbour_moved(self)
