"""Three hospitals with the demo's tables, for what the documentation shows over a federation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fedmon.node.owner.control import call_daemon
from fedmon.researcher.federation import Federation
from tests.docs.examples import EXAMPLES, TABLES
from tests.support.brokers import Broker
from tests.support.node_process import NodeProcess, write_node_folder
from tests.support.shell_here import document_here
from tests.support.waiting import wait_until


@pytest.fixture(scope="package")
def hospital_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds those of the three nodes."""
    return tmp_path_factory.mktemp("hospitals")


@pytest.fixture(scope="package")
def hospitals(hospital_folder: Path) -> Iterator[str]:
    """Three nodes whose owners have approved the three plans; the URL of their broker."""
    folder = hospital_folder
    with ExitStack() as stack:
        broker = Broker("embedded", folder / "broker")
        stack.callback(broker.stop)
        runs = {"sandbox": "limits", "max_jobs": 4}
        for node_id, table in TABLES.items():
            made = write_node_folder(folder / node_id, url=broker.url, runs=runs)
            (made / table.name).write_bytes(table.read_bytes())
            words = ("--name", "breast-cancer", "--tags", "breast-cancer", "--dir", made)
            document_here("node", "dataset", "add", made / table.name, *words)
            stack.enter_context(NodeProcess(made))
        with Federation(broker.url, folder=folder / "researcher", timeout_s=30.0) as fed:
            wait_until(lambda: set(fed.nodes().online) >= set(TABLES), what="three nodes online")
            for plan in sorted((EXAMPLES / "plans").glob("*.py")):
                approve(fed, plan, folder, *TABLES)
        yield broker.url


def approve(fed: Federation, plan: Path, folder: Path, *hospitals: str) -> None:
    """Ask all owners to approve a plan, and have those of some hospitals do so."""
    asked = fed.approve(plan).ok
    for node_id in hospitals:
        sha256, terms = asked[node_id].sha256, {"researchers": ["*"]}
        call_daemon(folder / node_id, "plan-decide", plan=sha256, status="approved", terms=terms)
