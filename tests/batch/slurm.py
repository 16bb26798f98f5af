"""A real SLURM of the tests alone: controller, node daemons and munge in one folder, on free ports of loopback.

Two variants: "linuxproc" follows the processes of a job by their parents and needs no cgroup; "cgroup" puts each job
into cgroups of version 1. In both the nodes `node1` and `node2` are two daemons on this machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.batch.daemons import command, end, kill_all, launch, remove_cgroups, with_environment
from tests.support.ports import free_port
from tests.support.requirements import require
from tests.support.waiting import wait_until

NODES = ("node1", "node2")
PARTITION = "debug"
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "munged")
TORQUE = ("qsub", "qstat", "qdel")
SPANK_PBS = "/usr/lib/x86_64-linux-gnu/slurm-wlm/spank_pbs.so"
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("freezer", "memory", "cpuset", "cpuacct", "cpu", "devices")
END_STATES = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL")

CONFIGURATION = """\
ClusterName=fedmontest
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
SlurmctldPort={controller_port}
SrunPortRange=60001-63000
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=60
MinJobAge=600
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/{gather}
JobAcctGatherFrequency=5
ProctrackType=proctrack/{tracking}
TaskPlugin=task/{task}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
PlugStackConfig={folder}/plugstack.conf
{nodes}
PartitionName={partition} Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""
# NoCtldInAddrAny and NoInAddrAny bind the daemons to the address of their node, which is that of loopback.

CGROUP_CONFIGURATION = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainRAMSpace=yes
"""


class Slurm:
    """SLURM with two nodes; ``folder`` can be read by every user, so that jobs of other users run."""

    def __init__(self, variant: str, *, plugins: Sequence[str] = ()) -> None:
        self.variant = variant
        self._plugins = plugins
        self.folder = Path(tempfile.mkdtemp(prefix="fedmon-slurm-"))
        self.folder.chmod(0o755)
        self.work = self.folder / "work"
        self.work.mkdir()
        self.work.chmod(0o1777)
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._socket = self.folder / "munge" / "socket"

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment in which SLURM's commands speak to this SLURM."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        # Scripts call `fedmon`, which lies beside the interpreter of the tests.
        kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
        return kept | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        """Start everything and return when both nodes take jobs."""
        self._configure()
        (self.folder / "state").mkdir()
        self._launch_munge()
        wait_until(self._has_munge, what="munged")
        self._launch("slurmctld", ["slurmctld", "-D"])
        for node in NODES:
            self._launch(f"slurmd.{node}", ["slurmd", "-D", "-N", node])
        wait_until(self._idle, what=f"SLURM in {self.folder}")

    def stop(self) -> None:
        """End all jobs and daemons and remove what they left: processes, cgroups and the folder."""
        with contextlib.ExitStack() as last_first:
            last_first.callback(shutil.rmtree, self.folder, ignore_errors=True)
            last_first.callback(
                remove_cgroups, [CGROUPS / name / f"slurm_{node}" for name in CONTROLLERS for node in NODES]
            )
            last_first.callback(kill_all, self._with_our_configuration, "SLURM's jobs")
            for daemon in self._daemons:
                last_first.callback(end, daemon)
            if all(daemon.poll() is None for daemon in self._daemons):
                self.run("scancel", "--full", f"--partition={PARTITION}")

    def clear(self) -> None:
        """End all jobs, with what they left running."""
        self.run("scancel", "--full", f"--partition={PARTITION}")
        wait_until(lambda: not self.run("squeue", "--noheader").stdout, what="the end of all jobs")
        kill_all(lambda: [pid for pid in self._with_our_configuration() if pid not in self._kept()], "what jobs left")

    def run(self, *argv: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run one command of SLURM to its end."""
        return subprocess.run(
            argv,
            env=self.environ | dict(environ or {}),
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def submit(self, script: str, *options: str, environ: Mapping[str, str] | None = None) -> str:
        """Submit a batch script and return the id of its job; its output goes to ``work/ID.out``."""
        file = self.work / "script.sh"
        file.write_text(script)
        given = ("--parsable", "--output=%A_%a.out" if "--array" in " ".join(options) else "--output=%j.out")
        submitted = self.run("sbatch", *given, *options, str(file), environ=environ)
        assert submitted.returncode == 0, submitted.stderr
        return submitted.stdout.strip()

    def running(self, text: str, *, count: int = 1) -> list[int]:
        """Wait until so many processes of our jobs with exactly this command line run, and return them."""

        def found() -> list[int]:
            pids = [pid for pid in self._with_our_configuration() if command(pid) == text]
            return pids if len(pids) == count else []

        return wait_until(found, what=f"{count} {text}")

    def state(self, job_id: str) -> str:
        """Return the state of a job as squeue tells it; empty where it is unknown."""
        told = self.run("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T")
        return told.stdout.split("\n")[0].strip()

    def wait_ended(self, job_id: str, timeout_s: float = 60.0) -> str:
        """Wait until a job has ended and return its state."""
        return wait_until(
            lambda: state if (state := self.state(job_id)) in END_STATES else "",
            timeout_s=timeout_s,
            what=f"the end of job {job_id}",
        )

    def output(self, job_id: str) -> str:
        """Return what a job printed."""
        return (self.work / f"{job_id}.out").read_text()

    def logs(self) -> str:
        """Return the ends of all logs, for the message of a failed test."""
        return "\n".join(f"{file.name}: {file.read_text()[-2000:]}" for file in sorted(self.folder.glob("*.log")))

    def _with_our_configuration(self) -> list[int]:
        # Steps and jobs inherit SLURM_CONF, whose folder is ours alone.
        return with_environment("SLURM_CONF", self.folder / "slurm.conf")

    def _kept(self) -> set[int]:
        kept = {daemon.pid for daemon in self._daemons}
        return kept | {each.pid for each in psutil.process_iter(["ppid"]) if each.info["ppid"] in kept}

    def _launch_munge(self) -> None:
        """Start the authentication service of SLURM's daemons and commands."""
        folder = self._socket.parent
        folder.mkdir(mode=0o755)
        (folder / "key").touch(mode=0o600)
        (folder / "key").write_bytes(os.urandom(128))
        files = [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
        self._launch("munged", ["munged", "--foreground", f"--socket={self._socket}", *files])

    def _configure(self) -> None:
        cgroup = self.variant == "cgroup"
        host = socket.gethostname().split(".")[0]
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2 RealMemory=2000"
            for node in NODES
        )
        text = CONFIGURATION.format(
            folder=self.folder,
            munge=self._socket,
            controller_port=free_port(),
            gather="cgroup" if cgroup else "linux",
            tracking="cgroup" if cgroup else "linuxproc",
            task="cgroup" if cgroup else "none",
            nodes=nodes,
            partition=PARTITION,
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "plugstack.conf").write_text("".join(f"required {plugin}\n" for plugin in self._plugins))
        if cgroup:
            (self.folder / "cgroup.conf").write_text(CGROUP_CONFIGURATION)

    def _launch(self, name: str, argv: Sequence[str]) -> None:
        with (self.folder / f"{name}.out").open("wb") as output:
            self._daemons.append(launch(argv, env=self.environ, output=output))

    def _has_munge(self) -> bool:
        assert self._daemons[0].poll() is None, (self.folder / "munged.out").read_text()
        return self.run("munge", f"--socket={self._socket}", "-n").returncode == 0

    def _idle(self) -> bool:
        for daemon in self._daemons:
            assert daemon.poll() is None, self.logs()
        states = self.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()
        return states == ["idle"] * len(NODES)


def require_slurm(variant: str) -> None:
    """Skip aloud, or fail where everything must run, when SLURM cannot be started here."""
    require(os.geteuid() == 0, "SLURM's daemons are started as root")
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    require(not missing, f"SLURM is missing here ({', '.join(missing)}): apt-get install slurm-wlm munge")
    if variant == "cgroup":
        writable = all(os.access(CGROUPS / name, os.W_OK) for name in ("freezer", "memory", "cpuset", "cpuacct"))
        require(writable, "cgroups of version 1 (freezer, memory, cpuset, cpuacct) are not mounted here")


def require_torque() -> None:
    """Skip aloud when Torque's commands over SLURM are not here."""
    require_slurm("linuxproc")
    missing = [program for program in TORQUE if shutil.which(program) is None]
    require(
        not missing and Path(SPANK_PBS).exists(), "Torque's commands are missing here: apt-get install slurm-wlm-torque"
    )
