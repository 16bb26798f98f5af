"""The terminal of a live screen: its alternate buffer, its size and its keys."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from typing import Any, Self

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Use the alternate buffer without a cursor, and the usual one. Source: xterm control sequences, DECSET."""
UNLIMITED = 10_000
"""Columns of a pipe or file: nothing is cut there."""


class Terminal:
    """Draws whole screens in place and reads keys if standard output is a terminal; a context manager."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console()
        self._before: list[Any] | None = None
        self.is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self.colours = self._console.color_system is not None and not self._console.no_color

    @property
    def width(self) -> int:
        """The columns, of a file very many."""
        return self._console.width if self._console.is_terminal else UNLIMITED

    @property
    def height(self) -> int | None:
        """The lines; None if screens are not drawn in place."""
        return self._console.height if self.is_live else None

    def __enter__(self) -> Self:
        if self.is_live:
            sys.stdout.write(ENTER)
            if sys.stdin.isatty():
                self._before = termios.tcgetattr(sys.stdin)
                tty.setcbreak(sys.stdin)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)
        if self.is_live:
            sys.stdout.write(LEAVE)
            sys.stdout.flush()

    def keys(self) -> str:
        """Return the keys that were pressed since the last call."""
        if self._before is None or not select.select([sys.stdin], [], [], 0)[0]:
            return ""
        return os.read(sys.stdin.fileno(), 64).decode(errors="replace")

    def draw(self, text: str) -> None:
        """Show lines in place of those before."""
        lines = text.replace("\n", "\x1b[K\n")
        sys.stdout.write(f"\x1b[H{lines}\x1b[J")
        sys.stdout.flush()
