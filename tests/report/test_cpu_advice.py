"""What `fedmon report` advises on CPUs: never fewer than the phases of a job use, and a starved job is called so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from tests.report.recorded_job import BEGIN_T
from tests.support.shell_here import fedmon_here

SOME, FULL = (f'job_pressure_seconds_total{{resource="cpu",kind="{kind}"}}' for kind in ("some", "full"))


def told(
    folder: Path, busy: Sequence[float], *, cpus: int = 2, every_s: float = 1.0, threads: int = 2,
    waited: Mapping[str, float] | None = None, scheduler: str = "none",
) -> dict[str, Any]:  # fmt: skip
    """Return what is said of a job that kept so many CPUs busy from sample to sample, and waited for shares of it."""
    used = [sum(busy[: at + 1]) * every_s for at in range(len(busy))]
    columns: dict[str, list[float | None]] = {
        "job_cpu_user_seconds_total": [*used],
        "job_cpu_system_seconds_total": [0.0] * len(busy),
        "job_cpus_busy": [None, *busy[1:]],
        "job_threads": [float(threads)] * len(busy),
        **{name: [share * at * every_s for at in range(len(busy))] for name, share in (waited or {}).items()},
    }
    moments = [at * every_s for at in range(len(busy))]
    batch = Batch(node_id="n1", boot=1, stream="job-7", seq=0, t=[BEGIN_T + at for at in moments], mono=moments,
                  columns=columns)  # fmt: skip
    with Recording(folder / "job.fmr") as recording:
        recording.append([batch])
        recording.describe("n1", 1, {"hostname": "n1", "jobs": {"7": {"cpus": cpus, "scheduler": scheduler}}})
    done = fedmon_here("report", str(folder / "job.fmr"), "--json", "--text")
    assert done.returncode == 0, done.stderr
    (found,) = [one for one in json.loads(done.stdout)["findings"] if one["name"] == "cpu-efficiency"]
    return dict(found)


def test_a_job_with_phases_keeps_the_cpus_that_they_use(tmp_path: Path) -> None:
    found = told(tmp_path, [0.0, *[1.9] * 8, *[0.0] * 12])

    assert "At most 1.9 were busy at once." in found["text"]
    assert "fewer would make it slower" in found["advice"]
    assert (found["severity"], found["figures"]["most_cpus_busy"]) == ("note", 1.9)


def test_samples_far_apart_give_no_advice_on_phases_that_they_hide(tmp_path: Path) -> None:
    found = told(tmp_path, [0.0, *[0.76] * 20], cpus=8, every_s=30.0, threads=9)

    assert found["advice"].startswith("Measure more often before asking for fewer: 30.0 s between samples")


def test_the_line_of_the_job_script_is_there_to_copy(tmp_path: Path) -> None:
    for scheduler, line in (("pbspro", "#PBS -l ncpus=3"), ("oar", "#OAR -l core=3"), ("none", "")):
        folder = tmp_path / scheduler
        folder.mkdir()
        found = told(folder, [0.0, *[2.7] * 20], cpus=8, scheduler=scheduler)
        assert found["advice"].endswith(f"For example: {line}" if line else "such as storage."), found["advice"]
