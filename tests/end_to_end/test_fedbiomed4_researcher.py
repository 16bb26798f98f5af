"""A federation asks nodes of Fed-BioMed 4.4 over a real broker."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.errors import InvalidInputError
from fedmon.common.settings.values import RepositorySettings, ResearcherSettings
from fedmon.common.wire.messages import LogRecord, PlanStatus
from fedmon.common.wire.samples import AddScalar
from fedmon.researcher.asking.outcome import OutcomeStatus
from fedmon.researcher.federation import Federation
from fedmon.researcher.roster import NodeState
from tests.support.brokers import Broker
from tests.support.fedbiomed4 import Message, V4Node, V4Researcher, payload
from tests.support.historic_repository import HistoricRepository
from tests.support.node_process import NO_RUNS, NodeProcess, write_node_with_cells
from tests.support.waiting import stays, wait_until

(BLOOD,) = payload("search_reply")["databases"]
SCANS = payload("list_reply")["databases"][1]
PLAN = "class Plan:\n    def run(self):\n        return 1\n"
QUICK_S = 10.0
"""Far below the timeout."""


@pytest.fixture
def nodes(mosquitto: Broker) -> Iterator[dict[str, V4Node]]:
    with ExitStack() as stack:
        nodes = {
            "node_1": V4Node(mosquitto, "node_1", databases=(BLOOD, SCANS)),
            "node_2": V4Node(mosquitto, "node_2", databases=(SCANS,)),
            "node_3": V4Node(mosquitto, "node_3"),
        }
        for node in nodes.values():
            stack.enter_context(node)
        yield nodes
        assert [node.faults for node in nodes.values()] == [[]] * 3
        assert [node.qos <= {0} for node in nodes.values()] == [True] * 3


def settings(broker: Broker, folder: Path, **fields: Any) -> ResearcherSettings:
    options: dict[str, Any] = {"id": "researcher_ours", "wire": "fedbiomed4", "timeout_s": 20.0}
    return ResearcherSettings(broker=broker.settings, folder=folder, **(options | fields))


@pytest.fixture
def fed(mosquitto: Broker, nodes: dict[str, V4Node], tmp_path: Path) -> Iterator[Federation]:
    with Federation(settings=settings(mosquitto, tmp_path / "ours")) as fed:
        wait_until(lambda: set(fed.nodes()) == set(nodes), what="three nodes")
        yield fed


def refuse_plans(node: V4Node, *, status: int) -> None:
    """Have a node say of each plan that its download ended so."""

    def refused(message: Message) -> list[Message | bytes]:
        if message["command"] != "approval":
            return node.honest(message)
        return [node.reply("approval_reply", message, sequence=message["sequence"], success=False, status=status)]

    node.answer = refused


def counts(fed: Federation) -> dict[str, int]:
    return fed.status().counters


def test_who_answers_the_first_ping_is_there(fed: Federation) -> None:
    found = fed.nodes()

    assert {name: node.state for name, node in found.items()} == {f"node_{n}": NodeState.ONLINE for n in (1, 2, 3)}
    assert set(fed.ping().ok) == set(found)


def test_a_list_brings_every_nodes_datasets_as_soon_as_they_answered(fed: Federation) -> None:
    listed = fed.datasets()

    assert {node: [d.name for d in reply.datasets] for node, reply in listed.ok.items()} == {
        "node_1": ["blood counts", "brain scans"],
        "node_2": ["brain scans"],
        "node_3": [],
    }
    assert listed.elapsed_s < QUICK_S


def test_a_search_ends_when_everybody_answered_or_kept_silent(fed: Federation) -> None:
    found = fed.search(["blood"])
    nothing = fed.search(("blood", "children"))

    assert {node: reply.count for node, reply in found.ok.items()} == {"node_1": 1, "node_2": 0, "node_3": 0}
    assert found.ok["node_1"].datasets[0].dtypes == {"0": "object", "1": "float64", "2": "int64"}
    assert {node: reply.count for node, reply in nothing.ok.items()} == {"node_1": 0, "node_2": 0, "node_3": 0}
    assert max(found.elapsed_s, nothing.elapsed_s) < QUICK_S


def test_nodes_that_are_named_are_asked_alone(fed: Federation, nodes: dict[str, V4Node]) -> None:
    before = {name: len(node.asked("ping")) for name, node in nodes.items()}

    pinged = fed.ping(nodes=["node_2"])
    listed = fed.datasets(nodes=["node_1", "node_3"])

    assert set(pinged) == {"node_2"}
    assert set(listed.ok) == {"node_1", "node_3"}
    assert nodes["node_1"].asked("list")
    assert nodes["node_2"].asked("list") == []
    assert len(nodes["node_2"].asked("ping")) > before["node_2"]


def test_a_node_that_starts_later_is_found_by_a_ping(fed: Federation, mosquitto: Broker) -> None:
    with V4Node(mosquitto, "node_4", databases=(BLOOD,)) as late:
        pinged = fed.ping()
        found = fed.search(["blood"])

    assert "node_4" in pinged.ok
    assert found.ok["node_4"].count == 1
    assert late.faults == []


def test_a_node_that_is_gone_costs_one_timeout_and_is_asked_again_when_it_is_back(
    fed: Federation, nodes: dict[str, V4Node]
) -> None:
    nodes["node_3"].answer = lambda _message: []

    first = fed.datasets(timeout_s=8.0)
    second = fed.datasets(timeout_s=8.0)

    for outcomes in (first, second):
        assert outcomes["node_3"].status is OutcomeStatus.STALE
        assert outcomes["node_3"].reason == "did not answer the last request"
    assert first.elapsed_s > 7.5
    assert second.elapsed_s < 6.0
    assert set(second.ok) == {"node_1", "node_2"}

    nodes["node_3"].answer = nodes["node_3"].honest
    fed.ping()

    assert set(fed.datasets().ok) == {"node_1", "node_2", "node_3"}


def test_a_lost_answer_is_asked_for_again(fed: Federation, nodes: dict[str, V4Node]) -> None:
    node, lost = nodes["node_1"], set()

    def forgetful(message: Message) -> list[Message | bytes]:
        if message["command"] in lost:
            return node.honest(message)
        lost.add(message["command"])
        return []

    node.answer = forgetful

    found = fed.search(["blood"])

    assert found.ok["node_1"].count == 1
    assert len(node.asked("search")) > 1


def test_searches_from_many_threads_never_take_each_others_answers(fed: Federation) -> None:
    wanted = [["blood"], ["mri"], ["mri", "brain"], ["nothing"], ["adults", "blood"]] * 6

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(fed.search, wanted))

    for tags, outcomes in zip(wanted, found, strict=True):
        names = {node: [dataset.name for dataset in reply.datasets] for node, reply in outcomes.ok.items()}
        assert names == {
            "node_1": [one["name"] for one in (BLOOD, SCANS) if set(tags) <= set(one["tags"])],
            "node_2": [SCANS["name"]] if set(tags) <= set(SCANS["tags"]) else [],
            "node_3": [],
        }


def test_two_processes_of_one_researcher_never_take_each_others_answers(
    fed: Federation, nodes: dict[str, V4Node], mosquitto: Broker, tmp_path: Path
) -> None:
    with Federation(settings=settings(mosquitto, tmp_path / "ours"), instance="second") as second:
        wait_until(lambda: len(second.nodes()) == 3, what="three nodes")
        with ThreadPoolExecutor(2) as pool:
            ours = pool.submit(lambda: [fed.search(["blood"]) for _ in range(20)])
            theirs = pool.submit(lambda: [second.search(["mri"]) for _ in range(20)])

    assert {tuple(r.count for r in outcomes.ok.values()) for outcomes in ours.result()} == {(1, 0, 0)}
    assert {tuple(r.count for r in outcomes.ok.values()) for outcomes in theirs.result()} == {(1, 1, 0)}
    numbers = [ping["sequence"] for ping in nodes["node_1"].asked("ping")]
    assert len(set(numbers)) >= 42


def test_a_plan_is_uploaded_handed_in_and_asked_about_by_its_url(
    mosquitto: Broker, nodes: dict[str, V4Node], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.py"
    plan.write_text(PLAN)
    digest = hashlib.sha256(PLAN.encode()).hexdigest()
    nodes["node_1"].decided[digest] = "Approved"
    nodes["node_2"].decided[digest] = "Pending"
    with HistoricRepository() as repository:
        place = RepositorySettings(url=repository.upload_url)
        with Federation(settings=settings(mosquitto, tmp_path / "ours", repository=place)) as fed:
            wait_until(lambda: len(fed.nodes()) == 3, what="three nodes")

            taken = fed.approve(plan, description="Mean of each column")
            targeted = fed.approve(plan, nodes=["node_1", "node_3"])
            status = fed.plan_status(plan)
            nodes["node_1"].decided[digest] = "Rejected"
            rejected = fed.plan_status(plan).ok["node_1"]
            failed = []
            for ended in (404, 0):
                refuse_plans(nodes["node_3"], status=ended)
                failed.append(fed.approve(plan, nodes=["node_3"])["node_3"])

    pending = (digest, PlanStatus.PENDING)
    assert {node: (reply.sha256, reply.status) for node, reply in taken.ok.items()} == dict.fromkeys(nodes, pending)
    assert set(targeted.ok) == {"node_1", "node_3"}
    assert {node: reply.status for node, reply in status.ok.items()} == {
        "node_1": PlanStatus.APPROVED,
        "node_2": PlanStatus.PENDING,
        "node_3": None,
    }
    assert (rejected.status, rejected.note) == (PlanStatus.REJECTED, "waits for review")
    assert rejected.approval_obligation
    assert [(one.status, one.reason) for one in failed] == [
        (OutcomeStatus.FAILED, f"the node did not take the plan in: {how}")
        for how in ("its download ended with HTTP status 404", "it could not download it")
    ]
    (first, *_) = nodes["node_1"].asked("approval")
    assert first["description"] == "Mean of each column"
    assert set(repository.files.values()) == {PLAN.encode()}


def test_a_plan_needs_a_repository_on_this_wire(fed: Federation, nodes: dict[str, V4Node], tmp_path: Path) -> None:
    plan = tmp_path / "plan.py"
    plan.write_text(PLAN)

    for ask in (fed.approve, fed.plan_status):
        with pytest.raises(InvalidInputError, match="file repository"):
            ask(plan)
    assert nodes["node_1"].asked("approval") == []


def test_an_error_ends_the_wait_for_its_node(fed: Federation, nodes: dict[str, V4Node]) -> None:
    node = nodes["node_1"]
    node.answer = lambda message: [node.reply("error", message, errnum="FB300: undetermined node error")]

    listed = fed.datasets()

    assert listed["node_1"].status is OutcomeStatus.FAILED
    assert listed["node_1"].reason == "FB300: undetermined node error: the message cannot be served"
    assert listed.elapsed_s < QUICK_S


def test_scalars_of_a_training_loop_are_watched(fed: Federation, nodes: dict[str, V4Node]) -> None:
    scalars: list[AddScalar] = []
    listening = fed.on("telemetry", scalars.append)
    with fed.monitor() as watch:

        def heard() -> bool:
            nodes["node_1"].send(payload("add_scalar") | {"node_id": "node_1"}, topic="general/monitoring")
            return bool(scalars)

        wait_until(heard, what="a scalar")
        sample = watch.next(timeout_s=60)
    listening.remove()

    assert sample is not None
    assert (sample.node_id, sample.stream) == ("node_1", "job-job_9b2e6d1f-8c3a-4e7d-a5f4-6d9c8b7a5f04")
    assert dict(sample.values) == {'Loss{phase="train"}': 0.4375}
    assert (scalars[0].iteration, scalars[0].epoch, scalars[0].metric) == (2, 1, {"Loss": 0.4375})


def test_log_records_of_nodes_arrive_in_python_logging(
    fed: Federation, nodes: dict[str, V4Node], caplog: pytest.LogCaptureFixture
) -> None:
    records: list[LogRecord] = []
    with caplog.at_level(logging.WARNING, "fedmon.node.node_1"), fed.logs(records.append, nodes=["node_1"]):

        def heard() -> bool:
            for name in ("node_2", "node_1"):
                nodes[name].send(payload("log") | {"node_id": name}, topic="general/logger")
            return bool(records)

        wait_until(heard, what="a record")

    assert {record.node_id for record in records} == {"node_1"}
    assert (records[0].level, records[0].msg) == ("WARNING", "disk is nearly full")
    assert ("fedmon.node.node_1", logging.WARNING, "fedbiomed: disk is nearly full") in caplog.record_tuples


@pytest.mark.parametrize("topic", ["general/researcher", "general/monitoring", "general/logger"])
def test_what_cannot_be_read_is_counted_and_stops_nothing(
    fed: Federation, nodes: dict[str, V4Node], topic: str
) -> None:
    good = {"general/researcher": "ping_reply", "general/monitoring": "add_scalar", "general/logger": "log"}[topic]
    message = payload(good) | {"researcher_id": fed.researcher_id, "node_id": "node_9"}
    missing = dict(message)
    del missing["node_id"]
    bad: list[Message | bytes] = [
        b"", b"{", b"\xff\x00", b"[]", b'{"a": NaN}', b"[" * 100_000, missing,
        message | {"protocol_version": "2"}, message | {"command": "reboot"}, message | {"command": []},
        message | {"node_id": 5}, message | {"surplus": 1}, message | {"node_id": "a/b"},
    ]  # fmt: skip

    with fed.monitor(), fed.logs():

        def counted() -> bool:
            for one in bad:
                nodes["node_1"].send(one, topic=topic)
            return sum(number for kind, number in counts(fed).items() if kind.startswith("unreadable")) >= len(bad)

        wait_until(counted, what="everything bad counted")
        listed = fed.datasets()

    assert set(listed.ok) == set(nodes)
    assert set(fed.nodes()) == set(nodes)


def test_answers_that_are_not_ours_never_count(fed: Federation, nodes: dict[str, V4Node]) -> None:
    node, fitting = nodes["node_1"], [BLOOD | {"tags": ["nothing"]}]

    def noisy(message: Message) -> list[Message | bytes]:
        others: list[Message | bytes] = [
            payload("search_reply") | {"node_id": "node_1", "researcher_id": "another", "databases": fitting},
            payload("ping_reply") | {"node_id": "node_3", "researcher_id": "another"},
            payload("ping_reply") | {"node_id": "node_7", "researcher_id": message["researcher_id"], "sequence": 999},
            payload("approval_reply") | {"node_id": "node_7", "researcher_id": message["researcher_id"]},
        ]
        return others + node.honest(message)

    node.answer = noisy

    found = fed.search(["nothing"])

    assert {name: reply.count for name, reply in found.ok.items()} == {"node_1": 0, "node_2": 0, "node_3": 0}
    assert "node_7" not in fed.nodes()
    assert counts(fed)["replies of a wrong session, sequence or kind"] >= 2


def test_a_researcher_of_theirs_beside_us_hears_nothing_that_ends_it(fed: Federation, mosquitto: Broker) -> None:
    with V4Researcher(mosquitto) as theirs:
        with fed.monitor():
            fed.ping()
            fed.datasets()
            fed.search(["blood"])
        wait_until(lambda: len(theirs.replies("pong")) >= 9, what="what our nodes answered us")
        assert stays(lambda: theirs.faults == [], 0.2)


def test_the_broker_may_restart(fed: Federation, nodes: dict[str, V4Node], mosquitto: Broker) -> None:
    mosquitto.restart()
    wait_until(lambda: fed.status().connected, what="our connection")

    def answered() -> bool:
        return set(fed.ping(timeout_s=1.5).ok) == set(nodes)

    wait_until(answered, what="three answers after the restart")


def test_our_own_node_and_researcher_understand_each_other_on_this_wire_alone(
    mosquitto: Broker, tmp_path: Path
) -> None:
    sections: dict[str, Any] = {"runs": NO_RUNS, "node": {"wire": "fedbiomed4"}, "metrics": {"interval_s": 0.2}}
    folder = write_node_with_cells(tmp_path / "ours", url=mosquitto.url, **sections)
    with NodeProcess(folder):
        with Federation(settings=settings(mosquitto, tmp_path / "alice")) as fed:
            wait_until(lambda: set(fed.ping().ok) == {"ours"}, what="our node")
            listed, found, nothing = fed.datasets(), fed.search(["cells"]), fed.search(["x"])
            with fed.monitor(metrics=["host_*"]) as watch:
                sample = watch.next(timeout_s=60)
        with Federation(settings=settings(mosquitto, tmp_path / "alice", wire="fedmon")) as other:
            wait_until(lambda: "ours" in other.nodes(), what="its presence")
            pinged = other.ping(timeout_s=30.0)

    assert listed.ok["ours"].datasets[0].shape == [3, 2]
    assert (found.ok["ours"].count, nothing.ok["ours"].count) == (1, 0)
    assert sample is not None
    assert (sample.node_id, sample.stream) == ("ours", "host")
    assert pinged["ours"].status is OutcomeStatus.TOO_OLD
    assert "fedbiomed4" in pinged["ours"].reason
    assert pinged.elapsed_s < QUICK_S
