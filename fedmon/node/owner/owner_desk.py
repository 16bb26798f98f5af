"""The owner's door into a running node: commands that come through the control socket run on the worker's thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fedmon.node.owner.commands import OwnerCommands, RunningNode
from fedmon.node.owner.control import ControlServer

if TYPE_CHECKING:
    from fedmon.node.daemon import Daemon

TIMEOUT_S = 20.0


def open_desk(daemon: Daemon) -> ControlServer:
    """Open the owner's door into a daemon. Raises StorageError."""
    parts = daemon.parts

    def command(name: str, args: dict[str, Any]) -> dict[str, Any]:
        running = RunningNode(
            push=parts.router.push,
            check_plan=parts.services.check_plan,
            follow=daemon.follow,
            live=lambda: _live(daemon),
            measuring=parts.measuring,
            runs=parts.runs,
        )
        commands = OwnerCommands(
            daemon.folder,
            daemon.settings,
            parts.registers,
            environ=os.environ,
            boot=parts.services.boot,
            running=running,
        )
        return commands.run(name, args)

    server = ControlServer(
        daemon.folder.path,
        lambda name, args: daemon.worker.call(lambda: command(name, args), timeout_s=TIMEOUT_S),
    )
    server.start()
    return server


def _live(daemon: Daemon) -> dict[str, Any]:
    """Tell what only a running daemon knows; times are RFC 3339 in UTC.

    ``flapping`` says why connections keep getting lost; empty while they do not. ``duplicate`` is another process that
    uses this node's id. ``recording`` is "on", "off", or why samples cannot be stored at present. ``sandbox`` is how
    plans are confined that run now, None as long as that is not known or no level can be had; ``sandbox_problem`` says
    why none can run though the level would do. ``jobs`` is how many run.
    """
    found, duplicate = daemon.parts.runs.confinement.found, daemon.presence.duplicate
    error, recorder = daemon.transport.last_error, daemon.parts.measuring.recorder
    monitoring = daemon.parts.services.monitoring
    return {
        "pid": os.getpid(),
        "started": daemon.started.isoformat(timespec="seconds"),
        "boot": daemon.parts.services.boot,
        "connected": daemon.transport.is_connected,
        "since": daemon.link_since,
        "host": "" if daemon.link is None else f"{daemon.link.host.host}:{daemon.link.host.port}",
        "last_error": "" if error is None else str(error),
        "flapping": daemon.transport.flapping,
        "duplicate": None
        if duplicate is None
        else {"boot": duplicate.boot, "seen": duplicate.seen.isoformat(timespec="seconds")},
        "recording": "off" if recorder is None else recorder.problem or "on",
        "counters": daemon.counters(),
        "sandbox": None if found is None else found.level,
        "sandbox_reasons": {} if found is None else dict(found.reasons),
        "sandbox_problem": "" if found is None else found.problem,
        "jobs": daemon.parts.runs.running,
        "leases": [
            {
                "researcher_id": lease.researcher_id,
                "instance": lease.instance,
                "interval_s": lease.interval_s or monitoring.interval_s(),
            }
            for lease in monitoring.leases()
        ],
    }
