"""What a daemon holds of its jobs, with a real sampler; and what is refused."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.errors import ConflictError, FedmonError, InvalidIdError, InvalidInputError, NotFoundError
from fedmon.common.metrics.sample import Instant, Sample
from fedmon.node.collectors.base import Roots
from fedmon.node.measure.jobs import MAX_JOBS, JobWatches, WatchedJob
from fedmon.node.measure.sampler import Sampler
from tests.node.jobs_real import TICK_S, Program, Watch, cpu_s
from tests.node.jobs_trees import ProcTree
from tests.support.waiting import wait_until


class Sampled:
    """A real sampler without collectors of its own, the jobs beside it, and every sample of theirs."""

    def __init__(self) -> None:
        self.samples: list[tuple[str, Sample]] = []
        self.ended: list[WatchedJob] = []
        self.sampler = Sampler({}, interval_s=0.2, on_tick=self._take)
        self.jobs = JobWatches(Roots(), self.sampler.add_stream, self.sampler.remove_stream, on_end=self.ended.append)

    def _take(self, samples: Mapping[str, Sample]) -> None:
        for stream, sample in samples.items():
            if sample.values:
                self.samples.append((stream, sample))
                self.jobs.handed_on(stream.removeprefix("job-"))

    def of(self, stream: str) -> list[Sample]:
        return [sample for name, sample in self.samples if name == stream]


def test_a_job_is_sampled_until_its_end_and_its_last_sample_is_complete() -> None:
    sampled = Sampled()
    with sampled.sampler, Program() as program:
        program.tell("short 20 0.005")
        before = sum(program.used_s())
        added = sampled.jobs.add("fit", pids=[program.pid], name="a fit")
        program.tell("short 10 0.005")
        wait_until(lambda: len(sampled.of("job-fit")) >= 2)
        used = sum(program.used_s())
        program.end_unwaited()
        wait_until(sampled.jobs.close_ended)
        last = sampled.of("job-fit")[-1]
        streams = sampled.sampler.streams

    assert streams == []
    assert added.cpu_seconds >= before - 2 * TICK_S > 0
    assert (last.values["job_processes"], last.values["job_zombies"]) == (0, 1)
    assert cpu_s(last.values) >= used - 2 * TICK_S
    assert [(each.job_id, each.name, each.reason) for each in sampled.ended] == [
        ("fit", "a fit", "all of its processes have ended")
    ]
    assert sampled.ended[0].cpu_seconds == pytest.approx(cpu_s(last.values), abs=1e-5)
    assert [(each.job_id, each.ended is not None) for each in sampled.jobs.records()] == [("fit", True)]
    assert sampled.jobs.pids() == {}
    assert sampled.jobs.cpu_seconds(Instant(t=0, mono=0)) == {}


def test_a_job_is_over_only_once_its_last_sample_was_handed_on() -> None:
    with Watch() as watch, Program() as program:
        watch.add(program.pid)
        watch.tick()
        program.end_unwaited()
        first, *others = watch.streams["job-a"]
        now = Instant(t=time.time(), mono=time.monotonic())

        watch.watches.cpu_seconds(now)
        watch.watches.handed_on("a")
        assert watch.watches.close_ended() == []
        last = dict(first.collect(now).values)
        assert watch.watches.close_ended() == []
        for each in others:
            last.update(each.collect(now).values)
        watch.watches.handed_on("b")
        assert watch.watches.close_ended() == []
        watch.watches.handed_on("a")

        assert last["job_processes"] == last["job_file_descriptors"] == 0
        assert [record.job_id for record in watch.watches.close_ended()] == ["a"]


def test_cpu_time_may_be_asked_for_by_another_thread_while_jobs_come_and_go() -> None:
    sampled = Sampled()
    stop, failed = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            try:
                sampled.jobs.cpu_seconds(Instant(t=time.time(), mono=time.monotonic()))
                sampled.jobs.pids()
                sampled.jobs.records()
            except Exception as error:  # noqa: BLE001 - whatever it is
                failed.append(error)
                return

    asking = threading.Thread(target=ask)
    with sampled.sampler, Program() as program:
        asking.start()
        for number in range(20):
            sampled.jobs.add(f"j{number}", pids=[program.pid])
            program.tell("short 3 0")
            sampled.jobs.remove(f"j{number}")
        stop.set()
        asking.join()

    assert failed == []


def test_files_are_closed_with_the_job() -> None:
    before = len(os.listdir("/proc/self/fd"))
    sampled = Sampled()
    with sampled.sampler, Program() as program:
        program.tell("many 5")
        sampled.jobs.add("a", pids=[program.pid])
        wait_until(lambda: sampled.of("job-a"))
        sampled.jobs.remove("a")

        # The pipes to the program, its hold, and the one file that all jobs share.
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 4)


@pytest.fixture
def machine(proc: ProcTree, tmp_path: Path) -> Roots:
    proc.put(10)
    proc.put(11, parent=10)
    proc.put(12, state="Z")
    proc.put(13)
    (proc.root / "13" / "status").write_text("Name:\tx\nTgid:\t10\nPid:\t13\n")
    proc.put(14)
    (proc.root / "14" / "stat").write_text("garbage")
    return Roots(proc=proc.root, sys=tmp_path, cgroup=tmp_path / "cgroup")


@pytest.mark.parametrize(
    ("job_id", "wish", "error", "said"),
    [
        ("a/b", {"pids": [10]}, InvalidIdError, "job id 'a/b'"),
        ("", {"pids": [10]}, InvalidIdError, "job id ''"),
        ("x" * 65, {"pids": [10]}, InvalidIdError, "1 to 64"),
        ("a", {}, InvalidInputError, "with --pid, or its --cgroup"),
        ("a", {"pids": [99]}, NotFoundError, "process 99 not found"),
        ("a", {"pids": [-1]}, NotFoundError, "process -1 not found"),
        ("a", {"pids": [12]}, ConflictError, "its processes have ended"),
        ("a", {"pids": [13]}, InvalidInputError, "13 is a thread"),
        ("a", {"pids": [14]}, InvalidInputError, "process 14 cannot be read"),
        ("a", {"pids": [10], "starts": {10: 7}}, NotFoundError, "another one got its number"),
        ("a", {"cgroup": "/x"}, NotFoundError, "no cgroup hierarchy is mounted"),
    ],
)
def test_what_cannot_be_watched_is_refused_by_name(
    machine: Roots, job_id: str, wish: dict[str, Any], error: type[FedmonError], said: str
) -> None:
    watch = Watch(machine)

    with pytest.raises(error, match=said):
        watch.watches.add(job_id, **wish)

    assert watch.watches.records() == []
    assert watch.streams == {}


def test_a_system_without_proc_watches_no_jobs(tmp_path: Path) -> None:
    with pytest.raises(ConflictError, match="jobs are watched on Linux only"):
        Watch(Roots(proc=tmp_path / "none")).add(10)


def test_one_process_belongs_to_one_job_at_most(machine: Roots) -> None:
    watch = Watch(machine).add(11)

    with pytest.raises(ConflictError, match="'a' is watched already"):
        watch.watches.add("a", pids=[10])
    with pytest.raises(ConflictError, match="process 11 belongs to job 'a' already"):
        watch.watches.add("b", pids=[10])
    with pytest.raises(ConflictError, match="process 11 belongs to job 'a' already"):
        watch.watches.add("b", pids=[11])


def test_no_more_than_64_jobs_are_watched(proc: ProcTree) -> None:
    watches = JobWatches(Roots(proc=proc.root), lambda _stream, _collectors: None, lambda _stream: None)
    for number in range(MAX_JOBS + 1):
        proc.put(1000 + number)
    for number in range(MAX_JOBS):
        watches.add(f"j{number}", pids=[1000 + number])

    with pytest.raises(ConflictError, match="64 jobs are watched already"):
        watches.add("more", pids=[1000 + MAX_JOBS])
