"""Every shell command with its help; `python -m tests.docs.commands > docs/commands.md` writes the page."""

from __future__ import annotations

import argparse
import os
import sys

from fedmon.cli import EXIT_CODES
from fedmon.completion import commands

HEAD = """# Commands

Every verb works without a terminal and takes `--json`: it prints one JSON document, or one a line if it goes on. An
error is then `{"error": {...}}`. Made from `--help` by `python -m tests.docs.commands > docs/commands.md`.

| exit code | meaning |
|---|---|
"""
TAIL = "\n`fedmon job -- COMMAND` ends with the exit code of COMMAND.\n"
SCREEN = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}


def sections() -> dict[str, str]:
    """Return the section of each command, with its help; terminals must be 100 columns wide."""
    found = {}
    for line, command in commands().items():
        if command is None or (hasattr(command, "commands") and not command.invoke_without_command):
            continue
        if isinstance(command, argparse.ArgumentParser):
            said = command.format_help()
        else:
            context = command.make_context(line, [], resilient_parsing=True, help_option_names=["-h", "--help"])
            said = command.get_help(context)
        text = "\n".join(row.rstrip() for row in said.strip().splitlines())
        found[line] = f"\n## `{line}`\n\n```text\n{text}\n```\n"
    return found


def main() -> None:
    """Print the page."""
    os.environ.update(SCREEN)
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    sys.stdout.write(HEAD + codes + TAIL + "".join(sections().values()))


if __name__ == "__main__":
    main()
