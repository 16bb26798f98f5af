"""Two real nodes with a dataset and an approved plan, and a file repository, for the tests of runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from fedmon.common.settings.values import RepositorySettings, ResearcherSettings
from fedmon.researcher.federation import Federation
from tests.broker.shell import foreground
from tests.support.brokers import Broker
from tests.support.environment import researcher_environment
from tests.support.node_process import NodeProcess, write_node_with_cells
from tests.support.shell_here import document_here
from tests.support.waiting import wait_until

PLAN = '''
import fedmon


class Echo(fedmon.TrainingPlan):
    """Returns what it was given."""

    arguments = {"reports": int, "spin": bool, "fails": str}
    scalars = ("loss",)

    def run(self, context):
        print("hello from", context.node_id, flush=True)
        for step in range(context.arguments.get("reports", 0)):
            context.report(step=step, loss=1.0 / (step + 1))
        if "spin" in context.arguments:
            while True:
                pass
        if context.arguments.get("fails") == context.node_id:
            raise ValueError("no column radius")
        given = {name: value * 2 for name, value in context.inputs.items()}
        return {"rows": len(list(context.dataset.rows())) if context.dataset else None, **given}
'''


class RealNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes a and b, of which only b lets leave what plans print; the plan is approved on both."""

    url: str
    plan: Path
    folder: Path
    repository: RepositorySettings
    processes: dict[str, NodeProcess]

    def settings(self, name: str) -> ResearcherSettings:
        """Return the settings of a process of the researcher alice."""
        broker = Federation(self.url, folder=self.folder / "unused", researcher_id="alice").settings.broker
        return ResearcherSettings(id="alice", broker=broker, folder=self.folder / name, repository=self.repository)

    def environ(self) -> dict[str, str]:
        """Return the environment of shell verbs of the researcher alice."""
        return researcher_environment(self.url, self.folder / "shell")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNodes]:
    folder = tmp_path_factory.mktemp("nodes")
    plan = folder / "plan.py"
    plan.write_text(PLAN)
    with ExitStack() as open_parts:
        repository = open_parts.enter_context(
            foreground("repository", "start", "--port", "0", "--data-dir", folder / "files")
        )
        files = RepositorySettings(
            url=repository.facts["url"],
            token_file=Path(repository.facts["token_file"]),
            allowed_urls=(repository.facts["url"],),
        )
        broker = Broker("mosquitto", tmp_path_factory.mktemp("broker"))
        open_parts.callback(broker.stop)
        nodes: dict[str, NodeProcess] = {}
        for node_id in ("a", "b"):
            home = write_node_with_cells(
                folder / node_id,
                node_id=node_id,
                url=broker.url,
                policy={"job_output": node_id == "b"},
                repository={
                    "url": files.url,
                    "token_file": str(files.token_file),
                    "allowed_urls": list(files.allowed_urls),
                },
            )
            nodes[node_id] = open_parts.enter_context(NodeProcess(home))
        found = RealNodes(url=broker.url, plan=plan, folder=folder, repository=files, processes=nodes)
        with Federation(settings=found.settings("asker")) as fed:
            wait_until(lambda: {"a", "b"} <= set(fed.nodes()), what="two nodes")
            asked = fed.approve(plan)
            for node_id in ("a", "b"):
                document_here("node", "plan", "approve", asked.ok[node_id].plan_id, "--dir", folder / node_id)
        yield found
        for node in nodes.values():
            node.stop()
