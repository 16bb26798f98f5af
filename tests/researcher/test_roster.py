"""Who is there, from what arrives and from time alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from fedmon.common.ids import NodeId
from fedmon.common.wire.messages import CONNECTION_LOST, OTHER_WIRE, Presence
from fedmon.researcher.roster import STALE_AFTER_S, Moment, Node, NodeState, Roster

START = datetime(2026, 11, 21, tzinfo=UTC)
NODE = NodeId("a")
Step = Callable[[Roster], object]


def at(seconds: float) -> Moment:
    return Moment(mono=1000.0 + seconds, utc=START + timedelta(seconds=seconds))


def presence(state: Any = "online", *, boot: int = 5, reason: str = "") -> Presence:
    return Presence(
        node_id=NODE, boot=boot, state=state, since=START - timedelta(days=1), reason=reason, agent_version="1.0"
    )


def said(seconds: float, state: str = "online", *, retained: bool = False, **fields: Any) -> Step:
    """Let the node tell its presence."""
    return lambda roster: roster.presence(presence(state, **fields), retained=retained, now=at(seconds))


def heard(seconds: float, *, revives: bool = True) -> Step:
    """Let another message of the node arrive."""
    return lambda roster: roster.heard(NODE, now=at(seconds), revives=revives)


def reconnected(seconds: float) -> Step:
    return lambda roster: roster.reconnected(at(seconds))


def silent(roster: Roster) -> None:
    roster.silent(NODE)


def known(roster: Roster, seconds: float) -> Node:
    node = roster.get(NODE, at(seconds))
    assert node is not None
    return node


NOT_HEARD = "said to be online, but not heard since we connected"
LIVES: dict[str, tuple[list[Step], float, dict[str, Any]]] = {
    "a retained presence is a belief and no sign of life": (
        [said(0, retained=True)], 1, {"state": "online", "last_seen": None, "expected": True},
    ),
    "silence while we were away makes nobody stale": ([said(0), reconnected(500)], 501, {"state": "online"}),
    "one that does not come back with the connection is not waited for": (
        [said(0), reconnected(10)], 16, {"state": "stale", "reason": "not heard of since the reconnect"},
    ),
    "one that has 5 s to come back is waited for": ([said(0), reconnected(10)], 14, {"expected": True}),
    "a retained presence is a word of it after a reconnect": (
        [said(0), reconnected(10), said(10, retained=True)], 16, {"expected": True},
    ),
    "so is any other message": ([said(0), reconnected(10), heard(12)], 16, {"expected": True}),
    "a last will of an older boot puts no node offline": (
        [said(0, boot=6), said(1, "offline", boot=5)], 2, {"state": "online", "told": False},
    ),
    "one that vanishes is offline from when we heard of it": (
        [said(0), said(9, "offline", reason=CONNECTION_LOST)], 10,
        {"state": "offline", "since": at(9).utc, "reason": CONNECTION_LOST, "expected": False},
    ),
    "since when one that vanished before we came is gone is not known": (
        [said(0, "offline", retained=True, reason=CONNECTION_LOST)], 1, {"state": "offline", "since": None},
    ),
    "one that left in order said since when": (
        [said(0, "offline", retained=True, reason="stopped")], 1, {"since": START - timedelta(days=1)},
    ),
    "samples after a last will revive no node": (
        [said(0), said(1, "offline"), heard(2, revives=False)], 2, {"state": "offline", "told": False},
    ),
    "nor does a reply that the last will overtook": (
        [said(0), said(1, "offline"), heard(1.5)], 2, {"state": "offline", "told": False},
    ),
    "a later reply does": ([said(0), said(1, "offline"), heard(3)], 3, {"state": "online", "told": True}),
    "a folder that was set back is believed once the newer boot is silent": (
        [said(0, boot=57, retained=True), said(STALE_AFTER_S + 1, boot=1)], 100, {"boot": 1, "state": "online"},
    ),
    "also if its node answers meanwhile": (
        [
            said(0, boot=57), said(1, "offline", boot=57, reason=CONNECTION_LOST),
            *(step for second in (2, 32, 62, 92) for step in (said(second, boot=1), heard(second), heard(second + 10))),
            said(122, boot=1),
        ], 122, {"boot": 1, "state": "online", "id_in_use": False},
    ),
    "one that left in order is believed at once also with an older boot": (
        [said(0, boot=57), said(1, "offline", boot=57, reason="stopped"), said(2, boot=1), said(3, boot=1)], 4,
        {"boot": 1, "state": "online", "id_in_use": False},
    ),
    "its end is believed then": (
        [said(0, boot=57), said(1, "offline", boot=57, reason="stopped"), said(2, boot=1), said(5, "offline", boot=1)],
        6, {"state": "offline"},
    ),
    "two processes that take the connection from each other are noticed": (
        [
            step
            for boot in (57, 12, 58, 13)
            for step in (said(boot, boot=boot), said(boot, "offline", boot=boot, reason=CONNECTION_LOST))
        ], 60, {"id_in_use": True},
    ),
    "a believed one that lets a whole request pass is not waited for again": (
        [said(0, retained=True), silent], 1, {"reason": NOT_HEARD, "expected": False},
    ),
    "until it is heard": ([said(0, retained=True), silent, heard(2)], 3, {"expected": True}),
    "one that was heard live has its three intervals": ([said(0), silent], 1, {"expected": True}),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "seconds", "expected"), LIVES.values(), ids=list(LIVES))
def test_a_node_is_as_its_life_was(steps: list[Step], seconds: float, expected: dict[str, Any]) -> None:
    roster = Roster()
    changes = [step(roster) for step in steps]

    node = known(roster, seconds)

    more = {"expected": roster.expected(at(seconds)) == {NODE}, "told": changes[-1] is not None}
    found = msgspec.structs.asdict(node) | {"state": node.state.value} | more
    assert {name: found[name] for name in expected} == expected


def test_a_node_unheard_for_three_intervals_is_stale_and_not_expected_until_it_is_heard() -> None:
    roster = Roster()
    roster.presence(presence(), retained=False, now=at(0))

    fresh, stale = known(roster, STALE_AFTER_S - 1), known(roster, STALE_AFTER_S + 1)
    expected = roster.expected(at(STALE_AFTER_S + 1))
    told = [roster.newly_stale(at(STALE_AFTER_S + 1)), roster.newly_stale(at(STALE_AFTER_S + 2))]
    change = roster.heard(NODE, now=at(STALE_AFTER_S + 3), revives=False)

    assert (fresh.state, stale.state) == (NodeState.ONLINE, NodeState.STALE)
    assert stale.reason == "unheard for 91 s"
    assert expected == set()
    assert [[node.node_id for node in nodes] for nodes in told] == [[NODE], []]
    assert change is not None
    assert change.node.state is NodeState.ONLINE


@pytest.mark.parametrize("boot", [4, 6])
def test_a_node_that_comes_back_with_another_boot_came_up(boot: int) -> None:
    roster = Roster()
    roster.presence(presence("offline", reason="stopped"), retained=True, now=at(0))

    change = roster.presence(presence(boot=boot), retained=False, now=at(1))

    assert change is not None
    assert (change.came_up, change.node.state, change.node.boot) == (True, NodeState.ONLINE, boot)


def test_a_party_that_comes_up_anew_within_one_connection_can_still_vanish() -> None:
    roster = Roster()
    roster.presence(presence(), retained=False, now=at(0))

    anew = msgspec.structs.replace(presence(), since=START)
    change = roster.presence(anew, retained=False, now=at(1))
    again = roster.presence(anew, retained=False, now=at(2))
    roster.presence(presence("offline", reason=CONNECTION_LOST), retained=False, now=at(3))

    assert change is not None
    assert (change.came_up, again) == (True, None)
    assert known(roster, 4).state is NodeState.OFFLINE


def test_where_nodes_do_not_announce_themselves_only_an_unanswered_request_makes_one_stale() -> None:
    roster = Roster(announced=False)
    roster.heard(NODE, now=at(0), revives=True)

    long_after = known(roster, 10 * STALE_AFTER_S)
    roster.silent(NODE)
    silent, expected = known(roster, 1), roster.expected(at(1))
    roster.heard(NODE, now=at(2), revives=True)

    assert long_after.state is NodeState.ONLINE
    assert (silent.state, silent.reason) == (NodeState.STALE, "did not answer the last request")
    assert expected == set()
    assert roster.expected(at(3)) == {NODE}


def test_nodes_beyond_the_bound_are_counted_up_to_it() -> None:
    roster = Roster(max_nodes=2)

    for number in range(10):
        roster.heard(NodeId(f"n{number}"), now=at(0), revives=True)

    assert (len(roster), roster.beyond) == (2, 2)


def test_a_node_of_another_wire_is_known_but_not_expected() -> None:
    roster = Roster()

    roster.presence(msgspec.structs.replace(presence(), capabilities=[OTHER_WIRE, "ping"]), retained=False, now=at(0))

    assert known(roster, 1).state is NodeState.ONLINE
    assert roster.expected(at(1)) == set()
