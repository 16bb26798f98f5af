"""`ack`: results of the outbox are safe with their researcher."""

from __future__ import annotations

from fedmon.common.wire.messages import Ack
from fedmon.node.services import Services


def take(request: Ack, services: Services) -> None:
    """Drop what this researcher has; an ack has no reply."""
    services.outbox.ack(request.researcher_id, request.ids)
