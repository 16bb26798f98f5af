"""Jobs with a cgroup of their own: real ones, and trees of files for controllers that this machine has elsewhere."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pytest

from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.node.collectors.base import Roots
from fedmon.node.collectors.job.cgroup import UNIFIED, JobCgroup, find_hierarchies, own
from fedmon.node.collectors.job.cgroup_cpu import CgroupCpu, CgroupMembers
from fedmon.node.collectors.job.members import Excluded
from fedmon.node.measure.jobs import MAX_JOBS, JobWatches
from tests.node.jobs_real import TICK_S, Program, Watch, cgroups, cpu_s, is_empty
from tests.node.jobs_trees import TICKS, ProcTree
from tests.support.machine_tree import write_tree
from tests.support.waiting import wait_until

MEGABYTE = 1_000_000


def test_a_named_cgroup_tells_exactly_what_all_of_its_processes_used() -> None:
    with cgroups(UNIFIED) as folders, Program(cgroups=folders) as program, Watch() as watch:
        watch.add(cgroup=str(folders[0]))
        program.tell("short 100 0.001")
        daemon = int(program.tell("daemon 0.05"))

        reading = watch.tick()

        assert cpu_s(reading.values) >= sum(program.used_s()) + 0.05 - 4 * TICK_S
        assert reading.values['job_method_info{of="cpu",method="cgroup-v2"}'] == 1
        assert reading.values['job_method_info{of="members",method="cgroup-v2"}'] == 1
        assert set(watch.watches.pids()["a"]) == {program.pid, daemon}
        assert reading.values['job_pressure_seconds_total{resource="cpu",kind="some"}'] is not None


@pytest.mark.parametrize(
    ("mounted", "inside", "expected"),
    [
        ({UNIFIED: ""}, "a/job 7", "a/job 7"),
        ({UNIFIED: ""}, "a,b", ""),
        ({UNIFIED: "unified", "perf_event": "perf_event"}, "slurm/job_7", "slurm/job_7"),
        ({UNIFIED: "unified", "perf_event": "net_cls,perf_event"}, "slurm/job_7", "slurm/job_7"),
    ],
)
def test_the_cgroup_of_a_job_is_named_as_perf_sees_it(
    proc: ProcTree, tmp_path: Path, mounted: dict[str, str], inside: str, expected: str
) -> None:
    folders = {name: tmp_path / "cgroup" / folder / inside for name, folder in mounted.items()}
    for folder in folders.values():
        folder.mkdir(parents=True)
    (tmp_path / "cgroup" / mounted[UNIFIED] / "cgroup.controllers").touch()
    roots = Roots(proc=proc.root, sys=tmp_path, cgroup=tmp_path / "cgroup")
    watches = JobWatches(roots, lambda *_: None, lambda _: None)
    watches.add("a", cgroup=JobCgroup(path=f"/{inside}", folders=folders))
    watches.add("unified", cgroup=JobCgroup(path=f"/{inside}", folders={UNIFIED: folders[UNIFIED]}))

    assert watches.perf_cgroup("a") == expected
    assert watches.perf_cgroup("unified") == ("" if "perf_event" in mounted else expected)


@pytest.mark.parametrize("hierarchy", [UNIFIED, "cpuacct"])
def test_who_measures_from_inside_the_jobs_cgroup_is_no_part_of_what_it_used(hierarchy: str) -> None:
    with (
        cgroups(hierarchy) as folders,
        Program(cgroups=folders) as program,
        Program(cgroups=folders) as tool,
        Watch() as watch,
    ):
        program.tell("burn 0.5")  # more than the tool used before it came into the cgroup, which is taken off, too
        watch.watches.add("a", cgroup=str(folders[0]), exclude=(tool.pid,))
        before = watch.cpu_s()
        program.tell("burn 0.2")
        tool.tell("burn 0.3")
        tool.tell("short 3 0.02")

        used = [watch.cpu_s() - before]
        tool.end()
        used.append(watch.cpu_s() - before)

        assert used == pytest.approx([0.2, 0.2], abs=0.06)
        assert set(watch.watches.pids()["a"]) == {program.pid}


def test_the_controllers_of_version_1_are_read_where_those_are_mounted() -> None:
    names = ("cpuacct", "memory", "pids", "blkio")
    with cgroups(*names) as folders, Program(cgroups=folders) as program, Watch() as watch:
        watch.add(cgroup=f"/{folders[0].name}")
        program.tell(f"allocate {60 * MEGABYTE}")
        program.tell("burn 0.1")
        program.tell("many 3")

        reading = watch.tick()
        program.tell("burn 0.05")
        later = watch.tick()

        assert watch.value("job_memory_peak_bytes", reading) >= 60 * MEGABYTE
        assert watch.value("job_memory_charged_bytes", reading) >= 60 * MEGABYTE
        assert watch.value("job_memory_anon_bytes", reading) >= 60 * MEGABYTE
        assert cpu_s(later.values) - cpu_s(reading.values) == pytest.approx(0.05, abs=0.03)
        assert reading.values["job_memory_oom_kills_total"] == 0
        assert reading.values["job_memory_swap_bytes"] == 0
        assert {key for key in reading.values if key.startswith("job_method_info")} == {
            f'job_method_info{{of="{of}",method="cgroup-v1"}}' for of in ("cpu", "members", "orphans", "peak", "swap")
        }


@pytest.mark.parametrize(
    ("names", "method"), [([UNIFIED], "cgroup-v2"), (["cpuacct", "memory", "pids", "blkio"], "cgroup-v1")]
)
def test_a_jobs_own_cgroup_is_found_and_as_many_as_a_node_watches_leave_it_files_to_open(
    names: list[str], method: str
) -> None:
    with cgroups(*names) as folders, Program(cgroups=folders) as program, Watch() as watch, Watch() as later:
        before = len(os.listdir("/proc/self/fd"))
        watch.add(program.pid)
        watch.tick()

        opened = len(os.listdir("/proc/self/fd")) - before
        program.tell("many 2")
        later.add(program.pid)

        assert opened * MAX_JOBS < 512  # half of what a process may usually open
        record = later.watches.records()[0]
        assert (record.cgroup, record.methods["cpu"], record.processes) == (f"/{folders[0].name}", method, 3)


def test_a_cgroup_that_holds_others_too_is_not_the_jobs() -> None:
    with (
        cgroups(UNIFIED) as folders,
        Program(cgroups=folders) as program,
        Program(cgroups=folders),
        Watch() as watch,
    ):
        watch.add(program.pid)

        record = watch.watches.records()[0]

        assert (record.cgroup, record.methods["cpu"]) == (None, "tree")


def test_cgroups_below_the_jobs_are_of_the_job() -> None:
    with cgroups(UNIFIED) as folders:
        inner = folders[0] / "step"
        inner.mkdir()
        with Program(cgroups=[inner]) as program, Watch() as watch:
            watch.add(cgroup=str(folders[0]))
            assert watch.tick().values["job_processes"] == 1
            assert set(watch.watches.pids()["a"]) == {program.pid}
        wait_until(partial(is_empty, inner))
        inner.rmdir()


def test_a_job_whose_cgroup_went_with_it_keeps_its_totals() -> None:
    with cgroups(UNIFIED) as folders, Watch() as watch:
        with Program(cgroups=folders) as program:
            watch.add(cgroup=str(folders[0]))
            program.tell("burn 0.05")
            before = cpu_s(watch.tick().values)
        wait_until(partial(is_empty, folders[0]))
        folders[0].rmdir()

        last = watch.tick()

        assert cpu_s(last.values) >= before >= 0.05 - TICK_S
        assert last.values["job_processes"] == 0
        assert [record.reason for record in watch.watches.close_ended()] == ["all of its processes have ended"]


# --- trees of files --------------------------------------------------------------------------------------------------

V2 = {
    "cgroup.procs": "10\n",
    "cpu.stat": "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\nnr_periods 9\nnr_throttled 4\n"
    "throttled_usec 250000\n",
    "memory.current": "5000\n",
    "memory.peak": "9000\n",
    "memory.max": "max\n",
    "memory.swap.current": "300\n",
    "memory.stat": "anon 1000\nfile 2000\nkernel 5\n",
    "memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n",
    "io.stat": "8:0 rbytes=100 wbytes=200 rios=3 wios=4 dbytes=0 dios=0\n253:1 rbytes=5 wbytes=6 rios=7 wios=8\n9:9 \n",
    "pids.current": "12\n",
    "pids.max": "100\n",
    "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n",
}


@pytest.fixture
def machine(proc: ProcTree, tmp_path: Path) -> Roots:
    """A machine of version 2 with one process, whose cgroup is /slurm/job_7."""
    proc.put(10, used=(1, 1))
    (proc.root / "10" / "cgroup").write_text("0::/slurm/job_7\n")
    write_tree(tmp_path / "cgroup", {"cgroup.controllers": "cpu io memory pids\n", "cgroup.procs": ""})
    write_tree(tmp_path / "cgroup/slurm", {"cgroup.procs": ""})
    write_tree(tmp_path / "cgroup/slurm/job_7", V2)
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/8:0").symlink_to("../../devices/pci/block/sda")
    return Roots(proc=proc.root, sys=tmp_path / "sys", cgroup=tmp_path / "cgroup")


def test_every_file_of_version_2_is_understood(machine: Roots) -> None:
    watch = Watch(machine).add(cgroup="/slurm/job_7")

    values = watch.tick().values

    expected = {
        "job_cpu_user_seconds_total": 2.0,
        "job_cpu_system_seconds_total": 1.0,
        "job_cpu_throttled_seconds_total": 0.25,
        "job_cpu_throttled_periods_total": 4,
        "job_memory_charged_bytes": 5000,
        "job_memory_peak_bytes": 9000,
        "job_memory_swap_bytes": 300,
        "job_memory_anon_bytes": 1000,
        "job_memory_cache_bytes": 2000,
        "job_memory_limit_hits_total": 7,
        "job_memory_oom_kills_total": 1,
        'job_disk_read_bytes_total{device="sda"}': 100,
        'job_disk_written_bytes_total{device="sda"}': 200,
        'job_disk_reads_total{device="sda"}': 3,
        'job_disk_writes_total{device="253:1"}': 8,
        "job_tasks": 12,
        "job_tasks_limit": 100,
        'job_pressure_seconds_total{resource="memory",kind="full"}': 0.5,
        'job_method_info{of="peak",method="cgroup-v2"}': 1,
    }
    assert {key: values.get(key) for key in expected} == expected
    assert "job_memory_limit_bytes" not in values
    write_tree(machine.cgroup / "slurm/job_7", {"memory.max": "4096\n"})
    assert watch.tick().values["job_memory_limit_bytes"] == 4096


def test_user_time_alone_that_grows_is_never_taken_for_time_that_went_back(machine: Roots) -> None:
    watch = Watch(machine).add(10)
    told = random.Random(7)
    user, system = 3_962_480, 1_943_651

    for _ in range(500):
        user += told.randrange(1, 1_000_000)
        write_tree(machine.cgroup / "slurm/job_7", {"cpu.stat": f"user_usec {user}\nsystem_usec {system}\n"})
        reading = watch.tick()

        assert reading.values["job_cpu_user_seconds_total"] == pytest.approx(user / 1e6, abs=1e-9), reading.reasons
        assert reading.values["job_cpu_system_seconds_total"] == pytest.approx(system / 1e6, abs=1e-9)


def test_what_ranks_used_stays_the_jobs_when_their_launcher_has_waited_for_them(proc: ProcTree, machine: Roots) -> None:
    folder = machine.cgroup / "slurm/job_7"
    write_tree(folder, {"cgroup.procs": "10\n20\n40\n"})
    proc.put(20, name="mpirun", start=100, used=(TICKS, 0))
    job = JobCgroup(path="/slurm/job_7", folders={UNIFIED: folder})
    proc.put(30, name="outside", start=100, used=(TICKS, 0))
    proc.put(40, name="a reused number", start=500, used=(TICKS, 0))
    cpu = CgroupCpu(job, excluded=Excluded(overhead={20: 100, 30: 100, 40: 100}), proc=machine.proc)
    before = cpu.read()

    proc.put(20, name="mpirun", start=100, used=(TICKS, 0), reaped=(3 * TICKS, TICKS))
    write_tree(folder, {"cpu.stat": "user_usec 5000000\nsystem_usec 2000000\n"})

    assert (before, cpu.read()) == ((1.0, 1.0), (4.0, 2.0))


def test_a_process_of_who_measures_is_forgotten_once_it_has_ended(proc: ProcTree, machine: Roots) -> None:
    folder = machine.cgroup / "slurm/job_7"
    write_tree(folder, {"cgroup.procs": "10\n20\n30\n"})
    proc.put(20, name="fedmon", used=(TICKS, 0))
    proc.put(30, name="perf", parent=20, start=200, used=(TICKS // 2, 0))
    excluded = Excluded([20])
    cpu = CgroupCpu(JobCgroup(path="/slurm/job_7", folders={UNIFIED: folder}), excluded=excluded, proc=machine.proc)
    members = CgroupMembers(folder, proc=machine.proc, excluded=excluded)
    found = [birth.pid for birth in members.joined({}, 0.0)]
    with_perf = cpu.read(), excluded.processes

    proc.take(30)
    proc.put(20, name="fedmon", used=(TICKS, 0), reaped=(TICKS // 2, 0))
    write_tree(folder, {"cpu.stat": "user_usec 4000000\nsystem_usec 1000000\n", "cgroup.procs": "10\n20\n"})

    assert found == [10]
    assert with_perf == ((0.5, 1.0), {20: 100, 30: 200})
    assert (cpu.read(), excluded.processes) == ((2.5, 1.0), {20: 100})


def test_a_daemon_that_has_become_a_program_of_the_job_counts(proc: ProcTree, machine: Roots) -> None:
    daemons, watch = {20}, Watch(machine)
    proc.put(20)
    write_tree(machine.cgroup / "slurm/job_7", {"cgroup.procs": "10\n20\n"})
    watch.watches.add("a", cgroup="/slurm/job_7", is_overhead_now=lambda pid: pid in daemons)

    before = watch.tick().values["job_processes"]
    daemons.clear()

    assert (before, watch.tick().values["job_processes"]) == (1, 2)


def test_a_job_that_lives_on_without_its_cgroup_is_not_measured_by_old_numbers(machine: Roots) -> None:
    watch = Watch(machine).add(cgroup="/slurm/job_7")
    before = watch.tick().values["job_tasks"]
    for name in ("cpu.stat", "pids.current"):
        (machine.cgroup / "slurm/job_7" / name).unlink()

    reading = watch.tick()

    assert (before, reading.values["job_processes"]) == (12, 1)
    for metric in ("job_cpu_user_seconds_total", "job_tasks"):
        assert (reading.values[metric], reading.reasons[metric][:11]) == (None, "not found: ")


def test_what_a_cgroup_does_not_count_is_named(machine: Roots) -> None:
    folder = machine.cgroup / "slurm/job_7"
    for name in ("memory.peak", "memory.swap.current", "io.stat"):
        (folder / name).unlink()
    watch = Watch(machine).add(10)

    report = {key: why for each in watch.streams["job-a"] for key, why in each.probe().items()}

    assert report["job_disk_reads_total"] == f"not found: {folder / 'io.stat'}"
    assert report["job_memory_charged_bytes"] is None
    assert report["job_memory_peak_bytes"] is None
    assert watch.watches.records()[0].methods == {
        "cpu": "cgroup-v2",
        "members": "cgroup-v2",
        "orphans": "cgroup-v2",
        "peak": "tree",
        "swap": "tree",
    }


def test_version_1_is_understood_with_controllers_mounted_together_beside_an_old_version_2(
    proc: ProcTree, tmp_path: Path
) -> None:
    proc.put(10)
    write_tree(tmp_path / "cgroup/unified", {"cgroup.controllers": ""})
    for controller, files in {
        "unified": {},
        "cpu,cpuacct": {
            "cpuacct.stat": "user 250\nsystem 50\n",
            "cpuacct.usage": "3600000000\n",
            "cpu.stat": "nr_throttled 3\nthrottled_time 2000000000\n",
        },
        "memory": {
            "memory.usage_in_bytes": "70\n",
            "memory.max_usage_in_bytes": "90\n",
            "memory.limit_in_bytes": "9223372036854771712\n",
            "memory.failcnt": "2\n",
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            "memory.stat": "cache 1\nrss 2\ntotal_cache 11\ntotal_rss 22\ntotal_swap 33\n",
        },
        "blkio": {
            "blkio.throttle.io_service_bytes_recursive": "8:0 Read 10\n8:0 Write 20\n8:0 Sync 30\nTotal 30\n",
            "blkio.throttle.io_serviced_recursive": "8:0 Read 1\n8:0 Write 2\nTotal 3\n",
        },
    }.items():  # fmt: skip
        write_tree(tmp_path / "cgroup" / controller, {"cgroup.procs": ""})
        write_tree(tmp_path / "cgroup" / controller / "oar/alice_3", {"cgroup.procs": "10\n", **files})
    watch = Watch(Roots(proc=proc.root, sys=tmp_path, cgroup=tmp_path / "cgroup")).add(cgroup="/oar/alice_3")

    values = watch.tick().values

    expected = {  # the sum is exact, its parts are in the proportion that ticks saw
        "job_cpu_user_seconds_total": pytest.approx(3.0),
        "job_cpu_system_seconds_total": pytest.approx(0.6),
        "job_cpu_throttled_seconds_total": 2.0,
        "job_memory_charged_bytes": 70,
        "job_memory_peak_bytes": 90,
        "job_memory_anon_bytes": 22,
        "job_memory_cache_bytes": 11,
        "job_memory_swap_bytes": 33,
        "job_memory_limit_hits_total": 2,
        "job_memory_oom_kills_total": 1,
        'job_disk_read_bytes_total{device="8:0"}': 10,
        'job_disk_writes_total{device="8:0"}': 2,
    }
    assert {key: values.get(key) for key in expected} == expected
    assert "job_memory_limit_bytes" not in values


def test_hierarchies_of_both_versions_are_found(tmp_path: Path) -> None:
    write_tree(tmp_path / "v2", {"cgroup.controllers": ""})
    write_tree(tmp_path / "hybrid/unified", {"cgroup.controllers": "", "cgroup.procs": ""})
    write_tree(tmp_path / "hybrid/memory", {"cgroup.procs": ""})
    write_tree(tmp_path / "v1/memory", {"cgroup.procs": ""})
    (tmp_path / "none").mkdir()

    found = {name: {*find_hierarchies(tmp_path / name)} for name in ("v2", "hybrid", "v1", "none", "absent")}

    assert found == {
        "v2": {UNIFIED}, "hybrid": {UNIFIED, "memory"}, "v1": {"memory"}, "none": set(), "absent": set(),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "error", "said"),
    [
        ("/", InvalidInputError, "not a whole hierarchy"),
        ("", InvalidInputError, "not a whole hierarchy"),
        ("/slurm/../slurm/job_7", InvalidInputError, "'..'"),
        ("/slurm", InvalidInputError, "holds no process"),
        ("/slurm/job_8", NotFoundError, "cgroup 'slurm/job_8' not found"),
    ],
)
def test_a_cgroup_that_cannot_be_a_jobs_is_refused(
    machine: Roots, path: str, error: type[Exception], said: str
) -> None:
    (machine.cgroup / "slurm/job_7/cgroup.procs").write_text("" if path == "/slurm" else "10\n")

    with pytest.raises(error, match=said):
        Watch(machine).add(cgroup=path)


def test_a_process_outside_of_the_named_cgroup_is_refused(proc: ProcTree, machine: Roots) -> None:
    proc.put(11)

    with pytest.raises(InvalidInputError, match="process 11 is not in cgroup"):
        Watch(machine).add(11, cgroup="/slurm/job_7")


def test_a_path_that_leaves_our_view_of_the_hierarchy_is_nobodys_own(machine: Roots) -> None:
    (machine.proc / "10" / "cgroup").write_text("0::/../../outside\n")

    assert own(find_hierarchies(machine.cgroup), machine.proc, [10], [10]) is None
