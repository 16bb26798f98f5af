"""A decision waits for its researcher, in order, until it is acknowledged or expires."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.common.clock import utc_now
from fedmon.common.wire.messages import PlanDecision, PlanStatus
from fedmon.node.registers.database import Database
from fedmon.node.requests.outbox import Outbox

DAY = datetime.timedelta(days=1)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "state.sqlite") as opened:
        yield opened


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return Outbox(database)


def _decision(number: int, researcher_id: str = "r") -> PlanDecision:
    return PlanDecision(
        node_id="n",
        researcher_id=researcher_id,
        id=f"decision-{number}",
        boot=1,
        plan_id=f"training_plan_{number}",
        sha256="0" * 64,
        name="plän\u202e",
        status=PlanStatus.REJECTED,
        note="no",
        decided=utc_now(),
    )


def test_decisions_come_back_whole_and_in_order(outbox: Outbox) -> None:
    decisions = [_decision(number) for number in (3, 1, 2)]
    for decision in decisions:
        outbox.add(decision)

    assert outbox.unacked("r") == decisions
    assert outbox.unacked("r", limit=2) == decisions[:2]


def test_an_acknowledged_decision_is_gone_and_the_others_stay(outbox: Outbox) -> None:
    for number in range(4):
        outbox.add(_decision(number))

    dropped = outbox.ack("r", ["decision-0", "decision-2", "decision-2", "unknown"])

    assert dropped == 2
    assert [decision.id for decision in outbox.unacked("r")] == ["decision-1", "decision-3"]


def test_nobody_acknowledges_for_another_researcher(outbox: Outbox) -> None:
    outbox.add(_decision(1))

    assert outbox.ack("other", ["decision-1"]) == 0
    assert outbox.waiting() == {"r": 1}


def test_a_decision_that_nobody_fetches_expires_after_thirty_days(outbox: Outbox) -> None:
    outbox.add(_decision(1))
    outbox.add(_decision(2), lifetime=datetime.timedelta(seconds=-1))

    unacked = [decision.id for decision in outbox.unacked("r")]
    dropped = [outbox.expire(), outbox.expire(now=utc_now() + 29 * DAY), outbox.expire(now=utc_now() + 31 * DAY)]

    assert (unacked, dropped) == (["decision-1"], [1, 0, 1])
