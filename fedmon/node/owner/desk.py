"""What the owner's commands work on: the registers of one node, and whom to tell of what was decided."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fedmon.common.settings import NodeSettings
from fedmon.node.folder import NodeFolder
from fedmon.node.measure.user_values import UserValues
from fedmon.node.registers.database import Database
from fedmon.node.registers.datasets import DatasetRegister
from fedmon.node.registers.jobs import JobWatches
from fedmon.node.registers.plan_records import Decision
from fedmon.node.registers.plans import PlanRegister
from fedmon.node.requests.audit import Audit
from fedmon.node.requests.outbox import Outbox
from fedmon.node.runs.register import JobRecord


class OwnRuns(Protocol):
    """What the owner can ask of the jobs of a running node; see `fedmon.node.runs.service`."""

    def record(self, job_id: str) -> JobRecord | None:
        """Return a job as it stands."""
        ...

    def records(self, *, limit: int) -> list[JobRecord]:
        """Return the newest jobs."""
        ...

    def stop_by_owner(self, job_id: str, *, by: str) -> JobRecord | None:
        """Have a job stopped."""
        ...


@dataclasses.dataclass(kw_only=True)
class Desk:
    """The registers of one node, owned by the thread that runs the commands.

    ``boot`` is the node's present boot. A daemon passes more: ``after_decision`` pushes what lies in the outbox for the
    decision's researchers, ``plan_withdrawn`` stops what runs of a plan (its digest) that is approved no longer,
    ``check_plan`` has a new plan (its digest) read by a worker, ``follow`` makes the node obey changed settings,
    ``live`` tells what only a running node knows (see `owner.status.Live`), ``user_values`` takes values of programs
    and ``jobs`` watches jobs, None where metrics are off, and ``runs`` knows the runs that go on.
    """

    folder: NodeFolder
    settings: NodeSettings
    environ: Mapping[str, str]
    database: Database
    datasets: DatasetRegister
    plans: PlanRegister
    outbox: Outbox
    audit: Audit
    boot: Callable[[], int]
    after_decision: Callable[[Decision], None] = lambda _decision: None
    plan_withdrawn: Callable[[str], object] = lambda _sha256: None
    check_plan: Callable[[str], object] = lambda _sha256: None
    follow: Callable[[NodeSettings], object] = lambda _settings: None
    live: Callable[[], Mapping[str, Any] | None] = lambda: None
    user_values: UserValues | None = None
    jobs: JobWatches | None = None
    runs: OwnRuns | None = None
