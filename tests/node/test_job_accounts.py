"""Sums over processes that end: over files, for moments that last microseconds; and over an invented world."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

import pytest

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import CollectorUnavailableError, Reading, Roots
from fedmon.node.collectors.job.family import descendants
from fedmon.node.collectors.job.process import NO_COUNTS, REAPED, Birth, Process
from fedmon.node.collectors.job.tree import Ledger
from tests.node.jobs_real import Program, Watch, cpu_s
from tests.node.jobs_trees import PAGE, TICKS, ProcTree

WRITTEN = "job_io_written_bytes_total"


def watched(proc: ProcTree, *pids: int) -> Watch:
    return Watch(Roots(proc=proc.root, sys=proc.root / "sys", cgroup=proc.root / "cgroup")).add(*pids)


def ticks(reading: Reading) -> int:
    return round(cpu_s(reading.values) * TICKS)


def test_a_child_that_is_waited_for_just_after_its_parent_was_read_counts_once(proc: ProcTree) -> None:
    proc.put(10, used=(100, 0), io=1000)
    proc.put(11, parent=10, used=(500, 0), io=70)
    watch = watched(proc, 10)
    before = watch.tick()
    proc.take(11)
    between = watch.tick()
    proc.put(10, used=(100, 0), reaped=(510, 0), reaped_faults=10, io=1080)
    after = watch.tick()
    later = watch.tick()

    assert [ticks(each) for each in (before, between, after, later)] == [600, 600, 610, 610]
    assert [each.values[WRITTEN] for each in (before, between, after, later)] == [1070, 1070, 1080, 1080]


def test_a_child_whose_parent_ignores_it_counts_on_beside_what_the_parent_writes_itself(proc: ProcTree) -> None:
    proc.put(10, used=(100, 0), io=1000)
    proc.put(11, parent=10, used=(500, 0), io=70)
    watch = watched(proc, 10)
    watch.tick()
    proc.take(11)
    proc.put(10, used=(120, 0), io=5000)
    watch.tick()
    proc.put(10, used=(140, 0), io=9000)

    after = watch.tick()

    assert ticks(after) == 640
    assert after.values[WRITTEN] == 9070


def test_a_grandchild_adopted_by_an_ancestor_counts_once(proc: ProcTree) -> None:
    proc.put(10)
    proc.put(11, parent=10)
    proc.put(12, parent=11, used=(40, 0))
    proc.put(13, parent=12, used=(500, 0))
    watch = watched(proc, 10)
    watch.tick()
    for pid in (12, 13):  # the root is a subreaper: it waited for 13, and 11 for 12
        proc.take(pid)
    proc.put(11, parent=10, reaped=(40, 0), reaped_faults=10)
    proc.put(10, reaped=(505, 0), reaped_faults=10)

    assert ticks(watch.tick()) == 545
    assert ticks(watch.tick()) == 545


def test_a_number_that_was_given_again_is_another_process(proc: ProcTree) -> None:
    proc.put(10)
    proc.put(11, parent=10, used=(300, 0))
    watch = watched(proc, 10)
    watch.tick()
    proc.put(11, parent=1, start=999, used=(7000, 0))

    reading = watch.tick()

    assert reading.values["job_processes"] == 1
    assert ticks(reading) == 300
    assert set(watch.watches.pids()["a"]) == {10}


def test_a_number_that_a_child_of_the_job_got_again_counts_both(proc: ProcTree) -> None:
    proc.put(10)
    proc.put(11, parent=10, used=(300, 0))
    watch = watched(proc, 10)
    watch.tick()
    proc.put(11, parent=10, start=999, used=(20, 0))

    assert ticks(watch.tick()) == 320
    assert ticks(watch.tick()) == 320


def test_a_root_that_ended_leaves_its_children_in_the_job(proc: ProcTree) -> None:
    proc.put(10, used=(50, 5))
    proc.put(11, parent=10, used=(30, 0))
    watch = watched(proc, 10)
    watch.tick()
    proc.take(10)
    proc.put(11, parent=1, used=(40, 0))

    reading = watch.tick()

    assert reading.values["job_processes"] == 1
    assert ticks(reading) == 95
    assert watch.watches.close_ended() == []


def test_a_process_that_got_no_cpu_is_not_read_again_but_now_and_then(proc: ProcTree) -> None:
    proc.put(10, pages=3, io=5, ran=7)
    watch = watched(proc, 10)
    start = time.monotonic()
    for second in range(3):
        watch.tick(mono=start + second)
    proc.put(10, pages=2, io=5, ran=7)  # the kernel swapped a page out

    soon, later = watch.tick(mono=start + 4), watch.tick(mono=start + 11)
    proc.put(10, pages=2, used=(9, 0), io=6, ran=8)
    awake = watch.tick(mono=start + 12)

    assert [each.values["job_memory_rss_bytes"] for each in (soon, later)] == [3 * PAGE, 2 * PAGE]
    assert ticks(awake) == 9
    assert awake.values[WRITTEN] == 6


def test_who_was_orphaned_in_its_sleep_and_adopted_counts_once(proc: ProcTree) -> None:
    proc.put(10, ran=5)
    proc.put(11, parent=10, used=(30, 0), ran=5)
    proc.put(12, parent=11, used=(500, 0), io=0, ran=5)
    watch = watched(proc, 10)
    for _ in range(3):
        watch.tick()
    proc.take(11)
    proc.put(10, reaped=(30, 0), reaped_faults=10, ran=6)
    proc.put(12, parent=10, used=(500, 0), io=0, ran=5)
    first = watch.tick()
    proc.take(12)
    proc.put(10, reaped=(530, 0), reaped_faults=20, ran=7)

    assert [ticks(first), ticks(watch.tick()), ticks(watch.tick())] == [530, 530, 530]


@pytest.mark.parametrize("name", ["a b) S 1", "(", ") R 7 7 (", "new\nline", ""])
def test_a_name_of_any_letters_is_no_obstacle(proc: ProcTree, name: str) -> None:
    proc.put(10, name=name, used=(4, 3), pages=5, vsize=9000)

    reading = watched(proc, 10).tick()

    assert ticks(reading) == 7
    assert (reading.values["job_memory_rss_bytes"], reading.values["job_memory_vms_bytes"]) == (5 * PAGE, 9000)


def test_a_first_thread_that_ended_leaves_a_process_that_lives(proc: ProcTree) -> None:
    proc.put(10, state="Z", threads=3)
    reading = watched(proc, 10).tick()

    assert (reading.values["job_processes"], reading.values["job_zombies"]) == (1, 0)


def test_a_kernel_without_io_accounting_says_so(proc: ProcTree) -> None:
    proc.put(10)
    watch = watched(proc, 10)

    reading = watch.tick()

    assert reading.values[WRITTEN] is None
    assert reading.reasons[WRITTEN] == "unsupported: io of 1 of 1 processes cannot be read"
    report = next(each for each in watch.streams["job-a"] if each.name == "job-processes").probe()
    assert report[WRITTEN] == reading.reasons[WRITTEN]


def test_the_peak_of_one_process_is_the_least_that_the_job_had(proc: ProcTree) -> None:
    proc.put(10, pages=3, hwm_kb=8_000)
    watch = watched(proc, 10)
    watch.tick()

    assert watch.tick().values["job_memory_peak_bytes"] == 8_000 * 1024


@pytest.mark.parametrize(
    ("wish", "is_known"),
    [
        ({"session": 10}, True),
        ({"group": 10, "session": 5}, True),
        ({"group": 10, "session": 5, "parent": 7}, False),  # the rest of the pipeline that a shell began with the job
        ({"group": 5, "session": 5}, False),
        ({"environ": b"A=1\0FEDMON_JOB_ID=a\0"}, True),
        ({"environ": b"FEDMON_JOB_ID=ab\0"}, False),
        ({"environ": b"FEDMON_JOB_ID=a\0", "start": 99}, False),  # `fedmon job` itself, or a shell above it
        ({"parent": 11}, True),
        ({"parent": 11, "flags": 0x0020_0000}, False),
    ],
    ids=["session", "group", "pipeline", "stranger", "variable", "another variable", "older", "child", "kernel thread"],
)
def test_an_orphan_is_known_by_a_sign_of_the_job(proc: ProcTree, wish: dict[str, Any], is_known: bool) -> None:
    proc.put(10, parent=7, environ=b"FEDMON_JOB_ID=a\0")
    proc.put(11, parent=10, group=10, session=10)
    watch = watched(proc, 10)
    watch.tick()
    proc.put(90, **{"parent": 1, **wish})

    watch.tick()

    assert (90 in watch.watches.pids()["a"]) is is_known
    assert watch.watches.records()[0].methods["orphans"] == "signs"


def test_signs_outlast_the_process_that_made_them_while_others_bear_them(proc: ProcTree) -> None:
    proc.put(10)
    proc.put(11, parent=10, group=10, session=10)
    watch = watched(proc, 10)
    watch.tick()
    proc.take(10)
    proc.put(90, parent=1, group=10, session=10)

    watch.tick()

    assert set(watch.watches.pids()["a"]) == {11, 90}


def test_a_variable_makes_nobody_the_jobs_where_no_root_has_it(proc: ProcTree) -> None:
    proc.put(10)
    proc.put(90, parent=1, environ=b"FEDMON_JOB_ID=a\0")
    watch = watched(proc, 10)

    watch.tick()

    assert set(watch.watches.pids()["a"]) == {10}


def test_two_readings_for_one_tick_are_one(proc: ProcTree) -> None:
    proc.put(10, used=(100, 0))
    watch, now = watched(proc, 10), Instant(t=0, mono=time.monotonic())

    seconds = watch.watches.cpu_seconds(now)
    proc.put(10, used=(900, 0))

    assert seconds == {"a": 100 / TICKS}
    assert ticks(watch.tick(mono=now.mono)) == 100


def test_descendants_are_found_by_a_kernel_that_lists_no_children(proc: ProcTree) -> None:
    for pid, parent in ((10, 1), (12, 11), (11, 10), (20, 1)):
        proc.put(pid, parent=parent)

    assert [each.pid for each in descendants(10, proc=proc.root)] == [11, 12]


def test_new_processes_are_found_in_a_proc_of_processes_alone(proc: ProcTree) -> None:
    (proc.root / "self").symlink_to(str(os.getpid()))
    proc.put(10)
    watch = watched(proc, 10)

    proc.put(11, parent=10)
    watch.tick()

    assert set(watch.watches.pids()["a"]) == {10, 11}


def test_processes_that_cannot_be_listed_leave_a_reason_and_the_seconds_of_the_last_reading(proc: ProcTree) -> None:
    proc.put(10, used=(100, 0))
    watch, now = watched(proc, 10), Instant(t=0, mono=time.monotonic())
    watch.tick(mono=now.mono - 10.0)
    proc.root.rename(proc.root.with_name("gone"))

    assert watch.watches.cpu_seconds(now) == {"a": 100 / TICKS}
    with pytest.raises(CollectorUnavailableError, match="not found: "):
        watch.tick(mono=now.mono)


def test_processes_without_open_files_of_ours_are_read_alike() -> None:
    with Program() as program, Watch() as watch:
        watch.watches._maker._descriptors = threading.Semaphore(3)
        watch.add(program.pid)
        program.pids("many 5")
        watch.tick()
        child = program.tell("worker 0.03")
        watch.tick()
        program.tell(f"end {child}")

        assert watch.tick().values["job_processes"] == 6
        assert watch.cpu_s() == pytest.approx(sum(program.used_s()), abs=0.08)


class World:
    """Processes that are born, work, end, and are waited for or not; it knows what they used in truth."""

    def __init__(self, seed: int, *, all_wait: bool) -> None:
        self.dice, self.all_wait = random.Random(seed), all_wait
        self.parents: dict[int, int] = {1: 0}
        self.own: dict[int, int] = {1: 0}
        self.reaped: dict[int, int] = {1: 0}
        self.truth = 0
        self._next = 2

    def step(self) -> None:
        pid = self.dice.choice(list(self.parents))
        what = self.dice.random()
        if what < 0.35 and len(self.parents) < 12:
            self.parents[self._next], self.own[self._next], self.reaped[self._next] = pid, 0, 0
            self._next += 1
        elif what < 0.75:
            work = self.dice.randint(1, 50)
            self.own[pid] += work
            self.truth += work
        elif pid != 1:
            self.end(pid)

    def end(self, pid: int) -> None:
        if self.all_wait:
            for child in [child for child, parent in self.parents.items() if parent == pid]:
                self.end(child)
        parent = self.parents.pop(pid)
        if self.all_wait or (parent in self.parents and self.dice.random() < 0.5):
            self.reaped[parent] += self.own[pid] + self.reaped[pid]
        for child, other in self.parents.items():
            if other == pid:
                self.parents[child] = 0


class Readings:
    """Reads a world once a tick, as a tree of processes does."""

    def __init__(self) -> None:
        self.members: dict[int, Process] = {}
        self.ledger = Ledger()
        self.tick = 0

    def read(self, world: World) -> int:
        self.tick += 1
        for pid in world.parents.keys() - self.members.keys():
            self.members[pid] = Process(b"/nowhere", Birth(pid, 0, 0, 0, pid), threading.Semaphore(0), tick=self.tick)
        gone = {pid: process for pid, process in self.members.items() if pid not in world.parents}
        self.members = {pid: self.members[pid] for pid in sorted(self.members) if pid in world.parents}
        for pid, process in self.members.items():
            process.before, process.moved = (process.counts, process.reaped), self.tick
            process.parent = world.parents[pid]
            kids = world.reaped[pid]
            process.reaped = (kids, 0, kids, 0)
            process.counts = (world.own[pid] + kids, 0, world.own[pid] + kids + 1, 0, *NO_COUNTS[REAPED:])
        self.ledger.settle(gone, self.members, self.tick)
        return self.ledger.total()[0] + sum(process.counts[0] for process in self.members.values())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("all_wait", [True, False])
def test_the_sum_never_falls_or_passes_the_truth_and_equals_it_where_all_wait(seed: int, all_wait: bool) -> None:
    world, readings = World(seed, all_wait=all_wait), Readings()
    before = 0
    for _ in range(60):
        for _ in range(world.dice.randint(0, 12 if all_wait else 6)):
            world.step()
        now = readings.read(world)
        assert before <= now <= world.truth
        assert now == world.truth or not all_wait
        before = now
