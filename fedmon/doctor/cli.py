"""`fedmon doctor`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from fedmon.common.log import escape_control

if TYPE_CHECKING:
    from fedmon.doctor.broker import Check

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_MARKS = {"ok": "ok     ", "warning": "WARNING", "failed": "FAILED ", "skipped": "skipped"}


@app.command(epilog="Exit codes: 0 nothing failed, 1 a check failed, 2 wrong use.")
def doctor(
    broker: Annotated[str | None, typer.Option("--broker", "-b", metavar="URL", help="Look at this broker.")] = None,
    settings: Annotated[Path | None, typer.Option(help="Your settings file, instead of the usual one.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", "-d", help="Look at the node of this folder.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", "-t", min=0.1, help="Seconds to wait for each answer.")] = 5.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check settings, broker, rights, delivery, nodes, clocks and repository, and say what to do about each failure."""
    from fedmon.doctor.parties import check_node, check_researcher

    checks: list[Check] = []
    if directory is not None:
        found = check_node(directory, os.environ)
    else:
        found = check_researcher(settings, broker, os.environ, timeout_s=timeout)
    for check in found:
        checks.append(check)
        if not json:
            _show(check)
    bad = sum(check.verdict.value == "failed" for check in checks)
    if json:
        sys.stdout.write(msgspec.json.encode({"ok": not bad, "checks": checks}).decode() + "\n")
    else:
        typer.echo("nothing failed" if not bad else f"{bad} of {len(checks)} checks failed")
    raise typer.Exit(1 if bad else 0)


def _show(check: Check) -> None:
    typer.echo(escape_control(f"{_MARKS[check.verdict.value]}  {check.name}: {check.found}", keep="\n"))
    if check.advice:
        typer.echo(escape_control(f"         -> {check.advice}", keep="\n"))
