"""Which processes of a job perf has to be told, from a tree of files laid out like /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedmon.node.perf.collector import JobTarget
from fedmon.node.perf.source import PerfTarget

TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def job(tmp_path: Path) -> JobTarget:
    put(tmp_path, 10, parent=1, started_s=5)
    put(tmp_path, 11, parent=10, started_s=6)
    made = JobTarget(proc=tmp_path)
    made.see([10, 11])
    made.target()
    return made


def put(proc: Path, pid: int, *, parent: int, started_s: float, state: str = "S") -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    fields = [state, str(parent), *["0"] * 17, str(round(started_s * TICKS)), "0", "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} (a ) b) {' '.join(fields)}\n")


def test_living_processes_are_listed_and_dead_ones_are_not(tmp_path: Path) -> None:
    put(tmp_path, 10, parent=1, started_s=5)
    put(tmp_path, 11, parent=10, started_s=6, state="Z")
    job = JobTarget(proc=tmp_path)

    job.see([10, 11, 12])
    listed = job.target()
    job.see([11, 12])

    assert listed == PerfTarget(pids=(10,))
    assert job.target() is None


def test_a_cgroup_needs_no_list(job: JobTarget) -> None:
    job.cgroup = "jobs/7"
    job.see([10, 11, 99])

    assert job.target() == PerfTarget(cgroup="jobs/7")
    assert not job.uncounted(100.0)


def test_children_that_listed_processes_forked_later_are_counted_already(job: JobTarget, tmp_path: Path) -> None:
    put(tmp_path, 30, parent=10, started_s=101)
    put(tmp_path, 20, parent=30, started_s=102)
    job.see([10, 11, 20, 30])

    assert not job.uncounted(100.0)


@pytest.mark.parametrize(
    ("parent", "started_s", "why"),
    [(10, 99.0, "forked before perf was attached"), (1, 101.0, "not forked by a process that perf counts")],
)
def test_a_process_that_perf_cannot_know_is_uncounted(
    job: JobTarget, tmp_path: Path, parent: int, started_s: float, why: str
) -> None:
    put(tmp_path, 40, parent=parent, started_s=started_s)
    job.see([10, 11, 40])

    assert job.uncounted(100.0), why
    assert not job.uncounted(None)

    job.target()
    assert not job.uncounted(200.0)


def test_a_new_process_that_is_gone_or_torn_or_a_zombie_is_no_reason_to_attach_again(
    job: JobTarget, tmp_path: Path
) -> None:
    put(tmp_path, 41, parent=1, started_s=101, state="Z")
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "stat").write_text("42 (x")
    job.see([10, 41, 42, 43])

    assert not job.uncounted(100.0)
