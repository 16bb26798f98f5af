"""A real node, in a process of its own, answers a researcher of Fed-BioMed 4.4 over a real broker."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.clock import utc_now
from tests.support.brokers import Broker
from tests.support.fedbiomed4 import RECORD, Message, V4Researcher, payload
from tests.support.historic_repository import HistoricRepository
from tests.support.listener import Listener
from tests.support.node_process import NodeProcess, audited, write_node_folder
from tests.support.shell_here import document_here
from tests.support.waiting import stays, wait_until

NODE = "node_of_ours"
TABLE = "radius,diagnosis\n17.99,M\n11.2,B\n12.5,B\n"
PLAN = b"class Plan:\n    def run(self):\n        return 1\n"


@pytest.fixture(scope="module")
def repository() -> Iterator[HistoricRepository]:
    with HistoricRepository() as repository:
        yield repository


@pytest.fixture(scope="module")
def folder(lasting_broker: Broker, repository: HistoricRepository, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_node_folder(
        tmp_path_factory.mktemp("node") / "folder",
        node_id=NODE,
        url=lasting_broker.url,
        node={"wire": "fedbiomed4"},
        policy={"researchers": ["researcher_v4", "another_v4"]},
        repository={"allowed_urls": [repository.url]},
        metrics={"interval_s": 0.2},
    )
    offer(folder, "cells", "cells,adults")
    return folder


@pytest.fixture(scope="module")
def node(folder: Path, lasting_broker: Broker) -> Iterator[NodeProcess]:
    with NodeProcess(folder) as node, V4Researcher(lasting_broker) as researcher:

        def pinged() -> bool:
            researcher.send(researcher.request("ping"))
            return bool(researcher.heard)

        wait_until(pinged, what="the node's first pong")
        # Every pong of before is heard with the last one's, so that none is taken for a test's.
        researcher.send(researcher.request("ping", sequence=999))
        wait_until(lambda: 999 in [pong["sequence"] for pong in researcher.replies("pong")], what="the last pong")
        yield node


@pytest.fixture
def researcher(lasting_broker: Broker, node: NodeProcess) -> Iterator[V4Researcher]:
    with V4Researcher(lasting_broker) as researcher:
        yield researcher
        assert researcher.faults == []
        assert researcher.qos <= {0}


def offer(folder: Path, name: str, tags: str, *options: str) -> None:
    table = folder / f"{name}.csv"
    table.write_text(TABLE)
    document_here("node", "dataset", "add", table, "--name", name, "--tags", tags, "--dir", folder, *options)


def still_answers(researcher: V4Researcher, sequence: int = 4711) -> bool:
    return bool(researcher.ask("ping", answer="pong", sequence=sequence)["sequence"] == sequence)


def test_a_ping_is_answered_field_for_field(researcher: V4Researcher) -> None:
    pong = researcher.ask("ping", answer="pong", sequence=23)

    assert pong == payload("ping_reply") | {"node_id": NODE, "researcher_id": "researcher_v4"}


def test_a_ping_to_one_node_is_answered(researcher: V4Researcher) -> None:
    researcher.send(researcher.request("ping", sequence=24), topic=f"general/{NODE}")

    wait_until(lambda: [pong["sequence"] for pong in researcher.replies("pong")] == [24], what="the pong")


def test_a_list_brings_the_datasets_as_their_nodes_tell_them(researcher: V4Researcher) -> None:
    listed = researcher.ask("list", answer="list")

    (record,) = listed["databases"]
    assert (listed["success"], listed["count"], listed["node_id"]) == (True, 1, NODE)
    assert record.keys() == RECORD.keys()
    assert all(isinstance(record[name], kind) for name, kind in RECORD.items())
    assert (record["name"], record["tags"], record["shape"]) == ("cells", ["cells", "adults"], [3, 2])


def test_a_search_brings_the_types_of_columns_as_well(researcher: V4Researcher) -> None:
    found = researcher.ask("search", answer="search", tags=["cells"])

    (record,) = found["databases"]
    assert (found["success"], found["count"]) == (True, 1)
    assert record.keys() == RECORD.keys() | {"dtypes"}
    assert len(record["dtypes"]) == 2
    assert all(isinstance(dtype, str) for dtype in record["dtypes"])


def test_a_path_never_leaves_the_node(researcher: V4Researcher, folder: Path) -> None:
    told = [researcher.ask("list", answer="list"), researcher.ask("search", answer="search", tags=["cells"])]

    assert str(folder.parent) not in json.dumps(told)


def test_a_search_without_a_match_is_met_with_silence(researcher: V4Researcher) -> None:
    researcher.send(researcher.request("search", tags=["cells", "children"]))

    assert still_answers(researcher)
    assert [message["command"] for message in researcher.heard] == ["pong"]


@pytest.mark.parametrize("name", ["train", "secagg"])
def test_training_and_secure_aggregation_are_refused_with_a_reason(researcher: V4Researcher, name: str) -> None:
    error = researcher.ask(name, answer="error")

    assert error["errnum"] == "FB301: Protocol error"
    assert f"command {name!r} is not one of approval, list, ping" in error["extra_msg"]


@pytest.mark.parametrize(
    "change",
    [
        {"protocol_version": "2"},
        {"protocol_version": "1.1"},
        {"command": "reboot"},
        {"command": ["ping"]},
        {"sequence": "23"},
        {"sequence": None},
        {"surplus": 1},
        *({name: ...} for name in ("sequence", "command", "protocol_version")),
    ],
    ids=str,
)
def test_a_bad_or_missing_field_is_answered_with_an_error_and_stops_nothing(
    researcher: V4Researcher, change: dict[str, Any]
) -> None:
    message = researcher.request("ping", **change)

    researcher.send({name: value for name, value in message.items() if value is not ...})

    (error,) = wait_until(lambda: researcher.replies("error"), what="an error")
    assert (error["errnum"], error["researcher_id"]) == ("FB301: Protocol error", "researcher_v4")
    assert still_answers(researcher)


def test_what_names_no_sender_is_met_with_silence_and_stops_nothing(researcher: V4Researcher) -> None:
    nobody = payload("ping_request")
    del nobody["researcher_id"]
    junk: list[Message | bytes] = [
        b"", b"{", b"\xff\x00", b"[]", b"null", b"[" * 100_000, b'{"a": NaN}', b'{"a": 1, "a": 2}', b"x" * 200_000,
        nobody, nobody | {"researcher_id": 5}, nobody | {"researcher_id": ""},
    ]  # fmt: skip

    for message in junk:
        researcher.send(message)

    assert still_answers(researcher)
    assert {message["command"] for message in researcher.heard} <= {"pong", "log"}


def test_a_researcher_whom_the_owner_did_not_allow_is_refused(lasting_broker: Broker, researcher: V4Researcher) -> None:
    with V4Researcher(lasting_broker, "stranger") as stranger:
        error = stranger.ask("list", answer="error")

    assert error["researcher_id"] == "stranger"
    assert error["errnum"] == "FB300: undetermined node error"
    assert "does not obey researcher stranger" in error["extra_msg"]


def test_a_plan_is_fetched_decided_about_and_found_again(
    researcher: V4Researcher, repository: HistoricRepository, folder: Path
) -> None:
    url = repository.put("my_model.py", PLAN)

    def status() -> Message:
        return researcher.ask(
            "training_plan_status", answer="training-plan-status", job_id="job_1", training_plan_url=url
        )

    unknown = status()
    taken = researcher.ask("approval", answer="approval", sequence=7, training_plan_url=url)
    again = researcher.ask("approval", answer="approval", sequence=8, training_plan_url=url)
    pending = status()
    (plan,) = document_here("node", "plan", "list", "--dir", folder)["plans"]
    document_here("node", "plan", "approve", plan["plan_id"], "--sha256", plan["sha256"], "--dir", folder)
    approved = status()
    document_here("node", "plan", "reject", plan["plan_id"], "--note", "too slow", "--dir", folder)
    refused = status()

    assert unknown["status"] == "Not Registered"
    assert taken == payload("approval_reply") | {"node_id": NODE, "researcher_id": "researcher_v4"}
    assert (again["sequence"], again["success"]) == (8, True)
    assert pending == payload("training_plan_status_reply") | {
        "node_id": NODE, "researcher_id": "researcher_v4", "job_id": "job_1", "training_plan_url": url,
        "msg": pending["msg"],
    }  # fmt: skip
    assert plan["description"] == payload("approval_request")["description"]
    assert approved["status"] == "Approved"
    assert refused["status"] == "Rejected"
    assert "too slow" in refused["msg"]
    assert researcher.replies("error") == []


def test_a_plan_that_cannot_be_fetched_tells_how_its_download_ended(
    researcher: V4Researcher, repository: HistoricRepository
) -> None:
    url = f"{repository.url}media/none.py"
    gone = researcher.ask("approval", answer="approval", sequence=9, training_plan_url=url)
    elsewhere = researcher.ask("approval", answer="approval", training_plan_url="http://127.0.0.1:9/plan.py")
    status = researcher.ask(
        "training_plan_status", answer="training-plan-status", job_id="job_9", training_plan_url=url
    )

    assert (gone["success"], gone["status"], gone["sequence"]) == (False, 404, 9)
    assert (elsewhere["success"], elsewhere["status"]) == (False, 0)
    assert (status["success"], status["status"], status["approval_obligation"]) == (False, "Error", True)
    assert (status["job_id"], status["training_plan_url"]) == ("job_9", url)


def test_what_is_no_plan_is_not_taken_in(researcher: V4Researcher, repository: HistoricRepository) -> None:
    url = repository.put("empty.py", b"  \n")

    reply = researcher.ask("approval", answer="approval", training_plan_url=url)

    assert (reply["success"], reply["status"]) == (False, 200)


def test_the_nodes_log_goes_out_as_their_nodes_write_it(researcher: V4Researcher) -> None:
    researcher.send(researcher.request("ping", protocol_version="3"))

    (first, *_) = wait_until(lambda: researcher.replies("log"), what="a log record")
    inner = json.loads(first["msg"])
    assert (first["researcher_id"], first["node_id"]) == ("<unknown>", NODE)
    assert inner.keys() == {"asctime", "node_id", "name", "level", "message"}
    assert inner["name"].startswith("fedmon.node")
    assert inner["level"] == first["level"] == "WARNING"
    written = datetime.datetime.strptime(inner["asctime"], "%Y-%m-%d %H:%M:%S,%f").astimezone()
    assert abs((utc_now() - written).total_seconds()) < 60.0


def test_samples_stay_off_the_topic_on_which_their_researchers_listen(
    lasting_broker: Broker, researcher: V4Researcher, node: NodeProcess
) -> None:
    with Listener(lasting_broker, "general/monitoring/#") as listener:
        wait_until(listener.topics, what="a sample")
        assert stays(lambda: listener.topics() == {f"general/monitoring/{NODE}"}, 0.5)


def test_nothing_is_retained_but_its_presence(lasting_broker: Broker, researcher: V4Researcher) -> None:
    assert still_answers(researcher)

    with Listener(lasting_broker, "#") as latecomer:
        wait_until(lambda: latecomer.topics(retained=True), what="a retained message")
        assert stays(lambda: latecomer.topics(retained=True) == {f"general/status/{NODE}"}, 0.3)


def test_a_list_longer_than_a_message_of_our_own_wire_comes_whole(researcher: V4Researcher, folder: Path) -> None:
    parameters = json.dumps({"words": "x" * 40_000})
    for number in range(3):
        offer(folder, f"large-{number}", f"large-{number}", "--parameters", parameters)

    listed = researcher.ask("list", answer="list")

    assert listed["count"] == len(listed["databases"]) == 4
    assert len(json.dumps(listed)) > 120_000


def test_every_command_and_reply_is_in_the_audit(researcher: V4Researcher, folder: Path, node: NodeProcess) -> None:
    assert still_answers(researcher)

    document_here("node", "audit", "verify", "--dir", folder)

    asked = {line["id"] for line in audited(folder, "command") if line["command"] == "ping"}
    answered = {line["id"] for line in audited(folder, "reply") if line["command"] == "pong"}
    assert asked
    assert asked == answered
    assert node.alive()
