"""The registers of a node whose daemon is stopped, opened by the shell for one command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from fedmon.common.settings import load_node
from fedmon.node.boot import read_boot
from fedmon.node.folder import NodeFolder
from fedmon.node.owner.desk import Desk
from fedmon.node.registers.database import Database
from fedmon.node.registers.datasets import DatasetRegister
from fedmon.node.registers.plans import PlanRegister
from fedmon.node.registers.restore import restore
from fedmon.node.requests.audit import Audit
from fedmon.node.requests.outbox import Outbox
from fedmon.node.runs.register import JobRegister
from fedmon.node.runs.withdrawal import stop_jobs_of


@contextlib.contextmanager
def open_desk(folder: NodeFolder, environ: Mapping[str, str]) -> Iterator[Desk]:
    """Open the registers of a folder; the caller holds its lock. What is decided waits in the outbox for the daemon."""
    settings = load_node(folder.path, environ)
    with Audit(folder.path) as audit, Database(folder.database_file, must_exist=audit.end[0] > 0) as database:
        jobs = JobRegister(database)
        desk = Desk(
            folder=folder,
            settings=settings,
            environ=environ,
            database=database,
            datasets=DatasetRegister(database),
            plans=PlanRegister(database, folder.plans_dir, audit=audit, max_plan_bytes=settings.max_plan_bytes),
            outbox=Outbox(database),
            audit=audit,
            boot=lambda: read_boot(folder.boot_file),
            plan_withdrawn=lambda sha256: stop_jobs_of(sha256, jobs, folder.runs_dir),
        )
        restore(desk, node_id=settings.id, boot=desk.boot())
        yield desk
