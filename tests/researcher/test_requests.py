"""Asking nodes: who answers, who does not and why, and how soon it is known."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bench.echo_nodes import DATASETS, Message
from fedmon.common.errors import InvalidIdError, InvalidInputError
from fedmon.common.ids import NodeId
from fedmon.researcher.asking.outcome import OutcomeStatus
from fedmon.researcher.asking.request import MAX_PAGES
from fedmon.researcher.federation import Federation
from fedmon.researcher.requests import Requests
from tests.researcher.conftest import Open
from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode
from tests.support.waiting import stays

PLAN = "import math\n\n\ndef train(rows):\n    return [math.sqrt(row) for row in rows]\n"


def statuses(outcomes: Any) -> dict[str, OutcomeStatus]:
    return {str(node_id): outcome.status for node_id, outcome in outcomes.items()}


def test_answers_of_a_call_that_is_interrupted_are_kept(
    mosquitto: Broker, federate: Open, interrupt: Callable[[], None]
) -> None:
    with EchoNode(mosquitto.port, "a"), EchoNode(mosquitto.port, "b") as silent:
        federation = federate("a", "b", timeout_s=60)

        def once_a_has_answered(_request: Message) -> None:
            if not all(waiting.is_owed_by(NodeId("a")) for waiting in federation.session.pending.all_open()):
                silent.answer = lambda _request: None  # it may be asked again before the interrupt takes effect
                interrupt()

        silent.answer = once_a_has_answered
        with pytest.raises(KeyboardInterrupt):
            federation.ping()
        silent.answer = silent.honest

        kept = federation.session.replies.take(timeout_s=10)

    assert [(one.command, one.message.node_id) for one in kept] == [("pong", "a")]


def test_start_and_close_work_without_with_and_may_be_repeated(mosquitto: Broker, tmp_path: Path) -> None:
    federation = Federation(mosquitto.url, folder=tmp_path)
    with pytest.raises(InvalidInputError, match="not started"):
        federation.ping()

    for _ in range(2):
        assert federation.start() is federation.start()
        assert len(federation.ping()) == 0
        federation.close()
        federation.close()

    with pytest.raises(InvalidInputError, match="not started, or is closed"):
        federation.nodes()


def test_closing_wakes_every_call_that_waits_with_an_error_that_says_so(mosquitto: Broker, federate: Open) -> None:
    with EchoNode(mosquitto.port, "a", answer=lambda _: None):
        federation = federate("a", timeout_s=120)
        requests = Requests(federation)

        def posted() -> None:
            requests.send_message({"command": "ping", "researcher_id": "alice", "sequence": 1})
            requests.get_responses(["pong"], timeout=120)

        calls: dict[str, Callable[[], object]] = {
            "ping": federation.ping,
            "search": lambda: federation.search(["breast"]),
            "responses": posted,
            "queue": requests.queue.get,
        }

        with ThreadPoolExecutor(len(calls)) as pool:
            waiting = {name: pool.submit(call) for name, call in calls.items()}
            assert stays(lambda: not any(call.done() for call in waiting.values()), 0.3)
            federation.close()
            errors = {name: str(call.exception(60)) for name, call in waiting.items()}
        requests.close()

    assert errors == dict.fromkeys(calls, "the federation was closed while this call waited")


FORKED = """
import os, sys
from fedmon import Federation
from fedmon.common.errors import FedmonError

with Federation(sys.argv[1], folder=sys.argv[2]) as federation:
    if os.fork() == 0:
        try:
            federation.ping()
        except FedmonError as error:
            print(error, flush=True)
        sys.exit()
    os.wait()
    print(list(federation.ping().ok), federation.status().connected)
"""


def test_a_fork_is_told_that_it_is_one_and_its_end_costs_no_connection(mosquitto: Broker, tmp_path: Path) -> None:
    with EchoNode(mosquitto.port, "a"):
        done = subprocess.run(
            [sys.executable, "-c", FORKED, mosquitto.url, str(tmp_path)], capture_output=True, text=True, timeout=60
        )

    error, parent = done.stdout.splitlines()
    assert "this is a fork of it: open a new one here" in error
    assert parent == "['a'] True"


def test_wrong_arguments_are_errors_of_ours_that_name_them(federate: Open) -> None:
    federation: Any = federate()
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("interval_s is -1", lambda: federation.monitor(interval_s=-1)),
        ("timeout_s is 0: .*positive number of seconds", lambda: federation.ping(timeout_s=0)),
        ("timeout_s is -1", lambda: federation.ping(timeout_s=-1)),
        ("timeout_s is inf", lambda: federation.ping(timeout_s=math.inf)),
        ("timeout_s is nan", lambda: federation.ping(timeout_s=math.nan)),
        ("callback is 3", lambda: federation.monitor(callback=3)),
        ("callback is None", lambda: federation.on("presence", None)),
        ("'reboot' is not one of decision, outcome, presence, telemetry", lambda: federation.on("reboot", print)),
        ("level 'LOUD' is not one of", lambda: federation.logs(level="LOUD")),
        ("give", lambda: federation.search("breast")),
        ("give", lambda: federation.search([])),
        ("give", lambda: federation.search(["x" * 257])),
        (r"give a list of node ids, such as \['a'\]", lambda: federation.ping(nodes="a")),
        ("node id 'a/#'", lambda: federation.ping(nodes=["a/#"])),
    ]

    for message, call in wrong:
        with pytest.raises((InvalidIdError, InvalidInputError), match=message):
            call()


def test_datasets_are_listed_and_searched_by_tag_and_no_match_is_an_answer(mosquitto: Broker, federate: Open) -> None:
    with EchoNode(mosquitto.port, "a"):
        federation = federate()

        listed = federation.datasets()
        found, also = federation.search(["breast", "part-1"]), federation.search(("breast", "part-1"))
        none = federation.search(["nothing"])

    assert [dataset.name for dataset in listed.ok["a"].datasets] == ["table 0", "table 1"]
    assert [dataset.name for dataset in found.ok["a"].datasets] == ["table 1"]
    assert found.ok["a"].datasets == also.ok["a"].datasets
    assert (none.ok["a"].datasets, none.ok["a"].count) == ([], 0)


def test_an_id_never_heard_of_is_asked_once_and_gets_an_outcome(mosquitto: Broker, federate: Open) -> None:
    with EchoNode(mosquitto.port, "a"), EchoNode(mosquitto.port, "mute", announced=False) as mute:
        mute.answer = lambda _request: None
        federation = federate(timeout_s=30)

        started = time.monotonic()
        outcomes = federation.datasets(nodes=["a", "mute"])
        mute.wait(lambda: mute.copies("list"))

    assert statuses(outcomes) == {"a": OutcomeStatus.OK, "mute": OutcomeStatus.OFFLINE}
    assert "never heard of" in outcomes["mute"].reason
    assert time.monotonic() - started < 10
    assert len(mute.copies("list")) == 1


def test_a_node_that_the_broker_remembers_nothing_of_answers_when_named(
    mosquitto: Broker, federate: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmon.researcher.asking.request.DISCOVERY_S", 60.0)
    with EchoNode(mosquitto.port, "quiet", announced=False) as quiet:
        federation = federate()
        quiet.answer = lambda request: quiet.honest(request) if request["command"] == "list" else None

        outcomes = federation.datasets(nodes=["quiet"])

    assert statuses(outcomes) == {"quiet": OutcomeStatus.OK}


def test_silent_nodes_are_asked_again_with_the_same_id_until_they_answer(mosquitto: Broker, federate: Open) -> None:
    def third_time(request: Message) -> Message | None:
        asked = [one for one in slow.received if one["id"] == request["id"]]
        return slow.honest(request) if len(asked) == 2 else None

    with EchoNode(mosquitto.port, "prompt"), EchoNode(mosquitto.port, "slow") as slow:
        federation = federate("prompt", "slow", timeout_s=30)
        slow.answer = third_time

        outcomes = federation.datasets()

    assert statuses(outcomes) == {"prompt": OutcomeStatus.OK, "slow": OutcomeStatus.OK}
    assert len(slow.copies("list")) >= 3
    assert len(slow.sent("list")) == 1
    assert slow.topics[-2:] == ["general/nodes/alice/slow"] * 2
    assert (outcomes["slow"].elapsed_s or 0) > 0.7


def test_a_silent_node_times_out_and_the_result_says_so(mosquitto: Broker, federate: Open) -> None:
    with EchoNode(mosquitto.port, "a"), EchoNode(mosquitto.port, "mute") as mute:
        federation = federate("a", "mute")
        mute.answer = lambda _request: None

        started = time.monotonic()
        outcomes = federation.ping(timeout_s=5.0)

    assert statuses(outcomes) == {"a": OutcomeStatus.OK, "mute": OutcomeStatus.TIMED_OUT}
    assert re.search(r"no reply within [5-9]\.\d s, asked [2-9] times", outcomes["mute"].reason)
    assert 4.95 < time.monotonic() - started < 10


def test_a_node_that_comes_back_during_a_request_is_asked_at_once(mosquitto: Broker, federate: Open) -> None:
    silent = EchoNode(mosquitto.port, "a", boot=1, answer=lambda _: None).start()
    federation = federate(timeout_s=30)
    silent.answer = lambda request: silent.honest(request) if request["command"] == "ping" else None
    assert federation.ping(nodes=["a"]).ok

    silent.answer = lambda _request: None
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(federation.datasets, nodes=["a"])
        # After the sixth question, 8 s would pass before the next.
        silent.wait(lambda: len(silent.copies("list")) >= 6)
        silent.die()
        with EchoNode(mosquitto.port, "a", boot=2) as back:
            started = time.monotonic()
            answered = asked.result(60)
            took_s = time.monotonic() - started

    assert statuses(answered) == {"a": OutcomeStatus.OK}
    assert took_s < 7.0
    assert len(back.sent("list")) == 1


def test_a_request_stops_waiting_for_a_node_that_goes_offline_and_says_so(mosquitto: Broker, federate: Open) -> None:
    with EchoNode(mosquitto.port, "here"), EchoNode(mosquitto.port, "gone") as gone, ThreadPoolExecutor(1) as pool:
        federation = federate("here", "gone", timeout_s=60)
        gone.answer = lambda _request: None
        asked = pool.submit(federation.datasets)
        gone.wait(lambda: gone.sent("list"))
        started = time.monotonic()
        gone.stop()
        answered = asked.result(60)
        took_s = time.monotonic() - started

    assert statuses(answered) == {"gone": OutcomeStatus.OFFLINE, "here": OutcomeStatus.OK}
    assert answered["gone"].reason.startswith("offline since")
    assert answered["gone"].reason.endswith("stopped by its owner")
    assert 1.9 < took_s < 20


def test_a_node_that_is_restarted_during_a_request_is_waited_for(mosquitto: Broker, federate: Open) -> None:
    with EchoNode(mosquitto.port, "a") as node, ThreadPoolExecutor(1) as pool:
        federation = federate("a", timeout_s=60)
        node.answer = lambda request: node.honest(request) if node.boot == 2 else None
        asked = pool.submit(federation.datasets)
        node.wait(lambda: node.sent("list"))

        node.say("offline", "stopped by its owner")
        node.boot = 2
        node.say("online")

        assert statuses(asked.result(60)) == {"a": OutcomeStatus.OK}


UNREADABLE = {
    "no number": {"sequence": "one"},
    "another session": {"session": "another"},
    "another kind": {"command": "pong", "time": "2026-01-01T00:00:00Z", "boot": 1, "agent_version": "x"},
    "another version": {"protocol_version": "fedmon/9"},
}


@pytest.mark.parametrize("wrong", UNREADABLE.values(), ids=list(UNREADABLE))
def test_a_good_reply_after_one_that_cannot_be_read_counts(
    node: EchoNode, federate: Open, wrong: dict[str, Any]
) -> None:
    federation = federate("a", timeout_s=60)
    node.answer = lambda request: [(node.honest(request) or {}) | wrong, node.honest(request)]

    outcomes = federation.datasets()

    assert statuses(outcomes) == {"a": OutcomeStatus.OK}


def test_a_node_whose_only_reply_cannot_be_read_is_said_to_have_replied(mosquitto: Broker, federate: Open) -> None:
    with EchoNode(mosquitto.port, "a") as node, EchoNode(mosquitto.port, "b") as other:
        federation = federate("a", "b")
        node.answer = lambda request: (node.honest(request) or {}) | {"count": "many"}
        other.answer = lambda request: (other.honest(request) or {}) | {"session": "another"}

        outcomes = federation.datasets(timeout_s=5.0)
        node.answer, other.answer = node.honest, other.honest
        again = federation.datasets()

    assert statuses(outcomes) == {"a": OutcomeStatus.FAILED, "b": OutcomeStatus.FAILED}
    assert all("its reply could not be read: " in outcome.reason for outcome in outcomes.values())
    assert len(again.ok) == 2


def test_an_error_reply_is_an_answer_with_its_reason(node: EchoNode, federate: Open) -> None:
    expected = {
        "refused": OutcomeStatus.REFUSED,
        "version": OutcomeStatus.TOO_OLD,
        "unknown-command": OutcomeStatus.TOO_OLD,
        "failed": OutcomeStatus.FAILED,
        "busy": OutcomeStatus.BUSY,
    }
    codes = list(expected)

    def refuse(request: Message) -> Message:
        code = codes[len({one["id"] for one in node.sent("list")} - {request["id"]})]
        reason = "policy of this node: run `fedmon node policy allow alice`"
        return node.error(request, code, reason) | {"retry_after_s": 5.0}

    federation = federate()
    federation.nodes()
    node.answer = refuse

    outcomes = {code: federation.datasets()["a"] for code in codes}

    assert {code: outcome.status for code, outcome in outcomes.items()} == expected
    assert {(outcome.reason, outcome.retry_after_s, outcome.reply) for outcome in outcomes.values()} == {
        ("policy of this node: run `fedmon node policy allow alice`", 5.0, None)
    }


def test_a_reply_of_another_major_version_is_too_old_and_does_not_cost_the_timeout(
    node: EchoNode, federate: Open
) -> None:
    federation = federate(timeout_s=60)
    node.answer = lambda request: (node.honest(request) or {}) | {"protocol_version": "fedmon/9"}

    started = time.monotonic()
    outcomes = federation.datasets()

    assert statuses(outcomes) == {"a": OutcomeStatus.TOO_OLD}
    assert "fedmon/9" in outcomes["a"].reason
    assert "fedmon/1" in outcomes["a"].reason
    assert time.monotonic() - started < 20


def test_a_plan_is_handed_in_with_its_exact_bytes_and_its_status_is_asked(
    mosquitto: Broker, federate: Open, tmp_path: Path
) -> None:
    path = tmp_path / "roots.py"
    path.write_text(PLAN)
    with EchoNode(mosquitto.port, "a") as a, EchoNode(mosquitto.port, "b"):
        federation = federate("a", "b")

        approvals = federation.approve(path, description="square roots", nodes=["a", "b"])
        known = federation.plan_status(path)

    request = a.sent("approval")[-1]
    assert list(approvals.ok) == ["a", "b"]
    assert [reply.status.value for reply in approvals.ok.values()] == ["pending", "pending"]
    assert (request["name"], request["source"], request["description"]) == ("roots", PLAN, "square roots")
    assert request["sha256"] == approvals.ok["a"].sha256 == a.sent("training-plan-status")[-1]["sha256"]
    assert request["size_bytes"] == len(PLAN.encode())
    assert known.ok["a"].status is None


def listing(node: EchoNode, page: Callable[[int], Message | None]) -> None:
    """Have a node answer a list, from an offset, with these fields of a page; or not at all."""

    def answer(request: Message) -> Message | None:
        reply = node.honest(request) or {}
        if request["command"] != "list":
            return reply
        fields = page(request["offset"])
        return None if fields is None else reply | fields

    node.answer = answer


def test_more_datasets_than_fit_into_a_message_come_page_by_page(node: EchoNode, federate: Open) -> None:
    many = [DATASETS[0] | {"dataset_id": str(number), "name": f"table {number}"} for number in range(25)]

    def in_tens(offset: int) -> Message:
        end = offset + 10
        return {"datasets": many[offset:end], "count": 25, "offset": offset, "next_offset": end if end < 25 else None}

    listing(node, in_tens)

    listed = federate().datasets()

    assert [dataset.name for dataset in listed.ok["a"].datasets] == [f"table {number}" for number in range(25)]
    assert [request["offset"] for request in node.sent("list")] == [0, 10, 20]


@pytest.mark.parametrize(
    ("pages", "status"),
    [
        ([{"next_offset": 2}, None], OutcomeStatus.TIMED_OUT),
        ([{"next_offset": 2}, {"command": "error", "code": "failed", "reason": "no"}], OutcomeStatus.FAILED),
        ([{"success": False}], OutcomeStatus.FAILED),
    ],
    ids=["silent after its first page", "an error after its first page", "no success"],
)
def test_a_list_that_is_not_whole_or_no_success_is_none(
    node: EchoNode, federate: Open, pages: list[Message | None], status: OutcomeStatus
) -> None:
    listing(node, lambda offset: pages[offset > 0])

    listed = federate().datasets(timeout_s=5)

    assert (list(listed.ok), listed["a"].status, listed["a"].reply) == ([], status, None)


def test_a_node_whose_pages_do_not_advance_is_not_asked_for_ever(node: EchoNode, federate: Open) -> None:
    listing(node, lambda _offset: {"next_offset": 2})

    started = time.monotonic()
    listed = federate(timeout_s=30).datasets()

    assert listed["a"].ok
    assert time.monotonic() - started < 10
    assert len(node.sent("list")) == 2


def test_a_node_whose_pages_never_end_is_asked_for_a_thousand(node: EchoNode, federate: Open) -> None:
    listing(node, lambda offset: {"datasets": [DATASETS[0]], "next_offset": offset + 1})

    federate(timeout_s=60).datasets()

    assert len(node.sent("list")) == 1 + MAX_PAGES
