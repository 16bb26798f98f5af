"""Who is asked and waited for: batch jobs never are, and each node is told that it is meant."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.echo_nodes import Message, presence
from fedmon.common.training_plan import TrainingPlan
from fedmon.researcher.federation import Federation
from fedmon.researcher.runs.errors import NobodyToRunError
from tests.researcher.conftest import Open
from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode
from tests.support.environment import researcher_environment
from tests.support.running_node import PLAN, RunningNode
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until

JOBS = 100
TIMEOUT_S = 60.0
WAITED_S = 30.0
"""A request that waits for a job takes its whole timeout."""


class Plan(TrainingPlan):
    """Is only handed in."""


@pytest.fixture
def forged(mosquitto: Broker) -> Broker:
    """Return a broker that retains presences of jobs that do not say that they only tell."""
    with EchoNode(mosquitto.port, "forger", announced=False) as forger:
        for number in range(JOBS):
            forger.publish(f"general/status/job-{number}", presence(f"job-{number}", 1), retain=True)
    return mosquitto


@pytest.fixture
def two(forged: Broker) -> Iterator[list[EchoNode]]:
    with ExitStack() as running:
        yield [running.enter_context(RunningNode(forged.port, node_id)) for node_id in ("a", "b")]


def heard_of(node: EchoNode, command: str) -> list[tuple[str, Message]]:
    """Return topic and message of each request of a command, once one came on the node's own topic."""
    own = f"general/nodes/alice/{node.node_id}"

    def found() -> list[tuple[str, Message]]:
        return [one for one in zip(node.topics, node.received, strict=False) if one[1]["command"] == command]

    node.wait(lambda: own in {topic for topic, _ in found()})
    return found()


def test_presences_of_jobs_are_shown_and_delay_and_fail_no_request(
    two: list[EchoNode], forged: Broker, federate: Open, tmp_path: Path
) -> None:
    federation = federate(timeout_s=TIMEOUT_S)
    begun = time.monotonic()

    answered = federation.ping()
    datasets = federation.datasets()
    approved = federation.approve(Plan)
    run = federation.run(f"sha256:{PLAN}")
    verb = fedmon_here("datasets", environ=researcher_environment(forged.url, tmp_path / "alice"))

    assert time.monotonic() - begun < WAITED_S
    assert [sorted(one) for one in (answered, datasets, approved)] == [["a", "b"]] * 3
    assert all(outcomes.failed == {} for outcomes in (answered, datasets, approved))
    assert (verb.returncode, verb.stderr) == (0, "")
    assert sorted(run.nodes) == ["a", "b"]
    assert len(federation.nodes()) == JOBS + 2
    assert "batch job" in federation.datasets(nodes=["job-7"])["job-7"].reason
    assert all(node.received for node in two)


def test_with_jobs_alone_there_is_nobody_to_run_a_plan(forged: Broker, federate: Open) -> None:
    federation = federate(timeout_s=TIMEOUT_S)
    begun = time.monotonic()

    with pytest.raises(NobodyToRunError):
        federation.run(f"sha256:{PLAN}")
    approved = federation.approve(Plan)

    assert time.monotonic() - begun < WAITED_S
    assert not approved.ok


def test_a_job_that_answers_or_is_named_has_its_answer(
    forged: Broker, federate: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmon.researcher.asking.request.DISCOVERY_S", 60.0)
    with EchoNode(forged.port, "job-7", boot=2) as job:
        federation = federate(timeout_s=TIMEOUT_S)
        named = federation.ping(nodes=["job-7"])

        assert list(named.ok) == ["job-7"]
        assert "job-7" in {request.get("node_id") for request in job.sent("ping")}


def test_what_a_job_answers_late_or_refuses_is_neither_kept_nor_among_the_outcomes(
    mosquitto: Broker, federate: Open
) -> None:
    with EchoNode(mosquitto.port, "a"), EchoNode(mosquitto.port, "job-7", answer=lambda _: None) as job:
        federation = federate()
        wait_until(lambda: len(federation.nodes()) == 2)
        assert list(federation.ping()) == ["a"]
        job.wait(lambda: len(job.sent("ping")) == 2)
        asked = job.sent("ping")[-1]

        for reply in (job.error(asked, "unsupported", "only publishes"), job.honest(asked) or {}):
            job.publish(job.reply_topic(asked), reply)
        wait_until(lambda: federation.status().counters.get("late replies"))
        job.refuse(code="unsupported", reason="only publishes")
        listed = [list(federation.datasets()) for _ in range(5)]
        job.wait(lambda: len(job.sent("list")) == 5)
        federation.ping()

        assert listed == [["a"]] * 5
        assert federation.status().kept_replies == 0
        assert "errors from nodes" not in federation.status().counters


def test_a_directed_request_names_its_node_and_a_broadcast_names_none(two: list[EchoNode], federate: Open) -> None:
    federation = federate()

    federation.ping()
    federation.ping(nodes=["a", "b"])

    for node in two:
        named = {(topic, request.get("node_id")) for topic, request in heard_of(node, "ping")}
        assert named == {("general/nodes/alice", None), (f"general/nodes/alice/{node.node_id}", node.node_id)}


def test_plans_are_sent_to_each_node_and_never_to_all(
    two: list[EchoNode], forged: Broker, federate: Open, tmp_path: Path
) -> None:
    with EchoNode(forged.port, "job-7", boot=2) as job:
        federation: Federation = federate()
        federation.approve(Plan)
        federation.plan_status(Plan)

        for node in two:
            heard = [*heard_of(node, "approval"), *heard_of(node, "training-plan-status")]
            assert {topic for topic, _ in heard} == {f"general/nodes/alice/{node.node_id}"}
        assert not job.sent("approval")
        assert not job.sent("training-plan-status")


def test_a_node_that_comes_while_a_plan_is_handed_in_gets_it(forged: Broker, federate: Open) -> None:
    came: list[EchoNode] = []
    with ExitStack() as running:

        def answer(request: Message) -> Message | None:
            if request["command"] == "approval" and not came:
                came.append(running.enter_context(EchoNode(forged.port, "b")))
                return None
            return first.honest(request)

        first = running.enter_context(EchoNode(forged.port, "a", answer=answer))
        approved = federate(timeout_s=TIMEOUT_S).approve(Plan)

        assert "a" in approved.ok
        assert {topic for topic, _ in heard_of(came[0], "approval")} == {"general/nodes/alice/b"}
