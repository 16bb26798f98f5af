"""`fedmon node audit`: what came in, what was decided, and what left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer

from fedmon.common.errors import StorageError
from fedmon.node.folder import NodeFolder
from fedmon.node.owner.cli.screen import record, seconds
from fedmon.node.owner.cli.shell import Shell, group, verb

app = group("audit", "Read the audit, and prove that nobody changed it.")

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
    found: list[dict[str, Any]] = []
    for line in _backwards(shell.folder):
        if event is None or line.get("event") == event:
            found.append(line)
        if len(found) == last:
            break
    found.reverse()
    nothing = "The audit holds no such line." if event else "The audit is empty."
    shell.emit({"lines": found}, lambda: "\n".join(map(_line, found)) or nothing)


@verb(app, "verify")
def verify(shell: Shell) -> None:
    """Prove that nobody changed the audit.

    Reads all of it and names the first line that was altered, taken out or moved; ends with 1 then.
    """
    from fedmon.node.requests.audit import verify as verified

    folder = shell.folder
    result = verified(folder.path)
    whole = f"The audit is whole: {result.lines} lines in {result.files} files of {folder.path}."
    changed = (
        f"THE AUDIT WAS CHANGED. First bad line: {result.first_bad}\n"
        f"The {result.lines} lines before it are as they were written."
    )
    document = {"ok": result.ok, **msgspec.to_builtins(result)}
    shell.emit(document, lambda: whole if result.ok else changed)
    for text in result.notes:
        shell.note(text)
    raise typer.Exit(0 if result.ok else 1)


def _backwards(folder: NodeFolder) -> Iterator[dict[str, Any]]:
    """Yield the lines of the whole audit from its end; a line that is no JSON object is shown as it is."""
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
    facts = " ".join(f"{name}={_text(value)}" for name, value in line.items() if name not in _CHAIN and value != "")
    return record(f"{line.get('n')} {seconds(str(line.get('time')))} {line.get('event')} {facts}".rstrip())


def _text(value: object) -> str:
    return (
        value
        if isinstance(value, str) and value.isprintable() and " " not in value
        else msgspec.json.encode(value).decode()
    )
