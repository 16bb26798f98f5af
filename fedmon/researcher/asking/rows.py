"""The columns that tables show of each kind of reply."""

from __future__ import annotations

from fedmon.common.wire.messages import ApprovalReply, DatasetsReply, Pong, TrainingPlanStatusReply
from fedmon.researcher.asking.tables import Row

SHOWN_DIGEST = 12


def pong(reply: Pong) -> list[Row]:
    """Show a sign of life."""
    return [{"agent": reply.agent_version, "boot": reply.boot}]


def datasets(reply: DatasetsReply) -> list[Row]:
    """Show one row a dataset."""
    return [
        {
            "name": dataset.name,
            "type": dataset.data_type,
            "tags": dataset.tags,
            "shape": None if dataset.shape is None else " x ".join(map(str, dataset.shape)),
            "description": dataset.description,
            "dataset_id": dataset.dataset_id,
        }
        for dataset in reply.datasets
    ]


def approval(reply: ApprovalReply) -> list[Row]:
    """Show where a plan stands after it was handed in."""
    return [{"plan": reply.status.value, "note": reply.note, "sha256": reply.sha256[:SHOWN_DIGEST]}]


def plan_status(reply: TrainingPlanStatusReply) -> list[Row]:
    """Show where a plan stands."""
    status = "not known here" if reply.status is None else reply.status.value
    return [
        {
            "plan": status,
            "name": reply.name,
            "decided": reply.decided,
            "note": reply.note,
            "sha256": reply.sha256[:SHOWN_DIGEST],
        }
    ]
