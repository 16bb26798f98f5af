"""A real node with a plan that its owner approved, behind a real broker, and a researcher who asks it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmon.common.ids import new_id
from tests.support.brokers import Broker
from tests.support.node_process import NodeProcess, audited, write_node_with_cells
from tests.support.raw_researcher import RawResearcher
from tests.support.shell_here import document_here
from tests.support.waiting import wait_until

PLAN = """import time

from fedmon import TrainingPlan


class Waits(TrainingPlan):
    arguments = {"seconds": float, "reports": range(1_000), "fail": bool}
    scalars = ("loss",)

    def run(self, context):
        context.report(loss=0.5, step=1)
        context.log("CANARY-LOG", level="ERROR")
        print("CANARY-OUT", flush=True)
        seconds, reports = context.arguments.get("seconds", 0), context.arguments.get("reports", 0)
        for number in range(reports):
            context.report(loss=0.5, step=number)
            time.sleep(seconds / reports)
        time.sleep(0 if reports else seconds)
        if "fail" in context.arguments:
            raise ValueError("CANARY-ERROR")
        return {"rows": len(list(context.dataset.rows()))}
"""
SHA256 = hashlib.sha256(PLAN.encode()).hexdigest()


class Site:
    """A node with a plan that its owner approved, and the researcher "raw"."""

    def __init__(self, broker: Broker, node: NodeProcess, researcher: RawResearcher) -> None:
        self.broker, self.node, self.researcher = broker, node, researcher
        self.folder = node.folder

    def run(self, **arguments: Any) -> str:
        """Begin a job, and return its id."""
        job_id = new_id()
        reply = self.researcher.ask("run", job_id=job_id, sha256=SHA256, tags=["cells"], arguments=arguments)
        assert reply["command"] == "run", reply
        return job_id

    def state(self, job_id: str) -> str:
        """Ask the node how a job stands."""
        return str(self.researcher.ask("job-status", job_id=job_id)["jobs"][0]["state"])

    def outcome(self, job_id: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait for the outcome of a job."""

        def found() -> list[dict[str, Any]]:
            return [each for each in self.researcher.heard("job-outcome") if each["job"]["job_id"] == job_id]

        return wait_until(found, timeout_s, what=f"the outcome of job {job_id}")[0]

    def owner(self, *words: str) -> dict[str, Any]:
        """Run a verb of the owner, and return what it printed."""
        found: dict[str, Any] = document_here("node", *words, "--dir", self.folder)
        return found

    def audit(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of the audit about one event."""
        return audited(self.folder, event)


def made(folder: Path, broker: Broker, **settings: Any) -> Path:
    """Make the folder of a node that approved the plan; ``settings`` are those of `write_node_with_cells`."""
    write_node_with_cells(folder, url=broker.url, **settings)
    plan = folder / "plan.py"
    plan.write_text(PLAN)
    document_here("node", "plan", "register", plan, "--name", "waits", "--dir", folder)
    return folder


@contextlib.contextmanager
def running(node: NodeProcess, broker: Broker) -> Iterator[Site]:
    """Start a node, and wait until it answers a researcher."""
    with node, RawResearcher(broker) as researcher:
        wait_until(lambda: researcher.answered("pong"), what="the node")
        yield Site(broker, node, researcher)
