"""Record what real batch systems print, as `python -m tests.batch.record slurm|torque|oar FOLDER`; needs root.

Each command becomes a JSON document of its arguments, exit code and outputs; environments, process lists and cgroup
lists become text. Names of this machine and folders are replaced, so that the records say nothing about where they
were made.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.batch.oar import Oar
from tests.batch.slurm import CGROUPS, CONTROLLERS, SPANK_PBS, Slurm
from tests.support.waiting import wait_until

ORPHAN = "(setsid sh -c 'sleep 301 &')\n"
WAITING = "sleep 300 &\n" + ORPHAN + "srun --overlap sleep 302 &\nwait\n"
NOT_OF_THE_BATCH_SYSTEM = r"PWD|OLDPWD|HOME|SHLVL|_|LANG|PATH|PBS_O_PATH|PBS_O_HOME|PBS_O_LANG"


class Record:
    """A folder of recorded outputs."""

    def __init__(self, folder: Path, system: Slurm | Oar) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.system = system

    def clean(self, text: str) -> str:
        """Replace what names this machine."""
        text = text.replace(str(self.system.folder), "/home/alice")
        text = text.replace(os.uname().release, "6.1.0").replace(_own_memory_cgroup(), "/")
        host = socket.gethostname()
        text = re.sub(rf"\b{re.escape(host)}\b", "localhost", text)
        return re.sub(
            r"(?m)^(PWD|OLDPWD|HOME|SHLVL|_|SUDO_\w+|[A-Z]+_VERSION|PYENV\w*|\w*PROXY\w*|\w*proxy\w*|\w*CERT\w*|PATH|LANG|VIRTUAL_ENV)=.*\n",
            "",
            text,
        )

    def text(self, name: str, text: str) -> None:
        """Keep a text."""
        (self.folder / name).write_text(self.clean(text))

    def command(self, name: str, *argv: str) -> None:
        """Run a command and keep what it said."""
        ran = self.system.run(*argv, timeout_s=60)
        document = {"argv": argv, "rc": ran.returncode, "stdout": ran.stdout, "stderr": ran.stderr}
        (self.folder / f"{name}.json").write_text(self.clean(json.dumps(document, indent=1)) + "\n")

    def job(self, name: str, pids: Sequence[int]) -> None:
        """Keep the ancestry and the cgroups of the processes of a job."""
        shown = subprocess.run(["ps", "-eo", "pid,ppid,pgid,sid,stat,comm,args"], capture_output=True, text=True)
        wanted = re.compile(r"PID|slurmd|slurmstepd|slurm_script|srun|sleep 30\d|OAREXEC|perl -e|Almighty")
        self.text(f"{name}.ps", "".join(f"{line}\n" for line in shown.stdout.splitlines() if wanted.search(line)))
        cgroups = [f"== {pid}\n" + Path(f"/proc/{pid}/cgroup").read_text() for pid in pids]
        self.text(f"{name}.cgroup", "".join(cgroups))


def cgroup_tree(pattern: str) -> str:
    """Return every cgroup folder below ``pattern`` with its processes."""
    lines = []
    for controller in CONTROLLERS:
        listed = sorted((CGROUPS / controller).glob(f"{pattern}/**/cgroup.procs"))
        lines += [f"{procs.parent}: {' '.join(procs.read_text().split())}\n" for procs in listed]
    return "".join(lines)


def _own_memory_cgroup() -> str:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return next((line.split(":")[2] for line in lines if ":memory:" in line), "/")


def environ_of(pid: int) -> str:
    """Return the environment of a process, one variable a line."""
    return Path(f"/proc/{pid}/environ").read_bytes().replace(b"\0", b"\n").decode()


def named(slurm: Slurm, job_id: str, word: str) -> int:
    """Return the process of a job whose command line holds ``word``."""

    def find() -> int:
        for pid in slurm.pids(job_id):
            if word in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode():
                return pid
        return 0

    return wait_until(find, what=f"{word} in job {job_id}")


def record_slurm(folder: Path) -> None:
    """Record both variants."""
    for variant in ("linuxproc", "cgroup"):
        slurm = Slurm(variant)
        try:
            slurm.start()
            _record_jobs(Record(folder / variant, slurm), slurm)
        finally:
            slurm.stop()


def _record_jobs(record: Record, slurm: Slurm) -> None:
    job = slurm.submit("#!/bin/sh\n" + WAITING, "--job-name=fit of alice", "--time=10", "--mem=500")
    slurm.wait_running(job)
    step = named(slurm, job, "/sleep 302")
    wait_until(lambda: len(slurm.pids(job)) >= 5, what="all processes")
    record.command("listpids-running", "scontrol", "listpids", job)
    record.command("listpids-step", "scontrol", "listpids", f"{job}.0")
    record.command("listpids-batch-step", "scontrol", "listpids", f"{job}.batch")
    record.command("listpids-all", "scontrol", "listpids")
    record.command("listpids-unknown", "scontrol", "listpids", "4711")
    record.command("listpids-hostile", "scontrol", "listpids", "no such; job")
    record.command("show-job-running", "scontrol", "show", "job", job)
    record.command("show-job-oneliner", "scontrol", "--oneliner", "show", "job", job)
    record.command("show-job-unknown", "scontrol", "show", "job", "4711")
    record.command("show-job-json", "scontrol", "show", "job", job, "--json")
    record.command("squeue-running", "squeue", "--json", f"--jobs={job}")
    record.command("squeue-unknown", "squeue", "--json", "--jobs=4711")
    record.command("sstat", "sstat", "--allsteps", f"--jobs={job}", "--parsable2", "--format=JobID,Pids,AveCPU,MaxRSS")
    record.text("batch.environ", environ_of(named(slurm, job, "slurm_script")))
    record.text("step.environ", environ_of(step))
    record.job("running", slurm.pids(job))
    record.text("cgroup-tree", cgroup_tree("slurm_*"))

    array = slurm.submit("#!/bin/sh\nsleep 304\n", "--array=3-7:2", "--time=5", "--cpus-per-task=1")
    wait_until(lambda: _listed(slurm).count("RUNNING") >= 4, what="the tasks of the array")
    wait_until(lambda: slurm.pids(array), what="the last task of the array")
    record.command("squeue-array", "squeue", "--json", f"--jobs={array}")
    record.command(
        "squeue-array-ids", "squeue", "--noheader", "--array", f"--jobs={array}", "--format=%i %A %F %K %T %N"
    )
    record.command("listpids-array-index", "scontrol", "listpids", f"{array}_3")
    for line in slurm.run("squeue", "--noheader", "--array", f"--jobs={array}", "--format=%A %K").stdout.splitlines():
        raw, index = line.split()
        for node in ("node1", "node2"):
            record.command(f"listpids-array-{index}-{node}", "scontrol", "listpids", raw, node)
        record.text(f"array-{index}.environ", environ_of(named(slurm, raw, "slurm_script")))
    record.command("show-job-array", "scontrol", "show", "job", array)
    record.command("show-job-array-index", "scontrol", "show", "job", f"{array}_5")

    slurm.run("scancel", array, job)
    slurm.wait_ended(job)
    record.command("listpids-finished", "scontrol", "listpids", job)
    record.command("show-job-finished", "scontrol", "show", "job", job)
    record.command("squeue-finished", "squeue", "--json", f"--jobs={job}")

    both = slurm.submit("#!/bin/sh\nsrun sleep 303\n", "--nodes=2", "--ntasks=2")
    wait_until(lambda: len(slurm.pids(both)) >= 5, what="both nodes")
    for node in ("node1", "node2"):
        record.command(f"listpids-two-nodes-{node}", "scontrol", "listpids", both, node)
    record.command("listpids-two-nodes-no-node-named", "scontrol", "listpids", both)
    record.command("show-job-two-nodes", "scontrol", "show", "job", both)
    record.command("show-hostnames", "scontrol", "show", "hostnames", "node[1-2],gpu[08-11],login")
    for node, pid in _steps_by_node(slurm, both):
        record.text(f"two-nodes-{node}.environ", environ_of(pid))
    pending = slurm.submit("#!/bin/sh\ntrue\n", "--begin=now+1hour")
    record.command("show-job-pending", "scontrol", "show", "job", pending)
    record.command("listpids-pending", "scontrol", "listpids", pending)
    slurm.run("scancel", both, pending)
    failed = slurm.submit("#!/bin/sh\nexit 3\n")
    slurm.wait_ended(failed)
    record.command("show-job-failed", "scontrol", "show", "job", failed)
    slurm.stop_controller()
    record.command("show-job-no-controller", "scontrol", "show", "job", job)


def _listed(slurm: Slurm) -> str:
    return slurm.run("squeue", "--noheader", "--array", "--format=%T").stdout


def _steps_by_node(slurm: Slurm, job_id: str) -> list[tuple[str, int]]:
    found = []
    for pid in slurm.pids(job_id):
        environ = environ_of(pid)
        node = re.search(r"(?m)^SLURMD_NODENAME=(\S+)", environ)
        if node and re.search(r"(?m)^SLURM_STEP_ID=0$", environ):
            found.append((node.group(1), pid))
    return found


def record_torque(folder: Path) -> None:
    """Record the commands of Torque over SLURM."""
    slurm = Slurm("linuxproc", plugins=[SPANK_PBS])
    try:
        slurm.start()
        record = Record(folder, slurm)
        script = slurm.work / "job.sh"
        script.write_text("#!/bin/sh\n#PBS -N fit\n#PBS -l walltime=00:10:00\n#PBS -l nodes=1:ppn=1\nsleep 300\n")
        submitted = slurm.run("qsub", str(script))
        assert submitted.returncode == 0, submitted.stderr
        record.command("qsub-help", "qsub", "--help")
        job = submitted.stdout.strip()
        record.text("qsub.stdout", submitted.stdout)
        slurm.wait_running(job)
        named(slurm, job, "sleep 300")
        record.command("qstat", "qstat")
        record.command("qstat-full", "qstat", "-f", job)
        record.command("qstat-unknown", "qstat", "-f", "4711")
        record.command("qstat-json", "qstat", "-f", "-F", "json", job)
        record.command("pbsnodes", "pbsnodes")
        record.text("job.environ", environ_of(named(slurm, job, "sleep 300")))
        record.job("job", slurm.pids(job))
        slurm.run("qdel", job)
        slurm.wait_ended(job)
        record.command("qstat-finished", "qstat", "-f", job)
    finally:
        slurm.stop()


def record_oar(folder: Path) -> None:
    """Record the commands of OAR."""
    oar = Oar()
    try:
        oar.start()
        record = Record(folder, oar)
        resources = ("-l", "/resource_id=1,walltime=0:10:0")
        job = oar.submit(f"sleep 300 & {ORPHAN.strip()}; sleep 302; wait", "--name", "fit of alice", *resources)
        oar.wait_state(job, "Running")
        procs = CGROUPS / "freezer" / "oar" / f"alice_{job}" / "cgroup.procs"
        pids = wait_until(lambda: found if len(found := procs.read_text().split()) == 6 else [], what="all processes")
        waiting = oar.submit("sleep 303", "-l", "/resource_id=2,walltime=0:10:0")
        oar.wait_state(waiting, "Waiting")
        array = oar.submit("sleep 304", "--array", "2", *resources)
        record.command("oarstat", "oarstat")
        for name, chosen in (("running", job), ("waiting", waiting), ("array", array), ("unknown", "4711")):
            record.command(f"oarstat-{name}", "oarstat", "-fj", chosen)
            record.command(f"oarstat-{name}-json", "oarstat", "-J", "-fj", chosen)
        record.command("oarstat-state", "oarstat", "-s", "-j", job)
        record.command("oarstat-resources", "oarstat", "-p", "-j", job)
        record.command("oarnodes", "oarnodes", "-J")
        record.job("running", [int(pid) for pid in pids])
        record.text("cgroup-tree", cgroup_tree("oar"))
        record.text("job.environ", environ_of(int(pids[-1])))
        record.text("launcher.environ", environ_of(int(pids[1])))
        oar.run("oardel", job, array)
        oar.wait_state(job, "Error", "Terminated")
        record.command("oarstat-finished", "oarstat", "-fj", job)
        record.command("oarstat-finished-json", "oarstat", "-J", "-fj", job)
    finally:
        oar.stop()


def main(arguments: Sequence[str]) -> None:
    """Record one system into a folder."""
    system, folder = arguments
    {"slurm": record_slurm, "torque": record_torque, "oar": record_oar}[system](Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
