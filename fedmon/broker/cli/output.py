"""What the verbs of ``fedmon broker`` print, and the options that they share."""

from __future__ import annotations

import json
import pathlib
from typing import Annotated, Any

import typer

from fedmon.common.errors import SettingsError

DataDir = Annotated[
    pathlib.Path | None,
    typer.Option(help="Folder of the broker's users, access lists, certificates and data; default: one in your home."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def emit(document: dict[str, Any], text: str, *, as_json: bool) -> None:
    """Print the document as JSON, or the text."""
    typer.echo(json.dumps(document) if as_json else text)


def refuse_existing(save: pathlib.Path | None) -> None:
    """Check that a secret can be written to a new file. Raises SettingsError."""
    if save is not None and save.exists():
        raise SettingsError(f"{save} is there already; choose a new file for --save")


def save_secret(path: pathlib.Path, secret: str) -> None:
    """Write a secret to a new file, readable by its owner only. Raises SettingsError."""
    try:
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(secret + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"it was added, but {path} cannot be written: {error.strerror}; repeat with --replace and another --save"
        ) from None
