"""What one researcher may ask of a node: beyond a quota the answer is "busy", with when to try again."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedmon.common.settings.values import QuotaSettings
from fedmon.common.wire import topics
from fedmon.common.wire.messages import Monitor, Ping, PlanStatus
from fedmon.node.requests.audit import verify
from fedmon.node.requests.quotas import Throttle, Window
from fedmon.researcher.asking.outcome import OutcomeStatus
from tests.node.owner.owner_shell import told
from tests.node.runs.kept_jobs import plan_of
from tests.node.runs.run_desks import ALICE, bench, run
from tests.support.brokers import Broker
from tests.support.envelopes import approval, envelope
from tests.support.fedbiomed4 import V4Researcher
from tests.support.historic_repository import HistoricRepository
from tests.support.node_process import NodeProcess, audited, fedmon, write_node_folder
from tests.support.raw_researcher import RawResearcher, plan_fields
from tests.support.running_node import PLAN as SCRIPTED_PLAN
from tests.support.running_node import RunningNode, json_parcel
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until

MIB = 2**20
LARGE = plan_of("""
for stream in (sys.stdout, sys.stderr):
    print("x" * 900_000, file=stream)
return {"text": "x" * 1_500_000}
""")


def ward(folder: Path, broker: Broker, **quota: float) -> Path:
    """Write the folder of a node with these quotas that runs nothing."""
    return write_node_folder(folder, node_id="ward", url=broker.url, quota=quota)


def use_of(folder: Path, who: str) -> dict[str, Any]:
    """Return what a researcher uses, as the owner's verb tells it."""
    found: list[dict[str, Any]] = told(folder, "quota")["researchers"]
    return next(each for each in found if each["researcher_id"] == who)


def test_requests_beyond_the_burst_are_busy_and_others_are_not_affected(tmp_path: Path) -> None:
    with bench(tmp_path / "n", is_ready=False, quota={"requests_per_s": 0.2}) as node:
        replies = [node.ask(Ping(**envelope())) for _ in range(5)]
        told_at, busy = time.monotonic(), replies[-1]

        assert [reply["command"] for reply in replies] == ["pong"] * 2 + ["error"] * 3
        assert (busy["code"], 0.0 < busy["retry_after_s"] <= 5.0) == ("busy", True)
        assert "requests_per_s in [quota]" in busy["reason"]
        assert "try again in" in busy["reason"]
        assert node.ask(Ping(**envelope("bob")))["command"] == "pong"
        # What does not count is served all the same: this node says that it measures nothing.
        uncounted = [node.ask(Monitor(action=each, **envelope())) for each in ("start", "stop", "resend")]
        assert {reply["code"] for reply in uncounted} == {"unsupported"}
        wait_until(lambda: time.monotonic() > told_at + busy["retry_after_s"], what="the time to try again")
        assert node.ask(Ping(**envelope()))["command"] == "pong"
        assert node.local.registers.quotas.used(ALICE)["refused"] == {"requests_per_s": 3}
        faster = msgspec.structs.replace(node.settings, quota=QuotaSettings(requests_per_s=1.0))
        node.local.follow(faster)
        assert {node.ask(Ping(**envelope()))["command"] for _ in range(10)} == {"pong"}


def test_changes_are_limited_by_the_hour_and_a_repeat_is_none(tmp_path: Path) -> None:
    with bench(tmp_path / "n", is_ready=False, quota={"changes_per_hour": 2}) as node:
        request = approval(b"x = 1\n")
        first = node.ask(request)
        node.ask(approval(b"x = 2\n"))

        busy = node.ask(approval(b"x = 3\n"))

        assert (busy["code"], 3000 < busy["retry_after_s"] <= 3600) == ("busy", True)
        assert node.ask(request)["plan_id"] == first["plan_id"]
        assert node.local.registers.quotas.used(ALICE)["changes"] == 2
    stopped = use_of(tmp_path / "n", ALICE)
    assert stopped["undecided_plans"] == 2
    assert {stopped[key] for key in ("requests", "changes", "audit_bytes", "refused")} == {None}
    screen = fedmon_here("node", "quota", "--dir", str(tmp_path / "n")).stdout
    assert screen.endswith("-: not known, because the node is not running\n")


def test_undecided_plans_are_limited_until_the_owner_decides(tmp_path: Path) -> None:
    with bench(tmp_path / "n", is_ready=False, quota={"undecided_plans": 2}) as node:
        plan = node.ask(approval(b"x = 1\n"))["plan_id"]
        node.ask(approval(b"x = 2\n"))

        busy = node.ask(approval(b"x = 3\n"))

        assert (busy["code"], busy["retry_after_s"]) == ("busy", None)
        assert busy["reason"].startswith("2 plans of yours may wait for the decision of this node's owner at a time ")
        assert "undecided_plans in [quota]" in busy["reason"]
        assert node.ask(approval(b"x = 2\n"))["status"] == "pending"
        assert node.ask(approval(b"x = 3\n", by="bob"))["status"] == "pending"
        node.local.registers.plans.decide(plan, PlanStatus.REJECTED)
        assert node.ask(approval(b"x = 4\n"))["status"] == "pending"


def test_jobs_are_counted_by_the_day(tmp_path: Path) -> None:
    with bench(tmp_path / "n", is_ready=False, quota={"jobs_per_day": 1}) as node:
        sha256 = node.approve()
        assert node.ask(run(sha256, job_id="one"))["command"] == "run"

        busy = node.ask(run(sha256, job_id="two"))
        same = node.ask(run(sha256, job_id="one"))

        assert (busy["code"], 86_000 < busy["retry_after_s"] <= 86_400) == ("busy", True)
        assert same["job"]["job_id"] == "one"
        assert node.local.registers.quotas.used(ALICE)["jobs"] == 1


def test_kept_files_fill_the_quota_without_a_result_that_nobody_can_fetch(tmp_path: Path) -> None:
    # given a plan whose result is too large for a message, and a node without a repository
    with bench(tmp_path / "n", quota={"kept_bytes": MIB}) as node:
        sha256 = node.approve(LARGE)
        node.ask(run(sha256, job_id="one"))

        job = node.over("one")["job"]
        assert (job["state"], "no file repository" in job["reason"]) == ("failed", True)
        assert "`url` in [repository]" in job["reason"]

        # when another run is asked for
        busy = node.ask(run(sha256, job_id="two"))

        # then the node is busy, until the output went with the files of the job
        assert (busy["code"], busy["retry_after_s"] > 86_400) == ("busy", True)
        assert "kept_bytes in [quota]" in busy["reason"]
        assert 1_800_000 < node.local.registers.quotas.used(ALICE)["kept_bytes"] < 1_900_000
        node.local.registers.database.execute("UPDATE runs SET ended = '2020-01-01T00:00:00'")
        node.local.take_up()  # as at every start
        assert node.ask(run(sha256, job_id="two"))["command"] == "run"


def test_audit_bytes_are_limited_by_the_day_and_what_does_not_count_is_served(tmp_path: Path) -> None:
    folder = tmp_path / "n"
    with bench(folder, is_ready=False, quota={"audit_bytes_per_day": 65_536}) as node:
        busy: dict[str, Any] = {}
        while busy.get("command") != "error":
            busy = node.ask(Ping(**envelope()))

        assert busy["code"] == "busy"
        assert "audit_bytes_per_day in [quota]" in busy["reason"]
        assert 0 < busy["retry_after_s"] <= 86_400
        size_bytes = (folder / "audit.jsonl").stat().st_size
        assert {node.ask(Monitor(action="start", **envelope()))["code"] for _ in range(3)} == {"unsupported"}
        assert (folder / "audit.jsonl").stat().st_size == size_bytes
        assert 65_536 <= node.local.registers.quotas.used(ALICE)["audit_bytes"] < 70_000
    counts = audited(folder)[-1]["counts"]
    assert counts["served"] == {"alice monitor": 3}
    assert counts["busy"] == {"alice audit_bytes_per_day": 1}
    assert verify(folder).ok


def test_refused_and_malformed_messages_write_few_lines_and_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "n"
    sent: Counter[str] = Counter()
    with bench(folder, is_ready=False, policy={"researchers": [ALICE]}) as node:

        def send(who: str, payload: bytes) -> None:
            node.local.router.receive(topics.command(who, node.settings.id), payload)
            sent[who] += 1

        def answered() -> Counter[str]:
            return Counter(each["researcher_id"] for each in node.said)

        # when both send until each has 30 answers, of which 20 come at once and 5 a second after that
        def are_answered() -> bool:
            send(ALICE, b"{")
            send("mallory", msgspec.json.encode(Ping(node_id=node.settings.id, **envelope("mallory"))))
            return min(answered()[ALICE], answered()["mallory"]) >= 30

        wait_until(are_answered, what="the answers")

    # then 20 lines were written at once and one in 5 seconds after that
    lines = audited(folder)
    written = Counter(line["to"] for line in lines if line["event"] == "reply")
    declined = lines[-1]["counts"]["declined"]
    assert 20 <= written[ALICE] <= 25
    assert 20 <= written["mallory"] <= 25
    assert [line["researcher"] for line in lines if line["event"] == "command"] == ["mallory"] * written["mallory"]
    assert sent[ALICE] == written[ALICE] + declined[f"{ALICE} malformed"]
    assert sent["mallory"] == written["mallory"] + declined["mallory ping refused"] + declined["mallory refused"]
    assert verify(folder).ok


def test_a_flood_stays_at_the_broker_writes_little_and_holds_up_nobody(lasting_broker: Broker, tmp_path: Path) -> None:
    folder = ward(tmp_path / "ward", lasting_broker, requests_per_s=20)
    with NodeProcess(folder) as node, RawResearcher(lasting_broker, "alice") as alice:
        node.wait_online()
        # They are sent as fast as possible: a node answers slow requests that they are too many.
        requests = [json.dumps(alice.message("ping")).encode() for _ in range(60_000)]
        flooded = threading.Event()

        def flood() -> None:
            for request in requests:
                alice.send(request, qos=0)
            flooded.set()

        thread = threading.Thread(target=flood)
        started = time.monotonic()
        thread.start()
        with lasting_broker.researcher(tmp_path, "bob") as bob:
            others = [bob.ping(nodes=["ward"])["ward"].status]
            wait_until(flooded.is_set, 120, what="the end of the flood")
            others.append(bob.ping(nodes=["ward"])["ward"].status)
        thread.join()
        later = set[str]()

        def is_heard() -> bool:
            message = alice.message("ping")
            later.add(message["id"])
            alice.send(message)
            return any(reply["id"] in later for reply in list(alice.replies))

        wait_until(is_heard, what="the node to hear alice again")

        counters = told(folder, "status")["live"]["counters"]
        allowed = 200 + 20 * (time.monotonic() - started) + 100
        assert others == [OutcomeStatus.OK] * 2
        assert 200 <= counters["served"] <= allowed
        assert counters["refused over quota"] > 0
        assert (folder / "audit.jsonl").stat().st_size < 1_000 * allowed
        assert node.stop() == 0
    counts = audited(folder)[-1]["counts"]
    assert 0 < counts["busy"]["alice requests_per_s"] < 45_000


def test_the_owner_sees_use_against_quota_and_follows_new_settings(lasting_broker: Broker, tmp_path: Path) -> None:
    folder = ward(tmp_path / "ward", lasting_broker, undecided_plans=1)
    with NodeProcess(folder) as node, RawResearcher(lasting_broker, "alice") as alice:
        node.wait_online()
        alice.ask("approval", **plan_fields("x = 1\n"))
        screen = fedmon("node", "quota", "--dir", str(folder)).stdout.splitlines()
        document = told(folder, "quota")

        assert " ".join(screen[0].split()) == "researcher requests changes undecided jobs kept audit refused"
        assert screen[2].split()[:4] == ["allowed", "10000/s", "600/h", "1"]
        assert [line.split()[2:4] for line in screen if line.startswith("alice")] == [["1", "1"]]
        assert (document["running"], document["quota"]["kept_bytes"]) == (True, 2 * 2**30)
        assert use_of(folder, "alice")["kept_bytes"] >= len("x = 1\n")
        file = folder / "node.toml"
        file.write_text(file.read_text().replace("undecided_plans = 1", "undecided_plans = 3"))
        told(folder, "policy", "allow", "carol")  # settings are read again
        assert alice.ask("approval", **plan_fields("x = 2\n"))["status"] == "pending"


def test_researchers_of_fed_biomed_have_quotas_too_in_answers_of_their_form(
    lasting_broker: Broker, tmp_path: Path
) -> None:
    with HistoricRepository() as repository:
        folder = write_node_folder(
            tmp_path / "ward",
            url=lasting_broker.url,
            node={"wire": "fedbiomed4"},
            quota={"requests_per_s": 10, "undecided_plans": 1},
            repository={"allowed_urls": [repository.url]},
        )
        urls = [repository.put(f"plan{number}.py", f"x = {number}\n".encode()) for number in range(2)]
        with NodeProcess(folder) as node, V4Researcher(lasting_broker) as researcher:

            def pinged() -> bool:
                researcher.send(researcher.request("ping", researcher_id="waiting"))
                return bool(researcher.replies("pong"))

            wait_until(pinged, what=node.log)

            taken, refused = (researcher.ask("approval", answer="approval", training_plan_url=url) for url in urls)
            for _ in range(200):
                researcher.send(researcher.request("ping"))
            error = wait_until(lambda: researcher.replies("error"), what="a busy node")[0]

            assert [(reply["success"], reply["status"]) for reply in (taken, refused)] == [(True, 200), (False, 0)]
            assert "requests_per_s in [quota]" in error["extra_msg"]
            assert researcher.faults == []


def test_a_busy_node_is_asked_for_a_result_again_with_pauses_and_is_not_given_up(
    lasting_broker: Broker, tmp_path: Path
) -> None:
    with RunningNode(lasting_broker.port, "scripted") as node:
        asked: list[float] = []

        def answer(request: dict[str, Any]) -> Any:
            reply = node.honest(request)
            if reply is None or not request.get("result"):
                return reply
            asked.append(time.monotonic())
            if len(asked) > 2:
                return reply
            return node.error(request, "busy", "try again in 2 s") | {"retry_after_s": 2.0}

        node.answer = answer
        with lasting_broker.researcher(tmp_path) as alice:
            handle = alice.run(f"sha256:{SCRIPTED_PLAN}", nodes=["scripted"])
            node.end(handle.job_id, told=False, result=json_parcel({"rows": 3}))

            results = handle.result(timeout_s=60.0)

    assert results == {"scripted": {"rows": 3}}
    assert len(asked) == 3
    assert max(later - earlier for earlier, later in pairwise(asked)) >= 1.9


def test_very_many_names_make_a_throttle_forget_the_oldest() -> None:
    throttle = Throttle(burst=1, per_s=1e-6)
    for name in map(str, range(1001)):
        assert throttle.allows(name)

    assert [throttle.allows(name) for name in ("1000", "0")] == [False, True]


def test_a_window_never_holds_more_than_allowed_and_says_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e6
    monkeypatch.setattr("fedmon.node.requests.quotas.time.monotonic", lambda: now)
    window, came = Window(3600), list[float]()
    for _ in range(20_000):
        if window.total() < 600:
            window.add(1)
            came.append(now)
            now += 1
        else:
            now += window.wait_s(600)

    assert window.wait_s(601) == 0.0
    assert all(later - earlier >= 3600 for earlier, later in zip(came, came[600:], strict=False))
    assert len(came) > 4 * 600
