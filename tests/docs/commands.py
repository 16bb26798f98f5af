"""Every shell command with its options; `python -m tests.docs.commands > docs/commands.md` writes the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from fedmon.cli import EXIT_CODES
from fedmon.completion import commands

HEAD = """# Commands

Every verb works without a terminal and takes `--json`: it prints one JSON document, or one a line if it goes on. An
error is then `{"error": {...}}`. Made from `--help` by `python -m tests.docs.commands > docs/commands.md`.

| exit code | meaning |
|---|---|
"""
TAIL = "\n`fedmon job -- COMMAND` ends with the exit code of COMMAND.\n"


def page() -> str:
    """Return the page: one line for each verb, and one for each of its arguments and options."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    return (
        HEAD
        + codes
        + TAIL
        + "".join(
            f"\n## `{line}`\n\n{_about(command)}\n\n{''.join(_rows(command))}"
            for line, command in commands().items()
            if command is not None and not (hasattr(command, "commands") and not command.invoke_without_command)
        )
    )


def _about(command: Any) -> str:
    text = command.description if isinstance(command, argparse.ArgumentParser) else command.help
    return " ".join((text or "").split())


def _rows(command: Any) -> Iterator[str]:
    if isinstance(command, argparse.ArgumentParser):
        for action in command._actions:
            if action.help != argparse.SUPPRESS and "--help" not in action.option_strings:
                names = action.option_strings or [str(action.metavar or action.dest)]
                value = str(action.metavar or "").strip("<>").upper() if action.option_strings else ""
                yield _row(names, f" {value}", action.help or "", None)
        return
    for param in command.params:
        if getattr(param, "hidden", False):
            continue
        if param.param_type_name == "argument":
            yield _row([param.metavar or param.name.upper()], "", param.help or "", None)
        else:
            value = "" if param.is_flag else f" {param.metavar or _kind(param.type)}"
            yield _row([*param.opts, *param.secondary_opts], value, param.help or "", param.default)


def _row(names: Sequence[str], value: str, text: str, default: object) -> str:
    words = " ".join(text.replace("%%", "%").split())
    if isinstance(default, int | float | str) and not isinstance(default, bool) and default != "":
        words += f" [default: {default}]"
    return f"- `{', '.join(names)}{value.rstrip()}`: {words}\n"


def _kind(kind: Any) -> str:
    choices = "|".join(str(getattr(choice, "value", choice)) for choice in getattr(kind, "choices", ()))
    return choices or str(kind.name).upper()


if __name__ == "__main__":
    sys.stdout.write(page())
