"""`fedmon watch`: live metrics in groups, the worst node first, and why a metric is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedmon.common.clock import Deadline
from fedmon.common.errors import InvalidInputError
from fedmon.researcher.cli.latest import WatchState
from fedmon.researcher.cli.screen import GROUPS, Group, compose, rich_screen
from fedmon.researcher.cli.shell import (
    BrokerOption,
    ForOption,
    IdOption,
    IntervalOption,
    LinesOption,
    MetricsOption,
    NodesOption,
    SettingsOption,
    emit_line,
    no_sample,
    opened,
)
from fedmon.researcher.samples.watch import LiveSample, Watch

if TYPE_CHECKING:
    from rich.console import Console

REDRAW_S = 0.25


def watch(
    node: NodesOption = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", help=f"Only these groups: {', '.join(GROUPS)}; may be given several times."),
    ] = None,
    interval: IntervalOption = None,
    metric: MetricsOption = None,
    sort: Annotated[Literal["worst", "name"], typer.Option(help="Which rows come first.")] = "worst",
    absent: Annotated[
        bool, typer.Option("--absent", help="At the end, list all that is not measured, and why.")
    ] = False,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many samples.")] = None,
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    researcher: IdOption = None,
    timeout: ForOption = None,
    json: LinesOption = False,
) -> None:
    """Watch live metrics: tables on a terminal, with --json one document a sample."""
    groups = _chosen(group)
    with (
        opened(broker, settings, researcher, 5.0) as federation,
        federation.monitor(nodes=node or None, interval_s=interval, metrics=metric) as watching,
    ):
        if json:
            for _ in _take(watching, lambda sample: emit_line(sample, text="", as_json=True), timeout, count):
                pass
        else:
            state = WatchState()
            taken = _take(watching, state.take, timeout, count)
            _draw(taken, lambda console: _screen(console, watching, state, groups, worst_first=sort == "worst"))
            if absent:
                for one in state.absent(_capabilities(watching)):
                    typer.echo(f"{one.metric} on {', '.join(one.nodes)}: {one.reason}")
        if not watching.delivered:
            raise no_sample(watching, federation)


def _chosen(names: list[str] | None) -> list[Group]:
    unknown = [name for name in names or () if name not in GROUPS]
    if unknown:
        raise InvalidInputError(f"--group {unknown[0]!r} is not one of {', '.join(GROUPS)}")
    return [GROUPS[name] for name in dict.fromkeys(names)] if names else list(GROUPS.values())


def _take(
    watching: Watch, take: Callable[[LiveSample], object], timeout: float | None, count: int | None
) -> Iterator[None]:
    """Take samples until there are enough, the time is over, or Ctrl-C; yields a few times a second at least."""
    deadline, left = Deadline(timeout if timeout is not None else 10**9), count
    try:
        while not deadline.passed() and left != 0:
            sample = watching.next(timeout_s=min(REDRAW_S, deadline.left_s()))
            if sample is not None:
                take(sample)
                left = None if left is None else left - 1
            yield
    except KeyboardInterrupt:
        return


def _draw(taken: Iterator[None], screen: Callable[[Console], Any]) -> None:
    """Draw the screen as samples come on a terminal, and once at the end elsewhere."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not console.is_terminal:
        for _ in taken:
            pass
        console.print(screen(console))
        return
    redraw = Deadline(0.0)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for _ in taken:
            # Fifty nodes send far more often than anybody can read.
            if redraw.passed():
                redraw = Deadline(REDRAW_S)
                live.update(screen(console), refresh=True)
        live.update(screen(console), refresh=True)


def _screen(console: Console, watching: Watch, state: WatchState, groups: list[Group], *, worst_first: bool) -> Any:
    return rich_screen(
        compose(
            state,
            groups,
            capabilities=_capabilities(watching),
            refusals={str(node): reason for node, reason in watching.refusals.items()},
            width=console.width,
            height=console.height if console.is_terminal else None,
            worst_first=worst_first,
            lost=watching.lost,
        )
    )


def _capabilities(watching: Watch) -> dict[str, Any]:
    return {str(node): reply for node, reply in watching.capabilities.items()}
