"""`ping`: a sign of life."""

from __future__ import annotations

from fedmon.common.clock import utc_now
from fedmon.common.wire.messages import Ping, Pong
from fedmon.node.requests.handlers.envelope import echo
from fedmon.node.services import Services


def answer(request: Ping, services: Services) -> Pong:
    """Say that this node is there, what its clock says, and which version runs."""
    return Pong(
        time=utc_now(),
        boot=services.boot,
        agent_version=services.agent_version,
        **echo(request, services.node_id),
    )
