"""A held result over a broker: its researcher sees it held, its owner looks, and it comes after restarts of both."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.ids import new_id
from fedmon.common.wire.runs import JobOutcome, JobState
from fedmon.researcher.federation import Federation
from fedmon.researcher.runs.errors import RunFailedError, RunHeldError
from tests.end_to_end.run_sites import SHA256, made
from tests.end_to_end.test_runs_killed import VICTIMS, is_back, kill
from tests.node.owner.owner_shell import refused, told
from tests.support.brokers import Broker
from tests.support.chance import seeded
from tests.support.node_process import NodeProcess, audited, fedmon
from tests.support.raw_researcher import RawResearcher
from tests.support.shell_here import fedmon_here
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

ASK: dict[str, Any] = {"metrics": {"enabled": False}, "runs": {"max_jobs": 64}, "release": {"mode": "ask"}}
RULE = "the owner decides about each result"


@pytest.fixture
def folder(mosquitto: Broker, tmp_path: Path) -> Path:
    """The folder of a node whose owner decides about each result."""
    return made(tmp_path / "north", mosquitto, **ASK)


@pytest.fixture(scope="module")
def shared(lasting_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one such node for several tests."""
    return made(tmp_path_factory.mktemp("shared") / "north", lasting_broker, **ASK)


@pytest.fixture(autouse=True)
def _leaves_nothing_held(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "shared" in request.fixturenames:
        folder = request.getfixturevalue("shared")
        for each in told(folder, "results")["results"]:
            told(folder, "results", "withhold", each["job_id"])


@pytest.fixture(scope="module")
def fed(lasting_broker: Broker, shared: Path) -> Iterator[Federation]:
    with NodeProcess(shared), lasting_broker.researcher(shared.parent) as federation:
        wait_until(lambda: federation.nodes().online, what="the node")
        yield federation


def plan(folder: Path) -> Path:
    return folder / "plan.py"


def test_the_researcher_sees_it_held_and_then_has_the_released_result(fed: Federation, shared: Path) -> None:
    # given a run whose result is held
    news: list[JobOutcome] = []
    released = 1 + sum(row["results"] for row in told(shared, "released")["released"])
    with fed.on("outcome", news.append):
        run = fed.run(plan(shared), tags=["cells"])

        # when its researcher asks for it, then nothing hangs
        with pytest.raises(RunHeldError, match=RULE) as caught:
            run.result(timeout_s=60)
        assert (list(caught.value.failed), caught.value.results, caught.value.exit_code) == (["north"], {}, 6)
        assert isinstance(caught.value, RunFailedError)
        assert run.states()["north"].state == "held"
        assert run.is_over

        # when the owner looks and releases it
        (listed,) = told(shared, "results")["results"]
        screen = fedmon_here("node", "results", "--dir", str(shared)).stdout
        assert f"\n{run.job_id[:13]}  " in screen
        assert f"\n  {RULE}" in screen
        shown = told(shared, "results", "show", run.job_id[:30])
        assert listed["job_id"] == run.job_id == shown["result"]["job_id"]
        assert [(each["place"], each["first"]) for each in shown["entries"]] == [("rows", [3])]
        told(shared, "results", "release", run.job_id, "--note", "a count")
        wait_until(lambda: run.states()["north"].succeeded, what="the result")

        # then it is there, once, and counted
        assert run.result(timeout_s=60) == {"north": {"rows": 3}}
        wait_until(lambda: len(news) == 2, what="both messages")
    assert [each.job.state for each in news] == [JobState.HELD, JobState.SUCCEEDED]
    (row,) = told(shared, "released")["released"]
    assert (row["researcher_id"], row["dataset"], row["results"], row["size_bytes"], row["numbers"]) == (
        "alice", "cells", released, released * len('{"rows":3}'), released,
    )  # fmt: skip
    assert told(shared, "results")["results"] == []
    screen = fedmon_here("node", "released", "--dir", str(shared)).stdout
    assert f"alice       cells          {released}     {released}0" in screen


def test_a_withheld_result_comes_as_a_note(fed: Federation, shared: Path) -> None:
    run = fed.run(plan(shared), tags=["cells"])
    with pytest.raises(RunHeldError):
        run.result(timeout_s=60)

    assert "length <= 1000" in refused(shared, "results", "withhold", run.job_id, "--note", "x" * 1_001, code=2)
    told(shared, "results", "withhold", run.job_id, "--note", "too few patients")
    wait_until(lambda: run.states()["north"].state == "withheld", what="the note")

    with pytest.raises(RunFailedError, match=r"north: withheld \(the owner of the node withholds .*: too few patients"):
        run.result(timeout_s=60)


def test_it_comes_after_restarts_of_both_sides(mosquitto: Broker, folder: Path, tmp_path: Path) -> None:
    # given two held results, whose node and researcher both end
    with NodeProcess(folder) as node:
        with mosquitto.researcher(tmp_path) as fed:
            wait_until(lambda: fed.nodes().online, what="the node")
            run, other = (fed.run(plan(folder), tags=["cells"]) for _ in range(2))
            for each in (run, other):
                with pytest.raises(RunHeldError):
                    each.result(timeout_s=60)
        node.kill()

        # when the owner releases the one and withholds the other while none of them is there, and the node starts again
        document = told(folder, "results", "release", run.job_id)
        assert document["sent"] is False
        assert told(folder, "runs", "show", run.job_id)["run"]["reason"].endswith("; alice is not told yet")
        told(folder, "results", "withhold", other.job_id)
        node.start()

        # then the researcher has it when it is back, by the id of the run and as an outcome
        with mosquitto.researcher(tmp_path) as fed:
            wait_until(lambda: fed.nodes().online, what="the node")
            again, withheld = fed.job(run.job_id), fed.job(other.job_id)
            wait_until(lambda: again.states()["north"].succeeded, what="the result")
            assert again.result(timeout_s=60) == {"north": {"rows": 3}}
            wait_until(lambda: withheld.states()["north"].state == "withheld", what="the other")
    events = Counter(line["event"] for line in audited(folder) if line.get("job") == run.job_id)
    assert (events["run-held"], events["result-release"], events["run-outcome"]) == (1, 1, 1)


def test_the_owner_sees_what_leaves_and_is_asked(fed: Federation, shared: Path) -> None:
    run = fed.run(plan(shared), tags=["cells"])
    with pytest.raises(RunHeldError):
        run.result(timeout_s=60)

    status = fedmon_here("node", "status", "--dir", str(shared)).stdout
    assert "1 result waits for your decision: fedmon node results" in status
    assert "wait for you, each of them (mode ask)" in status
    assert told(shared, "status")["release"] == {"mode": "ask", "held": 1}

    with Terminal("node", "results", "release", run.job_id, "--dir", str(shared), columns=50) as terminal:
        shown = terminal.read_until("Let exactly this leave?")
        terminal.type("n")
        code, _ = terminal.end()
    assert code == 1
    assert "rows" in shown
    assert "BELOW 10" in shown  # three rows
    assert RULE in shown
    assert run.states()["north"].state == "held"
    assert "--yes" in refused(shared, "results", "release", run.job_id[:30], code=2)

    file = Path(told(shared, "results", "show", run.job_id)["file"])
    content = file.read_bytes()
    file.write_bytes(content.replace(b"3", b"4"))
    assert "not the result that the plan returned" in refused(shared, "results", "release", run.job_id, code=4)
    file.write_bytes(content)
    with Terminal("node", "results", "release", run.job_id[:30], "--dir", str(shared)) as terminal:
        terminal.read_until("Let exactly this leave?")
        terminal.type("y")
        code, _ = terminal.end()
    assert code == 0
    wait_until(lambda: run.states()["north"].succeeded, what="the result")


@pytest.mark.parametrize(
    ("points", "timeout_s"),
    [
        pytest.param(4, 60.0, marks=pytest.mark.timeout(300)),
        pytest.param(200, 300.0, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_kills_while_results_are_held_and_released_let_nothing_leave_twice_or_unseen(
    mosquitto: Broker, folder: Path, points: int, timeout_s: float
) -> None:
    chance, pause = seeded(), threading.Event()
    with NodeProcess(folder) as node, RawResearcher(mosquitto) as researcher:
        wait_until(lambda: is_back(researcher), what="the node")
        for point in range(points):
            # given a run, and the owner at work on an earlier one
            words = {"job_id": new_id(), "sha256": SHA256, "tags": ["cells"], "arguments": {}}
            researcher.send(researcher.message("run", **words))
            pause.wait(chance.random() * 0.3)
            at_work = threading.Thread(target=_decide, args=(folder,), kwargs={"release": chance.random() < 0.7})
            at_work.start()
            pause.wait(chance.random() * 0.3)

            # when something is killed
            kill(node, chance.choice(VICTIMS))
            at_work.join()
            if not node.alive():
                node.start()
                wait_until(lambda: is_back(researcher), what="the node")
            # Not at once, so that many outcomes wait at a node that is killed.
            if point % 5 == 4:
                researcher.send(researcher.message("ack", ids=sorted(outcome_ids(researcher))[-900:]))

        # then every job ends once, and what left was released
        def undecided() -> list[Any]:
            researcher.send(researcher.message("ping"))
            _decide(folder, release=False, verb=fedmon_here)
            jobs = {each["job"]["job_id"] for each in researcher.heard("run")}
            over = outcome_ids(researcher)
            return [job_id for job_id in jobs if f"job-{job_id}" not in over]

        wait_until(lambda: not undecided(), timeout_s, what="the end of all jobs")
        outcomes = {each["id"]: each for each in researcher.heard("job-outcome")}
        ends = {(each["id"], each["job"]["state"]) for each in researcher.heard("job-outcome")}
        node.stop()
    assert len(ends) == len(outcomes)
    approved = {line["job"] for line in audited(folder, "result-release")}
    left = {each["job"]["job_id"] for each in outcomes.values() if each["result"] is not None}
    assert left <= approved
    ended = Counter(line["job"] for line in audited(folder, "run-outcome"))
    assert set(ended.values()) == {1}
    assert sum(row["results"] for row in told(folder, "released")["released"]) == len(left)
    assert left or points < 50


def outcome_ids(researcher: RawResearcher) -> set[str]:
    return {each["id"] for each in researcher.heard("job-outcome")}


def _decide(folder: Path, *, release: bool, verb: Callable[..., Any] = fedmon) -> None:
    """Have the owner release the oldest held result, or withhold all, whatever of the node lives."""
    listed = verb("node", "results", "--dir", str(folder), "--json")
    held = json.loads(listed.stdout)["results"] if listed.returncode == 0 else []
    for each in held[:1] if release else held:
        word = "release" if release else "withhold"
        verb("node", "results", word, each["job_id"], "--dir", str(folder), "--json")
