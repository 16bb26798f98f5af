"""`fedmon node init`, `start`, `status`, `stop` and `probe`: the life of a node, and what its machine measures."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from fedmon.common.errors import ConflictError, FedmonError, NoAnswerError, StorageError
from fedmon.common.ids import checked_id, new_party_id
from fedmon.node.folder import DAEMON, NodeFolder
from fedmon.node.owner.cli.screen import ask, emit, fields, note, seconds
from fedmon.node.owner.cli.shell import Dir, Json, call, connected, default_folder, opened

if TYPE_CHECKING:
    from fedmon.common.settings import NodeSettings
    from fedmon.node.measure.survey import MetricGroup, Survey

STOP_WITHIN_S = 5.0
_GIGABYTE = 1_000_000_000
_FEW = 3


def init(
    broker: Annotated[
        str | None, typer.Option(help="Where the broker is, such as mqtt://broker.example.org or mqtts://HOST:8883.")
    ] = None,
    node_id: Annotated[str | None, typer.Option("--id", help="The node's name; made up when not given.")] = None,
    directory: Dir = None,
    username: Annotated[str | None, typer.Option(help="User at the broker.")] = None,
    password_file: Annotated[
        Path | None, typer.Option(help="File that holds the password and that only you can read.")
    ] = None,
    ca_file: Annotated[Path | None, typer.Option(help="Certificates that the broker's must come from.")] = None,
    cert_file: Annotated[Path | None, typer.Option(help="Client certificate.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="Private key of the client certificate.")] = None,
    as_json: Json = False,
) -> None:
    """Make a node in a folder that only you can read.

    Its settings lie there in node.toml, each with an explanation. Nobody is obeyed until you allow it, and nothing
    that exists is overwritten.
    """
    from fedmon.common.settings import broker_from_url

    url = broker or ask("--broker", "Broker URL", as_json=as_json, default="mqtt://localhost:1883")
    own_id = checked_id(node_id or new_party_id("node"), what="node id")
    files = {"password_file": password_file, "ca_file": ca_file, "cert_file": cert_file, "key_file": key_file}
    given: dict[str, Any] = {name: path.expanduser().absolute() for name, path in files.items() if path is not None}
    if username is not None:
        given["username"] = username
    broker_from_url(url, **given).password()
    folder = _written(directory or default_folder(), {"id": own_id}, {"url": url, **given})
    following = [f"fedmon node {verb}{_dir_option(folder)}" for verb in ("policy allow RESEARCHER", "start")]
    document = {
        "node_id": own_id,
        "folder": str(folder),
        "settings": str(folder / "node.toml"),
        "broker": url,
        "obeys_nobody": True,
        "next": following,
    }
    text = (
        f"Node {own_id} lives in {folder}; its settings are in node.toml there.\n\n"
        "IT OBEYS NOBODY YET: every request is refused until you allow a researcher. Type next:\n\n"
        f"  {following[0]}\n  {following[1]}\n\n"
        f"Offer data with: fedmon node dataset add PATH --name NAME --tags TAG,TAG{_dir_option(folder)}"
    )
    emit(document, lambda: text, as_json=as_json)


def _written(path: Path, node: dict[str, Any], broker: dict[str, Any]) -> Path:
    """Make the folder and its settings, or leave nothing behind. Returns the folder."""
    from fedmon.common.settings.sources import load_node

    is_new = not path.exists()
    folder = NodeFolder.create(path)
    values = {("node", name): value for name, value in node.items()}
    values |= {("broker", name): value for name, value in broker.items()}
    try:
        folder.write_private(folder.settings_file, new_settings(values).encode())
        load_node(folder.path, {})
    except FedmonError:
        folder.settings_file.unlink(missing_ok=True)
        if is_new:
            folder.path.rmdir()
        raise
    return folder.path


def new_settings(values: Mapping[tuple[str, str], Any]) -> str:
    """Return the text of a new node's settings file; ``values`` maps section and key to what is set.

    The rules are set from the start too, each below its comment, so that a change finds its place.
    """
    from fedmon.common.settings import PolicySettings
    from fedmon.common.settings.keys import documented_file

    rules = {
        ("policy", name): value
        for name, value in msgspec.to_builtins(PolicySettings()).items()
        if not isinstance(value, dict)
    }
    given = {place: str(value) if isinstance(value, Path) else value for place, value in values.items()}
    return documented_file("node", rules | given)


def _dir_option(folder: Path) -> str:
    if folder == default_folder().resolve() or os.environ.get("FEDMON_NODE_DIR") == str(folder):
        return ""
    return f" --dir {shlex.quote(str(folder))}"


def start(
    directory: Dir = None,
    log_level: Annotated[str, typer.Option(help="The lowest level of log records that is shown here.")] = "INFO",
    as_json: Json = False,
) -> None:
    """Run the node in the foreground, until Ctrl-C or a stop.

    Its log goes to standard error. Settings are checked first. A second start on the same folder is refused.
    """
    from fedmon.common.settings.sources import load_node

    folder = opened(directory)
    settings = load_node(folder.path, os.environ)
    settings.broker.password()
    holder = folder.holder()
    if holder is not None and holder.purpose == DAEMON:
        raise ConflictError(f"the node of {folder.path} is already running, pid {holder.pid}")
    obeys_nobody = not settings.policy.researchers
    document = {"node_id": settings.id, "pid": os.getpid(), "folder": str(folder.path), "broker": settings.broker.url}
    runs = {"enabled": settings.runs.enabled and settings.wire == "fedmon", "minimum": settings.runs.sandbox}
    text = f"node {settings.id} starts, pid {os.getpid()}, broker {settings.broker.url}"
    if runs["enabled"]:
        text += f"\napproved plans run, in sandbox {settings.runs.sandbox} at least (the log tells the level in force)"
    emit({**document, "obeys_nobody": obeys_nobody, "runs": runs}, lambda: text, as_json=as_json)
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
    emit(document, lambda: fields(_lines(document, document["live"])), as_json=as_json)
    if not as_json and document["plans"]["pending"]:
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
    document = {"folder": str(folder.path), "was_running": pid is not None, "pid": pid}
    outcome = "was not running." if pid is None else f"has stopped (it was pid {pid})."
    emit(document, lambda: f"The node of {folder.path} {outcome}", as_json=as_json)


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


def probe(
    directory: Dir = None,
    proc: Annotated[Path | None, typer.Option(help="A folder that stands in for /proc.")] = None,
    sys: Annotated[Path | None, typer.Option(help="A folder that stands in for /sys.")] = None,
    cgroup: Annotated[Path | None, typer.Option(help="A folder that stands in for /sys/fs/cgroup.")] = None,
    as_json: Json = False,
) -> None:
    """Show what this machine measures, from which source, how often, and why not; and what it is made of.

    Needs no running node, and no node at all: without a folder the default settings hold. With folders that stand in
    for those of the kernel, the results are marked as simulated.
    """
    from fedmon.node.measure.survey import survey

    path, settings = _settings(directory)
    given = {"proc_root": proc, "sys_root": sys, "cgroup_root": cgroup}
    roots = {name: root.absolute() for name, root in given.items() if root is not None}
    metrics = msgspec.structs.replace(settings.metrics, **roots)
    found = survey(msgspec.structs.replace(settings, metrics=metrics))
    where = {name: str(getattr(metrics, f"{name}_root")) for name in ("proc", "sys", "cgroup")}
    document = {"settings": path, "roots": where, **msgspec.to_builtins(found)}
    emit(document, lambda: _survey(found, path, where.values()), as_json=as_json)


def _survey(found: Survey, settings: str | None, roots: Iterable[str]) -> str:
    parts = [
        f"Read from {', '.join(roots)}.\nSettings: {settings or 'the defaults, since there is no node'}.",
        *map(_block, found.groups),
        f"Machine{' (simulated)' if found.simulated else ''}\n{_machine(found)}",
    ]
    mark = "SIMULATED: trees of files stand in for this machine.\n" if found.simulated else ""
    return mark + "\n\n".join(parts)


def _settings(directory: Path | None) -> tuple[str | None, NodeSettings]:
    """Return the settings file and what it says; the defaults where no folder is named and none is at its place."""
    from fedmon.common.settings import NodeSettings, broker_from_url
    from fedmon.common.settings.broker import DEFAULT_URL
    from fedmon.common.settings.sources import load_node

    if directory is None and not (default_folder() / "node.toml").exists():
        return None, NodeSettings(id="probe", broker=broker_from_url(DEFAULT_URL))
    folder = NodeFolder.open(directory or default_folder())
    return str(folder.settings_file), load_node(folder.path, os.environ)


def _block(group: MetricGroup) -> str:
    """Return what one group measures, by source, and below it what it does not, by reason."""
    from fedmon.node.measure.survey import by_source

    measured = [finding for finding in group.metrics if finding.reason is None]
    absent = [finding for finding in group.metrics if finding.reason is not None]
    title = f"{group.name}: {len(measured)} of {len(group.metrics)} metrics, every {group.every}"
    lines = [title.replace("every each", "each")]
    for source, findings in by_source(measured):
        names = ", ".join(f"{each.name} ({each.series})" if each.series > 1 else each.name for each in findings)
        lines.append(_indented([(f"from {source}", names)]))
        lines += [_indented([(f"except {key}", why)]) for each in findings for key, why in each.missing.items()]
    for reason, findings in by_source(absent):
        names = ", ".join(each.name for each in findings) if measured or len(findings) <= _FEW else "all of them"
        lines.append(_indented([(f"absent ({reason})", names)]))
    return "\n".join(lines)


def _indented(pairs: list[tuple[str, str]]) -> str:
    """Return a heading, and under it what belongs to it."""
    return "\n".join(f"{fields([('  ', head)])}\n{fields([('      ', text)])}" for head, text in pairs)


def _machine(found: Survey) -> str:
    machine = found.hardware
    reasons: dict[str, str] = machine["reasons"]
    pairs = [
        (name, _told(name, value, reasons))
        for name, value in machine.items()
        if name not in ("reasons", "notes", "simulated")
    ]
    pairs += [(f"{name} note", text) for name, text in machine["notes"].items()]
    return fields(pairs)


def _told(name: str, value: Any, reasons: dict[str, str]) -> str:
    if value is None:
        return f"unknown ({reasons[name]})" if name in reasons else "none"
    if isinstance(value, list):
        return "\n".join(_one(each) for each in value) or "none"
    return f"{value / _GIGABYTE:.1f} GB" if name.endswith("_bytes") else str(value)


def _one(part: dict[str, Any]) -> str:
    """Return a part of the machine on one line; what is unknown of it is left out."""
    told = []
    for name, value in part.items():
        if value is None or value == []:
            continue
        if name.endswith("_bytes"):
            told.append(f"{value / _GIGABYTE:.1f} GB" if value >= _GIGABYTE else f"{value / 1024:.0f} KiB")
        else:
            told.append(f"{name} {', '.join(value) if isinstance(value, list) else value}")
    return ", ".join(told)
