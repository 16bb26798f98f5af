"""A request that is asked again has its effect once and gets the reply it got before."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

from fedmon.common.clock import seconds_from_now, timestamp, utc_now
from fedmon.common.errors import ConflictError
from fedmon.common.wire.messages import Approval, Error, ErrorCode, Ping
from fedmon.node.registers.database import Database
from fedmon.node.requests.dialect import error
from fedmon.node.requests.router import KEPT_REFUSALS, NEW_REFUSALS, Effects, content_digest
from tests.support.envelopes import approval, envelope

DAY = datetime.timedelta(days=1)


@pytest.fixture
def effects(database: Database) -> Effects:
    return Effects(database)


def reply_to(request_id: str, reason: str, *, by: str = "r", **fields: Any) -> tuple[Approval, Error]:
    """Return a request of this id, and a reply to it that says this."""
    request = approval(b"x = 1\n", by=by, id=request_id, **fields)
    return request, error(request, "n", ErrorCode.FAILED, reason)


def served(effects: Effects, request_id: str, reason: str = "a new effect", **fields: Any) -> str:
    """Serve a request whose effect would say this; return what it is answered."""
    request, made = reply_to(request_id, reason, **fields)
    reply = effects.once(request, lambda: made)
    assert isinstance(reply, Error)
    return reply.reason


def test_ids_of_different_researchers_are_different_ids(effects: Effects) -> None:
    first = [served(effects, "one", f"for {who}", by=who) for who in ("r", "other")]

    assert [served(effects, "one", by=who) for who in ("r", "other")] == first == ["for r", "for other"]
    assert effects.counters["repeated"] == 2


@pytest.mark.parametrize("lives", [DAY, datetime.timedelta(days=9999)], ids=["a day", "for ever"])
def test_a_reply_is_kept_for_a_day_more_than_its_request_lives_and_for_eight_at_most(
    lives: datetime.timedelta, effects: Effects
) -> None:
    now = utc_now()
    served(effects, "one", expires=now + lives)
    end, minute = now + min(lives, 7 * DAY) + DAY, datetime.timedelta(minutes=1)

    purged = [effects.purge(now=end - minute), effects.purge(now=end + minute)]

    assert (purged, served(effects, "one", "again")) == ([0, 1], "again")


def test_the_digest_of_a_request_is_of_what_it_asks_and_not_of_its_envelope() -> None:
    request = approval(b"x = 1\n")
    again = msgspec.structs.replace(request, session="t", sequence=9, expires=seconds_from_now(99), instance="shell")

    assert content_digest(request) == content_digest(again)
    assert content_digest(request) != content_digest(msgspec.structs.replace(request, name="another"))
    assert content_digest(request) != content_digest(Ping(**envelope() | {"id": request.id}))


def test_a_refusal_is_kept_for_a_day_though_its_request_expired_and_never_replaces_a_reply(effects: Effects) -> None:
    long_ago = utc_now() - 5 * DAY
    served(effects, "served", "the reply")

    for name in ("refused", "served"):
        effects.refuse(*reply_to(name, "no", expires=long_ago))

    assert effects.purge(now=utc_now() + DAY / 2) == 0
    assert served(effects, "refused", name="anything") == "no"
    assert served(effects, "served") == "the reply"
    with pytest.raises(ConflictError, match="asked something else before: use a new id"):
        served(effects, "served", name="another")
    assert effects.purge(now=utc_now() + 2 * DAY) == 2


def test_refusals_are_bounded_and_replies_are_none_of_them(database: Database) -> None:
    many = (
        "WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < ?) "
        "INSERT INTO effects SELECT 'r', 'refused-' || value, '', x'6e6f', ? FROM n"
    )
    database.execute(many, (KEPT_REFUSALS, timestamp(seconds_from_now(60) + DAY)))
    effects = Effects(database)
    served(effects, "served", "the reply")

    with database.transaction():
        for number in range(NEW_REFUSALS):
            effects.refuse(*reply_to(f"new-{number}", "no", expires=seconds_from_now(60 * 60)))

    assert database.rows("SELECT count(*) AS number FROM effects")[0]["number"] == KEPT_REFUSALS + 1
    asking = ("served", "refused-1", f"new-{NEW_REFUSALS - 1}")
    assert [served(effects, name) for name in asking] == ["the reply", "a new effect", "no"]
