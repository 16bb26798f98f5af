"""What the verbs of ``fedmon broker`` print, and the options that they share."""

from __future__ import annotations

import json
import pathlib
from typing import Annotated, Any

import typer

DataDir = Annotated[
    pathlib.Path | None,
    typer.Option(help="Folder of the broker's users, access lists, certificates and data; default: one in your home."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def emit(document: dict[str, Any], text: str, *, as_json: bool) -> None:
    """Print the document as JSON, or the text."""
    typer.echo(json.dumps(document) if as_json else text)
