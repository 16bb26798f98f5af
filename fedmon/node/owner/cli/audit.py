"""`fedmon node audit`: requests, decisions, and everything that left."""

from __future__ import annotations

import datetime
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fedmon.common.errors import ConflictError
from fedmon.common.options import SinceOption, UntilOption
from fedmon.common.text import plural
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
        f"The audit is whole: {plural(result.lines, 'line')} in {plural(result.files, 'file')} of {folder.path}."
        if result.ok
        else f"THE AUDIT WAS CHANGED. First bad line: {result.first_bad}\n"
        f"Before it {plural(result.lines, 'line is', 'lines are')} as written."
    )
    shell.emit({"ok": result.ok, **msgspec.to_builtins(result)}, lambda: text)
    for note in result.notes:
        shell.note(note)
    raise typer.Exit(0 if result.ok else 1)


@verb(app, "export")
def export(shell: Shell, since: SinceOption = None, until: UntilOption = None) -> None:
    """Print the audit as it is, one JSON object a line, oldest first."""
    from fedmon.common.files import storage_errors
    from fedmon.node.requests.audit import exported
    from fedmon.report.cli.inputs import times

    bounds = [None if t is None else datetime.datetime.fromtimestamp(t, datetime.UTC) for t in times(since, until)]
    with storage_errors(Path("stdout")):
        sys.stdout.buffer.writelines(exported(shell.folder.path, *bounds))


@verb(app, "prune")
def prune(
    shell: Shell,
    keep_days: Annotated[int, typer.Option("--keep-days", help="Keep the lines of this many days.", min=1, max=36_500)],
) -> None:
    """Remove old lines of the audit; the rest can still be verified.

    A stub keeps number and hash of the last line removed. An audit that was changed is not pruned.
    """
    from fedmon.node.requests.audit import verify as verified

    found = verified(shell.folder.path)
    if found.first_bad is not None:
        raise ConflictError(f"the audit was changed, so nothing is removed; first bad line: {found.first_bad}")
    shell.show(
        "audit-prune",
        lambda document: f"{plural(document['pruned'], 'line')} from before {document['before']} removed.",
        keep_days=keep_days,
    )


def _backwards(folder: NodeFolder) -> Iterator[dict[str, Any]]:
    """Yield the lines of the whole audit from its end; a line that is not a JSON object is shown as it is."""
    from fedmon.node.requests.audit import backwards

    for raw in backwards(folder.path):
        try:
            yield msgspec.json.decode(raw, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            yield {"event": "UNREADABLE", "line": raw.decode(errors="backslashreplace").rstrip("\n")}


def _line(line: dict[str, Any]) -> str:
    facts = [f"{name}={_text(value)}" for name, value in line.items() if name not in _CHAIN and value != ""]
    return record(" ".join([str(line.get("n")), seconds(str(line.get("time"))), str(line.get("event")), *facts]))


def _text(value: object) -> str:
    return (
        value
        if isinstance(value, str) and value.isprintable() and " " not in value
        else msgspec.json.encode(value).decode()
    )
