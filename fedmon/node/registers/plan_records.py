"""What is known of one training plan, and what an owner's decision about it means for others."""

from __future__ import annotations

import datetime
import enum

import msgspec

from fedmon.common.ids import new_id
from fedmon.common.wire.messages import PlanDecision, PlanStatus


class PlanType(enum.Enum):
    """How a plan came to this node."""

    REQUESTED = "requested"
    REGISTERED = "registered"
    DEFAULT = "default"


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One training plan; approval belongs to the bytes of ``sha256`` and to nothing else.

    ``checked`` tells whether a worker has read it; then ``minified_sha256`` is the digest of the code without layout
    and comments, or ``problem`` says why there is none. ``same_code_as`` is the id of another plan with the same
    minified digest: a hint for the reader, never a reason to approve. ``researcher_id`` asked first.
    """

    plan_id: str
    name: str
    description: str
    sha256: str
    size_bytes: int
    checked: bool
    minified_sha256: str | None
    same_code_as: str | None
    problem: str
    type: PlanType
    status: PlanStatus
    note: str
    researcher_id: str | None
    created: datetime.datetime
    modified: datetime.datetime
    registered: datetime.datetime | None
    last_action: datetime.datetime
    decided: datetime.datetime | None

    @property
    def hint(self) -> str:
        """Say which other plan holds the same code; empty when none does."""
        return f"same code as plan {self.same_code_as}, other layout" if self.same_code_as else ""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A plan as it stands after a decision or a finding, and the researchers that asked for it and must hear of it."""

    plan: PlanRecord
    researchers: tuple[str, ...]
    time: datetime.datetime

    def messages(self, *, node_id: str, boot: int) -> tuple[PlanDecision, ...]:
        """Return one message for the outbox to each researcher that asked for these bytes."""
        return tuple(
            PlanDecision(
                node_id=node_id,
                researcher_id=researcher_id,
                id=new_id(),
                boot=boot,
                plan_id=self.plan.plan_id,
                sha256=self.plan.sha256,
                name=self.plan.name,
                status=self.plan.status,
                note=self.plan.note,
                problem=self.plan.problem,
                decided=self.time,
            )
            for researcher_id in self.researchers
        )


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the check of a plan's code found: the digest of its minified form, or the problem.

    Code that ``parses`` can still have a problem, when its minified form takes too much to make.
    """

    minified_sha256: str | None = None
    problem: str = ""
    parses: bool = True
