"""The researcher's verbs in a shell; each is a separate instance, beside an open notebook of the same researcher."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmon.researcher.asking.outcome import Outcomes
from fedmon.researcher.cli.record import record
from fedmon.researcher.cli.shell import (
    EPILOG,
    BrokerOption,
    ForOption,
    IdOption,
    JsonOption,
    LinesOption,
    NodesOption,
    SettingsOption,
    TimeoutOption,
    emit,
    emit_line,
    exit_code,
    opened,
    outcomes_document,
)
from fedmon.researcher.cli.watch import watch
from fedmon.researcher.federation import Federation

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True)
nodes_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None, epilog=EPILOG)
app.add_typer(nodes_app, name="nodes")
app.command(epilog=EPILOG)(watch)
app.command(epilog=EPILOG)(record)


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
    with opened(broker, settings, researcher, timeout) as federation:
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
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    researcher: IdOption = None,
    timeout: Annotated[float | None, typer.Option("--timeout", "-t", min=0.1, help="Seconds to wait at most.")] = None,
    json: JsonOption = False,
) -> None:
    """Clear what the broker retains of a node that is gone for good, or hide it here where we may not."""
    before = context.obj
    with opened(
        broker or before[0], settings or before[1], researcher or before[2], timeout or before[3]
    ) as federation:
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
    with opened(broker, settings, researcher, timeout) as federation:
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
    with opened(broker, settings, researcher, timeout) as federation:
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
    with opened(broker, settings, researcher, timeout) as federation:
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
    with opened(broker, settings, researcher, timeout) as federation:
        outcomes: Outcomes[Any]
        if status:
            outcomes = federation.plan_status(plan, nodes=node or None)
        else:
            outcomes = federation.approve(plan, description=description, nodes=node or None)
        _finish(federation, outcomes, named=node, as_json=json)


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
        opened(broker, settings, researcher, 5.0) as federation,
        federation.logs(records.put_nowait, nodes=node or None, level=level.upper()),
    ):
        try:
            while not deadline.passed():
                try:
                    entry = records.get(timeout=min(deadline.left_s(), 3600.0))
                except queue.Empty:
                    continue
                line = f"{entry.time:%Y-%m-%d %H:%M:%S} {entry.level} {entry.node_id} {entry.logger}: {entry.msg}"
                emit_line(entry, text=escape_control(line), as_json=json)
        except KeyboardInterrupt:
            return


def _finish(federation: Federation, outcomes: Outcomes[Any], *, named: Sequence[str] | None, as_json: bool) -> None:
    emit(outcomes_document(federation, outcomes), text=str(outcomes), as_json=as_json)
    raise typer.Exit(exit_code(outcomes, named=bool(named)))
