"""The envelope of a researcher's requests, and requests for an approval."""

from __future__ import annotations

import hashlib
from typing import Any

from fedmon.common.clock import seconds_from_now
from fedmon.common.ids import new_id
from fedmon.common.wire.messages import Approval


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
