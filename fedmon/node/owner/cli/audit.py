"""`fedmon node audit`: requests, decisions, and everything that left."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer

from fedmon.common.errors import StorageError
from fedmon.node.folder import NodeFolder
from fedmon.node.owner.cli.shell import Shell, group, record, seconds, verb

app = group("audit", "Read the audit, and check that no line of it was changed.")

_CHAIN = ("n", "time", "event", "prev", "hash")


@verb(app, "show")
def show(
    shell: Shell,
    last: Annotated[int, typer.Option(help="How many lines, counted from the end.", min=1)] = 20,
    event: Annotated[
        str | None, typer.Option(help="Only this event, such as command, reply, plan-decision or policy-change.")
    ] = None,
) -> None:
    """Show the last lines of the audit, oldest first."""
    wanted = (line for line in _backwards(shell.folder) if event in (None, line.get("event")))
    found = [*itertools.islice(wanted, last)][::-1]
    nothing = "The audit holds no such line." if event else "The audit is empty."
    shell.emit({"lines": found}, lambda: "\n".join(map(_line, found)) or nothing)


@verb(app, "verify")
def verify(shell: Shell) -> None:
    """Check that no line of the audit was changed.

    Reads all of it and names the first line that was altered, taken out or moved; ends with 1 then.
    """
    from fedmon.node.requests.audit import verify as verified

    folder = shell.folder
    result = verified(folder.path)
    text = (
        f"The audit is whole: {result.lines} lines in {result.files} files of {folder.path}."
        if result.ok
        else f"THE AUDIT WAS CHANGED. First bad line: {result.first_bad}\n"
        f"The {result.lines} lines before it are as they were written."
    )
    shell.emit({"ok": result.ok, **msgspec.to_builtins(result)}, lambda: text)
    for note in result.notes:
        shell.note(note)
    raise typer.Exit(0 if result.ok else 1)


def _backwards(folder: NodeFolder) -> Iterator[dict[str, Any]]:
    """Yield the lines of the whole audit from its end; a line that is not a JSON object is shown as it is."""
    from fedmon.node.requests.audit import chain_files, lines_backwards

    try:
        for path in reversed(chain_files(folder.path)):
            for raw in lines_backwards(path):
                try:
                    yield msgspec.json.decode(raw, type=dict[str, Any])
                except (msgspec.DecodeError, UnicodeDecodeError):
                    yield {"event": "UNREADABLE", "line": raw.decode(errors="backslashreplace").rstrip("\n")}
    except OSError as error:
        raise StorageError(f"the audit in {folder.path} cannot be read: {error.strerror}") from error


def _line(line: dict[str, Any]) -> str:
    facts = [f"{name}={_text(value)}" for name, value in line.items() if name not in _CHAIN and value != ""]
    return record(" ".join([str(line.get("n")), seconds(str(line.get("time"))), str(line.get("event")), *facts]))


def _text(value: object) -> str:
    return (
        value
        if isinstance(value, str) and value.isprintable() and " " not in value
        else msgspec.json.encode(value).decode()
    )
