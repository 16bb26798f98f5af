"""A result that breaks a rule stays at the node until its owner decides, and leaves at most once, as it was shown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedmon.common.clock import utc_now
from fedmon.common.errors import ConflictError, InvalidInputError, NotFoundError
from fedmon.common.settings.values import RepositorySettings
from fedmon.common.wire.runs import JobStatus, Stop
from fedmon.node.runs.outcome import INLINE_BYTES
from fedmon.node.runs.service import UNSENT
from tests.node.runs.kept_jobs import plan_of
from tests.node.runs.run_desks import ALICE, MANY_JOBS, Bench, bench, digest
from tests.support.envelopes import envelope
from tests.support.historic_repository import HistoricRepository

TABLE = "age\n" + "".join(f"{age}\n" for age in range(30, 60))
"""Of 30 rows, so that 3 numbers leave by themselves."""
RETURNS = plan_of("""
    context.report(loss=0.123456789)
    return context.arguments["result"]
""")
LARGE = {"numbers": [1, 2, 3, 4]}
GRID = b"import numpy\n" + RETURNS.replace(
    b'context.arguments["result"]', b'{"grid": numpy.full(150_000, 1 / 3)}'
)  # fmt: skip
ARRAY = b"import numpy\n" + RETURNS.replace(b'context.arguments["result"]', b'{"array": numpy.arange(9_000.0)}')


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("gate") / "n"
    with bench(folder, runs=MANY_JOBS, release={"mode": "check"}) as opened:
        yield opened


def patients(node: Bench) -> str:
    return node.offer("patients", table=TABLE)


def returned(node: Bench, result: dict[str, Any]) -> str:
    return node.begin(RETURNS, patients(node), arguments={"result": result})


def decide(node: Bench, job_id: str, *, release: bool = True, **more: str) -> None:
    """Have the owner look at a held result, and decide about it."""
    sha256 = node.owner("result-show", job_id=job_id)["result"]["result"]["sha256"]
    node.owner("result-decide", job_id=job_id, release=release, sha256=sha256, **more)


def ledger(node: Bench) -> dict[str, int]:
    rows = node.owner("released")["released"]
    return {name: sum(row[name] for row in rows) for name in ("results", "size_bytes", "numbers", "scalars")}


def costs(node: Bench) -> list[dict[str, Any]]:
    return [cost for each in node.said if each["command"] == "run-scalars" for cost in each["costs"]]


def test_released_are_exactly_the_bytes_that_were_shown(node: Bench) -> None:
    job_id = returned(node, LARGE)
    node.held(job_id)
    shown = node.owner("result-show", job_id=job_id[:30])
    sha256 = shown["result"]["result"]["sha256"]
    assert digest(Path(shown["file"]).read_bytes()) == sha256

    for wrong in ("", "0" * 64):
        with pytest.raises(ConflictError, match="look at it again"):
            node.owner("result-decide", job_id=job_id, release=True, sha256=wrong)
    before, moment = ledger(node), utc_now()
    node.owner("result-decide", job_id=job_id, release=True, sha256=sha256, note="sums only")
    told = node.outcome(job_id)

    assert (told["job"]["state"], told["result"]["json"]) == ("succeeded", '{"numbers":[1,2,3,4]}')
    assert told["job"]["reason"] == "released by the owner of the node: sums only"
    assert job_id not in node.runs.register.ended_before(moment)  # it is kept from its release on
    assert ledger(node) == {
        "results": before["results"] + 1,
        "size_bytes": before["size_bytes"] + len('{"numbers":[1,2,3,4]}'),
        "numbers": before["numbers"] + 4,
        "scalars": before["scalars"],
    }
    (line,) = [line for line in node.audit("result-release") if line["job"] == job_id]
    assert (line["by"], line["note"], line["result_sha256"], line["numbers"]) == ("eve", "sums only", sha256, 4)
    with pytest.raises(NotFoundError):
        node.owner("result-decide", job_id=job_id, release=True, sha256=sha256)


def test_the_bytes_of_a_released_result_belong_to_the_cost_of_its_round(tmp_path: Path) -> None:
    with bench(tmp_path / "n", runs=MANY_JOBS, release={"mode": "ask"}) as node:
        job_id = node.begin(RETURNS, arguments={"result": LARGE}, group="training")
        node.held(job_id)
        decide(node, job_id)
        node.outcome(job_id)

        held, left = costs(node)

    assert (held["transferred_bytes"], left["transferred_bytes"]) == (0, len('{"numbers":[1,2,3,4]}'))
    assert held["wall_s"] == left["wall_s"]
    assert held["t"] < left["t"]


def test_the_cost_of_a_round_is_told_once_before_its_end_is_written(tmp_path: Path) -> None:
    with bench(tmp_path / "n", runs=MANY_JOBS) as node:
        node.local.registers.database.execute(
            "CREATE TEMP TRIGGER full BEFORE INSERT ON main.outbox BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        job_id = node.begin(RETURNS, arguments={"result": LARGE}, group="training")
        (cost,) = node.wait(lambda: costs(node), what="the cost")
        node.work()
        assert (costs(node), node.outcomes()) == ([cost], [])

    # A node that is killed before it has written the end tells it again: the later one counts.
    with bench(tmp_path / "n") as node:
        node.outcome(job_id)
        (again,) = costs(node)

    assert {**again, "t": cost["t"], "mono": cost["mono"]} == cost
    assert again["t"] > cost["t"]


def test_without_a_repository_a_result_too_large_once_encoded_is_not_released(node: Bench) -> None:
    job_id = node.begin(ARRAY, patients(node))
    node.held(job_id)
    before = node.owner("released")
    held = node.owner("result-show", job_id=job_id)["result"]

    with pytest.raises(ConflictError, match="no file repository"):
        node.owner("result-decide", job_id=job_id, release=True, sha256=held["result"]["sha256"])
    node.work()

    # Its bytes alone would fit.
    assert held["result"]["bytes"] < INLINE_BYTES
    assert node.owner("released") == before
    assert job_id not in {line["job"] for line in node.audit("result-release")}
    assert job_id in {each["job_id"] for each in node.owner("result-list")["results"]}
    assert node.ask(JobStatus(job_id=job_id, **envelope()))["jobs"][0]["state"] == "held"


def test_a_held_result_has_as_many_numbers_as_its_rule_counts(node: Bench) -> None:
    job_id = returned(node, {"Zoe Quill, 42 years": 1})

    assert node.held(job_id)["job"]["reason"].startswith("more than 3 numbers, names and texts included: ")
    assert node.owner("result-show", job_id=job_id)["result"]["numbers"] == 4


def test_held_results_fill_the_quota_of_their_researcher_after_a_purge_too(tmp_path: Path) -> None:
    with bench(tmp_path / "n", runs=MANY_JOBS, release={"mode": "ask"}) as node:
        quotas = node.local.registers.quotas
        assert quotas.kept_bytes(ALICE) == 0
        jobs = [node.begin(RETURNS, arguments={"result": {"numbers": [9] * 2_000}}) for _ in range(2)]
        for job_id in jobs:
            node.held(job_id)
        node.runs.purge()
        assert quotas.kept_bytes(ALICE) > 8_000

    # a node that starts measures them as well, and forgets those that were removed
    with bench(tmp_path / "n") as node:
        quotas = node.local.registers.quotas
        before = quotas.kept_bytes(ALICE)
        assert before > 8_000
        node.owner("result-decide", job_id=jobs[0], release=False)
        node.outcome(jobs[0])
        node.local.registers.database.execute(
            "UPDATE runs SET ended = '2020-01-01T00:00:00' WHERE job_id = ?", (jobs[0],)
        )
        node.runs.purge()
        assert before - quotas.kept_bytes(ALICE) > 3_000
        assert node.runs.register.ids() == {jobs[1]}  # the other is so old that no request can name it


def test_files_of_jobs_that_are_kept_for_ever_are_not_removed(tmp_path: Path) -> None:
    with bench(tmp_path / "n", runs=MANY_JOBS | {"keep_s": math.inf}) as node:
        job_id = node.begin(RETURNS, arguments={"result": LARGE})
        node.outcome(job_id)
        node.local.registers.database.execute("UPDATE runs SET ended = '2000-01-01T00:00:00'")

        node.runs.purge()

        assert node.files(job_id).result.exists()


@pytest.mark.parametrize("limit", [math.inf, 1e308])
def test_results_without_a_limit_on_their_numbers_leave_by_themselves(tmp_path: Path, limit: float) -> None:
    release = {"mode": "check", "max_numbers_per_row": limit}
    with bench(tmp_path / "n", runs=MANY_JOBS, release=release) as node:
        ended = node.over(returned(node, LARGE))

    assert ended["job"]["state"] == "succeeded"


def test_a_held_job_is_neither_stopped_nor_lost_nor_removed(node: Bench) -> None:
    job_id = returned(node, LARGE)
    node.held(job_id)
    node.local.registers.database.execute("UPDATE runs SET ended = '2020-01-01T00:00:00' WHERE job_id = ?", (job_id,))

    assert node.ask(Stop(job_id=job_id, **envelope()))["job"]["state"] == "held"
    with pytest.raises(ConflictError, match="results withhold"):
        node.owner("run-stop", job_id=job_id)
    node.runs.plan_withdrawn(digest(RETURNS))
    node.runs.purge()
    node.work()

    assert node.ask(JobStatus(job_id=job_id, **envelope()))["jobs"][0]["state"] == "held"
    assert node.files(job_id).result.exists()
    assert [line for line in node.audit("run-stop") if line["job"] == job_id] == []


def test_a_result_that_was_changed_on_the_disk_does_not_leave(node: Bench) -> None:
    job_id = returned(node, LARGE)
    node.held(job_id)
    node.files(job_id).result.write_bytes(b'{"numbers":[1,2,3,5]}')

    with pytest.raises(InvalidInputError, match="differs from the one of the plan"):
        decide(node, job_id)

    assert node.ask(JobStatus(job_id=job_id, **envelope()))["jobs"][0]["state"] == "held"


def test_scalars_leave_by_the_names_of_the_grant(tmp_path: Path) -> None:
    with bench(tmp_path / "n", runs=MANY_JOBS, release={"mode": "check"}) as node:
        dataset_id, small = patients(node), node.offer("few", table="age\n30\n")
        undeclared = node.begin(RETURNS, dataset_id, arguments={"result": {}})
        declaring = RETURNS + b"# declared\n"
        node.approve(declaring, scalars=("loss",), values=4)
        declared, few = (node.begin(declaring, each, arguments={"result": LARGE}) for each in (dataset_id, small))

        assert node.outcome(undeclared)["job"]["scalars"] == 0
        (logged,) = node.owner("run-show", job_id=undeclared)["logged"]
        assert "declared names" in logged
        assert node.outcome(declared)["job"]["scalars"] == 1
        assert node.held(few)["job"]["reason"].startswith("the dataset has fewer than 20 rows: ")
        assert {node.owner(show, job_id=few)["dataset"] for show in ("run-show", "result-show")} == {"few"}
        assert {one["job_id"]: one["values"] for one in node.scalars()} == {declared: {"loss": 0.123457}}
        assert [row["scalars"] for row in node.owner("released")["released"]] == [1]


def test_in_mode_auto_everything_leaves_as_it_is(tmp_path: Path) -> None:
    with bench(tmp_path / "n", runs=MANY_JOBS, release={"mode": "auto"}) as node:
        told = node.over(node.begin(RETURNS, arguments={"result": {"mean": 1 / 3}}))

        assert json.loads(told["result"]["json"]) == {"mean": 1 / 3}
        assert [one["values"] for one in node.scalars()] == [{"loss": 0.123456789}]
        assert ledger(node) == {"results": 1, "size_bytes": 27, "numbers": 1, "scalars": 1}
        assert node.owner("status")["release"] == {"mode": "auto", "held": 0}


def test_decisions_since_the_copy_of_a_damaged_register_are_carried_out_again(tmp_path: Path) -> None:
    # given a copy of the register from before the owner decided about two of three results
    folder = tmp_path / "n"
    with bench(folder, runs=MANY_JOBS, release={"mode": "ask"}) as node:
        jobs = [node.begin(RETURNS, arguments={"result": LARGE}) for _ in range(3)]
        for job_id in jobs:
            node.held(job_id)
        late = node.begin(RETURNS, arguments={"result": LARGE})
        node.local.registers.database.copy()
        lost = node.begin(RETURNS, arguments={"result": LARGE})
        for job_id in (late, lost):
            node.held(job_id)
        for job_id in (*jobs[:2], late, lost):
            decide(node, job_id, release=job_id != jobs[1], note="seen")
            node.outcome(job_id)

    # when the register is lost
    (folder / "state.sqlite").write_bytes(b"")

    # then they do not wait again, and the owner is told of the one that was not held then, and of the one that is lost
    with bench(folder) as node:
        waiting = [each["job_id"] for each in node.owner("result-list")["results"]]
        assert waiting in ([jobs[2]], [jobs[2], late])
        assert node.outcome(jobs[0])["job"]["reason"].endswith(": seen")
        assert node.outcome(jobs[1])["job"]["state"] == "withheld"
        assert node.ask(JobStatus(job_id=jobs[1], result=True, **envelope()))["result"] is None
        assert ledger(node)["results"] == 1
        report = node.owner("status")["restored"]["report"].split("\n")
        assert [one.rpartition(": ")[2] for one in report if "since then" in one][:2] == [lost, late]


def test_a_released_result_that_cannot_be_stored_is_held_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmon.node.runs.outcome.PAUSES_S", (0.01,))
    with HistoricRepository() as repository:
        settings = {"url": repository.upload_url, "allowed_urls": [repository.url]}
        gone = {"url": "http://127.0.0.1:1/upload", "allowed_urls": ["http://127.0.0.1:1/"]}
        ask = {"mode": "ask"}
        with bench(tmp_path / "n", runs=MANY_JOBS, release=ask, repository=gone) as node:
            job_id = node.begin(GRID)
            node.held(job_id)
            shown = node.owner("result-show", job_id=job_id)["result"]
            assert shown["reason"].startswith("the owner decides about each result; more than 1048576 bytes: ")

            # when the repository does not answer, it waits for its owner again, who is told why
            for _ in range(2):
                decide(node, job_id)
                assert node.owner("run-stop", job_id=job_id)["run"]["state"] == "held"
                node.wait(lambda: node.owner("result-list")["results"], what="the result")
            assert node.audit("run-stop") == []
            held = node.owner("result-show", job_id=job_id)["result"]
            assert held["reason"] == shown["reason"].replace(": ", f"; {UNSENT}: ")
            assert f"the result of job {job_id} is held: " in caplog.text
            assert node.owner("released")["released"] == []

            # and once the repository is there it leaves, unless its file is another one then
            node.settings = msgspec.structs.replace(
                node.settings, repository=msgspec.convert(settings, RepositorySettings)
            )
            node.runs.follow(node.settings)
            file = node.files(job_id).result
            content = file.read_bytes()
            file.write_bytes(content[::-1])
            node.owner("result-decide", job_id=job_id, release=True, sha256=held["result"]["sha256"])
            node.wait(lambda: node.owner("result-list")["results"], what="the result")
            assert repository.files == {}
            file.write_bytes(content)
            decide(node, job_id)
            told = node.outcome(job_id)
            stored = repository.files["/" + told["result"]["url"].removeprefix(repository.url)]
            assert told["job"]["state"] == "succeeded"
            assert digest(stored) == held["result"]["sha256"] == told["result"]["sha256"]
            released = ledger(node)
            assert (released["results"], released["numbers"]) == (1, 150_000)
