"""Daemons and launchers of schedulers and of MPI, which run beside a job's programs and are not its work."""

from __future__ import annotations

import os

from fedmon.node.collectors.sysfs import read_file
from fedmon.node.job.finders.processes import Processes

DAEMONS = frozenset({"slurmd", "slurmstepd", "pbs_mom", "pbs_demux", "oardodo", "oarsh_shell", "oarexec"})
"""What a scheduler runs for each job or step on each host."""

LAUNCHERS = frozenset(
    {
        *("srun", "pbsdsh", "pbs_tmrsh", "pbs_attach", "oarsh", "aprun", "jsrun", "taktuk"),
        *("mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.openmpi", "orterun", "prterun", "orted", "prted"),
        *("mpirun.mpich", "mpiexec.mpich", "mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy"),
    }
)
"""What starts the ranks of a parallel program, and waits for them."""

_NAMES = frozenset(name[:15] for name in DAEMONS | LAUNCHERS)
_OAREXEC = "OAREXEC"


def is_launcher(pid: int) -> bool:
    """Tell by its name whether a process of this machine is a scheduler's or a launcher's at this moment."""
    try:
        return read_file(b"/proc/%d/comm" % pid, 64).decode(errors="replace").rstrip("\n") in _NAMES
    except OSError:
        return False


def is_overhead(processes: Processes, pid: int) -> bool:
    """Tell whether a process of a job is its scheduler's or its launcher's.

    OAR sends its oarexec as a perl program that is read from the standard input, with the id of the job and the word
    OAREXEC; that starts another perl as the job's user, which starts the job's command.
    Source: OAR 2.5.9, bipbip and oarexec.
    """
    if processes.name(pid) in _NAMES:
        return True
    if not _is_perl(command := processes.command(pid)):
        return False
    if command[-1] == _OAREXEC:
        return True
    parent = processes.births[pid].parent if pid in processes else 0
    above = processes.command(parent)
    starts_commands = len(command) > 1 and command[1] == "-e"
    return starts_commands and (
        processes.name(parent) in {"oardodo", "oarexec"} or (_is_perl(above) and above[-1] == _OAREXEC)
    )


def _is_perl(command: list[str]) -> bool:
    return os.path.basename(command[0]).startswith("perl")  # noqa: PTH119 - a word of a command line, and no path of ours
