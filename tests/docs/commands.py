"""Every shell command with its help; `python -m tests.docs.commands > docs/commands.md` writes the page."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from fedmon.cli import VERBS

HEAD = """# Commands

Every verb works without a terminal, takes `--json`, and ends with one of these exit codes: 0 done, 1 failed, 2 wrong
use or settings, 3 not found, 4 refused or in conflict, 5 no connection, 6 no answer in time. Made from `--help` by
`python -m tests.docs.commands > docs/commands.md`.
"""
SCREEN = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}


def commands() -> dict[str, Any]:
    """Map each command line, such as ``fedmon node plan show``, to the command itself."""
    found: dict[str, Any] = {}
    for name, verb in VERBS.items():
        module = importlib.import_module(verb.module)
        if hasattr(module, "parsers"):
            found |= {f"fedmon {line}": parser for line, parser in module.parsers().items()}
            continue
        command: Any = get_command(module.app)
        if verb.shares_app:
            command = command.commands[name]
        found.update(_walk(f"fedmon {name}", command))
    return found


def _walk(line: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    if not inner or getattr(command, "invoke_without_command", False):
        yield line, command
    for name, child in inner.items():
        yield from _walk(f"{line} {name}", child)


def sections() -> dict[str, str]:
    """Return the section of each command, with its help; terminals must be 100 columns wide."""
    found = {}
    for line, command in commands().items():
        if isinstance(command, argparse.ArgumentParser):
            said = command.format_help()
        else:
            said = command.get_help(command.make_context(line, [], resilient_parsing=True))
        text = "\n".join(row.rstrip() for row in said.strip().splitlines())
        found[line] = f"\n## `{line}`\n\n```text\n{text}\n```\n"
    return found


def main() -> None:
    """Print the page."""
    os.environ.update(SCREEN)
    sys.stdout.write(HEAD + "".join(sections().values()))


if __name__ == "__main__":
    main()
