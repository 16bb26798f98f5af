"""What a job uses, over real processes; the kernel's own words for a program's times are the oracle.

Among them what perfmon got wrong: a nested process counted several times, children taken for roots, an end or a
refusal that ended everything, sums that ran on from one metric into the next, counters that went down with an exit,
zombies that lived, numbers given again (in test_job_accounts.py), user time alone, shared pages counted for each.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.node.jobs_real import TICK_S, Program, Watch, cpu_s
from tests.support.requirements import require
from tests.support.rights import NOBODY, as_nobody
from tests.support.waiting import wait_until

MEGABYTE = 1_000_000


@pytest.fixture
def watch(program: Program) -> Iterator[Watch]:
    with Watch() as watch:
        yield watch.add(program.pid)


def test_each_process_of_a_chain_counts_once_and_only_the_given_one_is_a_root(program: Program, watch: Watch) -> None:
    chain = [program.pid, *program.pids("chain 3")]

    reading = watch.tick()

    processes = [psutil.Process(pid) for pid in chain]
    assert reading.values["job_processes"] == reading.values["job_threads"] == len(set(chain)) == 4
    assert reading.values["job_memory_vms_bytes"] == sum(each.memory_info().vms for each in processes)
    # The youngest may still have been on its way into its wait.
    for name, field in (("job_memory_rss_bytes", "rss"), ("job_memory_shared_bytes", "shared")):
        oracle = sum(getattr(each.memory_info(), field) for each in processes)
        assert watch.value(name, reading) == pytest.approx(oracle, rel=0.1), name
    assert reading.values["job_file_descriptors"] == sum(each.num_fds() for each in processes)
    assert set(watch.watches.pids()["a"]) == set(chain)
    assert [record.pids for record in watch.watches.records()] == [[program.pid]]


def test_a_known_burn_counts_as_the_kernel_counts_it_user_and_system(program: Program, watch: Watch) -> None:
    began = time.monotonic()
    first = watch.tick()
    program.tell("burn 0.15")
    program.tell(f"allocate {60 * MEGABYTE}")
    second = watch.tick()
    wall_s = time.monotonic() - began
    user_s, system_s = program.used_s()

    assert watch.value("job_cpu_user_seconds_total", second) == pytest.approx(user_s, abs=2 * TICK_S)
    assert watch.value("job_cpu_system_seconds_total", second) == pytest.approx(system_s, abs=2 * TICK_S)
    assert first.values["job_cpus_busy"] is None
    assert first.reasons["job_cpus_busy"] == "first sample"
    burnt_s = cpu_s(second.values) - cpu_s(first.values)
    assert 0.9 * burnt_s / wall_s < watch.value("job_cpus_busy", second) <= 1.1
    assert watch.value("job_cpu_busy_ratio", second) == pytest.approx(
        watch.value("job_cpus_busy", second) / (os.cpu_count() or 1), abs=1e-3
    )


def test_children_may_vanish_in_the_middle_of_a_sample() -> None:
    with Program() as program, Watch() as watch, ThreadPoolExecutor(1) as beside:
        watch.add(program.pid)
        storm = beside.submit(program.tell, "short 100 0.002")
        used = [watch.cpu_s()]
        while not storm.done() or len(used) <= 20:
            if storm.done():
                storm = beside.submit(program.tell, "short 100 0.002")
            used.append(watch.cpu_s())
        used += [watch.cpu_s(), watch.cpu_s()]
        assert watch.tick().values["job_processes"] == 1
        oracle = sum(program.used_s())

    assert used == sorted(used)
    assert used[-1] == pytest.approx(oracle, abs=4 * TICK_S)


def test_a_child_that_nobody_waits_for_stays_counted(program: Program, watch: Watch) -> None:
    program.tell("wait_for_nobody")
    child = program.tell("worker 0.5")
    alive = watch.tick()
    program.tell(f"end {child}")
    wait_until(lambda: watch.tick().values["job_processes"] == 1)
    ended = watch.tick()

    for name in ("job_cpu_user_seconds_total", "job_io_reads_total", 'job_page_faults_total{kind="minor"}'):
        assert watch.value(name, ended) >= watch.value(name, alive) > 0


def test_counters_never_go_down_while_children_come_and_go(program: Program, watch: Watch) -> None:
    readings = []
    for _ in range(4):
        workers = [program.tell("worker 0.01") for _ in range(3)]
        readings.append(watch.tick())
        for worker in workers:
            program.tell(f"end {worker}")
        readings.append(watch.tick())

    for name in readings[0].values:
        if "_total" in name:
            values = [watch.value(name, reading) for reading in readings]
            assert values == sorted(values), name


def test_orphans_of_before_the_watch_are_found() -> None:
    with Program(session=True) as program, Watch() as watch:
        orphan = int(program.tell("orphan 0"))
        watch.add(program.pid)

        watch.tick()

        assert set(watch.watches.pids()["a"]) == {program.pid, orphan}


def test_many_children_at_once_are_found_without_a_wait_and_threads_are_no_processes(
    program: Program, watch: Watch
) -> None:
    watch.tick()
    pids = program.pids("many 90")
    assert len(pids) == 90

    reading = watch.tick()
    began, used = time.monotonic(), time.process_time()
    again = watch.tick()
    waited_s = time.monotonic() - began - (time.process_time() - used)

    assert set(watch.watches.pids()["a"]) == {program.pid, *pids}
    assert reading.values["job_processes"] == again.values["job_processes"] == 91
    assert "job_cpus_busy" in again.values
    assert waited_s < 15.0  # perfmon waits half a second for each


def test_a_zombie_is_counted_as_one_and_does_not_live(program: Program, watch: Watch) -> None:
    program.tell("zombie")

    reading = watch.tick()

    assert (reading.values["job_processes"], reading.values["job_zombies"]) == (1, 1)
    assert reading.values["job_threads"] == 1


def test_a_root_that_ends_between_two_ticks_ends_the_job_and_takes_nothing_back(program: Program, watch: Watch) -> None:
    program.tell("burn 0.03")
    before = watch.tick()
    program.end()

    reading = watch.tick()

    assert reading.values["job_processes"] == 0
    assert cpu_s(reading.values) >= cpu_s(before.values) >= 0.01


def test_known_bytes_and_calls_count_exactly_and_apart_from_each_other(
    program: Program, watch: Watch, tmp_path: Path
) -> None:
    program.tell("times")
    before = watch.tick()
    size = 3 * MEGABYTE
    answer = program.tell(f"write {size} {tmp_path / 'file'}")
    after = watch.tick()

    def grown(name: str) -> float:
        return watch.value(name, after) - watch.value(name, before)

    answers = len(answer) + 1
    assert grown("job_io_written_bytes_total") == size + answers
    assert grown("job_io_writes_total") == 2
    assert grown("job_io_read_bytes_total") < 10_000
    assert grown("job_storage_written_bytes_total") in (0, pytest.approx(size, abs=65_536))


def test_a_known_allocation_is_seen_and_shared_pages_count_once_in_pss(program: Program, watch: Watch) -> None:
    before = watch.tick(mono=1e6)
    program.tell(f"allocate {40 * MEGABYTE}")
    alone = watch.tick(mono=1e6 + 20)
    program.tell("many 3")
    shared = watch.tick(mono=1e6 + 40)

    for name in ("job_memory_rss_bytes", "job_memory_pss_bytes", "job_memory_uss_bytes", "job_memory_peak_bytes"):
        assert watch.value(name, alone) - watch.value(name, before) == pytest.approx(40 * MEGABYTE, rel=0.05), name
    assert watch.value("job_memory_rss_bytes", shared) > 4 * 40 * MEGABYTE
    assert watch.value("job_memory_pss_bytes", shared) < 1.3 * watch.value("job_memory_pss_bytes", alone)
    assert watch.value("job_memory_uss_bytes", shared) < 40 * MEGABYTE
    assert shared.values["job_memory_swap_bytes"] == 0


def test_pss_and_uss_are_read_when_the_memory_of_a_job_moved_and_never_repeated(program: Program, watch: Watch) -> None:
    watch.tick(mono=1e6)
    program.tell(f"allocate {40 * MEGABYTE}")
    grown, same = watch.tick(mono=1e6 + 9), watch.tick(mono=1e6 + 10)
    program.end()
    last = watch.tick(mono=1e6 + 11)

    for name in ("job_memory_pss_bytes", "job_memory_uss_bytes"):
        assert watch.value(name, grown) > 40 * MEGABYTE
        assert name not in same.values
        assert name not in last.values


def test_processes_for_whose_pages_no_time_is_left_are_counted(
    program: Program, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmon.node.collectors.job.collectors.MAX_READING_S", -1.0)

    reading = watch.tick()

    assert reading.values["job_memory_pss_bytes"] is None
    reason = "failed: no time left after -1 s: smaps_rollup of 1 of 1 processes cannot be read"
    assert reading.reasons["job_memory_pss_bytes"] == reason


def test_open_files_and_context_switches_are_counted(program: Program, watch: Watch) -> None:
    before = watch.tick()
    program.tell("open 7")
    program.tell("short 5 0.001")
    after = watch.tick()

    assert watch.value("job_file_descriptors", after) - watch.value("job_file_descriptors", before) == 7
    voluntary = 'job_context_switches_total{kind="voluntary"}'
    assert watch.value(voluntary, after) > watch.value(voluntary, before)


def test_processes_of_another_user_are_counted_as_far_as_one_may_read_them() -> None:
    require(os.geteuid() == 0, "only root can become another user")
    with Program() as program, subprocess.Popen(["sleep", "60"], user=NOBODY, group=NOBODY) as own, Watch() as watch:
        with as_nobody():
            values, reasons = watch.add(own.pid, program.pid).tick()
        own.kill()

    assert values["job_processes"] == 2
    assert values["job_cpu_user_seconds_total"] is not None
    assert "job_cpu_user_seconds_total" not in reasons
    assert (values["job_io_reads_total"] or 0) > 0
    assert reasons["job_io_reads_total"] == "no permission: io of 1 of 2 processes cannot be read"
    assert reasons["job_memory_pss_bytes"] == "no permission: smaps_rollup of 1 of 2 processes cannot be read"
    assert (values["job_memory_rss_bytes"] or 0) > 0
