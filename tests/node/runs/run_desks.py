"""A node's parts without daemon and broker, whose jobs are begun by nobody: for what is decided before a start."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.clock import seconds_from_now
from fedmon.common.ids import new_id
from fedmon.common.settings.sources import load_node
from fedmon.common.wire import codec, topics
from fedmon.common.wire.envelope import Request
from fedmon.common.wire.runs import Run
from fedmon.node.daemon import LocalNode
from fedmon.node.folder import NodeFolder
from fedmon.node.requests.dialect import Outgoing
from tests.support.node_process import CELLS, write_node_folder
from tests.support.waiting import wait_until

PLAN = b"""from fedmon import TrainingPlan


class Rows(TrainingPlan):
    def run(self, context):
        context.report(loss=0.5)
        return {"rows": len(list(context.dataset.rows()))}
"""
ALICE = "alice"


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
        if is_ready:
            self.runs.start_up()
            wait_until(lambda: self.runs.confinement.is_known, what="the level of confinement")
        self.runs.take_up()

    def ask(self, request: Request) -> dict[str, Any]:
        """Return the reply to a request."""
        before = len(self.sent)
        node_id = self.settings.id
        directed = msgspec.structs.replace(request, node_id=node_id)
        self.local.router.receive(topics.command(request.researcher_id, node_id), msgspec.json.encode(directed))
        replies = [msgspec.json.decode(each.payload) for each in self.sent[before:]]
        return next(reply for reply in replies if reply.get("id") == request.id)

    def approve(self, source: bytes = PLAN, name: str = "rows") -> str:
        """Take a plan in as the owner's own, unless it is there, and return its digest."""
        known = self.local.registers.plans.find(digest(source))
        if known is not None:
            return known.sha256
        return self.local.registers.plans.register(source, name=name).sha256

    def offer(self, name: str = "cells", *tags: str) -> str:
        """Offer a table, unless it is there, and return the id of the dataset."""
        known = [each for each in self.local.registers.datasets.all() if each.name == name]
        if known:
            return known[0].dataset_id
        table = self.path / f"{name}.csv"
        table.write_text(CELLS)
        return self.local.registers.datasets.add(table, name=name, data_type="csv", tags=tags or (name,)).dataset_id

    def work(self) -> None:
        """Do what was handed over, and look after all jobs."""
        while self.handed_over:
            self.handed_over.pop(0)()
        self.runs.tick()

    def over(self, job_id: str) -> dict[str, Any]:
        """Return what is said first when a job has ended: its outcome, or that it is held."""

        def found() -> dict[str, Any] | None:
            self.work()
            return next((each for each in self.outcomes() if each["job"]["job_id"] == job_id), None)

        told = wait_until(found, what=f"the end of job {job_id}")
        assert told is not None
        return told

    def outcomes(self) -> list[dict[str, Any]]:
        """Return the outcomes that were sent so far."""
        found = [msgspec.json.decode(each.payload) for each in self.sent]
        return [each for each in found if each["command"] == "job-outcome"]

    def scalars(self) -> list[dict[str, Any]]:
        """Return the scalars that were sent so far."""
        found = [msgspec.json.decode(each.payload) for each in self.sent]
        return [scalar for each in found if each["command"] == "run-scalars" for scalar in each["scalars"]]

    def audit(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of the audit about one event."""
        lines = (self.path / "audit.jsonl").read_text().splitlines()
        return [line for line in map(msgspec.json.decode, lines) if line["event"] == event]

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
    """Open a node that obeys all researchers, by default one that knows its sandbox; settings of the folder stay."""
    if not (path / "node.toml").exists():
        write_node_folder(path, node_id="hospital", url="mqtt://127.0.0.1:1", **sections)
    node = Bench(path, is_ready=is_ready)
    try:
        yield node
    finally:
        node.runs.close()
        node.local.fetcher.stop(0.5)
        node.local.close()


def envelope(researcher_id: str = ALICE) -> dict[str, Any]:
    """Return what every request carries."""
    return {
        "researcher_id": researcher_id,
        "id": new_id(),
        "session": "s",
        "sequence": 1,
        "expires": seconds_from_now(60.0),
    }


def run(sha256: str, *, job_id: str = "", by: str = ALICE, **fields: Any) -> Run:
    """Return a request to run a plan."""
    return Run(job_id=job_id or new_id(), sha256=sha256, **fields, **envelope(by))
