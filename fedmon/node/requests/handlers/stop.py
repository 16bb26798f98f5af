"""`stop`: end a job of the researcher who asks."""

from __future__ import annotations

from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.runs import Stop, StopReply
from fedmon.node.requests.handlers.envelope import echo
from fedmon.node.runs.refusal import switched_off
from fedmon.node.services import Services


def answer(request: Stop, services: Services) -> Reply:
    """Have the job stopped once this is committed, and tell how it stands now. Raises RunRefusedError."""
    if services.runs is None:
        raise switched_off()
    return StopReply(job=services.runs.stop(request), **echo(request, services.node_id))
