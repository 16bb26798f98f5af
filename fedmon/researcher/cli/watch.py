"""`fedmon watch`: live metrics in groups, the worst node first, and why something is not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer

from fedmon.common.errors import InvalidInputError
from fedmon.researcher.cli.options import (
    BrokerOption,
    ForOption,
    IdOption,
    LinesOption,
    NodesOption,
    SettingsOption,
    opened,
)
from fedmon.researcher.cli.output import emit_line, verdict
from fedmon.researcher.cli.watching.groups import GROUPS, Group
from fedmon.researcher.cli.watching.screen import compose
from fedmon.researcher.cli.watching.state import WatchState
from fedmon.researcher.samples.watch import LiveSample, Watch

REDRAW_S = 0.25


def watch(
    node: NodesOption = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", help=f"Only these groups: {', '.join(GROUPS)}; may be given several times."),
    ] = None,
    interval: Annotated[float | None, typer.Option(help="Seconds between samples; without it each owner's.")] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", "-m", help="Only these metrics, with * and ?; may be repeated.")
    ] = None,
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
    chosen = chosen_groups(group)
    with (
        opened(broker, settings, researcher, 5.0) as federation,
        federation.monitor(nodes=node or None, interval_s=interval, metrics=metric) as watching,
    ):
        if json:
            seen = _lines(watching, timeout, count)
        else:
            state = WatchState()
            seen = _tables(watching, state, chosen, timeout, count, worst_first=sort == "worst")
            if absent:
                for one in state.absent(_said(watching)):
                    typer.echo(f"{one.metric} on {', '.join(one.nodes)}: {one.reason}")
        if not seen:
            raise verdict(watching, federation)


def chosen_groups(names: list[str] | None) -> list[Group]:
    """Return the groups of these names, or all. Raises InvalidInputError naming those that there are."""
    unknown = [name for name in names or () if name not in GROUPS]
    if unknown:
        raise InvalidInputError(f"--group {unknown[0]!r} is not one of {', '.join(GROUPS)}")
    return [GROUPS[name] for name in dict.fromkeys(names)] if names else list(GROUPS.values())


def _lines(watching: Watch, timeout: float | None, count: int | None) -> int:
    seen = 0
    for sample in _samples(watching, timeout):
        if sample is not None:
            seen += 1
            emit_line(sample, text="", as_json=True)
            if seen == count:
                break
    return seen


def _tables(
    watching: Watch,
    state: WatchState,
    groups: list[Group],
    timeout: float | None,
    count: int | None,
    *,
    worst_first: bool,
) -> int:
    from rich.console import Console
    from rich.live import Live

    from fedmon.common.clock import Deadline
    from fedmon.researcher.cli.output import rich_screen

    console = Console()

    def screen() -> Any:
        return rich_screen(
            compose(
                state,
                groups,
                capabilities=_said(watching),
                refusals={str(node): reason for node, reason in watching.refusals.items()},
                width=console.width,
                height=console.height if console.is_terminal else None,
                worst_first=worst_first,
                lost=watching.lost,
            )
        )

    def until_enough() -> Iterator[None]:
        for sample in _samples(watching, timeout):
            if sample is not None:
                state.take(sample)
            yield
            if count is not None and state.samples >= count:
                return

    if not console.is_terminal:
        for _ in until_enough():
            pass
        console.print(screen())
        return state.samples
    redraw = Deadline(0.0)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for _ in until_enough():
            # Fifty nodes send far more often than anybody can read.
            if redraw.passed():
                redraw = Deadline(REDRAW_S)
                live.update(screen(), refresh=True)
        live.update(screen(), refresh=True)
    return state.samples


def _said(watching: Watch) -> dict[str, Any]:
    return {str(node): reply for node, reply in watching.capabilities.items()}


def _samples(watching: Watch, timeout: float | None) -> Iterator[LiveSample | None]:
    """Yield samples, and null a few times a second in between, until the time is over or Ctrl-C comes."""
    from fedmon.common.clock import Deadline

    deadline = Deadline(timeout if timeout is not None else 10**9)
    try:
        while not deadline.passed():
            yield watching.next(timeout_s=min(REDRAW_S, deadline.left_s()))
    except KeyboardInterrupt:
        return
