"""Jobs of SLURM, on machines as files, with the words of a real SLURM."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fedmon.node.job.finders import Confidence, Found, JobNotFoundError, listed_pids
from tests.node.job.machine import KERNEL_THREAD, TOOL, V1, Commands, Machine, environment, recorded, said
from tests.support.requirements import require

HEADER = "PID      JOBID    STEPID   LOCALID GLOBALID\n"
JOB = {"SLURM_JOB_ID": "1", "SLURM_JOBID": "1"}


def running(machine: Machine, *, cgroups: bool) -> None:
    """The processes of a real SLURM job with a step, an orphan and the tool, as recorded in both ways of following."""
    base = "/slurm_node1/uid_0/job_1"
    script, step = (f"{base}/step_batch", f"{base}/step_0") if cgroups else ("", "")
    inside = {**environment("slurm/cgroup/batch")}
    machine.put(500, "slurmd", command="slurmd -D -N node1")
    machine.put(17798, "slurmstepd", command="slurmstepd: [1.batch]", cgroup=base if cgroups else "")
    machine.put(17806, "slurm_script", parent=17798, command="/bin/sh slurm_script", environ=inside, cgroup=script)
    machine.put(17807, "sleep", parent=17806, command="sleep 300", environ=inside, cgroup=script)
    machine.put(17809, "sleep", parent=1, command="sleep 301", environ=inside, cgroup=script)
    machine.put(17811, "srun", parent=17806, command="srun sleep 302", environ=inside, cgroup=script)
    machine.put(17817, "srun", parent=17811, command="srun sleep 302", environ=inside, cgroup=script)
    machine.put(17826, "slurmstepd", command="slurmstepd: [1.0]", cgroup=base if cgroups else "")
    machine.put(17837, "sleep", parent=17826, environ=environment("slurm/cgroup/step"), cgroup=step)
    machine.put(TOOL, "fedmon", parent=17806, environ=inside, cgroup=script)
    machine.put(901, "perf", parent=TOOL, environ=inside, cgroup=script)
    machine.put(800, "python3", environ={"SLURM_JOB_ID": "11"})


def found(
    machine: Machine, commands: Commands | None = None, *, environ: Mapping[str, str] | None = None, job_id: str = ""
) -> Found:
    environ = environ if environ is not None else environment("slurm/cgroup/batch")
    return machine.search(environ, commands, job_id=job_id).find(is_last=True)


@pytest.mark.parametrize("job_id", ["", "1"])
def test_the_cgroup_of_a_job_holds_all_of_it_and_neither_daemons_launchers_nor_the_tool(
    machine: Machine, job_id: str
) -> None:
    running(machine, cgroups=True)
    got = found(machine, job_id=job_id)

    assert got.pids == (17806, 17807, 17809, 17837)
    assert (got.method, got.confidence, got.cgroup) == ("cgroup", Confidence.CERTAIN, "/slurm_node1/uid_0/job_1")
    assert got.marker == "SLURM_JOB_ID=1"
    assert {*got.overhead} == {17798, 17811, 17817, 17826}
    assert dict.fromkeys(got.pids, 100) == got.starts


def test_without_cgroups_scontrol_names_the_processes_and_each_bears_a_sign(machine: Machine) -> None:
    running(machine, cgroups=False)
    real = recorded("slurm/cgroup/listpids-running")
    got = found(machine, Commands(real._replace(argv=[*real.argv, "node1"])))

    assert got.pids == (17806, 17807, 17809, 17837)
    assert (got.method, got.confidence, got.cgroup) == ("scheduler", Confidence.HIGH, None)
    assert [method for method, _ in got.tried] == ["cgroup"]


def test_what_scontrol_loses_the_environment_of_an_orphan_tells(machine: Machine) -> None:
    running(machine, cgroups=False)
    got = found(machine)

    assert got.pids == (17806, 17807, 17809, 17837)
    assert (got.method, got.confidence) == ("environment", Confidence.MEDIUM)
    assert "is not installed" in dict(got.tried)["scheduler"]


@pytest.mark.parametrize(("environ", "keeper"), [(JOB, "slurmstepd"), ({}, "bash")], ids=["slurm", "no scheduler"])
def test_where_nothing_tells_the_script_that_started_the_tool_is_the_job_once_nothing_else_has_come(
    machine: Machine, environ: Mapping[str, str], keeper: str
) -> None:
    machine.put(50, keeper)
    machine.put(51, "run.sh", parent=50)
    machine.put(52, "python3", parent=51)
    machine.put(53, "mpirun", parent=51)
    machine.put(TOOL, "fedmon", parent=53)
    search = machine.search(environ)
    with pytest.raises(JobNotFoundError):
        search.find()
    assert search.goes_on
    got = search.find(is_last=True)

    assert (got.pids, got.method, got.confidence) == ((51, 52), "ancestors", Confidence.LOW)
    assert [method for method, _ in got.tried] == ["cgroup", "scheduler", "environment"]
    assert (got.overhead, search.goes_on) == ({53: 100}, environ == JOB)


@pytest.mark.parametrize(
    ("controllers", "path"),
    [
        (V1, "/slurm/uid_1000/job_1/step_0/task_0"),
        (V1, "/slurm_node1/uid_1000/job_1/step_batch"),
        (("freezer",), "/slurm/uid_0/job_1/step_0"),
        ((), "/system.slice/slurmstepd.scope/job_1/step_0/user/task_0"),
        ((), "/system.slice/node1_slurmstepd.scope/job_1/step_0/user/task_0"),
    ],
)
def test_every_layout_of_slurms_cgroups_is_known(tmp_path: Path, controllers: Sequence[str], path: str) -> None:
    machine = Machine(tmp_path, controllers=controllers)
    machine.put(60, cgroup=path)
    machine.put(61, cgroup=path.replace("job_1", "job_11"))
    got = found(machine, job_id="1")

    assert (got.pids, got.method, got.cgroup) == ((60,), "cgroup", path[: path.index("job_1") + 5])


def test_of_two_nodes_on_one_machine_each_finds_its_own_half_by_cgroup_or_by_its_own_daemon(tmp_path: Path) -> None:
    nodes = ("node1", "node2")
    by_cgroup, by_daemon = Machine(tmp_path / "cgroup"), Machine(tmp_path / "linuxproc")
    for pid, node in zip((18838, 18837), nodes, strict=True):
        environ = environment(f"slurm/cgroup/two-nodes-{node}")
        by_cgroup.put(pid, cgroup=f"/slurm_{node}/uid_0/job_5/step_0", environ=environ)
        by_daemon.put(pid, environ=environment(f"slurm/linuxproc/two-nodes-{node}"))
    commands = Commands(*(recorded(f"slurm/cgroup/listpids-two-nodes-{node}") for node in nodes))

    for machine, asked in ((by_cgroup, commands), (by_daemon, commands), (by_daemon, None)):
        halves = [found(machine, asked, environ=environment(f"slurm/cgroup/two-nodes-{node}")) for node in nodes]
        assert [half.pids for half in halves] == [(18838,), (18837,)]
    whole = found(by_cgroup, job_id="5")
    assert ({*whole.pids}, whole.cgroup) == ({18837, 18838}, None)


def test_a_task_of_an_array_is_asked_for_by_its_raw_id(machine: Machine) -> None:
    machine.put(18055, environ=environment("slurm/cgroup/array-3"))
    machine.put(18099, environ=environment("slurm/cgroup/array-5"))
    asked = Commands(
        said("squeue --noheader --jobs=2_3 --format=%A", "3\n"),
        said("scontrol listpids 3", HEADER + "18055 3 batch 0 0\n"),
    )
    got = found(machine, asked, job_id="2_3")

    assert (got.pids, got.method) == ((18055,), "scheduler")
    assert [argv[0] for argv in asked.asked] == ["squeue", "scontrol"]
    with pytest.raises(JobNotFoundError, match="squeue is not installed"):
        found(machine, job_id="2_9")


@pytest.mark.parametrize(
    ("listed", "doubt"),
    [
        ("4711 1 batch 0 0", "1 without any sign of the job"),
        ("1 1 batch 0 0", "1 without any sign of the job"),
        ("70 1 batch 0 0", "1 without any sign of the job"),  # of another job
        ("71 1 batch 0 0", "1 without any sign of the job"),  # of nobody
        ("72 1 batch 0 0", "1 without any sign of the job"),  # a thread of the kernel
        ("73 1 batch 0 0", "1 without any sign of the job"),  # a zombie
        (f"{TOOL} 1 batch 0 0", "names no process of the job"),
        ("800 11 batch 0 0", "names no process of the job"),
    ],
)
def test_a_scontrol_that_lies_misleads_nobody(machine: Machine, listed: str, doubt: str) -> None:
    machine.put(1, "systemd")
    machine.put(70, environ={"SLURM_JOB_ID": "8"}, cgroup="/slurm/uid_0/job_8/step_0")
    machine.put(71, environ={"HOME": "/root"})
    machine.put(72, "kworker", environ=JOB, flags=KERNEL_THREAD)
    machine.put(73, environ=JOB, state="Z")
    machine.put(TOOL, "fedmon")
    with pytest.raises(JobNotFoundError) as caught:
        found(machine, Commands(said("scontrol listpids 1", HEADER + listed + "\n")), environ=JOB)

    assert doubt in dict(caught.value.tried)["scheduler"]


def test_of_a_list_that_is_partly_true_the_true_part_is_taken_and_the_rest_is_told(machine: Machine) -> None:
    machine.put(50, "slurmstepd", command="slurmstepd: [1.0]")
    machine.put(60, environ=JOB)
    machine.put(61, parent=50)  # whose environment this user may not read
    machine.put(62, parent=60, environ={"CLEAN": "1"})
    machine.put(63, cgroup="/site/job_1/step_0")
    machine.put(70, environ={"SLURM_JOB_ID": "8"})
    lines = "".join(f"{pid} 1 0 - -\n" for pid in (60, 61, 62, 63, 70, 4711))
    got = found(machine, Commands(said("scontrol listpids 1", HEADER + lines)), environ=JOB)

    assert got.pids == (60, 61, 62, 63)
    assert got.detail == "scontrol listpids 1, but 2 without any sign of the job"


def test_of_a_list_only_processes_that_run_are_taken() -> None:
    # While slurmstepd starts a task, SLURM 22.05 lists it as process -1.
    rows = "-1 1 1 0 0\n60 1 batch 0 0\n61 11 0 0 0\n<html>\ngarbage\n"

    assert listed_pids(HEADER + rows, "1") == [60]


def test_a_job_that_has_ended_is_said_to_be_nowhere_with_all_that_was_tried(machine: Machine) -> None:
    machine.put(800, environ={"SLURM_JOB_ID": "11"})
    real = recorded("slurm/cgroup/listpids-finished")
    with pytest.raises(JobNotFoundError) as caught:
        found(machine, Commands(real), job_id="1")

    assert caught.value.exit_code == 3
    assert [method for method, _ in caught.value.tried] == ["cgroup", "scheduler", "environment"]
    assert "no process of slurm job 1 is on this host: it has ended, has not begun, or runs elsewhere" in str(
        caught.value
    )
    assert "does not exist on node" in str(caught.value)


def test_a_job_that_is_not_visible_yet_is_looked_for_again(machine: Machine) -> None:
    machine.put(TOOL, "fedmon")
    commands = Commands(said("scontrol listpids 1", HEADER, status=1))
    search = machine.search(JOB, commands)
    with pytest.raises(JobNotFoundError):
        search.find()
    assert search.goes_on

    machine.put(60, environ=JOB)

    assert (search.find().pids, search.goes_on) == ((60,), False)
    assert [argv[0] for argv in commands.asked] == ["scontrol", "squeue", "scontrol"]


def test_variables_of_a_job_that_another_user_sets_do_not_make_his_processes_the_jobs(machine: Machine) -> None:
    require(os.geteuid() == 0, "only root can make files of another user")
    machine.put(60, environ=JOB, start=10)
    machine.put(61, environ=JOB, start=20)
    os.chown(machine.roots.proc / "61", 12345, 12345)
    got = found(machine, job_id="1")

    assert (got.pids, got.detail) == ((60,), "variables of the job, 1 of another user left out")


@pytest.mark.parametrize("job_id", ["../../etc", "*", "a b", "{id}"])
def test_a_hostile_job_id_is_never_a_path_nor_a_word_of_a_command(machine: Machine, job_id: str) -> None:
    machine.put(60, cgroup="/slurm/uid_0/job_7/step_0")
    commands = Commands()
    environ = {"SLURM_JOB_ID": job_id}
    with pytest.raises(JobNotFoundError, match="is not a job id of slurm"):
        found(machine, commands, environ=environ)

    assert commands.asked == []
    machine.put(61, environ=environ)
    assert found(machine, commands, environ=environ).pids == (61,)
