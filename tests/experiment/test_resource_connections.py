"""Connections are asked of both sides, and no half connection is left, whatever a side does."""

from __future__ import annotations

from typing import Any

import pytest

from fedmon.experiment.errors import InvalidConnectionError, UnknownGuidError, UnknownTypeError
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.resource import ResourceManager, clsinit_copy
from tests.experiment.small_experiment import SmallExperiment, names


@clsinit_copy
class Node(ResourceManager):
    _rtype = "test::Node"

    def __init__(self, ec: Any, guid: int) -> None:
        super().__init__(ec, guid)
        self.answers: dict[str, Any] = {}
        self.did: list[str] = []

    def _do(self, what: str, guid: int) -> Any:
        answer = self.answers.get(what, True)
        if isinstance(answer, Exception):
            raise answer
        self.did.append(f"{what} {guid}")
        return answer

    def valid_connection(self, guid: int) -> bool:
        return bool(self._do("valid", guid))

    def do_connect(self, guid: int) -> None:
        self._do("connect", guid)

    def do_disconnect(self, guid: int) -> None:
        self._do("disconnect", guid)


@clsinit_copy
class Host(Node):
    _rtype = "test::Host"


@clsinit_copy
class Link(ResourceManager):
    _rtype = "test::Link"


def connections(ec: SmallExperiment) -> list[list[int]]:
    return [sorted(ec.get_resource(guid).connections) for guid in ec.resources]


def test_both_sides_are_asked_and_both_list_the_other() -> None:
    ec = SmallExperiment()
    one, two = ec.add(Node), ec.add(Node)

    one.register_connection(2)
    one.register_connection(2)
    two.register_connection(1)

    assert connections(ec) == [[2], [1]]
    assert (one.did, two.did) == (["valid 2", "connect 2"], ["valid 1", "connect 1"])


@pytest.mark.parametrize("side", [1, 2])
def test_a_one_sided_valid_connection_leaves_no_half_connection(side: int) -> None:
    ec = SmallExperiment()
    pair = {1: ec.add(Node), 2: ec.add(Node)}
    pair[side].answers["valid"] = False

    with pytest.raises(InvalidConnectionError, match=rf"resource {side} \(test::Node\) takes no connection"):
        pair[1].register_connection(2)

    assert connections(ec) == [[], []]
    assert not any(did.startswith("connect") for rm in pair.values() for did in rm.did)


@pytest.mark.parametrize("side", [1, 2])
@pytest.mark.parametrize("what", ["valid", "connect"])
def test_a_hook_that_raises_leaves_no_half_connection(side: int, what: str) -> None:
    ec = SmallExperiment()
    pair = {1: ec.add(Node), 2: ec.add(Node)}
    pair[side].answers[what] = RuntimeError("cable broken")

    with pytest.raises(InvalidConnectionError, match=rf"resource {side} .*failed: RuntimeError: cable broken"):
        pair[1].register_connection(2)

    assert connections(ec) == [[], []]
    undone = [did for did in pair[1].did if did.startswith(("connect", "disconnect"))]
    assert undone == (["connect 2", "disconnect 2"] if (side, what) == (2, "connect") else [])


def test_nothing_is_connected_to_itself_or_to_nobody() -> None:
    ec = SmallExperiment()
    one = ec.add(Node)

    with pytest.raises(InvalidConnectionError, match="itself"):
        one.register_connection(1)
    with pytest.raises(UnknownGuidError):
        one.register_connection(9)
    assert connections(ec) == [[]]


def test_a_connection_ends_on_both_sides_even_where_a_hook_raises() -> None:
    ec = SmallExperiment()
    one, two = ec.add(Node), ec.add(Node)
    one.register_connection(2)
    two.answers["disconnect"] = RuntimeError("stuck")

    one.unregister_connection(2)
    one.unregister_connection(2)

    assert connections(ec) == [[], []]
    assert one.did.count("disconnect 2") == 1


def test_connected_resources_are_found_by_type_and_derived_type() -> None:
    # given
    ec = SmallExperiment()
    node, host, link, other = ec.add(Node), ec.add(Host), ec.add(Link), ec.add(Link)
    for guid in (4, 3, 2):
        node.register_connection(guid)

    # then
    assert names(node.get_connected()) == [2, 3, 4]
    assert names(node.get_connected("test::Link")) == [3, 4]
    assert names(node.get_connected("test::Node")) == [2]
    assert names(node.get_connected(Node)) == [2]
    assert link.get_connected(Host) == []
    assert (host.is_rm_instance("test::Node"), node.is_rm_instance("test::Host")) == (True, False)
    assert host.is_rm_instance("Resource")
    assert names(other.get_connected()) == [1]


def test_a_type_of_which_nothing_is_connected_is_told_from_one_that_nobody_registered() -> None:
    ec = SmallExperiment()
    node = ec.add(Node)
    kept = ResourceFactory._resource_types
    ResourceFactory.register_type(Host)
    try:
        assert node.get_connected("test::Host") == node.get_connected("test::Node") == []
        with pytest.raises(UnknownTypeError, match="test::Host"):
            node.get_connected("test::Hosts")
    finally:
        ResourceFactory._resource_types = kept


def test_who_was_taken_out_is_connected_to_nobody() -> None:
    ec = SmallExperiment()
    one, two = ec.add(Node), ec.add(Node)
    one.register_connection(2)
    two.register_connection(1)

    ec.remove_resource(2)

    assert one.get_connected() == []
    assert (two.state.name, sorted(two.connections)) == ("RELEASED", [])
