"""The researcher's verbs in a shell; each is an instance of its own, beside an open notebook of the same researcher."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmon.researcher.cli_output import emit, emit_line, exit_code, outcomes_document, verdict
from fedmon.researcher.federation import Federation
from fedmon.researcher.live_table import LiveTable
from fedmon.researcher.monitor import Watch
from fedmon.researcher.outcomes import Outcomes

EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 wrong use or settings, 3 not found, 4 refused, 5 no connection, 6 no answer in "
    "time. A node that is known to be offline is an error only when it was named."
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True)
nodes_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None, epilog=EPILOG)
app.add_typer(nodes_app, name="nodes")

BrokerOption = Annotated[
    str | None, typer.Option("--broker", "-b", metavar="URL", help="The broker; without it the one of your settings.")
]
SettingsOption = Annotated[
    Path | None, typer.Option("--settings", help="Your settings file, instead of the usual one.")
]
IdOption = Annotated[str | None, typer.Option("--researcher", help="Your researcher id, instead of the one kept.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", "-t", min=0.1, help="Seconds to wait at most.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
LinesOption = Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")]
NodesOption = Annotated[
    list[str] | None, typer.Option("--node", "-n", help="Only this node; may be given several times.")
]
ForOption = Annotated[
    float | None, typer.Option("--timeout", "-t", min=0.1, help="Seconds to go on; without it until Ctrl-C.")
]


def _opened(broker: str | None, settings: Path | None, researcher: str | None, timeout: float) -> Federation:
    instance = f"shell-{secrets.token_hex(4)}"
    return Federation(broker, settings=settings, researcher_id=researcher, timeout_s=timeout, instance=instance)


@nodes_app.callback()
def nodes(
    context: typer.Context,
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    researcher: IdOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Show which nodes are there, since when, when they were last seen, and why one is not."""
    if context.invoked_subcommand is not None:
        context.obj = (broker, settings, researcher, timeout)
        return
    with _opened(broker, settings, researcher, timeout) as federation:
        found = federation.nodes()
        emit(
            {
                "broker": federation.settings.broker.url,
                "researcher_id": federation.researcher_id,
                "nodes": [node for _, node in sorted(found.items())],
                "explanation": found.explanation(),
            },
            text=str(found),
            as_json=json,
        )


@nodes_app.command("forget", epilog=EPILOG)
def forget(
    context: typer.Context,
    node_id: Annotated[str, typer.Argument(help="The id of a node that is gone for good.")],
    json: JsonOption = False,
) -> None:
    """Clear what the broker retains of a node that is gone for good, or hide it here where we may not."""
    with _opened(*context.obj) as federation:
        federation.nodes()
        forgotten = federation.forget(node_id)
        emit({"forgotten": forgotten}, text=str(forgotten), as_json=json)


@app.command(epilog=EPILOG)
def ping(
    node: NodesOption = None,
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    researcher: IdOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Ask nodes for a sign of life."""
    with _opened(broker, settings, researcher, timeout) as federation:
        _finish(federation, federation.ping(nodes=node or None), named=node, as_json=json)


@app.command("list", epilog=EPILOG)
def list_datasets(
    node: NodesOption = None,
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    researcher: IdOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """List the datasets that nodes offer to you."""
    with _opened(broker, settings, researcher, timeout) as federation:
        _finish(federation, federation.datasets(nodes=node or None), named=node, as_json=json)


@app.command(epilog=EPILOG)
def search(
    tags: Annotated[list[str], typer.Argument(help="Tags that a dataset must all carry.")],
    node: NodesOption = None,
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    researcher: IdOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Find datasets by their tags; several tags must all be there."""
    with _opened(broker, settings, researcher, timeout) as federation:
        _finish(federation, federation.search(tags, nodes=node or None), named=node, as_json=json)


@app.command(epilog=EPILOG)
def approve(
    plan: Annotated[Path, typer.Argument(help="A Python file with a training plan.")],
    description: Annotated[str, typer.Option(help="What it is for, for the owners to read.")] = "",
    status: Annotated[bool, typer.Option("--status", help="Do not ask; only tell where the plan stands.")] = False,
    node: NodesOption = None,
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    researcher: IdOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Ask owners to approve a training plan, or with --status where it stands; they decide in their own time."""
    with _opened(broker, settings, researcher, timeout) as federation:
        outcomes: Outcomes[Any]
        if status:
            outcomes = federation.plan_status(plan, nodes=node or None)
        else:
            outcomes = federation.approve(plan, description=description, nodes=node or None)
        _finish(federation, outcomes, named=node, as_json=json)


@app.command(epilog=EPILOG)
def watch(
    node: NodesOption = None,
    interval: Annotated[float | None, typer.Option(help="Seconds between samples; without it each owner's.")] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", "-m", help="Only these metrics, with * and ?; may be repeated.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many samples.")] = None,
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    researcher: IdOption = None,
    timeout: ForOption = None,
    json: LinesOption = False,
) -> None:
    """Watch live metrics: a table on a terminal, with --json one document a sample."""
    with (
        _opened(broker, settings, researcher, 5.0) as federation,
        federation.monitor(nodes=node or None, interval_s=interval, metrics=metric) as watching,
    ):
        seen = _watch_lines(watching, timeout, count) if json else _watch_table(watching, timeout, count)
        if not seen:
            raise verdict(watching, federation)


@app.command(epilog=EPILOG)
def logs(
    node: NodesOption = None,
    level: Annotated[str, typer.Option(help="The lowest level to show.")] = "WARNING",
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    researcher: IdOption = None,
    timeout: ForOption = None,
    json: LinesOption = False,
) -> None:
    """Follow what nodes log, as far as their owners let it leave."""
    import queue

    from fedmon.common.clock import Deadline
    from fedmon.common.log import escape_control

    records: queue.Queue[Any] = queue.Queue(10_000)
    deadline = Deadline(timeout if timeout is not None else 10**9)
    with (
        _opened(broker, settings, researcher, 5.0) as federation,
        federation.logs(records.put_nowait, nodes=node or None, level=level.upper()),
    ):
        try:
            while not deadline.passed():
                try:
                    record = records.get(timeout=min(deadline.left_s(), 3600.0))
                except queue.Empty:
                    continue
                line = f"{record.time:%Y-%m-%d %H:%M:%S} {record.level} {record.node_id} {record.logger}: {record.msg}"
                emit_line(record, text=escape_control(line), as_json=json)
        except KeyboardInterrupt:
            return


def _watch_lines(watching: Watch, timeout: float | None, count: int | None) -> int:
    seen = 0
    for sample in _samples(watching, timeout):
        if sample is not None:
            seen += 1
            emit_line(sample, text="", as_json=True)
            if seen == count:
                break
    return seen


def _watch_table(watching: Watch, timeout: float | None, count: int | None) -> int:
    from rich.console import Console
    from rich.live import Live

    from fedmon.researcher.cli_output import rich_table

    console = Console()
    table = LiveTable([], width=console.width)
    seen = 0
    with Live(console=console, refresh_per_second=5, auto_refresh=console.is_terminal) as live:
        for sample in _samples(watching, timeout):
            if sample is not None:
                seen += 1
                table.add(sample)
            caption = f"{seen} samples, {watching.lost} lost; Ctrl-C ends"
            live.update(rich_table(table.columns, table.rows(), caption))
            if count is not None and seen >= count:
                break
    return seen


def _samples(watching: Watch, timeout: float | None) -> Any:
    """Yield samples, and null a few times a second in between, until the time is over or Ctrl-C comes."""
    from fedmon.common.clock import Deadline

    deadline = Deadline(timeout if timeout is not None else 10**9)
    try:
        while not deadline.passed():
            yield watching.next(timeout_s=min(0.25, deadline.left_s()))
    except KeyboardInterrupt:
        return


def _finish(federation: Federation, outcomes: Outcomes[Any], *, named: Sequence[str] | None, as_json: bool) -> None:
    emit(outcomes_document(federation, outcomes), text=str(outcomes), as_json=as_json)
    raise typer.Exit(exit_code(outcomes, named=bool(named)))
