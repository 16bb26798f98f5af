"""Real jobs for tests of keepers: a launcher, the interpreter of the tests, and plans given as the body of ``run``."""

from __future__ import annotations

import atexit
import contextlib
import functools
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fedmon.common.wire.runs import Level
from fedmon.node.collectors.job.process import Birth, find_birth
from fedmon.node.runs.confinement import lay_out
from fedmon.node.runs.folder import Ending, JobFolder, JobOrder, Limits
from fedmon.node.runs.launcher import Launcher
from fedmon.node.runs.sandbox.interpreter import look_at
from tests.support.waiting import wait_until

MIB = 2**20
_LIMITS: Mapping[str, Any] = {
    "cpu_s": 20.0,
    "wall_s": 60.0,
    "memory_bytes": 512 * MIB,
    "processes": 64,
    "output_bytes": 4 * MIB,
    "tmp_bytes": 8 * MIB,
}


class KeptJobs:
    """Launches jobs below a folder, and waits for what becomes of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runtime = folder / "runtime"
        lay_out(self.runtime)
        self.interpreter = look_at(None)
        self.launcher = Launcher(lambda _: None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.launcher.stop()

    def order(self, job_id: str, *, level: Level | None = "landlock", **changes: Any) -> JobOrder:
        limits = {name: changes.pop(name) for name in list(changes) if name in _LIMITS}
        given: dict[str, Any] = {"interpreter": self.interpreter, "node_id": "node-1", "name": "plan.py"}
        return JobOrder(
            job_id=job_id,
            folder=str(self.folder / job_id),
            runtime=str(self.runtime),
            limits=Limits(**{**_LIMITS, **limits}),
            level=level,
            trace_bytes=65_536,
            **{**given, **changes},
        )

    def launch(self, body: str, order: JobOrder) -> JobFolder:
        self.launcher.launch(order, plan_of(body))
        return JobFolder(Path(order.folder))

    def run(self, body: str, job_id: str = "job", **options: Any) -> tuple[Ending, JobFolder]:
        folder = self.launch(body, self.order(job_id, **options))
        return self.ending(folder), folder

    def ending(self, folder: JobFolder) -> Ending:
        """Wait for the ending of a job."""
        return wait_until(folder.ending, timeout_s=90.0, what=f"the ending of {folder.path}")


@functools.cache
def kept_jobs() -> KeptJobs:
    """Return a launcher for jobs of all tests of this process."""
    running = contextlib.ExitStack()
    atexit.register(running.close)
    folder = running.enter_context(tempfile.TemporaryDirectory(prefix="fedmon-plans-", ignore_cleanup_errors=True))
    return running.enter_context(KeptJobs(Path(folder)))


def plan_of(body: str, *, imports: str = "os, signal, sys, time") -> bytes:
    """Return a plan whose ``run(self, context)`` has this body; ``imports`` may be empty."""
    head = f"import {imports}\n" if imports else ""
    head += "from fedmon import TrainingPlan\nclass Plan(TrainingPlan):\n    def run(self, context):\n"
    return (head + textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8) + "\n").encode()


def left_of(job_id: str) -> list[Birth]:
    """Return every process of this machine that was started for a job and lives."""
    mark, found = f"FEDMON_JOB_ID={job_id}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(find_birth(int(folder.name)))
    return [each for each in found if each is not None and not each.is_zombie]
