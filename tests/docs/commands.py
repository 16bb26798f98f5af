"""Every shell command with its options; `python -m tests.docs.commands > docs/commands.md` writes the page."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from typer.main import get_command

from fedmon.cli import VERBS

HEAD = """# Commands

Every verb works without a terminal, takes `--json`, and ends with one of these exit codes: 0 done, 1 failed, 2 wrong
use or settings, 3 not found, 4 refused or in conflict, 5 no connection, 6 no answer in time. `--help` of a verb shows
the same as its section here. Made by `python -m tests.docs.commands > docs/commands.md`.
"""


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


def page() -> str:
    """Return the page: one line for each verb, and one for each of its arguments and options."""
    return HEAD + "".join(
        f"\n## `{line}`\n\n{_about(command)}\n\n{''.join(_rows(command))}" for line, command in commands().items()
    )


def _about(command: Any) -> str:
    text = command.description if isinstance(command, argparse.ArgumentParser) else command.help
    return " ".join((text or "").split())


def _rows(command: Any) -> Iterator[str]:
    if isinstance(command, argparse.ArgumentParser):
        for action in command._actions:
            if action.help != argparse.SUPPRESS and "--help" not in action.option_strings:
                names = action.option_strings or [str(action.metavar or action.dest)]
                value = f" {action.metavar or ''}" if action.option_strings and action.nargs != 0 else ""
                yield _row(names, value, action.help or "", None)
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
    name = str(kind.name).partition(" ")[0].upper()
    return choices or {"FLOAT": "NUMBER", "INTEGER": "NUMBER", "STR": "TEXT"}.get(name, name)


if __name__ == "__main__":
    sys.stdout.write(page())
