"""How `fedmon run` shows a run: a table that changes on a terminal, a line at each change elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from fedmon.common.log import OUR_LOGGER, escape_control
from fedmon.researcher.cli.run_values import shown
from fedmon.researcher.runs.states import NodeRun, RunStates
from fedmon.researcher.runs.wording import by_reason

if TYPE_CHECKING:
    from fedmon.researcher.runs.handle import RunHandle

_STYLES = {"succeeded": "green", "running": "cyan", "starting": "cyan", "unanswered": "yellow"}


class Show(Protocol):
    """Takes the states as they change."""

    def __call__(self, states: RunStates) -> None:
        """Show them."""


@contextmanager
def progress(*, silent: bool) -> Iterator[Show]:
    """Show states on stderr, so that what is piped on are the results alone."""
    if silent:
        yield lambda _states: None
    elif sys.stderr.isatty():
        with _on_terminal() as show:
            yield show
    else:
        yield _Lines()


def node_document(part: NodeRun) -> dict[str, Any]:
    """Return what is known of a node's part, for programs."""
    return {
        "node_id": part.node_id,
        "state": part.state,
        "reason": part.explanation(),
        "unheard": part.unheard,
        "unheard_since": part.unheard_since,
        "job": part.job,
        "scalars": part.scalars,
    }


def run_document(handle: RunHandle, results: dict[str, dict[str, Any]], failed: dict[str, str]) -> dict[str, Any]:
    """Return everything that is known of a run, for programs."""
    return {
        "job_id": handle.job_id,
        "sha256": handle.sha256,
        "over": handle.is_over,
        "nodes": [node_document(part) for part in handle.states().values()],
        "scalars": handle.scalars,
        "results": shown(results),
        "failed": failed,
    }


class _Lines:
    """The job, then a line for each change of a state; nodes that change alike share it."""

    def __init__(self) -> None:
        self._before: dict[str, str] = {}

    def __call__(self, states: RunStates) -> None:
        if not self._before:
            sys.stderr.write(f"job {states.job_id}\n")
        said = {str(node_id): _line(part, states.latest(node_id)) for node_id, part in states.items()}
        changed = {str(node_id): part.sentence() for node_id, part in states.items()}
        new = {node_id: said[node_id] for node_id in changed if self._before.get(node_id) != changed[node_id]}
        for line in by_reason(new):
            sys.stderr.write(f"{escape_control(line)}\n")
        self._before = changed
        sys.stderr.flush()


def _line(part: NodeRun, latest: str) -> str:
    """Return how a part stands; of one that succeeded, what it took and the last that it reported."""
    usage = part.job.usage if part.job is not None else None
    if not part.succeeded or usage is None or usage.wall_s is None:
        return part.sentence()
    return f"{part.sentence()} after {usage.wall_s:.2f} s" + (f", {latest}" if latest else "")


@contextmanager
def _on_terminal() -> Iterator[Show]:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False)
    began = time.monotonic()
    shown: list[RunStates] = []

    def screen() -> Any:
        return _screen(shown[-1], time.monotonic() - began) if shown else ""

    def show(states: RunStates) -> None:
        shown[:] = [states]
        live.refresh()

    # Refreshed by itself, too: a run that reports nothing shows by its seconds that it is waited for.
    torn = sys.stderr
    with (
        Live(console=console, get_renderable=screen, refresh_per_second=2, vertical_overflow="crop") as live,
        logs_above(torn),
    ):
        yield show


@contextmanager
def logs_above(terminal: TextIO) -> Iterator[None]:
    """Have log lines printed above the table: written to the terminal beside it, they would tear it."""
    handlers = [one for one in logging.getLogger(OUR_LOGGER).handlers if isinstance(one, logging.StreamHandler)]
    moved = [handler for handler in handlers if handler.stream is terminal]
    for handler in moved:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in moved:
            handler.setStream(terminal)


def _screen(states: RunStates, waited_s: float) -> Any:
    from rich.console import Group
    from rich.text import Text

    summary = states.summary() if states.is_over else f"{states.summary()}, {waited_s:.0f} s"
    return Group(_table(states), *(Text(escape_control(line)) for line in states.notes()), Text(summary))


def _table(states: RunStates) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = states.text_rows()
    columns = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)] if rows else []
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        style = _STYLES.get(row["state"], "red")
        table.add_row(
            *(
                Text(
                    "" if row[name] is None else escape_control(str(row[name])), style=style if name == "state" else ""
                )
                for name in columns
            )
        )
    return table
