"""What the handlers of a node work with: its registers, its rules, and its metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from fedmon.common.clock import utc_now
from fedmon.common.errors import FedmonError
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.common.wire.messages import PlanDecision
from fedmon.common.wire.runs import Job, JobsReply, JobStatus, Run, Stop
from fedmon.node.measure.leases import LeaseTable
from fedmon.node.measure.pipeline import Pipeline
from fedmon.node.registers.database import Database
from fedmon.node.registers.datasets import DatasetRegister
from fedmon.node.registers.plan_records import Decision
from fedmon.node.registers.plans import PlanRegister
from fedmon.node.requests.audit import Audit
from fedmon.node.requests.effects import Effects
from fedmon.node.requests.outbox import Outbox
from fedmon.node.requests.policy import Policy

PAGE_BYTES = MAX_PAYLOAD_BYTES - 8_000
"""What the datasets of one page may take; the rest of a message is for the envelope."""


class RunsDesk(Protocol):
    """What runs approved plans; see `fedmon.node.runs.service`."""

    def start(self, request: Run) -> Job:
        """Take a job in, inside the caller's transaction. Raises RunRefusedError and ConflictError."""
        ...

    def stop(self, request: Stop) -> Job:
        """Have a job stopped. Raises RunRefusedError."""
        ...

    def status(self, request: JobStatus) -> JobsReply:
        """Tell how jobs stand. Raises RunRefusedError."""
        ...


@dataclasses.dataclass(kw_only=True)
class Services:
    """The parts of one node; all belong to the thread that runs the router.

    ``check_plan(sha256)`` has a new plan read by a worker; ``fetch(url, sha256, done)`` fetches a plan's bytes and
    calls ``done(bytes | FedmonError)`` on the router's thread, and returns False when too many wait already.
    ``page_bytes`` is what the datasets of one reply may take. ``runs`` is None on a node that runs no plans.
    """

    node_id: str
    boot: int
    agent_version: str
    database: Database
    datasets: DatasetRegister
    plans: PlanRegister
    outbox: Outbox
    effects: Effects
    policy: Policy
    audit: Audit
    leases: LeaseTable
    pipeline: Pipeline
    check_plan: Callable[[str], object] = lambda _sha256: None
    fetch: Callable[[str, str | None, Callable[[bytes | FedmonError], None]], bool] = lambda _url, _sha256, _done: False
    page_bytes: int = PAGE_BYTES
    runs: RunsDesk | None = None

    def announce(self, decision: Decision) -> tuple[PlanDecision, ...]:
        """Put the messages of a decision into the outbox; inside the transaction that made it."""
        messages = decision.messages(node_id=self.node_id, boot=self.boot)
        for message in messages:
            self.outbox.add(message)
        return messages

    def purge(self) -> None:
        """Forget stored replies and undelivered results whose time is over."""
        self.effects.purge(now=utc_now())
        self.outbox.expire(now=utc_now())
