"""How `fedmon run` shows a run: a table that changes on a terminal, a line at each change elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from fedmon.common.log import escape_control
from fedmon.researcher.cli_run_values import shown
from fedmon.researcher.runs.states import NodeRun, RunStates

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
    """A line for each change of a state."""

    def __init__(self) -> None:
        self._before: dict[str, str] = {}

    def __call__(self, states: RunStates) -> None:
        for node_id, part in states.items():
            said = part.sentence()
            if self._before.get(node_id) != said:
                self._before[node_id] = said
                sys.stderr.write(f"{node_id}: {escape_control(said)}\n")
        sys.stderr.flush()


@contextmanager
def _on_terminal() -> Iterator[Show]:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda states: live.update(_table(states), refresh=True)


def _table(states: RunStates) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = states.rows()
    columns = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)] if rows else []
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, caption=states.summary(), caption_justify="left"
    )
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
