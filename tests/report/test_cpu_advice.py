"""The advice on CPUs in the report of a recorded job: never fewer than its phases use."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest

from fedmon.report.findings import find
from fedmon.report.source import Source
from fedmon.report.subject import choose
from tests.report.tables import T0, Column, recording, samples


@pytest.mark.parametrize(
    ("busy", "every_s", "cpus", "advice"),
    [
        ([0.0, *[1.9] * 8, *[0.0] * 12], 1.0, 2, "fewer would make it slower"),
        ([0.0, *[0.76] * 20], 30.0, 8, "Measure more often before asking for fewer: 30.0 s between samples"),
    ],
    ids=["phases", "hidden-phases"],
)
def test_a_job_with_phases_is_not_told_to_ask_for_fewer_cpus_than_they_use(
    busy: list[float], every_s: float, cpus: int, advice: str, tmp_path: Path
) -> None:
    mono = [at * every_s for at in range(len(busy))]
    columns: dict[str, Column] = {
        "job_cpu_user_seconds_total": [each * every_s for each in accumulate(busy)],
        "job_cpu_system_seconds_total": [0.0] * len(busy),
        "job_cpus_busy": [None, *busy[1:]],
        "job_threads": [9.0] * len(busy),
    }
    job = samples(columns, stream="job-7", t=[T0 + each for each in mono])

    with Source([recording(tmp_path / "job.fmr", job, documents={"n1": {"jobs": {"7": {"cpus": cpus}}}})]) as source:
        found = {one.name: one for one in find(choose(source).read())}

    assert advice in found["cpu-efficiency"].advice
