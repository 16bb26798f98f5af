"""The envelope of a researcher's requests, requests for an approval, the answer to a ping, and decisions."""

from __future__ import annotations

import hashlib
from typing import Any

from fedmon.common.clock import seconds_from_now, utc_now
from fedmon.common.ids import new_id
from fedmon.common.wire.messages import Approval, PlanDecision, PlanStatus, Pong


def envelope(researcher_id: str = "alice") -> dict[str, Any]:
    """Return what every request carries."""
    return {
        "researcher_id": researcher_id,
        "id": new_id(),
        "session": "s",
        "sequence": 1,
        "expires": seconds_from_now(60.0),
    }


def approval(source: bytes, *, by: str = "alice", name: str = "p", **fields: Any) -> Approval:
    """Return a request to approve a plan; ``fields`` override or add fields."""
    sha256 = hashlib.sha256(source).hexdigest()
    given = {"name": name, "sha256": sha256, "size_bytes": len(source), "source": source.decode(), **envelope(by)}
    return Approval(**given | fields)


def pong(**fields: Any) -> Pong:
    """Return a node's answer to a ping of alice; ``fields`` override fields."""
    echoed: dict[str, Any] = {"researcher_id": "alice", "id": "id-1", "session": "s", "sequence": 1}
    own = {"node_id": "a", "time": utc_now(), "boot": 1, "agent_version": "1"}
    return Pong(**echoed | own | fields)


def decision(decision_id: str = "d-1", **fields: Any) -> PlanDecision:
    """Return a node's approval of a plan of alice; ``fields`` override fields."""
    told: dict[str, Any] = {"status": PlanStatus.APPROVED, "note": "looks good", "decided": utc_now()}
    told |= {"node_id": "a", "researcher_id": "alice", "id": decision_id, "boot": 1}
    told |= {"plan_id": "p-1", "sha256": "0" * 64, "name": "plan"}
    return PlanDecision(**told | fields)
