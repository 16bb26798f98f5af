"""Nodes whose release gate is closed: their runs, and what their owner decides about results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.ids import new_id
from fedmon.common.wire.grants import Grant
from fedmon.node.folder import NodeFolder
from fedmon.node.owner.commands import OwnerCommands
from fedmon.node.runs.service import Runs
from tests.node.owner.owner_desks import running_node
from tests.node.runs.run_desks import Bench, run
from tests.support.waiting import wait_until

MANY_JOBS: dict[str, Any] = {"max_jobs": 64, "sandbox": "limits"}
QUIET: dict[str, Any] = {"enabled": False}


def granted(node: Bench, **terms: Any) -> None:
    """Have the runs of a node admitted with a grant of these terms."""
    admitted = Runs._admitted

    def with_grant(request: Any, *, running: int) -> Any:
        grant = Grant(grant_id="g", sha256=request.sha256, **terms)
        return msgspec.structs.replace(admitted(node.runs, request, running=running), grant=grant)

    vars(node.runs)["_admitted"] = with_grant


def offered(node: Bench, table: str, name: str = "patients") -> str:
    """Offer a table by its text, and return the id of the dataset."""
    path = node.path / f"{name}.csv"
    path.write_text(table)
    return node.local.registers.datasets.add(path, name=name, data_type="csv", tags=(name,)).dataset_id


def begun(node: Bench, source: bytes, dataset_id: str | None = None, **fields: Any) -> str:
    """Begin a job of a plan, and return its id."""
    request = run(node.approve(source), job_id=new_id(), dataset_id=dataset_id, **fields)
    reply = node.ask(request)
    assert reply["command"] == "run", reply
    return request.job_id


def outcome(node: Bench, job_id: str, *, held: bool = False) -> dict[str, Any]:
    """Return the outcome of a job, or that it is held, once that was sent."""
    name = f"job-{job_id}-held" if held else f"job-{job_id}"

    def found() -> dict[str, Any] | None:
        node.work()
        return next((each for each in node.outcomes() if each["id"] == name), None)

    told = wait_until(found, what=f"the message {name}")
    assert told is not None
    return told


def owner(node: Bench) -> OwnerCommands:
    """Return the commands of the owner of a running node."""
    running = running_node(runs=node.runs, live=lambda: None)
    folder = NodeFolder.open(Path(node.path))
    return OwnerCommands(folder, node.settings, node.local.registers, environ={}, boot=lambda: 1, running=running)
