"""The demo's output: tables that change in place on a terminal, plain lines elsewhere, nothing with `--json`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from fedmon.common.text import rich_table

if TYPE_CHECKING:
    from rich.table import Table

Row = Sequence[str]
Update = Callable[[Row, Sequence[Row], float], None]
"""Shows columns and rows, and the share of the watch that is over, 0 to 1."""
_INDENT = 4
_PLAIN_WIDTH = 120


class DemoScreen:
    """Standard output; ``width`` is how many characters fit on a line of a table."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console

        plain_width = None if sys.stdout.isatty() else _PLAIN_WIDTH + _INDENT
        self._console = Console(highlight=False, markup=False, quiet=quiet, width=plain_width)
        self.width = self._console.width - _INDENT

    def step(self, number: int, total: int, title: str) -> None:
        """Begin a step."""
        if self._console.is_terminal:
            self._console.print()
        self._console.print(f"[{number}/{total}] {title}", style="bold", soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a sentence."""
        self._console.print(f"{' ' * _INDENT}{text}", soft_wrap=True)

    def command(self, line: str) -> None:
        """Print a command as it is typed."""
        self._console.print(f"{' ' * _INDENT}$ {line}", style="dim", soft_wrap=True)

    def table(self, columns: Row, rows: Sequence[Row]) -> None:
        """Print a table."""
        from rich.padding import Padding

        self._console.print(Padding(_table(columns, rows), (0, 0, 0, _INDENT), expand=False))

    @contextlib.contextmanager
    def live(self, title: str) -> Iterator[Update]:
        """Show a table that changes in place; elsewhere than on a terminal, as it is at the end."""
        from rich.console import Group, RenderableType
        from rich.live import Live
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar

        def shown(columns: Row, rows: Sequence[Row], done: float) -> RenderableType:
            bar = [ProgressBar(total=1.0, completed=done, width=40)] if self._console.is_terminal else []
            return Padding(Group(title, _table(columns, rows), *bar), (0, 0, 0, _INDENT), expand=False)

        with Live(shown((), (), 0.0), console=self._console, refresh_per_second=5) as live:
            yield lambda columns, rows, done: live.update(shown(columns, rows, done))
        if not self._console.is_terminal:
            self._console.print()  # rich ends the last line on a terminal only


def _table(columns: Row, rows: Sequence[Row]) -> Table:
    from rich.text import Text

    table = rich_table()
    for index, column in enumerate(columns):
        is_numeric = index and rows and all(row[index][:1].isdigit() or row[index] in ("-", "") for row in rows)
        table.add_column(column, justify="right" if is_numeric else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
