"""How the demo shows itself: rich tables on a terminal, plain lines elsewhere, nothing while JSON is wanted."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Row = Sequence[str]
Update = Callable[[Row, Sequence[Row], float], None]
"""Shows columns and rows, and how much of the watch is over, 0 to 1."""


class Screen(Protocol):
    """What the story tells, and where; ``width`` is how many characters fit on a line."""

    width: int

    def step(self, number: int, total: int, title: str) -> None:
        """Begin a step."""

    def note(self, text: str) -> None:
        """Say one thing."""

    def command(self, line: str) -> None:
        """Show a command that somebody typed."""

    def table(self, columns: Row, rows: Sequence[Row]) -> None:
        """Show a table."""

    def live(self, title: str) -> contextlib.AbstractContextManager[Update]:
        """Show a table that changes."""
        ...


class RichScreen:
    """For a terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False)
        self.width = self._console.width - 4

    def step(self, number: int, total: int, title: str) -> None:
        """Begin a step."""
        self._console.print(f"\n[bold cyan]{number}/{total}[/] [bold]{title}[/]")

    def note(self, text: str) -> None:
        """Say one thing."""
        from rich.padding import Padding

        self._console.print(Padding(_plain(text), (0, 0, 0, 4)))

    def command(self, line: str) -> None:
        """Show a command that somebody typed."""
        self._console.print(f"    $ {line}", style="dim", markup=False, soft_wrap=True)

    def table(self, columns: Row, rows: Sequence[Row]) -> None:
        """Show a table."""
        from rich.padding import Padding

        self._console.print(Padding(_rich_table(columns, rows), (0, 0, 0, 4)))

    @contextlib.contextmanager
    def live(self, title: str) -> Iterator[Update]:
        """Show a table that changes in place."""
        from rich.console import Group, RenderableType
        from rich.live import Live
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar

        def shown(columns: Row, rows: Sequence[Row], done: float) -> RenderableType:
            body = Group(_rich_table(columns, rows, title), ProgressBar(total=1.0, completed=done, width=40))
            return Padding(body, (0, 0, 0, 4))

        with Live(shown((), (), 0.0), console=self._console, refresh_per_second=5) as live:
            yield lambda columns, rows, done: live.update(shown(columns, rows, done))


class PlainScreen:
    """For a pipe or a file: plain lines, one after another."""

    width = 120

    def step(self, number: int, total: int, title: str) -> None:
        """Begin a step."""
        self._print(f"[{number}/{total}] {title}")

    def note(self, text: str) -> None:
        """Say one thing."""
        self._print(f"    {text}")

    def command(self, line: str) -> None:
        """Show a command that somebody typed."""
        self._print(f"    $ {line}")

    def table(self, columns: Row, rows: Sequence[Row]) -> None:
        """Show a table."""
        from tabulate import tabulate

        for line in tabulate(rows, headers=columns, disable_numparse=True).splitlines():
            self._print(f"    {line}")

    @contextlib.contextmanager
    def live(self, title: str) -> Iterator[Update]:
        """Show what the table holds at the end."""
        last: tuple[Row, Sequence[Row]] = ((), ())

        def update(columns: Row, rows: Sequence[Row], _done: float) -> None:
            nonlocal last
            last = columns, rows

        yield update
        self.note(title)
        self.table(*last)

    @staticmethod
    def _print(line: str) -> None:
        print(line, flush=True)


class SilentScreen:
    """For --json: the document at the end says everything."""

    width = 120

    def step(self, number: int, total: int, title: str) -> None:
        """Say nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def command(self, line: str) -> None:
        """Say nothing."""

    def table(self, columns: Row, rows: Sequence[Row]) -> None:
        """Show nothing."""

    @contextlib.contextmanager
    def live(self, title: str) -> Iterator[Update]:  # noqa: ARG002
        """Show nothing."""
        yield lambda _columns, _rows, _done: None


def choose_screen(*, json: bool) -> Screen:
    """Return the screen for where our output goes."""
    if json:
        return SilentScreen()
    return RichScreen() if sys.stdout.isatty() else PlainScreen()


def _rich_table(columns: Row, rows: Sequence[Row], title: str | None = None) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
        collapse_padding=True,
        title=title,
        title_justify="left",
        show_edge=False,
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right" if _numeric(rows, index) else "left")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    return table


def _plain(cell: str) -> Text:
    from rich.text import Text

    return Text(cell)


def _numeric(rows: Sequence[Row], index: int) -> bool:
    return bool(rows) and all(row[index][:1].isdigit() or row[index] in ("-", "") for row in rows)
