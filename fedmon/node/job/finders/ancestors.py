"""The script or shell that started the tool, where nothing else tells what the job is."""

from __future__ import annotations

from fedmon.node.job.finders.found import MethodFailedError
from fedmon.node.job.finders.overhead import DAEMONS, is_overhead
from fedmon.node.job.finders.processes import Processes
from fedmon.node.job.identity import JobIdentity

_SERVICES = DAEMONS | {
    *("systemd", "init", "sshd", "sshd-session", "login", "cron", "crond", "atd", "tmux: server", "screen", "su"),
    *("sudo", "runuser", "dockerd", "containerd-shim", "conmon", "supervisord", "gdm-session-wor"),
}
"""Programs below which a job begins."""


def beginning(identity: JobIdentity, processes: Processes, own_pid: int) -> int:
    """Return the process that the job of this tool began with. Raises MethodFailedError when none can be told.

    Inside a batch job that is the highest ancestor below the scheduler's daemon; elsewhere it is whoever started the
    tool, past launchers.
    """
    found = None
    for pid in processes.ancestors(own_pid):
        if processes.name(pid) in _SERVICES:
            break
        if is_overhead(processes, pid):
            continue
        found = pid
        if identity.scheduler == "none":
            break
    if found is None:
        raise MethodFailedError("no program of the job started this tool, or it has ended")
    return found
