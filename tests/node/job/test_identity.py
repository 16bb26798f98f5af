"""The job of an environment: its id, key, hosts, GPUs and limits."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fedmon.common.errors import InvalidInputError
from fedmon.common.ids import RESERVED_IDS, checked_id
from fedmon.node.job.identity import JobIdentity, expand, identify, job_key, named, own_name
from tests.node.job.machine import environment, recorded

UUID = "GPU-5a1c2b3d-0000-1111-2222-333344445555"
HOSTILE = [
    "", " ", ".", "..", "../../etc/passwd", "/etc/passwd", "a\\b", "~root", "$(touch pwned)", "a\nb", "a\0b", "\x1b[2J",
    "a/#", "$SYS/broker", "*", "[a-z]", "{id}", "--help", "é", "\udcff", "\u0667", "x" * 5000, "7 ", " 7", "7.", ".7",
]  # fmt: skip
SLURM = {"SLURM_JOB_ID": "7"}
PBS = {"PBS_JOBID": "123.server", "PBS_JOBNAME": "fit", "PBS_O_LOGNAME": "alice", "NCPUS": "4", "USER": "root"}


def told(identity: JobIdentity, *names: str) -> tuple[object, ...]:
    return tuple(getattr(identity, name) for name in names)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slurm/cgroup/step", {
            "scheduler": "slurm", "job_id": "1", "key": "1", "raw_id": "1", "host": "node1", "cluster": "fedmontest",
            "step": "0", "name": "fit of alice", "user": "root", "nodes": ("node1",), "step_nodes": ("node1",),
            "cpus": 1, "memory_limit_bytes": 500 * 2**20, "time_limit_s": None, "array_index": None,
        }),
        ("slurm/linuxproc/batch", {"job_id": "1", "step": "batch", "nodes": ("node1",), "step_nodes": None}),
        ("slurm/cgroup/two-nodes-node1", {"host": "node1"}),
        ("slurm/cgroup/two-nodes-node2", {"host": "node2"}),
        ("slurm/cgroup/array-3", {"job_id": "3", "raw_id": "3", "array_job_id": "2", "array_index": 3}),
        ("slurm/cgroup/array-7", {"job_id": "2", "raw_id": "2", "array_job_id": "2", "array_index": 7}),
        ("oar/job", {
            "scheduler": "oar", "job_id": "1", "key": "1", "name": "fit of alice", "user": "alice",
            "time_limit_s": 600.0, "array_job_id": "1", "array_index": 1,
        }),
    ],
)  # fmt: skip
def test_the_environment_of_a_real_job_tells_its_identity(name: str, expected: dict[str, object]) -> None:
    found = identify(environment(name), hostname="localhost", pid=7)

    assert {each: getattr(found, each) for each in expected} == expected


def test_slurms_wrappers_of_pbs_make_a_job_of_slurm_and_without_its_variables_one_of_pbs() -> None:
    environ = environment("torque/job")
    both = identify(environ, hostname="node1", pid=7)
    alone = identify({k: v for k, v in environ.items() if not k.startswith("SLURM")}, hostname="node1", pid=7)

    assert told(both, "scheduler", "job_id") == ("slurm", "1")
    assert told(alone, "scheduler", "job_id", "name") == ("pbs", "1", "fit")


def test_a_pbs_job_names_its_hosts_by_the_copy_that_every_host_can_read(tmp_path: Path) -> None:
    local, own = tmp_path / "copy", tmp_path / "aux"
    local.write_text("n1.site\nn1.site\nn2.site\n")
    own.write_text("n1.site\n")
    both = identify({**PBS, "PBS_NODEFILE": str(own), "PBS_NODEFILE_LOCAL": str(local)}, hostname="n2", pid=7)
    torque = {"PBS_NUM_PPN": "2", "PBS_NODEFILE": str(own), "PBS_NODEFILE_LOCAL": "/nowhere"}
    one = identify(PBS | torque, hostname="n1", pid=7)

    assert told(both, "nodes", "host") == (("n1.site", "n2.site"), "n2.site")
    assert told(one, "nodes", "host", "cpus") == (("n1.site",), "n1.site", 2)
    assert told(both, "job_id", "key", "cluster", "user", "cpus") == ("123.server", "123-server", "server", "alice", 4)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"scheduler": "none", "job_id": "n1-4711", "key": "n1-4711", "user": None}),
        ({"FEDMON_JOB_ID": "fit-7"}, {"scheduler": "none", "job_id": "fit-7", "key": "fit-7"}),
        ({"PBS_JOBID": "12[3].server"}, {"array_job_id": "12[].server", "array_index": 3}),
        ({"PBS_JOBID": "12[].server"}, {"array_job_id": None, "array_index": None}),
        (SLURM | {"SLURM_JOB_START_TIME": "1000", "SLURM_JOB_END_TIME": "4600"}, {"time_limit_s": 3600.0}),
        (SLURM | {"SLURM_JOB_START_TIME": "4600", "SLURM_JOB_END_TIME": "1000"}, {"time_limit_s": None}),
        (PBS | {"PBS_WALLTIME": "3600"}, {"time_limit_s": 3600.0}),
        ({"OAR_JOB_ID": "7", "OAR_JOB_WALLTIME_SECONDS": "300"}, {"time_limit_s": 300.0}),
        ({"OAR_JOB_ID": "7", "OAR_JOB_WALLTIME_SECONDS": "soon"}, {"time_limit_s": None}),
        # memory for each CPU, as that of the job on this host
        (SLURM | {"SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_CPU": "500"}, {"memory_limit_bytes": 2000 * 2**20}),
    ],
)
def test_variables_tell_the_identity_of_a_job(environ: dict[str, str], expected: dict[str, object]) -> None:
    found = identify(environ, hostname="n1.site", pid=4711)

    assert {each: getattr(found, each) for each in expected} == expected


@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "oar"])
@pytest.mark.parametrize("lie", ["", "x", "\udcff", "a\x1b[2J\nb"])
def test_an_environment_that_lies_gives_usable_values(scheduler: str, lie: str) -> None:
    names = {
        "slurm": ["SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_USER", "SLURM_STEP_ID", "SLURM_ARRAY_JOB_ID",
                  "SLURM_ARRAY_TASK_ID", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "SLURM_CPUS_ON_NODE",
                  "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME",
                  "SLURM_CLUSTER_NAME", "SLURMD_NODENAME"],
        "pbs": ["PBS_JOBID", "PBS_JOBNAME", "PBS_O_LOGNAME", "PBS_NODEFILE", "PBS_NODEFILE_LOCAL", "PBS_ARRAY_INDEX",
                "PBS_ARRAY_ID", "PBS_WALLTIME", "NCPUS", "PBS_NUM_PPN", "PBS_SERVER"],
        "oar": ["OAR_JOB_ID", "OAR_JOB_NAME", "OAR_USER", "OAR_NODEFILE", "OAR_ARRAY_ID", "OAR_ARRAY_INDEX",
                "OAR_JOB_WALLTIME_SECONDS", "OAR_CPUSET"],
    }[scheduler]  # fmt: skip
    found = identify(dict.fromkeys(names, lie), hostname="n1", pid=7)
    document = msgspec.json.decode(msgspec.json.encode(found))

    assert found.host in {"n1", lie}
    assert found.nodes in {None, (lie,)}
    assert (scheduler if lie else "none") == found.scheduler
    assert told(found, "array_index", "time_limit_s", "memory_limit_bytes") == (None, None, None)
    assert all(len(value) <= 256 and value.isprintable() for value in document.values() if isinstance(value, str))


def test_a_missing_user_is_unknown_and_no_error() -> None:
    assert identify({"SLURM_JOB_ID": "7"}, hostname="n", pid=7).user is None
    assert identify({"SLURM_JOB_ID": "7", "LOGNAME": "bob"}, hostname="n", pid=7).user == "bob"


def test_a_job_is_named_from_outside_as_its_scheduler_writes_it() -> None:
    names = ("key", "raw_id", "array_job_id", "array_index", "inside")

    assert told(named("12_3", "slurm", hostname="n1"), *names) == ("12_3", None, "12", 3, False)
    assert told(named("12[3].server", "pbs", hostname="n1"), *names) == (
        "12_3-server", "12[3].server", "12[].server", 3, False,
    )  # fmt: skip
    for job_id in ("7.batch", "../7", "7;x", "", "-1", "7\n", "7 8"):
        with pytest.raises(InvalidInputError, match="is not a job id of slurm; an example is 4711"):
            named(job_id, "slurm", hostname="n1")


@pytest.mark.parametrize(
    ("job_id", "key"),
    [("4711", "4711"), ("12_3", "12_3"), ("123.server", "123-server"), ("12[3].pbs.site", "12_3-pbs-site"),
     ("12[].server", "12_-server"), ("12.my-server", "12-my-server"), ("a/b", "a-b-c14cddc0")],
)  # fmt: skip
def test_the_key_of_an_id_stays_readable_and_never_changes(job_id: str, key: str) -> None:
    assert job_key(job_id) == key


def test_names_that_users_give_their_jobs_do_not_share_a_key() -> None:
    names = ["fit-0.1", "fit-0-1", "fit.0.1", "0.1", "0-1", "a b", "a-b", "12[3]", "12_3", "x" * 64, "x" * 65]

    assert len({*map(job_key, names)}) == len(names)


@pytest.mark.parametrize("job_id", [*HOSTILE, *sorted(RESERVED_IDS)])
def test_a_hostile_job_id_leads_nowhere(job_id: str) -> None:
    key = job_key(job_id)

    assert key == checked_id(key, what="key")
    assert not key.startswith("-")
    assert key == identify({"SLURM_JOB_ID": job_id}, hostname="n1", pid=7).key or job_id == ""


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, ("0", "2")),
        ({"CUDA_VISIBLE_DEVICES": UUID}, (UUID,)),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"PBS_JOBID": "7.server"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "3"}, ("3",)),
        ({"SLURM_JOB_GPUS": "2-4,7", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, ("2", "3", "4", "7")),
        ({"SLURM_STEP_GPUS": "1", "SLURM_JOB_GPUS": "0,1"}, ("1",)),
        ({"CUDA_VISIBLE_DEVICES": "../../etc"}, None),
    ],
)
def test_gpus_are_those_that_the_environment_names(environ: dict[str, str], expected: tuple[str, ...] | None) -> None:
    assert identify(environ, hostname="n1", pid=9).gpus == expected


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07-09],gpu1", ["n1", "n2", "n3", "n07", "n08", "n09", "gpu1"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ("n[5]", ["n5"]),
        ("n1,n1,n2", ["n1", "n2"]),
        ("login.site,n[1-2].site", ["login.site", "n1.site", "n2.site"]),
    ],
)
def test_a_list_of_hosts_is_expanded_without_asking_anybody(text: str, hosts: list[str]) -> None:
    real = recorded("slurm/cgroup/show-hostnames")

    assert tuple(hosts) == expand(text)
    assert tuple(real.stdout.split()) == expand(real.argv[-1])


@pytest.mark.parametrize("text", ["(null)", "n[a-b]", "../x", "n 1"])
def test_what_is_no_list_of_hosts_is_unknown(text: str) -> None:
    assert identify({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": text}, hostname="n", pid=7).nodes is None


@pytest.mark.parametrize(
    ("hostname", "nodes", "name"),
    [
        ("n1", None, "n1"),
        ("n1", ["n1", "n2"], "n1"),
        ("n1.site", ["n1", "n2"], "n1"),
        ("n1", ["n1.site", "n2.site"], "n1.site"),
        ("n1", ["n1.a", "n1.b"], "n1"),
        ("n9", ["n1"], "n9"),
    ],
)
def test_a_host_has_the_name_that_its_scheduler_gave_it(hostname: str, nodes: list[str] | None, name: str) -> None:
    assert name == own_name(hostname, nodes)
