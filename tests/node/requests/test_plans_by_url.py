"""Plans at a URL are fetched beside the router, each once, under the settings of that moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedmon.common.settings.values import RepositorySettings
from fedmon.common.wire.messages import Approval
from fedmon.node.daemon import MAX_DOWNLOADS
from tests.node.runs.run_desks import ALICE, Bench, bench
from tests.support.envelopes import approval
from tests.support.historic_repository import HistoricRepository
from tests.support.node_process import NO_RUNS

SOURCE = b"x = 1\n"


@contextlib.contextmanager
def opened(folder: Path, **sections: Any) -> Iterator[tuple[Bench, HistoricRepository]]:
    """Open a node that may fetch from a repository; its workers do not work yet, as if that were slow."""
    with HistoricRepository() as repository:
        allowed = {"allowed_urls": [repository.url]}
        with bench(folder, is_ready=False, runs=NO_RUNS, repository=allowed, **sections) as node:
            yield node, repository


def by_url(url: str, source: bytes = SOURCE) -> Approval:
    """Return a request to approve the plan at a URL."""
    return msgspec.structs.replace(approval(source), source=None, url=url)


def replies(node: Bench, number: int) -> list[dict[str, Any]]:
    """Return the replies to requests once there are so many."""
    return node.wait(lambda: node.said if len(node.sent) >= number else None, what=f"{number} replies")


def test_a_request_that_is_repeated_while_its_plan_is_fetched_counts_once(tmp_path: Path) -> None:
    with opened(tmp_path / "n", quota={"changes_per_hour": 2}) as (node, repository):
        request = by_url(repository.put("plan.py", SOURCE))
        for _ in range(5):
            node.receive(request)
        assert node.local.counters()["served"] == 1
        assert node.local.registers.quotas.used(ALICE)["changes"] == 1
        node.local.workers.start()

        (reply,) = replies(node, 1)

        assert (reply["command"], reply["status"]) == ("approval", "pending")
        assert [line["id"] for line in node.audit("command")] == [request.id]


def test_addresses_that_the_owner_changes_hold_for_the_next_plan(tmp_path: Path) -> None:
    with bench(tmp_path / "n", is_ready=False, runs=NO_RUNS) as node:
        node.local.workers.start()
        node.receive(by_url("http://127.0.0.1:1/plan.py"))
        before = replies(node, 1)[-1]
        allowing = RepositorySettings(allowed_urls=("http://127.0.0.1:1/",))
        node.local.follow(msgspec.structs.replace(node.settings, repository=allowing))
        node.receive(by_url("http://127.0.0.1:1/plan.py"))
        after = replies(node, 2)[-1]

    assert "not under an allowed address" in before["reason"]
    assert "not under an allowed address" not in after["reason"]


@pytest.mark.parametrize("comes", ["in the message", "by its URL"])
def test_the_largest_plan_that_the_owner_changes_holds_for_the_next(comes: str, tmp_path: Path) -> None:
    source = SOURCE * 400
    with opened(tmp_path / "n") as (node, repository):
        node.local.workers.start()
        node.local.follow(msgspec.structs.replace(node.settings, max_plan_bytes=1024))
        node.receive(by_url(repository.put("p", source), source) if comes == "by its URL" else approval(source))
        refused = replies(node, 1)[-1]
        node.local.follow(node.settings)
        node.receive(approval(source))
        taken = replies(node, 2)[-1]

    assert (refused["command"], "1024" in refused["reason"]) == ("error", True)
    assert taken["command"] == "approval"


@pytest.mark.parametrize("comes", ["in the message", "by its URL"])
def test_a_plan_at_which_the_node_itself_fails_is_answered_too(comes: str, tmp_path: Path) -> None:
    with opened(tmp_path / "n") as (node, repository):
        node.local.workers.start()
        node.local.registers.plans.store = None  # type: ignore[assignment]  # as a mistake of ours would
        node.receive(by_url(repository.put("p", SOURCE)) if comes == "by its URL" else approval(SOURCE))

        (reply,) = replies(node, 1)

    assert (reply["code"], reply["reason"]) == ("failed", "the node failed at approval; its log says why")


def test_plans_that_are_fetched_at_once_are_within_the_quota_together(tmp_path: Path) -> None:
    with opened(tmp_path / "n", quota={"undecided_plans": 1}) as (node, repository):
        for source in (SOURCE, SOURCE * 2):
            node.receive(by_url(repository.put(f"{len(source)}.py", source), source))
        node.local.workers.start()

        refused, taken = replies(node, 2)

    assert (taken["command"], refused["code"], "undecided_plans" in refused["reason"]) == ("approval", "busy", True)


def test_one_plan_more_than_may_wait_is_answered_busy(tmp_path: Path) -> None:
    with bench(tmp_path / "n", is_ready=False, quota={"undecided_plans": 1000}) as node:
        for _ in range(MAX_DOWNLOADS + 1):
            node.receive(by_url("http://127.0.0.1:1/plan.py"))

        (reply,) = replies(node, 1)

    assert reply["code"] == "busy"
    assert "fetches too many plans" in reply["reason"]
