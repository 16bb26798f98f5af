"""The owner's door into a running node: commands that come through the control socket run on the worker's thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fedmon.node.owner import Desk, run
from fedmon.node.owner.control import ControlServer
from fedmon.node.owner.status import Live

if TYPE_CHECKING:
    from fedmon.node.daemon import Daemon

TIMEOUT_S = 20.0


def open_desk(daemon: Daemon) -> ControlServer:
    """Make the owner's desk over the parts of a daemon, and open its door. Raises StorageError."""
    services = daemon.parts.services
    desk = Desk(
        folder=daemon.folder,
        settings=daemon.settings,
        environ=os.environ,
        database=services.database,
        datasets=services.datasets,
        plans=services.plans,
        outbox=services.outbox,
        audit=services.audit,
        boot=lambda: services.boot,
        after_decision=lambda decision: daemon.parts.router.push(decision.researchers),
        plan_withdrawn=daemon.parts.runs.plan_withdrawn,
        check_plan=services.check_plan,
        runs=daemon.parts.runs,
        follow=daemon.follow,
        live=lambda: _live(daemon),
    )

    def command(name: str, args: dict[str, Any]) -> dict[str, Any]:
        desk.settings = daemon.settings
        pipeline = daemon.parts.pipeline
        desk.user_values = pipeline.user_values if pipeline.enabled else None
        desk.jobs = pipeline.jobs if pipeline.enabled else None
        return run(desk, name, args)

    server = ControlServer(
        daemon.folder.path,
        lambda name, args: daemon.worker.call(lambda: command(name, args), timeout_s=TIMEOUT_S),
    )
    server.start()
    return server


def _live(daemon: Daemon) -> Live:
    found, duplicate = daemon.parts.runs.confinement.found, daemon.presence.duplicate
    error, recorder = daemon.transport.last_error, daemon.parts.pipeline.recorder
    return Live(
        pid=os.getpid(),
        started=daemon.started.isoformat(timespec="seconds"),
        boot=daemon.parts.services.boot,
        connected=daemon.transport.is_connected,
        since=daemon.link_since,
        host="" if daemon.link is None else f"{daemon.link.host.host}:{daemon.link.host.port}",
        last_error="" if error is None else str(error),
        flapping=daemon.transport.flapping,
        duplicate=None
        if duplicate is None
        else {"boot": duplicate.boot, "seen": duplicate.seen.isoformat(timespec="seconds")},
        recording="off" if recorder is None else recorder.problem or "on",
        counters=daemon.counters(),
        sandbox=None if found is None else found.level,
        sandbox_reasons={} if found is None else dict(found.reasons),
        sandbox_problem="" if found is None else found.problem,
        jobs=daemon.parts.runs.running,
        leases=[
            {
                "researcher_id": lease.researcher_id,
                "instance": lease.instance,
                "interval_s": lease.interval_s or daemon.parts.services.leases.interval_s(),
            }
            for lease in daemon.parts.services.leases.held()
        ],
    )
