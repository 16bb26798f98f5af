"""`fedmon node init`, `start`, `status`, `stop` and `probe`: the life of a node, and the metrics of its machine."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from fedmon.common.errors import ConflictError, InvalidInputError, NoAnswerError, StorageError
from fedmon.common.ids import checked_id, new_party_id
from fedmon.common.log import LEVELS
from fedmon.common.text import plural, size, table
from fedmon.node.folder import DAEMON, NodeFolder
from fedmon.node.owner.cli.dataset import problems
from fedmon.node.owner.cli.shell import Shell, ago, default_folder, dir_option, fields, group, verb
from fedmon.node.owner.control import DaemonNotRunningError, daemon_pid

if TYPE_CHECKING:
    from fedmon.common.settings.values import NodeSettings
    from fedmon.node.measure.survey import MetricGroup, Survey

STOP_WITHIN_S = 5.0
_FEW = 3

app = group("node", "Run and own a node beside your data.", add_completion=False)


@verb(app, "init", is_there=False)
def init(
    shell: Shell,
    broker: Annotated[
        str | None, typer.Option(envvar="FEDMON_BROKER_URL", help="Broker URL, such as mqtts://broker.example.org.")
    ] = None,
    node_id: Annotated[str | None, typer.Option("--id", help="Node's name (default: username, or a new one).")] = None,
    username: Annotated[str | None, typer.Option(help="User at the broker.")] = None,
    password_file: Annotated[
        Path | None, typer.Option(help="File that holds the password and that only you can read.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates of the authorities that sign the broker's.")
    ] = None,
    cert_file: Annotated[Path | None, typer.Option(help="Client certificate.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="Private key of the client certificate.")] = None,
) -> None:
    """Make a node in a folder that only you can read.

    Its settings are in node.toml there, each with an explanation. The node refuses every researcher until you allow
    one, and no existing file is overwritten.
    """
    from fedmon.common.settings.broker import broker_from_url
    from fedmon.common.wire.connection import tls_context

    url = broker or shell.ask("--broker", "Broker URL", default="mqtt://localhost:1883")
    files = {"password_file": password_file, "ca_file": ca_file, "cert_file": cert_file, "key_file": key_file}
    given: dict[str, Any] = {name: path.absolute() for name, path in files.items() if path is not None}
    given |= {"username": username} if username else {}
    settings = broker_from_url(url, **given)
    # The broker holds a node to the name of its user, or to that of its certificate.
    named = node_id or settings.username or (cert_file and shell.ask("--id", "Common name of the certificate"))
    own_id = checked_id(named or new_party_id("node"), what="--id (default: the user)")
    settings.password()
    if settings.tls:
        tls_context(settings)
    folder = NodeFolder.create(shell.folder.path)
    values = {("broker", name): value for name, value in {"url": url, **given}.items()}
    values |= {("node", "id"): own_id, ("release", "mode"): "check"}
    folder.write_private(folder.settings_file, new_settings(values).encode())
    where = dir_option(folder.path)
    following = [f"fedmon node {verb}{where}" for verb in ("policy allow RESEARCHER", "start")]
    document = {
        "node_id": own_id,
        "folder": str(folder.path),
        "settings": str(folder.settings_file),
        "broker": url,
        "obeys_nobody": True,
        "next": following,
    }
    text = (
        f"Node {own_id} lives in {folder.path}, its settings in node.toml there. Another node needs another --id.\n\n"
        "IT OBEYS NO RESEARCHER YET: every request is refused until you allow one (`fedmon whoami` shows their id).\n"
        "Type next:\n\n"
        f"  {following[0]}\n  {following[1]}\n\n"
        f"Offer data with: fedmon node dataset add PATH --name NAME --tags TAG,TAG{where}"
    )
    shell.emit(document, lambda: text)


def new_settings(values: Mapping[tuple[str, str], Any]) -> str:
    """Return the text of a new node's settings file; ``values`` maps section and key to the setting.

    The rules are set from the start too, each below its comment, so that a change finds its place.
    """
    from fedmon.common.settings.keys import documented_file
    from fedmon.common.settings.values import PolicySettings

    rules = {
        ("policy", name): value
        for name, value in msgspec.to_builtins(PolicySettings()).items()
        if not isinstance(value, dict)
    }
    return documented_file("node", {**rules, **values})


@verb(app, "start")
def start(
    shell: Shell,
    log_level: Annotated[str, typer.Option(help="The lowest level of log records to show here.")] = "INFO",
) -> None:
    """Run the node in the foreground, until Ctrl-C or a stop.

    Its log goes to standard error. Settings are checked first. A second start on the same folder is refused.
    """
    from fedmon.common.settings.sources import load_node

    if log_level.upper() not in LEVELS:
        raise InvalidInputError(f"--log-level {log_level}: allowed is one of {', '.join(LEVELS)}")
    folder = shell.folder
    settings = load_node(folder.path, os.environ)
    settings.broker.password()
    if (holder := folder.holder()) is not None and holder.purpose == DAEMON:
        raise folder.in_use()
    document = {"node_id": settings.id, "pid": os.getpid(), "folder": str(folder.path), "broker": settings.broker.url}
    runs = {"enabled": settings.runs.enabled and settings.wire == "fedmon", "minimum": settings.runs.sandbox}
    text = f"node {settings.id} starts, pid {os.getpid()}, broker {settings.broker.url}"
    shell.emit({**document, "obeys_nobody": not settings.policy.researchers, "runs": runs}, lambda: text)
    sys.stdout.flush()
    # A process of its own image, so that nothing of the command line stays in the daemon's memory.
    command = [sys.executable, "-P", "-m", "fedmon.node.daemon", "--dir", str(folder.path)]
    os.execv(sys.executable, [*command, "--log-level", log_level.upper()])  # noqa: S606 - an argument list; there is no shell to be had


@verb(app, "status")
def status(shell: Shell) -> None:
    """Show open tasks and the state of the node.

    Its connection, accepted researchers, plans, runs and results.
    """
    document = state_of(shell)
    shell.emit({"running": document["live"] is not None, **document}, lambda: fields(dict(_lines(document))))


def state_of(shell: Shell) -> dict[str, Any]:
    """Return the state of the node, with the reason of each dataset that no plan gets."""
    state = shell.call("status")
    state["unusable"] = problems(shell, shell.call("dataset-list")["datasets"])
    return state


@verb(app, "quota")
def quota(shell: Shell) -> None:
    """Show each researcher's use of the quotas.

    The limits are those of [quota] in node.toml. Refused requests are counted since the node's start.
    """
    shell.show("quota", _quotas)


def _quotas(document: Mapping[str, Any]) -> str:
    most = document["quota"]
    heads = ["researcher", "requests", "changes", "undecided", "jobs", "kept", "audit", "refused"]
    allowed = [
        "allowed",
        f"{most['requests_per_s']:g}/s",
        f"{most['changes_per_hour']}/h",
        most["undecided_plans"],
        f"{most['jobs_per_day']}/d",
        size(most["kept_bytes"]),
        f"{size(most['audit_bytes_per_day'])}/d",
        "",
    ]
    rows = [
        [
            each["researcher_id"],
            *("-" if each[key] is None else each[key] for key in ("requests", "changes")),
            each["undecided_plans"],
            each["jobs"],
            size(each["kept_bytes"]),
            "-" if each["audit_bytes"] is None else size(each["audit_bytes"]),
            "-" if each["refused"] is None else sum(each["refused"].values()),
        ]
        for each in document["researchers"]
    ]
    note = "" if document["running"] else "\n-: not known, because the node is not running"
    return table(heads, [allowed, *rows]) + note


@verb(app, "stop")
def stop(
    shell: Shell,
    force: Annotated[bool, typer.Option("--force", help="End it at once if it does not stop in time.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for its end.", min=0.1)] = STOP_WITHIN_S,
) -> None:
    """Stop the node, and wait until it is gone."""
    folder = shell.folder
    pid = _daemon_pid(folder)
    if pid is not None and not any(_is_ended(pid, folder, timeout) for _ in range(2 if force else 1)):
        way_out = f"kill -9 {pid}" if force else "fedmon node stop --force" + dir_option(folder.path)
        raise NoAnswerError(
            f"the node of {folder.path} (pid {pid}) still runs after {timeout:g} s; end it with: {way_out}"
        )
    document = {"folder": str(folder.path), "was_running": pid is not None, "pid": pid}
    outcome = "was not running." if pid is None else f"has stopped (it was pid {pid})."
    shell.emit(document, lambda: f"The node of {folder.path} {outcome}")


def _daemon_pid(folder: NodeFolder) -> int | None:
    """Return the running daemon: the process behind the socket where the system tells it, else the lock's holder."""
    with contextlib.suppress(DaemonNotRunningError, NoAnswerError, StorageError):
        pid = daemon_pid(folder.path, timeout_s=1.0)
        if pid == 0:
            raise ConflictError(f"the node of {folder.path} runs in another process namespace: stop it there")
        if pid is not None:
            return pid
    holder = folder.holder()
    return holder.pid if holder is not None and holder.purpose == DAEMON and holder.pid else None


def _is_ended(pid: int, folder: NodeFolder, timeout_s: float) -> bool:
    """Ask the daemon to end, at a second time at once; return whether it is gone in time."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGTERM)
    return folder.wait_free(timeout_s)


def _needs(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each thing that waits for the owner."""
    pending, refused = document["plans"]["pending"] + document["grants"]["asked_again"], document["refused"]
    if pending:
        yield f"{plural(pending, 'plan waits', 'plans wait')} for your decision: fedmon node requests"
    if held := document["release"]["held"]:
        yield f"{plural(held, 'result waits', 'results wait')} for your decision: fedmon node results"
    if refused:
        last = refused[0]
        others = f", and {plural(len(refused) - 1, 'other')}" if refused[1:] else ""
        yield (
            f"researcher {last['researcher_id']} was refused {plural(last['times'], 'time')}, last "
            f"{ago(last['last'])}{others}: fedmon node requests"
        )
    if document["obeys_nobody"]:
        yield str(document["rules"][0])
    if document["restored"]:
        yield f"RESTORED {ago(document['restored']['time'])}: {document['restored']['report']}"
    if (live := document["live"]) is None:
        yield "the node is not running: fedmon node start"
    elif not live["connected"]:
        yield f"NOT CONNECTED to {document['broker']}: {live['last_error'] or 'no attempt has ended yet'}"


def troubles(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each thing that keeps a node from its work, but for a lost connection."""
    for name, problem in document["unusable"].items():
        yield f"no plan gets dataset {name!r}: {problem}"
    for name in document["set_aside"] or ():
        yield f"DAMAGED and set aside: {name}; remove it when done"
    if (live := document["live"]) is None:
        return
    if live["flapping"]:
        yield f"FLAPPING: {live['flapping']}"
    if live["connected"] and live["unheard"]:
        yield (
            "NOT HEARD: the broker drops all messages of this node; its user there, or the common name of its "
            f"certificate, must be {document['node_id']!r}"
        )
    if duplicate := live["duplicate"]:
        seen = f"boot {duplicate['boot']}, last seen {ago(duplicate['seen'])}"
        yield f"DUPLICATE: another process uses the id {document['node_id']!r} ({seen}); stop it, or rename one"
    if lost := live["counters"].get("unaudited"):
        yield f"{plural(lost, 'message')} left without a line in the audit, which could not be written"
    if live["recording"] not in ("on", "off"):
        yield f"samples are not stored: {live['recording']}"
    if document["runs"]["enabled"] and (why := _unconfined(document["runs"]["minimum"], live)):
        yield f"NONE CAN RUN of the approved plans: {why}"


def _unconfined(minimum: Any, live: Mapping[str, Any]) -> str:
    """Return why no plan can run here; empty if plans can, or while the node still finds out."""
    from fedmon.node.runs.folder import is_weaker

    if live["sandbox_problem"] or (live["sandbox"] is None and not live["sandbox_reasons"]):
        return str(live["sandbox_problem"])
    if live["sandbox"] is not None and not is_weaker(live["sandbox"], minimum):
        return ""
    why = "; ".join(f"{name}: {reason}" for name, reason in live["sandbox_reasons"].items())
    return f"the sandbox is {live['sandbox'] or 'none'}, you ask for {minimum} at least; {why}; it is tried again"


def _lines(document: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    live = document["live"]
    needs = [f"* {each}" for each in (*troubles(document), *_needs(document))]
    yield "needs you", "\n".join(needs) or "nothing"
    running = "not running" if live is None else f"running, pid {live['pid']}, started {ago(live['started'])}"
    yield "node", f"{document['node_id']}, {running}"
    connection = f", connected to {live['host']} {ago(live['since'])}" if live and live["connected"] else ""
    yield "broker", f"{document['broker']}{connection}"
    yield "policy", "\n".join(document["rules"][document["obeys_nobody"] :])
    yield "plans", ", ".join(f"{number} {name}" for name, number in document["plans"].items())
    if number := document["grants"]["without_limit"]:
        are = plural(number, "grant is", "grants are")
        yield "grants", f"{are} for every researcher, without end, as approvals of earlier releases; reset to end them"
    yield "runs", _runs(document["runs"], live)
    yield "results", _release(document)
    yield "datasets", document["datasets"]
    yield "folder", document["folder"]


def _release(document: Mapping[str, Any]) -> str:
    """Return how results leave."""
    mode = document["release"]["mode"]
    says = {
        "auto": "leave unchecked",
        "check": "leave if they keep the rules of [release]; others wait for you",
        "ask": "wait for you, each of them",
    }
    is_open = mode != "auto" and document["policy"]["job_output"]
    return f"{says[mode]} (mode {mode}){'; OUTPUT LEAVES UNCHECKED, by job_output' if is_open else ''}"


def _runs(runs: Mapping[str, Any], live: Mapping[str, Any] | None) -> str:
    """Return whether approved plans run here, how they are confined, and the weakest level that the owner accepts."""
    if not runs["enabled"]:
        return "off: no plan runs here (enabled in [runs], or a wire without runs)"
    level = None if live is None else live["sandbox"]
    found = f"approved plans run in sandbox {level}" if level else "approved plans run confined"
    going = "" if live is None else f"; {live['jobs']} of {runs['max_jobs']} jobs run"
    return f"{found} ({runs['minimum']} at least){going}"


@verb(app, "probe", is_there=False)
def probe(
    shell: Shell,
    proc: Annotated[Path | None, typer.Option(help="A folder to read instead of /proc.")] = None,
    sys: Annotated[Path | None, typer.Option(help="A folder to read instead of /sys.")] = None,
    cgroup: Annotated[Path | None, typer.Option(help="A folder to read instead of /sys/fs/cgroup.")] = None,
) -> None:
    """List this machine's metrics, their sources, and its hardware.

    A metric that is absent has the reason. Needs no node: without a folder the default settings apply. With other
    folders than the kernel's, the results are marked as simulated.
    """
    from fedmon.node.measure.survey import survey

    path, settings = _settings(shell.folder)
    given = {"proc_root": proc, "sys_root": sys, "cgroup_root": cgroup}
    roots = {name: root.absolute() for name, root in given.items() if root is not None}
    metrics = msgspec.structs.replace(settings.metrics, **roots)
    found = survey(msgspec.structs.replace(settings, metrics=metrics))
    where = {name: str(getattr(metrics, f"{name}_root")) for name in ("proc", "sys", "cgroup")}
    document = {"settings": path, "roots": where, **msgspec.to_builtins(found)}
    shell.emit(document, lambda: _survey(found, path, where.values()))


def _survey(found: Survey, settings: str | None, roots: Iterable[str]) -> str:
    mark = "SIMULATED: read from trees of files, not from this machine.\n" if found.simulated else ""
    return "\n\n".join(
        [
            f"{mark}Read from {', '.join(roots)}.\nSettings: {settings or 'the defaults, since there is no node'}.",
            *map(_block, found.groups),
            f"Machine\n{fields(_machine(found.hardware))}",
        ]
    )


def _settings(folder: NodeFolder) -> tuple[str | None, NodeSettings]:
    """Return the settings file and its settings; the defaults if there is no node in your data folder."""
    from fedmon.common.settings.broker import DEFAULT_URL, broker_from_url
    from fedmon.common.settings.sources import load_node
    from fedmon.common.settings.values import NodeSettings

    if folder.path == default_folder().resolve() and not folder.settings_file.exists():
        return None, NodeSettings(id="probe", broker=broker_from_url(DEFAULT_URL))
    NodeFolder.open(folder.path)
    return str(folder.settings_file), load_node(folder.path, os.environ)


def _block(group: MetricGroup) -> str:
    """Return the metrics of one group by source, and below them the absent ones by reason."""
    from fedmon.node.measure.survey import by_source

    measured = [finding for finding in group.metrics if finding.reason is None]
    absent = [finding for finding in group.metrics if finding.reason is not None]
    title = f"{group.name}: {len(measured)} of {len(group.metrics)} metrics, every {group.every}"
    lines = [title.replace("every each", "each")]
    for source, findings in by_source(measured):
        names = ", ".join(f"{each.name} ({each.series})" if each.series > 1 else each.name for each in findings)
        lines.append(_indented(f"from {source}", names))
        lines += [_indented(f"except {key}", why) for each in findings for key, why in each.missing.items()]
    for reason, findings in by_source(absent):
        names = ", ".join(each.name for each in findings) if measured or len(findings) <= _FEW else "all of them"
        lines.append(_indented(f"absent ({reason})", names))
    return "\n".join(lines)


def _indented(head: str, text: str) -> str:
    """Return a heading, and its text indented under it."""
    return f"{fields({'  ': head})}\n{fields({'      ': text})}"


def _machine(hardware: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the known hardware in words, a device on each line; then why the rest is unknown, and cautions."""
    parts = {name: value for name, value in hardware.items() if name not in ("simulated", "reasons", "notes")}
    said = {"unknown": hardware["reasons"], "note": hardware["notes"]}
    lines = {title: "\n".join(f"{name}: {why}" for name, why in each.items()) or None for title, each in said.items()}
    return {**{name.removesuffix("_bytes"): _told(name, value) for name, value in parts.items()}, **lines}


def _told(name: str, value: Any) -> str | None:
    if isinstance(value, list):
        told = [_told(name, each) or "unknown" for each in value]
        return ("\n" if any(isinstance(each, dict) for each in value) else ", ").join(told) or "none"
    if isinstance(value, dict):
        known = {key: _told(key, each) for key, each in value.items()}
        return ", ".join(f"{key.removesuffix('_bytes')} {text}" for key, text in known.items() if text is not None)
    return None if value is None else size(value) if name.endswith("_bytes") else str(value)
