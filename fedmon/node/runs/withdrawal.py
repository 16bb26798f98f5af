"""An owner takes the approval of a plan back: what runs of it ends, with and without a daemon."""

from __future__ import annotations

import logging
from pathlib import Path

from fedmon.common.errors import FedmonError
from fedmon.common.wire.runs import JobState
from fedmon.node.runs.folder import JobFolder
from fedmon.node.runs.register import JobRegister

logger = logging.getLogger(__name__)

WITHDRAWN = "the owner of the node took the approval of this plan back"


def stop_jobs_of(sha256: str, register: JobRegister, runs_dir: Path) -> None:
    """Stop the jobs of a plan that go on while no daemon does; the next one tells their researchers."""
    for record in register.going_on():
        if record.job.sha256 == sha256:
            try:
                JobFolder(runs_dir / record.job.job_id).stop(JobState.PLAN_REJECTED, WITHDRAWN)
            except FedmonError as problem:
                logger.error("job %s cannot be stopped: %s", record.job.job_id, problem)  # noqa: TRY400
