"""What perf counted: divided by perf's own clock, and that of a job apart from that of its machine, wherever shown."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from fedmon.report.charts import Choice, Group, charts_of, read_bins
from fedmon.report.source import Source
from fedmon.report.subject import choose
from tests.report.tables import recording, samples
from tests.support.shell_here import fedmon_here

COUNTED = "perf_counted_seconds_total"
SWITCHES = 'perf_events_total{group="software",event="context-switches"}'
TICKS = [0.0, 1.0, 2.0, 3.0, 3.4]
"""The last sample of a job comes early, and perf tells then what it counted in a whole second."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    seconds, machine, job = ([each * (at + 1) for at in range(5)] for each in (1.0, 5000.0, 100.0))
    t = [1_763_700_000.0 + tick for tick in TICKS]
    return recording(
        tmp_path / "job.fmr",
        samples({COUNTED: seconds, SWITCHES: machine}, t=t),
        samples({COUNTED: seconds, SWITCHES: job, "job_processes": [1.0] * 5}, stream="job-7", t=t),
    )


def test_exported_rates_of_a_part_are_those_of_the_whole(store: Path, tmp_path: Path) -> None:
    words = ["export", str(store), "--metric", "perf_events_total", "--since", "2025-11-21T04:40:02Z"]
    assert fedmon_here(*words, "-o", str(tmp_path / "out.csv")).returncode == 0

    with (tmp_path / "out.csv").open() as lines:
        (name,) = [name for name in next(csv.reader(lines)) if "per_second" in name and "job=" in name]
        lines.seek(0)
        assert [row[name] for row in csv.DictReader(lines)] == ["100"] * 3


def test_a_chart_is_by_the_clock_of_perf(store: Path) -> None:
    with Source([store]) as source:
        subject = choose(source)
        bins = read_bins(subject)
        (found,) = charts_of(bins, subject, choice=Choice(groups=frozenset([Group.PERF]))).first

    assert {line.label: set(line.values[np.isfinite(line.values)].round(6)) for line in found.lines} == {
        "machine": {5000},
        "job": {100},
    }
