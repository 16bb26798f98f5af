"""Which processes of a job perf has to be told, from a tree of files laid out like /proc."""

from __future__ import annotations

import pytest

from fedmon.node.perf.collector import JobTarget
from tests.node.jobs_trees import TICKS, ProcTree


@pytest.fixture
def job(proc: ProcTree) -> JobTarget:
    proc.put(10, name="a ) b", start=5 * TICKS)
    proc.put(11, parent=10, start=6 * TICKS)
    made = JobTarget(proc=proc.root)
    made.see([10, 11])
    made.target()
    return made


def test_living_processes_are_listed_and_dead_ones_are_not(proc: ProcTree) -> None:
    proc.put(10, parent=1, start=5 * TICKS)
    proc.put(11, parent=10, start=6 * TICKS, state="Z")
    job = JobTarget(proc=proc.root)

    job.see([10, 11, 12])
    listed = job.target()
    job.see([11, 12])

    assert listed == ["-p", "10"]
    assert job.target() is None


def test_a_cgroup_needs_no_list(job: JobTarget) -> None:
    job.cgroup = "jobs/7"
    job.see([10, 11, 99])

    assert job.target() == ["-a", "--for-each-cgroup", "jobs/7"]
    assert not job.uncounted(100.0)


def test_children_that_listed_processes_forked_later_are_counted_already(job: JobTarget, proc: ProcTree) -> None:
    proc.put(30, parent=10, start=101 * TICKS)
    proc.put(20, parent=30, start=102 * TICKS)
    job.see([10, 11, 20, 30])

    assert not job.uncounted(100.0)


@pytest.mark.parametrize(
    ("parent", "started_s", "why"),
    [(10, 99, "forked before perf was attached"), (1, 101, "not forked by a process that perf counts")],
)
def test_a_process_that_perf_cannot_know_is_uncounted(
    job: JobTarget, proc: ProcTree, parent: int, started_s: int, why: str
) -> None:
    proc.put(40, name="a ) b", parent=parent, start=started_s * TICKS)
    job.see([10, 11, 40])

    assert job.uncounted(100.0), why
    assert not job.uncounted(None)

    job.target()
    assert not job.uncounted(200.0)


def test_a_new_process_that_is_gone_or_torn_or_a_zombie_is_no_reason_to_attach_again(
    job: JobTarget, proc: ProcTree
) -> None:
    proc.put(41, parent=1, start=101 * TICKS, state="Z")
    (proc.root / "42").mkdir()
    (proc.root / "42" / "stat").write_text("42 (x")
    job.see([10, 41, 42, 43])

    assert not job.uncounted(100.0)
