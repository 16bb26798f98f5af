"""The view in NEBULA's words says what its reporter would have logged."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedmon.common.metrics.series import series
from fedmon.compat.nebula.settings import Generation
from fedmon.compat.nebula.view import Traffic, gpus, resources
from fedmon.node.collectors.host import host_collectors
from fedmon.report.views import nebula
from tests.report.aliases.recorded import T0, RecordedHost, Values, frames, read_all
from tests.report.aliases.test_perfmon_view import gpu_values
from tests.support.machine_tree import machine_tree, proc_files, write_tree


def ticks(tmp_path: Path) -> list[tuple[float, Values, Values]]:
    """Return a machine of a tree with GPUs, and a job on it, at three instants."""
    roots = machine_tree(tmp_path)
    machine = host_collectors(roots=roots)
    disk = {series(f"host_filesystem_{what}_bytes", mountpoint="/"): value for what, value in
            (("size", 1000.0), ("free", 400.0), ("available", 300.0))}  # fmt: skip
    found: list[tuple[float, Values, Values]] = []
    for number in range(3):
        traffic = proc_files()["net/dev"].replace("1001", str(1001 + 5_000_000 * number))
        busy = proc_files()["stat"].replace("cpu  40006", f"cpu  {40006 + 50 * number}").replace(
            " 1600000 ", f" {1600000 + 150 * number} "
        )  # fmt: skip
        write_tree(roots.proc, {"net/dev": traffic, "stat": busy})
        job = {
            "job_cpu_user_seconds_total": 0.75 * number,
            "job_cpu_system_seconds_total": 0.5 * number,
            "job_cpus_busy": 1.25 if number else None,
            "job_memory_rss_bytes": 1e8 + number,
        }
        found.append((float(number), read_all(machine, 10.0 * number) | disk | dict(gpu_values()), job))
    return found


@pytest.mark.parametrize("generation", ["1.0.0", "old"])
def test_each_row_is_what_the_reporter_logs_of_the_same_samples(tmp_path: Path, generation: Generation) -> None:
    host, traffic = RecordedHost("node-a"), Traffic()
    logged: list[dict[str, float]] = []
    for mono, machine, job in ticks(tmp_path):
        host.tick(mono, machine, job)
        traffic.look(machine)
        values = {**machine, **job}
        one = resources(values, traffic=traffic, connections=None, generation=generation)
        for gpu in gpus(values):
            one |= gpu
        logged.append(one)

    frame = frames(host.write(tmp_path / "r.fmr"), view=nebula, generation=generation)["nebula"]

    assert list(frame.columns[:3]) == ["host", "time", "job"]
    rows = [
        {tag: value for tag, value in row.items() if not math.isnan(value)}
        for row in frame.iloc[:, 3:].to_dict("records")
    ]
    assert len(logged[-1]) >= 12 + 7 + 6
    for row, one in zip(rows, logged, strict=True):
        assert row == {str(tag): pytest.approx(value, abs=0.06) for tag, value in one.items()}


def test_values_that_a_program_reported_have_a_table_of_their_own(tmp_path: Path) -> None:
    host = RecordedHost("node-a")
    host.add(0.5, {'user_value{name="loss"}': 0.5, 'user_step{name="loss"}': 3}, stream="user")
    host.add(0.75, {'user_value{name="time",job="7"}': 2.0}, stream="user")
    host.add(1.5, {'user_value{name="loss"}': None}, stream="user")
    host.add(0.5, {'user_value{name="accuracy",job="8"}': 0.75}, stream="user-alice")
    path = host.write(tmp_path / "r.fmr")

    found = frames(path, view=nebula)

    assert list(found) == ["nebula_user"]
    assert list(found["nebula_user"].columns) == ["host", "time", "accuracy", "loss", "user time"]
    assert found["nebula_user"]["accuracy"].tolist()[0] == 0.75
    assert found["nebula_user"]["loss"].tolist()[0] == 0.5
    assert found["nebula_user"]["loss"].isna().tolist() == [False, True, True]
    assert found["nebula_user"]["time"][0].timestamp() == T0 + 0.5


def test_with_a_job_only_what_that_job_reported_is_in_the_table(tmp_path: Path) -> None:
    host = RecordedHost("node-a")
    for key, first, loss in (("7", 0, 0.75), ("8", 1, 0.25)):
        for number in range(3):
            host.add(first + number, {"job_memory_rss_bytes": 1e8}, stream=f"job-{key}")
        host.add(first + 0.5, {f'user_value{{name="loss",job="{key}"}}': loss}, stream="user")
    path = host.write(tmp_path / "r.fmr")

    found = {job: frames(path, job, view=nebula)["nebula_user"] for job in ("7", "8")}

    assert {job: one["loss"].tolist() for job, one in found.items()} == {"7": [0.75], "8": [0.25]}
    assert found["8"]["time"][0].timestamp() == T0 + 1.5
