"""Messages that were sent without waiting, came late, or were handed in: in the queue until they are taken."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bench.echo_nodes import Message
from fedmon.common.errors import InvalidMessageError
from fedmon.common.store.queue import FILE_NAME, TasksQueueError
from fedmon.common.wire.connection import MAX_OUTSTANDING
from fedmon.researcher.requests import Requests
from tests.researcher.historic.conftest import Open
from tests.support.brokers import Broker
from tests.support.databases import execute, fill_up, locked
from tests.support.echo_node import EchoNode, late_pong, sample
from tests.support.environment import researcher_environment
from tests.support.fedbiomed4 import payload
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

PONG = payload("ping_reply") | {"researcher_id": "alice", "node_id": "x", "sequence": 3}
SCALAR = payload("add_scalar") | {"researcher_id": "alice", "node_id": "x", "job_id": "j", "metric": {"loss": 0.5}}
LOG = payload("log") | {
    "node_id": "x",
    "level": "ERROR",
    "msg": '{"asctime": "now", "node_id": "x", "name": "disk", "level": "ERROR", "message": "full\\nERROR forged"}',
}

REPLIES = Path("alice", "replies", "alice", FILE_NAME)


def ping(sequence: int = 1) -> Message:
    return {"command": "ping", "researcher_id": "alice", "sequence": sequence}


def sequences(messages: Any) -> list[int]:
    return [message["sequence"] for message in messages]


def test_replies_to_what_was_sent_have_exactly_the_historic_fields(mosquitto: Broker, open_requests: Open) -> None:
    with EchoNode(mosquitto.port, "a"):
        requests = open_requests("a")
        requests.send_message(ping(77))
        (pong,) = requests.get_responses(["pong"])
        requests.send_message({"command": "list", "researcher_id": "alice"})
        (listed,) = requests.get_responses(["list"])
        requests.send_message({"command": "search", "researcher_id": "alice", "tags": ["part-1"]})
        (found,) = requests.get_responses(["search"])

    assert [dataset["name"] for dataset in found["databases"]] == ["table 1"]
    assert set(found) == set(listed)
    assert pong == PONG | {"node_id": "a", "sequence": 77}
    assert {"protocol_version", "command", "researcher_id", "node_id", "success", "databases", "count"} == set(listed)
    assert 2 == listed["count"] == len(listed["databases"])


def test_a_sequence_is_added_on_wish_without_gaps_and_is_that_on_the_wire(node: EchoNode, open_requests: Open) -> None:
    requests = open_requests("a")
    given = ping(0)

    numbers = []
    for client in (None, "a", None):
        numbers.append(requests.send_message(given, client=client, add_sequence=True))
        requests.ping_nodes()
        with pytest.raises(InvalidMessageError):
            requests.send_message({"command": "sing"}, add_sequence=True)
    without = requests.send_message(ping(50))
    told = sorted(sequences(requests.get_responses(["pong"])))

    assert numbers == [0, 1, 2]
    assert without is None
    assert told == [0, 1, 2, 50]
    assert {0, 1, 2} <= {request["sequence"] for request in node.sent("ping")}
    assert ping(0) == given


def test_a_message_that_is_not_sent_has_no_number(mosquitto: Broker, open_requests: Open) -> None:
    with Proxy(mosquitto.port) as link:
        requests = open_requests(url=link.url)
        link.freeze()

        numbers = [requests.send_message(ping(), client="a", add_sequence=True) for _ in range(MAX_OUTSTANDING + 2)]

        assert requests.messaging.is_connected()
        requests.close()
    assert (numbers[0], numbers[-1]) == (0, None)


@pytest.mark.parametrize("while_responses", [True, False])
def test_responses_wait_no_longer_than_their_timeout_for_a_silent_node(
    mosquitto: Broker, open_requests: Open, while_responses: bool
) -> None:
    with EchoNode(mosquitto.port, "a"), EchoNode(mosquitto.port, "b") as b:
        requests = open_requests("a", "b")
        b.answer = lambda _: None
        requests.send_message(ping())
        wait_until(lambda: requests.queue.qsize() == 1, what="the reply of a")

        started = time.monotonic()
        told = requests.get_responses(["pong"], timeout=2.0, while_responses=while_responses)

    assert [message["node_id"] for message in told] == ["a"]
    assert 1.9 < time.monotonic() - started < 20
    assert len(b.copies("ping")) > 1


def test_a_node_that_refuses_has_answered_and_its_reason_is_logged(
    mosquitto: Broker, open_requests: Open, caplog: pytest.LogCaptureFixture
) -> None:
    with EchoNode(mosquitto.port, "a"), EchoNode(mosquitto.port, "b") as b:
        requests = open_requests("a", "b")
        b.refuse(code="unsupported", reason="not you, says the owner")

        started = time.monotonic()
        requests.send_message(ping())
        told = requests.get_responses(["pong", "error"], timeout=60)
        requests.send_message(ping())
        both = requests.get_responses(["pong", "error"], timeout=60, only_successful=False)

    assert time.monotonic() - started < 30
    assert [message["node_id"] for message in told] == ["a"]
    errors = [message for message in both if message["command"] == "error"]
    assert [(error["node_id"], error["extra_msg"]) for error in errors] == [("b", "not you, says the owner")]
    assert errors[0]["errnum"] == "FB301: Protocol error"
    assert {"protocol_version", "command", "researcher_id", "node_id", "errnum", "extra_msg"} == set(errors[0])
    assert "not you, says the owner" in caplog.text
    assert "error of node b left out: no success" in caplog.text


def test_an_error_is_among_the_responses_however_slowly_it_is_logged(node: EchoNode, open_requests: Open) -> None:
    def slowly(_record: logging.LogRecord) -> bool:
        time.sleep(0.5)
        return True

    log = logging.getLogger("fedmon.researcher.historic.messaging")
    requests = open_requests("a")
    node.refuse()
    log.addFilter(slowly)
    try:
        requests.send_message(ping())
        told = requests.get_responses(["pong", "error"], timeout=10, only_successful=False)
    finally:
        log.removeFilter(slowly)

    assert [(message["command"], message["node_id"]) for message in told] == [("error", "a")]


def test_a_thread_that_sent_nothing_takes_what_another_sent_for(mosquitto: Broker, open_requests: Open) -> None:
    with EchoNode(mosquitto.port, "a"), EchoNode(mosquitto.port, "b"), ThreadPoolExecutor(1) as pool:
        requests = open_requests("a", "b")
        requests.send_message(ping(6))

        taken = pool.submit(requests.get_responses, ["pong"], timeout=10).result(60)

    assert sorted((message["node_id"], message["sequence"]) for message in taken) == [("a", 6), ("b", 6)]


def test_replies_of_a_wait_that_is_interrupted_are_there_for_the_next(
    mosquitto: Broker, open_requests: Open, interrupt: Callable[[], None]
) -> None:
    def once_a_has_answered(_request: Message) -> None:
        if len(silent.copies("ping")) > 1 and requests.queue.qsize() == 0:  # it is asked again
            silent.answer = silent.honest
            interrupt()

    with EchoNode(mosquitto.port, "a"), EchoNode(mosquitto.port, "b") as silent:
        requests = open_requests("a", "b")
        silent.answer = once_a_has_answered
        requests.send_message(ping(6))
        with pytest.raises(KeyboardInterrupt):
            requests.get_responses(["pong"], timeout=60)

        told = requests.get_responses(["pong"], timeout=60)

    assert sorted((message["node_id"], message["sequence"]) for message in told) == [("a", 6), ("b", 6)]


def test_replies_that_a_slow_disk_gives_out_during_an_interrupt_are_there_for_the_next(
    open_requests: Open, tmp_path: Path, interrupt: Callable[[], None]
) -> None:
    requests = open_requests()
    requests.queue.add(PONG)

    def once_it_is_taken() -> None:
        wait_until(lambda: requests.queue.qsize() == 0)
        interrupt()

    with locked(tmp_path / REPLIES):
        threading.Thread(target=once_it_is_taken, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            requests.get_messages()

    assert [message["sequence"] for message in requests.get_messages()] == [3]


WAITS = """
from fedmon.researcher.requests import Requests
requests = Requests()
requests.send_message({"command": "ping", "researcher_id": "alice", "sequence": 1})
requests.get_responses(["pong"], timeout=60)
"""


def test_replies_of_a_wait_that_is_killed_are_there_for_the_next_process(
    mosquitto: Broker, open_requests: Open, tmp_path: Path
) -> None:
    environ = researcher_environment(mosquitto.url, tmp_path / "alice")

    def is_taken() -> bool:
        try:
            with contextlib.closing(sqlite3.connect(f"file:{tmp_path / REPLIES}?mode=ro", uri=True)) as disk:
                return bool(disk.execute("SELECT 1 FROM handed").fetchone())
        except sqlite3.OperationalError:
            return False  # the process has not made its queue yet

    with EchoNode(mosquitto.port, "a"), EchoNode(mosquitto.port, "b", answer=lambda _: None):
        with subprocess.Popen([sys.executable, "-c", WAITS], env=environ) as waiting:
            wait_until(is_taken)
            waiting.kill()

        told = open_requests("a").get_messages(["pong"])

    assert [(message["node_id"], message["redelivered"]) for message in told] == [("a", True)]


def test_a_look_without_waiting_leaves_the_reply_for_the_next_look(node: EchoNode, open_requests: Open) -> None:
    requests = open_requests("a")
    node.answer = lambda _: None
    requests.send_message(ping(6))

    before = sequences(requests.get_messages())
    node.answer = node.honest

    assert (before, sequences(requests.get_messages(time=60))) == ([], [6])


def test_late_replies_wait_in_order_and_those_not_asked_for_stay(node: EchoNode, open_requests: Open) -> None:
    datasets: Message = {"command": "list", "datasets": [], "count": 0, "id": "asked-list"}
    requests = open_requests("a")
    for number in (1, 2):
        node.publish("general/researcher/alice/main/a", late_pong(number))
    node.publish("general/researcher/alice/main/a", late_pong(3) | datasets)
    node.publish("general/researcher/alice/main/a", late_pong(4))
    wait_until(lambda: requests.queue.qsize() == 4)

    assert len(requests.get_messages(["search"])) == 0
    assert [message["command"] for message in requests.get_messages(["list"])] == ["list"]
    assert sequences(requests.get_messages(["pong"])) == [1, 2, 4]
    assert len(requests.get_messages()) == 0


def test_waiting_for_messages_that_nobody_sends_ends_with_the_first_or_the_time(
    node: EchoNode, open_requests: Open
) -> None:
    requests = open_requests("a")
    started = time.monotonic()
    assert len(requests.get_messages(time=0.2)) == 0
    assert 0.2 <= time.monotonic() - started < 6

    threading.Timer(0.1, node.publish, ("general/researcher/alice/main/a", late_pong(1))).start()
    assert sequences(requests.get_messages(["pong"], time=60)) == [1]

    assert time.monotonic() - started < 30


def test_replies_of_a_pending_call_are_not_in_the_queue(mosquitto: Broker, open_requests: Open) -> None:
    answering = threading.Event()

    def slowly(request: Message) -> Message | None:
        return None if request["command"] == "list" and not answering.is_set() else slow.honest(request)

    with EchoNode(mosquitto.port, "quick"), EchoNode(mosquitto.port, "slow") as slow, ThreadPoolExecutor(1) as pool:
        slow.answer = slowly
        requests = open_requests("quick", "slow")
        asked = pool.submit(requests.list)
        wait_until(lambda: slow.sent("list"))

        stolen = requests.get_messages(time=0.3)
        answering.set()
        listed = asked.result(60)

    assert len(stolen) == 0
    assert {"quick", "slow"} == set(listed)


def test_what_is_no_request_is_refused_before_it_is_sent(node: EchoNode, open_requests: Open) -> None:
    wrong: list[Message] = [
        {"researcher_id": "alice"},
        {"command": "pong", "researcher_id": "alice"},
        {"command": "ping", "researcher_id": "alice"},
        {"command": "ping", "researcher_id": "alice", "sequence": "1"},
        {"command": "ping", "researcher_id": "alice", "sequence": 1, "more": 1},
    ]
    accepted = []
    requests = open_requests("a")
    node.wait(lambda: node.sent("ping"))  # that of the connection
    before = {one["id"] for one in node.received}

    for message in wrong:
        with contextlib.suppress(InvalidMessageError):
            requests.send_message(message)
            accepted.append(message)

    requests.ping_nodes()
    assert accepted == []
    assert len({one["id"] for one in node.received} - before) == 1


def test_what_no_node_serves_is_refused_with_the_way_that_works(mosquitto: Broker, open_requests: Open) -> None:
    requests = open_requests()
    approval = {"researcher_id": "alice", "description": "d", "sequence": 1, "training_plan_url": "http://x/plan"}

    with pytest.raises(InvalidMessageError, match="training_plan_approve"):
        requests.send_message({"command": "approval", **approval})
    with pytest.raises(InvalidMessageError, match="no node of ours serves 'train'"):
        requests.send_message(payload("train_request"))


# --- the queue ------------------------------------------------------------------------------------------------------


def test_the_queue_gives_one_message_after_the_other(open_requests: Open) -> None:
    queue = open_requests().queue
    queue.add(task=PONG)
    queue.add(PONG | {"sequence": 4})

    assert queue.qsize() == 2
    assert [queue.get()["sequence"], queue.get(block=False)["sequence"]] == [3, 4]
    queue.task_done()
    queue.task_done()
    assert queue.qsize() == 0
    with pytest.raises(TasksQueueError):
        queue.get(block=False)


def test_waiting_for_the_queue_ends_when_something_comes(open_requests: Open) -> None:
    queue = open_requests().queue
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(queue.get)
        queue.add(PONG)

        assert taken.result(60) == PONG


def test_the_queue_keeps_json_objects_only(open_requests: Open) -> None:
    wrong: list[Any] = ["text", None, [PONG], {"a": object()}, {"a": {1, 2}, 3: 4j}]
    queue = open_requests().queue
    accepted = []

    for task in wrong:
        with contextlib.suppress(TasksQueueError):
            queue.add(task)
            accepted.append(task)
    queue.add(PONG)

    assert accepted == []
    assert queue.get() == PONG


def test_a_message_that_the_disk_refuses_is_not_said_to_be_safe_and_can_be_taken(
    open_requests: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    requests = open_requests()
    fill_up(tmp_path / REPLIES, "queue_default")
    with pytest.raises(TasksQueueError, match="the disk has not taken the message"):
        requests.queue.add(PONG)
    requests.on_message(PONG | {"sequence": 4}, "general/researcher")
    execute(tmp_path / REPLIES, "DROP TRIGGER full")

    assert "message on topic 'general/researcher' not stored: the disk has not taken" in caplog.text
    assert [requests.queue.get(block=False)["sequence"] for _ in range(2)] == [3, 4]


# --- handing in -----------------------------------------------------------------------------------------------------


def test_a_reply_is_taken_from_the_historic_topic_and_from_those_below(open_requests: Open) -> None:
    topics = ("general/researcher", "general/researcher/alice/main/x", "general/researcher/alice")
    requests = open_requests()
    taken = {}

    for topic in topics:
        requests.on_message(PONG, topic)
        taken[topic] = requests.get_messages(["pong"]).data()

    assert taken == {topic: [PONG] for topic in topics}


def test_what_is_wrong_or_not_for_us_is_logged_and_ignored(
    open_requests: Open, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: list[tuple[Message, str]] = [
        (PONG, "general/nodes"),
        (PONG, "elsewhere"),
        (PONG, "general/logger"),
        (PONG, "general/researcher/alice/main/y"),
        (PONG, "general/researcher/bob/main/x"),
        (PONG | {"researcher_id": "bob"}, "general/researcher"),
        (PONG | {"more": 1}, "general/researcher"),
        (PONG | {"sequence": "3"}, "general/researcher"),
        (PONG | {"command": "sing"}, "general/researcher"),
        ({}, "general/researcher"),
        (SCALAR, "general/researcher"),
        (SCALAR, "general/monitoring/y"),
        (LOG, "general/logger/y"),
    ]
    requests = open_requests()
    seen: list[Message] = []
    requests.add_monitor_callback(seen.append)

    for message, topic in wrong:
        caplog.clear()
        requests.on_message(message, topic)
        assert f"message on topic {topic!r} ignored" in caplog.text, message
    requests.on_message(PONG, "general/researcher")

    assert requests.get_messages().data() == [PONG]
    assert seen == []


@pytest.mark.parametrize("topic", ["general/logger", "general/logger/x"])
def test_a_nodes_log_is_one_record_on_one_line_with_its_level(
    open_requests: Open, caplog: pytest.LogCaptureFixture, topic: str
) -> None:
    open_requests().on_message(LOG, topic)

    told = [record for record in caplog.records if record.name == "fedmon.node.x"]
    assert [(one.levelname, one.getMessage()) for one in told] == [("ERROR", "disk: full\\nERROR forged")]


@pytest.mark.parametrize("msg", ["no JSON", '{"message": 3}', '{"other": 1}', "[" * 10_000])
def test_a_log_that_is_not_as_agreed_is_told_as_it_is(caplog: pytest.LogCaptureFixture, msg: str) -> None:
    with caplog.at_level(logging.INFO):
        Requests.print_node_log_message({"node_id": "x/y", "level": "SHOUTING", "msg": msg})

    told = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert [("fedmon.node", "INFO", msg)] == told


# --- what nodes send of themselves ----------------------------------------------------------------------------------


def test_metrics_and_scalars_reach_the_monitor_callback_until_it_is_removed(
    node: EchoNode, open_requests: Open
) -> None:
    batch = sample("a", 1, [1.0], {"host_cpu_busy_ratio": [0.5]})
    scalar = {
        "command": "add_scalar",
        "protocol_version": "fedmon/1",
        "node_id": "a",
        "job_id": "j",
        "metric": {"loss": 0.5},
        "iteration": 7,
    }
    requests = open_requests("a")
    seen: list[Message] = []
    requests.add_monitor_callback(seen.append)

    def both() -> bool:
        node.publish("general/monitoring/a", batch)
        node.publish("general/monitoring", scalar)
        return {"sample", "add_scalar"} <= {message["command"] for message in seen}

    wait_until(both)
    requests.remove_monitor_callback()
    requests.remove_monitor_callback()
    number = len(seen)
    node.publish("general/monitoring/a", batch)
    requests.ping_nodes()

    assert number == len(seen)
    samples, scalars = (next(one for one in seen if one["command"] == kind) for kind in ("sample", "add_scalar"))
    assert samples["m"] == {"host_cpu_busy_ratio": [0.5]}
    assert tuple(scalars[name] for name in ("node_id", "job_id", "metric", "iteration")) == ("a", "j", {"loss": 0.5}, 7)


@pytest.mark.parametrize("topic", ["general/monitoring", "general/monitoring/x"])
def test_a_scalar_that_is_handed_in_reaches_the_newest_callback_alone(open_requests: Open, topic: str) -> None:
    requests = open_requests()
    before: list[Message] = []
    now: list[Message] = []
    requests.on_message(SCALAR, topic)
    requests.add_monitor_callback(before.append)
    requests.add_monitor_callback(now.append)

    requests.on_message(SCALAR, topic)

    assert (before, now) == ([], [SCALAR])
    assert requests.queue.qsize() == 0


def test_a_failing_monitor_callback_disturbs_nothing(
    mosquitto: Broker, open_requests: Open, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_message: Message) -> None:
        raise ZeroDivisionError("in the callback")

    with EchoNode(mosquitto.port, "a"):
        requests = open_requests("a")
        requests.add_monitor_callback(fail)

        requests.on_message(SCALAR, "general/monitoring")

        assert requests.ping_nodes() == ["a"]
    assert "in the callback" in caplog.text
