"""A node's parts without daemon and broker, with its owner: what it is asked, and what becomes of its jobs."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fedmon.common.ids import new_id
from fedmon.common.settings.sources import load_node
from fedmon.common.wire import codec, topics
from fedmon.common.wire.envelope import Request
from fedmon.common.wire.grants import Grant
from fedmon.common.wire.runs import Run
from fedmon.node.daemon import LocalNode
from fedmon.node.folder import NodeFolder
from fedmon.node.owner.commands import OwnerCommands, RunningNode
from fedmon.node.registers.dataset_source import measure
from fedmon.node.registers.datasets import DatasetFields
from fedmon.node.requests.dialect import Outgoing
from fedmon.node.runs.folder import JobFolder
from fedmon.node.runs.register import JobRecord
from tests.node.owner.owner_desks import done, running_node
from tests.node.runs.kept_jobs import plan_of
from tests.support.envelopes import envelope
from tests.support.node_process import CELLS, audited, write_node_folder
from tests.support.waiting import wait_until

PLAN = plan_of("""
    context.report(loss=0.5)
    return {"rows": len(list(context.dataset.rows()))}
""")
ALICE = "alice"
MANY_JOBS: dict[str, Any] = {"max_jobs": 64, "sandbox": "limits"}
T = TypeVar("T")


def digest(content: bytes) -> str:
    """Return the SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()


class Bench:
    """One node: what it is told with `ask` is answered at once, and what it hands over is done by `work`."""

    def __init__(self, path: Path, *, is_ready: bool = True) -> None:
        self.handed_over: list[Callable[[], object]] = []
        self.is_full, self.refused = False, 0
        self.sent: list[Outgoing] = []
        self.settings = load_node(path, {})
        self.local = LocalNode(
            NodeFolder.open(path),
            self.settings,
            boot=lambda: 1,
            post=self._post,
            publish=lambda _payload: True,
            send=self._send,
        )
        self.path = path
        self.runs = self.local.runs
        self.runs.take_up()
        if is_ready:
            self.local.workers.start()
            self.wait(lambda: self.runs.confinement.found, what="the level of confinement")

    def ask(self, request: Request) -> dict[str, Any]:
        """Return the reply to a request."""
        before = len(self.sent)
        self.receive(request)
        return next(reply for reply in self.said[before:] if reply.get("id") == request.id)

    def receive(self, request: Request) -> None:
        """Receive a request that may be answered later."""
        node_id = self.settings.id
        directed = msgspec.structs.replace(request, node_id=node_id)
        self.local.router.receive(topics.command(request.researcher_id, node_id), msgspec.json.encode(directed))

    @property
    def said(self) -> list[dict[str, Any]]:
        """All messages that were sent so far."""
        return [msgspec.json.decode(each.payload) for each in self.sent]

    def owner(self, command: str, **args: Any) -> dict[str, Any]:
        """Run an owner's command at the running node."""
        local = self.local
        running = running_node(runs=self.runs, live=lambda: None, measuring=local.pipeline, follow=local.follow)
        return done(self.desk(running), command, **args)

    def desk(self, running: RunningNode | None = None) -> OwnerCommands:
        """Let the owner command, by default as at a stopped node."""
        folder, registers = NodeFolder.open(self.path), self.local.registers
        return OwnerCommands(folder, self.settings, registers, environ={}, running=running)

    def approve(self, source: bytes = PLAN, name: str = "rows", **terms: Any) -> str:
        """Register a plan once, without limits unless ``terms`` are given; return its digest."""
        plans, sha256 = self.local.registers.plans, digest(source)
        if plans.find(sha256) is None:
            grant = Grant(grant_id=new_id(), sha256=sha256, **terms) if terms else None
            plans.register(source, name=name, grant=grant)
        return sha256

    def offer(self, name: str = "cells", *tags: str, table: str = CELLS) -> str:
        """Offer a table, unless it is there, and return the id of the dataset."""
        known = [each for each in self.local.registers.datasets.all() if each.name == name]
        if known:
            return known[0].dataset_id
        path = self.path / f"{name}.csv"
        path.write_text(table)
        fields = DatasetFields(name=name, data_type="csv", tags=tags or (name,))
        return self.local.registers.datasets.add(fields, measure(path, "csv")).dataset_id

    def begin(self, source: bytes = PLAN, dataset_id: str | None = None, **fields: Any) -> str:
        """Begin a job of a plan, which is approved unless it is there, and return its id."""
        request = run(self.approve(source), dataset_id=dataset_id, **fields)
        reply = self.ask(request)
        assert reply["command"] == "run", reply
        return request.job_id

    def work(self) -> None:
        """Do what was handed over, and look after all jobs."""
        while self.handed_over:
            self.handed_over.pop(0)()
        self.runs.tick()

    def wait(self, condition: Callable[[], T | None], *, what: str) -> T:
        """Work until a condition is true, and return its value."""

        def found() -> T | None:
            self.work()
            return condition()

        return wait_until(found, what=what)

    def files(self, job_id: str) -> JobFolder:
        """Return the folder of a job."""
        return JobFolder(self.path / "runs" / job_id)

    def over(self, job_id: str) -> dict[str, Any]:
        """Return what is said first when a job has ended: its outcome, or that it is held."""
        return self._told(f"job-{job_id}", f"job-{job_id}-held")

    def held(self, job_id: str) -> dict[str, Any]:
        """Return what is said when the result of a job is held."""
        return self._told(f"job-{job_id}-held")

    def outcome(self, job_id: str) -> dict[str, Any]:
        """Return the outcome of a job, which may have been held before."""
        return self._told(f"job-{job_id}")

    def _told(self, *ids: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((each for each in self.outcomes() if each["id"] in ids), None)

        return self.wait(found, what=f"the message {' or '.join(ids)}")

    def concluded(self, job_id: str) -> JobRecord:
        """Return the record of a job that is over, even if no outcome was sent."""

        def found() -> JobRecord | None:
            record = self.runs.register.find(job_id)
            return record if record is not None and record.job.state.is_final else None

        return self.wait(found, what=f"the end of job {job_id}")

    def outcomes(self) -> list[dict[str, Any]]:
        """Return the outcomes that were sent so far."""
        return [each for each in self.said if each["command"] == "job-outcome"]

    def scalars(self) -> list[dict[str, Any]]:
        """Return the scalars that were sent so far."""
        return [scalar for each in self.said if each["command"] == "run-scalars" for scalar in each["scalars"]]

    def audit(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of the audit about one event."""
        return audited(self.path, event)

    def _post(self, job: Callable[[], object]) -> bool:
        if self.is_full:
            self.refused += 1
        else:
            self.handed_over.append(job)
        return not self.is_full

    def _send(self, outgoing: Outgoing) -> bool:
        codec.decode_reply(outgoing.payload)
        self.sent.append(outgoing)
        return True


@contextlib.contextmanager
def bench(path: Path, *, is_ready: bool = True, **sections: Any) -> Iterator[Bench]:
    """Open a node that obeys all researchers, by default one that knows its sandbox and measures nothing.

    Settings of the folder stay.
    """
    if not (path / "node.toml").exists():
        write_node_folder(path, node_id="hospital", **({"runs": {}, "metrics": {"enabled": False}} | sections))
    node = Bench(path, is_ready=is_ready)
    try:
        yield node
    finally:
        node.runs.close()
        node.local.workers.stop()
        node.local.close()


def run(sha256: str, *, job_id: str = "", by: str = ALICE, **fields: Any) -> Run:
    """Return a request to run a plan."""
    return Run(job_id=job_id or new_id(), sha256=sha256, **fields, **envelope(by))
