"""Two real nodes with a dataset and an approved plan each, and a file repository, for a researcher's runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fedmon.common.settings.values import RepositorySettings, ResearcherSettings
from fedmon.researcher.federation import Federation
from tests.support.brokers import Broker
from tests.support.environment import researcher_environment
from tests.support.node_process import NodeProcess, write_node_with_cells
from tests.support.shell import foreground
from tests.support.shell_here import document_here
from tests.support.waiting import wait_until

PLAN = """
import fedmon


class {name}(fedmon.TrainingPlan):
    arguments = {{"reports": int, "spin": [True, "a", "b"], "fails": str}}
    scalars = ("loss",)

    def run(self, context):
        print("hello from", context.node_id, flush=True)
        for step in range(context.arguments.get("reports", 0)):
            context.report(step=step, loss=1.0 / (step + 1))
        while context.arguments.get("spin") in (True, context.node_id):
            pass
        if context.arguments.get("fails") == context.node_id:
            raise ValueError("no column radius")
        rows = len(list(context.dataset.rows())) if context.dataset else 0
        return {{"rows": rows, "mean": 2.0, **{{name: value + 1 for name, value in context.inputs.items()}}}}
"""


class TwoNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes a and b, of which b lets leave what plans print; ``plan`` is approved on both. The researcher is alice."""

    folder: Path
    plan: Path
    broker: Broker
    fed: Federation
    processes: dict[str, NodeProcess]

    @property
    def url(self) -> str:
        """The URL of the broker."""
        return self.broker.url

    def environ(self) -> dict[str, str]:
        """Return the environment of shell verbs of the researcher."""
        return researcher_environment(self.url, self.folder / "shell")

    def settings(self, name: str) -> ResearcherSettings:
        """Return the settings of another process of the researcher, with a folder of its own."""
        return msgspec.structs.replace(self.fed.settings, folder=self.folder / name)

    def decide(self, node_id: str, what: str, sha256: str) -> None:
        """Decide about a plan as its owner does."""
        document_here("node", "plan", what, sha256, "--dir", self.folder / node_id)

    def plan_named(self, name: str) -> Path:
        """Write a plan that nobody has seen."""
        path = self.folder / f"{name.lower()}.py"
        path.write_text(PLAN.format(name=name))
        return path


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[TwoNodes]:
    """Run two nodes, their broker and the repository in a folder, until the end of the block."""
    with contextlib.ExitStack() as opened:
        words = ("broker", "repository", "start", "--port", "0", "--data-dir", folder / "files")
        facts = opened.enter_context(foreground(*words)).facts
        url, token_file = facts["url"], facts["token_file"]
        broker = Broker("mosquitto", folder / "broker")
        opened.callback(broker.stop)
        nodes: dict[str, NodeProcess] = {}
        for node_id in ("a", "b"):
            home = write_node_with_cells(
                folder / node_id,
                url=broker.url,
                policy={"job_output": node_id == "b"},
                metrics={"interval_s": 0.2},
                repository={"url": url, "token_file": token_file, "allowed_urls": [url]},
            )
            nodes[node_id] = opened.enter_context(NodeProcess(home))
        repository = RepositorySettings(url=url, token_file=Path(token_file), allowed_urls=(url,))
        settings = ResearcherSettings(
            id="alice", broker=broker.settings, folder=folder / "alice", repository=repository
        )
        fed = opened.enter_context(Federation(settings=settings))
        wait_until(lambda: {"a", "b"} <= set(fed.nodes().online), what="two nodes")
        plan = folder / "echo.py"
        plan.write_text(PLAN.format(name="Echo"))
        found = TwoNodes(folder=folder, plan=plan, broker=broker, fed=fed, processes=nodes)
        sha256 = fed.approve(plan).ok["a"].sha256
        for node_id in nodes:
            found.decide(node_id, "approve", sha256)
        yield found
        for node in nodes.values():
            node.stop()
