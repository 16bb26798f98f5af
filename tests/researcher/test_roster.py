"""Who is there, from what arrives and from time alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.wire.messages import OTHER_WIRE, Presence
from fedmon.researcher.roster import STALE_AFTER_S, Moment, Node, NodeState, Roster

START = datetime(2026, 11, 21, tzinfo=UTC)
NODE = NodeId("a")


def at(seconds: float) -> Moment:
    return Moment(mono=1000.0 + seconds, utc=START + timedelta(seconds=seconds))


def presence(state: Any = "online", *, boot: int = 5, node_id: str = "a", reason: str = "") -> Presence:
    return Presence(
        node_id=node_id, boot=boot, state=state, since=START - timedelta(days=1), reason=reason, agent_version="1.0"
    )


def known(roster: Roster, seconds: float) -> Node:
    node = roster.get(NODE, at(seconds))
    assert node is not None
    return node


def test_a_retained_presence_is_a_belief_and_no_sign_of_life() -> None:
    roster = Roster()

    roster.presence(presence(), retained=True, now=at(0))

    assert known(roster, 1).state is NodeState.ONLINE
    assert known(roster, 1).last_seen is None
    assert roster.expected(at(1)) == {NODE}


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


def test_silence_while_we_were_away_makes_nobody_stale() -> None:
    roster = Roster()
    roster.presence(presence(), retained=False, now=at(0))

    roster.reconnected(at(500))

    assert known(roster, 501).state is NodeState.ONLINE


def test_a_node_that_does_not_come_back_with_the_connection_is_not_waited_for() -> None:
    roster = Roster()
    for node_id in ("a", "b", "c"):
        roster.presence(presence(node_id=node_id), retained=False, now=at(0))

    roster.reconnected(at(10))
    roster.presence(presence(node_id="b"), retained=True, now=at(10))
    roster.heard(NodeId("c"), now=at(12), revives=True)

    assert roster.expected(at(14)) == {"a", "b", "c"}
    assert roster.expected(at(16)) == {"b", "c"}
    assert known(roster, 16).reason == "not heard of since the reconnect"


def test_a_last_will_of_an_older_boot_does_not_put_a_node_offline() -> None:
    roster = Roster()
    roster.presence(presence(boot=6), retained=False, now=at(0))

    change = roster.presence(presence("offline", boot=5), retained=False, now=at(1))

    assert change is None
    assert known(roster, 2).state is NodeState.ONLINE


def test_offline_counts_from_when_we_heard_of_it_and_says_why() -> None:
    roster = Roster()
    roster.presence(presence(), retained=False, now=at(0))

    roster.presence(presence("offline", reason="connection lost"), retained=False, now=at(9))

    assert known(roster, 10).state is NodeState.OFFLINE
    assert known(roster, 10).since == at(9).utc
    assert known(roster, 10).reason == "connection lost"
    assert roster.expected(at(10)) == set()


def test_since_when_a_node_is_gone_is_said_only_where_it_is_known() -> None:
    vanished, left = Roster(), Roster()

    # A last will was written when the node connected, so it does not know when the node went.
    vanished.presence(presence("offline", reason="connection lost"), retained=True, now=at(0))
    left.presence(presence("offline", reason="stopped"), retained=True, now=at(0))

    assert known(vanished, 1).since is None
    assert known(left, 1).since == START - timedelta(days=1)


def test_a_node_that_comes_back_with_a_new_boot_came_up() -> None:
    roster = Roster()
    roster.presence(presence("offline"), retained=True, now=at(0))

    change = roster.presence(presence(boot=6), retained=False, now=at(1))

    assert change is not None
    assert (change.came_up, change.node.state, change.node.boot) == (True, NodeState.ONLINE, 6)


def test_a_party_that_comes_up_anew_within_one_connection_can_still_vanish() -> None:
    roster = Roster()
    roster.presence(presence(), retained=False, now=at(0))

    anew = msgspec.structs.replace(presence(), since=START)
    change = roster.presence(anew, retained=False, now=at(1))
    again = roster.presence(anew, retained=False, now=at(2))
    roster.presence(presence("offline", reason="connection lost"), retained=False, now=at(3))

    assert change is not None
    assert (change.came_up, again) == (True, None)
    assert known(roster, 4).state is NodeState.OFFLINE


def test_what_the_last_will_overtook_does_not_revive_a_node_but_a_later_reply_does() -> None:
    roster = Roster()
    roster.presence(presence(), retained=False, now=at(0))
    roster.presence(presence("offline"), retained=False, now=at(1))

    by_sample = roster.heard(NODE, now=at(2), revives=False)
    after_sample = known(roster, 2).state
    overtaken = roster.heard(NODE, now=at(1.5), revives=True)
    by_reply = roster.heard(NODE, now=at(3), revives=True)

    assert (by_sample, after_sample, overtaken) == (None, NodeState.OFFLINE, None)
    assert by_reply is not None
    assert known(roster, 3).state is NodeState.ONLINE


def test_a_node_whose_folder_was_set_back_is_believed_once_the_newer_boot_is_silent() -> None:
    roster = Roster()
    roster.presence(presence(boot=57), retained=True, now=at(0))

    roster.presence(presence(boot=1), retained=False, now=at(STALE_AFTER_S + 1))

    assert (known(roster, 100).boot, known(roster, 100).state) == (1, NodeState.ONLINE)


def test_a_folder_that_was_set_back_is_believed_however_often_its_node_answers_meanwhile() -> None:
    roster = Roster()
    roster.presence(presence(boot=57), retained=False, now=at(0))
    roster.presence(presence("offline", boot=57, reason="connection lost"), retained=False, now=at(1))

    for second in range(2, int(STALE_AFTER_S) + 32, 10):
        if second % 30 == 2:
            roster.presence(presence(boot=1), retained=False, now=at(second))
        roster.heard(NODE, now=at(second), revives=True)

    found = known(roster, STALE_AFTER_S + 32)
    assert (found.boot, found.state, found.id_in_use) == (1, NodeState.ONLINE, False)


def test_a_node_that_left_in_order_is_believed_at_once_also_with_an_older_boot() -> None:
    roster = Roster()
    roster.presence(presence(boot=57), retained=False, now=at(0))
    roster.presence(presence("offline", boot=57, reason="stopped"), retained=False, now=at(1))

    came_up = roster.presence(presence(boot=1), retained=False, now=at(2))
    roster.presence(presence(boot=1), retained=False, now=at(3))
    up = known(roster, 4)
    roster.presence(presence("offline", boot=1, reason="stopped"), retained=False, now=at(5))

    assert came_up is not None
    assert (came_up.came_up, up.state, up.id_in_use, known(roster, 6).state) == (
        True, NodeState.ONLINE, False, NodeState.OFFLINE,
    )  # fmt: skip


def test_two_processes_that_take_the_connection_from_each_other_are_noticed() -> None:
    roster = Roster()
    for boot in (57, 12, 58, 13):
        roster.presence(presence(boot=boot), retained=False, now=at(boot))
        roster.presence(presence("offline", boot=boot, reason="connection lost"), retained=False, now=at(boot))

    assert known(roster, 60).id_in_use


def test_a_believed_node_that_lets_a_whole_request_pass_is_not_waited_for_again() -> None:
    roster = Roster()
    roster.presence(presence(), retained=True, now=at(0))
    roster.presence(presence(node_id="b"), retained=False, now=at(0))

    roster.silent(NODE)
    roster.silent(NodeId("b"))

    assert roster.expected(at(1)) == {"b"}
    assert known(roster, 1).reason == "said to be online, but not heard since we connected"
    roster.heard(NODE, now=at(2), revives=True)
    assert roster.expected(at(3)) == {"a", "b"}


def test_a_forgotten_node_stays_hidden_until_it_shows_itself() -> None:
    roster = Roster()
    roster.presence(presence("offline"), retained=True, now=at(0))

    roster.forget(NODE)
    roster.presence(presence("offline"), retained=True, now=at(1))
    hidden = roster.get(NODE, at(2))
    roster.presence(presence(boot=6), retained=False, now=at(3))

    assert hidden is None
    assert known(roster, 4).state is NodeState.ONLINE


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


def test_a_node_of_another_wire_is_known_but_not_expected() -> None:
    roster = Roster()

    roster.presence(msgspec.structs.replace(presence(), capabilities=[OTHER_WIRE, "ping"]), retained=False, now=at(0))

    assert known(roster, 1).state is NodeState.ONLINE
    assert roster.expected(at(1)) == set()
