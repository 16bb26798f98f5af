"""What the release gate lets leave by itself: results, and scalars, under rules from settings and grant."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmon.common.settings.values import ReleaseSettings
from fedmon.common.wire.grants import Grant, ReleaseMode
from fedmon.node.runs.folder import EVENTS, JobFolder, Logged, Reported
from fedmon.node.runs.release import Rules, check, described, numbers_in, rounded, rules_for
from fedmon.node.runs.supervision import EventLog
from fedmon.plan import parcels
from tests.plan.trials import packed

CHECK = ReleaseSettings(mode="check")
OPEN = Rules(max_bytes=2**20, numbers=None, text=64)
NAMES = ("all", "grid", "list", "lists", "mean", "other", "report", "rows", "text", "texts")
NUMBERS = "numbers, names and texts included"


def grant(**terms: Any) -> Grant:
    return Grant(grant_id="g", sha256="0" * 64, **terms)


def gated(values: dict[str, Any], rules: Rules = OPEN) -> tuple[Any, str]:
    """Return what would leave of a result, and the rules that it breaks."""
    kind, content = packed(values)
    leaving, broken = check(memoryview(content), *parcels.contents(kind, memoryview(content)), rules)
    return parcels.unpack(kind, leaving or content), broken


# --- which rules hold ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "terms", "expected"),
    [
        ("auto", None, None),
        ("auto", {}, None),
        ("auto", {"release": ReleaseMode.CHECK}, False),
        ("auto", {"release": ReleaseMode.ASK}, True),
        ("check", None, False),
        ("check", {"release": ReleaseMode.AUTO}, None),
        ("ask", None, True),
        ("ask", {"release": ReleaseMode.CHECK}, False),
    ],
)
def test_the_grant_names_the_mode_before_the_node_does(mode: Any, terms: Any, expected: bool | None) -> None:
    rules = rules_for(
        ReleaseSettings(mode=mode), None if terms is None else grant(**terms), has_dataset=True, rows=100, known=b""
    )

    assert (None if rules is None else rules.asks) == expected


@pytest.mark.parametrize(
    ("rows", "terms", "numbers", "dataset"),
    [
        (100, None, 10, ""),
        (20, None, 2, ""),
        (29, None, 2, ""),
        (30, None, 3, ""),
        (19, None, 1, "the dataset has fewer than 20 rows"),
        (0, None, 0, "the dataset has fewer than 20 rows"),
        (None, None, None, "the number of rows of the dataset is not known"),
        (100, {"values": 500}, 500, ""),
        (5, {"values": 500}, 500, "the dataset has fewer than 20 rows"),
    ],
)
def test_rows_of_the_dataset_bound_the_numbers(rows: int | None, terms: Any, numbers: int | None, dataset: str) -> None:
    rules = rules_for(CHECK, terms and grant(**terms), has_dataset=True, rows=rows, known=b"")

    assert rules is not None
    assert (rules.numbers, rules.dataset) == (numbers, dataset)


def test_without_a_dataset_rows_do_not_matter() -> None:
    rules = rules_for(CHECK, None, has_dataset=False, rows=None, known=b"import numpy")

    assert rules == Rules(max_bytes=2**20, numbers=None, text=64, names=("import", "numpy"))


def test_scalars_leave_by_the_names_of_the_grant_and_not_from_a_dataset_that_breaks_a_rule() -> None:
    terms = grant(scalars=("loss",), texts=("model",))

    many, few = (rules_for(CHECK, terms, has_dataset=True, rows=rows, known=b"") for rows in (100, 5))

    assert many is not None
    assert few is not None
    assert (many.scalars, many.texts, few.scalars) == (("loss",), ("model",), ())


# --- what a result may hold ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ({}, 0),
        ({"rows": 20, "mean": 1.5}, 2),
        ({"is_well": True, "none": None}, 2),
        ({"nested": {"mean": [1, 2.5, None], "more": {"deep": 1}}}, 4),
        ({"empty": [[], {}, [[]]]}, 3),
        ({"short": "eight by"}, 1),
        ({"text": "x" * 64}, 8),
        ({"Zoe Quill, 42": 1}, 1),
        ({"grid": np.zeros((3, 4))}, 12),
        ({"of_one": np.float64(1), "zero": np.zeros(()), "none": np.zeros((0, 9))}, 4),
        ({"complex": np.zeros(5, dtype="c16")}, 10),
        ({"labels": np.array(["M", "B"]), "names": np.array(["x" * 8])}, 6),
        ({"model": {"w": np.zeros(3), "b": 1.0}}, 4),
    ],
)
def test_everything_that_can_say_something_is_counted(values: dict[str, Any], count: int) -> None:
    kind, content = packed(values)

    assert numbers_in(*parcels.contents(kind, memoryview(content))) == count


def rule(**changes: Any) -> Rules:
    return Rules(**{"max_bytes": 2**20, "numbers": None, "text": 64, "names": NAMES, **changes})


@pytest.mark.parametrize(
    ("values", "rules", "broken"),
    [
        ({"mean": 1.0}, rule(numbers=1), ""),
        ({"mean": 1.0, "rows": 2}, rule(numbers=1), f"more than 1 {NUMBERS}"),
        ({"grid": np.zeros(11)}, rule(numbers=10), f"more than 10 {NUMBERS}"),
        ({"rows": {"mean": 1.0}}, rule(numbers=2), ""),
        ({"rows": {"mean": 1.0}}, rule(numbers=1), f"more than 1 {NUMBERS}"),
        ({"rows": {"grid": {"list": {"text": {"mean": {}}}}}}, rule(numbers=4), f"more than 4 {NUMBERS}"),
        ({"rows": {"grid": np.zeros(3)}}, rule(numbers=3), f"more than 3 {NUMBERS}"),
        ({"grid": np.zeros((0, 2**40, 17))}, rule(numbers=2), f"more than 2 {NUMBERS}"),
        ({"grid": np.zeros((0, 2**40, 17))}, rule(numbers=3), ""),
        ({"rows": {"Zoe Quill, 42": 1.0}}, rule(numbers=2), f"more than 2 {NUMBERS}"),
        ({"rows": {"Zoe Quill, 42": 1.0}}, rule(numbers=3), ""),
        ({"z" * 33: []}, rule(numbers=5), f"more than 5 {NUMBERS}"),
        ({"text": "x" * 64}, rule(), ""),
        ({"text": "x" * 65}, rule(), "a text of more than 64 characters"),
        ({"lists": [{"x" * 65: 1}]}, rule(), "a text of more than 64 characters"),
        ({"x" * 65: 1}, rule(), "a text of more than 64 characters"),
        ({"texts": np.array(["x" * 65])}, rule(), "a text of more than 64 characters"),
        ({"texts": np.array([b"x" * 65])}, rule(), "a text of more than 64 characters"),
        ({"report": {"all": "x" * 500}}, rule(texts=("report",), numbers=2), ""),
        ({"report": np.array(["x" * 65])}, rule(texts=("report",), numbers=1), ""),
        ({"other": "x" * 65}, rule(texts=("report",)), "a text of more than 64 characters"),
        ({"mean": 1.0}, rule(dataset="the dataset is small"), "the dataset is small"),
        ({"mean": 1.0}, rule(asks=True), "the owner decides about each result"),
        ({"text": "x" * 65}, rule(asks=True, numbers=0),
         f"the owner decides about each result; more than 0 {NUMBERS}; a text of more than 64 characters"),
        ({"grid": np.zeros(9, "f4")}, rule(max_bytes=64), "more than 64 bytes"),
        ({"list": [0.5] * 9}, rule(max_bytes=64), ""),
    ],
)  # fmt: skip
def test_a_result_is_held_with_every_rule_that_it_breaks(values: dict[str, Any], rules: Rules, broken: str) -> None:
    assert gated(values, rules)[1] == broken


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.123456789, 0.123457),
        (-123456789.0, -123457000.0),
        (1.7976931348623157e308, 1.79769e308),
        (5e-324, 5e-324),
        (0.1, 0.1),
        (5.0, 5.0),
        (math.inf, math.inf),
        (0.0, 0.0),
    ],
)
def test_a_float_keeps_six_digits(value: float, expected: float) -> None:
    assert rounded(value) == expected


def test_floats_are_rounded_wherever_they_are_and_nothing_else_changes() -> None:
    values = {
        "pi": math.pi,
        "count": 123456789,
        "nested": [{"e": math.e}, "text", None, True],
        "doubles": np.array([[math.pi, np.nan], [np.inf, 1e9 / 7]]),
        "fortran": np.asfortranarray(np.array([[1 / 3, 2 / 3], [1 / 7, 2 / 7]])),
        "foreign": np.array([math.pi], dtype=">f8"),
        "complex": np.array([1 / 3 + 2j / 3]),
        "single": np.array([math.pi], dtype="f4"),
        "whole": np.array([123456789]),
    }

    found, broken = gated(values)

    assert broken == ""
    assert found["pi"] == 3.14159
    assert found["count"] == 123456789
    assert found["nested"] == [{"e": 2.71828}, "text", None, True]
    assert np.array_equal(found["doubles"], [[3.14159, np.nan], [np.inf, 142857000.0]], equal_nan=True)
    assert found["fortran"].tolist() == [[0.333333, 0.666667], [0.142857, 0.285714]]
    assert (found["foreign"].dtype.str, found["foreign"].tolist()) == (">f8", [3.14159])
    assert found["complex"].tolist() == [0.333333 + 0.666667j]
    assert found["single"].tolist() == [np.float32(math.pi)]
    assert found["whole"].tolist() == [123456789]


def test_nothing_hides_in_the_spelling_of_a_result_or_in_a_nan() -> None:
    loud = b'{ "mean":1.50e0 ,\t"\\u0072ows" : 3  }'
    nan = np.frombuffer(b"\x15\xcd\x5b\x07\x00\x00\xf8\x7f")
    spelled = check(memoryview(loud), *parcels.contents("json", memoryview(loud)), OPEN)[0]

    assert spelled == b'{"mean":1.5,"rows":3}'
    terse = memoryview(b'{"list":[' + b"1e9," * 9 + b"1e9]}")
    assert check(terse, *parcels.contents("json", terse), rule(max_bytes=64))[1] == "more than 64 bytes"
    assert gated({"x": nan})[0]["x"].tobytes() == np.array([float("nan")]).tobytes()


def test_a_result_that_is_too_large_is_not_changed() -> None:
    kind, content = packed({"grid": np.full(100, math.pi)})

    checked = check(memoryview(content), *parcels.contents(kind, memoryview(content)), rule(max_bytes=500))

    assert checked == (None, "more than 500 bytes")


def test_the_owner_sees_of_each_entry_what_it_holds() -> None:
    kind, content = packed(
        {
            "rows": 212,
            "bins": [3, 40, 0, 9],
            "who": "Zoe",
            "model": {"w": np.array([[0.5, -2.0]]), "b": None, "by": {"ward 7": {"rows": 3, "mean": 1.5}}, "c": {}},
            "sites": np.array(["a", "bc"]),
            "half": np.array([1.5], dtype="f2"),
            "wave": np.array([1 + 2j]),
        }
    )

    entries = {entry.pop("place"): entry for entry in described(kind, memoryview(content))}

    assert entries["rows"] == {"kind": "integers", "count": 1, "least": 212, "most": 212, "first": [212], "small": 0}
    assert (entries["bins"]["count"], entries["bins"]["small"], entries["bins"]["least"]) == (4, 2, 0)
    assert (entries["who"]["kind"], entries["who"]["first"]) == ("texts", ["Zoe"])
    assert entries["model.w"]["kind"] == "array 1 x 2 of f8"
    assert (entries["model.w"]["least"], entries["model.w"]["most"]) == (-2.0, 0.5)
    assert {place for place in entries if place.startswith("model")} == {
        "model.w", "model.b", "model.by.ward 7.rows", "model.by.ward 7.mean", "model.c"
    }  # fmt: skip
    assert (entries["model.by.ward 7.rows"]["kind"], entries["model.by.ward 7.rows"]["small"]) == ("integers", 1)
    assert (entries["model.b"]["kind"], entries["model.c"]["kind"]) == ("nulls", "empty")
    assert entries["sites"]["first"] == ["a", "bc"]
    assert entries["half"]["first"] == [1.5]
    assert entries["wave"]["first"] == [1.0, 2.0]


@pytest.mark.parametrize("descr", ["<U2", ">U2"])
def test_texts_that_are_no_unicode_are_shown_with_their_bytes(descr: str) -> None:
    texts = np.array([0x61, 0xD800], dtype=f"{descr[0]}u4").view(descr)
    kind, content = packed({"sites": texts})

    (entry,) = described(kind, memoryview(content))

    assert entry["first"][0].startswith("a\\x")


# --- scalars ---------------------------------------------------------------------------------------------------------


def test_scalars_leave_rounded_by_declared_names_and_one_a_second(tmp_path: Path) -> None:
    log = EventLog(tmp_path / EVENTS, mono=0.0, rules=rule(scalars=("loss", "accuracy")))
    reports: list[tuple[float, dict[str, float | None], int | None]] = [
        (0.0, {"loss": math.pi, "row": 17.99}, 1234567),
        (0.5, {"loss": 2.0, "accuracy": None}, None),
        (0.9, {"loss": 3.0}, None),
        (1.0, {"loss": 4.0}, 3),
        (1.2, {"Zoe": 1.0}, None),
    ]
    for mono, values, step in reports:
        log.report(100.0 + mono, values, step, mono=mono)

    events = [event for event, _ in JobFolder(tmp_path).events()]
    reported = [(each.number, each.values, each.step) for each in events if isinstance(each, Reported)]
    assert reported == [(0, {"loss": 3.14159}, 1234570), (1, {"accuracy": None}, None), (2, {"loss": 4.0}, 3)]
    assert log.scalars == 3
    told = [each.message for each in events if isinstance(each, Logged)]
    assert len(told) == 1
    assert "declared names" in told[0]
    assert "Zoe" not in told[0]
