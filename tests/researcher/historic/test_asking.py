"""The historic requests: results as version 4.4 gives them, as soon as everybody expected has answered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.echo_nodes import DATASETS, Message
from fedmon.common.errors import InvalidInputError
from fedmon.common.training_plan import TrainingPlan
from fedmon.researcher.requests import Requests
from tests.researcher.historic.conftest import Open
from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode
from tests.support.waiting import wait_until

PLAN = "import math\n\n\ndef train(rows):\n    return [math.sqrt(row) for row in rows]\n"
LISTED = {"name", "data_type", "tags", "description", "shape", "dataset_id", "dataset_parameters"}


class Broken(TrainingPlan):
    def init_dependencies(self) -> list[str]:
        raise ZeroDivisionError("in the plan's own code")


class Foreign:
    """A plan on another base class, with the three methods that version 4.4 calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def init_dependencies(self) -> list[str]:
        return ["import math"]

    def add_dependency(self, dep: list[str]) -> None:
        self.lines += dep

    def save_code(self, filepath: str) -> None:
        Path(filepath).write_text("\n".join([*self.lines, "class Foreign:", "    pass", ""]))


class WrittenByItself(TrainingPlan):
    def save_code(self, path: Path | str) -> Path:
        Path(path).write_bytes(b"# exactly\r\nclass WrittenByItself:\r\n    pass\r\n")
        return Path(path)


class Forgetful(Foreign):
    def save_code(self, filepath: str) -> None:
        """Write nothing."""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "roots.py"
    path.write_text(PLAN)
    return path


def test_datasets_are_dictionaries_by_node_without_column_types_in_a_list(
    mosquitto: Broker, open_requests: Open
) -> None:
    with EchoNode(mosquitto.port, "a"), EchoNode(mosquitto.port, "b"):
        requests = open_requests("a", "b")

        listed, found = requests.list(), requests.search(["breast"])
        same, one = requests.search(("breast",)), requests.search(("breast", "part-1"))
        with pytest.raises(InvalidInputError, match="list or tuple"):
            requests.search("breast")

    assert {"a", "b"} == set(listed) == set(found)
    assert [dataset["name"] for dataset in DATASETS] == [dataset["name"] for dataset in listed["a"]]
    assert all(set(dataset) == LISTED for dataset in listed["b"])
    assert all(LISTED | {"dtypes"} == set(dataset) for dataset in found["b"])
    assert (found, [dataset["name"] for dataset in one["a"]]) == (same, ["table 1"])


def test_only_nodes_that_are_named_are_asked(mosquitto: Broker, open_requests: Open) -> None:
    with EchoNode(mosquitto.port, "a") as a, EchoNode(mosquitto.port, "b") as b:
        requests = open_requests("a", "b")

        assert list(requests.list(nodes=["b"])) == ["b"]
        assert list(requests.search(["breast"], ["b"])) == ["b"]
        assert len(requests.list(nodes=[])) == 2

    assert (len(a.sent("list")), len(b.sent("list"))) == (1, 2)


def test_a_list_is_printed_when_it_is_to_be_verbose(
    mosquitto: Broker, open_requests: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent_about_its_own(request: Message) -> Message | None:
        reply = b.honest(request)
        return reply | {"datasets": [], "count": 0} if reply and request["command"] == "list" else reply

    with EchoNode(mosquitto.port, "a"), EchoNode(mosquitto.port, "b") as b:
        b.answer = silent_about_its_own
        requests = open_requests("a", "b")
        quiet = requests.list()
        before = capsys.readouterr().out

        verbose = requests.list(verbose=True)

    printed = capsys.readouterr().out
    assert quiet == verbose
    assert before == ""
    assert "a: 2 datasets" in printed
    assert "table 1" in printed
    assert "dataset-1" in printed
    assert "b: 0 datasets" in printed


def test_the_bytes_of_a_plan_are_those_that_its_own_save_code_writes(node: EchoNode, open_requests: Open) -> None:
    requests = open_requests("a")

    for given in (Foreign, Foreign(), WrittenByItself, WrittenByItself()):
        assert requests.training_plan_approve(given, "d") == {"a": True}

    body = "class Foreign:\n    pass\n"
    own = "# exactly\r\nclass WrittenByItself:\r\n    pass\r\n"
    # A node that answers late is asked again, with the same id.
    sources = {request["id"]: request["source"] for request in node.sent("approval")}
    assert [f"import math\n{body}", body, own, own] == list(sources.values())


def test_a_named_node_that_refuses_fails_or_is_not_there_is_false_and_the_log_says_why(
    mosquitto: Broker, open_requests: Open, plan: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EchoNode(mosquitto.port, "a"), EchoNode(mosquitto.port, "b") as b:
        b.refuse("approval", reason="not you, says the owner")
        requests = open_requests("a", "b")

        named = requests.training_plan_approve(plan, nodes=["a", "b", "c"], timeout=5)
        everybody = requests.training_plan_approve(plan, timeout=5)

    assert named == {"a": True, "b": False, "c": False}
    assert everybody == {"a": True, "b": False}
    assert "not you, says the owner" in caplog.text
    assert "approval: node c: offline: never heard of" in caplog.text


def test_arguments_that_cannot_be_are_logged_and_nothing_is_sent(
    node: EchoNode, open_requests: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {"broken.py": b"def broken(:\n", "empty.py": b"", "binary.py": b"\xff\xfe\x00"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    plans = [object(), Broken, Broken(), Forgetful, "missing.py", *(tmp_path / name for name in files)]
    wrong: list[tuple[Any, Any]] = [
        *((plan, []) for plan in plans),
        *((WrittenByItself, nodes) for nodes in ("a", "", 0)),
    ]
    requests = open_requests("a")

    for plan, nodes in wrong:
        caplog.clear()
        assert requests.training_plan_approve(plan, nodes=nodes) == {}, plan
        assert "the training plan was not sent" in caplog.text, plan
    assert requests.ping_nodes() == ["a"]

    assert node.sent("approval") == []


def test_where_no_node_is_known_the_log_says_so(open_requests: Open, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    requests = open_requests()

    assert (requests.ping_nodes(), requests.search(["mri"])) == ([], {})
    assert "no node answered ping: none is known" in caplog.text
    assert "no node has a dataset" not in caplog.text


def test_calls_from_many_threads_never_take_each_others_replies(
    mosquitto: Broker, open_requests: Open, plan: Path
) -> None:
    names = [f"n{number}" for number in range(5)]
    expected: dict[str, Any] = {
        "ping": names,
        "list": dict.fromkeys(names, 2),
        "search": dict.fromkeys(names, 1),
        "approve": dict.fromkeys(names, True),
        "posted pings": [("pong", name) for name in names],
        "posted lists": [("list", name) for name in names],
    }

    def posted(requests: Requests, command: str, reply: str, number: int) -> Any:
        more = {"sequence": number} if command == "ping" else {}
        requests.send_message({"command": command, "researcher_id": "alice", **more})
        collect = requests.get_responses if number % 2 else requests.get_messages
        answers = collect([reply], 60)
        assert all(answer.get("sequence", number) == number for answer in answers)
        return sorted((answer["command"], answer["node_id"]) for answer in answers)

    calls: dict[str, Callable[[Requests, int], Any]] = {
        "ping": lambda requests, _: requests.ping_nodes(),
        "list": lambda requests, _: {node: len(found) for node, found in requests.list().items()},
        "search": lambda requests, _: {node: len(found) for node, found in requests.search(("part-0",)).items()},
        "approve": lambda requests, _: requests.training_plan_approve(plan, nodes=names, timeout=60),
        "posted pings": lambda requests, number: posted(requests, "ping", "pong", number),
        "posted lists": lambda requests, number: posted(requests, "list", "list", number),
    }
    with ExitStack() as nodes:
        for name in names:
            nodes.enter_context(EchoNode(mosquitto.port, name))
        requests = open_requests(*names, timeout_s=60)

        def run(name: str, number: int) -> tuple[str, Any]:
            return name, calls[name](requests, number)

        with ThreadPoolExecutor(2 * len(calls)) as pool:
            results = list(pool.map(run, [*calls] * 20, range(20 * len(calls))))
        left = requests.get_messages()

    assert [(name, result) for name, result in results if result != expected[name]] == []
    assert len(left) == 0


def test_without_a_connection_results_are_empty_and_the_reason_is_logged(
    mosquitto: Broker, open_requests: Open, plan: Path, caplog: pytest.LogCaptureFixture
) -> None:
    requests = open_requests()
    requests.messaging.federation.session.asker.timeout_s = 0.5
    mosquitto.stop()
    wait_until(lambda: not requests.messaging.is_connected())

    def results() -> list[Any]:
        return [
            requests.ping_nodes(),
            requests.list(),
            requests.search(["breast"]),
            requests.training_plan_approve(plan, timeout=1),
            requests.send_message({"command": "ping", "researcher_id": "alice", "sequence": 1}),
        ]

    with caplog.at_level(logging.ERROR):
        lost = results()
        is_failed = requests.messaging.is_failed()
        requests.messaging.stop()
        stopped = results()

    assert (lost, stopped, is_failed) == ([[], {}, {}, {}, None], [[], {}, {}, {}, None], False)
    reasons = [record.getMessage() for record in caplog.records if record.name.startswith("fedmon.researcher")]
    assert len([reason for reason in reasons if f"127.0.0.1:{mosquitto.port}" in reason]) >= 5
    assert len([reason for reason in reasons if "not started" in reason]) == 4
    assert len([reason for reason in reasons if "make a new Requests()" in reason]) == 1
