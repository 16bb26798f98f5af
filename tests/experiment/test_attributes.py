"""Attributes take what their type, range and list say, hand it through their hook, and know whether they changed."""

from __future__ import annotations

from typing import Any

import pytest

from fedmon.common.errors import FedmonError
from fedmon.experiment.attributes import MASK, Attribute, Flags, Types, write_refusal
from fedmon.experiment.errors import InvalidAttributeError, InvalidAttributeValueError
from fedmon.experiment.states import ResourceState


class Index:
    def __index__(self) -> int:
        return 4


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (Types.String, "x", "x"), (Types.String, "", ""), (Types.Bool, True, True), (Types.Bool, False, False),
        (Types.Integer, 7, 7), (Types.Integer, -(10**30), -(10**30)), (Types.Integer, Index(), 4),
        (Types.Double, 1.5, 1.5), (Types.Double, 2, 2.0), (Types.String, None, None), (Types.Integer, None, None),
    ],
)  # fmt: skip
def test_values_of_the_right_type_are_stored(kind: Types, value: Any, stored: Any) -> None:
    attribute = Attribute("a", "help", type=kind)

    attribute.value = value

    assert attribute.value == stored
    assert type(attribute.value) is type(stored)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Types.String, 1), (Types.String, b"x"), (Types.String, ["x"]), (Types.Bool, 1), (Types.Bool, "True"),
        (Types.Bool, 0.0), (Types.Integer, "7"), (Types.Integer, 7.0), (Types.Integer, True), (Types.Integer, "text"),
        (Types.Double, "1.5"), (Types.Double, True), (Types.Double, float("nan")), (Types.Double, float("inf")),
        (Types.Double, 10**400), (Types.Double, {}),
    ],
)  # fmt: skip
def test_types_are_enforced(kind: Types, value: Any) -> None:
    attribute = Attribute("limit", "help", type=kind)

    with pytest.raises(InvalidAttributeValueError) as caught:
        attribute.value = value

    assert isinstance(caught.value, FedmonError)
    assert isinstance(caught.value, ValueError)
    assert (caught.value.attribute, caught.value.allowed) == ("limit", attribute.takes())
    assert "'limit'" in str(caught.value)
    assert attribute.value is None


@pytest.mark.parametrize("bounds", [(1, 10), (10, 1)])
def test_a_range_holds_its_ends_in_both_orders(bounds: tuple[int, int]) -> None:
    attribute = Attribute("n", "help", type=Types.Integer, range=bounds, default=5)

    for value in (1, 10):
        attribute.value = value
        assert attribute.value == value
    for value in (0, 11):
        with pytest.raises(InvalidAttributeValueError, match="a whole number from 1 to 10"):
            attribute.value = value
    assert attribute.value == 10


def test_an_enumerate_takes_its_members_alone() -> None:
    attribute = Attribute("mode", "help", type=Types.Enumerate, allowed=["star", "mesh", 1], default="star")

    attribute.value = "mesh"

    assert attribute.value == "mesh"
    for value in ("ring", True, ["star"]):
        with pytest.raises(InvalidAttributeValueError, match="one of 'star', 'mesh', 1"):
            attribute.value = value
    assert attribute.value == "mesh"


def test_allowed_values_hold_for_every_type() -> None:
    attribute = Attribute("port", "help", type=Types.Integer, allowed=(22, 80))

    with pytest.raises(InvalidAttributeValueError):
        attribute.value = 23


def test_has_changed_compares_with_the_default() -> None:
    attribute = Attribute("n", "help", type=Types.Integer, default=3)
    seen = [attribute.has_changed]

    attribute.value = 4
    seen.append(attribute.has_changed)
    attribute.value = 3
    seen.append(attribute.has_changed)

    assert seen == [False, True, False]


def test_the_set_hook_sees_old_and_new_and_says_what_is_stored() -> None:
    calls: list[tuple[Any, Any]] = []

    def hook(old: Any, new: Any) -> Any:
        calls.append((old, new))
        return new.upper()

    attribute = Attribute("a", "help", default="first", set_hook=hook)

    attribute.value = "x"
    attribute.value = "y"

    assert calls == [("first", "x"), ("X", "y")]
    assert attribute.value == "Y"


def test_a_hook_that_raises_leaves_the_value_and_is_named() -> None:
    def hook(_old: Any, _new: Any) -> Any:
        raise OSError("no such interface")

    attribute = Attribute("a", "help", default="first", set_hook=hook)

    with pytest.raises(InvalidAttributeValueError, match="OSError: no such interface"):
        attribute.value = "x"
    assert attribute.value == "first"


def test_a_subclass_says_what_is_valid_and_its_own_failure_is_named() -> None:
    class Even(Attribute):
        def is_valid_value(self, value: Any) -> bool:
            if value == 13:
                raise RuntimeError("unlucky")
            return bool(value % 2 == 0)

    attribute = Even("n", "help", type=Types.Integer)

    attribute.value = 4

    with pytest.raises(InvalidAttributeValueError, match="not valid"):
        attribute.value = 5
    with pytest.raises(InvalidAttributeValueError, match="unlucky"):
        attribute.value = 13
    assert attribute.value == 4


@pytest.mark.parametrize(
    "options",
    [
        {"type": Types.Enumerate}, {"type": Types.Enumerate, "allowed": []}, {"type": "COLOUR"},
        {"type": Types.Integer, "default": "7"}, {"type": Types.Integer, "range": (1, 5), "default": 9},
        {"range": (1, 2)}, {"type": Types.Integer, "range": 5}, {"type": Types.Integer, "range": (1, 2, 3)},
        {"type": Types.Double, "range": (float("nan"), 1)}, {"type": Types.Integer, "range": ("a", "b")},
        {"set_hook": "hook"}, {"name": ""}, {"name": 5}, {"flags": "Design"}, {"allowed": 7},
    ],
)  # fmt: skip
def test_what_cannot_be_defined_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidAttributeError, match="attribute"):
        Attribute(**{"name": "a", "help": "help", **options})


def test_flags_have_the_numbers_of_the_original() -> None:
    numbers = [Flags.NoRead, Flags.NoWrite, Flags.Design, Flags.Construct, Flags.Credential, Flags.Filter,
               Flags.Reserved, Flags.Global]  # fmt: skip

    assert [int(flag) for flag in numbers] == [1, 2, 4, 8, 20, 36, 64, 128]


def test_a_flag_that_consists_of_two_needs_both() -> None:
    design = Attribute("a", "help", flags=Flags.Design)
    credential = Attribute("a", "help", flags=Flags.Credential)
    both = Attribute("a", "help", flags=Flags.Design | Flags.Global)

    assert not design.has_flag(Flags.Credential)
    assert credential.has_flag(Flags.Credential)
    assert credential.has_flag(Flags.Design)
    assert both.has_flag(Flags.Global)
    assert not Attribute("a", "help").has_flag(Flags.NoRead)


def test_a_credential_is_in_no_text() -> None:
    attribute = Attribute("password", "help", flags=Flags.Credential, allowed=["secret-1", "secret-2"])
    attribute.value = "secret-1"

    with pytest.raises(InvalidAttributeValueError) as caught:
        attribute.value = "secret-3"

    assert MASK in repr(attribute)
    assert "secret-1" not in repr(attribute)
    assert "secret-3" not in str(caught.value)


N, R, S = ResourceState.NEW, ResourceState.READY, ResourceState.STARTED


@pytest.mark.parametrize(
    ("flags", "state", "is_deployed", "refused"),
    [
        (0, S, True, None),
        (Flags.NoWrite, N, False, Flags.NoWrite),
        (Flags.Reserved, N, False, Flags.Reserved),
        (Flags.Design, N, False, None),
        (Flags.Design, N, True, Flags.Design),
        (Flags.Design, R, False, Flags.Design),
        (Flags.Credential, S, True, Flags.Design),
        (Flags.Filter, S, True, Flags.Design),
        (Flags.Construct, N, True, None),
        (Flags.Construct, R, True, Flags.Construct),
        (Flags.Global, S, True, None),
        (Flags.NoRead, S, True, None),
    ],
)
def test_flags_say_who_may_set_and_when(flags: int, state: ResourceState, is_deployed: bool, refused: Any) -> None:
    found = write_refusal(Attribute("a", "help", flags=flags), state, is_deployed=is_deployed)

    assert (found and found[0]) == refused
