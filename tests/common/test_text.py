"""Words for people: lists, plurals, amounts and tables."""

from __future__ import annotations

import datetime

import pytest

from fedmon.common import text
from fedmon.common.clock import utc_now


def test_amounts_and_moments_are_as_people_read_them() -> None:
    assert text.scaled(1200, "W") == "1.2 kW"
    assert [text.moment(0), text.moment(1e300)] == ["1970-01-01 00:00:00 UTC", "-"]
    beyond_utc = datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=12)))
    assert text.moment(beyond_utc) == "0001-01-01T00:00:00+12:00"


def test_a_table_is_aligned_and_what_could_steer_a_terminal_is_written_out() -> None:
    assert text.table(["NODE", "N"], [["a\x1b[0m", 1], ["longer name", 12]]).splitlines() == [
        "NODE          N",
        "───────────  ──",
        "a\\x1b[0m      1",
        "longer name  12",
    ]


def test_the_widest_column_is_shortened_to_the_width() -> None:
    shown = text.table(["NODE", "REASON"], [["a", "x" * 50]], width=20)

    assert shown.splitlines() == ["NODE  REASON", "────  ──────────────", "a     xxxxxxxxxxxxx…"]


def test_a_folded_table_keeps_every_word_and_breaks_no_id() -> None:
    job = "0190b5f0-7a3c-7cc0-8000-0123456789ab"
    reason = "the disk is full and nothing more can be written to it"

    lines = text.table(["job", "reason"], [[job, reason]], width=60, fold=True).splitlines()

    assert lines[2].split()[0] == job
    assert max(map(len, lines)) <= 60
    assert " ".join(line.replace(job, "").strip() for line in lines[2:]) == reason


def test_nothing_is_cut_where_no_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)

    assert "x" * 500 in text.table(["NODE", "REASON"], [["a", "x" * 500]])


def test_numbers_stand_to_the_right_and_styles_take_no_room() -> None:
    plain = text.table(["node", "size"], [["a", "1.5 GiB"], ["b", "12 B"]])
    styled = text.table(["node", "size"], [["a", "1.5 GiB"], ["b", "12 B"]], styles=[["", ""], ["31", ""]])

    assert plain.splitlines()[2:] == ["a     1.5 GiB", "b        12 B"]
    assert styled.splitlines()[2:] == ["a     1.5 GiB", "\x1b[31mb\x1b[0m        12 B"]
    assert styled.startswith("\x1b[1mnode\x1b[0m")
    assert text.table(["job", "nodes"], [["a", "3 failed"], ["b", "3 succeeded"]]).endswith(
        "a    3 failed\nb    3 succeeded"
    )


@pytest.mark.parametrize(
    ("past", "expected"),
    [({"seconds": 12.5}, "12 s ago"), ({"minutes": 3, "seconds": 50}, "3 min ago"), ({"hours": 30}, "1 d ago")],
)
def test_a_moment_is_told_by_its_distance_from_now(past: dict[str, float], expected: str) -> None:
    assert text.ago(utc_now() - datetime.timedelta(**past)) == expected
    assert text.ago(utc_now() + datetime.timedelta(days=3, hours=1)) == "in 3 d"


def test_ids_are_shortened_as_far_as_they_differ() -> None:
    first, second = (f"0190b5f0-7a3c-7cc0-8000-01234567{end}" for end in ("89ab", "89ac"))

    assert text.short_ids([first, "4711.server"]) == {first: "0190b5f0-7a3c", "4711.server": "4711.server"}
    assert text.short_ids([f"dataset_{first}"]) == {f"dataset_{first}": "0190b5f0-7a3c"}
    assert text.short_ids([first, second]) == {first: first, second: second}
