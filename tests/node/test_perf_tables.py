"""The tables of events and formulas of each micro-architecture, evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.common.metrics.series import split_series
from fedmon.common.metrics.table import METRICS, metric_of
from fedmon.node.collectors.base import Roots
from fedmon.node.perf.events import (
    OF_ARCHITECTURE,
    Architecture,
    Counter,
    Derived,
    Formula,
    Group,
    PerfScope,
    architecture,
    candidates,
    everywhere,
    make_plan,
    table,
)
from fedmon.node.perf.source import processor

NAMES = tuple(table()["architectures"])
EVERYWHERE = tuple(map(everywhere, table()["everywhere"]))
TOPICS = ("software", "cycles", "branches", "cache", *OF_ARCHITECTURE)
RAW = re.compile(r"(cpu|amd_l3|amd_df|uncore_imc)/(event=0x[0-9a-f]{2,3}(,umask=0x[0-9a-f]{2})?|data_\w+),name=\S+/u?")


def of(name: str) -> Architecture:
    found = architecture(name)
    assert found is not None
    return found


def every() -> Iterator[tuple[str, Group]]:
    for name in NAMES:
        yield from ((name, group) for group in of(name).groups)
    yield from (("everywhere", group) for group in EVERYWHERE)


def derived(name: str, series: str) -> tuple[Group, Derived]:
    return next((g, d) for g in of(name).groups for d in g.derived if d.series == series)


def test_each_formula_uses_events_of_its_own_group_alone() -> None:
    for name, group in every():
        variables = {event.variable for event in group.events}

        assert len(variables) == len(group.events), (name, group)
        for one in group.derived:
            assert one.formula.names <= variables | {"seconds"}, (name, group)
            metric, labels = split_series(one.series)
            assert set(labels) == set(METRICS[metric].labels), (name, group)
            assert one.formula.value(dict.fromkeys(variables, 2.0) | {"seconds": 1.0}) is not None, (name, group)


@pytest.mark.parametrize("name", NAMES)
def test_each_group_fits_the_counters_with_two_threads_and_a_watchdog(name: str) -> None:
    row = table()["architectures"][name]
    general = row["counters"] - name.startswith("zen")  # Intel's watchdog has a counter of its own

    for key, group in zip(row["groups"], of(name).groups, strict=True):
        own = sum(event.counter is Counter.CORE for event in group.events)
        assert not group.together or own + table()["groups"][key].get("extra_counters", 0) <= general
    assert row["source"]


@pytest.mark.parametrize("name", NAMES)
def test_each_event_is_spelled_as_perf_reads_it_under_a_name_of_its_own(name: str) -> None:
    groups = (*of(name).groups, *EVERYWHERE[1:])
    printed = [event.printed(group.name) for group in groups for event in group.events]

    assert len(set(printed)) == len(printed)
    for group in of(name).groups:
        for event in group.events:
            assert RAW.fullmatch(event.spelling(group.name))
            assert event.spelling(group.name).endswith("/u") == (event.counter is Counter.CORE)
        assert group.spelling().startswith("{") == group.together


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scope", PerfScope)
def test_each_promised_metric_is_counted_or_missing_with_a_reason(name: str, scope: PerfScope) -> None:
    groups, missing = candidates(TOPICS, scope=scope, architecture=of(name), described="x")
    plan = make_plan(groups, TOPICS, dict.fromkeys((group.name for group in groups), None), missing)

    report = plan.capabilities()

    assert {series for promised in OF_ARCHITECTURE.values() for series in promised} <= set(report)
    assert all(metric_of(series) is not None for series in report)
    assert all(reason is None or reason.startswith("unsupported: ") for reason in report.values())
    memory = report["perf_memory_bandwidth_bytes_per_second"]
    assert memory is None if scope is PerfScope.HOST else "only the whole machine" in str(memory)


@pytest.mark.parametrize(
    ("name", "series", "numbers", "expected"),
    [
        ("sandybridge", 'perf_flops_per_second{precision="double"}', [10, 20, 30], 10 + 2 * 20 + 4 * 30),
        ("ivybridge", 'perf_flops_per_second{precision="single"}', [10, 20, 30], 10 + 4 * 20 + 8 * 30),
        ("broadwell", 'perf_flops_per_second{precision="double"}', [10, 20, 30], 10 + 2 * 20 + 4 * 30),
        ("skylake", 'perf_flops_per_second{precision="single"}', [10, 20, 30], 10 + 4 * 20 + 8 * 30),
        ("skylake_x", 'perf_flops_per_second{precision="double"}', [1, 2, 3, 4], 1 + 2 * 2 + 4 * 3 + 8 * 4),
        ("icelake_x", 'perf_flops_per_second{precision="single"}', [1, 2, 3, 4], 1 + 4 * 2 + 8 * 3 + 16 * 4),
        ("icelake", 'perf_vectorization_ratio{precision="double"}', [5, 5, 5, 5], 0.75),
        ("zen", 'perf_flops_per_second{precision="double"}', [70], 70),
        ("zen3", 'perf_flops_per_second{precision="any"}', [70], 70),
        ("haswell", "perf_l2_bandwidth_bytes_per_second", [1, 2, 3], 64 * 6),
        ("skylake_x", "perf_l3_bandwidth_bytes_per_second", [3, 4], 64 * 7),
        ("zen2", "perf_l3_bandwidth_bytes_per_second", [1000, 1, 2, 3], 64 * 6),
        ("zen3", "perf_l2_miss_ratio", [40, 10, 30, 20, 10], (10 + 20 + 10) / (40 + 30 + 20 + 10)),
        ("zen2", "perf_l2_requests_per_instruction", [1000, 40, 30, 20, 10], 0.1),
        ("broadwell", "perf_l2_miss_ratio", [1000, 40, 10], 0.25),
        ("broadwell", "perf_l3_requests_per_instruction", [1000, 40, 10], 0.04),
        ("icelake", "perf_l3_misses_per_instruction", [1000, 40, 10], 0.01),
        ("haswell", "perf_memory_bandwidth_bytes_per_second", [2e9, 1e9], 192e9),
        ("zen2", "perf_memory_bandwidth_bytes_per_second", [1, 2, 3, 4, 5, 6, 7, 8], 64 * 36),
        ("zen2", "perf_l3_miss_ratio", [200, 50], 0.25),
    ],
)
def test_known_counts_give_known_results(name: str, series: str, numbers: list[float], expected: float) -> None:
    group, one = derived(name, series)
    counts = dict(zip((event.variable for event in group.events), numbers, strict=True))

    assert one.formula.value(counts | {"seconds": 1.0}) == pytest.approx(expected)
    # A rate halves over twice the time; a ratio stays.
    again = one.formula.value(counts | {"seconds": 2.0})
    assert again == pytest.approx(expected / 2 if "per_second" in series else expected)


def test_what_a_processor_cannot_count_has_its_reason() -> None:
    _, haswell = candidates(TOPICS, scope=PerfScope.HOST, architecture=of("haswell"), described="x")
    _, zen3 = candidates(TOPICS, scope=PerfScope.HOST, architecture=of("zen3"), described="x")
    groups, missing = candidates(("l2", "cycles"), scope=PerfScope.JOB, architecture=None, described="Quark (family 5)")

    assert haswell['perf_flops_per_second{precision="double"}'] == (
        "unsupported: Haswell counts no floating point operations by precision"
    )
    assert 'precision="any"' in zen3['perf_flops_per_second{precision="single"}']
    assert missing == {"perf_l2_bandwidth_bytes_per_second": "unsupported: no table of events for Quark (family 5)"}
    assert [group.name for group in groups] == ["software", "cycles"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1 + 2 * 3", 7.0), ("(1 + 2) * 3", 9.0), ("8 / 4 / 2", 1.0), ("2 - 3 - 4", -5.0), ("1e-6 * a", 1e-05),
     ("a / b.c_1 ", 2.5), ("a_b - a", -7.0), ("a / (a - a)", None)],
)  # fmt: skip
def test_a_formula_follows_arithmetic_and_gives_no_number_for_what_is_missing(
    text: str, expected: float | None
) -> None:
    value = Formula(text).value({"a": 10.0, "a_b": 3.0, "b_c_1": 4.0})

    assert value == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("vendor", "family", "model", "expected"),
    [
        ("GenuineIntel", 6, 0x2D, "sandybridge"), ("GenuineIntel", 6, 0x3E, "ivybridge"),
        ("GenuineIntel", 6, 0x3F, "haswell"), ("GenuineIntel", 6, 0x4F, "broadwell"),
        ("GenuineIntel", 6, 0x9E, "skylake"), ("GenuineIntel", 6, 0x55, "skylake_x"),
        ("GenuineIntel", 6, 0x7E, "icelake"), ("GenuineIntel", 6, 0x6A, "icelake_x"),
        ("AuthenticAMD", 23, 0x01, "zen"), ("AuthenticAMD", 23, 0x31, "zen2"), ("AuthenticAMD", 25, 0x01, "zen3"),
        ("AuthenticAMD", 25, 0x11, "zen4"), ("AuthenticAMD", 26, 0x02, "unknown"), ("GenuineIntel", 6, 0x8F, "unknown"),
        ("CentaurHauls", 7, 0x1B, "unknown"),
    ],
)  # fmt: skip
def test_the_processor_is_named_by_family_and_model(
    tmp_path: Path, vendor: str, family: int, model: int, expected: str
) -> None:
    (tmp_path / "cpuinfo").write_text(
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n"
        "model name\t: Some CPU @ 2.0\n\nprocessor\t: 1\nvendor_id\t: Other\n"
    )

    described = f"Some CPU @ 2.0 (family {family}, model {model})"

    assert processor(Roots(proc=tmp_path, sys=tmp_path)) == (expected, described)
    assert (architecture(expected) is None) == (expected in ("unknown", "zen4"))
