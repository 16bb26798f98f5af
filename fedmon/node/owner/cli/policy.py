"""`fedmon node policy` and `config`: the researchers that are obeyed, the data that leaves, and every setting."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import typer

from fedmon.common.settings.values import LogLevel
from fedmon.common.text import table
from fedmon.node.owner.cli.shell import Shell, group, record, verb

policy = group("policy", "Choose whom this node obeys, and which data leaves it.")
config = group("config", "See the settings and their origin.")

Researchers = Annotated[
    list[str] | None, typer.Argument(metavar="RESEARCHER", help="Ids of researchers; '*' means all.")
]
Datasets = Annotated[
    list[str] | None, typer.Option("--dataset", help="Only about this dataset (name or id); repeatable.")
]
Metrics = Annotated[
    list[str] | None, typer.Option("--metric", help="Metrics by name or glob, such as 'host_cpu_*'; repeatable.")
]
Level = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        case_sensitive=False,
        help="DEBUG, INFO, WARNING, ERROR or CRITICAL: allow lets records of this level and above leave, deny keeps "
        "those of this level and below; allow NONE: no record leaves.",
    ),
]
JobOutput = Annotated[
    bool, typer.Option("--job-output", help="Output and log records of jobs, and the text of their errors.")
]


@verb(policy, "show")
def show(shell: Shell) -> None:
    """Show the rules in force.

    They are those of the running node, else those that its start would read.
    """
    status = shell.call("status")
    document = {name: status[name] for name in ("policy", "rules", "obeys_nobody")}
    shell.emit(document, lambda: _rules(document))


def _rules(document: Mapping[str, Any]) -> str:
    return "\n".join(map(record, document["rules"]))


def _rule(name: str, purpose: str) -> None:
    """Make the verb that allows or denies."""

    def change(
        shell: Shell,
        researchers: Researchers = None,
        datasets: Datasets = None,
        metrics: Metrics = None,
        log_level: Level = None,
        job_output: JobOutput = False,
    ) -> None:
        if not researchers and (datasets or not (metrics or log_level or job_output)):
            researchers = shell.ask("RESEARCHER", "Id of the researcher").split()
        wish = {"researchers": researchers or [], "datasets": datasets or [], "metrics": metrics or []}
        change_policy(shell, name, **wish, log_level=log_level, job_output=job_output)

    change.__doc__ = purpose
    verb(policy, name)(change)


_rule(
    "allow",
    """Accept researchers, or let more data leave the node.

    With --dataset, that dataset is listed to them, and from then on only to those named for it. --metric, --log-level
    and --job-output let metrics, log records and the words of jobs leave. Takes effect at once, also in a running node.
    """,
)
_rule(
    "deny",
    """Refuse researchers, or let less data leave the node.

    With --dataset, only that dataset is hidden from them. --metric takes back the same glob. Takes
    effect at once, also in a running node.
    """,
)


def change_policy(shell: Shell, verb: str, **wish: object) -> None:
    """Allow or deny the fields of a `PolicyWish`, and print the rules that hold from then on."""
    result = shell.show("policy-change", _rules, verb=verb, wish=wish)
    for text in result["notes"]:
        shell.note(text)


@verb(config, "path")
def path(shell: Shell) -> None:
    """Print where the settings file is."""
    file = str(shell.folder.settings_file)
    shell.emit({"path": file}, lambda: file)


@verb(config, "show")
def show_config(shell: Shell) -> None:
    """Show every setting, and where it comes from.

    Values are those that `fedmon node start` would read in this shell. Of secrets only the file's name is a setting,
    so none is ever shown.
    """
    from fedmon.common.settings.keys import keys_of
    from fedmon.common.settings.sources import load_node, node_origins

    folder = shell.folder
    settings, origins = load_node(folder.path, os.environ), node_origins(folder.path, os.environ)
    if settings.broker.username is not None:  # it may be a part of the URL
        origins.setdefault(("broker", "username"), "file")
    document: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=str)
    document["broker"]["url"] = settings.broker.url
    found = [
        {"key": f"{key.section}.{name}", "value": value, "origin": origins.get((key.section, name), "default")}
        for key in keys_of("node")
        for name in (document[key.section] if key.is_any_name else [key.name])
        for value in [(document if key.section == "node" else document[key.section])[name]]
    ]
    rows = [[each["key"], _text(each["value"]), each["origin"]] for each in found]
    shell.emit(
        {"path": str(folder.settings_file), "settings": found},
        lambda: f"Settings of {folder.settings_file}\n\n{table(['key', 'value', 'from'], rows)}",
    )


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
