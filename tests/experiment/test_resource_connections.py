"""Connections are asked of both sides, and no half connection is left, whatever a side does."""

from __future__ import annotations

from typing import Any

import pytest

from fedmon.common.clock import utc_now
from fedmon.common.ids import NodeId
from fedmon.experiment import ExperimentController
from fedmon.experiment.errors import InvalidConnectionError, UnknownGuidError
from fedmon.experiment.events import AnyEvent, Connected
from fedmon.experiment.journal import Follower
from fedmon.experiment.resource import ResourceManager
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types.base import LinkedResource
from fedmon.researcher.roster import Node as SeenNode
from fedmon.researcher.roster import NodeState
from tests.experiment.own_types import added


class Node(ResourceManager):
    """Answers and raises as its test says, and keeps what it was asked and whether the journal knew it."""

    _rtype = "test::Node"

    def __init__(self, ec: Any, guid: int) -> None:
        super().__init__(ec, guid)
        self.answers: dict[str, Any] = {}
        self.did: list[str] = []
        self.known: list[bool] = []

    def _do(self, what: str, guid: int) -> Any:
        answer = self.answers.get(what, True)
        if isinstance(answer, Exception):
            raise answer
        self.did.append(f"{what} {guid}")
        events: list[AnyEvent] = []
        Follower(self.ec.run_dir, on_event=events.append).look()
        self.known += [event.is_on for event in events if isinstance(event, Connected)][-1:]
        return answer

    def valid_connection(self, guid: int) -> bool:
        return bool(self._do("valid", guid))

    def do_connect(self, guid: int) -> None:
        self._do("connect", guid)

    def do_disconnect(self, guid: int) -> None:
        self._do("disconnect", guid)


@pytest.fixture
def pair(ec: ExperimentController) -> list[Any]:
    return [added(ec, Node), added(ec, Node)]


def connections(ec: ExperimentController) -> list[list[int]]:
    return [sorted(ec.get_resource(guid).connections) for guid in ec.resources]


def test_both_sides_are_asked_and_both_list_the_other(ec: ExperimentController, pair: list[Any]) -> None:
    one, two = pair

    one.register_connection(2)
    one.register_connection(2)
    two.register_connection(1)

    assert connections(ec) == [[2], [1]]
    assert (one.did, two.did) == (["valid 2", "connect 2"], ["valid 1", "connect 1"])
    one.unregister_connection(2)
    assert one.did == ["valid 2", "connect 2", "disconnect 2"]
    assert one.known == two.known == [True, False]  # the journal has it before the hooks run


@pytest.mark.parametrize("side", [1, 2])
@pytest.mark.parametrize("what", ["refuse", "valid", "connect"])
def test_a_side_that_refuses_or_raises_leaves_no_half_connection(
    side: int, what: str, ec: ExperimentController, pair: list[Any]
) -> None:
    answer, reason = RuntimeError("cable broken"), "failed: RuntimeError: cable broken"
    answers = {"valid": False} if what == "refuse" else {what: answer}
    pair[side - 1].answers = answers

    expected = rf"resource {side} \(test::Node\) {'takes no connection' if what == 'refuse' else reason}"
    with pytest.raises(InvalidConnectionError, match=expected):
        pair[0].register_connection(2)

    assert connections(ec) == [[], []]
    done = [did for did in pair[0].did if not did.startswith("valid")]
    assert done == (["connect 2", "disconnect 2"] if (side, what) == (2, "connect") else [])


def test_nothing_is_connected_to_itself_or_to_nobody(ec: ExperimentController) -> None:
    one = added(ec, Node)

    with pytest.raises(InvalidConnectionError, match="itself"):
        one.register_connection(1)
    with pytest.raises(UnknownGuidError):
        one.register_connection(9)
    assert connections(ec) == [[]]


def test_a_connection_ends_on_both_sides_even_where_a_hook_raises(ec: ExperimentController, pair: list[Any]) -> None:
    one, two = pair
    one.register_connection(2)
    two.answers["disconnect"] = RuntimeError("stuck")

    one.unregister_connection(2)
    one.unregister_connection(2)

    assert connections(ec) == [[], []]
    assert one.did.count("disconnect 2") == 1


def test_who_was_taken_out_is_connected_to_nobody(ec: ExperimentController, pair: list[Any]) -> None:
    one, two = pair
    one.register_connection(2)

    ec.remove_resource(2)

    assert one.get_connected() == []
    assert (two.state.name, sorted(two.connections)) == ("RELEASED", [])


class Near(LinkedResource):
    """Counts the moves of its neighbours."""

    _rtype = "test::Near"
    moved = 0

    def neighbour_moved(self, other: LinkedResource) -> None:  # noqa: ARG002
        self.moved += 1


def test_a_presence_that_changes_nothing_wakes_no_neighbour(ec: ExperimentController) -> None:
    seen = SeenNode(node_id=NodeId("north"), state=NodeState.ONLINE, since=None, last_seen=utc_now())
    node: Any = ec.get_resource(ec.register_resource("fedmon::Node", nodeId="north"))
    near = added(ec, Near, connectedTo=node.guid)
    node._heard(seen)
    before = near.moved
    for _ in range(10):
        node._heard(seen)

    assert (before > 0, near.moved, node.state) == (True, before, ResourceState.READY)
