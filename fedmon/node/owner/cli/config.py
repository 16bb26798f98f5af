"""`fedmon node config`: the settings that hold, and where each comes from."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from typing import Any

import msgspec
import typer

from fedmon.node.owner.cli.reach import Dir, Json, opened
from fedmon.node.owner.cli.screen import EXIT_CODES, print_json, table

app = typer.Typer(
    name="config", help="See the settings and where they come from.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("path", epilog=EXIT_CODES)
def path(directory: Dir = None, as_json: Json = False) -> None:
    """Print where the settings file is."""
    file = str(opened(directory).settings_file)
    if as_json:
        print_json({"path": file})
    else:
        print(file)


@app.command("show", epilog=EXIT_CODES)
def show(directory: Dir = None, as_json: Json = False) -> None:
    """Show every setting, and where it comes from.

    Values are those that `fedmon node start` would read in this shell. Of secrets only the file's name is a setting,
    so none is ever shown.
    """
    from fedmon.common.settings import load_node
    from fedmon.common.settings.keys import keys_of

    folder = opened(directory)
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
    if as_json:
        print_json({"path": str(folder.settings_file), "settings": found})
        return
    print(f"Settings of {folder.settings_file}\n")
    print(table(["KEY", "VALUE", "FROM"], [[each["key"], _text(each["value"]), each["origin"]] for each in found]))


def _origin(
    section: str, name: str, variable: str | None, written: Mapping[str, Any], environ: Mapping[str, str]
) -> str:
    """Say who decides a value: our variables before the historic ones, then the file, then the default."""
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
