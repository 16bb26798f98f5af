"""Times are read as NEPI writes them, together where that is handy, and anything else is refused by name."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.experiment.durations import MOMENT, duration_text, moment, moment_of, seconds
from fedmon.experiment.errors import InvalidTimeError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.5h", 5400), ("2m", 120), ("30s", 30), ("5ms", 0.005), ("7us", 7e-6), ("0s", 0), ("0.25s", 0.25),
        ("2m30s", 150), ("1h2m3s4ms5us", 3723.004005), ("1h5ms", 3600.005), ("2m5ms", 120.005), (None, 0), ("", 0),
    ],
)  # fmt: skip
def test_durations_are_read_alone_and_together(text: str | None, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "5", "5.", ".5s", "s", "-1s", "+1s", "1 s", " 1s", "1s ", "1S", "1d", "1e5s", "30s2m", "1s1s", "nan", "infs",
        "1,5s", "٣s", "1s\n", "5m5", "bad", "9" * 150 + "h", "1" * 10_000 + "s", "878500h", 5, 1.5, True, b"1s", [], {},
    ],
)  # fmt: skip
def test_bad_delay_text_is_refused_at_the_call_and_named(text: object) -> None:
    with pytest.raises(InvalidTimeError) as caught:
        seconds(text)

    assert isinstance(caught.value, ValueError)
    assert caught.value.text == text
    assert str(caught.value).endswith('together "2m30s"')
    assert len(str(caught.value)) < 400


@settings(max_examples=40)
@given(st.floats(min_value=0, max_value=1e7))
def test_a_duration_that_was_written_reads_back_to_the_microsecond(length: float) -> None:
    assert seconds(duration_text(length)) == pytest.approx(length, abs=1e-6)


def test_absolute_times_work() -> None:
    later = datetime.datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=datetime.UTC)
    text = later.astimezone().strftime(MOMENT)
    assert moment(text) == later
    assert moment_of(text, now=0.0) == later.timestamp()
    assert [moment_of(text, now=100.0) for text in (None, "", "1m")] == [100.0, 100.0, 160.0]


@pytest.mark.parametrize(
    "text",
    ["20261301000000000000", "00000000000000000000", "99999999999999999999", "2026112100000000000", "2" * 21, 5],
)
def test_digits_that_are_no_date_are_refused_and_named(text: Any) -> None:
    with pytest.raises(InvalidTimeError, match="20 digits"):
        moment_of(text, now=0.0)
