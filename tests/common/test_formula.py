"""Derived metrics: what a formula gives, and what is refused with its position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmon.common.errors import FedmonError
from fedmon.node.perf.events import MAX_DEPTH, MAX_LENGTH, Formula, FormulaError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7.0), ("(1 + 2) * 3", 9.0), ("8 / 4 / 2", 1.0), ("2 - 3 - 4", -5.0), ("-a * -2", 20.0),
        ("1e-6 * a", 1e-05), (".5 + 1.", 1.5), ("  a\t/ b.c_1 ", 2.5), ("a", 10.0), ("--a", 10.0), ("2E+3", 2000.0),
    ],
)  # fmt: skip
def test_a_formula_follows_the_rules_of_arithmetic(text: str, expected: float) -> None:
    assert Formula(text).value({"a": 10, "b.c_1": 4}) == pytest.approx(expected)


def test_a_name_is_a_whole_word() -> None:
    formula = Formula("cycles / ref_cycles + l2.miss")

    assert formula.names == {"cycles", "ref_cycles", "l2.miss"}
    assert formula.value({"cycles": 6, "ref_cycles": 3, "l2.miss": 1, "l2": 99}) == pytest.approx(3.0)


@pytest.mark.parametrize("numbers", [{"a": 1}, {"a": 1, "b": None}, {"a": 1, "b": 0}, {"a": 1, "b": -0.0}, {}])
def test_a_missing_number_and_a_division_by_zero_give_none(numbers: dict[str, float | None]) -> None:
    assert Formula("a / b").value(numbers) is None


def test_a_result_that_is_no_finite_number_is_none() -> None:
    assert Formula("a * a").value({"a": 1e300}) is None
    assert Formula("a - a").value({"a": float("inf")}) is None


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 1), ("   ", 1), ("a +", 4), ("a + * b", 5), ("a b", 3), ("(a + b", 7), ("a)", 2), ("2x", 1), ("a ** b", 4),
        ("a.__class__()", 12), ("f(1)", 2), ("a % b", 3), ("__import__('os')", 12), ("1.2.3", 1), ("a;b", 2),
        ("a if b else c", 3), ("[1]", 1), ("a\u00d7b", 2), ("+a", 1), ("1_000", 1), ("0x10", 1),
    ],
)  # fmt: skip
def test_what_is_no_formula_is_refused_with_its_position(text: str, position: int) -> None:
    with pytest.raises(FormulaError) as refused:
        Formula(text)

    assert refused.value.position == position
    assert f"at position {position}" in str(refused.value)
    assert repr(text) in str(refused.value)
    assert isinstance(refused.value, FedmonError)


def test_size_and_depth_are_bounded() -> None:
    assert Formula("(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH).value({}) == pytest.approx(1.0)

    with pytest.raises(FormulaError, match="nested more than 40 deep"):
        Formula("(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1))
    with pytest.raises(FormulaError, match="longer than 2000 characters"):
        Formula("1+" * MAX_LENGTH + "1")
    with pytest.raises(FormulaError, match="nested more than 40 deep"):
        Formula("-" * (MAX_DEPTH + 1) + "1")


def test_a_long_chain_is_evaluated() -> None:
    count = MAX_LENGTH // 2 - 1

    assert Formula("+".join(["1"] * count)).value({}) == pytest.approx(count)


@given(st.text(max_size=60))
def test_any_text_is_a_formula_or_refused(text: str) -> None:
    try:
        formula = Formula(text)
    except FormulaError as error:
        position = error.position
        formula = None
    else:
        position = 1

    assert 1 <= position <= len(text) + 1
    assert formula is None or formula.value({}) is None or isinstance(formula.value({}), float)


_NUMBERS = st.integers(min_value=0, max_value=1000)


@given(st.recursive(_NUMBERS.map(str), lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
    lambda parts: f"({' '.join(parts)})"), max_leaves=12))  # fmt: skip
def test_a_formula_agrees_with_python(text: str) -> None:
    expected = float(eval(text))  # made here from digits, operators and parentheses

    assert Formula(text).value({}) == pytest.approx(expected)
