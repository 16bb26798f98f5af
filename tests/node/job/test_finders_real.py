"""Jobs of real processes: what the finder makes of trees, orphans, zombies and numbers that are given again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.node.job.commands import Runner, runner
from fedmon.node.job.finders import Confidence, Found, JobNotFoundError, JobSearch, look_up
from fedmon.node.job.identity import identify, named
from fedmon.node.job.processes import is_overhead_now
from tests.node.job.machine import Commands, Machine, program, said
from tests.node.jobs_real import Program, Watch
from tests.support.requirements import require
from tests.support.waiting import wait_until

JOB_ID = f"77{os.getpid()}"
MARKER = {"SLURM_JOB_ID": JOB_ID}
NOBODY = {"PATH": "/nowhere"}


def look(run: Runner | None = None, *, exclude: tuple[int, ...] = ()) -> Found:
    identity = named(JOB_ID, "slurm", hostname=socket.gethostname())
    return JobSearch(identity, environ={}, run=run or runner(NOBODY), exclude=exclude).find(2.0, retries=0)


def start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])


@pytest.mark.parametrize("tree", ["chain 3", "orphan 0"])
def test_each_process_is_found_once_though_its_parent_may_be_gone(tree: str) -> None:
    with Program(environ=MARKER) as program:
        pids = program.pids(tree)
        got = look()

        assert len(got.pids) == len({*got.pids})
        assert {program.pid, *pids} <= {*got.pids}
        assert {pid: start_of(pid) for pid in got.pids} == got.starts


def test_a_zombie_is_not_taken_for_a_running_process() -> None:
    with Program(environ=MARKER) as program:
        program.end_unwaited()
        with pytest.raises(JobNotFoundError):
            look()
        with pytest.raises(NotFoundError, match="has ended already"):
            JobSearch(identify({}, hostname="n", pid=1), environ={}, run=Commands(), pids=[program.pid]).find()


def test_the_tool_and_all_that_it_starts_is_no_part_of_the_job() -> None:
    with Program(environ=MARKER) as job, Program(environ=MARKER) as tool:
        children = tool.pids("chain 1")
        got = look(exclude=(tool.pid,))

        assert got.pids == (job.pid,)
        assert not {*children} & {*got.starts}


def test_a_scontrol_that_hangs_costs_its_share_of_the_time_and_the_job_is_found(tmp_path: Path) -> None:
    environ = program(tmp_path, "scontrol", "sleep 600")
    with Program(environ=MARKER) as job:
        identity = named(JOB_ID, "slurm", hostname="n")
        got = JobSearch(identity, environ=environ, run=runner(environ)).find(0.8, retries=5)

    assert (got.pids, got.method) == ((job.pid,), "environment")
    assert dict(got.tried)["scheduler"] == "scontrol did not end within 0.3 s"


def test_a_number_that_was_given_again_is_never_the_jobs(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.put(60, environ=MARKER, start=100)
    machine.put(61, environ=MARKER, start=100)

    def meanwhile(argv: object, timeout_s: float) -> object:
        machine.take(60)
        machine.put(60, environ={}, start=500)
        return said("scontrol listpids 7", "", rc=1)

    identity = named(JOB_ID, "slurm", hostname="n")
    got = JobSearch(identity, environ={}, run=meanwhile, roots=machine.roots).find(retries=0)  # type: ignore[arg-type]  # a lie

    assert got.starts == {61: 100}


def test_named_processes_are_taken_as_they_are() -> None:
    with Program() as program:
        got = JobSearch(
            identify(MARKER, hostname="n", pid=1), environ=MARKER, run=Commands(), pids=[program.pid, program.pid]
        ).find()

        assert (got.pids, got.method, got.confidence) == ((program.pid,), "pids", Confidence.CERTAIN)
        assert got.starts == {program.pid: start_of(program.pid)}


@pytest.mark.parametrize(
    ("pid", "error", "why"),
    [
        (61, NotFoundError, "process 61 not found"),
        (63, InvalidInputError, "is this tool itself"),
    ],
)
def test_a_named_process_that_cannot_be_a_job_is_refused(
    tmp_path: Path, pid: int, error: type[Exception], why: str
) -> None:
    machine = Machine(tmp_path)
    machine.put(60)
    machine.put(63, "fedmon")
    identity = identify({}, hostname="n", pid=63)
    with pytest.raises(error, match=why):
        JobSearch(identity, environ={}, run=Commands(), roots=machine.roots, pids=[60, pid], exclude=(63,)).find()


def test_without_a_scheduler_the_script_that_started_the_tool_is_the_job_and_nobody_waits(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.put(50, "bash")
    machine.put(51, "run.sh", parent=50)
    machine.put(52, "work", parent=51)
    machine.put(60, "mpirun", parent=51)
    machine.put(61, "fedmon", parent=60)
    got = JobSearch(
        identify({}, hostname="n", pid=61), environ={}, run=Commands(), roots=machine.roots, exclude=(61,),
    ).find(60.0)  # fmt: skip

    assert (got.pids, got.method, got.confidence) == ((51, 52), "ancestors", Confidence.LOW)


def test_a_tool_that_nobody_of_a_job_started_finds_none(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.put(50, "sshd")
    machine.put(61, "fedmon", parent=50)
    with pytest.raises(JobNotFoundError, match="no program of the job started this tool"):
        JobSearch(
            identify({}, hostname="n", pid=61), environ={}, run=Commands(), roots=machine.roots, exclude=(61,)
        ).find()


def test_an_id_is_looked_for_with_every_scheduler_that_writes_such_ids(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.put(60, environ={"OAR_JOB_ID": "7"})
    machine.put(61, environ={"PBS_JOBID": "7.server"})
    machine.put(62, environ={"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "9"})

    def looked(job_id: str) -> tuple[str, str, tuple[int, ...]]:
        identity, got = look_up(
            job_id, scheduler=None, environ=NOBODY, hostname="n", run=Commands(), roots=machine.roots, timeout_s=0.3
        )
        return identity.scheduler, identity.key, got.pids

    assert looked("7.server") == ("pbs", "7-server", (61,))
    assert looked("7_3") == ("slurm", "7_3", (62,))
    machine.take(61)
    assert looked("7") == ("oar", "7", (60,))
    with pytest.raises(JobNotFoundError, match="oar environment: no process"):
        looked("8")
    with pytest.raises(InvalidInputError, match="is not the id of a batch job"):
        looked("../8")


def test_a_job_is_watched_on_though_some_of_its_processes_ended_since_it_was_found() -> None:
    with Program(environ=MARKER) as job, Watch() as watch:
        with Program(environ=MARKER) as short:
            got = look()
        watch.watches.add("a", pids=got.pids, starts=got.starts, marker=got.marker)

        assert {short.pid, job.pid} == {*got.pids}
        assert watch.value("job_processes") == 1


def test_a_cgroup_of_a_real_slurm_layout_is_watched_without_its_daemon(tmp_path: Path) -> None:
    root = Path("/sys/fs/cgroup/freezer")
    require(os.access(root, os.W_OK), "cgroup version 1 is not mounted, or not for us")
    (tmp_path / "slurmstepd").symlink_to(shutil.which("sleep") or "")
    top = root / "slurm_fedmontest"
    step = top / f"uid_{os.getuid()}" / f"job_{JOB_ID}" / "step_0"
    step.mkdir(parents=True)
    daemon = subprocess.Popen([tmp_path / "slurmstepd", "600"])
    try:
        (step / "cgroup.procs").write_text(str(daemon.pid))
        with Program(cgroups=[step]) as job, Watch() as watch:
            got = look()
            watch.watches.add("a", cgroup=got.cgroup, overhead=got.overhead)
            during = watch.value("job_processes")
            job.end()
            watch.tick()
            ended = watch.watches.close_ended()

        assert (got.pids, {*got.overhead}, got.method) == ((job.pid,), {daemon.pid}, "cgroup")
        assert (during, len(ended)) == (1, 1)
    finally:
        daemon.kill()
        daemon.wait()
        wait_until(lambda: not (step / "cgroup.procs").read_text(), what="the end of the processes")
        for folder in (step, step.parent, step.parent.parent, top):
            folder.rmdir()


def names_in_session(session: int) -> list[str]:
    listed = subprocess.run(["ps", "-o", "comm=", "-s", str(session)], capture_output=True, text=True)
    return sorted(listed.stdout.split())


@pytest.mark.parametrize("kept", ["tree", "cgroup"])
def test_a_launcher_that_comes_after_the_find_is_not_counted_but_what_it_starts_is(tmp_path: Path, kept: str) -> None:
    folder = Path("/sys/fs/cgroup/freezer") / f"fedmontest-{os.getpid()}"
    if kept == "cgroup":
        require(os.access(folder.parent, os.W_OK), "cgroup version 1 is not mounted, or not for us")
        folder.mkdir()
    (tmp_path / "srun").symlink_to(shutil.which("sh") or "")
    script = 'read go; "$0" -c "sleep 600 & wait"; :'
    job = subprocess.Popen(["sh", "-c", script, str(tmp_path / "srun")], stdin=subprocess.PIPE, start_new_session=True)
    try:
        with Watch() as watch:
            if kept == "cgroup":
                (folder / "cgroup.procs").write_text(str(job.pid))
                watch.watches.add("a", cgroup=folder.name, is_overhead_now=is_overhead_now)
            else:
                watch.watches.add("a", pids=[job.pid], is_overhead_now=is_overhead_now)
            assert watch.value("job_processes") == 1
            assert job.stdin is not None
            os.write(job.stdin.fileno(), b"go\n")
            wait_until(lambda: names_in_session(job.pid) == ["sh", "sleep", "srun"], what="the job's processes")

            assert watch.value("job_processes") == 2
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
        if kept == "cgroup":
            wait_until(lambda: not (folder / "cgroup.procs").read_text(), what="the end of the processes")
            folder.rmdir()
