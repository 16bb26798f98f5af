"""What plans report and log: numbers of any library, within bounds, and a clear word where something is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedmon.common.errors import InvalidInputError
from fedmon.node.runs.supervision import FrameReader, LogLine, Scalars
from fedmon.plan import frames
from fedmon.plan.context import PlanContext
from tests.plan.trials import heard


def said(say: Callable[[PlanContext], object]) -> list[Any]:
    """Return what a plan says that does this."""
    with heard() as (context, channel, received):
        channel.send(frames.BEGUN, {})
        say(context)
    return list(FrameReader(output_bytes=100).feed(received))[1:]


def test_numbers_of_any_library_are_reported_and_what_is_not_finite_is_null_with_one_warning() -> None:
    def say(context: PlanContext) -> None:
        context.report(1, loss=math.nan, n=np.float32(0.5), array=np.array(3), nothing=None)
        context.report(np.int64(2), loss=-math.inf)  # type: ignore[arg-type]  # an index, as a loop of numpy has
        context.report()
        context.report(step=3)

    warning, first, second = said(say)

    assert isinstance(warning, LogLine)
    assert (warning.level, warning.message) == ("WARNING", "loss was reported as nan, and is sent as null")
    assert isinstance(first, Scalars)
    assert (first.step, first.values) == (1, {"loss": None, "n": 0.5, "array": 3.0, "nothing": None})
    assert isinstance(second, Scalars)
    assert (second.step, second.values) == (2, {"loss": None})


def test_a_long_line_loses_its_middle_and_a_level_may_be_in_small_letters() -> None:
    def say(context: PlanContext) -> None:
        context.log("half a pair: \ud800")
        context.log("ab" * 5000, level="debug")

    short, long = said(say)

    assert (short.level, short.message) == ("INFO", "half a pair: ?")
    assert (long.level, len(long.message)) == ("DEBUG", frames.MAX_LOG_CHARACTERS)
    assert long.message.startswith("abab")
    assert " [...] " in long.message
    assert long.message.endswith("abab")


@pytest.mark.parametrize(
    ("say", "message"),
    [
        (lambda context: context.report(**{"a b": 1}), "the name 'a b': a name has ASCII letters"),
        (lambda context: context.report(**{"n" * 65: 1}), "at most 64 characters"),
        (lambda context: context.report(**{f"n{at}": at for at in range(101)}), "101 names; 100 at a time"),
        (lambda context: context.report(loss="low"), "got a str as loss; it takes numbers and None"),
        (lambda context: context.report(loss=np.zeros(2)), "got a ndarray as loss"),
        (lambda context: context.report(loss=10**400), "exceeds every float"),
        (lambda context: context.report(step=1.5, loss=1), "got step '1.5'"),
        (lambda context: context.report(step=True, loss=1), "got step 'True'"),
        (lambda context: context.report(step=2**53 + 1, loss=1), "integer of at most 2"),
        (lambda context: context.log("x", level="LOUD"), "the level 'LOUD'; levels are DEBUG"),
    ],
)
def test_what_cannot_be_told_is_refused_and_nothing_of_it_is_sent(
    say: Callable[[PlanContext], object], message: str
) -> None:
    def say_wrong(context: PlanContext) -> None:
        with pytest.raises(InvalidInputError, match=message):
            say(context)

    assert said(say_wrong) == []
