"""The terminal of `fedmon watch`: its alternate buffer, its size and its keys."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import Any, Self

from fedmon.common.clock import Deadline
from fedmon.common.log import escape_control
from fedmon.common.text import UNLIMITED
from fedmon.researcher.cli.readings import WatchState
from fedmon.researcher.cli.screen import Group, compose, text_screen
from fedmon.researcher.samples.watch import Watch

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Use the alternate buffer without a cursor, and the usual one. Source: xterm control sequences, DECSET."""
REDRAW_S = 1.0
"""How often a screen is drawn: fifty nodes send far more often than people read."""
KEYS = "q quit  s sort  a not measured  ◐ high  ✕ silent"


class Terminal:
    """Draws whole screens in place and reads keys if standard output is a terminal; a context manager.

    Warnings would be drawn over: the newest stands on the last line, and all are printed at the end.
    """

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console()
        self._before: list[Any] | None = None
        self._stderr, self._warnings = sys.stderr, io.StringIO()
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
            if sys.stderr.isatty():
                sys.stderr = self._warnings
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
        if sys.stderr is self._warnings:
            sys.stderr = self._stderr
            sys.stderr.write(self._warnings.getvalue())

    def keys(self) -> str:
        """Return the keys that were pressed since the last call."""
        if self._before is None or not select.select([sys.stdin], [], [], 0)[0]:
            return ""
        return os.read(sys.stdin.fileno(), 64).decode(errors="replace")

    def last_line(self) -> str:
        """Return the newest warning, if there is one, and the meaning of the keys."""
        newest = self._warnings.getvalue().rstrip().rpartition("\n")[2].partition(": ")[2]
        return f"{escape_control(newest)}   {KEYS}".lstrip()

    def draw(self, text: str) -> None:
        """Show lines in place of those before."""
        lines = text.replace("\n", "\x1b[K\n")
        sys.stdout.write(f"\x1b[H{lines}\x1b[J")
        sys.stdout.flush()


def draw(
    taken: Iterator[None], watching: Watch, state: WatchState, groups: Sequence[Group], *, worst_first: bool
) -> bool:
    """Draw screens while samples are taken on a terminal, and one at the end; return whether q ended it."""
    absences, redraw, terminal = False, Deadline(0.0), Terminal()

    def screen(keys: str) -> str:
        composed = compose(
            state,
            groups,
            capabilities=watching.capabilities,
            refusals=watching.refusals,
            width=terminal.width,
            height=terminal.height,
            worst_first=worst_first,
            absences=absences,
            lost=watching.lost,
            missing=watching.pending,
        )
        return text_screen(composed, width=terminal.width, colours=terminal.colours, keys=keys)

    with terminal, contextlib.suppress(KeyboardInterrupt):
        for _ in taken:
            keys = terminal.keys()
            if "q" in keys:
                return True
            worst_first, absences = worst_first ^ ("s" in keys), absences ^ ("a" in keys)
            if terminal.is_live and (keys or redraw.passed()):
                redraw = Deadline(REDRAW_S)
                terminal.draw(screen(terminal.last_line()))
    sys.stdout.write(f"{screen('')}\n")
    return False
