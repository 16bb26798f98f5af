"""What no message holds travels through a repository, and only through the one that the owner allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from fedmon.common.settings.values import RepositorySettings
from fedmon.common.wire.runs import JobStatus, Parcel, RunLimits
from fedmon.node.runs import confinement
from fedmon.node.runs import outcome as results
from fedmon.node.runs.release import HELD
from fedmon.node.runs.service import UNSENT
from tests.node.runs.kept_jobs import plan_of
from tests.node.runs.run_desks import Bench, bench, digest
from tests.support.envelopes import envelope
from tests.support.historic_repository import HistoricRepository
from tests.support.ports import free_port
from tests.support.stubborn import silent_peer
from tests.support.waiting import stays, wait_until

ECHO = plan_of('return {"text": context.inputs["text"] * context.arguments.get("times", 1)}')
CONTENT = msgspec.json.encode({"text": "x" * 150_000})


@pytest.fixture(scope="module")
def repository() -> Iterator[HistoricRepository]:
    with HistoricRepository() as running:
        yield running


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, repository: HistoricRepository) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("node") / "n"
    settings = {"url": repository.upload_url, "allowed_urls": [repository.url]}
    with bench(folder, runs={"max_jobs": 64}, repository=settings) as opened:
        yield opened


def inputs(url: str, content: bytes = CONTENT, **fields: Any) -> Parcel:
    given: dict[str, Any] = {"format": "json", "sha256": digest(content), "size_bytes": len(content), "url": url}
    return Parcel(**given | fields)


def follow(node: Bench, repository: RepositorySettings) -> None:
    node.runs.follow(msgspec.structs.replace(node.settings, repository=repository))


def test_a_transfer_that_ends_while_the_worker_takes_nothing_is_not_lost(
    node: Bench, repository: HistoricRepository
) -> None:
    node.is_full = True
    job_id = node.begin(ECHO, inputs=inputs(repository.put("inputs", CONTENT)))
    wait_until(lambda: node.refused, what="the end of the transfer")

    node.is_full = False

    assert node.over(job_id)["job"]["state"] == "succeeded"


def test_slow_servers_hold_up_no_inputs_of_others(node: Bench, repository: HistoricRepository) -> None:
    with silent_peer() as port:
        slow = f"http://127.0.0.1:{port}/"
        allowed = msgspec.structs.replace(node.settings.repository, allowed_urls=(repository.url, slow))
        follow(node, allowed)
        waiting = [node.begin(ECHO, inputs=inputs(slow)) for _ in range(3)]
        node.owner("run-stop", job_id=waiting[0])
        others = [node.begin(ECHO, inputs=inputs(repository.put("inputs", CONTENT))) for _ in range(2)]

        states = {node.over(job_id)["job"]["state"] for job_id in others}
    follow(node, node.settings.repository)

    assert states == {"succeeded"}
    assert [node.over(job_id)["job"]["state"] for job_id in waiting] == ["stopped-by-owner", *["not-started"] * 2]


@pytest.mark.parametrize(
    ("content", "fields", "says"),
    [
        (CONTENT + b" ", {}, "bytes"),
        (CONTENT[:-3] + b'y"}', {}, "digest"),
        (b'{"a": NaN}', {"sha256": digest(b'{"a": NaN}'), "size_bytes": 10}, "cannot be used"),
    ],
)
def test_inputs_that_are_not_the_announced_ones_start_nothing(
    node: Bench,
    repository: HistoricRepository,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    fields: dict[str, Any],
    says: str,
) -> None:
    monkeypatch.setattr(confinement, "LOOK_AGAIN_S", 0.0)
    job_id = node.begin(ECHO, inputs=inputs(repository.put("x", content), **fields))
    job = node.over(job_id)["job"]

    assert job["state"] == "not-started"
    assert says in job["reason"]
    assert node.runs.confinement.found  # no sandbox is in doubt
    assert not (node.path / "runs" / job_id / "lock").exists()


def test_a_repository_that_comes_back_gets_the_result(node: Bench, repository: HistoricRepository) -> None:
    # given a repository that is away while the plan ends
    gone = f"http://127.0.0.1:{free_port()}/upload/"
    follow(node, RepositorySettings(url=gone, allowed_urls=(repository.url,)))
    job_id = node.begin(ECHO, inputs=inputs(repository.put("inputs", CONTENT)))
    node.wait(node.files(job_id).ending, what="the end of the plan")
    node.work()

    # when it is there again
    follow(node, node.settings.repository)

    # then a later try brings the result
    assert node.over(job_id)["job"]["state"] == "succeeded"
    assert sum(results.PAUSES_S) >= 30


@pytest.mark.parametrize(("url", "says"), [
    ("http://127.0.0.1:1/upload/", "refused"),
    ("", "a URL that cannot be used: Expected `str` of length <= 2048"),
])  # fmt: skip
def test_a_result_that_cannot_be_stored_waits_for_its_owner_who_releases_it_later(
    node: Bench,
    repository: HistoricRepository,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    url: str,
    says: str,
) -> None:
    monkeypatch.setattr(results, "PAUSES_S", (0.01,))
    monkeypatch.setattr(repository, "suffix", "x" * 2048)
    follow(node, RepositorySettings(url=url or repository.upload_url, allowed_urls=(repository.url,)))
    job_id = node.begin(ECHO, inputs=inputs(repository.put("inputs", CONTENT)))
    job = node.held(job_id)["job"]
    monkeypatch.undo()
    follow(node, node.settings.repository)

    assert job["reason"] == f"{UNSENT}: {HELD}"
    assert says in caplog.text
    node.owner("result-decide", job_id=job_id, release=True, sha256=digest(CONTENT))
    assert node.outcome(job_id)["result"]["sha256"] == digest(CONTENT)


def test_a_job_stopped_during_the_upload_ends_as_stopped_and_sends_no_result(
    node: Bench, repository: HistoricRepository
) -> None:
    # given a job whose plan has ended, and whose result is on its way to the repository
    job_id = node.begin(ECHO, inputs=inputs(repository.put("inputs", CONTENT)))
    stored = len(repository.files)
    node.wait(node.files(job_id).ending, what="the end of the plan")
    node.runs.tick()

    # when its owner stops it
    stopped = node.owner("run-stop", job_id=job_id)["run"]

    # then it has ended as stopped, and an upload that ends later changes nothing
    def told() -> list[tuple[str, object]]:
        node.work()
        return [(one["job"]["state"], one["result"]) for one in node.outcomes() if one["job"]["job_id"] == job_id]

    assert (stopped["state"], stopped["result"]) == ("stopped-by-owner", None)
    assert stopped["usage"]["wall_s"] > 0
    wait_until(lambda: len(repository.files) > stored, what="the end of the upload")
    assert stays(lambda: told() == [("stopped-by-owner", None)], 0.3)
    assert node.ask(JobStatus(job_id=job_id, result=True, **envelope()))["result"] is None


def test_a_result_just_over_the_message_does_not_go_inside(node: Bench, repository: HistoricRepository) -> None:
    sent: dict[int, bool] = {}
    for times in (1, 60):
        content = msgspec.json.encode({"text": '"' * 1_000})
        given = Parcel(format="json", sha256=digest(content), size_bytes=len(content), json=content.decode())
        outcome = node.over(node.begin(ECHO, inputs=given, arguments={"times": times}))
        sent[times] = outcome["result"]["url"] is None
        assert outcome["job"]["state"] == "succeeded"

    assert sent == {1: True, 60: False}


def test_rules_that_change_while_inputs_come_hold_for_the_job_that_waits(
    node: Bench, repository: HistoricRepository
) -> None:
    # given a job whose inputs are on their way
    dataset_id = node.offer("taken-back")
    policy = node.local.policy
    rules = policy.settings
    job_id = node.begin(ECHO, dataset_id, inputs=inputs(repository.put("inputs", CONTENT)))

    # when the owner takes the dataset away, has its tag for another, and obeys nobody any more before those of others
    node.local.registers.datasets.remove(dataset_id)
    first = node.over(job_id)["job"]
    swapped = node.offer("before", "tag")
    tagged = node.begin(ECHO, inputs=inputs(repository.put("inputs", CONTENT)), tags=["tag"])
    node.local.registers.datasets.remove(swapped)
    node.offer("after", "tag")
    third = node.over(tagged)["job"]
    going = node.begin(ECHO, inputs=inputs(repository.put("inputs", CONTENT)))
    policy.follow(msgspec.structs.replace(rules, researchers=()))
    try:
        second = node.concluded(going).job
    finally:
        policy.follow(rules)

    # then none of them starts
    assert (third["state"], "its dataset is another one" in third["reason"]) == ("not-started", True)
    assert (first["state"], "offers you no dataset" in first["reason"]) == ("not-started", True)
    assert (second.state.value, "does not obey" in second.reason) == ("not-started", True)
    assert not (node.path / "runs" / going / "lock").exists()


def test_limits_that_change_while_inputs_come_hold_for_the_job_that_waits(
    node: Bench, repository: HistoricRepository
) -> None:
    # given a job whose inputs are on their way
    parcel = inputs(repository.put("inputs", CONTENT))
    job_id = node.begin(ECHO, inputs=parcel, limits=RunLimits(wall_s=50.0, cpu_s=5.0))

    # when the owner lowers a limit before they are here
    runs = msgspec.structs.replace(node.settings.runs, max_wall_s=40.0)
    node.runs.follow(msgspec.structs.replace(node.settings, runs=runs))
    try:
        job = node.over(job_id)["job"]
    finally:
        node.runs.follow(node.settings)

    # then it ran with that, and its end says so
    assert (job["state"], job["limits"]["wall_s"], job["limits"]["cpu_s"]) == ("succeeded", 40.0, 5.0)
    assert job["reason"] == "wall_s is 40, the most that this node gives, and not 50"
