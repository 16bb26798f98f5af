"""`fedmon node start`, `status` and `stop`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fedmon.common.errors import ConflictError, NoAnswerError, StorageError
from fedmon.node.folder import DAEMON, NodeFolder
from fedmon.node.owner.cli.reach import Dir, Json, call, connected, opened
from fedmon.node.owner.cli.screen import EXIT_CODES, fields, note, print_json, seconds

STOP_WITHIN_S = 5.0


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("start", epilog=EXIT_CODES)(start)
    app.command("status", epilog=EXIT_CODES)(status)
    app.command("stop", epilog=EXIT_CODES)(stop)


def start(
    directory: Dir = None,
    log_level: Annotated[str, typer.Option(help="The lowest level of log records that is shown here.")] = "INFO",
    as_json: Json = False,
) -> None:
    """Run the node in the foreground, until Ctrl-C or a stop.

    Its log goes to standard error. Settings are checked first. A second start on the same folder is refused.
    """
    from fedmon.common.settings import load_node

    folder = opened(directory)
    settings = load_node(folder.path, os.environ)
    settings.broker.password()
    holder = folder.holder()
    if holder is not None and holder.purpose == DAEMON:
        raise ConflictError(f"the node of {folder.path} is already running, pid {holder.pid}")
    obeys_nobody = not settings.policy.researchers
    document = {"node_id": settings.id, "pid": os.getpid(), "folder": str(folder.path), "broker": settings.broker.url}
    if as_json:
        runs = {"enabled": settings.runs.enabled and settings.wire == "fedmon", "minimum": settings.runs.sandbox}
        print_json({**document, "obeys_nobody": obeys_nobody, "runs": runs})
    else:
        print(f"node {settings.id} starts, pid {os.getpid()}, broker {settings.broker.url}")
        if settings.runs.enabled and settings.wire == "fedmon":
            print(f"approved plans run, in sandbox {settings.runs.sandbox} at least (the log tells the level in force)")
    sys.stdout.flush()
    # A process of its own image, so that nothing of the command line stays in the daemon's memory.
    command = [sys.executable, "-m", "fedmon.node.daemon", "--dir", str(folder.path), "--log-level", log_level.upper()]
    os.execv(sys.executable, command)  # noqa: S606 - an argument list; there is no shell to be had


def status(directory: Dir = None, as_json: Json = False) -> None:
    """Show how the node is, running or not.

    Whether it runs and is connected, whom it obeys, what waits for you, and what it did since its start.
    """
    folder = opened(directory)
    document = call(folder, "status", "status")
    document = {"running": document["live"] is not None, **document}
    if as_json:
        print_json(document)
        return
    live = document["live"]
    print(fields(_lines(document, live)))
    if document["plans"]["pending"]:
        note("plans wait for your decision; see: fedmon node plan list --status pending")


def stop(
    directory: Dir = None,
    force: Annotated[bool, typer.Option("--force", help="End it at once when it does not stop in time.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for it to be gone.", min=0.1)] = STOP_WITHIN_S,
    as_json: Json = False,
) -> None:
    """Stop the node, and wait until it is gone."""
    folder = opened(directory)
    pid = _daemon_pid(folder)
    if pid is None:
        _stopped(folder, None, as_json=as_json)
        return
    _signal(pid, folder)
    gone = folder.wait_free(timeout)
    if not gone and force:
        _signal(pid, folder)
        gone = folder.wait_free(timeout)
    if not gone:
        way_out = f"kill -9 {pid}" if force else "fedmon node stop --force"
        raise NoAnswerError(
            f"the node of {folder.path} (pid {pid}) still runs after {timeout:g} s; end it with: {way_out}"
        )
    _stopped(folder, pid, as_json=as_json)


def _stopped(folder: NodeFolder, pid: int | None, *, as_json: bool) -> None:
    if as_json:
        print_json({"folder": str(folder.path), "was_running": pid is not None, "pid": pid})
    elif pid is None:
        print(f"The node of {folder.path} was not running.")
    else:
        print(f"The node of {folder.path} has stopped (it was pid {pid}).")


def _daemon_pid(folder: NodeFolder) -> int | None:
    """Return the running daemon: the process behind the socket where the system tells, else the holder of the lock."""
    try:
        client = connected(folder, timeout_s=1.0)
    except (NoAnswerError, StorageError):
        client = None
    if client is not None:
        with client:
            if client.daemon_pid is not None:
                return client.daemon_pid
    holder = folder.holder()
    return holder.pid if holder is not None and holder.purpose == DAEMON and holder.pid else None


def _signal(pid: int, folder: NodeFolder) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise ConflictError(
            f"the node of {folder.path} (pid {pid}) belongs to another user: stop it as that user"
        ) from None


def _lines(document: Mapping[str, Any], live: Mapping[str, Any] | None) -> list[tuple[str, object]]:
    plans = document["plans"]
    waiting = document["undelivered"]
    return [
        ("node", document["node_id"]),
        ("state", "not running" if live is None else f"running, pid {live['pid']}, since {seconds(live['started'])}"),
        ("folder", document["folder"]),
        ("broker", document["broker"] if live is None else _connection(document["broker"], live)),
        *([] if live is None else _trouble(document["node_id"], live)),
        ("policy", "\n".join(document["rules"])),
        ("runs", _runs(document["runs"], live)),
        ("datasets", document["datasets"]),
        ("plans", f"{plans['pending']} PENDING, {plans['approved']} approved, {plans['rejected']} rejected"),
        ("undelivered", ", ".join(f"{n} to {who}" for who, n in waiting.items()) or "nothing"),
        *(
            [("RESTORED", f"{seconds(document['restored']['time'])}: {document['restored']['report']}")]
            if document["restored"]
            else []
        ),
        *(("DAMAGED", f"set aside as {name}; remove it when done") for name in document["set_aside"] or ()),
        *([] if live is None else _live_lines(live)),
    ]


def _trouble(node_id: str, live: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Say what keeps the node from a steady connection under an id of its own."""
    lines: list[tuple[str, object]] = [("FLAPPING", live["flapping"])] if live["flapping"] else []
    if duplicate := live["duplicate"]:
        seen = f"boot {duplicate['boot']}, last seen {seconds(duplicate['seen'])}"
        lines.append(("DUPLICATE", f"another process uses the id {node_id!r}: {seen}; stop it, or give it another id"))
    return lines


def _runs(runs: Mapping[str, Any], live: Mapping[str, Any] | None) -> str:
    """Say whether approved plans run here, how they are confined, and what is asked for at least."""
    if not runs["enabled"]:
        return "off: no plan runs here (enabled in [runs], or a wire that has no words for it)"
    asked = f"{runs['minimum']} at least"
    if live is None:
        return f"approved plans run confined, {asked}; the level that this machine has is told while the node runs"
    if live["sandbox"] is None and not live["sandbox_reasons"]:
        return f"approved plans run confined, {asked}; what this machine has is being found out"
    if live["sandbox_problem"]:
        return f"NONE CAN RUN: {live['sandbox_problem']}"
    from fedmon.node.runs.order import is_weaker

    level = live["sandbox"] or "none"
    if live["sandbox"] is None or is_weaker(live["sandbox"], runs["minimum"]):
        why = "; ".join(f"{name}: {reason}" for name, reason in live["sandbox_reasons"].items())
        return (
            f"NONE CAN RUN: the sandbox is {level}, and the owner asks for {asked}; {why}; it is tried again by itself"
        )
    return f"approved plans run in sandbox {level} ({asked}); {live['jobs']} of {runs['max_jobs']} jobs run"


def _connection(url: str, live: Mapping[str, Any]) -> str:
    if live["connected"]:
        return f"{url}, connected to {live['host']} since {seconds(live['since'])}"
    return f"{url}, NOT CONNECTED: {live['last_error'] or 'no attempt has ended yet'}"


def _live_lines(live: Mapping[str, Any]) -> list[tuple[str, object]]:
    leases = [f"{each['researcher_id']}/{each['instance']} every {each['interval_s']:g} s" for each in live["leases"]]
    counters = [f"{name} {number}" for name, number in sorted(live["counters"].items()) if number]
    return [
        ("watched by", ", ".join(leases) or "nobody"),
        ("recording", live["recording"]),
        ("counters", ", ".join(counters) or "none yet"),
    ]
