"""What perf prints, in every shape that it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.node.perf.output import Count, parse_line

RECORDED = Path(__file__).parents[1] / "data" / "perf"


def counts(name: str) -> list[Count]:
    return [found for line in (RECORDED / name).read_text().splitlines() if (found := parse_line(line)) is not None]


def test_every_recorded_line_of_an_interval_is_read() -> None:
    lines = counts("pids.txt")

    assert len(lines) == len((RECORDED / "pids.txt").read_text().splitlines())
    assert lines[0] == Count(event="task-clock", value=266.05, time_s=0.30170716, unit="msec", running_ratio=1.0)
    assert [line.event for line in lines[:6]] == [
        "task-clock", "context-switches", "cpu-migrations", "page-faults", "minor-faults", "major-faults",
    ]  # fmt: skip


def test_a_user_without_rights_gets_the_modifier_apart_from_the_name() -> None:
    by_name = {line.event: line for line in counts("user.txt")}

    assert by_name["context-switches"].modifiers == "u"
    assert by_name["page-faults"].value == 98
    assert by_name["page-faults"].time_s is None


def test_what_was_not_counted_or_is_not_supported_is_a_gap_and_no_zero() -> None:
    asleep, machine = counts("asleep.txt"), counts("machine.txt")

    assert {(line.value, line.gap) for line in asleep} == {(None, "not counted")}
    assert [(line.value, line.gap, line.running_ratio) for line in machine if line.event == "cycles"][:1] == [
        (None, "not supported", None)
    ]
    assert [line.value for line in machine if line.event == "major-faults"][:1] == [0.0]


def test_the_column_of_a_cgroup_is_passed_over() -> None:
    lines = counts("cgroup.txt")

    assert (lines[0].event, lines[0].value, lines[0].running_ratio) == ("task-clock", 300.90, 1.0)


def test_hardware_events_keep_the_share_of_time_that_they_were_seen() -> None:
    by_name = {line.event: line for line in counts("hardware.txt")}

    assert by_name["cycles"] == Count(event="cycles", value=4e9, time_s=1.000312345, modifiers="u", running_ratio=0.8)
    assert by_name["flops_dp.fp_arith_inst_retired.256b_packed_double"].running_ratio == 0.25
    assert by_name["branches"].gap == "not counted"
    assert by_name["memory_client.data_reads"].unit == "MiB"


@pytest.mark.parametrize(
    "line",
    ["", "# started on Sat", "Error:", "The cycles event is not supported.", ";;;;;;", "0.3;", "-5;;page-faults;1;1",
     "nan;;page-faults;1;100", "1e5;;page-faults;1;100.00", "5;;;1;100.00"],
)  # fmt: skip
def test_what_is_no_count_is_left_out(line: str) -> None:
    assert parse_line(line) is None


@settings(max_examples=50)
@given(st.text(max_size=80), st.integers(0, 60))
def test_no_text_breaks_the_reader(text: str, cut: int) -> None:
    recorded = (RECORDED / "cgroup.txt").read_text().splitlines()[0]
    for line in (text, recorded[:cut], recorded[:cut] + text):
        found = parse_line(line)
        assert found is None or (found.value is None) == (found.gap is not None)
