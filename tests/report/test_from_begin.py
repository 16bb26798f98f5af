"""What a command used before its first sample counts, as nothing of it was there before."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fedmon.report.document.summary import STORAGE_OF_JOB, moved
from fedmon.report.findings import Case
from fedmon.report.findings.cpu import cpu_use
from fedmon.report.source import Source
from fedmon.report.subject import choose
from tests.report.tables import T0, recording, samples

JOULES = "job_energy_joules_total"
COLUMNS = {
    "job_cpu_user_seconds_total": [3.0, 5.0, 9.0],
    "job_cpu_system_seconds_total": [1.0, 1.0, 2.0],
    "job_storage_read_bytes_total": [0.0, 0.0, 0.0],
    "job_storage_written_bytes_total": [7.0, 7.0, 9.0],
    JOULES: [4.0, 5.0, 6.0],
}


def read(path: Path, *, since_t: float | None = None, count: int = 3, **job: Any) -> Case:
    columns = {name: values[:count] for name, values in COLUMNS.items()}
    batches = samples(columns, stream="job-1"), samples({"host_cpu_count": [2.0] * count})
    document = {"jobs": {"1": {"job_id": "1"} | job}}
    with Source([recording(path, *batches, documents={"n1": document})]) as source:
        return choose(source, job="1", since_t=since_t).read()


def started(seconds_before: float) -> str:
    return datetime.fromtimestamp(T0 - seconds_before, UTC).isoformat()


@pytest.mark.parametrize(
    ("since", "count", "job", "used_s", "elapsed_s"),
    [
        (None, 3, {"method": "command", "started": started(3.0)}, 11.0, 5.0),
        (None, 1, {"method": "command", "started": started(8.0)}, 4.0, 8.0),
        (None, 3, {"method": "environment", "started": started(3.0)}, 7.0, 2.0),
        (None, 3, {"method": "command"}, 7.0, 2.0),
        (None, 3, {"method": "command", "started": started(-60.0)}, 7.0, 2.0),
        (0.5, 3, {"method": "command", "started": started(3.0)}, 5.0, 1.0),
    ],
    ids=["a command", "read once", "a job that ran before", "no begin", "a begin that is none", "a part of the time"],
)
def test_only_of_a_command_all_counts_since_it_was_started(
    tmp_path: Path, since: float | None, count: int, job: dict[str, Any], used_s: float, elapsed_s: float
) -> None:
    (node,) = read(tmp_path / "a.fmr", since_t=None if since is None else T0 + since, count=count, **job).nodes

    use = cpu_use(node)
    assert use is not None
    assert (use.used_s, use.elapsed_s) == pytest.approx((used_s, elapsed_s))
    if elapsed_s == 5.0:
        assert moved(node, STORAGE_OF_JOB) == (0.0, 9.0)
        assert node.one("job_cpu_user_seconds_total").per_second == pytest.approx(9 / 5)  # type: ignore[union-attr]
        assert node.one(JOULES).increase == 2.0  # type: ignore[union-attr]
