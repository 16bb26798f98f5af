"""`fedmon node init`: a new node in a folder of its own."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmon.common.errors import FedmonError
from fedmon.common.ids import checked_id, new_party_id
from fedmon.node.owner.cli.reach import Dir, Json, default_folder
from fedmon.node.owner.cli.screen import EXIT_CODES, ask, print_json


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("init", epilog=EXIT_CODES)(init)


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
    if as_json:
        settings = str(folder / "node.toml")
        made = {"node_id": own_id, "folder": str(folder), "settings": settings, "broker": url}
        print_json({**made, "obeys_nobody": True, "next": following})
        return
    print(f"Node {own_id} lives in {folder}; its settings are in node.toml there.")
    print("\nIT OBEYS NOBODY YET: every request is refused until you allow a researcher. Type next:\n")
    print(f"  {following[0]}")
    print(f"  {following[1]}")
    print(f"\nOffer data with: fedmon node dataset add PATH --name NAME --tags TAG,TAG{_dir_option(folder)}")


def _written(path: Path, node: dict[str, Any], broker: dict[str, Any]) -> Path:
    """Make the folder and its settings, or leave nothing behind. Returns the folder."""
    from fedmon.common.settings import load_node
    from fedmon.node.folder import NodeFolder
    from fedmon.node.owner.settings_text import new_settings

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


def _dir_option(folder: Path) -> str:
    if folder == default_folder().resolve() or os.environ.get("FEDMON_NODE_DIR") == str(folder):
        return ""
    return f" --dir {shlex.quote(str(folder))}"
