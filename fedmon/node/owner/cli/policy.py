"""`fedmon node policy` and `config`: the researchers that are obeyed, the data that leaves, and every setting."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tomllib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from fedmon.common.errors import ConflictError, InvalidInputError, NotFoundError, StorageError
from fedmon.common.ids import chosen
from fedmon.common.text import one_line, table
from fedmon.node.owner.cli.screen import width
from fedmon.node.owner.cli.shell import Shell, group, login, verb

if TYPE_CHECKING:
    from fedmon.common.settings import PolicySettings
    from fedmon.node.requests.policy import PolicyChange, PolicyWish

policy = group("policy", "Say whom this node obeys, and what leaves it.")
config = group("config", "See the settings and where they come from.")

Researchers = Annotated[
    list[str] | None, typer.Argument(metavar="RESEARCHER", help="Ids of researchers; '*' is everybody.")
]
Datasets = Annotated[
    list[str] | None, typer.Option("--dataset", help="Only about this dataset (name or id); repeatable.")
]
Metrics = Annotated[
    list[str] | None, typer.Option("--metric", help="Metrics by name or glob, such as 'host_cpu_*'; repeatable.")
]
JobOutput = Annotated[bool, typer.Option("--job-output", help="What jobs print and log, and the text of their errors.")]
_ATTEMPTS = 5


@verb(policy, "show")
def show(shell: Shell) -> None:
    """Show the rules that hold.

    They are those of the running node, else those that its start would read.
    """
    status = shell.call("status")
    document = {name: status[name] for name in ("policy", "rules", "obeys_nobody")}
    shell.emit(document, lambda: "\n".join(map(one_line, document["rules"])))


@verb(policy, "allow")
def allow_(
    shell: Shell,
    researchers: Researchers = None,
    datasets: Datasets = None,
    metrics: Metrics = None,
    log_level: Annotated[
        str | None,
        typer.Option(
            help="Log records of this level and above leave: DEBUG, INFO, WARNING, ERROR, CRITICAL; NONE: none leaves."
        ),
    ] = None,
    job_output: JobOutput = False,
) -> None:
    """Obey researchers, or let more leave the node.

    With --dataset, that dataset is listed to them, and from then on only to those named for it. --metric, --log-level
    and --job-output let metrics, log records and the words of jobs leave. Takes effect at once, also in a running node.
    """
    wish = _wish(shell, researchers, datasets, metrics, log_level, job_output=job_output)
    change_policy(shell, "allow", wish)


@verb(policy, "deny")
def deny_(
    shell: Shell,
    researchers: Researchers = None,
    datasets: Datasets = None,
    metrics: Metrics = None,
    log_level: Annotated[
        str | None,
        typer.Option(help="Log records of this level and below stay here: DEBUG, INFO, WARNING, ERROR or CRITICAL."),
    ] = None,
    job_output: JobOutput = False,
) -> None:
    """Obey researchers no longer, or let less leave the node.

    With --dataset, only that dataset is hidden from them. --metric takes back what was allowed by the same glob. Takes
    effect at once, also in a running node.
    """
    wish = _wish(shell, researchers, datasets, metrics, log_level, job_output=job_output)
    change_policy(shell, "deny", wish)


def _wish(
    shell: Shell,
    researchers: list[str] | None,
    datasets: list[str] | None,
    metrics: list[str] | None,
    log_level: str | None,
    *,
    job_output: bool,
) -> PolicyWish:
    from fedmon.node.requests.policy import LEVELS, PolicyWish

    level = None if log_level is None else log_level.upper()
    if level is not None and level not in LEVELS:
        raise InvalidInputError(f"--log-level {log_level}: allowed is one of {', '.join(LEVELS)}")
    if not researchers and (datasets or not (metrics or level or job_output)):
        researchers = shell.ask("RESEARCHER", "Id of the researcher").split()
    return PolicyWish(
        researchers=researchers or (),
        datasets=datasets or (),
        metrics=metrics or (),
        log_level=level,
        job_output=job_output,
    )


def change_policy(shell: Shell, verb: str, wish: PolicyWish) -> None:
    """Allow or deny what is wished, and print the rules that hold from then on."""
    datasets = _datasets(shell, wish.datasets)
    result, change = _written(shell, verb, msgspec.structs.replace(wish, datasets=tuple(datasets)))
    notes = [*change.notes]
    notes += [
        f"there is no dataset {name!r} here yet; the rule waits for it" for name, found in datasets.items() if not found
    ]
    notes += [
        f"the environment variable {variable} overrides what was written: unset it where the node is started"
        for variable in result["overridden_by"]
    ]
    shell.emit({**result, "notes": notes}, lambda: "\n".join(map(one_line, result["rules"])))
    for text in notes:
        shell.note(text)


def _written(shell: Shell, verb: str, wish: PolicyWish) -> tuple[dict[str, Any], PolicyChange]:
    """Change node.toml; if it was changed by another process meanwhile, change its new text."""
    from fedmon.common.settings.sources import load_node
    from fedmon.node.requests.policy import allow, deny

    folder = shell.folder
    environ = {name: text for name, text in os.environ.items() if not name.startswith("FEDMON_POLICY_")}
    attempt = 0
    while True:
        attempt += 1
        try:
            content = folder.settings_file.read_bytes()
        except OSError as error:
            raise StorageError(f"cannot read {folder.settings_file}: {error.strerror}") from error
        change = (allow if verb == "allow" else deny)(load_node(folder.path, environ).policy, wish)
        try:
            result = shell.call(
                "settings-write",
                text=with_policy(content.decode(), change.policy),
                made_from_sha256=hashlib.sha256(content).hexdigest(),
                change={"verb": verb, **{name: value for name, value in msgspec.to_builtins(wish).items() if value}},
                by=login(),
            )
        except ConflictError:
            if attempt == _ATTEMPTS:
                raise
        else:
            return result, change


def with_policy(text: str, policy: PolicySettings) -> str:
    """Return the text with these rules in its [policy] section; nothing else changes, comments included."""
    import tomlkit

    from fedmon.common.settings import PolicySettings

    document = tomlkit.parse(text)
    section: Any = document.setdefault("policy", tomlkit.table())
    for name in PolicySettings.__struct_fields__:
        value = msgspec.to_builtins(getattr(policy, name))
        default = msgspec.to_builtins(getattr(PolicySettings(), name))
        if name not in section and value == default:
            continue
        if isinstance(value, dict):
            _put_table(section, name, value)
        elif isinstance(value, tuple):
            _put_list(section, name, value)
        elif section.get(name) != value:
            section[name] = value
    return tomlkit.dumps(document)


def _put_table(section: Any, name: str, value: Mapping[str, Any]) -> None:
    import tomlkit

    if name not in section:
        is_inline = isinstance(section, tomlkit.items.InlineTable)
        section[name] = tomlkit.inline_table() if is_inline else tomlkit.table()
    table = section[name]
    for key in [key for key in table if key not in value]:
        del table[key]
    for key, names in value.items():
        _put_list(table, key, names)


def _put_list(table: Any, name: str, value: Sequence[str]) -> None:
    """Take out and add single names, so that a comment beside one that stays is kept."""
    if not isinstance(table.get(name), list):
        table[name] = list(value)
        return
    present = table[name]
    for known in [known for known in present if known not in value]:
        present.remove(known)
    for wanted in value:
        if wanted not in present:
            present.append(wanted)


def _datasets(shell: Shell, given: Sequence[str]) -> dict[str, bool]:
    """Map each dataset, a prefix of its id as the whole id, to whether it is there."""
    known = shell.call("dataset-list")["datasets"] if given else []
    names = {each["name"] for each in known}
    ids = {each["dataset_id"].removeprefix(cut): each["dataset_id"] for each in known for cut in ("", "dataset_")}
    found = {}
    for each in given:
        with contextlib.suppress(NotFoundError, InvalidInputError):
            found[each if each in names else chosen(each, ids, what="dataset", see="fedmon node dataset list")] = True
            continue
        found[each] = False
    return found


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
    from fedmon.common.settings.sources import load_node

    folder = shell.folder
    settings = load_node(folder.path, os.environ)
    with folder.settings_file.open("rb") as file:
        written = tomllib.load(file)
    document: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=str)
    document["broker"]["url"] = settings.broker.url
    found = [
        {
            "key": f"{key.section}.{name}",
            "value": (document if key.section == "node" else document[key.section])[name],
            "origin": _origin(key.section, name, key.variable, written, os.environ),
        }
        for key in keys_of("node")
        for name in (document[key.section] if key.is_any_name else [key.name])
    ]
    rows = [[each["key"], _text(each["value"]), each["origin"]] for each in found]
    shell.emit(
        {"path": str(folder.settings_file), "settings": found},
        lambda: f"Settings of {folder.settings_file}\n\n{table(['KEY', 'VALUE', 'FROM'], rows, width=width())}",
    )


def _origin(
    section: str, name: str, variable: str | None, written: Mapping[str, Any], environ: Mapping[str, str]
) -> str:
    """Return the origin of a value: our variables before the historic ones, then the file, then the default."""
    from fedmon.common.settings.keys import HISTORIC

    if variable is not None and variable in environ:
        return variable
    if (section, name) == ("broker", "url"):
        historic = [known for known in ("MQTT_BROKER", "MQTT_BROKER_PORT") if environ.get(known)]
    else:
        historic = [known for known, place in HISTORIC.items() if place == (section, name) and environ.get(known)]
    if historic:
        return ", ".join(historic)
    return "file" if name in written.get(section, {}) else "default"


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
