"""Axes: time as time, numbers in units that people read, names as they are."""

from __future__ import annotations

import datetime
import zoneinfo

import pytest

from fedmon.report.plots.figure import Quantity
from fedmon.report.plots.literal import file_name, literal
from fedmon.report.plots.scale import number, scale_of
from fedmon.report.plots.time_axis import time_axis
from tests.report.plots.recordings import T0

HOUR, DAY = 3600.0, 86_400.0


@pytest.mark.parametrize(
    ("span", "label", "ticks"),
    [
        (0.0, "seconds since 2026-11-21 10:00:00 UTC", ["0"]),
        (60.0, "seconds since 2026-11-21 10:00:00 UTC", ["0", "10", "20", "30", "40", "50", "60"]),
        (HOUR, "21 November 2026, UTC", ["10:00", "10:10", "10:20", "10:30", "10:40", "10:50", "11:00"]),
        (
            DAY,
            "21 November to 22 November 2026, UTC",
            ["12:00", "15:00", "18:00", "21:00", "22 Nov", "03:00", "06:00", "09:00"],
        ),
        (4 * DAY, "21 November to 25 November 2026, UTC",
         ["12:00", "22 Nov", "12:00", "23 Nov", "12:00", "24 Nov", "12:00", "25 Nov"]),
        (60 * DAY, "21 November 2026 to 20 January 2027, UTC",
         ["5 Dec", "19 Dec", "2 Jan", "16 Jan"]),
        (900 * DAY, "21 November 2026 to 9 May 2029, UTC",
         ["Jan 2027", "Jul 2027", "Jan 2028", "Jul 2028", "Jan 2029"]),
    ],
)  # fmt: skip
def test_short_recordings_are_seconds_and_long_ones_dates(span: float, label: str, ticks: list[str]) -> None:
    axis = time_axis(T0, T0 + span)

    assert (axis.label, [text for _, text in axis.ticks]) == (label, ticks)
    assert all(axis.start <= at <= axis.end for at, _ in axis.ticks)


def test_ticks_are_at_the_times_that_they_say_in_a_zone_whose_clock_changes() -> None:
    paris = zoneinfo.ZoneInfo("Europe/Paris")
    start = datetime.datetime(2026, 10, 24, 20, tzinfo=paris).timestamp()

    axis = time_axis(start, start + DAY, zone=paris)

    said = [datetime.datetime.fromtimestamp(start + at, paris) for at, _ in axis.ticks]
    assert [moment.strftime("%H:%M") for moment in said if moment.hour] == [
        text for _, text in axis.ticks if ":" in text
    ]
    assert axis.label == "24 October to 25 October 2026, CEST (UTC+0200)"


@pytest.mark.parametrize(
    ("quantity", "value", "text"),
    [
        (Quantity.BYTES, 3 * 1024**3, "3 GiB"),
        (Quantity.BYTE_RATE, 1_572_864, "1.5 MiB/s"),
        (Quantity.SHARE, 0.345, "34.5 %"),
        (Quantity.WATTS, 250.0, "250 W"),
        (Quantity.WATTS, 12_500.0, "12.5 kW"),
        (Quantity.WATTS, 0.02, "20 mW"),
        (Quantity.CELSIUS, 61.24, "61.2 °C"),
        (Quantity.HERTZ, 2.4e9, "2.4 GHz"),
        (Quantity.SECONDS, 0.0015, "1.5 ms"),
        (Quantity.SECONDS, 7200.0, "2 h"),
        (Quantity.GRAM_RATE, 0.01, "36 g/h"),
        (Quantity.BYTES, 0.0, "0 B"),
    ],
)
def test_values_are_in_units_that_people_read(quantity: Quantity, value: float, text: str) -> None:
    assert scale_of(quantity, value).text(value) == text


def test_numbers_stay_short() -> None:
    values = (0, 1, 12.345, 123.45, 9990, 12_345, 1e6, 0.00012, 1e300, 0.5, 99.96, float("nan"))

    assert [number(value) for value in values] == [
        "0", "1", "12.3", "123", "9990", "12.3 k", "1 M", "0.00012", "1e+300", "0.5", "100", "-"
    ]  # fmt: skip


def test_names_are_drawn_as_they_are_and_what_cannot_be_drawn_by_its_code() -> None:
    assert literal("a$b_{c}\\d é µ") == "a$b_{c}\\d é µ"
    assert literal("a\nb\tc\x1b[31m\u200b中") == r"a\nb\tc\x1b[31m\u200b\u4e2d"
    assert literal("\ud800") == r"\ud800"
    assert literal("x" * 10_000, 9) == "xxxx…xxxx"
    assert literal("begin" + "x" * 1000 + "end", 10) == "begin…xend"


def test_file_names_lead_nowhere() -> None:
    assert file_name("../../etc/pass wd$(x)\n") == "etc_pass_wd_x"
    assert file_name("é") == "unnamed"
    assert file_name("train/loss") == "train_loss"
