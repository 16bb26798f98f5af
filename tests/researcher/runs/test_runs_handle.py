"""A run as its researcher sees it: accepted or refused, followed, over; and what nodes can do wrong."""

from __future__ import annotations

import hashlib
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.echo_nodes import VERSION, Message, now_utc, presence
from fedmon.common.errors import (
    ConflictError,
    FedmonError,
    InvalidInputError,
    NoAnswerError,
    NotConnectedError,
    NotFoundError,
)
from fedmon.common.store.queue import FILE_NAME
from fedmon.common.text import short_ids
from fedmon.common.wire.runs import JobOutcome
from fedmon.researcher.federation import Federation
from fedmon.researcher.runs.errors import RunFailedError, RunNotOverError
from fedmon.researcher.runs.handle import RunHandle
from tests.researcher.conftest import Open
from tests.support.brokers import Broker
from tests.support.databases import fill_up
from tests.support.environment import researcher_environment
from tests.support.historic_repository import HistoricRepository
from tests.support.proxy import Proxy
from tests.support.running_node import PLAN, RunningNode, json_parcel, npz_parcel
from tests.support.shell import begun
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until

DIGEST = f"sha256:{PLAN}"


@pytest.fixture
def a(mosquitto: Broker) -> Iterator[RunningNode]:
    with RunningNode(mosquitto.port, "a") as node:
        yield node


@pytest.fixture
def b(mosquitto: Broker) -> Iterator[RunningNode]:
    with RunningNode(mosquitto.port, "b") as node:
        yield node


def started(federation: Federation, **options: Any) -> RunHandle:
    federation.nodes()
    return federation.run(DIGEST, **options)


def test_a_run_returns_what_every_node_returned(a: RunningNode, b: RunningNode, federate: Open) -> None:
    handle = started(federate(), args={"rounds": 3})
    assert handle.states()["a"].state == "running"
    assert handle.started is not None
    rows = [(row["job"], row["name"], row["state"]) for row in handle.started.rows()]
    assert rows == [(handle.job_id, "plan", "running")] * 2
    assert str(handle.__rich__()) == str(handle)

    a.end(handle.job_id, result=json_parcel({"mean": 1.5}))
    b.end(handle.job_id, result=json_parcel({"mean": 2.5}))

    assert handle.result(timeout_s=60) == {"a": {"mean": 1.5}, "b": {"mean": 2.5}}
    assert [one["arguments"] for one in a.sent("run")] == [{"rounds": 3}]
    assert a.sent("run")[0]["job_id"] == b.sent("run")[0]["job_id"] == handle.job_id
    assert handle.is_over
    assert handle.states().is_over


def test_a_refusal_is_named_and_the_results_of_the_others_are_there(
    a: RunningNode, b: RunningNode, federate: Open
) -> None:
    b.refuse("run", reason="the plan is pending: its owner has not decided")
    handle = started(federate())
    a.end(handle.job_id, result=json_parcel({"n": 1}))

    with pytest.raises(RunFailedError, match=r"1 of 2 nodes did not succeed: b: refused .*has not decided") as caught:
        handle.result(timeout_s=60)

    assert caught.value.results == handle.results(partial=True) == {"a": {"n": 1}}
    assert vars(pickle.loads(pickle.dumps(caught.value))) == vars(caught.value)  # as a pool of processes sends it
    assert list(caught.value.failed) == ["b"]
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(("code", "exit_code"), [("refused", 4), ("busy", 4), ("failed", 4), ("no-sandbox", 1)])
def test_when_nobody_takes_part_the_exit_code_says_whether_they_refused(
    a: RunningNode, b: RunningNode, federate: Open, code: str, exit_code: int
) -> None:
    a.refuse("run")
    b.refuse("run", code=code)

    with pytest.raises(RunFailedError) as caught:
        started(federate()).result()

    assert caught.value.exit_code == exit_code
    assert sorted(caught.value.failed) == ["a", "b"]


def test_an_end_that_is_no_success_is_told_with_its_reason(a: RunningNode, federate: Open) -> None:
    federation = federate()
    problem = {"type": "ValueError", "message": "no column radius"}
    for state in ("failed", "memory-limit", "plan-rejected", "stopped-by-owner", "lost"):
        handle = started(federation, nodes=["a"])
        a.end(handle.job_id, state, reason="as it says", problem=problem)

        with pytest.raises(RunFailedError, match=rf"a: {state} \(ValueError: no column radius; as it says\)"):
            handle.result(timeout_s=60)


def test_a_node_that_is_absent_is_told_when_it_was_named_and_no_part_otherwise(
    mosquitto: Broker, a: RunningNode, b: RunningNode, federate: Open, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningNode(mosquitto.port, "gone"):
        pass
    a.publish("general/status/ghost", presence("ghost", 3), retain=True)
    federation = federate()
    ghost = federation.ping(timeout_s=1.0)["ghost"]

    named = started(federation, nodes=["a", "gone"])
    everybody = started(federation)

    assert ghost.status.value == "stale"
    assert named.states()["gone"].state == "offline"
    assert named.states()["gone"].sentence().startswith("offline (offline since ")
    with pytest.raises(RunFailedError, match="gone: offline") as caught:
        started(federation, nodes=["gone"]).result(timeout_s=60)
    assert caught.value.exit_code == 6
    assert everybody.nodes == ["a", "b"]

    # another process cannot know that they were not asked
    found = federate(instance="other").job(everybody.job_id, timeout_s=1.0)
    assert found.nodes == ["a", "b"]
    assert "did not say whether they run it: ghost: said to be online" in caplog.text
    assert "; gone: offline since" in caplog.text


@pytest.mark.parametrize("others", [[], ["a"]])
def test_a_node_that_goes_while_it_is_asked_takes_part_and_its_outcome_counts(
    mosquitto: Broker, federate: Open, others: list[str]
) -> None:
    # given a node that begins a run of all nodes, and is gone before it says so
    def begins_silently(request: Message) -> Message | None:
        reply = going.honest(request)
        return None if request["command"] == "run" else reply

    with ExitStack() as opened, ThreadPoolExecutor(1) as pool:
        nodes = [opened.enter_context(RunningNode(mosquitto.port, node_id)) for node_id in others]
        going = RunningNode(mosquitto.port, "b").start()
        going.answer = begins_silently
        asked = pool.submit(started, federate())
        going.wait(lambda: going.sent("run"))
        going.die()
        handle = asked.result(60)
        for node in nodes:
            node.end(handle.job_id, result=json_parcel({"n": 1}))
        of_others = {node_id: {"n": 1} for node_id in others}

        # when the others are waited for, it is named
        with pytest.raises(RunFailedError, match=f"1 of {len(nodes) + 1} nodes did not succeed: b: offline") as caught:
            handle.result(timeout_s=60)
        assert caught.value.results == of_others

        # then its outcome counts as soon as it is back
        back = opened.enter_context(RunningNode(mosquitto.port, "b", boot=2))
        back.jobs |= going.jobs
        back.end(handle.job_id, result=json_parcel({"n": 2}))
        wait_until(lambda: handle.states()["b"].succeeded, what="the outcome")
        assert handle.result(timeout_s=60) == {**of_others, "b": {"n": 2}}


def test_nobody_to_ask_is_said_at_once(federate: Open) -> None:
    federation = federate()

    with pytest.raises(NoAnswerError, match="no node to run it: no node is there"):
        started(federation)
    with pytest.raises(NoAnswerError, match="name at least one node"):
        federation.run(DIGEST, nodes=[])


def test_tags_and_a_dataset_choose_the_nodes_that_offer_it(
    a: RunningNode, b: RunningNode, federate: Open, environ: dict[str, str]
) -> None:
    federation = federate()

    assert started(federation, tags=["part-1"]).nodes == ["a", "b"]
    assert started(federation, dataset="dataset-0").nodes == ["a", "b"]
    assert started(federation, dataset="table 0").nodes == ["a", "b"]
    assert [one["tags"] for one in a.sent("run")] == [["part-1"], [], []]
    assert a.sent("run")[1]["dataset_id"] == "dataset-0"
    with pytest.raises(NoAnswerError, match="no dataset with the tag 'elsewhere' is offered to you by a, b") as caught:
        federation.run(DIGEST, tags=["elsewhere"])
    assert caught.value.exit_code == 3
    with pytest.raises(NoAnswerError, match="no dataset 'table 0' with the tag 'part-1' is offered to you by a, b"):
        federation.run(DIGEST, tags=["part-1"], dataset="table 0")
    assert [fedmon_here("datasets", tag, environ=environ).returncode for tag in ("elsewhere", "part-1")] == [3, 0]


def test_a_job_id_stands_for_one_run(a: RunningNode, federate: Open) -> None:
    federation = federate()
    handle = started(federation, args={"n": 1, "m": 1})

    other = federate(instance="other")
    found = other.job(handle.job_id)
    for each in (federation, other):
        again = each.run(DIGEST, args={"m": 1, "n": 1}, job_id=found.job_id)
        with pytest.raises(ConflictError, match="stands for another run"):
            each.run(DIGEST, args={"n": 2}, job_id=found.job_id)

    a.end(handle.job_id, result=json_parcel({"n": 1}))
    assert again.result(timeout_s=60) == {"a": {"n": 1}}


def test_scalars_come_live_and_are_complete_at_the_end_though_some_were_lost(a: RunningNode, federate: Open) -> None:
    a.page, a.began = 3, "starting"
    told: list[tuple[str, int]] = []
    handle = started(federate(), nodes=["a"])
    assert handle.states()["a"].state == "starting"
    handle.on_scalar(lambda one: told.append((one.node_id, one.number)))
    a.report(handle.job_id, loss=1.0)
    wait_until(lambda: told and handle.states()["a"].state == "running", what="the live scalar of a run")

    for number in range(1, 12):
        a.report(handle.job_id, live=number == 5, loss=1.0 / number)
    a.end(handle.job_id, result=json_parcel({}))
    handle.result(timeout_s=60)

    assert [one.number for one in handle.scalars["a"]] == list(range(12))
    assert handle.scalars["a"][3].values == {"loss": 1 / 3}
    wait_until(lambda: len(told) == 12, what="every scalar to be told")
    assert sorted(told) == [("a", number) for number in range(12)]
    assert handle.states()["a"].scalars == 12
    assert handle.scalars_lost == {}


def test_scalars_that_the_node_keeps_no_more_are_counted_and_waited_for_no_longer(
    a: RunningNode, federate: Open
) -> None:
    handle = started(federate(), nodes=["a"])
    for number in range(4):
        a.report(handle.job_id, live=False, loss=float(number))
    del a.reports[handle.job_id][:2]
    assert handle.scalars_lost == {}
    a.end(handle.job_id, result=json_parcel({}), scalars=6)

    handle.result(timeout_s=60)

    assert [one.number for one in handle.scalars["a"]] == [2, 3]
    assert handle.scalars_lost == {"a": 4}


def test_the_result_of_a_node_that_did_not_know_the_job_before_it_got_it_is_asked_for(
    a: RunningNode, federate: Open
) -> None:
    a.answer = lambda request: None if request["command"] == "run" and not a.sent("job-status") else a.honest(request)
    handle = started(federate(timeout_s=60))
    a.end(handle.job_id, told=False, result=json_parcel({"n": 7}))

    assert handle.result(timeout_s=60) == {"a": {"n": 7}}


def test_scalars_beyond_64_mib_of_a_node_are_counted_as_lost(a: RunningNode, federate: Open) -> None:
    handle = started(federate(), nodes=["a"])
    wide = {f"m{number}": 1.0 for number in range(7_000)}
    for number in range(80):
        a.stream(handle.job_id, number, wide)
        if number % 20 == 0:  # the broker drops what a slow reader's queue cannot hold
            wait_until(lambda number=number: handle.states()["a"].scalars > number)  # type: ignore[misc]  # bound now
    a.end(handle.job_id, result=json_parcel({}), scalars=80)

    handle.result(timeout_s=60)

    assert handle.scalars_lost == {"a": 80 - sum(bool(one.values) for one in handle.scalars["a"])}
    assert 5 < handle.scalars_lost["a"] < 40


def test_a_node_that_forgot_a_job_before_its_result_was_asked_for_no_longer_keeps_it(
    a: RunningNode, federate: Open
) -> None:
    handle = started(federate(), nodes=["a"])
    a.jobs[handle.job_id] |= {"state": "succeeded", "scalars": 3}
    over = dict(a.jobs)
    a.jobs.clear()

    a.announce(handle.job_id, job=over[handle.job_id])

    with pytest.raises(RunFailedError, match="a: its result was dropped: the node no longer keeps it"):
        handle.result(timeout_s=60)


def test_scalars_that_never_came_or_are_too_many_are_counted_as_lost(
    a: RunningNode, b: RunningNode, federate: Open
) -> None:
    a.answer = lambda request: None if request["command"] == "job-status" else a.honest(request)
    handle = started(federate())

    a.end(handle.job_id, result=json_parcel({}), scalars=3)
    b.end(handle.job_id, result=json_parcel({}), scalars=100_002)
    handle.result(timeout_s=60)

    assert handle.scalars_lost == {"a": 3, "b": 100_002}

    # A node that comes back sends its outcome again, and is asked once more.
    a.answer = a.honest
    a.announce(handle.job_id)
    a.wait(lambda: len(a.sent("ack")) == 2)
    assert handle.wait(60)
    assert handle.scalars_lost == {"a": 3, "b": 100_002}


def test_a_node_that_is_expected_of_a_run_that_is_over_is_asked(a: RunningNode, b: RunningNode, federate: Open) -> None:
    federation = federate()
    handle = started(federation, nodes=["a"])
    a.end(handle.job_id, result=json_parcel({}))
    handle.result(timeout_s=60)
    federation.ping()

    handle.expect(["b"])

    assert handle.wait(60)
    assert "does not know the job" in handle.failures()["b"]


def test_gaps_between_the_scalars_of_a_page_need_no_question_each(a: RunningNode, federate: Open) -> None:
    # given a node that kept every third report of a plan that made too many
    handle = started(federate(), nodes=["a"])
    for number in range(900):
        a.report(handle.job_id, live=False, loss=float(number))
    a.reports[handle.job_id] = a.reports[handle.job_id][::3]
    a.end(handle.job_id, result=json_parcel({}), scalars=900)

    # when the run is waited for
    handle.result(timeout_s=60)

    # then all that are kept are here, the rest is counted, and few pages were asked for
    assert [one.number for one in handle.scalars["a"]] == list(range(0, 900, 3))
    assert handle.scalars_lost == {"a": 600}
    assert len([one for one in a.sent("job-status") if one.get("scalars_from") is not None]) <= 3


def test_late_answers_about_scalars_have_the_next_page_asked_for_once(a: RunningNode, federate: Open) -> None:
    # given a node that was asked three times for the first page of a run that is over
    a.page = 3
    federation = federate()
    handle = started(federation, nodes=["a"])
    for number in range(9):
        a.report(handle.job_id, live=False, loss=float(number))
    a.answer = lambda request: None if request["command"] == "job-status" else a.honest(request)
    a.end(handle.job_id, result=json_parcel({}))
    for _ in range(2):
        a.wait(lambda: a.sent("job-status"))
        a.say("offline")
        a.say("online")
    a.wait(lambda: len(a.sent("job-status")) >= 3)
    asked = a.sent("job-status")

    def answer(request: Message) -> None:
        a.publish(a.reply_topic(request), a.honest(request) or {})

    def next_pages() -> list[Message]:
        return [one for one in a.sent("job-status") if one["scalars_from"] == 3]

    # when all its answers come
    answer(asked[0])
    a.wait(next_pages)
    for request in asked[1:]:
        answer(request)
        federation.ping()
        federation.ping()
    pages = next_pages()

    # then one of them has the next page asked for
    assert len(pages) <= 2  # the second of these two is asked after 2 s, on a busy machine
    a.answer = a.honest
    for page in pages:
        answer(page)
    assert handle.wait(60)
    assert [one.number for one in handle.scalars["a"]] == list(range(9))


def test_after_a_quiet_while_nodes_are_asked_how_it_stands(mosquitto: Broker, federate: Open) -> None:
    with (
        RunningNode(mosquitto.port, "mute") as mute,
        RunningNode(mosquitto.port, "late") as late,
        RunningNode(mosquitto.port, "reset") as reset,
    ):
        late.answer = lambda request: None if request["command"] == "run" else late.honest(request)
        federation = federate()
        handle = started(federation, timeout_s=5.0)
        assert handle.states()["late"].state == "unanswered"

        mute.end(handle.job_id, told=False, result=json_parcel({"n": 7}))
        late.honest(late.sent("run")[0])
        late.end(handle.job_id, told=False, result=json_parcel({"n": 8}))
        del reset.jobs[handle.job_id]
        with pytest.raises(RunFailedError, match=r"reset: lost .*no longer knows the job") as caught:
            handle.result(timeout_s=60)

    assert caught.value.results == {"late": {"n": 8}, "mute": {"n": 7}}
    # A node that answers late is asked again.
    assert set(federation.status().counters) <= {"repeated replies", "late answers that no caller waits for"}


def test_a_node_that_fails_to_say_how_the_job_stands_is_asked_again(a: RunningNode, federate: Open) -> None:
    handle = started(federate(), nodes=["a"])
    a.refuse(code="failed", reason="it cannot write its records")
    a.end(handle.job_id, told=False, result=json_parcel({"n": 1}))
    wait_until(lambda: "cannot write" in handle.states()["a"].explanation(), what="the failure to be shown")
    assert not handle.is_over

    a.answer = a.honest

    assert handle.result(timeout_s=60) == {"a": {"n": 1}}


def test_at_the_deadline_the_error_says_who_is_unheard_and_what_is_there(
    mosquitto: Broker, a: RunningNode, b: RunningNode, federate: Open, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federate()
    dying = RunningNode(mosquitto.port, "dying").start()
    wait_until(lambda: "dying" in federation.nodes())
    handle = started(federation)
    for node in (a, b):
        node.end(handle.job_id, result=json_parcel({"n": 1}))
    dying.die()
    wait_until(lambda: handle.states()["dying"].unheard, what="the node to be missed")

    with pytest.raises(RunNotOverError, match=r"dying: running \(the node is unheard since .*it goes on") as caught:
        handle.result(timeout_s=0.5)

    assert caught.value.results == {"a": {"n": 1}, "b": {"n": 1}}
    assert caught.value.exit_code == 6
    assert sum("dying is waited for" in record.getMessage() for record in caplog.records) == 1


def test_a_result_that_is_none_is_dropped_with_a_reason(a: RunningNode, b: RunningNode, federate: Open) -> None:
    federation = federate()
    cases: list[tuple[Any, str]] = [
        (json_parcel({"n": 1}, sha256="1" * 64), "its digest is"),
        (json_parcel({"n": 1}, size_bytes=3), "not the 3 that were announced"),
        (json_parcel({"n": 1}, size_bytes=2**40), "output_bytes allow more"),
        (json_parcel({"n": 1}, base64="AAAA"), "given in 2 ways"),
        (json_parcel([1, 2]), ""),
        (npz_parcel(b"PK\x03\x04 no archive"), ""),
        (npz_parcel(b"x", base64="?"), "not valid base64"),
        (
            {"format": "npz", "sha256": PLAN, "size_bytes": 5, "url": "http://169.254.169.254/latest"},
            "not under an all",
        ),
    ]
    for result, why in cases:
        handle = started(federation)
        a.end(handle.job_id, result=result)
        b.end(handle.job_id, result=json_parcel({"n": 2}))

        with pytest.raises(RunFailedError, match=f"a: its result was dropped: .*{why}") as caught:
            handle.result(timeout_s=60)

        assert caught.value.results == {"b": {"n": 2}}


def test_where_there_is_no_numpy_a_result_with_arrays_says_what_to_install(
    a: RunningNode, federate: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = started(federate())
    a.end(handle.job_id, result=npz_parcel(b"x"))
    monkeypatch.setitem(sys.modules, "numpy", None)

    with pytest.raises(RunFailedError, match="a: its result was dropped: it holds arrays, which need numpy: pip inst"):
        handle.result(timeout_s=60)


def test_a_held_result_beside_one_that_was_dropped_is_a_failure(a: RunningNode, b: RunningNode, federate: Open) -> None:
    handle = started(federate())
    a.end(handle.job_id, result=json_parcel({"n": 1}, sha256="1" * 64))
    b.end(handle.job_id, "held", reason="its owner has not decided")

    with pytest.raises(FedmonError, match="a: its result was dropped") as caught:
        handle.result(timeout_s=60)

    assert (type(caught.value), caught.value.exit_code) == (RunFailedError, 1)


def test_an_outcome_of_another_job_node_or_plan_changes_nothing(
    mosquitto: Broker, a: RunningNode, b: RunningNode, federate: Open
) -> None:
    federation = federate()
    handle = started(federation, nodes=["a"])
    honest = a.jobs[handle.job_id]
    over = honest | {"state": "succeeded"}

    b.announce(handle.job_id, job=over, result=json_parcel({"n": 666}))
    a.announce(handle.job_id, job=over | {"job_id": "another"}, result=json_parcel({"n": 666}))
    a.announce(handle.job_id, job=over | {"sha256": "f" * 64}, result=json_parcel({"n": 666}))
    a.announce(handle.job_id, job=honest, result=json_parcel({"n": 666}))
    b.jobs[handle.job_id] = honest
    b.reports[handle.job_id] = []
    b.report(handle.job_id, loss=666.0)
    uncounted = {"command": "add_scalar", "protocol_version": VERSION, "node_id": "a", "job_id": handle.job_id}
    a.publish("general/monitoring/a", uncounted | {"metric": {"loss": 666.0}})
    assert handle.stop(nodes=["b"]).ok
    wait_until(lambda: "another plan" in handle.states()["a"].explanation(), what="the wrong plan to be noticed")
    assert not handle.is_over
    a.end(handle.job_id, result=json_parcel({"n": 1}))

    assert handle.result(timeout_s=60) == {"a": {"n": 1}}
    assert federation.status().counters["answers about runs dropped"] == 4
    assert handle.scalars["a"] == []


def test_a_node_that_answers_about_another_job_has_not_answered(a: RunningNode, federate: Open) -> None:
    other = {"job_id": "x", "state": "running", "sha256": PLAN, "created": now_utc()}
    a.answer = lambda request: {**(a.honest(request) or {}), "job": other} if request["command"] == "run" else None
    federation = federate()
    handle = started(federation, nodes=["a"])

    assert handle.states()["a"].state == "unanswered"
    assert federation.status().counters["answers about runs dropped"] == 1


def file_parcel(content: bytes, url: str) -> dict[str, Any]:
    return {"format": "json", "sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content), "url": url}


def test_a_result_that_could_not_be_fetched_is_fetched_by_the_next_call(
    a: RunningNode, federate: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b'{"n": 1}'
    with HistoricRepository() as repository:
        monkeypatch.setenv("FEDMON_REPOSITORY_URL", repository.url)
        url = repository.put("result", content)
        path, _ = repository.files.popitem()
        handle = started(federate(), nodes=["a"])
        a.end(handle.job_id, result=file_parcel(content, url))
        with pytest.raises(RunFailedError, match=r"a: its result was dropped: .* answered 404"):
            handle.result(timeout_s=60)

        repository.files[path] = content

        assert handle.result(timeout_s=60) == {"a": {"n": 1}}


def test_a_result_that_was_not_there_is_found_by_the_next_call(a: RunningNode, federate: Open) -> None:
    handle = started(federate(), nodes=["a"])
    a.end(handle.job_id)
    with pytest.raises(RunFailedError, match="a: its result was dropped: the node no longer keeps it"):
        handle.result(timeout_s=60)

    a.end(handle.job_id, result=json_parcel({"n": 1}))

    assert wait_until(handle.results, what="the result") == {"a": {"n": 1}}


FETCHER = """
import sys
from fedmon.researcher.federation import Federation

with Federation() as federation:
    federation.job(sys.argv[1]).result()
"""


def test_after_ctrl_c_the_end_of_the_process_waits_for_no_download(
    mosquitto: Broker, federate: Open, tmp_path: Path
) -> None:
    with RunningNode(mosquitto.port, "a") as node, socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        base = f"http://127.0.0.1:{server.getsockname()[1]}"
        handle = started(federate())
        node.end(handle.job_id, result=file_parcel(b"{}", f"{base}/x"))
        fetching = subprocess.Popen(
            [sys.executable, "-c", FETCHER, handle.job_id],
            env=researcher_environment(mosquitto.url, tmp_path / "shell", FEDMON_REPOSITORY_URL=base),
            stderr=subprocess.DEVNULL,
        )
        try:
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1000).startswith(b"GET /x ")
                fetching.send_signal(signal.SIGINT)

                assert fetching.wait(60) == -signal.SIGINT
        finally:
            fetching.kill()
            fetching.wait()


def test_another_process_finds_the_run_and_its_result(a: RunningNode, b: RunningNode, federate: Open) -> None:
    first = federate()
    handle = started(first)
    a.report(handle.job_id, loss=0.25)
    a.end(handle.job_id, result=json_parcel({"n": 1}))
    b.end(handle.job_id, "failed", reason="exit code 3")
    handle.wait(60)
    first.close()

    again = federate().job(handle.job_id)
    with pytest.raises(RunFailedError, match=r"b: failed .exit code 3") as caught:
        again.result(timeout_s=60)

    assert caught.value.results == {"a": {"n": 1}}
    assert [one.values for one in again.scalars["a"]] == [{"loss": 0.25}]
    assert again.sha256 == PLAN

    other = federate(instance="other")
    found = other.job(handle.job_id)
    limited = other.run(DIGEST, job_id=handle.job_id, limits={"output_bytes": 5})
    limited.wait(60)

    assert "it has 8 bytes, and 5 are taken" in limited.failures()["a"]
    assert found.sha256 == PLAN


def with_kept_outcome(mosquitto: Broker, federate: Open) -> tuple[Federation, RunHandle]:
    """Return the researcher ``main``, who keeps the outcome of a run of a shell that is gone, and the run."""
    with RunningNode(mosquitto.port, "a") as node:
        shell = federate(instance="shell")
        handle = started(shell)
        shell.close()
        main = federate()
        node.end(handle.job_id, result=json_parcel({"n": 1}))
        node.wait(lambda: node.sent("ack"))
    return main, handle


def test_an_outcome_that_came_while_nobody_followed_the_run_is_on_the_disk_of_main(
    mosquitto: Broker, federate: Open
) -> None:
    main, handle = with_kept_outcome(mosquitto, federate)
    main.close()

    again = federate()
    assert again.job(handle.job_id, timeout_s=0.5).result(timeout_s=60) == {"a": {"n": 1}}
    with pytest.raises(NotFoundError, match=r"no node knows a job never-heard-of of alice; a: offline") as caught:
        again.job("never-heard-of", timeout_s=0.5)
    assert caught.value.exit_code == 6


def test_a_kept_outcome_stays_for_the_next_call_when_nobody_can_be_asked(mosquitto: Broker, federate: Open) -> None:
    # given an outcome that is kept, and a broker that is away
    main, handle = with_kept_outcome(mosquitto, federate)
    mosquitto.stop()
    wait_until(lambda: not main.status().connected, what="the lost connection")

    # when a call looks for the run in vain
    with pytest.raises(NotConnectedError):
        main.job(handle.job_id, timeout_s=0.1)

    # then the outcome is on the disk for the next process
    assert main.status().kept_replies == 1
    main.close()
    mosquitto.start()
    assert federate().job(handle.job_id, timeout_s=0.5).result(timeout_s=60) == {"a": {"n": 1}}


def test_asking_for_a_run_again_in_vain_leaves_the_first_handle_its_outcome(mosquitto: Broker, tmp_path: Path) -> None:
    with (
        RunningNode(mosquitto.port, "a") as node,
        Proxy(mosquitto.port) as link,
        Federation(link.url, researcher_id="alice", folder=tmp_path) as federation,
    ):
        handle = started(federation, nodes=["a"])
        link.refuse()
        wait_until(lambda: not federation.status().connected, what="the lost connection")
        with pytest.raises(NotConnectedError):
            federation.run(DIGEST, nodes=["a"], job_id=handle.job_id, timeout_s=0.1)
        link.heal()

        node.end(handle.job_id, result=json_parcel({"n": 1}))

        assert handle.result(timeout_s=60) == {"a": {"n": 1}}


def test_what_a_shell_waited_for_it_acknowledges_and_nothing_else(a: RunningNode, federate: Open) -> None:
    other, shell = federate(instance="other"), federate(instance="shell")
    left, handle = started(other), started(shell)
    other.close()

    a.end(left.job_id, result=json_parcel({"n": 2}))
    a.end(handle.job_id, result=json_parcel({"n": 1}))
    assert handle.result(timeout_s=60) == {"a": {"n": 1}}
    # What came first would have been acknowledged first.
    a.wait(lambda: a.sent("ack"))

    assert [one["ids"] for one in a.sent("ack")] == [[f"job-{handle.job_id}"]]


def test_an_outcome_that_a_handle_waits_for_is_confirmed_also_while_the_disk_is_full(
    a: RunningNode, federate: Open, tmp_path: Path
) -> None:
    handle = started(federate())
    fill_up(tmp_path / "alice/replies/alice" / FILE_NAME, "queue_default")

    a.end(handle.job_id, result=json_parcel({"n": 1}))

    assert handle.result(timeout_s=60) == {"a": {"n": 1}}
    a.wait(lambda: a.sent("ack"))


def test_an_outcome_that_a_handle_had_is_not_kept_when_it_comes_again(a: RunningNode, federate: Open) -> None:
    federation = federate()
    job_id = (handle := started(federation)).job_id
    a.end(job_id, result=json_parcel({"n": 1}))
    assert handle.result(timeout_s=60) == {"a": {"n": 1}}

    del handle
    a.announce(job_id)
    a.wait(lambda: len(a.sent("ack")) == 2)

    assert federation.status().kept_replies == 0


def test_all_runs_are_listed_one_a_row(a: RunningNode, b: RunningNode, federate: Open) -> None:
    federation = federate()
    first, second = started(federation), started(federation, nodes=["a"])
    b.end(first.job_id, "failed", reason="no column radius")
    a.end(first.job_id)

    runs = federation.jobs()

    assert {row["job"]: row["nodes"] for row in runs.rows()} == {
        first.job_id: "1 failed (b), 1 succeeded",
        second.job_id: "1 running",
    }
    assert list(runs.runs()[first.job_id]) == ["a", "b"]
    assert str(runs).endswith("2 of 2 nodes: ok, 2 runs of alice.")
    assert "2 runs of alice. connected to the broker at " in runs.explanation()
    shown = short_ids(runs.runs())[first.job_id]
    assert shown in str(runs)
    assert shown not in runs.text(limit=1)
    assert "... and 1 older one" in runs.text(limit=1)
    assert f">{shown}<" in runs._repr_html_()
    assert '<td style="color: red">1 failed (b), 1 succeeded</td>' in runs._repr_html_()
    assert list(runs.to_frame()["job"]) == [second.job_id, first.job_id]
    assert list(federation.job(short_ids(runs.runs())[second.job_id]).to_frame()["state"]) == ["running"]
    assert "no node was asked" in str(federation.jobs(nodes=[]))


def test_the_rounds_of_a_training_are_one_row_with_their_number_if_there_is_room(
    a: RunningNode, b: RunningNode, federate: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, a.page = federate(), 2  # so that its five runs take three pages
    first, last = (started(federation, group="fit") for _ in range(2))
    earlier = started(federation, nodes=["a"], job_id="trial", name="first try")
    alone, trial = (started(federation, nodes=["a"], name=name) for name in ("first try", "trial"))
    with pytest.raises(InvalidInputError, match="longer than 100 characters"):
        started(federation, name="x" * 101)
    for handle in (first, last):
        a.end(handle.job_id)
    b.end(first.job_id, "failed", reason="no column radius")
    b.end(last.job_id)

    runs = federation.jobs()

    assert [(row["name"], row["rounds"], row["nodes"]) for row in runs.text_rows()] == [
        ("trial", None, "1 running"),
        ("first try", None, "1 running"),
        ("first try", None, "1 running"),
        ("fit", "2 rounds", "1 failed (b), 1 succeeded"),
    ]
    assert "... and 3 older ones" in runs.text(limit=1)
    assert runs._repr_html_().count("<tr>") == 5
    monkeypatch.setenv("COLUMNS", "44")
    assert str(runs).splitlines()[0].split() == ["job", "name", "plan", "nodes"]
    assert (runs.called("trial"), runs.called("fit"), runs.called("")) == (trial.job_id, None, None)
    found = [federate(instance="other").job(job).job_id for job in ("first try", "trial")]
    assert found == [alone.job_id, earlier.job_id]  # an id comes before a name


def test_outcomes_are_told_to_who_listens_each_once(a: RunningNode, federate: Open) -> None:
    federation = federate()
    told: list[JobOutcome] = []
    handle = started(federation, nodes=["a"])
    federation.on("outcome", told.append)

    a.end(handle.job_id, result=json_parcel({"n": 1}))
    a.announce(handle.job_id)
    a.wait(lambda: len(a.sent("ack")) == 2)
    wait_until(lambda: told, what="the outcome")
    wait_until(lambda: federation.status().kept_replies == 0, what="what a handle has to leave the disk")

    assert [one.job.job_id for one in told] == [handle.job_id]


def test_the_outcome_of_each_node_of_a_run_is_told_once_also_to_a_later_process(
    a: RunningNode, b: RunningNode, federate: Open
) -> None:
    # given a run of a shell that is gone, and outcomes that main has kept
    shell = federate(instance="shell")
    job_id = started(shell).job_id
    shell.close()
    main = federate()
    for number, node in enumerate((a, b)):
        node.end(job_id, result=json_parcel({"n": number}))
    wait_until(lambda: all(node.sent("ack") for node in (a, b)), what="both to be acknowledged")
    main.close()

    # when its next process listens, and both nodes send them again
    told: list[JobOutcome] = []
    again = federate()
    again.on("outcome", told.append)
    for node in (a, b):
        node.announce(job_id)
    wait_until(lambda: all(len(node.sent("ack")) == 2 for node in (a, b)), what="both to be acknowledged again")
    wait_until(lambda: again.status().kept_replies == 0, what="the outcomes to be taken")

    # then it was told of each once
    assert [(one.node_id, one.job.job_id) for one in told] == [("a", job_id), ("b", job_id)]


def test_stopping_asks_only_where_it_goes_on(a: RunningNode, b: RunningNode, federate: Open) -> None:
    handle = started(federate())
    a.end(handle.job_id, result=json_parcel({}))
    wait_until(lambda: handle.states()["a"].is_over)

    calls = lambda: handle.stop(nodes="b"), lambda: handle.expect("b"), lambda: handle.on_over(print, without="b")
    for call in calls:
        with pytest.raises(FedmonError, match="nodes is 'b': give a list of node ids"):
            call()
    outcomes = handle.stop()
    b.end(handle.job_id, "stopped", reason="by researcher alice")

    assert list(outcomes) == ["b"]
    with pytest.raises(RunFailedError, match=r"b: stopped .by researcher alice"):
        handle.result(timeout_s=60)
    assert str(handle.stop()) == "no node was asked to stop: there was none to ask"


@pytest.fixture
def environ(mosquitto: Broker, tmp_path: Path) -> dict[str, str]:
    """Return the environment of the researcher's shell."""
    return researcher_environment(mosquitto.url, tmp_path / "shell")


@pytest.mark.parametrize(
    ("case", "code", "said"),
    [
        ("refused", 4, "not stopped"),
        ("goes on", 6, "asked to end; not over yet"),
        ("first not reached", 6, "asked to end; not over yet"),
    ],
)
def test_the_shell_says_with_its_exit_code_that_a_run_was_not_stopped_or_goes_on(
    a: RunningNode, b: RunningNode, federate: Open, environ: dict[str, str], case: str, code: int, said: str
) -> None:
    handle = started(federate())
    b.end(handle.job_id, result=json_parcel({}))
    if case == "refused":
        a.refuse("stop")
    elif case == "first not reached":
        a.answer = lambda request: None if request["command"] == "job-status" else a.honest(request)

    done = fedmon_here("runs", "stop", handle.job_id, "-n", "a,b", "--timeout", "0.5", environ=environ)

    assert (done.returncode, done.stdout.splitlines()[0]) == (code, f"job {handle.job_id}: {said}")


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        ("failed", 1, ""),
        ("held", 6, ""),
        ("held", 6, "fedmon: 1 of 1 nodes hold their result: a; later `fedmon runs show "),
        ("running", 6, "not over within 0.5 s; job "),
    ],
)
def test_the_shell_shows_a_run_with_its_exit_code(
    a: RunningNode, federate: Open, environ: dict[str, str], state: str, code: int, said: str
) -> None:
    handle = started(federate(), nodes=["a"])
    if state != "running":
        a.end(handle.job_id, state, reason="as it says")
    wait = ("--wait", "0.5") if said else ()

    done = fedmon_here("runs", "show", handle.job_id, *wait, environ=environ)

    assert (done.returncode, said in done.stderr) == (code, True)
    assert state == "running" or f"a: {state} (as it says)" in done.stdout + done.stderr


def test_the_shell_knows_no_run_of_a_time_after_all_calendars(environ: dict[str, str]) -> None:
    last = "ffffffff-ffff-7fff-bfff-ffffffffffff"

    done = fedmon_here("runs", "show", last, environ=environ)

    assert (done.returncode, f"no node knows a job {last}" in done.stderr) == (3, True)


def test_ctrl_c_while_nodes_are_asked_says_how_to_find_the_run(a: RunningNode, environ: dict[str, str]) -> None:
    a.answer = lambda request: a.honest(request) if request["command"] != "run" else None

    with begun("run", DIGEST, "--node", "a", "--timeout", "60", environ=environ, stderr=subprocess.PIPE) as asking:
        a.wait(lambda: a.sent("run"))
        asking.send_signal(signal.SIGINT)
        _, said = asking.communicate(timeout=60)

    assert asking.returncode == 130
    assert f"`fedmon runs show {a.sent('run')[0]['job_id']}` finds it" in said


def test_the_shell_follows_logs_past_a_question_without_an_answer(
    a: RunningNode, b: RunningNode, federate: Open, environ: dict[str, str]
) -> None:
    a.printed, b.printed = "hello\n", "hello"
    handle = started(federate())
    a.answer = lambda request: a.honest(request) if request.get("stdout_from") is None else None

    words = ("runs", "logs", handle.job_id, "--follow", "--timeout", "5")
    with begun(*words, environ=environ, stdout=subprocess.PIPE) as following:
        wait_until(lambda: any(one.get("stdout_from") is not None for one in b.received), what="the question to b")
        a.answer = a.honest
        for node in (a, b):
            node.end(handle.job_id)
        printed, _ = following.communicate(timeout=60)

    assert (following.returncode, printed) == (0, "== b ==\nhello\n== a ==\nhello\n")


def test_the_shell_shows_output_as_it_was_printed(a: RunningNode, federate: Open, environ: dict[str, str]) -> None:
    a.printed = "1\t\x1b[2J\n."
    handle = started(federate())

    with begun("runs", "logs", handle.job_id, "--follow", environ=environ, stdout=subprocess.PIPE) as following:
        wait_until(lambda: any(one.get("stdout_from") == 8 for one in a.received), what="the question for more")
        a.printed += "."
        a.end(handle.job_id)
        printed, _ = following.communicate(timeout=60)

    assert (following.returncode, printed) == (0, "1\t\\x1b[2J\n..\n")


def test_the_shell_says_once_why_logs_are_withheld_and_shows_those_of_others_where_a_node_is_silent(
    a: RunningNode, b: RunningNode, federate: Open, environ: dict[str, str]
) -> None:
    handle = started(federate())
    words = ("runs", "logs", handle.job_id, "--timeout", "5")

    withheld = fedmon_here(*words, "--follow", environ=environ)
    b.printed = "hello\n"
    line = (*words[:3], "--follow", "--timeout", "30")
    with begun(*line, environ=environ, stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        during = [following.stdout.readline() for _ in range(3)]
        for node in (a, b):
            node.end(handle.job_id)
    a.answer = lambda request: a.honest(request) if request.get("stdout_from") is None else None
    silent = fedmon_here(*words, environ=environ)

    assert (withheld.returncode, withheld.stdout.count("\n")) == (4, 1)
    assert withheld.stdout.startswith("output is withheld by a, b: the owner lets nothing leave")
    assert (during[1], during[2].partition(":")[0]) == ("hello\n", "output is withheld by a")
    assert (silent.returncode, silent.stdout) == (6, "== b ==\nhello\n")
    assert "stdout of a: " in silent.stderr


@pytest.mark.parametrize("option", ["--timeout", "--wait"])
def test_a_result_that_does_not_fit_on_the_disk_is_shown_and_leaves_the_earlier_file(
    a: RunningNode, federate: Open, environ: dict[str, str], tmp_path: Path, option: str
) -> None:
    handle = started(federate(), nodes=["a"])
    a.end(handle.job_id, result=json_parcel({"text": "x" * 5_000}))
    file = tmp_path / "a.json"
    file.write_text("earlier")
    # Without -B, Python would cut the compiled files of modules, too.
    line = f"ulimit -f 2; {sys.executable} -B -m fedmon runs show {handle.job_id} --output {tmp_path} {option} 30"

    done = subprocess.run(["bash", "-c", line], env=environ, capture_output=True, text=True)

    assert (done.returncode, file.read_text(), 'a: {text: "xxxx' in done.stdout) == (1, "earlier", True)
    assert f"cannot write {file}: File too large" in done.stderr


def test_logs_are_read_page_by_page_or_their_reason(a: RunningNode, b: RunningNode, federate: Open) -> None:
    a.page, a.printed = 4, "hello\nworld\n"
    handle = started(federate())

    whole, rest, withheld = handle.logs("a"), handle.logs("a", "stderr", offset=6), handle.logs("b")

    assert (whole.text, whole.size_bytes, whole.withheld) == ("hello\nworld\n", 12, "")
    assert rest.text == "world\n"
    assert "job_output" in withheld.withheld
    assert (repr(whole), "withheld" in repr(withheld)) == ("hello\nworld\n", True)
    a.end(handle.job_id, "held")
    assert (whole.is_over, handle.logs("a").is_over) == (False, True)
    b.refuse()
    with pytest.raises(ConflictError, match="not obeyed"):
        handle.logs("b")
    a.jobs.clear()
    with pytest.raises(NotFoundError, match=f"node a does not know job {handle.job_id}"):
        handle.logs("a")


def test_what_nodes_call_themselves_and_say_is_no_markup(a: RunningNode, b: RunningNode, federate: Open) -> None:
    hostile = "<script>alert(1)</script>\x1b[2J"
    b.refuse("run", reason=hostile)
    handle = started(federate())
    a.stream(handle.job_id, 0, {"<b>x</b>": 1.0})
    wait_until(lambda: handle.scalars["a"])

    shown = handle._repr_html_()

    assert "<script>" not in shown
    assert "<b>" not in shown
    assert "&lt;script&gt;" in shown
    assert "\x1b" not in shown + str(handle)


def test_waiting_ends_with_the_federation(a: RunningNode, federate: Open) -> None:
    federation = federate()
    handle = started(federation)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handle.result)
        federation.close()

        with pytest.raises(NotConnectedError):
            waiting.result(60)


def test_changes_end_when_it_is_over_and_tell_each_state(a: RunningNode, federate: Open) -> None:
    handle = started(federate(), nodes=["a"])
    unchanged = [states["a"].state for states in handle.changes(timeout_s=1.5)]
    seen = []
    for states in handle.changes(timeout_s=60, every_s=0.01):
        seen.append(states["a"].state)
        if len(seen) == 1:
            a.end(handle.job_id, result=json_parcel({}))

    assert (unchanged, seen) == (["running"], ["running", "succeeded"])
    assert handle.show()
