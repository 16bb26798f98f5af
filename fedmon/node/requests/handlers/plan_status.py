"""`training-plan-status`: where a plan stands, by the digest of its bytes."""

from __future__ import annotations

from fedmon.common.wire.messages import TrainingPlanStatus, TrainingPlanStatusReply
from fedmon.node.requests.handlers.envelope import echo
from fedmon.node.services import Services


def answer(request: TrainingPlanStatus, services: Services) -> TrainingPlanStatusReply:
    """Tell what the owner decided about these bytes; the status is null when they are not here."""
    plan = services.plans.find(request.sha256)
    if plan is None:
        return TrainingPlanStatusReply(sha256=request.sha256, status=None, **echo(request, services.node_id))
    return TrainingPlanStatusReply(
        sha256=plan.sha256,
        status=plan.status,
        plan_id=plan.plan_id,
        name=plan.name,
        note=plan.note,
        decided=plan.decided,
        **echo(request, services.node_id),
    )
