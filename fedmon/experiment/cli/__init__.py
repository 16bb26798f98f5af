"""The verbs of `fedmon experiment`."""

from __future__ import annotations

import typer

from fedmon.experiment.cli import documents, reports, runs

app = typer.Typer(
    name="experiment",
    help="Check, run, watch and report on experiments over a federation.",
    epilog=documents.EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _verb in (documents.check, runs.run, runs.show, runs.watch, runs.reconnect, documents.graph, reports.report):
    app.command(epilog=documents.EPILOG)(_verb)
