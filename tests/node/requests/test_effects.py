"""A request that is asked again has its effect once and gets the reply it got before."""

from __future__ import annotations

import datetime

import msgspec
import pytest

from fedmon.common.clock import seconds_from_now, timestamp, utc_now
from fedmon.common.errors import ConflictError
from fedmon.common.wire.messages import Ping
from fedmon.node.registers.database import Database
from fedmon.node.requests.router import KEPT_REFUSALS, NEW_REFUSALS, Effects, content_digest
from tests.support.envelopes import approval, envelope

DAY = datetime.timedelta(days=1)


@pytest.fixture
def effects(database: Database) -> Effects:
    return Effects(database)


def test_ids_of_different_researchers_are_different_ids(effects: Effects) -> None:
    effects.remember("r", "one", b"for r", seconds_from_now(60))

    assert effects.stored_reply("other", "one") is None
    effects.remember("other", "one", b"for other", seconds_from_now(60))
    assert effects.stored_reply("r", "one") == b"for r"


@pytest.mark.parametrize("lives", [DAY, datetime.timedelta(days=9999)], ids=["a day", "for ever"])
def test_a_reply_is_kept_for_a_day_more_than_its_request_lives_and_for_eight_at_most(
    lives: datetime.timedelta, effects: Effects
) -> None:
    now = utc_now()
    effects.remember("r", "one", b"the reply", now + lives)
    end, minute = now + min(lives, 7 * DAY) + DAY, datetime.timedelta(minutes=1)

    purged = [effects.purge(now=end - minute), effects.purge(now=end + minute)]

    assert (purged, effects.stored_reply("r", "one")) == ([0, 1], None)


def test_the_digest_of_a_request_is_of_what_it_asks_and_not_of_its_envelope() -> None:
    request = approval(b"x = 1\n")
    again = msgspec.structs.replace(request, session="t", sequence=9, expires=seconds_from_now(99), instance="shell")

    assert content_digest(request) == content_digest(again)
    assert content_digest(request) != content_digest(msgspec.structs.replace(request, name="another"))
    assert content_digest(request) != content_digest(Ping(**envelope() | {"id": request.id}))


def test_a_refusal_is_kept_for_a_day_though_its_request_expired_and_never_replaces_a_reply(effects: Effects) -> None:
    long_ago = utc_now() - 5 * DAY
    effects.remember("r", "served", b"the reply", seconds_from_now(60), content="digest")

    effects.remember("r", "refused", b"no", long_ago)
    effects.remember("r", "served", b"no", long_ago)

    assert effects.purge(now=utc_now() + DAY / 2) == 0
    assert effects.stored_reply("r", "refused", content="anything") == b"no"
    assert effects.stored_reply("r", "served", content="digest") == b"the reply"
    with pytest.raises(ConflictError, match="asked something else before: use a new id"):
        effects.stored_reply("r", "served", content="another")
    assert effects.purge(now=utc_now() + 2 * DAY) == 2


def test_refusals_are_bounded_and_replies_are_none_of_them(database: Database) -> None:
    many = (
        "WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < ?1) "
        "INSERT INTO effects SELECT 'r', 'refused-' || value, '', x'6e6f', ?2 FROM n"
    )
    database.execute(many, (KEPT_REFUSALS, timestamp(seconds_from_now(60) + DAY)))
    effects = Effects(database)
    effects.remember("r", "served", b"the reply", seconds_from_now(60), content="digest")

    with database.transaction():
        for number in range(NEW_REFUSALS):
            effects.remember("r", f"new-{number}", b"no", seconds_from_now(60 * 60))

    assert database.rows("SELECT count(*) AS number FROM effects")[0]["number"] == KEPT_REFUSALS + 1
    assert effects.stored_reply("r", "served") == b"the reply"
    assert effects.stored_reply("r", "refused-1") is None
    assert effects.stored_reply("r", f"new-{NEW_REFUSALS - 1}") == b"no"
