"""A decision waits for its researcher, in order, until it is acknowledged or expires."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedmon.common.clock import utc_now
from fedmon.common.ids import new_id
from fedmon.common.wire.grants import Grant
from fedmon.common.wire.messages import Ack, Ping, PlanDecision, PlanStatus, Pong
from fedmon.node.registers.database import Database
from fedmon.node.requests.dialect import echo
from fedmon.node.requests.outbox import Outbox
from fedmon.node.requests.quotas import Throttle
from tests.node.runs.run_desks import Bench, bench
from tests.support.envelopes import decision, envelope
from tests.support.node_process import NO_RUNS
from tests.support.waiting import wait_until

DAY = datetime.timedelta(days=1)


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return Outbox(database)


def _decision(number: int, researcher_id: str = "r") -> PlanDecision:
    rejected = {"name": "plän\u202e", "status": PlanStatus.REJECTED, "note": "no"}
    return decision(f"decision-{number}", researcher_id=researcher_id, **rejected)


def test_decisions_come_back_whole_and_in_order_until_their_researcher_acknowledges_them(outbox: Outbox) -> None:
    decisions = [_decision(number) for number in (3, 1, 2, 0)]
    for each in decisions:
        outbox.add(each)

    assert outbox.unacked("r") == decisions
    assert outbox.ack("other", ["decision-1"]) == 0
    assert outbox.waiting() == {"r": 4}
    assert outbox.ack("r", ["decision-0", "decision-2", "decision-2", "unknown"]) == 2
    assert [decision.id for decision in outbox.unacked("r")] == ["decision-3", "decision-1"]


def test_a_decision_that_nobody_fetches_expires_after_thirty_days(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.add(_decision(1))

    dropped = [outbox.expire(now=utc_now() + days * DAY) for days in (0, 29, 31)]

    assert (dropped, outbox.waiting()) == ([0, 0, 1], {})
    assert caplog.messages == ["1 decision or outcome dropped: not acknowledged in time"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path / "n", is_ready=False, runs=NO_RUNS) as opened:
        yield opened


def _decisions(node: Bench) -> list[dict[str, Any]]:
    return [each for each in node.said if each["command"] == "plan-decision"]


def _ack_anew(node: Bench) -> None:
    """Acknowledge nothing, from a new session."""
    node.receive(Ack(ids=["none"], **envelope("r") | {"session": new_id()}))


def test_a_node_that_starts_drops_what_expired_meanwhile(node: Bench) -> None:
    node.local.registers.outbox.add(_decision(1))
    node.local.registers.database.execute("UPDATE outbox SET expires = '2020-01-01T00:00:00Z'")

    node.local.take_up()
    node.local.delivery.push()

    assert _decisions(node) == []


def test_a_message_that_is_sent_again_is_counted_and_has_one_line(node: Bench) -> None:
    node.local.registers.outbox.add(_decision(1))
    node.local.delivery.push()

    def came_again() -> bool:
        _ack_anew(node)
        return len(_decisions(node)) > 2

    wait_until(came_again, what="the decision again")
    assert len(node.audit("decision")) == 1


def test_a_flood_of_acknowledgements_is_not_answered_with_all_that_waits(
    node: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the test is kept waiting, no more lines are allowed.
    monkeypatch.setattr(node.local.registers.quotas, "_lines", Throttle(burst=20, per_s=1e-6))
    node.local.registers.outbox.add(_decision(1))
    for _ in range(40):
        _ack_anew(node)
    assert len(node.audit("command")) <= 20
    node.local.delivery.push()
    before = len(_decisions(node))

    _ack_anew(node)

    assert len(_decisions(node)) == before


def test_one_message_that_is_too_large_holds_up_no_other(node: Bench, caplog: pytest.LogCaptureFixture) -> None:
    grant = Grant(grant_id=new_id(), sha256="0" * 64, scalars=tuple(new_id() for _ in range(3000)))
    outbox = node.local.registers.outbox
    outbox.add(msgspec.structs.replace(_decision(1, "a"), grant=grant))
    outbox.add(msgspec.structs.replace(_decision(2, "a"), name="n" * 110_000))
    outbox.add(_decision(3, "b"))

    for _ in range(2):
        node.local.delivery.push()

    assert [each["id"] for each in _decisions(node)] == ["decision-1", "decision-3"] * 2
    assert "grant" not in _decisions(node)[0] or _decisions(node)[0]["grant"] is None
    assert sum("a message to researcher a cannot be sent" in each for each in caplog.messages) == 1


def test_a_reply_that_is_too_large_is_answered_with_an_error(node: Bench) -> None:
    ping = Ping(**envelope("r"))
    pong = Pong(time=utc_now(), boot=1, agent_version="v" * 110_000, **echo(ping, "hospital"))

    node.local.delivery.reply(pong, ping)

    (told,) = node.said
    assert (told["command"], told["id"], told["code"]) == ("error", ping.id, "too-large")
