"""The group of the owner's verbs: wrong use is an error like any other."""

from __future__ import annotations

import io
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from fedmon.common.errors import InvalidInputError

# Typer brings a click of its own in some versions and the library in others; this finds the one in use.
_CLICK_ERROR: type[Exception] = typer.BadParameter.__mro__[2]


class OwnerGroup(TyperGroup):
    """Turns an unknown option or a missing value into one line, or into one JSON document where JSON was asked for."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a verb and end the process with its exit code. Raises InvalidInputError for wrong use."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # An old terminal gets a character that it cannot show as its code, and not an error.
                stream.reconfigure(errors="backslashreplace")
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except typer.Abort:
            sys.stderr.write("Aborted.\n")
            sys.exit(1)
        except _CLICK_ERROR as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                sys.stdout.write(f"{error}\n")
                sys.exit(2)
            raise InvalidInputError(_described(error)) from None
        sys.exit(code if isinstance(code, int) else 0)


def _described(error: Any) -> str:
    context = getattr(error, "ctx", None)
    where = f"; see: {context.command_path} --help" if context is not None else ""
    return f"{str(error.format_message()).rstrip('.')}{where}"
