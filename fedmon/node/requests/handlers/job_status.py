"""`job-status`: how one job stands, or all jobs of the researcher who asks."""

from __future__ import annotations

from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.runs import JobStatus
from fedmon.node.runs.refusal import switched_off
from fedmon.node.services import Services


def answer(request: JobStatus, services: Services) -> Reply:
    """Tell how the jobs stand, with as much of scalars and output as one message holds. Raises RunRefusedError."""
    if services.runs is None:
        raise switched_off()
    return services.runs.status(request)
