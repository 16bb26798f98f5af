"""Attributes take what their type, range and list say, hand it through their hook, and know whether they changed."""

from __future__ import annotations

from typing import Any

import pytest

from fedmon.common.errors import FedmonError
from fedmon.experiment.attributes import MASK, Attribute, Flags, Types
from fedmon.experiment.errors import InvalidAttributeError, InvalidAttributeValueError


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

    assert (attribute.value, type(attribute.value)) == (stored, type(stored))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Types.String, 1), (Types.String, b"x"), (Types.String, ["x"]), (Types.String, "\udc80"), (Types.Bool, 1),
        (Types.Bool, "True"), (Types.Bool, 0.0), (Types.Integer, "7"), (Types.Integer, 7.0), (Types.Integer, True),
        (Types.Double, "1.5"), (Types.Double, True), (Types.Double, float("nan")), (Types.Double, float("inf")),
        (Types.Double, 10**400), (Types.Double, {}),
    ],
)  # fmt: skip
def test_types_are_enforced(kind: Types, value: Any) -> None:
    attribute = Attribute("limit", "help", type=kind)

    with pytest.raises(InvalidAttributeValueError, match="'limit'") as caught:
        attribute.value = value

    assert isinstance(caught.value, FedmonError)
    assert isinstance(caught.value, ValueError)
    assert (caught.value.attribute, caught.value.allowed, attribute.value) == ("limit", attribute.takes(), None)


class Even(Attribute):
    def is_valid_value(self, value: Any) -> bool:
        if value == 13:
            raise RuntimeError("unlucky")
        return bool(value % 2 == 0)


def refusing(_old: Any, _new: Any) -> Any:
    raise OSError("no such interface")


@pytest.mark.parametrize(
    ("attribute", "good", "bad", "why"),
    [
        (Attribute("n", "", Types.Integer, range=(1, 10)), [1, 10], [0, 11], "a whole number from 1 to 10"),
        (Attribute("n", "", Types.Integer, range=(10, 1)), [1, 10], [0, 11], "a whole number from 1 to 10"),
        (Attribute("m", "", Types.Enumerate, allowed=["star", "mesh", 1]), ["mesh", 1], ["ring", True, ["star"]],
         "one of 'star', 'mesh', 1"),
        (Attribute("p", "", Types.Integer, allowed=(22, 80)), [22], [23], "one of 22, 80"),
        (Attribute("a", "", set_hook=refusing), [], ["x"], "OSError: no such interface"),
        (Even("e", "", Types.Integer), [4], [5], "not valid"),
        (Even("e", "", Types.Integer), [4], [13], "unlucky"),
    ],
)  # fmt: skip
def test_ranges_lists_hooks_and_subclasses_decide(
    attribute: Attribute, good: list[Any], bad: list[Any], why: str
) -> None:
    for value in good:
        attribute.value = value
        assert attribute.value == value
    for value in bad:
        with pytest.raises(InvalidAttributeValueError, match=why):
            attribute.value = value
    assert attribute.value == (good[-1] if good else None)


def test_the_set_hook_sees_old_and_new_and_says_what_is_stored() -> None:
    calls: list[tuple[Any, Any]] = []

    def hook(old: Any, new: Any) -> Any:
        calls.append((old, new))
        return new.upper()

    attribute = Attribute("a", "help", default="first", set_hook=hook)
    seen = [attribute.has_changed]

    for value in ("x", "y"):
        attribute.value = value
        seen.append(attribute.has_changed)

    assert (calls, attribute.value, seen) == ([("first", "x"), ("X", "y")], "Y", [False, True, True])


@pytest.mark.parametrize(
    "options",
    [
        {"type": Types.Enumerate}, {"type": Types.Enumerate, "allowed": []}, {"type": "COLOUR"},
        {"type": Types.Integer, "default": "7"}, {"type": Types.Integer, "range": (1, 5), "default": 9},
        {"range": (1, 2)}, {"type": Types.Integer, "range": 5}, {"type": Types.Integer, "range": (1, 2, 3)},
        {"type": Types.Double, "range": (float("nan"), 1)}, {"type": Types.Integer, "range": ("a", "b")},
        {"name": ""}, {"flags": "Design"}, {"allowed": 7},
    ],
)  # fmt: skip
def test_what_cannot_be_defined_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidAttributeError, match="attribute"):
        Attribute(**{"name": "a", "help": "help", **options})


def test_flags_have_the_numbers_of_the_original_and_need_all_their_bits() -> None:
    numbers = [Flags.NoRead, Flags.NoWrite, Flags.Design, Flags.Construct, Flags.Credential, Flags.Filter,
               Flags.Reserved, Flags.Global]  # fmt: skip
    credential = Attribute("a", "help", flags=Flags.Credential)

    assert [int(flag) for flag in numbers] == [1, 2, 4, 8, 20, 36, 64, 128]
    assert [credential.has_flag(flag) for flag in (Flags.Credential, Flags.Design, Flags.NoRead)] == [True, True, False]
    assert not Attribute("a", "help", flags=Flags.Design).has_flag(Flags.Credential)
    assert Attribute("a", "help", flags=Flags.Design | Flags.Global).has_flag(Flags.Global)


def test_a_credential_is_in_no_text() -> None:
    attribute = Attribute("password", "help", flags=Flags.Credential, allowed=["secret-1", "secret-2"])
    attribute.value = "secret-1"

    with pytest.raises(InvalidAttributeValueError) as caught:
        attribute.value = "secret-3"

    assert MASK in repr(attribute)
    assert "secret-" not in f"{attribute!r} {caught.value}".replace(attribute.takes(), "")
