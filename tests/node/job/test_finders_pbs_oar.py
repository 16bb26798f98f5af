"""Jobs of PBS and OAR, on machines as files, with the words of their commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fedmon.node.job.commands import CommandError, answer
from fedmon.node.job.finders import Confidence, Found, JobNotFoundError, is_same_job, job_attributes
from tests.node.job.machine import TOOL, V1, Commands, Machine, environment, recorded

PBS = {"PBS_JOBID": "123.server"}


def found(
    machine: Machine, commands: Commands | None = None, *, environ: Mapping[str, str] = PBS, host: str = "n1",
    patterns: Sequence[str] = (),
) -> Found:  # fmt: skip
    return machine.search(environ, commands, host=host, cgroup_patterns=patterns).find()


# --- PBS -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("controllers", "path"),
    [
        (V1, "/pbspro/123.server"),
        (V1, "/pbs_jobs.service/jobid/123.server"),
        (V1, "/pbspro.service/jobid/123.server"),
        (V1, "/pbspro.slice/pbspro-123.server.slice"),
        ((), "/pbs_jobs.service/jobid/123.server"),
    ],
)
def test_every_layout_of_pbs_cgroups_is_known(tmp_path: Path, controllers: Sequence[str], path: str) -> None:
    machine = Machine(tmp_path, controllers=controllers)
    machine.put(60, cgroup=path)
    machine.put(61, cgroup=path.replace("123", "1234"))
    machine.put(62, "pbs_demux", cgroup=path)
    got = found(machine)

    assert (got.pids, got.method, got.cgroup) == ((60,), "cgroup", path)
    assert got.overhead == {62: 100}


def test_a_site_can_say_where_its_cgroups_are(machine: Machine) -> None:
    machine.put(60, cgroup="/site/jobs/batch-123.server.x")

    by_option = found(machine, patterns=["site/*/batch-{id}*"])
    by_variable = found(machine, environ={**PBS, "FEDMON_JOB_CGROUPS": "/:../{id}:/site/jobs/batch-{id}.*"})

    assert by_option.cgroup == by_variable.cgroup == "/site/jobs/batch-123.server.x"


def test_a_job_of_an_array_has_its_brackets_in_the_name_of_its_cgroup(machine: Machine) -> None:
    machine.put(60, cgroup="/pbspro/12[3].server")
    machine.put(61, cgroup="/pbspro/123.server")

    assert found(machine, environ={"PBS_JOBID": "12[3].server"}).pids == (60,)


def test_the_session_that_pbs_pro_tells_is_the_job(machine: Machine) -> None:
    machine.put(40, "pbs_mom", command="/opt/pbs/sbin/pbs_mom")
    machine.put(5001, "bash", parent=40, session=5001, environ=PBS)
    machine.put(5002, "mpiexec", parent=5001, session=5001, environ=PBS)
    machine.put(5003, parent=5002, session=5001, environ={"CLEAN": "1"})
    machine.put(5004, parent=1, session=5004, environ=PBS)
    got = found(machine, Commands(recorded("pbs_pro/qstat-full")))

    assert (got.pids, got.method, got.confidence) == ((5001, 5003), "scheduler", Confidence.HIGH)
    assert (got.detail, got.marker) == ("qstat -f 123.server, session 5001", "PBS_JOBID=123.server")


def test_a_session_of_the_first_host_says_nothing_about_the_second(machine: Machine) -> None:
    machine.put(5001, session=5001, environ={"PBS_JOBID": "9.server"})
    machine.put(6000, environ=PBS)
    got = found(machine, Commands(recorded("pbs_pro/qstat-full")), host="n2")

    assert (got.pids, got.method) == ((6000,), "environment")
    assert "a session on n1 only" in dict(got.tried)["scheduler"]


def test_a_session_that_is_of_another_job_by_now_misleads_nobody(machine: Machine) -> None:
    machine.put(5001, session=5001, environ={"PBS_JOBID": "9.server"})
    with pytest.raises(JobNotFoundError, match="1 without any sign of the job"):
        found(machine, Commands(recorded("pbs_pro/qstat-full")))


def test_torque_over_slurm_tells_no_session_and_the_environment_does(machine: Machine) -> None:
    inside = {name: text for name, text in environment("torque/job").items() if not name.startswith("SLURM")}
    machine.put(19806, "slurm_script", environ=inside)
    machine.put(19809, "sleep", parent=19806, environ=inside)
    commands = Commands(recorded("torque/qstat-full"))
    got = found(machine, commands, environ=inside, host="node1")

    assert (got.pids, got.method, got.marker) == ((19806, 19809), "environment", "PBS_JOBID=1")
    assert "no session_id" in dict(got.tried)["scheduler"]


@pytest.mark.parametrize("name", ["qstat-unknown", "qstat-finished", "qstat-json-broken"])
def test_the_answer_of_pbs_for_no_job_is_an_error(name: str) -> None:
    with pytest.raises(CommandError):
        job_attributes(answer(*recorded(f"pbs_pro/{name}")), "4711.server", command="qstat")


def test_a_server_may_be_written_with_and_without_its_domain() -> None:
    assert is_same_job("123.server", "123.server.site")
    assert is_same_job("123", "123.server")
    assert not is_same_job("123.server", "123.server2")
    assert not is_same_job("123[1].server", "123[2].server")


@pytest.mark.parametrize(
    ("environ", "answers", "why"),
    [
        (PBS, [], "is not installed"),
        (PBS, ["pbs_pro/qstat-full"], "session 5001 names no process of the job (1 without any sign of the job)"),
        ({"OAR_JOB_ID": "1"}, [], "is not installed"),
        ({"OAR_JOB_ID": "1"}, ["oar/oarstat-running"], "cgroup /site/alice_1 holds nothing but this tool"),
    ],
)
def test_the_server_of_all_hosts_is_asked_by_each_of_them_once(
    tmp_path: Path, environ: dict[str, str], answers: list[str], why: str
) -> None:
    machine, commands = Machine(tmp_path), Commands(*map(recorded, answers))
    machine.put(TOOL, "fedmon", cgroup="/site/alice_1")
    machine.put(5001, session=5001)
    search = machine.search(environ, commands, host="n1")
    for _ in range(2):
        with pytest.raises(JobNotFoundError) as not_found:
            search.find()
        assert why in dict(not_found.value.tried)["scheduler"]

    machine.put(60, environ=environ)
    assert (search.find().pids, len(commands.asked)) == ((60,), 1)


def test_a_server_that_need_not_be_asked_at_first_is_named_later_as_not_asked(machine: Machine) -> None:
    machine.put(60, cgroup="/pbspro.slice/123.server")
    search = machine.search(PBS, Commands())
    search.find()
    machine.take(60)
    with pytest.raises(JobNotFoundError, match="scheduler: the server was not asked"):
        search.find()


# --- OAR -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_the_cgroup_of_an_oar_job_holds_it_without_oarexec_and_its_perl(tmp_path: Path, where: str) -> None:
    machine = Machine(tmp_path, controllers=("cpuset", "cpuacct", "freezer"))
    # as recorded of a real job
    group, inside = "/oar/alice_1", environment("oar/job")
    machine.put(28354, "perl", command="perl - 1 OAREXEC", cgroup=group)
    machine.put(28355, "perl", parent=28354, command="perl -e $ENV{TERM}", environ=inside, cgroup=group)
    machine.put(28356, "bash", parent=28355, environ=inside, cgroup=group)
    machine.put(28357, "sleep", parent=28356, environ=inside, cgroup=group)
    machine.put(28358, "perl", parent=28356, command="perl -e work", environ=inside, cgroup=group)
    machine.put(TOOL, "fedmon", parent=28356, environ=inside, cgroup=group)
    machine.put(70, cgroup="/oar/alice_11")
    job_id = "1" if where == "outside" else ""
    got = machine.search(inside, job_id=job_id, scheduler="oar").find()

    assert (got.pids, got.method, got.cgroup) == ((28356, 28357, 28358), "cgroup", "/oar/alice_1")
    assert {*got.overhead} == {28354, 28355}
    assert got.marker == "OAR_JOB_ID=1"


def test_oarstat_tells_the_cpuset_of_a_job(tmp_path: Path) -> None:
    machine = Machine(tmp_path, controllers=("cpuset", "cpuacct"))
    machine.put(60, cgroup="/site/alice_1")
    got = found(machine, Commands(recorded("oar/oarstat-running")), environ={"OAR_JOB_ID": "1"})

    assert (got.pids, got.method, got.cgroup) == ((60,), "scheduler", "/site/alice_1")


@pytest.mark.parametrize(
    ("job_id", "why"),
    [
        ("2", "cpuset alice_2, which is not on this host; the job is Waiting"),
        ("1", "cpuset alice_1, which is not on this host; the job is"),
        ("4711", "job 4711 is not in the output of oarstat -fj 4711"),
    ],
)
def test_an_oar_job_that_waits_has_ended_or_never_was_is_said_to_be_nowhere(
    machine: Machine, job_id: str, why: str
) -> None:
    machine.put(70)
    names = {"2": "waiting", "1": "finished", "4711": "unknown"}
    commands = Commands(recorded(f"oar/oarstat-{names[job_id]}"))
    with pytest.raises(JobNotFoundError) as caught:
        found(machine, commands, environ={"OAR_JOB_ID": job_id})

    assert why in dict(caught.value.tried)["scheduler"]


@pytest.mark.parametrize("cpuset", ["/", "/oar", "/oar/alice_2"])
def test_a_cpuset_of_an_environment_that_cannot_be_the_jobs_is_not_believed(tmp_path: Path, cpuset: str) -> None:
    machine = Machine(tmp_path, controllers=("cpuset",))
    machine.put(70, cgroup="/oar/alice_2")
    with pytest.raises(JobNotFoundError, match="no cgroup of job 1"):
        found(machine, environ={"OAR_JOB_ID": "1", "OAR_CPUSET": cpuset})
