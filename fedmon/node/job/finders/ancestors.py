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

    Below the daemon of a scheduler that is the highest ancestor; elsewhere it is whoever started the tool, past
    launchers.
    """
    chain = []
    is_below_scheduler = False
    for pid in processes.ancestors(own_pid):
        name = processes.name(pid)
        is_below_scheduler = name in DAEMONS or (identity.scheduler == "oar" and is_overhead(processes, pid))
        if name in _SERVICES or is_below_scheduler:
            break
        if not is_overhead(processes, pid):
            chain.append(pid)
    if not chain:
        raise MethodFailedError("no program of the job started this tool, or it has ended")
    return chain[-1] if is_below_scheduler and identity.scheduler != "none" else chain[0]
