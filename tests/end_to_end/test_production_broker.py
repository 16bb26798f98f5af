"""The main job on the production broker: users, TLS, access lists, and a plan that goes through the repository."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.broker.users import Role
from fedmon.common.clock import Deadline
from fedmon.common.errors import ConflictError
from fedmon.common.wire import topics
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.common.wire.messages import PlanDecision
from fedmon.researcher.federation import Federation
from fedmon.researcher.roster import NodeState
from tests.broker.production import Production
from tests.broker.shell import foreground
from tests.support.node_process import NodeProcess, plain_environment, write_node_folder
from tests.support.shell import Foreground
from tests.support.shell_here import document_here
from tests.support.waiting import wait_until


@pytest.fixture
def production(tmp_path: Path) -> Iterator[Production]:
    users = {"north": Role.NODE, "alice": Role.RESEARCHER, "grafana": Role.MONITOR, "cluster": Role.JOB}
    with Production(tmp_path / "broker", users | {"operator": Role.ADMIN}) as running:
        yield running


@pytest.fixture
def repository(production: Production, tmp_path: Path) -> Iterator[Foreground]:
    certificates = production.folder.path / "certificates"
    tls = ("--certificate", certificates / "broker.crt", "--key", certificates / "broker.key", "--host", "localhost")
    with foreground("repository", "start", "--port", "0", "--data-dir", tmp_path / "files", *tls) as running:
        yield running


@pytest.fixture
def node(production: Production, repository: Foreground, tmp_path: Path) -> Iterator[NodeProcess]:
    folder = write_node_folder(
        tmp_path / "north",
        url=production.url("north"),
        researchers=["alice"],
        broker=production.broker_settings("north"),
        repository={"allowed_urls": [repository.facts["url"]]},
    )
    with NodeProcess(folder, environ=plain_environment(SSL_CERT_FILE=str(production.ca_file))) as running:
        yield running


@pytest.fixture
def federation(
    production: Production, repository: Foreground, tmp_path: Path, node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Federation]:
    for key in ("url", "token_file"):
        monkeypatch.setenv(f"FEDMON_REPOSITORY_{key.upper()}", repository.facts[key])
    assert node.alive()
    with production.researcher(tmp_path) as fed:
        wait_until(lambda: fed.nodes().online, what="the node online")
        yield fed


def test_ask_watch_approve_and_see_a_node_go(
    federation: Federation, production: Production, node: NodeProcess, tmp_path: Path
) -> None:
    decisions: list[PlanDecision] = []
    federation.on("decision", decisions.append)
    plan = tmp_path / "plan.py"
    plan.write_text("answer = 42\n")

    pings, datasets, approvals = federation.ping(), federation.datasets(), federation.approve(plan)
    with federation.monitor(interval_s=0.2) as watch:
        samples = [watch.next(timeout_s=60) for _ in range(3)]
    sha256 = approvals.ok["north"].sha256
    document_here("node", "plan", "approve", sha256, "--dir", node.folder)
    wait_until(lambda: decisions, what="the decision")
    with production.researcher(tmp_path, "operator") as operator:
        listed = operator.nodes()
        with pytest.raises(ConflictError, match="'north' is online"):
            operator.forget("north", timeout_s=30)
    node.kill()
    wait_until(lambda: federation.nodes()["north"].state is NodeState.OFFLINE, what="the node offline")

    assert [list(pings.ok), list(datasets.ok), list(approvals.ok)] == [["north"]] * 3
    assert None not in samples
    assert listed.circumstances.settled
    assert [(decision.node_id, decision.sha256) for decision in decisions] == [("north", sha256)]


def test_the_account_of_batch_jobs_hears_no_plan(
    federation: Federation, production: Production, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.py"
    plan.write_text("answer = 'CANARY'\n")
    with production.party("cluster", "4711-n1") as job:
        job.subscribe("#", topics.BROADCAST_FILTER, topics.command_filter("job-4711-n1"))

        approved, status = federation.approve(plan), federation.plan_status(plan)
        federation.ping()
        job.wait_for(topics.broadcast("alice"))
        federation.ping()
        job.wait(lambda: len(job.heard) > 1)

    assert [list(approved.ok), list(status.ok)] == [["north"]] * 2
    heard = b"".join(payload for _topic, payload in job.heard)
    assert b"CANARY" not in heard
    assert approved.ok["north"].sha256.encode() not in heard


def test_a_plan_too_large_for_a_message_goes_through_the_repository(
    federation: Federation,
    production: Production,
    node: NodeProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(production.ca_file))
    plan = tmp_path / "plan.py"
    plan.write_text(f"value = {'x' * MAX_PAYLOAD_BYTES!r}\n")

    asked = federation.approve(plan, timeout_s=60)
    assert asked.ok, asked
    shown = document_here("node", "plan", "show", asked.ok["north"].sha256, "--dir", node.folder)

    assert shown["source"] == plan.read_text()


@pytest.mark.parametrize("duration_s", [1.5, pytest.param(30.0, marks=pytest.mark.soak)])
def test_a_monitor_that_takes_client_ids_costs_no_reply(
    federation: Federation, production: Production, node: NodeProcess, duration_s: float
) -> None:
    stop, taken = threading.Event(), 0

    def steal() -> None:
        nonlocal taken
        for client_id in itertools.cycle(("north", "alice-main", "alice", "north-main")):
            if stop.is_set():
                return
            with production.party("grafana", client_id):
                taken += 1
                stop.wait(0.15)

    thief, until = threading.Thread(target=steal), Deadline(duration_s)
    thief.start()
    try:
        while not until.passed() or taken < 8:
            assert list(federation.ping(timeout_s=10.0).ok) == ["north"]
    finally:
        stop.set()
        thief.join(60)

    assert (federation.status().last_error, federation.nodes()["north"].state) == ("", NodeState.ONLINE)
    status = document_here("node", "status", "--dir", node.folder)
    assert (status["live"]["last_error"], status["live"]["flapping"]) == ("", "")
