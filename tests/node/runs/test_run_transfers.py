"""What no message holds travels through a repository, and only through the one that the owner allows."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from fedmon.common.ids import new_id
from fedmon.common.settings import RepositorySettings
from fedmon.common.wire.runs import JobStatus, Parcel
from fedmon.node.runs import outcome as results
from fedmon.node.runs.register import JobRecord
from tests.node.owner.owner_desks import done
from tests.node.runs.gate_desks import owner
from tests.node.runs.run_desks import Bench, bench, digest, envelope, run
from tests.support.historic_repository import HistoricRepository
from tests.support.hostile_urls import BESIDE_FILES
from tests.support.waiting import stays, wait_until

ECHO = b"""from fedmon import TrainingPlan


class Echo(TrainingPlan):
    def run(self, context):
        return {"text": context.inputs["text"] * context.arguments.get("times", 1)}
"""
CONTENT = msgspec.json.encode({"text": "x" * 150_000})
HOSTILE = (*BESIDE_FILES, "http://localhost:{p}/files/x", "http://localhost:{p}@files.example.org/files/x")


@pytest.fixture(scope="module")
def repository() -> Iterator[HistoricRepository]:
    with HistoricRepository() as running:
        yield running


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, repository: HistoricRepository) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("node") / "n"
    settings = {"url": repository.upload_url, "allowed_urls": [repository.url]}
    with bench(folder, metrics={"enabled": False}, runs={"max_jobs": 64}, repository=settings) as opened:
        yield opened


def inputs(url: str, content: bytes = CONTENT, **fields: Any) -> Parcel:
    given: dict[str, Any] = {"format": "json", "sha256": digest(content), "size_bytes": len(content), "url": url}
    return Parcel(**given | fields)


def follow(node: Bench, repository: RepositorySettings) -> None:
    node.runs.follow(msgspec.structs.replace(node.settings, repository=repository))


def concluded(node: Bench, job_id: str) -> JobRecord | None:
    node.work()
    record = node.runs.record(job_id)
    return record if record is not None and record.job.state.is_over else None


def test_large_inputs_and_results_go_through_the_repository(node: Bench, repository: HistoricRepository) -> None:
    job_id = new_id()
    url = repository.put("inputs", CONTENT)

    node.ask(run(node.approve(ECHO), job_id=job_id, inputs=inputs(url)))
    outcome = node.over(job_id)

    result = outcome["result"]
    stored = repository.files["/" + result["url"].removeprefix(repository.url)]
    assert outcome["job"]["state"] == "succeeded"
    assert stored == CONTENT
    assert (result["sha256"], result["size_bytes"], result["json"]) == (digest(CONTENT), len(CONTENT), None)
    told = node.ask(JobStatus(job_id=job_id, result=True, **envelope()))
    assert told["result"] == result
    assert not (node.path / "runs" / job_id / ".inputs").exists()


def test_a_transfer_that_ends_while_the_worker_takes_nothing_is_not_lost(
    node: Bench, repository: HistoricRepository
) -> None:
    job_id = new_id()
    node.is_full = True
    node.ask(run(node.approve(ECHO), job_id=job_id, inputs=inputs(repository.put("inputs", CONTENT))))
    wait_until(lambda: node.refused, what="the end of the transfer")

    node.is_full = False

    assert node.over(job_id)["job"]["state"] == "succeeded"


def test_no_hostile_url_is_connected_to(node: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sentinel:
        sentinel.setblocking(False)
        jobs = {}
        for url in HOSTILE:
            request = run(node.approve(ECHO), inputs=inputs(url.replace("{p}", str(sentinel.getsockname()[1]))))
            assert node.ask(request)["command"] == "run", url
            jobs[url] = request.job_id

        ends = {url: node.over(job_id)["job"] for url, job_id in jobs.items()}

        assert {job["state"] for job in ends.values()} == {"not-started"}
        assert all(job["reason"].startswith("its inputs were not fetched: ") for job in ends.values())
        with pytest.raises(BlockingIOError):
            sentinel.accept()
    assert len(HOSTILE) >= 25


def test_slow_servers_hold_up_no_inputs_of_others(node: Bench, repository: HistoricRepository) -> None:
    sha256, jobs = node.approve(ECHO), [new_id() for _ in range(5)]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        allowed = msgspec.structs.replace(node.settings.repository, allowed_urls=(repository.url, slow))
        follow(node, allowed)
        for job_id in jobs[2:]:
            node.ask(run(sha256, job_id=job_id, inputs=inputs(slow)))
        for job_id in jobs[:2]:
            node.ask(run(sha256, job_id=job_id, inputs=inputs(repository.put("inputs", CONTENT))))

        states = {node.over(job_id)["job"]["state"] for job_id in jobs[:2]}
    follow(node, node.settings.repository)

    assert states == {"succeeded"}
    assert {node.over(job_id)["job"]["state"] for job_id in jobs[2:]} == {"not-started"}


@pytest.mark.parametrize(
    ("content", "fields", "says"),
    [
        (CONTENT + b" ", {}, "bytes"),
        (CONTENT[:-3] + b'y"}', {}, "digest"),
        (b'{"a": NaN}', {"sha256": digest(b'{"a": NaN}'), "size_bytes": 10}, "cannot be used"),
    ],
)
def test_inputs_that_are_not_the_announced_ones_start_nothing(
    node: Bench, repository: HistoricRepository, content: bytes, fields: dict[str, Any], says: str
) -> None:
    job_id = new_id()

    node.ask(run(node.approve(ECHO), job_id=job_id, inputs=inputs(repository.put("x", content), **fields)))
    job = node.over(job_id)["job"]

    assert job["state"] == "not-started"
    assert says in job["reason"]
    assert not (node.path / "runs" / job_id / "order.json").exists()


def test_a_large_result_without_a_repository_fails_with_what_to_do_and_stays_with_the_owner(
    node: Bench, repository: HistoricRepository
) -> None:
    follow(node, RepositorySettings(allowed_urls=(repository.url,)))
    job_id = new_id()

    node.ask(run(node.approve(ECHO), job_id=job_id, inputs=inputs(repository.put("inputs", CONTENT))))
    job = node.over(job_id)["job"]
    follow(node, node.settings.repository)

    assert job["state"] == "failed"
    assert "`url` in [repository]" in job["reason"]
    assert (node.path / "runs" / job_id / "result").read_bytes() == CONTENT


def test_a_repository_that_comes_back_gets_the_result(node: Bench, repository: HistoricRepository) -> None:
    # given a repository that is away while the plan ends
    with socket.create_server(("127.0.0.1", 0)) as away:
        gone = f"http://127.0.0.1:{away.getsockname()[1]}/upload/"
    follow(node, RepositorySettings(url=gone, allowed_urls=(repository.url,)))
    job_id = new_id()
    node.ask(run(node.approve(ECHO), job_id=job_id, inputs=inputs(repository.put("inputs", CONTENT))))

    def is_stored_later() -> bool:
        node.work()
        return (node.path / "runs" / job_id / "ending.json").exists()

    wait_until(is_stored_later, what="the end of the plan")
    node.work()

    # when it is there again
    follow(node, node.settings.repository)

    # then a later try brings the result
    assert node.over(job_id)["job"]["state"] == "succeeded"
    assert sum(results.PAUSES_S) >= 30


def test_a_job_stopped_during_the_upload_ends_as_stopped_and_sends_no_result(
    node: Bench, repository: HistoricRepository
) -> None:
    # given a job whose plan has ended, and whose result is on its way to the repository
    job_id = new_id()
    node.ask(run(node.approve(ECHO), job_id=job_id, inputs=inputs(repository.put("inputs", CONTENT))))
    stored = len(repository.files)

    def has_ended() -> bool:
        node.work()
        return (node.path / "runs" / job_id / "ending.json").exists()

    wait_until(has_ended, what="the end of the plan")
    node.runs.tick()

    # when its owner stops it
    stopped = done(owner(node), "run-stop", job_id=job_id)["run"]

    # then it has ended as stopped, and an upload that ends later changes nothing
    def told() -> list[tuple[str, object]]:
        node.work()
        return [(one["job"]["state"], one["result"]) for one in node.outcomes() if one["job"]["job_id"] == job_id]

    assert (stopped["state"], stopped["result"]) == ("stopped-by-owner", None)
    wait_until(lambda: len(repository.files) > stored, what="the end of the upload")
    assert stays(lambda: told() == [("stopped-by-owner", None)], 0.3)
    assert node.ask(JobStatus(job_id=job_id, result=True, **envelope()))["result"] is None


def test_a_result_just_over_the_message_does_not_go_inside(node: Bench, repository: HistoricRepository) -> None:
    node.approve(ECHO)
    sent: dict[int, bool] = {}
    for times in (1, 60):
        job_id, content = new_id(), msgspec.json.encode({"text": '"' * 1_000})
        given = Parcel(format="json", sha256=digest(content), size_bytes=len(content), json=content.decode())
        node.ask(run(digest(ECHO), job_id=job_id, inputs=given, arguments={"times": times}))
        outcome = node.over(job_id)
        sent[times] = outcome["result"]["url"] is None
        assert outcome["job"]["state"] == "succeeded"

    assert sent == {1: True, 60: False}


def test_rules_that_change_while_inputs_come_hold_for_the_job_that_waits(
    node: Bench, repository: HistoricRepository
) -> None:
    # given two jobs whose inputs are on their way
    sha256, dataset_id = node.approve(ECHO), node.offer("taken-back")
    policy = node.local.policy
    rules = policy.settings
    jobs = [new_id(), new_id()]
    for job_id in jobs:
        url = repository.put(f"inputs-{job_id}", CONTENT)
        node.ask(run(sha256, job_id=job_id, inputs=inputs(url), dataset_id=dataset_id))

    # when the owner takes the dataset away, and then obeys nobody any more, before they are here
    node.local.registers.datasets.remove(dataset_id)
    first = node.over(jobs[0])
    assert first["job"]["state"] == "not-started"
    assert "offers you no dataset" in first["job"]["reason"]
    going = new_id()
    node.ask(run(sha256, job_id=going, inputs=inputs(repository.put("inputs-again", CONTENT))))
    policy.follow(msgspec.structs.replace(rules, researchers=()))
    try:
        record = wait_until(lambda: concluded(node, going), what="the end of the job")
    finally:
        policy.follow(rules)

    # then none of them starts
    assert record is not None
    assert (record.job.state.value, "does not obey" in record.job.reason) == ("not-started", True)
    assert not (node.path / "runs" / going / "order.json").exists()
