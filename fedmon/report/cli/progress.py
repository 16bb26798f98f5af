"""A bar that shows on a terminal how much of the work is done."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(title: str, *, wanted: bool = True) -> Iterator[Callable[[float], None]]:
    """Give a function to call with the share that is done, from 0 to 1; shows nothing where stderr is no terminal."""
    if not wanted or not sys.stderr.isatty():
        yield lambda _share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(title, total=1.0)
        yield lambda share: shown.update(task, completed=share)
