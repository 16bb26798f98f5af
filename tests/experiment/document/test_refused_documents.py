"""A document that describes no experiment is refused, with the file, the place and the remedy."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmon.common.errors import InvalidInputError, NotFoundError, StorageError
from fedmon.compat.nepi.xml_files import to_xml
from fedmon.experiment.document.conditions import condition_from
from fedmon.experiment.document.description import Description, ResourceDescription, even
from fedmon.experiment.document.files import from_toml, read, to_toml, write
from fedmon.experiment.errors import DescriptionError


def toml(condition: str, *, more: str = "") -> str:
    return (
        '[experiment]\nid = "e"\n[[resource]]\nname = "a"\ntype = "t"\n[[resource]]\nname = "b"\ntype = "t"\n'
        f'[[resource]]\nname = "c"\ntype = "t"\nstart = [{condition}]\n{more}'
    )


ONE = '[experiment]\nid = "e"\n[[resource]]\nname = "a"\ntype = "t"\n'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a = 1\nb == 2", "line 2"),
        (f"{ONE}conect = [1]", "resource a.*known are: .*connect"),
        (f"{ONE}critical = false", "unknown key 'critical'.*attributes, which holds the rest"),
        ('[experiment]\nid = "e"\n[[resource]]\nname = "a"', "resource a.*type"),
        ('[experiment]\nid = "e"\n[resource]\ntype = "t"', "Expected a list, got a table - at 'resource'"),
        (f"{ONE}connect = ['b']", "resource a.*'b'.*known are: a"),
        (f"{ONE}start = ['sometime']", "resource a: start condition 1.*write it like"),
        (f"{ONE}attributes = {{ when = 2026-01-01 }}", "resource a: when.*date"),
        (f"{ONE}retry = {{ dance = {{ times = 1 }} }}", "resource a.*'dance'.*start"),
        (f"{ONE}[[resource]]\nname = 'a'\ntype = 't'", "two resources have the name 'a'"),
        (f"{ONE}[[resource]]\nguid = 1\ntype = 't'", "two resources have the guid 1"),
        (f"{ONE}[[resource]]\nname = 'all'\ntype = 't'", "'all' is not usable"),
        ("a = " + "[" * 100_000, "nested"),
        (f"a = {'1' * 5000}", "not TOML: .*digits"),
        (
            toml("", more='set = [{ attribute = "r", value = 1, when = "0 of [a, b] are STARTED" }]'),
            "c: set r:.*0 of 2",
        ),
        ('[experiment]\nid = "../e"', "experiment id '../e' cannot name a folder"),
        ('[experiment]\nid = "e"\nrun_id = "a/b"', "run id 'a/b' cannot name a folder"),
        ('[experiment]\nid = "e"\nmax_running = 0', r"\[experiment\]: .*1.*max_running"),
        (toml("", more="set = [{ attribute = 'r' }]"), "c: set r: .*value"),
        (f"{ONE}attributes = {{ a = {{ json = '[' }} }}", r"resource a: a: \[ is not JSON"),
    ],
)
def test_a_fault_is_named_with_its_place_and_remedy(text: str, named: str) -> None:
    with pytest.raises(DescriptionError, match=rf"(?s){named}"):
        from_toml(text)


@pytest.mark.parametrize(
    "condition",
    [
        '"when a.m > 1e999"', '"when a.m > 1 for 0 samples"', '"0 of [a, b] are STARTED"', '"3 of [a, b] are STARTED"',
        '"2 of [a, a] are STARTED"', '"[] are STARTED"', '{ group = [], state = "STARTED" }', "1", "{ group = ['a'] }",
        '{ group = ["a"], metric = "m", value = inf }', '{ group = ["a"], metric = "m", value = 1, samples = 0 }',
        '{ group = ["a"], metric = "m", value = 1, comparison = "~" }', '{ group = ["a"], state = "ALIVE" }',
        '{ group = ["a", "b"], state = "STARTED", at_least = 0 }', '{ group = ["a"], state = "STARTED", delay_s = -1 }',
        '{ group = ["a"], state = "STARTED", timeout_s = nan }',
    ],
)  # fmt: skip
def test_an_impossible_condition_is_refused_with_its_place(condition: str) -> None:
    with pytest.raises(DescriptionError, match="resource c: start condition 1"):
        from_toml(toml(condition))


@pytest.mark.parametrize(
    "text",
    [
        "", "after", "train", "train is", "train is GONE", "after nobody is READY", "train is READY for", "[a, b",
        "train is READY for ever", "train.x > ", "train.x > a", "train.x ~ 1",
        "a is READY b", "train.x > 1 for 2s samples", "train is READY within", "train is READY within 1 hour",
        "train.x > 1 for 3 sample x", "train.x > 1.2.3",
    ],
)  # fmt: skip
def test_a_text_that_is_not_a_condition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not found|write it like|is not a time"):
        condition_from(text, {"train": 1, "a": 2, "b": 3, "c": 4}, number=1)


def test_long_nonsense_is_refused_at_once() -> None:
    began = time.process_time()
    for text in ("a " * 40_000, "[" + "a," * 40_000, "a.x" + " " * 90_000, "within " * 10_000, "a" * 200_000):
        with pytest.raises(ValueError):  # noqa: PT011 - a time, a name or a form
            condition_from(text, {}, number=1)

    assert time.process_time() - began < 2


LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize("value", [object(), {1: "a"}, b"x", {"a": object()}, {1, 2}, LOOP])
def test_a_value_that_no_document_holds_is_refused_by_name(value: object) -> None:
    description = Description(exp_id="e", resources=(ResourceDescription(guid=7, rtype="t", attributes={"a": value}),))
    with pytest.raises(DescriptionError, match="resource 7: a"):
        even(description)


@pytest.mark.parametrize("write_it", [to_xml, to_toml])
def test_half_of_a_character_is_refused_by_name(write_it: Callable[[Description], str]) -> None:
    with pytest.raises(DescriptionError, match=r"half of a character in .*local_dir|local_dir of .*\\udc80"):
        write_it(Description(exp_id="e", local_dir="/\udc80"))


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "bad.xml").write_text("<a/>")
    (tmp_path / "folder.xml").mkdir()

    with pytest.raises(NotFoundError, match=r"no\.xml"):
        read(tmp_path / "no.xml")
    with pytest.raises(DescriptionError, match=r"bad\.xml"):
        read(tmp_path / "bad.xml")
    with pytest.raises(StorageError, match=r"folder\.xml"):
        read(tmp_path / "folder.xml")
    with pytest.raises(InvalidInputError, match=r"\.toml"):
        read(tmp_path / "exp.json")
    with pytest.raises(DescriptionError, match=r"/dev/zero: the file has more than \d+ bytes"):
        read("/dev/zero", format="toml")
    with pytest.raises(StorageError):
        write(Description(exp_id="e"), tmp_path / "bad.xml" / "x.xml")
