"""A run that is watched: a table that changes on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec

from fedmon.experiment.cli.tables import Moment, change_lines, closing, moments, table
from fedmon.experiment.standing import Overview, heading
from fedmon.researcher.cli.shell import logs_above

REDRAW_S = 0.25


class Show(Protocol):
    """Shows how things stand."""

    def __call__(self, shown: Overview) -> None:
        """Show it."""


@contextmanager
def showing(look: Callable[[], Overview], *, silent: bool = False, as_json: bool = False) -> Iterator[Show]:
    """Show a run on stdout; on a terminal it is looked at again by itself, so that the times in it go on."""
    if silent:
        yield lambda _shown: None
    elif as_json:
        yield _Documents()
    elif sys.stdout.isatty():
        with _on_terminal(look) as show:
            yield show
    else:
        yield _Lines()


class _Lines:
    """Writes what changed since the last look."""

    def __init__(self) -> None:
        self._told: set[Moment] = set()
        self._blocker = ""
        self._is_begun = False

    def __call__(self, shown: Overview) -> None:
        if not self._is_begun:
            self._is_begun = True
            sys.stdout.write(f"{heading(shown)}\n")
        for line in change_lines(self._told, shown):
            sys.stdout.write(f"{line}\n")
        # The times in it change all the while; what is new is who holds up whom.
        blocking = shown.blocker.partition(": ")[0]
        if blocking != self._blocker and shown.blocker:
            sys.stdout.write(f"blocker: {shown.blocker}\n")
        self._told, self._blocker = moments(shown), blocking
        sys.stdout.flush()


class _Documents:
    """Writes a document a line for each change of a resource."""

    def __init__(self) -> None:
        self._states: dict[int, str] = {}

    def __call__(self, shown: Overview) -> None:
        for each in shown.resources:
            if self._states.get(each.guid, "") != each.state:
                sys.stdout.write(f"{msgspec.json.encode(each).decode()}\n")
        self._states = {each.guid: each.state for each in shown.resources}
        sys.stdout.flush()


@contextmanager
def _on_terminal(look: Callable[[], Overview]) -> Iterator[Show]:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)

    def screen() -> RenderableType:
        shown, now = look(), time.time()
        below = [Text(line) for line in closing(shown, now)]
        above = Text(heading(shown))
        rows = max(3, console.height - 9)
        return Group(above, table(shown, now, rows=rows, width=console.width), *below)

    terminal = sys.stderr
    with (
        Live(
            console=console,
            get_renderable=screen,
            refresh_per_second=1 / REDRAW_S,
            vertical_overflow="crop",
            transient=True,
        ),
        logs_above(terminal),
    ):
        yield lambda _shown: None
